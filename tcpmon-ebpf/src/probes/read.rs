//! `tcp_rcv_space_adjust`: somebody has drained bytes from a socket; `copied_seq` has moved already.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::fold;

use crate::{
    kernel::{self, Sock, Task, setting},
    maps, reader, socket, timeslice,
};

#[btf_tracepoint(function = "tcp_rcv_space_adjust")]
pub fn tcp_rcv_space_adjust(ctx: BtfTracePointContext) -> i32 {
    read(&ctx);
    0
}

#[inline(always)]
fn read(ctx: &BtfTracePointContext) -> Option<()> {
    let tcp = Sock::argument::<0>(ctx).tcp()?;
    // MSG_PEEK comes here too, and moves nothing.
    if let Some(state) = maps::socket(tcp.sock()) {
        if state.copied_seq == tcp.copied_seq() {
            return None;
        }
    }
    let now = kernel::now_ns();
    let state = socket::watched(tcp, now)?;
    let queue_start = state.copied_seq;
    let folded = socket::fold(state, tcp, now);

    // In-kernel consumers (kTLS, sockmap) drain from softirq, where `current` is whoever was interrupted.
    if !tcp.sock().owned_by_user() {
        return None;
    }
    let task = Task::current();
    if task.tid() == 0 {
        return None;
    }
    let Some(slot) = reader::enter(task) else {
        state.process = task.process();
        return None;
    };
    let thread = maps::reader(slot)?;
    thread.last_cookie = state.cookie;
    state.counters.timeslice_read_bytes += folded.read_bytes as u64;
    let previous = state.reader_slot;
    if reader::take_over(state, task, slot, thread.switches) {
        // This reader's timeslice began before it touched the socket, with the queue that has held until now.
        fold::observe(&mut state.counters.activation_fill, folded.fill, 1);
    }
    if setting!(trace) != 0 {
        timeslice::read(slot, previous, state, tcp, queue_start, folded.read_bytes);
    }
    None
}
