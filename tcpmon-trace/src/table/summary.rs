//! A summary of the trace for each of its sockets.

use super::columns::{Lines, SocketColumn};
use crate::{
    distribution::FILL_TOP,
    scale::{Bytes, Count, Rate, Time},
    summary::{SocketSummary, Summary, causes},
    trailer::Trailer,
};

/// Writes one line per socket, sorted by bytes read, the largest first.
pub fn write(summary: &Summary, lines: &mut Lines, trailer: &Trailer) {
    heading(lines);
    let lost = if trailer.lost_total() == 0 { "0" } else { "?" };
    for socket in summary.by_bytes() {
        row(socket, lines, lost);
    }
}

fn row(socket: &SocketSummary, lines: &mut Lines, lost: &str) {
    match socket.ends {
        Some((local, remote)) => lines.left(SOCKET, SocketColumn { local_port: local.port(), remote, width: SOCKET }),
        None => lines.left(SOCKET, "all other sockets"),
    }
    lines.right(4, Bytes(socket.read_bytes));
    lines.right(10, Rate { bytes: socket.read_bytes, ns: socket.duration_ns() });
    let fill = |permille| Fill(socket.fills_at_deactivation.quantile(permille));
    lines.right(12, format_args!("{}/{}", fill(500), fill(990)));
    let waits = &socket.run_queue_waits;
    lines.right(14, format_args!("{}/{}", Time(waits.sum_ns()), Time(waits.quantile(990))));
    lines.left(LIMITED_BY, LimitedBy(socket.limited_ns));
    lines.right(6, Count(socket.records));
    lines.right(4, lost);
    lines.end();
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
        match causes().into_iter().zip(self.0).max_by_key(|(_, ns)| *ns) {
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
    use crate::{record::TimesliceRecord, sample, summary::SOCKETS};

    #[test]
    fn sockets_beyond_the_bound_share_a_line() {
        let mut summary = Summary::default();
        for cookie in 0..SOCKETS as u64 + 50 {
            summary.add(&TimesliceRecord { cookie, ..sample::record() });
        }
        let mut lines = Lines::default();
        write(&summary, &mut lines, &Trailer::new(&sample::ending(), 0, 0));
        let text = String::from_utf8_lossy(lines.as_bytes()).into_owned();
        assert_eq!(text.lines().count(), SOCKETS + 2);
        assert!(text.lines().last().is_some_and(|line| line.starts_with("all other sockets")));
    }
}
