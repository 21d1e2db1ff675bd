//! `sched_process_exit`: a thread ends. Attached only where `sched_switch` is switched off.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::tracepoint::sched_process_exit::TASK;

use crate::{kernel::Task, maps, reader};

#[btf_tracepoint(function = "sched_process_exit")]
pub fn sched_process_exit(ctx: BtfTracePointContext) -> i32 {
    let task = Task::argument::<{ TASK.position }>(&ctx);
    if let Some(slot) = maps::slot_of(task) {
        reader::add_times(slot, task);
        // What the thread still reads while the kernel cleans up after it is not followed.
        maps::forget_slot(task);
        reader::exit(slot);
    }
    0
}
