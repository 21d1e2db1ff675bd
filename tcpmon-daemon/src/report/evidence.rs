//! The evidence for a verdict: sums over one socket, or over several together.

use std::collections::BTreeMap;

use tcpmon_trace::summary::{LARGEST_WINDOW, Piece, Pieces, SocketSummary, Summary, ThreadTimes};

/// A trace as a whole is judged by its busiest sockets, those with this share of all bytes: the others are idle by
/// comparison.
const BYTES_JUDGED: f64 = 0.99;

/// If fewer than one in this many timeslices were preempted, who preempted them says nothing about the transfer.
const PREEMPTED_ONE_IN: u64 = 10;

/// Sums over sockets.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// Number of sockets.
    pub sockets: usize,
    /// Number of records of their timeslices.
    pub records: u64,
    /// From the first activation to the last deactivation, ns.
    pub duration_ns: u64,
    /// Time for which it is known what limited the connections, in the order of the causes, ns.
    pub limited_ns: [f64; 5],
    /// Margin of error of each cause's share; `None` if the trace is too short to tell.
    pub margins: Option<[f64; 5]>,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes read per second; `None` if no time passed.
    pub bytes_per_second: Option<f64>,
    /// Margin of error of that rate.
    pub bytes_per_second_margin: Option<f64>,
    /// Mean time that a byte waited to be read, us; `None` if nothing was read.
    pub mean_wait_us: Option<f64>,
    /// Margin of error of that mean, us.
    pub mean_wait_margin_us: Option<f64>,
    /// Time on a CPU in timeslices with records of these sockets, ns.
    pub on_cpu_ns: u64,
    /// Time in a run queue before these timeslices, ns.
    pub run_queue_wait_ns: u64,
    /// Time asleep before these timeslices, ns.
    pub sleep_ns: u64,
    /// The thread name to which the readers most often lost their CPU, and its share of these preemptions; `None` if
    /// they seldom lost it.
    pub taken_by: Option<(String, f64)>,
    /// The CPU on which the readers had the most timeslices, and its share of them; `None` if it is not known.
    pub reader_cpu: Option<(u32, f64)>,
    /// CPUs of the host; 0 if it is not known.
    pub cpus: u32,
    /// Largest receive buffer, bytes.
    pub rcvbuf_bytes: u32,
    /// Largest window, bytes.
    pub window_bytes: u32,
    /// Sockets whose window was as large as TCP can make it. The sum of several sockets is none of them: of which of
    /// them it was is not known.
    pub at_largest_window: usize,
    /// Largest receive buffer of sockets whose window never was that large, bytes; 0 if there are none.
    pub smaller_rcvbuf_bytes: u32,
    /// Median of the receiver's estimates of the round-trip time of the first socket, ns; 0 if there are none.
    pub round_trip_ns: u64,
}

impl Evidence {
    /// The evidence of these sockets, the busiest first, on a host with this many CPUs (0: not known).
    pub fn of(sockets: &[&SocketSummary], cpus: u32) -> Self {
        let sum = |value: fn(&SocketSummary) -> u64| {
            sockets.iter().fold(0, |sum: u64, socket| sum.saturating_add(value(socket)))
        };
        let first = sockets.iter().map(|socket| socket.first_ns).min().unwrap_or(0);
        let duration_ns = sockets.iter().map(|socket| socket.last_ns).max().unwrap_or(0).saturating_sub(first);
        let mut limited_ns = [0.0; 5];
        for socket in sockets {
            limited_ns.iter_mut().zip(socket.limited_ns).for_each(|(sum, ns)| *sum += ns as f64);
        }
        let decided: f64 = limited_ns.iter().sum();
        let read_bytes = sum(SocketSummary::all_read_bytes);
        let recorded_bytes = sum(SocketSummary::waited_bytes);
        let most = |range: Option<(u32, u32)>| range.map_or(0, |(_, most)| most);
        let largest = |range: fn(&SocketSummary) -> Option<(u32, u32)>| {
            sockets.iter().map(|it| most(range(it))).max().unwrap_or(0)
        };
        let has_largest_window = |socket: &SocketSummary| most(socket.window_bytes) >= LARGEST_WINDOW;
        let smaller = sockets.iter().filter(|socket| !has_largest_window(socket));
        let seconds = duration_ns as f64 / 1e9;
        let waited = sum(|socket| socket.waited_byte_us[0].saturating_add(socket.waited_byte_us[1]));
        let share = |cause: usize| {
            let weight = |socket: &SocketSummary| socket.decided_ns() as f64;
            combined(sockets, decided, weight, |pieces| {
                pieces.margin(|piece| piece.limited_ns[cause] as f64, Piece::decided_ns)
            })
        };
        let margins = [share(0), share(1), share(2), share(3), share(4)];
        let all: Vec<f64> = margins.into_iter().flatten().collect();
        Self {
            sockets: sockets.len(),
            records: sum(|socket| socket.records),
            duration_ns,
            limited_ns,
            margins: all.try_into().ok(),
            read_bytes,
            bytes_per_second: (seconds > 0.0).then(|| read_bytes as f64 / seconds),
            bytes_per_second_margin: combined(sockets, seconds, SocketSummary::seconds, |pieces| {
                let length = pieces.length_ns as f64 / 1e9;
                pieces.margin(|piece| piece.read_bytes as f64, |_| length)
            }),
            mean_wait_us: (recorded_bytes > 0).then(|| waited as f64 / recorded_bytes as f64),
            mean_wait_margin_us: combined(
                sockets,
                recorded_bytes as f64,
                |socket| socket.waited_bytes() as f64,
                |pieces| pieces.margin(|piece| piece.waited_byte_us as f64, |piece| piece.read_bytes as f64),
            ),
            on_cpu_ns: sum(|socket| socket.on_cpu.sum_ns()),
            run_queue_wait_ns: sum(|socket| socket.run_queue_waits.sum_ns()),
            sleep_ns: sum(|socket| socket.sleeps.sum_ns()),
            taken_by: taken_by(sockets),
            reader_cpu: reader_cpu(sockets),
            cpus,
            rcvbuf_bytes: largest(|socket| socket.rcvbuf_bytes),
            window_bytes: largest(|socket| socket.window_bytes),
            at_largest_window: sockets.iter().filter(|it| it.ends.is_some() && has_largest_window(it)).count(),
            smaller_rcvbuf_bytes: smaller.map(|socket| most(socket.rcvbuf_bytes)).max().unwrap_or(0),
            round_trip_ns: sockets.first().map_or(0, |socket| socket.round_trips.quantile(500)),
        }
    }

    /// The evidence of the sockets that count for a trace as a whole: the busiest, which have nearly all of the bytes.
    /// Times are those of their threads: a timeslice of an event loop counts once, not once per socket.
    pub fn of_busiest(summary: &Summary) -> Self {
        let by_bytes = summary.by_bytes();
        let all: f64 = by_bytes.iter().map(|socket| socket.all_read_bytes() as f64).sum();
        let mut before = 0.0;
        let busiest: Vec<_> = by_bytes
            .into_iter()
            .take_while(|socket| {
                let counts = before <= all * BYTES_JUDGED;
                before += socket.all_read_bytes() as f64;
                counts
            })
            .collect();
        let ThreadTimes { on_cpu_ns, wait_ns, sleep_ns } = summary.times_of(&busiest);
        Self { on_cpu_ns, run_queue_wait_ns: wait_ns, sleep_ns, ..Self::of(&busiest, summary.cpus) }
    }

    /// Time for which it is known what limited the connections, ns.
    pub fn decided_ns(&self) -> f64 {
        self.limited_ns.iter().sum()
    }

    /// The share of each cause; all 0 if nothing is known.
    pub fn shares(&self) -> [f64; 5] {
        let decided = self.decided_ns();
        self.limited_ns.map(|ns| if decided > 0.0 { ns / decided } else { 0.0 })
    }

    /// Bytes in flight: the rate at which they were read times the receiver's round trip; `None` if that is not known.
    pub fn bytes_in_flight(&self) -> Option<f64> {
        let rate = self.bytes_per_second.filter(|_| self.round_trip_ns > 0 && self.sockets == 1)?;
        Some(rate * self.round_trip_ns as f64 / 1e9)
    }
}

/// The name of the threads that took the CPU most often, and their share, if the readers lost it in enough of their
/// timeslices.
fn taken_by(sockets: &[&SocketSummary]) -> Option<(String, f64)> {
    let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in sockets.iter().flat_map(|socket| &socket.preempted_by) {
        *by_name.entry(name.as_str()).or_default() += count;
    }
    let all: u64 = by_name.values().sum();
    let timeslices: u64 = sockets.iter().map(|socket| socket.records).sum();
    if all.saturating_mul(PREEMPTED_ONE_IN) < timeslices {
        return None;
    }
    let (name, count) = by_name.into_iter().max_by_key(|(_, count)| *count)?;
    Some((name.to_owned(), count as f64 / all as f64))
}

/// The CPU on which the readers had the most timeslices, and its share of all of them.
fn reader_cpu(sockets: &[&SocketSummary]) -> Option<(u32, f64)> {
    let mut by_cpu: BTreeMap<u32, u64> = BTreeMap::new();
    for (cpu, count) in sockets.iter().flat_map(|socket| &socket.timeslices_by_cpu) {
        *by_cpu.entry(*cpu).or_default() += count;
    }
    let all: u64 = sockets.iter().map(|socket| socket.records).sum();
    let (cpu, count) = by_cpu.into_iter().max_by_key(|(_, count)| *count)?;
    Some((cpu, count as f64 / all as f64))
}

/// Margin of error of a weighted mean of the sockets' ratios, if the sockets are independent of each other. `None` if
/// that is not known for sockets that make up a tenth of the weight.
fn combined(
    sockets: &[&SocketSummary],
    whole: f64,
    weight: impl Fn(&SocketSummary) -> f64,
    margin: impl Fn(&Pieces) -> Option<f64>,
) -> Option<f64> {
    let (mut squares, mut unknown) = (0.0, 0.0);
    for socket in sockets {
        match margin(&socket.pieces) {
            Some(margin) => squares += (margin * weight(socket)).powi(2),
            None => unknown += weight(socket),
        }
    }
    (whole > 0.0 && unknown < whole / 10.0).then(|| squares.sqrt() / whole)
}
