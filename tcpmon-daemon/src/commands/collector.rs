//! The collector: one thread that owns the kernel side and the table, and answers with snapshots.
//!
//! Everything that changes the table happens here, one after the other, so a socket's last record can never be
//! overtaken by an older view of it.

use std::{
    collections::HashMap,
    fs, io,
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use tcpmon_common::{ignored::IGNORED_WHY, loss::Loss, pressure::LIMIT_KINDS, reader::READER_EXITED};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::oneshot,
};
use tracing::{error, warn};

use super::ask;
use crate::{
    decode::{self, Event},
    kernel::{Kernel, Raw, ReadError, Show, monotonic_ns},
    model::{
        snapshot::{MapUse, Napi, Probe, ProgramRuns, Snapshot, Verdict},
        table::{Limits, Table},
    },
};

/// How often the ring is looked at where a quarter of it does not fill up before: each time costs some 20 us of CPU.
const DRAIN_EVERY: Duration = Duration::from_millis(50);

/// Records taken at once before requests are looked at again.
const DRAIN_LIMIT: usize = 4096;

/// Without a scrape, a pass of our own this often: ended readers and idle groups must not pile up.
const PASS_AT_LEAST: Duration = Duration::from_secs(10);

/// What is asked of the collector.
type Answer = Result<Arc<Snapshot>, Arc<ReadError>>;

/// Asks the collector for snapshots.
pub(super) type Handle = ask::Handle<Answer>;

/// Starts the collector. It ends when every handle is gone; `ended` is dropped with it, however it ends. Needs tokio's
/// runtime, on which it waits for the ring.
///
/// # Errors
/// When no thread can be made, or the ring cannot be waited for.
pub(super) fn start(kernel: Kernel, limits: Limits, ended: oneshot::Sender<()>) -> io::Result<Handle> {
    let (handle, inbox) = ask::channel();
    #[expect(unsafe_code, reason = "tokio asks whether the descriptor stays open")]
    // SAFETY: it belongs to the `OwnedFd` until that is dropped with the registration.
    let ring = unsafe { AsyncFd::register_with_interest(kernel.ring()?, Interest::READABLE)? };
    tokio::spawn(nudge(ring, handle.clone()));
    let now = Instant::now();
    let collector = Collector {
        table: Table::new(limits, now, kernel.began_ns()),
        names: kernel.drop_reasons().iter().cloned().collect(),
        kernel,
        last_pass: now,
        show: Show::All,
        opened: 0,
    };
    thread::Builder::new().name("collector".into()).spawn(move || {
        let _ended = ended;
        collector.run(&inbox);
    })?;
    Ok(handle)
}

/// Has the ring emptied whenever the programs say that much is in it.
async fn nudge(ring: AsyncFd<OwnedFd>, collector: Handle) {
    while let Ok(mut ready) = ring.readable().await {
        // Readiness comes with the programs' wake-ups, not with data that are there.
        ready.clear_ready();
        if collector.nudge().is_err() {
            return;
        }
    }
}

struct Collector {
    kernel: Kernel,
    table: Table,
    names: HashMap<u32, String>,
    last_pass: Instant,
    /// What the next pass shows.
    show: Show,
    /// Connections that the programs saw being opened.
    opened: u64,
}

impl Collector {
    fn run(mut self, inbox: &mpsc::Receiver<ask::Request<Answer>>) {
        let mut complained = false;
        // Who accepted the connections that were there before is told by who listens.
        if let Err(error) = self.sockets(Show::Listeners, Instant::now()) {
            error!(%error, "listening sockets are not known");
        }
        loop {
            let result = match inbox.recv_timeout(DRAIN_EVERY) {
                Ok(None) => self.drain().map_err(Arc::new),
                Ok(request) => ask::answer(request, inbox, || self.pass().map(Arc::new).map_err(Arc::new)).map(drop),
                Err(mpsc::RecvTimeoutError::Timeout) if self.last_pass.elapsed() >= PASS_AT_LEAST => {
                    self.pass().map(drop).map_err(Arc::new)
                }
                Err(mpsc::RecvTimeoutError::Timeout) => self.drain().map_err(Arc::new),
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            };
            match result {
                Err(error) if !complained => {
                    error!(%error, "reading from the kernel failed");
                    complained = true;
                }
                Err(_) => {}
                Ok(()) => complained = false,
            }
        }
    }

    /// One pass over everything. The order matters: the sums of sockets whose last record was lost come before the
    /// indexes of these.
    fn pass(&mut self) -> Result<Snapshot, ReadError> {
        let now = Instant::now();
        self.last_pass = now;
        // Whoever began to listen since the last time should be known before their connections are met.
        self.drain()?;
        let raw = self.kernel.raw()?;
        self.table.fallen(&raw.fallen, &self.kernel.fell());
        // What a failed pass would have shown must be shown by the next one.
        let show = std::mem::replace(&mut self.show, Show::All);
        self.sockets(show, now)?;
        self.show = Show::Changed;
        let now_ns = monotonic_ns();
        for (slot, reader) in &raw.readers {
            self.table.reader(*slot, reader, now, now_ns);
            if reader.flags & READER_EXITED != 0 {
                self.table.reader_gone(*slot);
                self.kernel.free_reader(*slot)?;
            }
        }
        self.drain()?;

        let counts: Vec<_> = raw.drops.iter().map(|(key, count)| (key.cookie, key.reason, *count)).collect();
        let names = &self.names;
        let name = |reason: u32| names.get(&reason).cloned().unwrap_or_else(|| format!("reason_{reason}"));
        for (cookie, reason) in self.table.drops(&counts, name, now) {
            self.kernel.forget_drop(cookie, reason);
        }
        Ok(self.snapshot(&raw, now.elapsed()))
    }

    /// A pass over all sockets.
    fn sockets(&mut self, show: Show, now: Instant) -> Result<(), ReadError> {
        self.table.begin();
        let before = self.kernel.lives()?;
        let mut pass = self.kernel.begin(show)?;
        loop {
            let more = self.kernel.advance(&mut pass)?;
            // What was sent before a socket was shown comes before what it shows: that another process reads it now, or
            // that it has ended since.
            self.drain()?;
            for record in self.kernel.records(&pass) {
                self.table.socket(&record, now);
            }
            if !more {
                break;
            }
        }
        let after = self.kernel.lives()?;
        self.opened = after.opened;
        self.table.lives(before, pass.living(), after);
        let met = self.kernel.met();
        for index in self.table.end(&met, now) {
            self.kernel.free_index(index);
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), ReadError> {
        let now = Instant::now();
        loop {
            let mut exited = Vec::new();
            let table = &mut self.table;
            let taken = self.kernel.drain(DRAIN_LIMIT, |event| match event {
                Event::Final(record) => table.ended(&record, now),
                Event::Listener(record) => table.listener(&record),
                Event::HandedOver(record) => table.handed_over(&record, now),
                Event::ReaderExit { slot } => exited.push(slot),
                Event::Timeslice(_) => warn!("a timeslice record, although nothing is traced"),
            })?;
            for slot in exited {
                self.reader_exited(slot, now)?;
            }
            // Bounded: what comes in meanwhile waits for the next time, unless the limit was reached.
            if taken < DRAIN_LIMIT {
                return Ok(());
            }
        }
    }

    /// Collects all slots of a thread that has exited, its own one first.
    fn reader_exited(&mut self, first: u32, now: Instant) -> Result<(), ReadError> {
        let mut slot = first;
        // A pass may have collected them already, and another thread may have one by now.
        while let Some(reader) = self.kernel.reader(slot)
            && reader.flags & READER_EXITED != 0
        {
            self.table.reader(slot, &reader, now, monotonic_ns());
            self.table.reader_gone(slot);
            self.kernel.free_reader(slot)?;
            slot = reader.next;
        }
        Ok(())
    }

    fn snapshot(&self, raw: &Raw, took: Duration) -> Snapshot {
        let (groups, max_groups) = self.table.groups_in_use();
        let options = self.kernel.options();
        let map = |name: &str, entries: usize, capacity: Option<u64>| MapUse {
            name: name.into(),
            entries: entries as u64,
            capacity,
        };
        Snapshot {
            groups: self.table.groups(),
            napi: napi(raw),
            limits_exceeded: self.limits_exceeded(raw),
            ignored: IGNORED_WHY.into_iter().zip(raw.ignored.iter().copied()).collect(),
            probes: self.kernel.probes().to_vec(),
            losses: raw.losses().chain(self.losses()).collect(),
            programs: raw
                .programs
                .iter()
                .map(|(name, stats)| ProgramRuns {
                    name: name.clone(),
                    runs: (stats.runs > 0).then_some(stats.runs),
                    run_time: (stats.runs > 0).then(|| Duration::from_nanos(stats.run_ns)),
                })
                .collect(),
            maps: vec![
                map("drops", raw.drops.len(), Some(options.max_drop_entries.into())),
                map("groups", groups, Some(max_groups as u64)),
                map("readers", raw.readers.len(), Some(options.max_readers.into())),
                map("sockets", self.table.sockets_known(), None),
            ],
            groups_suppressed: self.table.suppressed(),
            begins_late: raw.lost(Loss::SocketBeginLate),
            connections_opened: self.opened,
            newborn: 0,
            took,
        }
    }

    /// What the table could not use.
    fn losses(&self) -> [(String, u64); 3] {
        let [sockets, readers] = self.table.impossible();
        [("socket_end", self.table.unended()), ("impossible_socket", sockets), ("impossible_reader", readers)]
            .map(|(what, count)| (what.to_owned(), count))
    }

    /// Nothing where the probe is not attached: a zero would say that there was none.
    fn limits_exceeded(&self, raw: &Raw) -> Vec<(&'static str, u64)> {
        let attached = |probe: &Probe| probe.name == "sock_exceed_buf_limit" && probe.verdict == Verdict::Attached;
        if !self.kernel.probes().iter().any(attached) {
            return Vec::new();
        }
        LIMIT_KINDS.into_iter().zip(raw.limits.iter().copied()).collect()
    }
}

/// Per-CPU counts of devices become one row per device.
fn napi(raw: &Raw) -> Vec<Napi> {
    let mut devices: HashMap<String, Napi> = HashMap::new();
    for (name, counts) in &raw.napi {
        let name = name.map_or_else(|| "other".to_owned(), |name| decode::name(&name));
        let device = devices.entry(name.clone()).or_insert(Napi { device: name, polls: 0, packets: 0, exhausted: 0 });
        device.polls += counts.polls;
        device.packets += counts.packets;
        device.exhausted += counts.exhausted;
    }
    let mut devices: Vec<Napi> = devices.into_values().collect();
    devices.sort_by(|a, b| a.device.cmp(&b.device));
    devices
}

/// The control group (v2) of a thread group, as `/proc` names it.
pub fn cgroup_of(tgid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{tgid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}
