//! Totals that the trace keeps of each socket and thread. The kernel's totals come when a socket ends. Its last
//! timeslice may not have ended by then, so they are kept until the end of the trace.

use std::collections::{BTreeSet, HashMap};

use tcpmon_common::{
    look::until_now,
    reader::{READER_TRACED, ReaderSlot, SLOT_NONE},
    socket::{SocketCounters, SocketRecord},
};
use tcpmon_trace::{Comm, Limited, SocketTotal, ThreadTotal, TimesliceRecord, Total, Waited};

use crate::{
    clock::monotonic_ns,
    decode,
    kernel::{Kernel, KernelReadError, Life, Show},
};

/// Maximum number of totals that are kept; if there are more, they are written before the end.
const MAX_KEPT_TOTALS: usize = 100_000;

/// Maximum number of sockets whose timeslices are added up. There are more only if many ends were lost; all are then
/// forgotten.
const MAX_OPEN_SOCKETS: usize = 1 << 20;

/// Maximum number of passes at the start of a trace: each moves the start.
const FIRST_PASSES: usize = 4;

/// Maximum number of threads whose names are kept. Threads whose exit was lost are forgotten when all are.
const MAX_NAMES: usize = 65_536;

/// What has been counted for a socket: in its timeslices, or before the trace began.
#[derive(Clone, Copy, Debug, Default)]
struct SocketPart {
    read_bytes: u64,
    limited: Limited,
    waited: Waited,
    /// Timeslices do not have this.
    zero_window_ns: u64,
}

/// The totals so far.
#[derive(Debug, Default)]
pub(super) struct TraceTotals {
    /// Only sockets with one of these ports, if there are any.
    ports: BTreeSet<u16>,
    /// The programs send no timeslices, only totals.
    only: bool,
    /// By cookie: sums over the socket's timeslices, and once the socket has ended, the kernel's totals with the index
    /// of its state.
    sockets: HashMap<u64, (SocketPart, Option<(u32, SocketTotal)>)>,
    /// Number of sockets whose totals are known.
    ended: usize,
    /// Totals that are complete: those of threads, and of former connections of sockets that have connected again.
    complete: Vec<Total>,
    /// Names of threads, by their ids.
    names: HashMap<u32, Comm>,
    /// By cookie: what was counted before the trace began and is not part of it.
    before: HashMap<u64, SocketPart>,
    /// By thread: bytes read in timeslices that are not part of the trace.
    read_before: HashMap<u32, u64>,
    /// The totals of threads when the trace began, by their ids.
    threads_before: HashMap<u32, ThreadTotal>,
    /// By cookie: when the socket was looked at for its totals at the end of the trace, `CLOCK_MONOTONIC`, ns.
    looked_at: HashMap<u64, u64>,
}

impl TraceTotals {
    /// With `only`, the programs send no timeslices.
    pub(super) fn new(ports: &[u16], only: bool) -> Self {
        Self { ports: ports.iter().copied().collect(), only, ..Self::default() }
    }

    /// Whether a timeslice that ended at `ended_ns` is older than the trace, or than the totals of its thread at the
    /// start: timeslices and totals must begin at the same time.
    pub(super) fn is_before(&self, ended_ns: u64, tid: u32, started_ns: u64) -> bool {
        let looked_at = self.threads_before.get(&tid).map_or(0, |thread| thread.at_ns);
        ended_ns < started_ns.max(looked_at)
    }

    /// Whether a timeslice that ended at `ended_ns` is in the totals of its socket, which were taken at the end of the
    /// trace.
    pub(super) fn is_in_totals(&self, cookie: u64, ended_ns: u64) -> bool {
        self.looked_at.get(&cookie).is_some_and(|looked_at| ended_ns <= *looked_at)
    }

    /// A timeslice ended before the trace began.
    pub(super) fn skipped(&mut self, record: &TimesliceRecord) {
        self.before.entry(record.cookie).or_default().read_bytes += record.read_bytes;
        *self.read_before.entry(record.tid).or_default() += record.read_bytes;
    }

    /// A socket ended before the trace began.
    pub(super) fn forget_socket(&mut self, cookie: u64) {
        self.before.remove(&cookie);
    }

    /// A thread exited before the trace began.
    pub(super) fn forget_thread(&mut self, tid: u32) {
        self.read_before.remove(&tid);
    }

    /// Begins the trace.
    ///
    /// What is read between the look at a socket and the look at its reader counts for only one of them. So both looks
    /// are repeated until none of the readers has read meanwhile, but not forever, because some never stop.
    pub(super) fn begin(&mut self, kernel: &mut Kernel) -> Result<(), KernelReadError> {
        for _ in 0..FIRST_PASSES {
            let read = |totals: &HashMap<u32, ThreadTotal>| {
                totals.values().map(|total| total.read_bytes).fold(0, u64::wrapping_add)
            };
            let before = read(&threads(kernel));
            self.sockets_before(kernel)?;
            self.threads_before = threads(kernel);
            // With timeslices, no need to repeat: they say what was read before the trace.
            if !self.only || read(&self.threads_before) == before {
                break;
            }
        }
        Ok(())
    }

    fn sockets_before(&mut self, kernel: &mut Kernel) -> Result<(), KernelReadError> {
        pass(kernel, |record, counters, _| {
            let total = decode::socket_total(record, counters, false);
            let before = self.before.entry(total.cookie).or_default();
            before.zero_window_ns = total.zero_window_ns;
            // The first timeslice of a trace has everything since the read before it; without timeslices, everything
            // counts from now.
            if self.only {
                let SocketTotal { read_bytes, limited, waited, zero_window_ns, .. } = total;
                *before = SocketPart { read_bytes, limited, waited, zero_window_ns };
            }
        })
    }

    /// Adds a timeslice that is part of the trace.
    pub(super) fn timeslice(&mut self, record: &TimesliceRecord) {
        let counted = &mut self.sockets.entry(record.cookie).or_default().0;
        counted.read_bytes += record.read_bytes;
        counted.limited = counted.limited.plus(record.limited);
        counted.waited = counted.waited.plus(record.waited);
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        self.names.insert(record.tid, record.comm);
    }

    /// Takes the totals of a socket; `closed` if it has ended.
    pub(super) fn socket(&mut self, record: &SocketRecord, counters: &SocketCounters, closed: bool) {
        let mut total = decode::socket_total(record, counters, closed);
        if let Some(before) = self.before.get(&total.cookie) {
            total.received_bytes = total.received_bytes.saturating_sub(before.read_bytes);
            total.read_bytes = total.read_bytes.saturating_sub(before.read_bytes);
            total.zero_window_ns = total.zero_window_ns.saturating_sub(before.zero_window_ns);
            total.limited = total.limited.minus(before.limited);
            total.waited = total.waited.minus(before.waited);
        }
        let traced = total.read_bytes > 0 || record.state.reader_slot != SLOT_NONE && total.received_bytes > 0;
        let wanted =
            self.ports.is_empty() || [total.local, total.remote].iter().any(|end| self.ports.contains(&end.port()));
        if traced && wanted {
            let (counted, known) = self.sockets.entry(total.cookie).or_default();
            match known.replace((record.state.index, total)) {
                // The totals are of another connection of the socket.
                Some((_, former)) => self.complete.push(socket_total(std::mem::take(counted), former)),
                None => self.ended += 1,
            }
        } else if closed {
            self.sockets.remove(&total.cookie);
        }
        if closed {
            self.before.remove(&record.state.cookie);
        }
    }

    /// Takes the totals of a thread.
    pub(super) fn thread(&mut self, slot: &ReaderSlot) {
        if slot.flags & READER_TRACED == 0 {
            return;
        }
        let mut total = decode::thread_total(slot, monotonic_ns());
        let name = if total.exited { self.names.remove(&total.tid) } else { self.names.get(&total.tid).copied() };
        total.comm = name.unwrap_or(total.comm);
        // Only if it is the same thread: its id may have been given to another one since.
        if let Some(before) = self.threads_before.get(&total.tid).filter(|before| before.begun_ns == total.begun_ns) {
            total.begun_ns = before.at_ns;
            total.on_cpu_ns -= before.on_cpu_ns;
            total.wait_ns -= before.wait_ns;
            total.preempted -= before.preempted;
            total.blocked -= before.blocked;
            let in_timeslices = || self.read_before.get(&total.tid).copied().unwrap_or(0);
            let read_bytes = if self.only { before.read_bytes } else { in_timeslices() };
            total.read_bytes = total.read_bytes.saturating_sub(read_bytes);
        }
        self.complete.push(Total::Thread(total));
    }

    /// Whether a timeslice of this socket is part of the trace.
    pub(super) fn has_socket(&self, cookie: u64) -> bool {
        self.sockets.contains_key(&cookie)
    }

    /// Takes totals that must be written now, so that memory stays bounded.
    pub(super) fn surplus(&mut self) -> Vec<Total> {
        if self.ended + self.complete.len() < MAX_KEPT_TOTALS && self.sockets.len() < MAX_OPEN_SOCKETS {
            return Vec::new();
        }
        let totals = self.take_complete();
        if self.sockets.len() >= MAX_OPEN_SOCKETS {
            self.sockets.clear();
        }
        totals
    }

    /// Takes all totals that are complete.
    fn take_complete(&mut self) -> Vec<Total> {
        let ended = self.sockets.extract_if(|_, (_, total)| total.is_some());
        let totals = ended.filter_map(|(_, (counted, total))| Some(socket_total(counted, total?.1)));
        let mut totals: Vec<_> = totals.collect();
        totals.append(&mut self.complete);
        self.ended = 0;
        totals
    }

    /// Whether the kernel's totals of this socket, in this state, are known.
    pub(super) fn has_total(&self, record: &SocketRecord) -> bool {
        let known = self.sockets.get(&record.state.cookie).and_then(|(_, total)| total.as_ref());
        known.is_some_and(|(index, _)| *index == record.state.index)
    }

    /// Takes the totals of the sockets that are open at the end of the trace.
    pub(super) fn open_sockets(&mut self, kernel: &mut Kernel) -> Result<(), KernelReadError> {
        pass(kernel, |record, counters, closed| {
            self.looked_at.insert(record.state.cookie, record.time_ns);
            if !self.has_total(record) {
                self.socket(record, counters, closed);
            }
        })
    }

    /// Takes the totals of the threads that have not been looked at, whether or not they have exited.
    pub(super) fn open_threads(&mut self, kernel: &Kernel) {
        for (_, slot) in kernel.readers() {
            self.thread(&slot);
        }
    }

    /// Returns all totals that are left.
    pub(super) fn finish(mut self) -> Vec<Total> {
        self.take_complete()
    }
}

/// The kernel's totals of a socket, with the sums over its timeslices.
fn socket_total(counted: SocketPart, total: SocketTotal) -> Total {
    Total::Socket(SocketTotal {
        timeslices_read_bytes: counted.read_bytes,
        limited: total.limited.plus(counted.limited),
        waited: total.waited.plus(counted.waited),
        ..total
    })
}

/// Looks at all threads.
fn threads(kernel: &Kernel) -> HashMap<u32, ThreadTotal> {
    let now_ns = monotonic_ns();
    kernel.readers().into_iter().map(|(_, slot)| (slot.tid, decode::thread_total(&slot, now_ns))).collect()
}

/// Looks at all sockets; the last argument of `each` says whether the socket has ended.
pub(super) fn pass(
    kernel: &mut Kernel,
    mut each: impl FnMut(&SocketRecord, &SocketCounters, bool),
) -> Result<(), KernelReadError> {
    let mut pass = kernel.begin(Show::All);
    let each = &mut each;
    while kernel.advance(&mut pass, |record, life| match life {
        Life::Open => each(record, &until_now(record).0, false),
        Life::Ended | Life::Gone => each(record, &record.state.counters, true),
    })? {}
    Ok(())
}
