//! What is possible, whatever the programs report: the last check before a total is shown for ever.

use tcpmon_common::{reader::ReaderSlot, socket::TICK_NS};

use super::tally::{self, SocketRow};

/// Maximum rate of a connection, bytes per ns (256 Gb/s).
const BYTES_PER_NS: i128 = 32;
/// Maximum number of bytes in a queue: the largest window of TCP.
const QUEUE: i128 = 1 << 30;
/// Maximum difference between the clocks of different CPUs and that of the scheduler, ns.
const CLOCKS: i128 = 20_000_000;

/// Whether a socket can have added this in `elapsed_ns`.
pub fn socket(row: &SocketRow, elapsed_ns: u64) -> bool {
    let elapsed = i128::from(elapsed_ns) + CLOCKS;
    let at_most = |cell: usize, most: i128| i128::from(row[cell]) <= most;
    let bytes = BYTES_PER_NS * elapsed + QUEUE;
    // A snapshot that is taken between the kernel's two steps of handling a FIN counts the FIN as a byte, which is
    // taken back later.
    row[tally::RECEIVED] >= -1
        && row[tally::READ] >= -1
        && at_most(tally::RECEIVED, bytes)
        && at_most(tally::READ, bytes)
        && at_most(tally::QUEUE_TICKS, QUEUE * elapsed / i128::from(TICK_NS))
        && at_most(tally::ZERO_WINDOW, elapsed)
}

/// Whether a thread can have used and waited for a CPU for this long by `now_ns`.
pub fn reader(reader: &ReaderSlot, now_ns: u64) -> bool {
    let used = i128::from(reader.on_cpu_ns) + i128::from(reader.wait_ns);
    let elapsed = i128::from(now_ns) - i128::from(reader.begun_ns);
    // The scheduler's clock may run at another speed than `CLOCK_MONOTONIC`.
    used <= elapsed + elapsed / 64 + CLOCKS
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn row(cell: usize, value: i64) -> SocketRow {
        let mut row = [0; tally::SOCKET];
        row[cell] = value;
        row
    }

    #[test]
    fn a_full_link_and_a_full_queue_are_possible() {
        assert!(socket(&row(tally::RECEIVED, 12_500_000_000), SECOND));
        assert!(socket(&row(tally::QUEUE_TICKS, (1 << 30) * (SECOND / TICK_NS) as i64), SECOND));
        assert!(socket(&row(tally::ZERO_WINDOW, SECOND as i64), SECOND));
        // A snapshot assumes that the state since the last event has lasted until now; these are corrections of that.
        assert!(socket(&row(tally::QUEUE_TICKS, -5), SECOND));
        assert!(socket(&row(tally::ZERO_WINDOW, -5), SECOND));
    }

    #[test]
    fn what_wraps_or_goes_backwards_is_not() {
        assert!(!socket(&row(tally::RECEIVED, -2), SECOND));
        assert!(!socket(&row(tally::READ, -2), SECOND));
        assert!(!socket(&row(tally::RECEIVED, 1 << 40), SECOND));
        assert!(!socket(&row(tally::READ, 1 << 40), SECOND));
        assert!(!socket(&row(tally::ZERO_WINDOW, 2 * SECOND as i64), SECOND));
        // An event 100 ns after the snapshot's time, with 300 bytes queued.
        let wrapped = 300_u64.wrapping_mul(100_u64.wrapping_neg() / TICK_NS);
        assert!(!socket(&row(tally::QUEUE_TICKS, wrapped as i64), SECOND));
    }

    #[test]
    fn a_thread_has_no_more_time_than_there_is() {
        let with = |on_cpu_ns, wait_ns| ReaderSlot {
            begun_ns: SECOND,
            on_cpu_ns,
            wait_ns,
            ..<ReaderSlot as zerocopy::FromZeros>::new_zeroed()
        };
        assert!(reader(&with(SECOND / 2, SECOND / 2), 2 * SECOND));
        assert!(!reader(&with(SECOND, SECOND / 2), 2 * SECOND));
        assert!(!reader(&with(u64::MAX, 0), 2 * SECOND));
        assert!(!reader(&with(0, u64::MAX - SECOND), 2 * SECOND));
    }
}
