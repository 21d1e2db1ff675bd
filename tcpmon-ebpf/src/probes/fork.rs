//! `sched_process_fork`: a process starts another. A trace that follows processes traces the new one, too.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::{
    loss::Loss,
    tracepoint::sched_process_fork::{CHILD, PARENT},
};

use crate::{kernel::Task, maps};

#[btf_tracepoint(function = "sched_process_fork")]
pub fn sched_process_fork(ctx: BtfTracePointContext) -> i32 {
    let parent = Task::argument::<{ PARENT.position }>(&ctx);
    let child = Task::argument::<{ CHILD.position }>(&ctx);
    // Threads belong to their process, so only new processes matter.
    if child.tid() == child.tgid() {
        let followed = maps::filter_has_tgid(parent.tgid());
        if !maps::follow(child.tgid(), followed) {
            maps::count_loss(Loss::FollowedProcess);
        }
    }
    0
}
