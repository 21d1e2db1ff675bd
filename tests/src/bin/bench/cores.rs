//! What the CPUs of a large host share, simulated: no such host is at hand.
//!
//! A lock is a server that takes its CPUs in the order in which they ask (the kernel's queued spinlock). It is held for
//! a fixed time, and for longer if another CPU held it last, because the cache line with it has to move.

use tcpmon_common::socket::SocketRecord;
use tcpmon_tests::figures::{Section, Table};

use crate::estimate::{Random, quantile};

/// Number of CPUs.
const CPUS: u64 = 128;
/// Time for which the ring's lock or a bucket's is held when its line is in this CPU's cache, ns: some 20 instructions
/// and an atomic operation.
const HOLD_NS: f64 = 40.0;
/// Time for a cache line to come from a CPU of another socket, ns: what vendors state for two sockets is 100 to 150.
const MOVE_NS: f64 = 150.0;
/// Requests of a simulation.
const REQUESTS: usize = 1_000_000;

/// Bytes of the daemon's ring, and of a record in it with the kernel's header.
const RING_BYTES: u64 = 2 << 20;
const RECORD_BYTES: u64 = size_of::<SocketRecord>() as u64 + 8;
/// Time that the daemon takes for the record of a connection's end, ns: its CPU under workload C, less that under R,
/// for 4,000 records a second.
const RECORD_NS: f64 = 600.0;
/// Interval between two looks of the daemon at the ring, unless a quarter of it fills up first, ns.
const POLL_NS: f64 = 10e6;
/// Time from that wake-up to the daemon's first record, ns.
const WAKE_NS: f64 = 50e3;

/// What a lock did to the CPUs that asked for it.
#[derive(Clone, Copy, Debug)]
struct Waits {
    /// Share of the time in which the lock was held.
    busy: f64,
    /// Mean and 99th percentile of the wait, ns.
    mean_ns: f64,
    p99_ns: f64,
}

/// The table: locks first, then the ring's reader.
pub fn measure() -> Section {
    let mut table = Table::new(&["what", "events/s", "held or busy", "mean wait, ns", "p99, ns", "lost"]);
    // Buckets: eight maps with as many locks as CPUs each. A connection with one end here takes one at its begin and
    // one at its end.
    let locks = [("lock of the ring", 1.0), ("lock of a bucket", 2.0 / (8.0 * CPUS as f64))];
    for (what, share) in locks {
        for connections in [20e3, 200e3, 1e6, 2e6] {
            let waits = lock(connections * share, CPUS, HOLD_NS, MOVE_NS);
            table.row(vec![
                what.to_owned(),
                format!("{connections:.0}"),
                format!("{:.2} %", 100.0 * waits.busy),
                format!("{:.1}", waits.mean_ns),
                format!("{:.0}", waits.p99_ns),
                "-".to_owned(),
            ]);
        }
    }
    for connections in [20e3, 200e3, 500e3, 1e6, 2e6] {
        let (busy, lost) = reader(connections, RECORD_NS);
        table.row(vec![
            "reader of the ring".to_owned(),
            format!("{connections:.0}"),
            format!("{:.1} %", 100.0 * busy),
            "-".to_owned(),
            "-".to_owned(),
            format!("{:.3} %", 100.0 * lost),
        ]);
    }
    let what = format!(
        "Simulated for {CPUS} CPUs on which connections end at random moments: a lock is held for {HOLD_NS} ns, and \
         {MOVE_NS} ns longer if another CPU held it last; the daemon takes {RECORD_NS} ns for a record."
    );
    Section { name: "cores", what, table, notes: Vec::new() }
}

/// A lock that CPUs ask for this often a second in all, at random.
fn lock(per_second: f64, cpus: u64, hold_ns: f64, move_ns: f64) -> Waits {
    let mut random = Random::new();
    let (mut now, mut free, mut held, mut last) = (0.0_f64, 0.0_f64, 0.0, u64::MAX);
    let mut waits = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        now += random.exponential(1e9 / per_second);
        let cpu = random.below(cpus);
        let begin = now.max(free);
        let time = if cpu == last { hold_ns } else { hold_ns + move_ns };
        (free, last) = (begin + time, cpu);
        held += time;
        waits.push(begin - now);
    }
    Waits { busy: held / free, mean_ns: waits.iter().sum::<f64>() / REQUESTS as f64, p99_ns: quantile(&waits, 0.99) }
}

/// The daemon's thread that empties the ring: the share of the time in which it is busy, and the share of the records
/// that found the ring full.
fn reader(per_second: f64, record_ns: f64) -> (f64, f64) {
    let places = RING_BYTES / RECORD_BYTES;
    let mut random = Random::new();
    // `next` is when the reader finishes its next record, or looks again if there is none.
    let (mut now, mut next, mut busy, mut filled, mut lost) = (0.0_f64, POLL_NS, 0.0, 0_u64, 0_u64);
    let mut reading = false;
    for _ in 0..REQUESTS {
        now += random.exponential(1e9 / per_second);
        while next <= now {
            if reading {
                filled -= 1;
                busy += record_ns;
            }
            reading = filled > 0;
            next += if reading { record_ns } else { POLL_NS };
        }
        if filled == places {
            lost += 1;
            continue;
        }
        filled += 1;
        if !reading && filled == places / 4 {
            next = next.min(now + WAKE_NS);
        }
    }
    (busy / now, lost as f64 / REQUESTS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the formula for random requests of a fixed length (M/D/1): load x length / (2 (1 - load)).
    #[test]
    fn the_mean_wait_for_a_lock_is_that_of_queueing_theory() {
        for load in [0.1, 0.5, 0.8] {
            let waits = lock(load * 1e7, 1, 100.0, 1_000.0);
            let expected = load * 100.0 / (2.0 * (1.0 - load));
            assert!((waits.busy - load).abs() < 0.01, "load {load}: {waits:?}");
            assert!((waits.mean_ns / expected - 1.0).abs() < 0.03, "load {load}: {waits:?}, expected {expected}");
        }
    }

    #[test]
    fn a_line_moves_if_another_cpu_held_the_lock() {
        let waits = lock(1e5, 128, 100.0, 900.0);
        let expected = 1e5 * (100.0 + 900.0 * 127.0 / 128.0) / 1e9;
        assert!((waits.busy - expected).abs() < 0.002, "{waits:?}, expected {expected}");
    }

    #[test]
    fn a_reader_that_is_too_slow_loses_what_it_cannot_take() {
        let (busy, lost) = reader(100e3, 1e3);
        assert!((busy - 0.1).abs() < 0.01 && lost == 0.0, "{busy} {lost}");
        let (busy, lost) = reader(2e6, 1e3);
        assert!((busy - 1.0).abs() < 0.02 && (lost - 0.5).abs() < 0.01, "{busy} {lost}");
    }
}
