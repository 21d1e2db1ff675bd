//! Samples (*readings* in the code) and their pages. A sample is what one pass over the sockets and one look at the
//! host showed. Clients whose requests come soon after each other share it.

use std::{
    collections::HashMap,
    mem,
    panic::resume_unwind,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    task::{JoinError, spawn_blocking},
    time::sleep_until,
};

use super::{
    Source, Unavailable, WebConfig,
    connections::Client,
    page::{Page, Pages, Writer},
    status,
};
use crate::{
    metrics::{self, Format, Identity},
    model::{newborn::Newborns, snapshot::Observed},
};

/// A request that comes within this time of a sample's start gets that sample.
const LIFE: Duration = Duration::from_millis(250);

/// An address gets this many answers of a sample at once, and then one every [`APART`]. Requests that come sooner, in a
/// loop, wait for the next sample. So a regular scraper at the same address competes with clients in a loop only in the
/// moment when these all get their answers.
const AT_ONCE: u32 = 4;

/// See [`AT_ONCE`].
const APART: Duration = Duration::from_millis(10);

/// What a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The metrics in this format, with the key that tells the scraper apart.
    Metrics(Format, String),
    /// `/status`.
    Status,
}

/// A page, and when its sample was started.
pub(super) struct Answer {
    pub(super) began: Duration,
    pub(super) page: Result<Arc<Page>, Unavailable>,
}

/// Makes samples and pages, one at a time, so that there is never more than one sample in memory, however large.
pub(super) struct Readings<S> {
    pub(super) source: S,
    pub(super) identity: Arc<Identity>,
    web: Option<Arc<WebConfig>>,
    latest: Arc<Mutex<Latest>>,
    pages: Pages,
}

#[derive(Default)]
struct Latest {
    reading: Option<Reading>,
    newborns: Newborns,
}

struct Reading {
    began: Instant,
    /// The same time, on `CLOCK_MONOTONIC`.
    began_clock: Duration,
    /// Once metrics have been requested, this shows new series at zero.
    seen: Result<Observed, Unavailable>,
    /// Text, OpenMetrics, protobuf, status.
    pages: [Option<Result<Arc<Page>, Unavailable>>; 4],
    answered: HashMap<Client, Answered>,
}

/// The answers of a sample that an address has had.
struct Answered {
    count: u32,
    last: Instant,
}

impl<S: Source> Readings<S> {
    pub(super) fn new(source: S, identity: Arc<Identity>, web: Option<Arc<WebConfig>>) -> Self {
        let (latest, pages) = Default::default();
        Self { source, identity, web, latest, pages }
    }

    /// A page of a sample that was started at most [`LIFE`] before this call.
    pub(super) async fn page(self: &Arc<Self>, client: Client, wanted: &Wanted) -> Answer {
        let mut waited = false;
        loop {
            let asked = Instant::now();
            let mut latest = Arc::clone(&self.latest).lock_owned().await;
            if latest.reading.as_ref().is_none_or(|reading| reading.began + LIFE <= asked) {
                latest = self.renew(latest).await;
            }
            let Latest { reading: Some(reading), newborns } = &mut *latest else { continue };
            if !waited && !reading.has_turn(client, Instant::now()) {
                let next = reading.next();
                drop(latest);
                sleep_until(next.into()).await;
                waited = true;
                continue;
            }
            if let (Wanted::Metrics(_, scraper), Ok(seen)) = (wanted, &mut reading.seen) {
                // All clients that share the sample get the same values.
                seen.snapshot = newborns.show(scraper, mem::take(&mut seen.snapshot), Instant::now());
            }
            let began = reading.began_clock;
            let page = match (&reading.seen, &reading.pages[wanted.place()]) {
                (Err(error), _) => Err(error.clone()),
                (_, Some(page)) => page.clone(),
                (Ok(seen), None) => {
                    let seen = seen.clone();
                    self.render(latest, seen, wanted.clone()).await
                }
            };
            return Answer { began, page };
        }
    }

    /// Takes a sample, in a separate task, so that a client that disconnects meanwhile does not cause it to be started
    /// again.
    async fn renew(self: &Arc<Self>, mut latest: OwnedMutexGuard<Latest>) -> OwnedMutexGuard<Latest> {
        let all = Arc::clone(self);
        let made = tokio::spawn(async move {
            // At 10,000 groups there is no memory for two.
            latest.reading = None;
            let began_clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let (began_clock, began) = (began_clock.try_into().unwrap_or_default(), Instant::now());
            let seen = all.source.see().await;
            let (pages, answered) = Default::default();
            latest.reading = Some(Reading { began, began_clock, seen, pages, answered });
            latest
        });
        or_panic(made.await)
    }

    /// Makes a page of the latest sample, also in a separate task, and on a thread of the pool: a large page takes half
    /// a second.
    async fn render(
        self: &Arc<Self>,
        mut latest: OwnedMutexGuard<Latest>,
        seen: Observed,
        wanted: Wanted,
    ) -> Result<Arc<Page>, Unavailable> {
        let all = Arc::clone(self);
        let made = spawn_blocking(move || {
            let page = all.write(seen, &wanted).map(|page| all.pages.add(page));
            if let Some(reading) = &mut latest.reading {
                reading.pages[wanted.place()] = Some(page.clone());
            }
            page
        });
        or_panic(made.await)
    }

    fn write(&self, seen: Observed, wanted: &Wanted) -> Result<Page, Unavailable> {
        let mut writer = Writer::default();
        match wanted {
            Wanted::Metrics(format, _) => {
                let written = metrics::encode(&self.identity, seen, *format, &mut writer);
                written.map_err(|error| Unavailable(error.to_string()))?;
                Ok(writer.page(format.content_type()))
            }
            Wanted::Status => {
                let written = status::write(&self.identity, &seen, self.web.as_deref(), &mut writer);
                written.map_err(|error| Unavailable(error.to_string()))?;
                Ok(writer.page("application/json"))
            }
        }
    }
}

impl Wanted {
    /// Index in [`Reading::pages`].
    fn place(&self) -> usize {
        match self {
            Self::Metrics(Format::Text, _) => 0,
            Self::Metrics(Format::OpenMetrics, _) => 1,
            Self::Metrics(Format::Protobuf, _) => 2,
            Self::Status => 3,
        }
    }
}

impl Reading {
    /// When clients that wait for the next sample get it. The period is irregular: a scraper with the same period would
    /// otherwise compete with them each time.
    fn next(&self) -> Instant {
        let by_chance = u128::from(self.began_clock.subsec_nanos()) % (LIFE.as_nanos() / 4);
        self.began + LIFE + Duration::from_nanos(by_chance as u64)
    }

    /// Whether a client may have this sample now, see [`AT_ONCE`].
    fn has_turn(&mut self, client: Client, now: Instant) -> bool {
        let answered = self.answered.entry(client).or_insert(Answered { count: 0, last: now });
        let has = answered.count < AT_ONCE || now.duration_since(answered.last) >= APART;
        if has {
            *answered = Answered { count: answered.count + 1, last: now };
        }
        has
    }
}

/// The value of a task that is never cancelled; passes on its panic.
fn or_panic<T>(result: Result<T, JoinError>) -> T {
    result.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}
