//! The latest sample and its pages. A sample is the result of one pass over the sockets and one read of the host.
//! Clients whose requests arrive soon after each other share it.

use std::{
    collections::HashMap,
    mem,
    panic::resume_unwind,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    task::JoinError,
    time::sleep_until,
};

use super::{
    DataSource, WebConfig,
    connections::Client,
    page::{GzipPageWriter, PageWriter, StoredPage, StoredPages},
    status,
};
use crate::{
    clock::monotonic_ns,
    metrics::{self, Coding, Format, Identity},
    model::{new_series::NewSeries, snapshot::Observed},
    status::Unavailable,
    threads,
};

/// A request that arrives within this time of a sample's start gets that sample.
const SAMPLE_MAX_AGE: Duration = Duration::from_millis(250);

/// A client gets this many answers from a sample at once, and then one every [`MIN_INTERVAL`]. Requests that a client
/// sends in a loop, sooner than that, wait for the next sample. So a regular scraper at the same address competes with
/// clients in a loop only in the moment when all of them get their answers.
const BURST: u32 = 4;

/// Minimum time between two answers to a client after the first [`BURST`].
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// A request for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PageRequest {
    /// The metrics in this format and coding, with the key that tells the scraper apart.
    Metrics(Format, Coding, String),
    /// `/status`.
    Status,
}

/// A page, and when its sample was started (`CLOCK_MONOTONIC` of the host).
pub(super) struct SampledPage {
    pub(super) start: Duration,
    pub(super) page: Result<Arc<StoredPage>, Unavailable>,
}

/// Takes samples and makes pages, one at a time, so that there is never more than one sample in memory, however large.
pub(super) struct SampleCache<S> {
    pub(super) source: S,
    pub(super) identity: Arc<Identity>,
    pub(super) web: Option<Arc<WebConfig>>,
    state: Arc<Mutex<CacheState>>,
    pages: StoredPages,
}

#[derive(Default)]
struct CacheState {
    sample: Option<SharedSample>,
    new_series: NewSeries,
}

struct SharedSample {
    start: Instant,
    /// The same time, on `CLOCK_MONOTONIC`.
    start_clock: Duration,
    /// Once metrics have been requested, this shows new series at zero.
    seen: Result<Observed, Unavailable>,
    /// Text, OpenMetrics and protobuf without compression, the same with compression, status.
    pages: [Option<Result<Arc<StoredPage>, Unavailable>>; 7],
    answered: HashMap<Client, ClientAnswers>,
}

/// The answers that a client has received from a sample.
struct ClientAnswers {
    count: u32,
    last: Instant,
}

impl<S: DataSource> SampleCache<S> {
    pub(super) fn new(source: S, identity: Arc<Identity>, web: Option<Arc<WebConfig>>) -> Self {
        let (state, pages) = Default::default();
        Self { source, identity, web, state, pages }
    }

    /// A page of a sample that was started at most [`SAMPLE_MAX_AGE`] before this call.
    pub(super) async fn page(self: &Arc<Self>, client: Client, request: &PageRequest) -> SampledPage {
        let mut has_waited = false;
        loop {
            let arrival = Instant::now();
            let mut state = Arc::clone(&self.state).lock_owned().await;
            if state.sample.as_ref().is_none_or(|sample| sample.start + SAMPLE_MAX_AGE <= arrival) {
                state = self.take_sample(state).await;
            }
            let CacheState { sample: Some(sample), new_series } = &mut *state else { continue };
            if !has_waited && !sample.admit(client, Instant::now()) {
                let next = sample.next_sample_time();
                drop(state);
                sleep_until(next.into()).await;
                has_waited = true;
                continue;
            }
            if let (PageRequest::Metrics(_, _, scraper), Ok(seen)) = (request, &mut sample.seen) {
                // All clients that share the sample get the same values.
                seen.snapshot = new_series.show(scraper, mem::take(&mut seen.snapshot), Instant::now());
            }
            let start = sample.start_clock;
            let page = match (&sample.seen, &sample.pages[request.index()]) {
                (Err(error), _) => Err(error.clone()),
                (_, Some(page)) => page.clone(),
                (Ok(seen), None) => {
                    let seen = seen.clone();
                    self.render(state, seen, request.clone()).await
                }
            };
            return SampledPage { start, page };
        }
    }

    /// Takes a sample, in a separate task, so that a client that disconnects meanwhile does not cause it to be started
    /// again.
    async fn take_sample(self: &Arc<Self>, mut state: OwnedMutexGuard<CacheState>) -> OwnedMutexGuard<CacheState> {
        let cache = Arc::clone(self);
        let task = tokio::spawn(async move {
            // At 10,000 groups, there is no memory for two samples.
            state.sample = None;
            let (start_clock, start) = (Duration::from_nanos(monotonic_ns()), Instant::now());
            let seen = cache.source.sample().await;
            let (pages, answered) = Default::default();
            state.sample = Some(SharedSample { start, start_clock, seen, pages, answered });
            state
        });
        or_panic(task.await)
    }

    /// Makes a page of the latest sample on a thread of its own: a large page takes half a second.
    async fn render(
        self: &Arc<Self>,
        mut state: OwnedMutexGuard<CacheState>,
        seen: Observed,
        request: PageRequest,
    ) -> Result<Arc<StoredPage>, Unavailable> {
        let cache = Arc::clone(self);
        let page = threads::run("page", move || {
            let page = cache.write(seen, &request).map(|page| cache.pages.add(page));
            if let Some(sample) = &mut state.sample {
                sample.pages[request.index()] = Some(page.clone());
            }
            page
        });
        page.await.unwrap_or_else(|error| Err(Unavailable(error.to_string())))
    }

    fn write(&self, seen: Observed, request: &PageRequest) -> Result<StoredPage, Unavailable> {
        let mut writer = PageWriter::default();
        match request {
            PageRequest::Metrics(format, coding, _) => {
                let written = match coding {
                    Coding::Identity => metrics::encode(&self.identity, seen, *format, &mut writer).map(|()| writer),
                    Coding::Gzip => {
                        let mut gzip = GzipPageWriter::default();
                        let written = metrics::encode(&self.identity, seen, *format, &mut gzip);
                        written.and_then(|()| Ok(gzip.finish()?))
                    }
                };
                let writer = written.map_err(|error| Unavailable(error.to_string()))?;
                Ok(writer.page(format.content_type()))
            }
            PageRequest::Status => {
                let written = status::write(&self.identity, &seen, self.web.as_deref(), &mut writer);
                written.map_err(|error| Unavailable(error.to_string()))?;
                Ok(writer.page("application/json"))
            }
        }
    }
}

impl PageRequest {
    /// Index in [`SharedSample::pages`].
    fn index(&self) -> usize {
        match self {
            Self::Metrics(format, coding, _) => {
                let format = match format {
                    Format::Text => 0,
                    Format::OpenMetrics => 1,
                    Format::Protobuf => 2,
                };
                if *coding == Coding::Gzip { 3 + format } else { format }
            }
            Self::Status => 6,
        }
    }
}

impl SharedSample {
    /// When clients that wait for the next sample get it. The period is irregular: a scraper with the same period would
    /// otherwise compete with them each time.
    fn next_sample_time(&self) -> Instant {
        let jitter_ns = u128::from(self.start_clock.subsec_nanos()) % (SAMPLE_MAX_AGE.as_nanos() / 4);
        self.start + SAMPLE_MAX_AGE + Duration::from_nanos(jitter_ns as u64)
    }

    /// Whether a client may get an answer from this sample now, see [`BURST`].
    fn admit(&mut self, client: Client, now: Instant) -> bool {
        let answered = self.answered.entry(client).or_insert(ClientAnswers { count: 0, last: now });
        let admitted = answered.count < BURST || now.duration_since(answered.last) >= MIN_INTERVAL;
        if admitted {
            *answered = ClientAnswers { count: answered.count + 1, last: now };
        }
        admitted
    }
}

/// The value of a task that is never cancelled; passes on its panic.
fn or_panic<T>(result: Result<T, JoinError>) -> T {
    result.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}
