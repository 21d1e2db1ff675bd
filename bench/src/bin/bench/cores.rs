//! What the CPUs of a large host share, simulated: no such host is at hand.
//!
//! The begin of a connection takes a state from one list, and its end adds the state to another one. Whoever changes
//! the head of a list loads it, looks at a state, and stores the new head unless another CPU has changed it meanwhile;
//! then it tries again.

use std::collections::VecDeque;

use tcpmon_common::store::TRIES;
use tcpmon_tests::figures::{Section, Table};

use crate::estimate::{Random, quantile};

/// Time for a cache line to come from a CPU of another socket, ns: what vendors state for two sockets is 100 to 150.
const MOVE_NS: f64 = 150.0;
/// Time of the instructions of a try, ns.
const WORK_NS: f64 = 20.0;
/// The lists, and the time from the load of the head to the store of the new one. A state that is taken was last
/// written by another CPU; one that is added by this one. The store needs the head's line alone.
const LISTS: [(&str, f64); 2] = [("free states", WORK_NS + 2.0 * MOVE_NS), ("ended states", WORK_NS + MOVE_NS)];
/// Changes in a simulation.
const CHANGES: usize = 1_000_000;

/// The table.
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

/// How many tries each change of a list takes if so many a second begin at random moments, and if a try fails when the
/// head has been changed in the `window_ns` since it was loaded.
fn tries(per_second: f64, window_ns: f64) -> Vec<f64> {
    let mut random = Random::new();
    // When the head was loaded, and for which try. In the order of time, because all tries take as long.
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

    /// A first try fails if any of the other changes is in its window, and they come at random.
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
