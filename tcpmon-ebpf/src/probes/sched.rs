//! `sched_switch`: a thread loses its CPU to another. This matters if either of them is a reader.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::{
    histogram::time_bin,
    reader::{END_BLOCKED, END_EXITED, END_PREEMPTED, ReaderCounters},
    settings::TRACE_TIMESLICES,
    tracepoint::sched_switch::{NEXT, PREEMPT, PREV, PREV_STATE},
};

use crate::{
    kernel::{self, Task, setting},
    maps, reader, trace,
};

/// `TASK_DEAD` of `include/linux/sched.h`: the thread never runs again.
const TASK_DEAD: u32 = 0x80;

#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    let previous = Task::argument::<{ PREV.position }>(&ctx);
    let next = Task::argument::<{ NEXT.position }>(&ctx);
    if let Some(slot) = maps::slot_of(previous) {
        deactivate(slot, previous, next, end(&ctx, previous));
    }
    if let Some(slot) = maps::slot_of(next) {
        activate(slot);
    }
    0
}

/// Why the thread leaves its CPU.
#[inline(always)]
fn end(ctx: &BtfTracePointContext, previous: Task) -> u32 {
    let state =
        if kernel::sched_switch_passes_state() { ctx.arg::<u64>(PREV_STATE.position) as u32 } else { previous.state() };
    let preempted = ctx.arg::<u64>(PREEMPT.position) as u8 != 0;
    if state & TASK_DEAD != 0 {
        END_EXITED
    } else if preempted || state == 0 {
        END_PREEMPTED
    } else {
        END_BLOCKED
    }
}

#[inline(always)]
fn deactivate(slot: u32, task: Task, next: Task, end: u32) -> Option<()> {
    let reader = maps::reader(slot)?;
    // The count is odd while the thread runs. If a switch was missed, this restores the parity; otherwise on and off
    // the CPU would be swapped from then on.
    reader.edges += 2 - (reader.edges & 1);

    // The thread runs only between its deactivations, so the scheduler's own sums give this timeslice exactly.
    let (on_cpu_ns, run_queue_wait_ns) = reader::take_times(reader, task);
    if let Some(sums) = reader::sums_of(reader, slot) {
        add(&mut sums.counters, on_cpu_ns, run_queue_wait_ns, end);
    }

    if setting!(trace) == TRACE_TIMESLICES {
        trace::deactivate(slot, task, next, on_cpu_ns, run_queue_wait_ns, end);
    }
    if end == END_EXITED {
        reader::exit(slot);
    }
    None
}

/// Adds a timeslice to the totals of its service.
#[inline(always)]
fn add(counters: &mut ReaderCounters, on_cpu_ns: u64, run_queue_wait_ns: u64, end: u32) {
    counters.on_cpu_ns += on_cpu_ns;
    counters.on_cpu[time_bin(on_cpu_ns)] += 1;
    counters.run_queue_wait_ns += run_queue_wait_ns;
    counters.run_queue_wait[time_bin(run_queue_wait_ns)] += 1;
    match end {
        END_EXITED => counters.ends[2] += 1,
        END_BLOCKED => counters.ends[1] += 1,
        _ => counters.ends[0] += 1,
    }
}

#[inline(always)]
fn activate(slot: u32) -> Option<()> {
    let reader = maps::reader(slot)?;
    reader.edges += 1 + (reader.edges & 1);
    if setting!(trace) == TRACE_TIMESLICES {
        trace::activate(slot);
    }
    None
}

const _: () = assert!(END_PREEMPTED == 0 && END_BLOCKED == 1 && END_EXITED == 2);
