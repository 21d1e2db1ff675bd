//! `tcp_rcv_space_adjust`: somebody has drained bytes from a socket; `copied_seq` has moved already.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::{
    fold::{self, Cause, Seen},
    header::KIND_HANDED_OVER,
    histogram::FILL_ACTIVATION,
    loss::Loss,
    reader::SLOT_NONE,
    socket::SocketState,
};

use crate::{
    kernel::{self, Sock, Task, TcpSock, setting},
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
    let seen = socket::look(state, tcp, kernel::now_ns());
    let previous = state.reader_slot;
    // All in one event, and what every read does first: the verifier then walks it once.
    let read_bytes = socket::event(state, |state| {
        let read_bytes = socket::fold(state, &seen, Cause::Event);
        if let Some(task) = reader_of(tcp) {
            if state.reader_slot == SLOT_NONE || state.reader_tid != task.tid() {
                turn_over(state, tcp, task, &seen, read_bytes);
            }
            if state.reader_slot != SLOT_NONE {
                state.counters.timeslice_read_bytes += read_bytes as u64;
                return Some(read_bytes);
            }
        }
        None
    })?;
    if setting!(trace) != 0 {
        timeslice::read(previous, state, tcp, queue_start, read_bytes)
    } else {
        reader::turn_to(state, tcp)
    }
}

/// Another thread reads than the last one.
#[inline(always)]
fn turn_over(state: &mut SocketState, tcp: TcpSock, task: Task, seen: &Seen, read_bytes: u32) {
    // What the former process has read stays with it, and what came until now.
    if setting!(trace) == 0 && state.reader_tid != 0 && state.reader_tgid != task.tgid() {
        state.counters.read_bytes -= read_bytes as u64;
        socket::send(KIND_HANDED_OVER, Loss::HandedOver, state, tcp, seen.now_ns);
        state.counters.read_bytes += read_bytes as u64;
    }
    let slot = reader::enter(task).unwrap_or(SLOT_NONE);
    reader::take_over(state, task, slot);
    // This reader's timeslice began before it touched the socket, with the queue that has held until now.
    if slot != SLOT_NONE {
        fold::observe(&mut state.counters, FILL_ACTIVATION, seen.rmem, seen.rcvbuf);
    }
}

/// The thread that reads. In-kernel consumers (kTLS, sockmap) drain from softirq, where `current` is whoever was
/// interrupted.
#[inline(always)]
fn reader_of(tcp: TcpSock) -> Option<Task> {
    if !tcp.sock().owned_by_user() {
        return None;
    }
    let task = Task::current();
    if task.tid() == 0 { None } else { Some(task) }
}
