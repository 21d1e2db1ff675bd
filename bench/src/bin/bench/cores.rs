//! Simulates how the CPUs of a large host contend for the lists of socket states, because no such host is at hand.
//!
//! Opening a connection takes a state from one list, and closing it adds the state to another. To change the head of a
//! list, a CPU loads it, looks at a state, and stores the new head. If another CPU has changed the head meanwhile, it
//! tries again.

use std::collections::VecDeque;

use tcpmon_common::store::TRIES;
use tcpmon_tests::figures::{Section, Table};

use crate::estimate::{Random, quantile};

/// Time to fetch a cache line from a CPU in another socket, ns. Vendors state 100 to 150 for two sockets.
const MOVE_NS: f64 = 150.0;
/// Time that the instructions of one try take, ns.
const WORK_NS: f64 = 20.0;
/// The lists, and the time between loading the head and storing the new one. A state that is taken was last written by
/// another CPU, so its cache line has to move, too; a state that is added was written by this CPU. The store needs only
/// the head's line.
const LISTS: [(&str, f64); 2] = [("free states", WORK_NS + 2.0 * MOVE_NS), ("ended states", WORK_NS + MOVE_NS)];
/// Number of list changes in a simulation.
const CHANGES: usize = 1_000_000;

/// Simulates each list at several connection rates.
pub fn measure() -> Section {
    let given_up = format!("not in {TRIES} tries");
    let mut table = Table::new(&["list", "connections/s", "tries, mean", "tries, p99", &given_up]);
    for (list, window_ns) in LISTS {
        for connections in [20e3, 200e3, 500e3, 1e6, 2e6] {
            let tries = tries(connections, window_ns);
            let late = tries.iter().filter(|tries| **tries > f64::from(TRIES)).count();
            table.row(vec![
                list.to_owned(),
                format!("{connections:.0}"),
                format!("{:.3}", tries.iter().sum::<f64>() / CHANGES as f64),
                format!("{:.0}", quantile(&tries, 0.99)),
                format!("{:.4} %", 100.0 * late as f64 / CHANGES as f64),
            ]);
        }
    }
    let what = format!(
        "Simulated for a host with many CPUs on which connections begin and end at random moments. A cache line takes \
         {MOVE_NS} ns from one CPU to another, and a try {WORK_NS} ns and the lines that it needs."
    );
    Section { name: "cores", what, table, notes: Vec::new() }
}

/// Number of tries that each change of a list takes if `per_second` changes begin at random moments. A try fails if the
/// head was changed in the `window_ns` since it was loaded.
fn tries(per_second: f64, window_ns: f64) -> Vec<f64> {
    let mut random = Random::new();
    // When the head was loaded, and the number of the try. Ordered by time, because all tries take equally long.
    let mut running: VecDeque<(f64, f64)> = VecDeque::new();
    let (mut next, mut changed, mut done) = (0.0, f64::NEG_INFINITY, Vec::with_capacity(CHANGES));
    while done.len() < CHANGES {
        match running.front() {
            Some(&(loaded, tries)) if loaded + window_ns <= next => {
                running.pop_front();
                let now = loaded + window_ns;
                if changed > loaded {
                    running.push_back((now, tries + 1.0));
                } else {
                    changed = now;
                    done.push(tries);
                }
            }
            _ => {
                running.push_back((next, 1.0));
                next += random.exponential(1e9 / per_second);
            }
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A first try fails if another change falls into its window, and changes come at random (Poisson).
    #[test]
    fn a_try_fails_as_often_as_another_change_is_in_its_window() {
        for load in [0.01, 0.05, 0.1] {
            let tries = tries(load * 1e7, 100.0);
            let failed = tries.iter().filter(|tries| **tries > 1.0).count() as f64 / CHANGES as f64;
            let expected = 1.0 - f64::exp(-load);
            assert!((failed / expected - 1.0).abs() < 0.05, "load {load}: {failed}, expected {expected}");
        }
    }

    #[test]
    fn changes_that_come_far_apart_take_one_try() {
        assert!(tries(1e-3, 1e3).iter().all(|tries| *tries == 1.0));
    }
}
