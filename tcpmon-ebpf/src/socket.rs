//! A socket's state: where it begins, and what each event reads for it.

use core::ptr::{read_volatile, write_volatile};

use tcpmon_common::{
    fold::{self, Cause, Folded, REFUSED_BYTES, REFUSED_TIME, Seen},
    header::{Header, KIND_LISTENER, VERSION},
    lives::LIVES_BEGUN,
    loss::Loss,
    reader::SLOT_NONE,
    socket::{FIN_READ, FIN_RECEIVED, SOCKET_BEGUN, SocketRecord, SocketState},
};

use crate::{
    kernel::{self, TcpSock, barrier, setting, state},
    maps,
};

/// No connection receives more per ns than this many bytes (256 Gb/s): what shows more since tcpmon began is older.
const MAX_BYTES_PER_NS: u64 = 32;

/// Runs `write` as one event: a snapshot sees all of what it writes, or nothing (see [`tcpmon_common::copy`]). The clock
/// and the socket are read before.
#[inline(always)]
pub fn event<T>(state: &mut SocketState, write: impl FnOnce(&mut SocketState) -> T) -> T {
    // SAFETY: a reference is valid for reads and writes.
    let odd = unsafe { read_volatile(&state.sequence) } | 1;
    // SAFETY: as above.
    unsafe { write_volatile(&mut state.sequence, odd) };
    barrier();
    let result = write(state);
    barrier();
    // SAFETY: as above.
    unsafe { write_volatile(&mut state.sequence, odd.wrapping_add(1)) };
    result
}

/// The socket's state. One that has none or was not seen to begin is met late: it is younger than tcpmon, because all
/// that were open then have a state, or it waited to be accepted, or the kernel owns it.
#[inline(always)]
pub fn watched(tcp: TcpSock) -> Option<&'static mut SocketState> {
    if let Some(state) = maps::socket(tcp.sock())
        && state.last_ns != 0
    {
        return Some(state);
    }
    if tcp.is_mptcp() {
        return None;
    }
    let state = maps::socket_or_new(tcp.sock())?;
    meet_late(state, tcp, || tcp.sock().cookie());
    Some(state)
}

/// Begins to count a connection whose begin was not seen, from its first byte if that came after tcpmon. How to learn the
/// socket's `cookie` depends on the kind of program.
#[inline(always)]
pub fn meet_late(state: &mut SocketState, tcp: TcpSock, cookie: impl FnOnce() -> u64) {
    let now = kernel::now_ns();
    let possible = now.wrapping_sub(setting!(began_ns)).wrapping_mul(MAX_BYTES_PER_NS);
    let young = !tcp.sock().kernel_owned() && tcp.bytes_received() <= possible;
    anchor(state, tcp, now, young, cookie);
    // A trace misses nothing by it: what came before the first read is told with that.
    if setting!(trace) == 0 {
        maps::lose(Loss::SocketBeginLate);
    }
}

/// Begins to count here: `from_start` from the connection's first byte, otherwise from the first that is not read yet. How
/// to learn the socket's `cookie` depends on the kind of program.
#[inline(always)]
pub fn anchor(state: &mut SocketState, tcp: TcpSock, now: u64, from_start: bool, cookie: impl FnOnce() -> u64) {
    let sock = tcp.sock();
    let (rcv_nxt, copied_seq) = (tcp.rcv_nxt(), tcp.copied_seq());
    let fin = sock.fin_received();
    let received = tcp.data_received();
    let nameless = state.cookie == 0;
    // Set on both ways: 6.1 does not see that it would not be read.
    let cookie = if nameless { cookie() } else { state.cookie };
    let begins = state.flags & SOCKET_BEGUN == 0;
    event(state, |state| {
        state.rcvbuf = sock.rcvbuf();
        state.flags = state.flags & !(FIN_RECEIVED | FIN_READ) | SOCKET_BEGUN;
        // `fold` takes it from here, a FIN included.
        state.rcv_nxt = copied_seq;
        state.copied_seq = copied_seq;
        if fin && rcv_nxt == copied_seq {
            state.flags |= FIN_RECEIVED | FIN_READ;
        }
        if from_start {
            let unread = rcv_nxt.wrapping_sub(copied_seq).wrapping_sub((fin && rcv_nxt != copied_seq) as u32);
            let read = received.saturating_sub(unread as u64);
            // The last of what was read is left to `fold`, which tells it to the reader of this event; sequence numbers
            // hold only so much.
            let recent = if read > u16::MAX as u64 { u16::MAX as u32 } else { read as u32 };
            state.rcv_nxt = state.rcv_nxt.wrapping_sub(recent);
            state.copied_seq = state.rcv_nxt;
            state.counters.received_bytes += read - recent as u64;
            state.counters.read_bytes += read - recent as u64;
        }
        state.cookie = cookie;
        if nameless {
            state.reader_slot = SLOT_NONE;
        }
        state.last_ns = now;
    });
    if begins {
        maps::count_life(LIVES_BEGUN);
    }
}

/// What the socket shows at an event. The caller holds the socket's lock, as every tracepoint that calls this does.
#[inline(always)]
pub fn look(state: &SocketState, tcp: TcpSock, now: u64) -> Seen {
    let sock = tcp.sock();
    let rcvbuf = sock.rcvbuf();
    let window = tcp.window();
    Seen {
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
    }
}

/// Brings the state up to what was seen and returns the bytes drained since the last event; inside of an [`event`].
#[inline(always)]
pub fn fold(state: &mut SocketState, seen: &Seen, cause: Cause) -> u32 {
    let Folded { read_bytes, refused } = fold::fold(state, seen, cause, switches);
    if refused & REFUSED_TIME != 0 {
        maps::lose(Loss::ImpossibleTime);
    }
    if refused & REFUSED_BYTES != 0 {
        maps::lose(Loss::ImpossibleBytes);
    }
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

/// Sends the state, and what the socket shows now, as a record of this kind. `None` and a count when the ring is full.
#[inline(always)]
pub fn send(kind: u16, otherwise: Loss, state: &SocketState, tcp: TcpSock, now: u64) -> Option<()> {
    let record = maps::reserve::<SocketRecord>(otherwise)?;
    record.header = Header { kind, version: VERSION, cpu: kernel::cpu(), time_ns: now, cookie: state.cookie };
    record.live.padding = 0;
    record.live.reader_switches = 0;
    tcp.live(&mut record.live);
    // The tracepoint fires before the socket takes on its new state.
    if kind == KIND_LISTENER {
        record.live.state = state::LISTEN as u8;
    }
    record.state = *state;
    maps::submit(record);
    Some(())
}
