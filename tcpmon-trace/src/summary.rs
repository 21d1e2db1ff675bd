//! Sums over a trace for each of its sockets, in bounded memory.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    net::SocketAddr,
};

use crate::{
    distribution::{Durations, Fills},
    header::TraceHeader,
    record::{Comm, Limited, Queue, TimesliceEnd, TimesliceRecord},
    total::{SocketTotal, ThreadTotal, Total},
};

/// Maximum number of sockets with a summary of their own; each takes at most 50 KiB. All others share one.
pub const SOCKETS: usize = 1000;

/// Maximum number of threads with totals.
pub const THREADS: usize = 10_000;

/// Maximum number of processes that are named for each socket.
const READERS: usize = 8;

/// Maximum number of threads that are remembered for each socket.
const SOCKET_THREADS: usize = 256;

/// Maximum number of [`Pieces::pieces`], unless another one is given; there are at least half as many once the trace
/// has lasted this many ms.
const PIECES: usize = 64;

/// Length of the first pieces, ns.
const FIRST_PIECE_NS: u64 = 1_000_000;

/// Sums over a trace.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The sockets, by their cookie.
    pub sockets: HashMap<u64, SocketSummary>,
    /// The sum of all sockets beyond [`SOCKETS`].
    pub others: SocketSummary,
    /// The trace has no timeslices, only totals.
    pub totals_only: bool,
    /// CPUs of the host; 0 if it is not known.
    pub cpus: u32,
    /// The threads by their id, as counted in the kernel; at most [`THREADS`], those that come first.
    pub threads: BTreeMap<u32, ThreadTotal>,
    /// Times of threads by their id; at most [`THREADS`], those that come first.
    times: HashMap<u32, SeenThread>,
}

/// Times of threads in their timeslices. A timeslice counts once, however many sockets it has records for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// Time on a CPU, ns.
    pub on_cpu_ns: u64,
    /// Time runnable without a CPU before them, ns.
    pub wait_ns: u64,
    /// Time asleep before them, ns.
    pub sleep_ns: u64,
}

/// A thread with records in the trace.
#[derive(Clone, Copy, Debug, Default)]
struct SeenThread {
    times: ThreadTimes,
    /// When its last timeslice ended, and what has been counted of that timeslice.
    last_ns: u64,
    last: ThreadTimes,
}

/// Maximum number of names of threads that took the CPU, and of CPUs, that are told apart for a socket.
const TOLD_APART: usize = 64;

/// Sums over one socket's records.
#[derive(Clone, Debug, Default)]
pub struct SocketSummary {
    /// Its cookie; 0 for the sum of several sockets.
    pub cookie: u64,
    /// This side and the other; `None` for the sum of several sockets.
    pub ends: Option<(SocketAddr, SocketAddr)>,
    /// Thread groups that read, with the name of the first thread seen of each; at most eight.
    pub readers: Vec<(u32, Comm)>,
    /// Threads that read, at most 256.
    threads: BTreeSet<u32>,
    /// Number of records.
    pub records: u64,
    /// Records whose activation was not seen.
    pub partial: u64,
    /// Bytes read in its records.
    pub read_bytes: u64,
    /// Bytes read as counted in the kernel; 0 if the trace has no totals.
    pub total_read_bytes: u64,
    /// Bytes that arrived while the reader was on a CPU, or off it.
    pub arrived_bytes: u64,
    /// The first activation, `CLOCK_MONOTONIC`, ns.
    pub first_ns: u64,
    /// The last deactivation, `CLOCK_MONOTONIC`, ns.
    pub last_ns: u64,
    /// Time by what limited the connection, ns, in the order of [`Limited::causes`].
    pub limited_ns: [u64; 5],
    /// Bytes x time in the queue while the reader did not wait for a CPU, and while it did, byte-microseconds.
    pub waited_byte_us: [u64; 2],
    /// Timeslices by how they ended, in the order of [`TimesliceEnd::ALL`].
    pub ends_of_timeslices: [u64; 4],
    /// How many timeslices ended because a thread of this name was given the CPU; at most 64 names, those that came
    /// first.
    pub preempted_by: HashMap<Comm, u64>,
    /// How many timeslices were on each CPU; at most 64 CPUs, those that came first.
    pub timeslices_by_cpu: HashMap<u32, u64>,
    /// Time on the CPU per timeslice.
    pub on_cpu: Durations,
    /// Time runnable without a CPU before each timeslice.
    pub run_queue_waits: Durations,
    /// Time asleep before each timeslice.
    pub sleeps: Durations,
    /// How full the buffer was at each activation.
    pub fills_at_activation: Fills,
    /// How full the buffer was at each deactivation.
    pub fills_at_deactivation: Fills,
    /// The longest queue, bytes.
    pub longest_queue_bytes: u32,
    /// Smallest and largest receive buffer, bytes.
    pub rcvbuf_bytes: Option<(u32, u32)>,
    /// How often the buffer was larger than before.
    pub growths: u64,
    /// Smallest and largest window, bytes.
    pub window_bytes: Option<(u32, u32)>,
    /// Edges of timeslices at which the window was shut.
    pub zero_windows: u64,
    /// The receiver's estimates of the round-trip time, where it had one, ns.
    pub round_trips: Durations,
    /// The same totals over time.
    pub pieces: Pieces,
    last_rcvbuf_bytes: u32,
}

impl Summary {
    /// An empty summary for a trace with this header.
    pub fn new(header: &TraceHeader) -> Self {
        Self { totals_only: header.filter.summary_only, cpus: header.cpus, ..Self::default() }
    }

    /// Adds a record.
    pub fn add(&mut self, record: &TimesliceRecord) {
        let full = self.sockets.len() >= SOCKETS;
        let socket = if full && !self.sockets.contains_key(&record.cookie) {
            &mut self.others
        } else {
            let ends = Some((record.local, record.remote));
            let new = || SocketSummary { cookie: record.cookie, ends, ..SocketSummary::default() };
            self.sockets.entry(record.cookie).or_insert_with(new)
        };
        socket.add(record);
        if self.times.len() < THREADS || self.times.contains_key(&record.tid) {
            self.times.entry(record.tid).or_default().add(record);
        }
    }

    /// The times of all threads that read any of these sockets.
    pub fn times_of(&self, sockets: &[&SocketSummary]) -> ThreadTimes {
        let threads: BTreeSet<u32> = sockets.iter().flat_map(|socket| socket.threads.iter().copied()).collect();
        let mut sum = ThreadTimes::default();
        let in_timeslices = |tid| self.times.get(tid).map(|seen| seen.times);
        let in_total = |tid| self.threads.get(tid).map(ThreadTimes::from);
        for times in threads.iter().filter_map(|tid| in_timeslices(tid).or_else(|| in_total(tid))) {
            add(&mut sum.on_cpu_ns, times.on_cpu_ns);
            add(&mut sum.wait_ns, times.wait_ns);
            add(&mut sum.sleep_ns, times.sleep_ns);
        }
        sum
    }

    /// Adds totals.
    pub fn add_total(&mut self, total: &Total) {
        match total {
            Total::Socket(total) => self.socket_total(total),
            Total::Thread(total) if self.threads.len() < THREADS || self.threads.contains_key(&total.tid) => {
                let thread = self.threads.entry(total.tid).or_insert(ThreadTotal {
                    on_cpu_ns: 0,
                    wait_ns: 0,
                    preempted: 0,
                    blocked: 0,
                    read_bytes: 0,
                    ..*total
                });
                thread.at_ns = total.at_ns;
                let sums = [
                    (&mut thread.on_cpu_ns, total.on_cpu_ns),
                    (&mut thread.wait_ns, total.wait_ns),
                    (&mut thread.preempted, total.preempted),
                    (&mut thread.blocked, total.blocked),
                    (&mut thread.read_bytes, total.read_bytes),
                ];
                sums.into_iter().for_each(|(sum, value)| add(sum, value));
            }
            Total::Thread(_) => {}
        }
    }

    fn socket_total(&mut self, total: &SocketTotal) {
        let full = self.sockets.len() >= SOCKETS;
        let socket = match self.sockets.get_mut(&total.cookie) {
            Some(socket) => socket,
            None if full || total.read_bytes == 0 => &mut self.others,
            None => self.sockets.entry(total.cookie).or_insert_with(|| SocketSummary {
                cookie: total.cookie,
                ends: Some((total.local, total.remote)),
                readers: vec![(total.tgid, total.comm)],
                ..SocketSummary::default()
            }),
        };
        add(&mut socket.total_read_bytes, total.read_bytes);
        if socket.records > 0 || socket.cookie != total.cookie {
            return;
        }
        // Only totals are known of the socket. What limited it is known from its start until its sender has finished.
        (socket.first_ns, socket.last_ns) = (total.at_ns.saturating_sub(total.limited.decided_ns()), total.at_ns);
        socket.limited_ns = total.limited.causes().map(|(_, ns)| ns);
        socket.waited_byte_us = [total.waited.application_byte_us, total.waited.scheduler_byte_us];
        socket.arrived_bytes = total.received_bytes;
        socket.threads.insert(total.tid);
    }

    /// The share of all bytes that is in records; 1 if the trace has no totals, or only totals.
    pub fn recorded_share(&self) -> f64 {
        let sockets = || self.sockets.values().chain([&self.others]);
        let all: u64 = sockets().map(SocketSummary::all_read_bytes).fold(0, u64::saturating_add);
        let recorded: u64 = sockets().map(|socket| socket.read_bytes).fold(0, u64::saturating_add);
        if all == 0 || self.totals_only { 1.0 } else { recorded as f64 / all as f64 }
    }

    /// Sockets with the most bytes first, then the sum of those that have no summary of their own, if there are any.
    pub fn by_bytes(&self) -> Vec<&SocketSummary> {
        let mut sockets: Vec<_> = self.sockets.iter().collect();
        sockets.sort_by_key(|(cookie, socket)| (u64::MAX - socket.all_read_bytes(), **cookie));
        let others = (self.others.records | self.others.total_read_bytes > 0).then_some(&self.others);
        sockets.into_iter().map(|(_, socket)| socket).chain(others).collect()
    }
}

impl From<&ThreadTotal> for ThreadTimes {
    fn from(total: &ThreadTotal) -> Self {
        let ThreadTotal { begun_ns, at_ns, on_cpu_ns, wait_ns, .. } = *total;
        let sleep_ns = at_ns.saturating_sub(begun_ns).saturating_sub(on_cpu_ns).saturating_sub(wait_ns);
        Self { on_cpu_ns, wait_ns, sleep_ns }
    }
}

impl SeenThread {
    /// Adds a record. All records of a timeslice end with it. A record of a socket that was first read within the
    /// timeslice has only the times since then.
    fn add(&mut self, record: &TimesliceRecord) {
        if self.last_ns != record.deactivated_ns {
            (self.last_ns, self.last) = (record.deactivated_ns, ThreadTimes::default());
        }
        for (sum, last, now) in [
            (&mut self.times.on_cpu_ns, &mut self.last.on_cpu_ns, record.on_cpu_ns),
            (&mut self.times.wait_ns, &mut self.last.wait_ns, record.wait_ns),
            (&mut self.times.sleep_ns, &mut self.last.sleep_ns, record.sleep_ns),
        ] {
            add(sum, now.saturating_sub(*last));
            *last = now.max(*last);
        }
    }
}

impl SocketSummary {
    fn add(&mut self, record: &TimesliceRecord) {
        if self.records == 0 {
            self.first_ns = record.activated_ns;
        }
        self.records += 1;
        self.partial += u64::from(record.partial);
        self.first_ns = self.first_ns.min(record.activated_ns);
        self.last_ns = self.last_ns.max(record.deactivated_ns);
        if self.readers.len() < READERS && self.readers.iter().all(|(tgid, _)| *tgid != record.tgid) {
            self.readers.push((record.tgid, record.comm));
        }
        if self.threads.len() < SOCKET_THREADS {
            self.threads.insert(record.tid);
        }
        add(&mut self.read_bytes, record.read_bytes);
        add(&mut self.arrived_bytes, record.arrived_off_cpu_bytes);
        add(&mut self.arrived_bytes, record.arrived_on_cpu_bytes);
        for (sum, (_, ns)) in self.limited_ns.iter_mut().zip(record.limited.causes()) {
            add(sum, ns);
        }
        let [application, scheduler] = &mut self.waited_byte_us;
        add(application, record.waited.application_byte_us);
        add(scheduler, record.waited.scheduler_byte_us);
        let end = TimesliceEnd::ALL.iter().position(|end| *end == record.end);
        self.ends_of_timeslices[end.unwrap_or(TimesliceEnd::ALL.len() - 1)] += 1;
        if record.end == TimesliceEnd::Preempted {
            count(&mut self.preempted_by, record.preempted_by);
        }
        count(&mut self.timeslices_by_cpu, record.cpu);
        self.on_cpu.add(record.on_cpu_ns);
        self.run_queue_waits.add(record.wait_ns);
        self.sleeps.add(record.sleep_ns);
        self.fills_at_activation.add(record.activation.fill_permille());
        self.fills_at_deactivation.add(record.deactivation.fill_permille());
        for edge in [&record.activation, &record.deactivation] {
            self.edge(edge);
        }
        if record.rcv_rtt_us > 0 {
            self.round_trips.add(u64::from(record.rcv_rtt_us) * 1000);
        }
        self.pieces.add(record);
    }

    fn edge(&mut self, edge: &Queue) {
        self.longest_queue_bytes = self.longest_queue_bytes.max(edge.queued_bytes);
        self.growths += u64::from(self.last_rcvbuf_bytes != 0 && edge.rcvbuf_bytes > self.last_rcvbuf_bytes);
        self.last_rcvbuf_bytes = edge.rcvbuf_bytes;
        self.rcvbuf_bytes = Some(widened(self.rcvbuf_bytes, edge.rcvbuf_bytes));
        self.window_bytes = Some(widened(self.window_bytes, edge.window_bytes));
        self.zero_windows += u64::from(edge.window_bytes == 0);
    }

    /// Bytes read, including those in lost records if that is known.
    pub fn all_read_bytes(&self) -> u64 {
        self.read_bytes.max(self.total_read_bytes)
    }

    /// Number of bytes whose waits are in `waited_byte_us`.
    pub fn waited_bytes(&self) -> u64 {
        if self.records == 0 { self.total_read_bytes } else { self.read_bytes }
    }

    /// From the first activation to the last deactivation, ns.
    pub fn duration_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns)
    }

    /// The same in seconds.
    pub fn seconds(&self) -> f64 {
        self.duration_ns() as f64 / 1e9
    }

    /// Time for which it is known what limited the connection, ns.
    pub fn decided_ns(&self) -> u64 {
        self.limited_ns.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns))
    }
}

fn add(sum: &mut u64, value: u64) {
    *sum = sum.saturating_add(value);
}

/// Counts one more of this key, unless there are too many others.
fn count<K: Eq + Hash>(counts: &mut HashMap<K, u64>, key: K) {
    if counts.len() < TOLD_APART || counts.contains_key(&key) {
        *counts.entry(key).or_default() += 1;
    }
}

fn widened(range: Option<(u32, u32)>, value: u32) -> (u32, u32) {
    range.map_or((value, value), |(least, most)| (least.min(value), most.max(value)))
}

/// Totals over pieces of equal length of a socket's time. How much the pieces differ tells how reliable a share is.
/// Single records cannot tell, because each is much like the one before.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// The pieces, in order.
    pub pieces: Vec<Piece>,
    /// Length of each, ns.
    pub length_ns: u64,
    /// When the first one begins, `CLOCK_MONOTONIC`, ns.
    pub first_ns: u64,
    most: usize,
}

/// One piece of a socket's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// As in [`SocketSummary::limited_ns`].
    pub limited_ns: [u64; 5],
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes x time in the queue, byte-microseconds.
    pub waited_byte_us: u64,
}

impl Default for Pieces {
    fn default() -> Self {
        Self::at_most(PIECES)
    }
}

impl Pieces {
    /// At most `most` pieces, and at least half as many once the trace has lasted `most` ms.
    pub fn at_most(most: usize) -> Self {
        Self { pieces: Vec::new(), length_ns: FIRST_PIECE_NS, first_ns: 0, most }
    }

    /// Adds a record, in the order of deactivations, to the piece in which it ended.
    pub fn add(&mut self, record: &TimesliceRecord) {
        if self.pieces.is_empty() {
            self.first_ns = record.deactivated_ns;
        }
        let index = self.index_of(record.deactivated_ns);
        let piece = &mut self.pieces[index];
        piece.add(record);
        for (sum, (_, ns)) in piece.limited_ns.iter_mut().zip(record.limited.causes()) {
            add(sum, ns);
        }
    }

    /// Adds a record as [`add`](Self::add) does, but spreads what limited the connection over the pieces in which it
    /// did so: a record's causes cover the time since the read before, which may be long ago. For charts only: pieces
    /// that were filled from one record say nothing about how reliable a share is.
    pub fn add_over_its_time(&mut self, record: &TimesliceRecord) {
        let decided = record.limited.decided_ns();
        if self.pieces.is_empty() {
            self.first_ns = record.deactivated_ns.saturating_sub(decided);
        }
        let last = self.index_of(record.deactivated_ns);
        self.pieces[last].add(record);
        if decided == 0 {
            return;
        }
        let end = record.deactivated_ns.saturating_sub(self.first_ns);
        let (mut index, mut until, mut left) = (last, end, decided);
        // From the end to the beginning; the first piece takes everything that is older.
        while left > 0 {
            let begin = index as u64 * self.length_ns;
            let here = if index == 0 { left } else { left.min(until - begin) };
            for (sum, (_, ns)) in self.pieces[index].limited_ns.iter_mut().zip(record.limited.causes()) {
                // Differences of rounded sums, so that all parts add up.
                let part = |of: u64| (u128::from(ns) * u128::from(of) / u128::from(decided)) as u64;
                add(sum, part(left) - part(left - here));
            }
            (left, until, index) = (left - here, begin, index.saturating_sub(1));
        }
    }

    /// Index of the piece that contains this time; the piece is created if there is none.
    fn index_of(&mut self, ns: u64) -> usize {
        // A record of another CPU may be older than the first one.
        let after = ns.saturating_sub(self.first_ns);
        while after / self.length_ns >= self.most as u64 {
            self.double();
        }
        let index = (after / self.length_ns) as usize;
        if index >= self.pieces.len() {
            self.pieces.resize(index + 1, Piece::default());
        }
        index
    }

    /// Merges each pair of pieces into one.
    fn double(&mut self) {
        let both = self.pieces.chunks(2).map(|pair| {
            pair.iter().fold(Piece::default(), |mut sum, piece| {
                add(&mut sum.read_bytes, piece.read_bytes);
                add(&mut sum.waited_byte_us, piece.waited_byte_us);
                for (sum, ns) in sum.limited_ns.iter_mut().zip(piece.limited_ns) {
                    add(sum, ns);
                }
                sum
            })
        });
        self.pieces = both.collect();
        self.length_ns = self.length_ns.saturating_mul(2);
    }

    /// Two standard errors of the share `part / whole`, both summed over all pieces; `None` with fewer than four pieces
    /// in which `whole` is not 0.
    pub fn margin(&self, part: impl Fn(&Piece) -> f64, whole: impl Fn(&Piece) -> f64) -> Option<f64> {
        let pairs: Vec<_> = self.pieces.iter().map(|piece| (part(piece), whole(piece))).collect();
        let pairs: Vec<_> = pairs.into_iter().filter(|(_, whole)| *whole > 0.0).collect();
        let (n, parts, wholes) = pairs
            .iter()
            .fold((0.0, 0.0, 0.0), |(n, parts, wholes), (part, whole)| (n + 1.0, parts + part, wholes + whole));
        if pairs.len() < 4 {
            return None;
        }
        let share = parts / wholes;
        let squares: f64 = pairs.iter().map(|(part, whole)| (part - share * whole).powi(2)).sum();
        Some(2.0 * (squares * n / (n - 1.0)).sqrt() / wholes)
    }
}

impl Piece {
    /// Adds a record, except for what limited the connection.
    fn add(&mut self, record: &TimesliceRecord) {
        add(&mut self.read_bytes, record.read_bytes);
        add(&mut self.waited_byte_us, record.waited.application_byte_us);
        add(&mut self.waited_byte_us, record.waited.scheduler_byte_us);
    }

    /// The part of its time for which it is known what limited the connection, ns.
    pub fn decided_ns(&self) -> f64 {
        self.limited_ns.iter().map(|ns| *ns as f64).sum()
    }
}

/// A window of at least this size is as large as TCP can make it, bytes: TCP scales 16 bits by at most 14 bits, and
/// does not advertise what is left of a segment.
pub const LARGEST_WINDOW: u32 = (1 << 30) - (1 << 20);

/// The names of the causes, in the order of [`SocketSummary::limited_ns`].
pub fn causes() -> [&'static str; 5] {
    Limited::default().causes().map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample;

    fn at(ns: u64, limited: Limited) -> TimesliceRecord {
        TimesliceRecord { activated_ns: ns, deactivated_ns: ns + 10, limited, ..sample::record() }
    }

    #[test]
    fn sockets_beyond_the_bound_share_a_summary() {
        let mut summary = Summary::default();
        for cookie in 0..SOCKETS as u64 + 50 {
            for _ in 0..2 {
                summary.add(&TimesliceRecord { cookie, ..sample::record() });
            }
        }
        assert_eq!((summary.sockets.len(), summary.others.records), (SOCKETS, 100));
        assert_eq!(summary.by_bytes().len(), SOCKETS + 1);
    }

    #[test]
    fn a_timeslice_counts_once_however_many_sockets_it_has() {
        let mut summary = Summary::default();
        for slice in 0..10 {
            let deactivated_ns = slice * 1000;
            for cookie in 0..50 {
                // The last of them was first read in the middle.
                let on_cpu_ns = if cookie == 49 { 300 } else { 400 };
                let record =
                    TimesliceRecord { deactivated_ns, cookie, on_cpu_ns, wait_ns: 20, sleep_ns: 7, ..sample::record() };
                summary.add(&record);
            }
        }
        summary.add(&TimesliceRecord { tid: 1, cookie: 99, on_cpu_ns: 5, ..sample::record() });
        let of = |wanted: fn(u64) -> bool| {
            let sockets: Vec<_> = summary.sockets.values().filter(|socket| wanted(socket.cookie)).collect();
            summary.times_of(&sockets)
        };
        assert_eq!(of(|cookie| cookie < 50), ThreadTimes { on_cpu_ns: 4000, wait_ns: 200, sleep_ns: 70 });
        assert_eq!(of(|cookie| cookie == 99).on_cpu_ns, 5);
    }

    #[test]
    fn a_buffer_grows_when_it_is_larger_than_at_the_edge_before() {
        let mut summary = SocketSummary::default();
        let sizes = [(100, 100), (100, 200), (200, 200), (150, 300)];
        for (activation, deactivation) in sizes {
            let mut record = sample::record();
            (record.activation.rcvbuf_bytes, record.deactivation.rcvbuf_bytes) = (activation, deactivation);
            summary.add(&record);
        }
        assert_eq!((summary.growths, summary.rcvbuf_bytes), (2, Some((100, 300))));
    }

    #[test]
    fn a_share_that_is_the_same_all_the_time_is_sure_and_one_that_alternates_is_not() {
        let margin = |limited: fn(u64) -> Limited| {
            let mut pieces = Pieces::default();
            (0..1000).for_each(|number| pieces.add(&at(number * 5_000_000, limited(number))));
            pieces.margin(|piece| piece.limited_ns[1] as f64, Piece::decided_ns)
        };
        let steady = margin(|_| Limited { upstream_ns: 100, application_ns: 300, ..Limited::default() });
        assert!(steady.is_some_and(|margin| margin < 1e-9), "{steady:?}");
        // One cause for half of the time, then the other: two standard errors of a coin that is tossed for each of 40
        // pieces.
        let halves = margin(|number| match number {
            0..500 => Limited { upstream_ns: 100, ..Limited::default() },
            _ => Limited { application_ns: 100, ..Limited::default() },
        });
        assert!(halves.is_some_and(|margin| (0.12..0.2).contains(&margin)), "{halves:?}");
    }

    #[test]
    fn in_a_picture_the_time_of_a_read_is_where_it_passed() {
        let mut pieces = Pieces::at_most(10);
        for number in 1..=100 {
            let limited = Limited { application_ns: 90_000_000, upstream_ns: 10_000_000, ..Limited::default() };
            pieces.add_over_its_time(&at(number * 100_000_000, limited));
        }
        let full: Vec<_> = pieces.pieces.iter().map(|piece| piece.decided_ns() / pieces.length_ns as f64).collect();
        let (last, others) = full.split_last().expect("pieces");
        assert!(others.iter().all(|full| (*full - 1.0).abs() < 0.02) && *last <= 1.02, "{full:?}");
    }

    proptest! {
        #[test]
        fn no_time_is_lost_in_a_picture(
            times in proptest::collection::vec((0u64..1 << 36, 0u64..1 << 36, 0u64..1 << 36), 1..100),
        ) {
            let mut pieces = Pieces::at_most(100);
            let mut all = [0; 2];
            for (ns, upstream_ns, application_ns) in times {
                let limited = Limited { upstream_ns, application_ns, ..Limited::default() };
                pieces.add_over_its_time(&at(ns, limited));
                all = [all[0] + upstream_ns, all[1] + application_ns];
            }
            for (cause, all) in all.into_iter().enumerate() {
                prop_assert_eq!(pieces.pieces.iter().map(|piece| piece.limited_ns[cause]).sum::<u64>(), all);
            }
        }

        #[test]
        fn blocks_keep_every_total_and_are_bounded(
            times in proptest::collection::vec((0u64..1 << 40, 0u64..1 << 30), 1..300),
        ) {
            let mut pieces = Pieces::default();
            let mut all = 0;
            for (ns, bytes) in times {
                pieces.add(&TimesliceRecord { read_bytes: bytes, ..at(ns, Limited::default()) });
                all += bytes;
            }
            prop_assert!(pieces.pieces.len() <= PIECES);
            prop_assert_eq!(pieces.pieces.iter().map(|piece| piece.read_bytes).sum::<u64>(), all);
        }
    }
}
