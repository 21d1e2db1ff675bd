//! The sums over a trace: its summary, and on which CPUs its readers ran.

use std::collections::{BTreeMap, HashMap};

use tcpmon_trace::{
    TimesliceRecord,
    summary::{SocketSummary, Summary},
};

/// Maximum number of CPUs that are told apart for each socket, those that come first.
const CPUS: usize = 64;

/// The sums over a trace.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// The sums over sockets and threads.
    pub summary: Summary,
    /// Timeslices by CPU, by the cookie of a socket's summary: 0 for the sum of the sockets that have none of their
    /// own.
    cpus: HashMap<u64, BTreeMap<u32, u64>>,
}

impl Sums {
    /// Adds a record.
    pub fn add(&mut self, record: &TimesliceRecord) {
        self.summary.add(record);
        let cookie = if self.summary.sockets.contains_key(&record.cookie) { record.cookie } else { 0 };
        let cpus = self.cpus.entry(cookie).or_default();
        if cpus.len() < CPUS || cpus.contains_key(&record.cpu) {
            *cpus.entry(record.cpu).or_default() += 1;
        }
    }

    /// The CPU on which the readers of these sockets had the most timeslices, and its share of all of them.
    pub fn reader_cpu(&self, sockets: &[&SocketSummary]) -> Option<(u32, f64)> {
        let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
        for (cpu, count) in sockets.iter().filter_map(|socket| self.cpus.get(&socket.cookie)).flatten() {
            *sums.entry(*cpu).or_default() += count;
        }
        let all: u64 = sockets.iter().map(|socket| socket.records).sum();
        let (cpu, count) = sums.into_iter().max_by_key(|(_, count)| *count)?;
        Some((cpu, count as f64 / all as f64))
    }
}
