//! `tcp_rcv_space_adjust`: bytes have been drained from a socket; `copied_seq` has already advanced.
#![expect(unsafe_code, reason = "a function by name")]

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::{
    causes::{self, Path},
    fold::{self, Trigger},
    histogram::FILL_ACTIVATION,
    loss::Loss,
    reader::SLOT_NONE,
    settings::{TRACE_NONE, TRACE_TIMESLICES},
    socket::{SOCKET_FINAL, SOCKET_HANDED_OVER, SocketState},
    tracepoint::tcp_rcv_space_adjust::SOCK,
};

use crate::{
    kernel::{Sock, Task, TcpSock, setting},
    maps, reader, socket, store, trace,
};

#[btf_tracepoint(function = "tcp_rcv_space_adjust")]
pub fn tcp_rcv_space_adjust(ctx: BtfTracePointContext) -> i32 {
    read(&ctx);
    0
}

#[inline(always)]
fn read(ctx: &BtfTracePointContext) -> Option<()> {
    let tcp = Sock::argument::<{ SOCK.position }>(ctx).known_tcp()?;
    let mut state = socket::watched(tcp)?;
    let queue_start = state.copied_seq;
    // MSG_PEEK also gets here, but advances nothing.
    if queue_start == tcp.copied_seq() {
        return None;
    }
    let seen = socket::sample(state, tcp);
    let previous = state.reader_slot;
    // Everything is in one event, and the part that every read needs comes first: the verifier then walks that part
    // only once.
    socket::begin_event(state);
    let read_bytes = socket::fold(state, &seen, Trigger::Event, || Path::NONE);
    let mut has_slot = false;
    if let Some(task) = reader_of(tcp) {
        let same_reader = state.reader_tid == task.tid();
        causes::attribute_read(state, seen.now_ns, task.run_delay_ns(), same_reader);
        if setting!(trace) == TRACE_TIMESLICES {
            // A round of a slow sender can last for minutes, and in a trace no pass attributes its time.
            causes::attribute_open_round(state, seen.now_ns, false);
        }
        if !reader::is_still(state, task)
            && let Some(new) = store::at(change_reader(state.index, read_bytes, seen.rmem, seen.rcvbuf, seen.now_ns))
        {
            state = new;
        }
        has_slot = state.reader_slot != SLOT_NONE;
    }
    if has_slot {
        state.counters.timeslice_read_bytes += read_bytes as u64;
    } else {
        // What other readers read is not reported by a traced reader.
        state.reported_seq = state.copied_seq;
    }
    socket::end_event(state);
    if !has_slot {
        return None;
    }
    if setting!(trace) != TRACE_NONE {
        trace::read(previous, state, tcp, queue_start, read_bytes)
    } else {
        reader::select_service(state)
    }
}

/// Handles a read by a different thread than the last one, or by the same thread under a new name, within an event of
/// the state with this index. Returns the index of the state with which the socket goes on, also within an event.
///
/// A function of its own: the verifier walks it once, not once for each way that leads to it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn change_reader(index: u32, read_bytes: u32, rmem: u32, rcvbuf: u32, now_ns: u64) -> u32 {
    let Some(mut state) = store::at(index) else { return index };
    let task = Task::current();
    // What the previous process has read stays with it, as does what has arrived so far. The same applies to a
    // process's previous name.
    let other = state.reader_tgid != task.process_id() || state.process != task.process();
    if setting!(trace) == TRACE_NONE && state.reader_tid != 0 && other {
        state = hand_over(state, now_ns, read_bytes);
    }
    let other = reader::take_over(state, task);
    // This reader's timeslice started before it read the socket, so its activation found the queue as it was until now.
    if other && state.reader_slot != SLOT_NONE && setting!(timeslices) != 0 {
        fold::observe(&mut state.counters, FILL_ACTIVATION, rmem, rcvbuf);
    }
    state.index
}

/// Ends the state with what the previous process has read; what is read now is counted in a new state.
#[inline(always)]
fn hand_over(state: &'static mut SocketState, now_ns: u64, read_bytes: u32) -> &'static mut SocketState {
    let Some(new) = store::replace(state) else {
        maps::count_loss(Loss::HandedOver);
        return state;
    };
    causes::attribute_open_round(state, now_ns, false);
    socket::begin_event(new);
    socket::copy_without_totals(new, state);
    new.counters.read_bytes = read_bytes as u64;
    state.counters.read_bytes -= read_bytes as u64;
    state.flags |= SOCKET_FINAL | SOCKET_HANDED_OVER;
    socket::end_event(state);
    store::list_as_ended(state.index);
    new
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
