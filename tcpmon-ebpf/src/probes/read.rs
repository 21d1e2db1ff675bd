//! `tcp_rcv_space_adjust`: somebody has drained bytes from a socket; `copied_seq` has moved already.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::{fold, histogram::FILL_ACTIVATION, reader::SLOT_NONE};

use crate::{
    kernel::{self, Sock, Task, setting},
    reader, socket, timeslice,
};

#[btf_tracepoint(function = "tcp_rcv_space_adjust")]
pub fn tcp_rcv_space_adjust(ctx: BtfTracePointContext) -> i32 {
    read(&ctx);
    0
}

#[inline(always)]
fn read(ctx: &BtfTracePointContext) -> Option<()> {
    let tcp = Sock::argument::<0>(ctx).tcp()?;
    let state = socket::watched(tcp)?;
    let queue_start = state.copied_seq;
    // MSG_PEEK comes here too, and moves nothing.
    if queue_start == tcp.copied_seq() {
        return None;
    }
    let read_bytes = socket::fold(state, tcp, kernel::now_ns(), false);

    // In-kernel consumers (kTLS, sockmap) drain from softirq, where `current` is whoever was interrupted.
    if !tcp.sock().owned_by_user() {
        return None;
    }
    let task = Task::current();
    let tid = task.tid();
    if tid == 0 {
        return None;
    }
    let previous = state.reader_slot;
    if previous == SLOT_NONE || state.reader_tid != tid {
        let Some(slot) = reader::enter(task) else {
            state.process = task.process();
            return None;
        };
        reader::take_over(state, tcp, task, slot)?;
        // This reader's timeslice began before it touched the socket, with the queue that has held until now.
        let sock = tcp.sock();
        fold::observe(&mut state.counters, FILL_ACTIVATION, sock.rmem(), sock.rcvbuf());
    }
    state.counters.timeslice_read_bytes += read_bytes as u64;
    // What was written since the fold: a snapshot that copied the state in between will see that it moved.
    state.sequence += 2;
    if setting!(trace) != 0 {
        timeslice::read(previous, state, tcp, queue_start, read_bytes);
    }
    None
}
