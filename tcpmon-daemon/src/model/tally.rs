//! Totals as flat rows of numbers, so that adding, subtracting and never decreasing take one loop each.

use tcpmon_common::{
    histogram::{FILL_ACTIVATION, FILL_BINS, FILL_DEACTIVATION, FILL_SEGMENT, FILLS, TIME_BINS},
    reader::ReaderSlot,
    socket::{SocketCounters, TICK_NS},
};

use super::snapshot::{Durations, Fill, GroupCounters};

const SCALARS: usize = 10;
/// Cell of a socket's row: bytes received.
pub const RECEIVED: usize = 0;
/// Cell of a socket's row: bytes read.
pub const READ: usize = 1;
/// Cell of a socket's row: time integral of the queue, bytes x [`TICK_NS`].
pub const QUEUE_TICKS: usize = 3;
/// Cell of a socket's row: time with a closed window, ns.
pub const ZERO_WINDOW: usize = 4;
const FILL: usize = FILL_BINS + 1;
const TIME: usize = TIME_BINS + 1;

/// Length of a socket's row.
pub const SOCKET: usize = SCALARS + FILLS * FILL;
/// Length of a reader's row.
pub const READER: usize = 3 + 2 * TIME;

/// Differences between two states of a socket.
pub type SocketRow = [i64; SOCKET];
/// Differences between two states of a reader.
pub type ReaderRow = [i64; READER];

/// What a socket has added since `before`.
pub fn socket_row(now: &SocketCounters, before: &SocketCounters) -> SocketRow {
    let mut row = [0; SOCKET];
    let scalars = |counters: &SocketCounters| {
        [
            counters.received_bytes,
            counters.read_bytes,
            counters.segments,
            counters.queue_byte_ticks,
            counters.zero_window_ns,
            counters.growths,
            counters.arrived_on_cpu_bytes,
            counters.arrived_off_cpu_bytes,
            counters.timeslice_read_bytes,
            // The bytes of the three contexts (on the CPU, off the CPU, without a reader) add up to the bytes received.
            counters
                .received_bytes
                .wrapping_sub(counters.arrived_on_cpu_bytes)
                .wrapping_sub(counters.arrived_off_cpu_bytes),
        ]
    };
    for (cell, (now, before)) in row.iter_mut().zip(scalars(now).into_iter().zip(scalars(before))) {
        *cell = now.wrapping_sub(before).cast_signed();
    }
    for (which, cells) in row[SCALARS..].chunks_exact_mut(FILL).enumerate() {
        let bins = now.fills.iter().zip(&before.fills).map(|(now, before)| (now[which], before[which]));
        histogram_row(cells, bins, now.fill_sums[which], before.fill_sums[which]);
    }
    row
}

/// Differences of the bins and of the sum: bins wrap at 32 bits, the sum at 64.
fn histogram_row(cells: &mut [i64], bins: impl Iterator<Item = (u32, u32)>, sum: u64, sum_before: u64) {
    for (cell, (now, before)) in cells.iter_mut().zip(bins) {
        *cell = i64::from(now.wrapping_sub(before).cast_signed());
    }
    if let Some(cell) = cells.last_mut() {
        *cell = sum.wrapping_sub(sum_before).cast_signed();
    }
}

/// What a reader has added since `before`.
pub fn reader_row(now: &ReaderSlot, before: &ReaderSlot) -> ReaderRow {
    let mut row = [0; READER];
    for (cell, (now, before)) in row.iter_mut().zip(now.ends.iter().zip(before.ends)) {
        *cell = now.wrapping_sub(before).cast_signed();
    }
    let (on_cpu, wait) = row[3..].split_at_mut(TIME);
    histogram_row(on_cpu, now.on_cpu.into_iter().zip(before.on_cpu), now.on_cpu_ns, before.on_cpu_ns);
    histogram_row(wait, now.wait.into_iter().zip(before.wait), now.wait_ns, before.wait_ns);
    row
}

/// A row that can be corrected downwards but never decreases in what it shows.
#[derive(Clone, Debug)]
pub struct Tally<const N: usize> {
    actual: [i64; N],
    shown: [u64; N],
}

impl<const N: usize> Default for Tally<N> {
    fn default() -> Self {
        Self { actual: [0; N], shown: [0; N] }
    }
}

impl<const N: usize> Tally<N> {
    /// Adds differences, which may be negative.
    pub fn add(&mut self, row: &[i64; N]) {
        for ((actual, shown), by) in self.actual.iter_mut().zip(&mut self.shown).zip(row) {
            *actual = actual.wrapping_add(*by);
            *shown = (*shown).max(u64::try_from(*actual).unwrap_or(0));
        }
    }

    /// The values that are shown.
    pub fn shown(&self) -> &[u64; N] {
        &self.shown
    }
}

/// A group's counters, from the totals of its sockets and readers. Drops are counted separately.
pub fn counters(socket: &Tally<SOCKET>, reader: &Tally<READER>) -> GroupCounters {
    let cells = socket.shown();
    let fill = |index: usize| {
        let from = SCALARS + index * FILL;
        let mut fill = Fill { sum: cells[from + FILL_BINS], ..Fill::default() };
        fill.bins.copy_from_slice(&cells[from..from + FILL_BINS]);
        fill
    };
    let times = reader.shown();
    let durations = |index: usize| {
        let from = 3 + index * TIME;
        let mut durations = Durations { sum_ns: times[from + TIME_BINS], ..Durations::default() };
        durations.bins.copy_from_slice(&times[from..from + TIME_BINS]);
        durations
    };
    GroupCounters {
        received_bytes: cells[RECEIVED],
        read_bytes: cells[READ],
        segments: cells[2],
        queue_byte_seconds: cells[QUEUE_TICKS] as f64 * TICK_NS as f64 / 1e9,
        zero_window_ns: cells[ZERO_WINDOW],
        growths: cells[5],
        arrived_on_cpu_bytes: cells[6],
        arrived_off_cpu_bytes: cells[7],
        timeslice_read_bytes: cells[8],
        arrived_without_reader_bytes: cells[9],
        segment_fill: fill(FILL_SEGMENT),
        activation_fill: fill(FILL_ACTIVATION),
        deactivation_fill: fill(FILL_DEACTIVATION),
        timeslices: [times[0], times[1], times[2]],
        on_cpu: durations(0),
        run_queue_wait: durations(1),
        drops: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correction_is_never_shown_as_going_backwards() {
        let mut tally = Tally::<1>::default();
        for (by, shown) in [(10, 10), (-3, 10), (2, 10), (5, 14)] {
            tally.add(&[by]);
            assert_eq!(tally.shown(), &[shown]);
        }
    }

    #[test]
    fn bins_that_wrapped_still_give_their_difference() {
        let mut before = SocketCounters::ZERO;
        before.fills[3][FILL_SEGMENT] = u32::MAX;
        before.received_bytes = u64::MAX - 1;
        let mut now = before;
        now.fills[3][FILL_SEGMENT] = 4;
        now.received_bytes = 8;
        let row = socket_row(&now, &before);
        let mut tally = Tally::default();
        tally.add(&row);
        let counters = counters(&tally, &Tally::default());
        assert_eq!((counters.segment_fill.bins[3], counters.received_bytes), (5, 10));
    }
}
