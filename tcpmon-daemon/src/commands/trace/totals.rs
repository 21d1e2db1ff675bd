//! What the trace knows of each socket and thread as a whole. The kernel's totals come at a socket's end, when its last
//! timeslice may not have ended yet, so they are kept until the end of the trace.

use std::collections::{BTreeSet, HashMap};

use tcpmon_common::{
    reader::{READER_TRACED, ReaderSlot, SLOT_NONE},
    socket::{SocketCounters, SocketRecord},
};
use tcpmon_trace::{Comm, SocketTotal, TimesliceRecord, Total};

use crate::{
    decode,
    kernel::{Kernel, KernelReadError, Show, monotonic_ns},
    model::table::until_now,
};

/// Totals that are kept; more of them are written before the end.
const KEPT: usize = 100_000;

/// Threads whose names are kept: those whose exit was lost are forgotten with all others.
const NAMES: usize = 65_536;

/// The totals so far.
#[derive(Debug, Default)]
pub(super) struct TraceTotals {
    /// Only sockets with one of these ports, if there are any.
    ports: BTreeSet<u16>,
    /// By cookie: bytes read in timeslices, and the kernel's totals once the socket has ended.
    sockets: HashMap<u64, (u64, Option<SocketTotal>)>,
    /// Number of those that have ended.
    ended: usize,
    threads: Vec<Total>,
    /// Names of threads, by their ids.
    names: HashMap<u32, Comm>,
}

impl TraceTotals {
    pub(super) fn new(ports: &[u16]) -> Self {
        Self { ports: ports.iter().copied().collect(), ..Self::default() }
    }

    /// A timeslice is part of the trace.
    pub(super) fn timeslice(&mut self, record: &TimesliceRecord) {
        self.sockets.entry(record.cookie).or_default().0 += record.read_bytes;
        if self.names.len() >= NAMES {
            self.names.clear();
        }
        self.names.insert(record.tid, record.comm);
    }

    /// A socket has these totals; `closed` if it has ended.
    pub(super) fn socket(&mut self, record: &SocketRecord, counters: &SocketCounters, closed: bool) {
        let total = decode::socket_total(record, counters, closed);
        let traced = total.read_bytes > 0 || record.state.reader_slot != SLOT_NONE && total.received_bytes > 0;
        let wanted =
            self.ports.is_empty() || [total.local, total.remote].iter().any(|end| self.ports.contains(&end.port()));
        if traced && wanted {
            let known = &mut self.sockets.entry(total.cookie).or_default().1;
            self.ended += usize::from(known.is_none());
            *known = Some(total);
        } else if closed {
            self.sockets.remove(&total.cookie);
        }
    }

    /// A thread has these totals.
    pub(super) fn thread(&mut self, slot: &ReaderSlot) {
        if slot.flags & READER_TRACED == 0 {
            return;
        }
        let mut total = decode::thread_total(slot, monotonic_ns());
        let name = if total.exited { self.names.remove(&total.tid) } else { self.names.get(&total.tid).copied() };
        total.comm = name.unwrap_or(total.comm);
        self.threads.push(Total::Thread(total));
    }

    /// What has to be written now, so that memory is bounded.
    pub(super) fn surplus(&mut self) -> Vec<Total> {
        if self.ended + self.threads.len() < KEPT { Vec::new() } else { self.take() }
    }

    /// Takes the totals of all that has ended.
    fn take(&mut self) -> Vec<Total> {
        let ended = self.sockets.extract_if(|_, (_, total)| total.is_some());
        let totals = ended.filter_map(|(_, (timeslices_read_bytes, total))| {
            Some(Total::Socket(SocketTotal { timeslices_read_bytes, ..total? }))
        });
        let mut totals: Vec<_> = totals.collect();
        totals.append(&mut self.threads);
        self.ended = 0;
        totals
    }

    /// Everything, at the end of the trace.
    pub(super) fn finish(mut self, kernel: &mut Kernel) -> Result<Vec<Total>, KernelReadError> {
        let mut pass = kernel.begin(Show::All)?;
        loop {
            let more = kernel.advance(&mut pass)?;
            for record in kernel.records(&pass) {
                let (counters, _) = until_now(&record);
                self.socket(&record, &counters, false);
            }
            if !more {
                break;
            }
        }
        for (_, slot) in kernel.readers() {
            self.thread(&slot);
        }
        Ok(self.take())
    }
}
