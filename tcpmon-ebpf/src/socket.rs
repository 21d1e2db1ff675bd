//! A socket's state: where it begins, and what each event reads for it.

use tcpmon_common::{
    fold::{self, Seen},
    loss::Loss,
    reader::SLOT_NONE,
    socket::{FIN_READ, FIN_RECEIVED, SOCKET_FROM_START, SocketState},
};

use crate::{
    kernel::{self, TcpSock, setting, state},
    maps,
};

/// The socket's state, made on the spot if the socket is older than tcpmon and was not seeded. `None` when the state
/// is new (nothing can be folded before there is a last event) or was refused.
#[inline(always)]
pub fn watched(tcp: TcpSock) -> Option<&'static mut SocketState> {
    if let Some(state) = maps::socket(tcp.sock())
        && state.last_ns != 0
    {
        return Some(state);
    }
    let state = maps::socket_or_new(tcp.sock())?;
    // Data that arrive with the handshake (TFO) can be read before the connection is established.
    let from_start = tcp.sock().state() == state::SYN_RECV;
    anchor(state, tcp, kernel::now_ns(), from_start, || tcp.sock().cookie());
    if from_start {
        return Some(state);
    }
    // All that were open when the trace began have a state.
    if setting!(trace) != 0 {
        maps::lose(Loss::SocketBegin);
    }
    None
}

/// Begins to count here; `from_start` when the connection begins now, so that what it already holds counts too. How to
/// learn the socket's `cookie` depends on the kind of program.
#[inline(always)]
pub fn anchor(state: &mut SocketState, tcp: TcpSock, now: u64, from_start: bool, cookie: impl FnOnce() -> u64) {
    let sock = tcp.sock();
    state.sequence += 1;
    state.rcv_nxt = tcp.rcv_nxt();
    state.copied_seq = tcp.copied_seq();
    state.rcvbuf = sock.rcvbuf();
    state.flags &= !(FIN_RECEIVED | FIN_READ);
    if from_start {
        state.flags |= SOCKET_FROM_START;
        // Moves the anchors back to the first byte; `fold` takes it from there.
        let received = tcp.bytes_received() as u32;
        let unread = state.rcv_nxt.wrapping_sub(state.copied_seq);
        state.rcv_nxt = state.rcv_nxt.wrapping_sub(received);
        state.copied_seq = state.copied_seq.wrapping_sub(received.wrapping_sub(unread));
    } else if sock.fin_received() {
        state.flags |= FIN_RECEIVED;
        if state.rcv_nxt == state.copied_seq {
            state.flags |= FIN_READ;
        }
    }
    if state.cookie == 0 {
        state.cookie = cookie();
        state.reader_slot = SLOT_NONE;
    }
    state.last_ns = now;
    state.sequence += 1;
}

/// Brings the state up to `now` and returns the bytes drained since the last event. The caller holds the socket's lock, as every tracepoint that calls this does.
#[inline(always)]
pub fn fold(state: &mut SocketState, tcp: TcpSock, now: u64, segment: bool) -> u32 {
    let sock = tcp.sock();
    let rcvbuf = sock.rcvbuf();
    let window = tcp.window();
    let seen = Seen {
        now_ns: now,
        rcv_nxt: tcp.rcv_nxt(),
        copied_seq: tcp.copied_seq(),
        rmem: sock.rmem(),
        rcvbuf,
        window,
        // A 16-bit number in a cache line of its own: not read where it cannot matter.
        mss: if window > u16::MAX as u32 { 0 } else { tcp.mss() },
        state: sock.state(),
        fin: sock.fin_received(),
        autotuned: rcvbuf > state.rcvbuf && autotuned(state, tcp),
    };
    state.sequence += 1;
    let read_bytes = fold::fold(state, &seen, segment, switches);
    state.sequence += 1;
    read_bytes
}

/// Whether a growth of `sk_rcvbuf` since the last event is the work of autotuning.
#[inline(always)]
pub fn autotuned(state: &SocketState, tcp: TcpSock) -> bool {
    if setting!(grow_announced) != 0 { state.grow_from != 0 } else { !tcp.sock().rcvbuf_locked() }
}

/// CPU edges of the thread in a slot, if the slot is still its.
#[inline(always)]
pub fn switches(slot: u32, tid: u32) -> Option<u32> {
    let reader = maps::reader(slot)?;
    if reader.tid == tid { Some(reader.switches) } else { None }
}
