//! Ends of connections that a kernel hides from BPF programs.

use super::Trace;
use crate::figures::kernel_release;

/// How many ends of connections the kernel can have hidden from BPF programs since this was made.
///
/// The kernel of the machines that build tcpmon (6.18.44-fc) runs no BPF program on a tracepoint while a thread of
/// process 1 is current, the process that controls the machine, and does not count the run as skipped. Softirqs that
/// interrupt such a thread end up to 64 connections in a row. ftrace sees these ends: in a run in which it saw 319,779
/// ends, 144 of them under process 1 and 3 before tcpmon was attached, each program of tcpmon ran 147 times less often.
///
/// It also fires none of the tracepoints of a close, for ftrace neither, about once in five million closes: of 400,073
/// sockets that were closed, ftrace saw 400,072, in the order of their cookies and 14 us apart as all others, and the
/// one that it left out is the one whose end the programs did not see.
///
/// Other kernels hide nothing, so this is an upper bound.
#[derive(Debug)]
pub struct HiddenEnds(Trace);

/// Ends that ftrace does not see either, at most: never more than one was missing in a run of 400,000.
const UNTRACED: u64 = 2;

impl HiddenEnds {
    /// Starts to count.
    #[track_caller]
    pub fn start() -> Self {
        Self(Trace::under(1, "tcp/tcp_destroy_sock"))
    }

    /// Their number so far.
    #[track_caller]
    pub fn most(&self) -> u64 {
        let untraced = if kernel_release().contains("-fc") { UNTRACED } else { 0 };
        self.0.lines().len() as u64 + untraced
    }

    /// The number of those of the readers on this port.
    #[track_caller]
    pub fn most_on(&self, port: u16) -> u64 {
        let own = format!(" sport={port} ");
        self.0.lines().iter().filter(|line| line.contains(&own)).count() as u64
    }
}
