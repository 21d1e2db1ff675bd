//! Checks that totals are physically possible, whatever the programs report: the last check before a total is shown
//! forever.

use tcpmon_common::{
    causes::MAX_LIMIT_US,
    reader::ReaderSlot,
    socket::{SocketTotals, TICK_NS},
};

/// Maximum rate of a connection, bytes per ns (1.6 Tb/s).
const BYTES_PER_NS: i128 = 200;
/// Maximum number of bytes in a queue: the largest receive buffer. TCP's largest window is half of that, but starts
/// behind what is already queued.
const QUEUE: i128 = 1 << 31;
/// Maximum difference between the clocks of different CPUs and that of the scheduler, ns.
const CLOCKS: i128 = 20_000_000;

/// Values that were refused because the wire or the clock does not allow them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impossible {
    /// Values of sockets.
    pub sockets: u64,
    /// Values of readers.
    pub readers: u64,
}

impl Impossible {
    /// The same as losses: the kind, and how often.
    pub fn losses(self) -> [(&'static str, u64); 2] {
        [("impossible_socket", self.sockets), ("impossible_reader", self.readers)]
    }
}

/// Whether a socket can have added this in `elapsed_ns`.
pub fn socket(added: &SocketTotals, elapsed_ns: u64) -> bool {
    let elapsed = i128::from(elapsed_ns) + CLOCKS;
    let at_most = |cell: u64, most: i128| i128::from(cell.cast_signed()) <= most;
    let bytes = BYTES_PER_NS * elapsed + QUEUE;
    // A pass holds back the time of an open round.
    let limited = elapsed + i128::from(MAX_LIMIT_US) * 1000;
    !is_behind(added)
        && at_most(added.received_bytes, bytes)
        && at_most(added.read_bytes, bytes)
        && at_most(added.queue_byte_ticks, QUEUE * elapsed / i128::from(TICK_NS))
        && at_most(added.zero_window_ns, elapsed)
        && at_most(added.observed_ns, limited)
        && at_most(added.reader_limited_ns, limited)
        && at_most(added.window_limited_ns, limited)
        && at_most(added.memory_limited_ns, limited)
}

/// Whether these totals are older than those that were subtracted from them.
pub fn is_behind(added: &SocketTotals) -> bool {
    // A snapshot that is taken between the kernel's two steps of handling a FIN counts the FIN as a byte, which is
    // taken back later.
    added.received_bytes.cast_signed() < -1 || added.read_bytes.cast_signed() < -1
}

/// Whether a thread can have used and waited for a CPU for this long by `now_ns`.
pub fn reader(reader: &ReaderSlot, now_ns: u64) -> bool {
    let used = i128::from(reader.counters.on_cpu_ns) + i128::from(reader.counters.run_queue_wait_ns);
    let elapsed = i128::from(now_ns) - i128::from(reader.begun_ns);
    // The scheduler's clock may run at a slightly different speed than `CLOCK_MONOTONIC`.
    used <= elapsed + elapsed / 64 + CLOCKS
}

#[cfg(test)]
mod tests {
    use tcpmon_common::{counters::Cells as _, reader::ReaderCounters};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    type Cell = fn(&mut SocketTotals) -> &mut u64;
    const RECEIVED: Cell = |totals| &mut totals.received_bytes;
    const READ: Cell = |totals| &mut totals.read_bytes;
    const QUEUE_TICKS: Cell = |totals| &mut totals.queue_byte_ticks;
    const ZERO_WINDOW: Cell = |totals| &mut totals.zero_window_ns;

    fn can_add(cell: Cell, value: i64) -> bool {
        let mut added = SocketTotals::default();
        *cell(&mut added) = value.cast_unsigned();
        socket(&added, SECOND)
    }

    #[test]
    fn a_full_link_and_a_full_queue_are_possible() {
        // 1.6 Tbit/s, and a queue that was full before.
        assert!(can_add(RECEIVED, 200_000_000_000 + (1 << 31)));
        assert!(can_add(QUEUE_TICKS, (1 << 31) * (SECOND / TICK_NS) as i64));
        assert!(can_add(ZERO_WINDOW, SECOND as i64));
        // A snapshot assumes that the state since the last event has lasted until now; these are corrections of that.
        assert!(can_add(QUEUE_TICKS, -5));
        assert!(can_add(ZERO_WINDOW, -5));
    }

    #[test]
    fn totals_that_fall_wrap_or_rise_too_fast_are_impossible() {
        assert!(!can_add(RECEIVED, -2));
        assert!(!can_add(READ, -2));
        assert!(!can_add(RECEIVED, 210_000_000_000));
        assert!(!can_add(READ, 1 << 40));
        assert!(!can_add(ZERO_WINDOW, 2 * SECOND as i64));
        // An event 100 ns after the snapshot's time, with 300 bytes queued.
        let wrapped = 300_u64.wrapping_mul(100_u64.wrapping_neg() / TICK_NS);
        assert!(!can_add(QUEUE_TICKS, wrapped as i64));
    }

    #[test]
    fn a_thread_has_no_more_time_than_there_is() {
        let with = |on_cpu_ns, run_queue_wait_ns| ReaderSlot {
            begun_ns: SECOND,
            counters: ReaderCounters { on_cpu_ns, run_queue_wait_ns, ..ReaderCounters::ZERO },
            ..<ReaderSlot as zerocopy::FromZeros>::new_zeroed()
        };
        assert!(reader(&with(SECOND / 2, SECOND / 2), 2 * SECOND));
        assert!(!reader(&with(SECOND, SECOND / 2), 2 * SECOND));
        assert!(!reader(&with(u64::MAX, 0), 2 * SECOND));
        assert!(!reader(&with(0, u64::MAX - SECOND), 2 * SECOND));
    }
}
