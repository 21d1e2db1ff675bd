//! A summary of the trace for each of its sockets.

use std::collections::BTreeMap;

use super::columns::{Lines, SocketColumn, Thread};
use crate::{
    distribution::FILL_TOP,
    scale::{Bytes, Count, Rate, Time},
    summary::{SocketSummary, Summary, causes},
    total::ThreadTotal,
    trailer::Trailer,
};

/// Writes one line per socket, sorted by bytes read, the largest first.
pub fn write(summary: &Summary, lines: &mut Lines, trailer: &Trailer) {
    heading(lines);
    let sockets = summary.by_bytes();
    let (shown, others) = sockets.split_at(sockets.len().min(SHOWN_SOCKETS));
    for socket in shown {
        let lost = match socket.all_read_bytes() - socket.read_bytes {
            _ if summary.totals_only => Lost::Nothing,
            0 if trailer.lost_total() == 0 || socket.total_read_bytes > 0 => Lost::Nothing,
            0 => Lost::Unknown,
            lost => Lost::Percent((u128::from(lost) * 100).div_ceil(socket.all_read_bytes().into())),
        };
        row(socket, lines, &lost);
    }
    if !others.is_empty() {
        let sum = |of: fn(&SocketSummary) -> u64| others.iter().fold(0, |sum: u64, one| sum.saturating_add(of(one)));
        match others.last() {
            // The number of these sockets is not known.
            Some(SocketSummary { ends: None, .. }) => lines.left(SOCKET, "all other sockets"),
            _ => lines.left(SOCKET, format_args!("{} other sockets", others.len())),
        }
        lines.right(4, Bytes(sum(SocketSummary::all_read_bytes)));
        [10, 12, 14, LIMITED_BY].into_iter().for_each(|width| lines.right(width, ""));
        lines.right(6, Count(sum(|socket| socket.records)));
        lines.end();
    }
}

/// The share of a socket's bytes that is in no timeslice.
enum Lost {
    Nothing,
    Unknown,
    Percent(u128),
}

fn row(socket: &SocketSummary, lines: &mut Lines, lost: &Lost) {
    match socket.ends {
        Some((local, remote)) => lines.left(SOCKET, SocketColumn { local_port: local.port(), remote, width: SOCKET }),
        None => lines.left(SOCKET, "all other sockets"),
    }
    lines.right(4, Bytes(socket.all_read_bytes()));
    lines.right(10, Rate { bytes: socket.all_read_bytes(), ns: socket.duration_ns() });
    // Lost timeslices would have added to these values.
    let at_least = if matches!(lost, Lost::Nothing) { "" } else { ">" };
    if socket.records == 0 {
        lines.right(12, "-");
        lines.right(14, "-");
    } else {
        let fill = |permille| Fill(socket.fills_at_deactivation.quantile(permille));
        lines.right(12, format_args!("{}/{}", fill(500), fill(990)));
        let waits = &socket.run_queue_waits;
        lines.right(14, format_args!("{at_least}{}/{}", Time(waits.sum_ns()), Time(waits.quantile(990))));
    }
    lines.left(LIMITED_BY, LimitedBy(socket.limited_ns));
    lines.right(6, format_args!("{at_least}{}", Count(socket.records)));
    match lost {
        Lost::Nothing => lines.right(4, 0),
        Lost::Unknown => lines.right(4, "?"),
        Lost::Percent(share) => lines.right(4, format_args!("{share}%")),
    }
    lines.end();
}

/// Writes one line per thread, those with the most time on the CPU first, and one per process if it has more than one
/// thread.
pub fn write_threads(summary: &Summary, lines: &mut Lines) {
    if summary.threads.is_empty() {
        return;
    }
    lines.end();
    lines.left(SOCKET, "thread, from its first read");
    lines.right(4, "read");
    lines.right(10, "on CPU");
    lines.right(12, "wait");
    lines.right(14, "time");
    lines.right(LIMITED_BY, "preempted");
    lines.right(8, "blocked");
    lines.end();
    let mut threads: Vec<_> = summary.threads.values().collect();
    threads.sort_by_key(|thread| (u64::MAX - thread.on_cpu_ns, thread.tid));
    let mut processes: BTreeMap<u32, Vec<&ThreadTotal>> = BTreeMap::new();
    threads.iter().for_each(|thread| processes.entry(thread.tgid).or_default().push(thread));
    for thread in threads.iter().take(SHOWN_THREADS) {
        lines.left(SOCKET, Thread { comm: &thread.comm, tid: thread.tid, width: SOCKET });
        totals(&[thread], lines);
    }
    if let Some(others) = threads.get(SHOWN_THREADS..).filter(|others| !others.is_empty()) {
        lines.left(SOCKET, format_args!("{} other threads", others.len()));
        totals(others, lines);
    }
    for (tgid, threads) in processes.iter().filter(|(_, threads)| threads.len() > 1).take(SHOWN_THREADS) {
        lines.left(SOCKET, format_args!("process {tgid}, {} threads", threads.len()));
        totals(threads, lines);
    }
}

fn totals(threads: &[&ThreadTotal], lines: &mut Lines) {
    let sum = |of: fn(&ThreadTotal) -> u64| threads.iter().fold(0, |sum: u64, thread| sum.saturating_add(of(thread)));
    lines.right(4, Bytes(sum(|thread| thread.read_bytes)));
    lines.right(10, Time(sum(|thread| thread.on_cpu_ns)));
    lines.right(12, Time(sum(|thread| thread.wait_ns)));
    lines.right(14, Time(sum(|thread| thread.at_ns.saturating_sub(thread.begun_ns))));
    lines.right(LIMITED_BY, Count(sum(|thread| thread.preempted)));
    lines.right(8, Count(sum(|thread| thread.blocked)));
    lines.end();
}

/// Sockets with a line of their own.
const SHOWN_SOCKETS: usize = 100;

/// Threads, and processes, with a line of their own.
const SHOWN_THREADS: usize = 20;

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

/// The cause that limited a socket for the longest time, and its share of the time for which the cause is known.
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
        assert_eq!(text.lines().count(), SHOWN_SOCKETS + 2);
        assert!(text.lines().last().is_some_and(|line| line.starts_with("all other sockets")));
    }
}
