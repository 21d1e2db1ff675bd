//! The collector: one thread that owns the kernel side and the table, and answers requests with snapshots.
//!
//! Everything that changes the table happens here, in sequence, so an older view of a socket can never overwrite its
//! last one.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use tcpmon_btf::plan::{EXIT, MEMORY_LIMIT, SWITCH};
use tcpmon_common::{
    ignored::IGNORED_WHY,
    loss::Loss,
    memory_limit::KINDS,
    reader::{READER_EXITED, ReaderSlot},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::oneshot,
};
use tracing::{error, warn};

use super::{
    missed_ends::{MissedEnds, UNTIL_LAST_SWITCH, process_exists, sees_all_processes},
    worker::{self, Heartbeat, WorkerHandle, WorkerInbox},
};
use crate::{
    clock::monotonic_ns,
    decode::Event,
    host::link::shown_name,
    kernel::{Kernel, KernelReadError, Life, Raw, RawReader, Show},
    model::{
        live::{Changes, LiveGroup, LiveSample},
        snapshot::{MapUse, NapiPolls, ProgramRuns, Snapshot},
        table::{Table, TableLimits},
    },
    sandbox::{self, Ordinary, Sandbox, ThreadRole, raise_priority},
    status::Unavailable,
};

/// How often the ring is emptied unless a quarter of it fills up earlier: each time costs some 20 us of CPU.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// The same after the ring was found empty: otherwise, looks that find nothing would take most of the CPU time of an
/// idle daemon.
const QUIET_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of records that are taken from the ring at once, before exited readers are collected.
const MAX_RECORDS_PER_DRAIN: usize = 4096;

/// Without scrapes, the collector makes a pass this often: ended readers and idle groups must not pile up.
const MAX_PASS_INTERVAL: Duration = Duration::from_secs(10);

/// A collector that has not checked its inbox for this long has stalled: the longest pass takes a tenth of this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Without a successful pass for this long, the values shown are out of date.
const MAX_PASS_AGE: Duration = Duration::from_secs(30);

/// While data have waited for a second, how often to look up which processes have the sockets open. The look-up may
/// take at most 0.5 % of the time, because it visits all open files of all processes.
const OWNERS_INTERVAL: Duration = Duration::from_secs(10);
const OWNERS_SHARE: u32 = 200;

/// Changes for live views are kept until no view has asked for them for this long.
const LIVE_UNUSED: Duration = Duration::from_secs(10);

/// The reply to a request: a snapshot, or why there is none.
type Reply = Result<Arc<Snapshot>, Arc<KernelReadError>>;

/// The reply to a live view: a snapshot, and what has changed.
type LiveReply = Result<(Arc<Snapshot>, LiveSample), Arc<KernelReadError>>;

/// A request of a live view: the last pass that the view knows, and where to send the changes since then, with the
/// snapshot.
struct LiveRequest {
    since: u64,
    reply: oneshot::Sender<LiveReply>,
}

/// The limits of groups that can be changed while the collector runs, see [`TableLimits`].
#[derive(Debug)]
pub(super) struct GroupLimits {
    pub(super) max_groups: usize,
    pub(super) group_ttl: Duration,
    pub(super) pin: Vec<String>,
}

/// Requests snapshots from the collector, and changes its limits.
#[derive(Clone, Debug)]
pub(super) struct CollectorHandle {
    worker: WorkerHandle<Reply>,
    new_limits: mpsc::Sender<GroupLimits>,
    live: mpsc::Sender<LiveRequest>,
    passes: Arc<Heartbeat>,
}

impl CollectorHandle {
    /// A snapshot that the collector started to make after this call.
    ///
    /// # Errors
    /// Why there is no snapshot.
    pub(super) async fn snapshot(&self) -> Result<Arc<Snapshot>, Unavailable> {
        let reply = self.worker.request(REQUEST_TIMEOUT).await.map_err(|error| Unavailable(error.to_string()))?;
        reply.map_err(|error| Unavailable(error.to_string()))
    }

    /// What has changed since the pass with the number `since`, or everything if that is 0; without the host.
    ///
    /// # Errors
    /// Why there is no snapshot.
    pub(super) async fn live(&self, since: u64) -> Result<(Arc<Snapshot>, LiveSample), Unavailable> {
        let (reply, answer) = oneshot::channel();
        // A collector that has stopped drops the request, and with it the sender of the reply.
        let _ = self.live.send(LiveRequest { since, reply });
        let _ = self.worker.wake();
        let answer = self.worker.wait_for(answer, REQUEST_TIMEOUT).await;
        answer.map_err(|error| Unavailable(error.to_string()))?.map_err(|error| Unavailable(error.to_string()))
    }

    /// Whether passes are completed and requests are checked.
    ///
    /// # Errors
    /// What has stalled, and for how long.
    pub(super) fn health(&self) -> Result<(), Unavailable> {
        let (since_check, since_pass) = (self.worker.since_last_check(), self.passes.age());
        if since_pass >= MAX_PASS_AGE {
            Err(Unavailable(format!("the collector has not finished a pass for {} s", since_pass.as_secs())))
        } else if since_check >= REQUEST_TIMEOUT {
            Err(Unavailable(format!("the collector has not answered for {} s", since_check.as_secs())))
        } else {
            Ok(())
        }
    }

    /// Changes the limits before the next pass. A collector that has stopped ignores this; its end also ends the
    /// daemon.
    pub(super) fn set_limits(&self, limits: GroupLimits) {
        let _ = self.new_limits.send(limits);
        let _ = self.worker.wake();
    }
}

/// Starts the collector. It ends when every handle is gone; `ended` is dropped with it, however it ends. Requires a
/// tokio runtime, on which it waits for the ring.
///
/// # Errors
/// If no thread can be created or confined, or the ring cannot be waited for.
pub(super) fn start(
    mut kernel: Kernel,
    limits: TableLimits,
    sandbox: &Sandbox,
    ended: oneshot::Sender<()>,
) -> anyhow::Result<CollectorHandle> {
    let (handle, inbox) = worker::channel("collector");
    let (new_limits, limits_inbox) = mpsc::channel();
    let (live, live_inbox) = mpsc::channel();
    let passes = Arc::new(Heartbeat::new());
    #[expect(unsafe_code, reason = "tokio requires that the descriptor stays open")]
    // SAFETY: the descriptor belongs to the `OwnedFd` until that is dropped with the registration.
    let ring = unsafe { AsyncFd::register_with_interest(kernel.ring()?, Interest::READABLE)? };
    tokio::spawn(wake_on_ring_data(ring, handle.clone()));
    let beats = Arc::clone(&passes);
    sandbox::start_grower(sandbox, &mut kernel)?;
    let collector = Collector::new(kernel, limits);
    let work = move |ordinary| {
        let _ended = ended;
        collector.run(&inbox, &limits_inbox, &live_inbox, &beats, ordinary);
    };
    sandbox.spawn(ThreadRole::Collector, "collector", raise_priority, work)?;
    Ok(CollectorHandle { worker: handle, new_limits, live, passes })
}

/// Makes the collector empty the ring whenever the programs signal that it has filled up.
async fn wake_on_ring_data(ring: AsyncFd<OwnedFd>, collector: WorkerHandle<Reply>) {
    while let Ok(mut ready) = ring.readable().await {
        // The programs' wake-ups make the descriptor readable, not data that is already in the ring.
        ready.clear_ready();
        if collector.wake().is_err() {
            return;
        }
    }
}

/// The kernel side and the table. Moves data from one to the other.
pub struct Collector {
    kernel: Kernel,
    table: Table,
    drop_reason_names: HashMap<u32, String>,
    last_pass: Instant,
    /// When the last visit to all sockets started, `CLOCK_MONOTONIC`, ns.
    began_ns: u64,
    /// Which sockets the next pass shows.
    show: Show,
    /// Connections that the programs have seen start to open.
    opened: u64,
    /// What has changed, for live views.
    changes: Changes,
    /// When a live view last asked for that; `None` if that is long ago.
    live_asked: Option<Instant>,
    missed_ends: MissedEnds,
    /// When to look up again which processes have sockets open; `None` before the first time.
    ask_for_owners_at: Option<Instant>,
}

impl Collector {
    /// A collector that has not read anything yet.
    pub fn new(kernel: Kernel, limits: TableLimits) -> Self {
        let now = Instant::now();
        Self {
            table: Table::new(limits, now, kernel.began_ns()),
            drop_reason_names: kernel.drop_reasons().iter().cloned().collect(),
            kernel,
            last_pass: now,
            began_ns: 0,
            show: Show::All,
            opened: 0,
            changes: Changes::default(),
            live_asked: None,
            missed_ends: MissedEnds::default(),
            ask_for_owners_at: None,
        }
    }

    fn run(
        mut self,
        inbox: &WorkerInbox<Reply>,
        limits: &mpsc::Receiver<GroupLimits>,
        live: &mpsc::Receiver<LiveRequest>,
        passes: &Heartbeat,
        ordinary: Ordinary,
    ) {
        let (mut error_logged, mut interval) = (false, DRAIN_INTERVAL);
        // Listening sockets show which of the connections that are older than tcpmon were accepted.
        if let Err(error) = ordinary.during(|| self.visit_sockets(Show::Listeners, Instant::now())) {
            error!(%error, "cannot read the listening sockets; older connections may have the wrong service");
        }
        loop {
            let request = inbox.wait(interval);
            for GroupLimits { max_groups, group_ttl, pin } in limits.try_iter() {
                self.table.set_limits(max_groups, group_ttl, &pin);
            }
            for LiveRequest { since, reply } in live.try_iter() {
                let answer = ordinary
                    .during(|| self.live(since))
                    .map(|(snapshot, sample)| (Arc::new(snapshot), sample))
                    .map_err(Arc::new);
                if answer.is_ok() {
                    passes.beat();
                }
                // The client may have disconnected meanwhile.
                let _ = reply.send(answer);
            }
            let result = match request {
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) if self.last_pass.elapsed() >= MAX_PASS_INTERVAL => {
                    ordinary.during(|| self.pass()).map(|_| passes.beat()).map_err(Arc::new)
                }
                Err(mpsc::RecvTimeoutError::Timeout) | Ok(None) => self
                    .drain()
                    .map(|found| interval = if found { DRAIN_INTERVAL } else { QUIET_INTERVAL })
                    .map_err(Arc::new),
                Ok(request) => {
                    let reply = inbox
                        .reply(request, || ordinary.during(|| self.pass_for_clients()).map(Arc::new).map_err(Arc::new));
                    reply.map(|_| passes.beat())
                }
            };
            match result {
                Err(error) if !error_logged => {
                    error!(%error, "cannot read the data of the eBPF programs; retrying");
                    error_logged = true;
                }
                Err(_) => {}
                Ok(()) => error_logged = false,
            }
        }
    }

    /// A pass whose snapshot is sent to clients. Groups are shown or hidden only after such a pass: after one of the
    /// collector's own, they would be hidden with values that no client has received.
    fn pass_for_clients(&mut self) -> Result<Snapshot, KernelReadError> {
        let snapshot = self.pass()?;
        self.table.change_groups(self.last_pass);
        Ok(snapshot)
    }

    /// A pass for a live view, with what has changed since the pass `since`. It does not show or hide groups, because
    /// no scraper has received their values.
    ///
    /// # Errors
    /// As for [`Collector::pass`].
    pub fn live(&mut self, since: u64) -> Result<(Snapshot, LiveSample), KernelReadError> {
        // Before the pass, which forgets what nobody has asked for.
        if self.live_asked.replace(Instant::now()).is_none() {
            // Nobody has listed what the passes until now have shown.
            self.show = Show::All;
        }
        let snapshot = self.pass()?;
        let groups = snapshot.groups.iter().map(LiveGroup::from).collect();
        let sample = LiveSample { monotonic_ns: self.began_ns, groups, ..self.changes.since(since) };
        Ok((snapshot, sample))
    }

    /// One pass over everything.
    ///
    /// # Errors
    /// If the kernel cannot be read: the next pass shows what this one has not.
    pub fn pass(&mut self) -> Result<Snapshot, KernelReadError> {
        // One that fails may have shown some sockets, which no live view has got: the next one shows all.
        let show = mem::replace(&mut self.show, Show::All);
        let snapshot = self.pass_showing(show)?;
        self.show = Show::Changed;
        Ok(snapshot)
    }

    fn pass_showing(&mut self, show: Show) -> Result<Snapshot, KernelReadError> {
        let now = Instant::now();
        self.last_pass = now;
        // Sockets that have started to listen since the last pass must be known before their connections are visited.
        self.drain()?;
        let raw = self.kernel.raw()?;
        if self.live_asked.take_if(|asked| asked.elapsed() > LIVE_UNUSED).is_some() {
            self.changes.forget();
        }
        if self.live_asked.is_some() {
            self.table.list_sockets();
        }
        self.ask_for_owners(now);
        self.visit_sockets(show, now)?;
        // Not earlier: a slot that was read before the sockets may have been given to another thread since then, and
        // what its former thread did would count twice.
        let readers = self.kernel.readers();
        let now_ns = monotonic_ns();
        for (slot, reader) in &readers {
            self.table.reader(*slot, reader, now, now_ns);
            if reader.flags & READER_EXITED != 0 {
                self.free_reader(*slot)?;
            }
        }
        for slot in self.missed_ends(&raw, &readers, now) {
            self.free_reader(slot)?;
        }
        self.drain()?;

        // Last, because nothing can fail after this: a pass that failed later would lose the drops.
        let counts: Vec<_> = self.kernel.drops()?.iter().map(|(key, count)| (key.cookie, key.reason, *count)).collect();
        let names = &self.drop_reason_names;
        let name = |reason: u32| names.get(&reason).cloned().unwrap_or_else(|| format!("reason_{reason}"));
        self.table.drops(&counts, name, now);
        let drops = counts.iter().map(|(cookie, _, by)| (*cookie, *by));
        self.changes.add_drops(drops, |cookie| self.table.index_of(cookie));
        if self.live_asked.is_some() {
            let listed = self.table.listed_sockets();
            let is_alive = |index, cookie| self.table.is_alive(index, cookie);
            self.changes.record_pass(show == Show::All, listed, &readers, is_alive);
        }
        Ok(self.snapshot(&raw, readers.len(), now.elapsed()))
    }

    /// Looks up which processes have open the sockets with unread data, if the last pass has shown any, and once at the
    /// start.
    fn ask_for_owners(&mut self, now: Instant) {
        if !self.ask_for_owners_at.is_none_or(|at| self.table.has_unread() && now >= at) {
            return;
        }
        let at_ns = monotonic_ns();
        match self.kernel.owners() {
            Ok(Some(owners)) => self.table.set_owners(&owners, at_ns),
            Ok(None) => {}
            Err(error) => warn!(%error, "cannot look up which processes have sockets open; using the previous result"),
        }
        self.ask_for_owners_at = Some(now + OWNERS_INTERVAL.max(now.elapsed() * OWNERS_SHARE));
    }

    /// Slots of processes whose end the programs have missed.
    fn missed_ends(&mut self, raw: &Raw, readers: &[RawReader], now: Instant) -> Vec<u32> {
        let of_ends = |name: &str| name == SWITCH.name || name == EXIT.name;
        let none_missed = raw.skipped.iter().all(|(name, count)| *count == 0 || !of_ends(name));
        if none_missed || !sees_all_processes() {
            return Vec::new();
        }
        let grace = if self.kernel.is_attached(&SWITCH) { UNTIL_LAST_SWITCH } else { Duration::ZERO };
        let running = readers.iter().filter(|(_, reader)| reader.flags & READER_EXITED == 0);
        // A kernel thread belongs to no process.
        let process = |reader: &ReaderSlot| if reader.tgid == 0 { reader.tid } else { reader.tgid };
        self.missed_ends.look(running.map(|(slot, reader)| (*slot, process(reader))), now, grace, process_exists)
    }

    /// Visits all sockets.
    fn visit_sockets(&mut self, show: Show, now: Instant) -> Result<(), KernelReadError> {
        self.began_ns = monotonic_ns();
        self.table.begin(self.began_ns);
        let mut pass = self.kernel.begin(show);
        loop {
            let table = &mut self.table;
            let more = self.kernel.advance(&mut pass, |record, life| match life {
                Life::Open => table.socket(record, now),
                Life::Ended => table.ended(record, now),
                Life::Gone => table.gone(record, now),
            })?;
            if !more {
                break;
            }
            self.drain()?;
        }
        // A connection that fails before it sends anything is counted only for a moment, so the count may fall.
        self.opened = self.opened.max(self.kernel.opened()?);
        self.table.end(now);
        Ok(())
    }

    /// Takes what the programs have left for user space; false if there was nothing.
    fn drain(&mut self) -> Result<bool, KernelReadError> {
        let now = Instant::now();
        let ended = self.kernel.take_ended();
        let drained = self.drain_ring(now);
        // After the ring, whose listening sockets name the processes of these sockets. Also if the ring cannot be read,
        // because nothing else lists these sockets any more.
        let (table, mut has_ended) = (&mut self.table, false);
        self.kernel.conclude(ended, |record| {
            table.ended(record, now);
            has_ended = true;
        });
        Ok(drained? || has_ended)
    }

    /// Takes the records of the ring; false if there were none.
    fn drain_ring(&mut self, now: Instant) -> Result<bool, KernelReadError> {
        let mut found = false;
        loop {
            let (mut exited, mut listening) = (Vec::new(), Vec::new());
            let taken = self.kernel.drain(MAX_RECORDS_PER_DRAIN, |event| match event {
                Event::Listener { index } => listening.push(index),
                Event::ReaderExit { slot } => exited.push(slot),
                Event::FewStates => {}
                Event::Timeslice(_) => warn!("ignored a timeslice record: the daemon does not trace"),
            });
            for record in listening.into_iter().filter_map(|index| self.kernel.listener(index)) {
                self.table.socket(&record, now);
            }
            // After an error, a pass finds those that are left.
            for slot in exited {
                self.reader_exited(slot, now)?;
            }
            let taken = taken?;
            found |= taken > 0;
            // Bounded: records that arrive meanwhile wait for the next call, unless the limit was reached.
            if taken < MAX_RECORDS_PER_DRAIN {
                return Ok(found);
            }
        }
    }

    /// Collects all slots of a thread that has exited, starting with `first`.
    fn reader_exited(&mut self, first: u32, now: Instant) -> Result<(), KernelReadError> {
        let mut slot = first;
        // A pass may have collected them already, and another thread may use one by now.
        while let Some(reader) = self.kernel.reader(slot)
            && reader.flags & READER_EXITED != 0
        {
            self.table.reader(slot, &reader, now, monotonic_ns());
            self.free_reader(slot)?;
            slot = reader.next;
        }
        Ok(())
    }

    /// Frees the slot of a reader whose totals are in the table.
    fn free_reader(&mut self, slot: u32) -> Result<(), KernelReadError> {
        // First free the slot, then forget the reader: if the slot cannot be freed, it must not be taken for a new
        // reader, whose totals would count again.
        self.kernel.free_reader(slot)?;
        self.table.reader_gone(slot);
        Ok(())
    }

    fn snapshot(&self, raw: &Raw, readers: usize, took: Duration) -> Snapshot {
        let in_use = self.table.groups_in_use();
        let options = self.kernel.options();
        let map =
            |name: &str, entries: usize, capacity: u64| MapUse { name: name.into(), entries: entries as u64, capacity };
        let groups = self.table.groups();
        // Sorted, and each once.
        let cgroups: BTreeSet<_> = groups.iter().filter_map(|group| group.key.cgroup.clone()).collect();
        Snapshot {
            groups,
            cgroups: cgroups.into_iter().collect(),
            napi: napi(raw),
            memory_limit_exceeded: self.memory_limit_exceeded(raw),
            ignored: IGNORED_WHY.into_iter().zip(raw.ignored.iter().copied()).collect(),
            probes: self.kernel.probes().to_vec(),
            losses: raw.losses().chain(self.table.losses()).collect(),
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
                map("drops", self.kernel.drop_entries(), options.max_drop_entries.into()),
                map("groups", in_use.shown, in_use.max as u64),
                map("groups_hidden", in_use.hidden, in_use.max_hidden as u64),
                map("readers", readers, options.max_readers.into()),
                map("sockets", self.kernel.sockets_in_use() as usize, options.max_sockets.into()),
            ],
            groups_suppressed: self.table.suppressed(),
            sockets_found_late: raw.lost(Loss::SocketFoundLate),
            connections_opened: self.opened,
            new_at_zero: 0,
            took,
        }
    }

    /// Empty if the probe is not attached: a zero would mean that there were no such requests.
    fn memory_limit_exceeded(&self, raw: &Raw) -> Vec<(&'static str, u64)> {
        if !self.kernel.is_attached(&MEMORY_LIMIT) {
            return Vec::new();
        }
        KINDS.into_iter().zip(raw.memory_limit_exceeded.iter().copied()).collect()
    }
}

/// Adds the per-CPU counts up into one row per device.
fn napi(raw: &Raw) -> Vec<NapiPolls> {
    let mut devices: HashMap<String, NapiPolls> = HashMap::new();
    for (name, counts) in &raw.napi {
        let name = name.map_or_else(|| "other".to_owned(), |name| shown_name(&name));
        let device =
            devices.entry(name.clone()).or_insert(NapiPolls { device: name, polls: 0, packets: 0, exhausted: 0 });
        device.polls += counts.polls;
        device.packets += counts.packets;
        device.exhausted += counts.exhausted;
    }
    let mut devices: Vec<NapiPolls> = devices.into_values().collect();
    devices.sort_by(|a, b| a.device.cmp(&b.device));
    devices
}
