//! `tcp_rcv_space_adjust`: bytes have been drained from a socket; `copied_seq` has already advanced.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::{
    causes::{self, Path, TOGETHER_NS},
    fold::{self, Observation, Trigger},
    header::KIND_HANDED_OVER,
    histogram::FILL_ACTIVATION,
    loss::Loss,
    reader::SLOT_NONE,
    settings::{TRACE_NONE, TRACE_TIMESLICES},
    socket::SocketState,
    tracepoint::tcp_rcv_space_adjust::SOCK,
};

use crate::{
    kernel::{Sock, Task, TcpSock, setting},
    reader, socket, timeslice,
};

#[btf_tracepoint(function = "tcp_rcv_space_adjust")]
pub fn tcp_rcv_space_adjust(ctx: BtfTracePointContext) -> i32 {
    read(&ctx);
    0
}

#[inline(always)]
fn read(ctx: &BtfTracePointContext) -> Option<()> {
    let tcp = Sock::argument::<{ SOCK.position }>(ctx).established_tcp()?;
    let state = socket::watched(tcp)?;
    let queue_start = state.copied_seq;
    // MSG_PEEK gets here, too, but advances nothing.
    if queue_start == tcp.copied_seq() {
        return None;
    }
    let seen = socket::sample(state, tcp);
    let previous = state.reader_slot;
    // Everything is in one event, and the part that every read needs comes first: the verifier then walks that part
    // only once.
    let read_bytes = socket::event(state, |state| {
        let read_bytes = socket::fold(state, &seen, Trigger::Event, || Path::NONE);
        if let Some(task) = reader_of(tcp) {
            // A timeslice takes what is placed at each read.
            let together_ns = if setting!(trace) == TRACE_TIMESLICES { 0 } else { TOGETHER_NS };
            let same_reader = state.reader_tid == task.tid();
            causes::place(state, seen.now_ns, task.run_delay_ns(), same_reader, together_ns);
            if setting!(trace) == TRACE_TIMESLICES {
                // A round of a slow sender can last for minutes, and no pass decides it.
                causes::settle(state, seen.now_ns, false);
            }
            if !reader::is_still(state, task) {
                change_reader(state, tcp, task, &seen, read_bytes);
            }
            if state.reader_slot != SLOT_NONE {
                state.counters.timeslice_read_bytes += read_bytes as u64;
                return Some(read_bytes);
            }
        }
        // What others read is not reported by a traced reader.
        state.reported_seq = state.copied_seq;
        None
    })?;
    if setting!(trace) != TRACE_NONE {
        timeslice::read(previous, state, tcp, queue_start, read_bytes)
    } else {
        reader::select_service(state, tcp)
    }
}

/// Handles a read by another thread than the last one, or by the same thread under another name.
#[inline(always)]
fn change_reader(state: &mut SocketState, tcp: TcpSock, task: Task, seen: &Observation, read_bytes: u32) {
    // What the previous process has read stays with it, as does what has arrived so far. The same applies to a
    // process's previous name.
    let other = state.reader_tgid != task.process_id() || state.process != task.process();
    if setting!(trace) == TRACE_NONE && state.reader_tid != 0 && other {
        causes::settle(state, seen.now_ns, false);
        state.counters.read_bytes -= read_bytes as u64;
        socket::send(KIND_HANDED_OVER, Loss::HandedOver, state, tcp, seen.now_ns);
        state.counters.read_bytes += read_bytes as u64;
    }
    let other = reader::take_over(state, task);
    // This reader's timeslice started before it read the socket, so its activation found the queue that has held until
    // now.
    if other && state.reader_slot != SLOT_NONE && setting!(timeslices) != 0 {
        fold::observe(&mut state.counters, FILL_ACTIVATION, seen.rmem, seen.rcvbuf);
    }
}

/// The thread that reads; `None` if it is not known. In-kernel consumers (kTLS, sockmap) drain from softirq, where
/// `current` is whichever thread was interrupted.
#[inline(always)]
fn reader_of(tcp: TcpSock) -> Option<Task> {
    if !tcp.sock().owned_by_user() {
        return None;
    }
    let task = Task::current();
    if task.tid() == 0 { None } else { Some(task) }
}
