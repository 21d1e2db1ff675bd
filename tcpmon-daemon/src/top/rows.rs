//! Rows from samples: groups and connections, each with what happened since the last sample, and the recent past of the
//! busiest connections.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    net::SocketAddr,
    sync::Arc,
};

use tcpmon_trace::summary::causes;

use super::rates::{Rates, TimesliceRates};
use crate::model::{
    live::{LiveGroup, LiveHost, LiveReader, LiveSample, LiveSocket, LiveTotals},
    snapshot::GroupGauges,
};

/// Samples of a connection that are kept: two minutes at one a second.
pub const HISTORY: usize = 120;

/// Connections whose past is kept. The busiest come first; each takes 7 KB.
const REMEMBERED: usize = 1000;

/// What a row says of what limits it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Limit {
    /// Nothing was received and nothing waits.
    #[default]
    Idle,
    /// Data wait, nobody reads them, and there is room in the window: the sender is not the problem, although it sends
    /// no more.
    NobodyReads,
    /// This cause, in the order of [`causes`], for this share of the time.
    Cause(usize, f64),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => f.write_str("idle"),
            Self::NobodyReads => f.write_str("nobody reads"),
            Self::Cause(cause, share) => write!(f, "{} {:.0}%", causes()[*cause], share * 100.0),
        }
    }
}

/// Position of `upstream` among the causes.
const UPSTREAM: usize = 0;

/// What a row is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// A group: process, service and control group.
    Group(String, String, Option<String>),
    /// A connection, by its cookie.
    Socket(u64),
}

/// One line of the screen.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is about.
    pub subject: Subject,
    /// Name of the reader's process.
    pub process: String,
    /// The service.
    pub service: String,
    /// The control group, if that label is on.
    pub cgroup: Option<String>,
    /// Only for a connection.
    pub connection: Option<ConnectionInfo>,
    /// Current values, with the number of connections.
    pub gauges: GroupGauges,
    /// What happened since the last sample.
    pub rates: Rates,
}

/// What only a connection has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConnectionInfo {
    /// The local address.
    pub local: SocketAddr,
    /// The remote address.
    pub remote: SocketAddr,
    /// Process id of its last reader; 0 if unknown.
    pub tgid: u32,
    /// Thread id of its last reader; 0 if unknown.
    pub tid: u32,
    /// TCP state, the kernel's number.
    pub state: u8,
    /// Inode number of its network namespace.
    pub netns: u32,
    /// For how long it has been observed, seconds: its age, or less if it is older than tcpmon.
    pub age: f64,
    /// Receiver's estimate of the round trip, seconds; 0 if unknown.
    pub round_trip: f64,
}

/// One moment of a connection's past.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// Received, bytes a second.
    pub received: f32,
    /// Read, bytes a second.
    pub read: f32,
    /// Mean queue, bytes.
    pub queue: f32,
    /// `sk_rcvbuf`, bytes.
    pub limit: f32,
    /// Memory in use, bytes.
    pub used: f32,
    /// Advertised window, bytes.
    pub window: f32,
    /// Mean wait of a byte, seconds.
    pub wait: f32,
    /// Time that the reader's thread waited for a CPU, seconds a second.
    pub run_queue_wait: f32,
    /// What limited it.
    pub limited_by: Limit,
}

/// All rows, and what is needed to make the next ones.
#[derive(Debug, Default)]
pub struct Rows {
    /// The pass of the last sample, to ask for the changes since then.
    pub pass: u64,
    /// The host, as of the last sample.
    pub host: LiveHost,
    /// The host's counters in the previous sample.
    pub host_before: Option<LiveHost>,
    /// Seconds between the last two samples; 0 with fewer than two.
    pub interval: f64,
    /// Groups, in no order.
    pub groups: Vec<Row>,
    /// Connections, in no order.
    pub sockets: Vec<Row>,
    monotonic_ns: u64,
    known: HashMap<u32, ShownSocket>,
    group_totals: HashMap<Subject, LiveTotals>,
    readers: HashMap<u32, LiveReader>,
    past: HashMap<u64, VecDeque<Moment>>,
}

/// A connection as it was shown last.
#[derive(Debug)]
struct ShownSocket {
    socket: Arc<LiveSocket>,
    /// The rates up to that time.
    rates: Rates,
    /// The time of the sample that showed it, ns.
    shown_ns: u64,
}

impl Rows {
    /// Takes the next sample.
    pub fn update(&mut self, sample: LiveSample) {
        let is_first = self.monotonic_ns == 0;
        self.interval = if is_first { 0.0 } else { seconds(self.monotonic_ns, sample.monotonic_ns) };
        let host = std::mem::replace(&mut self.host, sample.host);
        self.host_before = (!is_first).then_some(host);
        let threads = self.threads(sample.complete, sample.readers, &sample.slots, sample.monotonic_ns);
        self.take_sockets(sample.complete, sample.sockets, &sample.alive, sample.monotonic_ns, &threads);
        self.take_groups(sample.groups);
        self.remember();
        (self.pass, self.monotonic_ns) = (sample.pass, sample.monotonic_ns);
    }

    /// The recent past of a connection, the oldest first.
    pub fn past(&self, cookie: u64) -> impl ExactSizeIterator<Item = &Moment> {
        static NONE: VecDeque<Moment> = VecDeque::new();
        self.past.get(&cookie).unwrap_or(&NONE).iter()
    }

    /// What the reading threads did since the last sample, by thread id.
    fn threads(
        &mut self,
        complete: bool,
        readers: Vec<LiveReader>,
        slots: &[u64],
        now_ns: u64,
    ) -> HashMap<u32, TimesliceRates> {
        let mut threads: HashMap<u32, TimesliceRates> = HashMap::new();
        let interval = self.interval;
        let mut now = HashMap::new();
        // Threads that were on a CPU at both ends of the interval, with the share of the interval for which they are
        // known.
        let mut running = HashMap::new();
        for reader in readers {
            let before = self.readers.get(&reader.slot).filter(|before| before.tid == reader.tid);
            // A new thread is not known from before its first read, even if its timeslice began earlier.
            let known = before.map_or(seconds(reader.begun_ns, now_ns) / interval, |_| 1.0).min(1.0);
            if reader.is_running && before.is_none_or(|before| before.is_running) {
                running.insert(reader.tid, known);
            }
            if interval > 0.0 {
                // Without earlier values, it began to read in this interval.
                let before = before.map(|before| before.timeslices).unwrap_or_default();
                let rates = TimesliceRates::between(&before, &reader.timeslices, interval);
                let of_thread = threads.entry(reader.tid).or_default();
                of_thread.add(&rates);
                of_thread.unknown = 1.0 - known;
            }
            now.insert(reader.slot, reader);
        }
        for (_, reader) in self.readers.iter().filter(|(slot, _)| !now.contains_key(slot)) {
            let of_thread = threads.entry(reader.tid).or_default();
            // Its timeslice is longer than the interval.
            if reader.is_running {
                (of_thread.on_cpu, of_thread.not_ended) = (1.0, 1.0);
            }
        }
        if complete {
            self.readers = now;
        } else {
            self.readers.extend(now);
            self.readers.retain(|slot, _| is_set(slots, *slot));
        }
        // A timeslice counts when it ends: then the part of it that is older than the interval counts, too, while a
        // timeslice that has not ended does not count at all. A thread that did not sleep had a CPU whenever it did not
        // wait for one.
        for (tid, rates) in &mut threads {
            if rates.blocked == 0.0
                && let Some(running) = running.get(tid)
            {
                rates.not_ended = (running - rates.run_queue_wait - rates.on_cpu).max(0.0);
                rates.on_cpu += rates.not_ended;
            }
            rates.on_cpu = rates.on_cpu.min(1.0);
            rates.run_queue_wait = rates.run_queue_wait.min(1.0);
        }
        threads
    }

    fn take_sockets(
        &mut self,
        complete: bool,
        sockets: Vec<Arc<LiveSocket>>,
        alive: &[u64],
        now_ns: u64,
        threads: &HashMap<u32, TimesliceRates>,
    ) {
        // For readers that are not known or have no slot. Nothing is said about the first sample.
        let unknown = if self.interval > 0.0 { 1.0 } else { 0.0 };
        let not_followed = TimesliceRates { unknown, ..TimesliceRates::default() };
        for socket in sockets {
            let before = self.known.get(&socket.index).map(|known| &known.socket);
            let rates = match before.filter(|before| before.cookie == socket.cookie) {
                // Nothing happened while the connection was at rest, which lasted until the last sample at least. If a
                // pass for another client showed it, it has been at rest since then, limited by its sender.
                Some(before) => {
                    let (from, to) = (before.monotonic_ns.max(self.monotonic_ns), socket.monotonic_ns.max(now_ns));
                    let mut totals = socket.totals;
                    totals.limited_ns[UPSTREAM] += to - socket.monotonic_ns;
                    Rates::between(&before.totals, &totals, seconds(from, to), 1.0)
                }
                // The connection is new. The first sample has no interval, so nothing is said about it.
                None => Rates::between(&LiveTotals::default(), &socket.totals, self.interval, 1.0),
            };
            let timeslices = threads.get(&socket.tid).copied().unwrap_or(not_followed);
            let known = ShownSocket { rates: Rates { timeslices, ..rates }, shown_ns: now_ns, socket };
            self.known.insert(known.socket.index, known);
        }
        if complete {
            self.known.retain(|_, known| known.shown_ns == now_ns);
        } else {
            self.known.retain(|index, _| is_set(alive, *index));
        }
        let at_rest = Rates { seconds: self.interval, ..Rates::default() };
        self.sockets.truncate(self.known.len());
        for (number, ShownSocket { socket, rates, shown_ns }) in self.known.values().enumerate() {
            let rates = if *shown_ns == now_ns { *rates } else { at_rest };
            match self.sockets.get_mut(number) {
                // Reuse rows: otherwise, most of the time would go into allocating names.
                Some(row) => row.reuse_for(socket, rates, now_ns),
                None => self.sockets.push(Row::of_socket(socket, rates, now_ns)),
            }
        }
    }

    fn take_groups(&mut self, groups: Vec<LiveGroup>) {
        // A group with many idle connections would look as if nothing limited it, so only connections that carry data
        // count. What their readers did in timeslices that have not ended is not in the group's sums.
        let mut of_active: HashMap<_, ([f64; 5], f64)> = HashMap::new();
        let mut counted = HashSet::new();
        for row in self.sockets.iter().filter(|row| !row.is_idle()) {
            let key = (row.process.as_str(), row.service.as_str(), row.cgroup.as_deref());
            let (limited, unknown) = of_active.entry(key).or_default();
            limited.iter_mut().zip(row.rates.limited).for_each(|(sum, of)| *sum += of);
            let missing = row.rates.timeslices.not_ended + row.rates.timeslices.unknown;
            let tid = row.connection.map_or(0, |connection| connection.tid);
            if missing > 0.0 && row.rates.read > 0.0 && counted.insert(tid) {
                *unknown += missing;
            }
        }
        let mut totals = HashMap::with_capacity(groups.len());
        let mut rows = Vec::with_capacity(groups.len());
        for group in groups {
            let subject = Subject::Group(group.process.clone(), group.service.clone(), group.cgroup.clone());
            let before = self.group_totals.get(&subject).copied().unwrap_or_default();
            let mut rates = Rates::between(&before, &group.totals, self.interval, group.gauges.sockets.max(1) as f64);
            let key = (group.process.as_str(), group.service.as_str(), group.cgroup.as_deref());
            if let Some((limited, unknown)) = of_active.get(&key) {
                (rates.limited, rates.timeslices.unknown) = (*limited, *unknown);
            }
            totals.insert(subject.clone(), group.totals);
            rows.push(Row {
                subject,
                process: group.process,
                service: group.service,
                cgroup: group.cgroup,
                connection: None,
                gauges: group.gauges,
                rates,
            });
        }
        (self.group_totals, self.groups) = (totals, rows);
    }

    /// Adds this moment to the past of the connections whose past is kept.
    fn remember(&mut self) {
        if self.interval == 0.0 {
            return;
        }
        let room = REMEMBERED.saturating_sub(self.past.len());
        let of_sockets = || self.sockets.iter().filter_map(|row| Some((row.subject.cookie()?, row)));
        if room > 0 {
            let is_new = |(cookie, row): &(u64, &Row)| row.rates.received > 0.0 && !self.past.contains_key(cookie);
            let mut new: Vec<_> = of_sockets().filter(is_new).collect();
            new.sort_by(|(_, a), (_, b)| b.rates.received.total_cmp(&a.rates.received));
            self.past.extend(new.into_iter().take(room).map(|(cookie, _)| (cookie, VecDeque::new())));
        }
        let mut alive = HashSet::new();
        for (cookie, row) in of_sockets() {
            let Some(past) = self.past.get_mut(&cookie) else { continue };
            if past.len() == HISTORY {
                past.pop_front();
            }
            past.push_back(Moment::of(row));
            alive.insert(cookie);
        }
        self.past.retain(|cookie, _| alive.contains(cookie));
    }
}

impl Moment {
    fn of(row: &Row) -> Self {
        let (rates, gauges) = (&row.rates, &row.gauges);
        Self {
            received: rates.received as f32,
            read: rates.read as f32,
            queue: rates.mean_queue as f32,
            limit: gauges.limit_bytes as f32,
            used: gauges.used_bytes as f32,
            window: gauges.window_bytes as f32,
            wait: rates.mean_wait.map_or(0.0, |(wait, _)| wait) as f32,
            run_queue_wait: rates.timeslices.run_queue_wait as f32,
            limited_by: row.limit(),
        }
    }
}

impl Subject {
    /// The cookie of a connection.
    pub fn cookie(&self) -> Option<u64> {
        match self {
            Self::Socket(cookie) => Some(*cookie),
            Self::Group(..) => None,
        }
    }
}

impl Row {
    fn of_socket(socket: &LiveSocket, rates: Rates, now_ns: u64) -> Self {
        Self {
            subject: Subject::Socket(socket.cookie),
            process: socket.process.clone(),
            service: socket.service.clone(),
            cgroup: socket.cgroup.clone(),
            connection: Some(ConnectionInfo::of(socket, now_ns)),
            gauges: socket.gauges,
            rates,
        }
    }

    /// Turns this row, which was another connection's, into the row of this connection, and reuses its memory.
    fn reuse_for(&mut self, socket: &LiveSocket, rates: Rates, now_ns: u64) {
        self.subject = Subject::Socket(socket.cookie);
        self.process.clone_from(&socket.process);
        self.service.clone_from(&socket.service);
        self.cgroup.clone_from(&socket.cgroup);
        self.connection = Some(ConnectionInfo::of(socket, now_ns));
        self.gauges = socket.gauges;
        self.rates = rates;
    }

    /// Whether data wait and nobody reads them.
    pub fn is_stuck(&self) -> bool {
        self.gauges.queue_bytes > 0 && self.rates.seconds > 0.0 && self.rates.read == 0.0
    }

    /// What limits it.
    pub fn limit(&self) -> Limit {
        match self.rates.limited_by() {
            Some((UPSTREAM, _)) if self.is_stuck() => Limit::NobodyReads,
            Some((cause, share)) if !self.is_idle() => Limit::Cause(cause, share),
            _ => Limit::Idle,
        }
    }

    /// Whether nothing was received and nothing waits: then it does not matter what limits the connection.
    fn is_idle(&self) -> bool {
        self.rates.received == 0.0 && self.gauges.queue_bytes == 0
    }
}

impl ConnectionInfo {
    fn of(socket: &LiveSocket, now_ns: u64) -> Self {
        let observed: u64 = socket.totals.limited_ns.iter().sum();
        Self {
            local: socket.local,
            remote: socket.remote,
            tgid: socket.tgid,
            tid: socket.tid,
            state: socket.state,
            netns: socket.netns,
            age: observed as f64 / 1e9 + seconds(socket.monotonic_ns, now_ns),
            round_trip: f64::from(socket.rcv_rtt_us) / 1e6,
        }
    }
}

fn is_set(bits: &[u64], number: u32) -> bool {
    bits.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
}

fn seconds(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::live::LiveTimeslices,
        top::fixture::{at, sample, socket},
    };

    fn row(rows: &Rows, index: u32) -> &Row {
        let cookie = socket(index).cookie;
        rows.sockets.iter().find(|row| row.subject == Subject::Socket(cookie)).expect("the socket")
    }

    #[test]
    fn the_first_sample_has_no_rates_and_the_second_has() {
        let mut rows = Rows::default();
        rows.update(at(1, sample(2)));
        assert_eq!((rows.interval, row(&rows, 1).rates), (0.0, Rates::default()));
        let mut second = at(2, sample(2));
        second.socket_mut(1).totals.received_bytes += 3_000;
        second.groups[0].totals.received_bytes += 3_000;
        rows.update(second);
        assert_eq!((rows.interval, row(&rows, 1).rates.received), (1.0, 3_000.0));
        assert_eq!(rows.groups[0].rates.received, 3_000.0);
        assert_eq!(row(&rows, 0).rates.received, 0.0);
    }

    #[test]
    fn a_connection_that_is_new_counts_from_nothing_and_one_that_ended_is_gone() {
        let mut rows = Rows::default();
        rows.update(at(1, sample(2)));
        let mut second = at(2, sample(3));
        (second.complete, second.alive) = (false, vec![0b101]);
        second.sockets.retain(|socket| socket.index == 2);
        second.socket_mut(0).totals.received_bytes = 500;
        rows.update(second);
        assert_eq!((rows.sockets.len(), row(&rows, 2).rates.received), (2, 500.0));
        // A connection that did not change is at rest.
        assert_eq!(row(&rows, 0).rates, Rates { seconds: 1.0, ..Rates::default() });
        // The same index, but another connection.
        let mut third = at(3, sample(3));
        (third.complete, third.alive) = (false, vec![0b101]);
        third.sockets.retain(|socket| socket.index == 2);
        (third.socket_mut(0).cookie, third.socket_mut(0).totals.received_bytes) = (77, 20);
        rows.update(third);
        let other = rows.sockets.iter().find(|row| row.subject == Subject::Socket(77)).expect("it is shown");
        assert_eq!(other.rates.received, 20.0);
    }

    #[test]
    fn rates_cover_the_whole_interval_even_if_a_pass_for_another_client_showed_the_change() {
        let mut rows = Rows::default();
        rows.update(at(1, sample(1)));
        // It received in the second after that, which another client's pass has shown, and rested for four.
        let mut later = at(6, sample(1));
        later.socket_mut(0).monotonic_ns = 2_000_000_000;
        later.socket_mut(0).totals.received_bytes += 1_000_000;
        later.socket_mut(0).totals.limited_ns[3] += 1_000_000_000;
        rows.update(later.clone());
        let rates = row(&rows, 0).rates;
        assert_eq!((rates.seconds, rates.received), (5.0, 200_000.0));
        assert_eq!(rates.limited, [0.8, 0.0, 0.0, 0.2, 0.0]);
        // The next interval begins with this sample.
        (later.pass, later.monotonic_ns) = (7, 7_000_000_000);
        later.socket_mut(0).monotonic_ns = 7_000_000_000;
        later.socket_mut(0).totals.received_bytes += 1_000;
        later.socket_mut(0).totals.limited_ns[0] += 5_000_000_000;
        rows.update(later);
        let rates = row(&rows, 0).rates;
        assert_eq!((rates.seconds, rates.received, rates.limited[0]), (1.0, 1_000.0, 1.0));
    }

    #[test]
    fn a_group_is_limited_by_what_limits_its_connections_with_data() {
        let mut rows = Rows::default();
        rows.update(at(1, sample(10)));
        let mut second = at(2, sample(10));
        second.socket_mut(3).totals.received_bytes += 1;
        second.socket_mut(3).totals.limited_ns[2] += 900_000_000;
        second.socket_mut(3).totals.limited_ns[0] += 100_000_000;
        for socket in second.sockets.iter_mut().filter(|socket| socket.index != 3) {
            Arc::make_mut(socket).totals.limited_ns[0] += 1_000_000_000;
        }
        second.groups[0].totals.limited_ns[0] += 9_100_000_000;
        second.groups[0].totals.limited_ns[2] += 900_000_000;
        rows.update(second);
        assert_eq!(rows.groups[0].rates.limited_by(), Some((2, 0.9)));
    }

    #[test]
    fn a_thread_that_stays_on_its_cpu_for_longer_than_an_interval_has_all_of_it() {
        let on_cpu = |rows: &Rows| row(rows, 1).rates.timeslices.on_cpu;
        let with = |second, on_cpu_seconds: u64, is_running| {
            let timeslices = LiveTimeslices { on_cpu_ns: on_cpu_seconds * 1_000_000_000, ..LiveTimeslices::default() };
            let mut sample = at(second, sample(2));
            sample.readers = vec![LiveReader { slot: 3, tid: 4712, is_running, begun_ns: 500_000_000, timeslices }];
            (sample.complete, sample.alive, sample.slots) = (second == 1, vec![0b11], vec![0b1000]);
            sample
        };
        let mut rows = Rows::default();
        rows.update(with(1, 5, true));
        let mut second = with(2, 5, true);
        second.readers.clear();
        rows.update(second);
        assert_eq!(on_cpu(&rows), 1.0);
        // All of it counts when the timeslice ends, but no thread has more than one CPU.
        rows.update(with(3, 8, false));
        assert_eq!(on_cpu(&rows), 1.0);
        let mut fourth = with(4, 8, false);
        fourth.readers.clear();
        rows.update(fourth);
        assert_eq!(on_cpu(&rows), 0.0);
    }

    #[test]
    fn a_timeslice_that_has_not_ended_counts_for_a_thread_that_did_not_sleep() {
        let with = |second, begun_ns, preempted, blocked| {
            let on_cpu_ns = 100_000_000 * preempted;
            let timeslices = LiveTimeslices { preempted, blocked, on_cpu_ns, run_queue_wait_ns: on_cpu_ns / 4 };
            let mut sample = at(second, sample(2));
            sample.readers = vec![LiveReader { slot: 3, tid: 4712, is_running: true, begun_ns, timeslices }];
            sample
        };
        let on_cpu = |rows: &Rows| (row(rows, 1).rates.timeslices.on_cpu * 1000.0).round();
        let mut rows = Rows::default();
        rows.update(at(1, sample(2)));
        // The thread has been reading since the middle of the interval, and has ended one timeslice.
        rows.update(with(2, 1_500_000_000, 1, 0));
        assert_eq!(on_cpu(&rows), 475.0);
        rows.update(with(3, 1_500_000_000, 2, 0));
        assert_eq!(on_cpu(&rows), 975.0);
        // It is not known for how long the thread slept.
        rows.update(with(4, 1_500_000_000, 3, 1));
        assert_eq!(on_cpu(&rows), 100.0);
    }

    #[test]
    fn computing_is_unknown_before_a_first_read_and_for_groups_in_an_open_timeslice() {
        let taken = |rows: &mut Rows, second, readers| {
            let mut sample = at(second, sample(2));
            (sample.readers, sample.socket_mut(1).totals.read_bytes) = (readers, second * 1000);
            sample.groups[0].totals.read_bytes = second * 1000;
            sample.socket_mut(1).gauges.queue_bytes = 1;
            rows.update(sample);
            (row(rows, 1).rates.timeslices, rows.groups[0].rates.timeslices)
        };
        let running =
            |begun_ns| vec![LiveReader { slot: 3, tid: 4712, is_running: true, begun_ns, ..LiveReader::default() }];
        let mut rows = Rows::default();
        let (first, _) = taken(&mut rows, 1, Vec::new());
        assert_eq!(first, TimesliceRates::default());
        // The thread has computed and read once, a tenth of a second ago; or it has no slot.
        for readers in [running(1_900_000_000), Vec::new()] {
            let mut rows = Rows::default();
            taken(&mut rows, 1, Vec::new());
            let (of_socket, of_group) = taken(&mut rows, 2, readers);
            assert_eq!((of_socket.computed(), of_group.computed()), (None, None), "{of_socket:?} {of_group:?}");
        }
        // The thread has not left its CPU since it is known.
        taken(&mut rows, 2, running(1_100_000_000));
        let (of_socket, of_group) = taken(&mut rows, 3, running(1_100_000_000));
        assert_eq!((of_socket.computed(), of_socket.on_cpu), (Some(true), 1.0));
        assert_eq!((of_group.computed(), of_group.unknown), (None, 1.0));
    }

    #[test]
    fn the_past_is_bounded_and_ends_with_the_connection() {
        let mut rows = Rows::default();
        for second in 1..=2 * HISTORY as u64 {
            let mut sample = at(second, sample(2));
            sample.socket_mut(1).totals.received_bytes = second * 100;
            rows.update(sample);
        }
        let cookie = socket(1).cookie;
        assert_eq!(rows.past(cookie).len(), HISTORY);
        assert!(rows.past(cookie).all(|moment| moment.received == 100.0));
        rows.update(at(999, sample(1)));
        assert_eq!((rows.past(cookie).len(), rows.past.len()), (0, 0));
    }
}
