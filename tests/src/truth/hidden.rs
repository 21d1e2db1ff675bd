//! Ends of connections that a kernel hides from BPF programs.

use super::Trace;
use crate::figures::kernel_release;

/// How many ends of connections the kernel can have hidden from BPF programs since this was made.
///
/// The kernel of the machines that build tcpmon (6.18.44-fc) runs no BPF program on a tracepoint while a thread of
/// process 1, which controls the machine, is current, and does not count the run as skipped. Softirqs that interrupt
/// such a thread end up to 64 connections in a row. ftrace sees these ends: in a run in which it saw 319,779 ends, 144
/// of them under process 1 and 3 before tcpmon was attached, each program of tcpmon ran 147 times less often.
///
/// About once in five million closes, it fires none of the tracepoints of the close, not even for ftrace: of 400,073
/// sockets that were closed, ftrace saw 400,072, in the order of their cookies and 14 us apart as always, and the one
/// that it missed is the one whose end the programs did not see.
///
/// Other kernels hide nothing, so this is an upper bound.
#[derive(Debug)]
pub struct HiddenEnds(Trace);

/// The most ends that ftrace does not see either: never more than one was missing in a run of 400,000.
const UNTRACED: u64 = 2;

impl HiddenEnds {
    /// Starts to count.
    #[track_caller]
    pub fn start() -> Self {
        Self(Trace::under(1, "tcp/tcp_destroy_sock"))
    }

    /// The most that it can have hidden so far.
    #[track_caller]
    pub fn most(&self) -> u64 {
        let untraced = if kernel_release().contains("-fc") { UNTRACED } else { 0 };
        self.0.lines().len() as u64 + untraced
    }

    /// Checks that the kernel has hidden at least as many ends as no program saw.
    #[track_caller]
    pub fn explain(&self, unseen: u64) {
        // Reading the trace takes its time, and there is seldom an end to look for.
        if unseen > 0 {
            let most = self.most();
            assert!(unseen <= most, "{unseen} ends were not seen, and the kernel hid {most}");
        }
    }

    /// The number of hidden ends of readers on this port, as ftrace saw them.
    #[track_caller]
    pub fn most_on(&self, port: u16) -> u64 {
        let own = format!(" sport={port} ");
        self.0.lines().iter().filter(|line| line.contains(&own)).count() as u64
    }
}
