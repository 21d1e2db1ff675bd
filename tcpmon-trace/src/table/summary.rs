//! A summary of the trace for each of its sockets.

use std::{collections::HashMap, net::SocketAddr};

use super::{
    columns::{Lines, SocketColumn},
    distribution::{Durations, FILL_TOP, Fills},
    scale::{Bytes, Count, Rate, Time},
};
use crate::{
    record::{Limited, TimesliceRecord},
    trailer::Trailer,
};

/// Number of sockets with a line of their own; each takes 16 KiB at most. All others share one line.
pub const SOCKETS: usize = 1000;

/// Sums over a trace, in bounded memory.
#[derive(Debug, Default)]
pub struct Summary {
    sockets: HashMap<u64, SocketSummary>,
    others: SocketSummary,
}

/// Sums over one socket's records.
#[derive(Debug, Default)]
struct SocketSummary {
    /// `None` for the line that the other sockets share.
    ends: Option<(u16, SocketAddr)>,
    records: u64,
    read_bytes: u64,
    first_ns: u64,
    last_ns: u64,
    fills: Fills,
    wait_ns: u64,
    waits: Durations,
    /// By what the socket was limited, in the order of [`Limited::causes`].
    limited_ns: [u64; 5],
}

impl Summary {
    /// Adds a record.
    pub fn add(&mut self, record: &TimesliceRecord) {
        let full = self.sockets.len() >= SOCKETS;
        let socket = if full && !self.sockets.contains_key(&record.cookie) {
            &mut self.others
        } else {
            let ends = Some((record.local.port(), record.remote));
            let new = || SocketSummary { ends, ..SocketSummary::default() };
            self.sockets.entry(record.cookie).or_insert_with(new)
        };
        socket.add(record);
    }

    /// Writes one line per socket, sorted by bytes read, the largest first.
    pub fn write(&self, lines: &mut Lines, trailer: &Trailer) {
        heading(lines);
        let mut sockets: Vec<_> = self.sockets.iter().collect();
        sockets.sort_by_key(|(cookie, socket)| (u64::MAX - socket.read_bytes, **cookie));
        let lost = if trailer.lost_total() == 0 { "0" } else { "?" };
        for (_, socket) in sockets {
            socket.write(lines, lost);
        }
        if self.others.records > 0 {
            self.others.write(lines, lost);
        }
    }
}

impl SocketSummary {
    fn add(&mut self, record: &TimesliceRecord) {
        if self.records == 0 {
            self.first_ns = record.activated_ns;
        }
        self.records += 1;
        self.read_bytes = self.read_bytes.saturating_add(record.read_bytes);
        self.first_ns = self.first_ns.min(record.activated_ns);
        self.last_ns = self.last_ns.max(record.deactivated_ns);
        self.fills.add(record.deactivation.fill_permille());
        self.wait_ns = self.wait_ns.saturating_add(record.wait_ns);
        self.waits.add(record.wait_ns);
        for (sum, (_, ns)) in self.limited_ns.iter_mut().zip(record.limited.causes()) {
            *sum = sum.saturating_add(ns);
        }
    }

    fn write(&self, lines: &mut Lines, lost: &str) {
        match self.ends {
            Some((local_port, remote)) => {
                lines.left(SOCKET, SocketColumn { local_port, remote, width: SOCKET });
            }
            None => lines.left(SOCKET, "all other sockets"),
        }
        let ns = self.last_ns.saturating_sub(self.first_ns);
        lines.right(4, Bytes(self.read_bytes));
        lines.right(10, Rate { bytes: self.read_bytes, ns });
        let fill = |permille| Fill(self.fills.quantile(permille));
        lines.right(12, format_args!("{}/{}", fill(500), fill(990)));
        let p99 = Time(self.waits.quantile(990));
        lines.right(14, format_args!("{}/{p99}", Time(self.wait_ns)));
        lines.left(LIMITED_BY, LimitedBy(self.limited_ns));
        lines.right(6, Count(self.records));
        lines.right(4, lost);
        lines.end();
    }
}

/// Width of the socket's column: what the other columns leave.
const SOCKET: usize = 27;

/// Width of the longest cause with its share.
const LIMITED_BY: usize = 16;

fn heading(lines: &mut Lines) {
    lines.left(SOCKET, "socket");
    lines.right(4, "read");
    lines.right(10, "throughput");
    lines.right(12, "fill p50/p99");
    lines.right(14, "wait total/p99");
    lines.left(LIMITED_BY, "limited by");
    lines.right(6, "slices");
    lines.right(4, "lost");
    lines.end();
}

/// The cause that limited a socket for longest, and its share of the time that was decided.
struct LimitedBy([u64; 5]);

impl std::fmt::Display for LimitedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whole: u128 = self.0.iter().map(|ns| u128::from(*ns)).sum();
        let names = Limited::default().causes().map(|(name, _)| name);
        match names.into_iter().zip(self.0).max_by_key(|(_, ns)| *ns) {
            Some((name, ns)) if whole > 0 => write!(f, "{name} {}%", (u128::from(ns) * 100 + whole / 2) / whole),
            _ => f.write_str("not known"),
        }
    }
}

/// A quantile of fill ratios in percent, at most 5 characters.
struct Fill(u64);

impl std::fmt::Display for Fill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            permille @ 0..1000 => write!(f, "{}.{}%", permille / 10, permille % 10),
            permille if permille <= FILL_TOP => write!(f, "{}%", permille / 10),
            _ => write!(f, ">{}%", FILL_TOP / 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{sample, trailer::Trailer};

    #[test]
    fn sockets_beyond_the_bound_share_a_line() {
        let mut summary = Summary::default();
        for cookie in 0..SOCKETS as u64 + 50 {
            for _ in 0..2 {
                summary.add(&TimesliceRecord { cookie, ..sample::record() });
            }
        }
        assert_eq!(summary.sockets.len(), SOCKETS);
        assert_eq!(summary.others.records, 100);

        let mut lines = Lines::default();
        summary.write(&mut lines, &Trailer::new(&sample::ending(), 0, 0));
        let text = String::from_utf8_lossy(lines.as_bytes()).into_owned();
        assert_eq!(text.lines().count(), SOCKETS + 2);
        assert!(text.lines().last().is_some_and(|line| line.starts_with("all other sockets")));
    }
}
