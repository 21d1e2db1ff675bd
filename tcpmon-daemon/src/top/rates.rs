//! What happened between two samples.

use tcpmon_common::{histogram::FILL_ONE, socket};

use crate::model::live::{LiveTimeslices, LiveTotals};

/// What happened in an interval, per second unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Length of the interval, seconds; 0 if only one sample is known.
    pub seconds: f64,
    /// Data received in order, bytes.
    pub received: f64,
    /// Data read, bytes.
    pub read: f64,
    /// Mean of the queue over the interval, bytes.
    pub mean_queue: f64,
    /// Mean time that a byte waited to be read, and the part of it in which the reader waited for a CPU, seconds;
    /// `None` if nothing was read.
    pub mean_wait: Option<(f64, f64)>,
    /// Average number of connections that were limited by each cause, in the order of
    /// [`tcpmon_trace::summary::causes`].
    pub limited: [f64; 5],
    /// Share of the time with a window below one segment, summed over the connections.
    pub zero_window: f64,
    /// How often autotuning raised the buffer, in the whole interval.
    pub growths: u64,
    /// Segments dropped.
    pub drops: f64,
    /// Share of the buffer in use when the reader got the CPU and when it lost it; `None` if it did not.
    pub edge_fills: [Option<f64>; 2],
    /// The readers' timeslices.
    pub timeslices: TimesliceRates,
}

/// Timeslices per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimesliceRates {
    /// Those that ended because another thread took the CPU.
    pub preempted: f64,
    /// Those that ended because the thread went to sleep.
    pub blocked: f64,
    /// Time on a CPU, seconds.
    pub on_cpu: f64,
    /// Time runnable without a CPU, seconds.
    pub run_queue_wait: f64,
    /// Only for a thread: the part of `on_cpu` in a timeslice that has not ended, which the sums of a group never
    /// include.
    pub not_ended: f64,
    /// Time for which it is not known what the readers did, seconds.
    pub unknown: f64,
}

/// A reader mostly computes if it computes for more than this share of the time in which it does not wait for a CPU. A
/// timeslice that has not ended may be missing in its sums.
const BUSY: f64 = 0.5;

impl Rates {
    /// The rates between two totals that are `seconds` apart, of at most `connections` connections.
    pub fn between(before: &LiveTotals, after: &LiveTotals, seconds: f64, connections: f64) -> Self {
        if seconds <= 0.0 {
            return Self::default();
        }
        let grown = |of: fn(&LiveTotals) -> u64| of(after).saturating_sub(of(before)) as f64;
        let read = grown(|totals| totals.read_bytes);
        let waited = byte_seconds(before.queue_byte_ticks, after.queue_byte_ticks);
        let for_cpu = byte_seconds(before.scheduler_byte_ticks, after.scheduler_byte_ticks);
        let mut limited = [0.0; 5];
        for (cause, share) in limited.iter_mut().enumerate() {
            *share = after.limited_ns[cause].saturating_sub(before.limited_ns[cause]) as f64 / 1e9 / seconds;
        }
        // Time that was held back until its cause was known, or that was counted while nobody looked, belongs to an
        // earlier interval.
        let others: f64 = limited[1..].iter().sum();
        limited[0] = limited[0].min((connections - others).max(0.0));
        let fill = |edge: usize| {
            let edges = after.edges[edge].saturating_sub(before.edges[edge]);
            let sum = after.edge_fills[edge].saturating_sub(before.edge_fills[edge]);
            (edges > 0).then(|| sum as f64 / edges as f64 / f64::from(FILL_ONE))
        };
        Self {
            seconds,
            received: grown(|totals| totals.received_bytes) / seconds,
            read: read / seconds,
            mean_queue: waited / seconds,
            mean_wait: (read > 0.0).then(|| (waited / read, for_cpu / read)),
            limited,
            zero_window: grown(|totals| totals.zero_window_ns) / 1e9 / seconds,
            growths: after.growths.saturating_sub(before.growths),
            drops: grown(|totals| totals.drops) / seconds,
            edge_fills: [fill(0), fill(1)],
            timeslices: TimesliceRates::between(&before.timeslices, &after.timeslices, seconds),
        }
    }

    /// The largest cause and its share of the time for which the cause is known; `None` if nothing is known. If the
    /// causes on this side limited half of the time, it is the largest of these, even if each of them is smaller than
    /// `upstream`.
    pub fn limited_by(&self) -> Option<(usize, f64)> {
        let all: f64 = self.limited.iter().sum();
        let first = usize::from(self.limited_here() >= 0.5);
        let largest = (first..5).max_by(|a, b| self.limited[*a].total_cmp(&self.limited[*b]))?;
        (all > 0.0).then(|| (largest, self.limited[largest] / all))
    }

    /// Shares of the causes; all 0 if nothing is known.
    pub fn shares(&self) -> [f64; 5] {
        let all: f64 = self.limited.iter().sum();
        self.limited.map(|of| if all > 0.0 { of / all } else { 0.0 })
    }

    /// Share of the time in which the readers, the window or memory limited the connections.
    pub fn limited_here(&self) -> f64 {
        self.shares()[1..].iter().sum()
    }
}

impl TimesliceRates {
    /// The rates between two totals that are `seconds` apart.
    pub fn between(before: &LiveTimeslices, after: &LiveTimeslices, seconds: f64) -> Self {
        let per_second = |of: fn(&LiveTimeslices) -> u64| of(after).saturating_sub(of(before)) as f64 / seconds;
        Self {
            preempted: per_second(|of| of.preempted),
            blocked: per_second(|of| of.blocked),
            on_cpu: per_second(|of| of.on_cpu_ns) / 1e9,
            run_queue_wait: per_second(|of| of.run_queue_wait_ns) / 1e9,
            not_ended: 0.0,
            unknown: 0.0,
        }
    }

    /// Whether the readers mostly computed; `None` if that depends on unknown time.
    pub fn computed(&self) -> Option<bool> {
        let is_busy = |on_cpu: f64| on_cpu > 0.0 && on_cpu >= BUSY * (1.0 - self.run_queue_wait);
        match is_busy(self.on_cpu) {
            false if is_busy(self.on_cpu + self.unknown) => None,
            known => Some(known),
        }
    }

    /// Adds the rates of another slot.
    pub fn add(&mut self, other: &Self) {
        self.preempted += other.preempted;
        self.blocked += other.blocked;
        self.on_cpu += other.on_cpu;
        self.run_queue_wait += other.run_queue_wait;
    }
}

fn byte_seconds(before: u64, after: u64) -> f64 {
    socket::byte_seconds(after.saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_over_the_time() {
        let before = LiveTotals { received_bytes: 1_000, read_bytes: 500, ..LiveTotals::default() };
        let after = LiveTotals {
            received_bytes: 5_000,
            read_bytes: 2_500,
            queue_byte_ticks: 4_000_000_000 / tcpmon_common::socket::TICK_NS * 1_000,
            limited_ns: [500_000_000, 1_500_000_000, 0, 0, 0],
            ..before
        };
        let rates = Rates::between(&before, &after, 2.0, 1.0);
        assert_eq!((rates.received, rates.read), (2_000.0, 1_000.0));
        let (wait, for_cpu) = rates.mean_wait.expect("something was read");
        assert!((wait - 2.0).abs() < 1e-3 && for_cpu == 0.0, "{rates:?}");
        assert_eq!(rates.limited_by(), Some((1, 0.75)));
        assert_eq!(rates.limited_here(), 0.75);
    }

    #[test]
    fn several_causes_of_this_side_are_not_the_senders_fault() {
        let limited = |limited| Rates { limited, ..Rates::default() }.limited_by();
        assert_eq!(limited([0.5, 0.25, 0.5, 0.25, 0.5]), Some((4, 0.25)));
        assert_eq!(limited([0.6, 0.2, 0.2, 0.0, 0.0]), Some((0, 0.6)));
        assert_eq!(limited([0.0; 5]), None);
    }

    #[test]
    fn without_time_or_reads_nothing_is_said() {
        let totals = LiveTotals { received_bytes: 9, ..LiveTotals::default() };
        assert_eq!(Rates::between(&LiveTotals::default(), &totals, 0.0, 1.0), Rates::default());
        let rates = Rates::between(&LiveTotals::default(), &totals, 1.0, 1.0);
        assert_eq!((rates.mean_wait, rates.limited_by(), rates.edge_fills), (None, None, [None, None]));
        // Counters of another daemon, which started later.
        assert_eq!(Rates::between(&totals, &LiveTotals::default(), 1.0, 1.0).received, 0.0);
    }

    #[test]
    fn whether_readers_computed_is_not_known_if_the_unknown_part_decides_it() {
        let computed = |on_cpu, run_queue_wait, unknown| {
            TimesliceRates { on_cpu, run_queue_wait, unknown, ..TimesliceRates::default() }.computed()
        };
        assert_eq!((computed(0.6, 0.0, 0.0), computed(0.6, 0.0, 0.4)), (Some(true), Some(true)));
        assert_eq!((computed(0.1, 0.0, 0.0), computed(0.1, 0.0, 0.3)), (Some(false), Some(false)));
        assert_eq!((computed(0.1, 0.0, 0.9), computed(0.0, 0.0, 1.0)), (None, None));
        assert_eq!((computed(0.2, 0.7, 0.0), computed(0.0, 1.0, 0.0)), (Some(true), Some(false)));
    }

    #[test]
    fn time_of_before_the_interval_is_not_counted_in_it() {
        let after = LiveTotals { limited_ns: [60_000_000_000, 400_000_000, 0, 0, 0], ..LiveTotals::default() };
        let rates = Rates::between(&LiveTotals::default(), &after, 1.0, 1.0);
        assert_eq!(rates.limited, [0.6, 0.4, 0.0, 0.0, 0.0]);
    }
}
