//! A socket's state: where counting starts, and what each event reads for it.
#![expect(unsafe_code, reason = "volatile accesses to words that other programs access meanwhile")]

use core::ptr::{read_volatile, write_volatile};

use tcpmon_common::{
    causes::{self, MAX_RTT_US, NO_ECHO, Path},
    fold::{self, Folded, Observation, REFUSED_BYTES, REFUSED_TIME, Trigger},
    header::{Header, KIND_LISTENER, VERSION},
    loss::Loss,
    reader::SLOT_NONE,
    settings::{EPHEMERAL_RANGES, TRACE_NONE},
    socket::{FIN_READ, FIN_RECEIVED, SOCKET_FINAL, SocketState},
    tcp_state,
};

use crate::{
    kernel::{self, Skb, Sock, TcpSock, setting, shared_barrier},
    maps, store,
};

/// No connection receives more bytes per ns than this (1.6 Tb/s). A connection that has received more than this allows
/// since tcpmon started is older than tcpmon.
const MAX_BYTES_PER_NS: u64 = 200;

/// Runs `write` as one event: a pass sees either everything that it writes or nothing (see [`tcpmon_common::copy`]).
/// The caller must have read the clock and the socket before.
#[inline(always)]
pub fn event<T>(state: &mut SocketState, write: impl FnOnce(&mut SocketState) -> T) -> T {
    begin_event(state);
    let result = write(state);
    end_event(state);
    result
}

/// Begins an [`event`] without a closure, for long code: the compiler would make a function of it that each program
/// calls, which the verifier does not accept.
#[inline(always)]
pub fn begin_event(state: &mut SocketState) {
    // SAFETY: a reference is valid for reads and writes.
    unsafe { write_volatile(&mut state.sequence, read_volatile(&state.sequence) | 1) };
    shared_barrier();
}

/// Ends the event.
#[inline(always)]
pub fn end_event(state: &mut SocketState) {
    shared_barrier();
    // SAFETY: a reference is valid for reads and writes. The number is odd.
    unsafe { write_volatile(&mut state.sequence, read_volatile(&state.sequence).wrapping_add(1)) };
}

/// The socket's state. If a connection has none, or its start was not seen, counting starts late, here. Such a
/// connection is younger than tcpmon (because all connections that were open at the start got a state), or was waiting
/// to be accepted at that time, or belongs to the kernel.
#[inline(always)]
pub fn watched(tcp: TcpSock) -> Option<&'static mut SocketState> {
    if let Some(state) = store::state_of_inline(tcp.sock().known_cookie())
        && state.last_ns != 0
    {
        return Some(state);
    }
    if tcp.is_mptcp() {
        return None;
    }
    let state = known_or_new(tcp, || tcp.sock().cookie())?;
    start_late(state, tcp);
    Some(state)
}

/// The state of a socket, if it has one.
#[inline(always)]
pub fn known(sock: Sock) -> Option<&'static mut SocketState> {
    store::state_of(sock.known_cookie())
}

/// The state of a socket; one is created if there is none. How to get the socket's `cookie` depends on the kind of
/// program.
#[inline(always)]
pub fn known_or_new(tcp: TcpSock, cookie: impl FnOnce() -> u64) -> Option<&'static mut SocketState> {
    if let Some(state) = known(tcp.sock()) {
        return Some(state);
    }
    let state = store::begin(cookie())?;
    state.sock = tcp.address();
    Some(state)
}

/// The state of a socket whose last reader is traced, or that nobody has read yet: a traced thread may be the first to
/// read it.
#[inline(always)]
pub fn watched_by_trace(tcp: TcpSock) -> Option<&'static mut SocketState> {
    let state = store::state_of_inline(tcp.sock().known_cookie());
    state.filter(|state| state.last_ns != 0 && (state.reader_slot != SLOT_NONE || state.reader_tid == 0))
}

/// Starts to count a connection whose start was not seen: from its first byte if that came after tcpmon's start.
#[inline(always)]
pub fn start_late(state: &mut SocketState, tcp: TcpSock) {
    let now = kernel::now_ns();
    let possible = now.wrapping_sub(setting!(began_ns)).wrapping_mul(MAX_BYTES_PER_NS);
    let sock = tcp.sock();
    // A connection that its owner closed before tcpmon started, and that still had data to send then.
    let old_orphan = sock.orphaned() && tcp.last_drained_ns() < setting!(began_ns);
    let young = !sock.kernel_owned() && !old_orphan && tcp.bytes_received() <= possible;
    start_counting(state, tcp, now, young, None);
    // Data in a SYN (TFO) is read before the handshake is complete.
    if sock.state() == tcp_state::SYN_RECV {
        event(state, |state| fold::count_handshake(&mut state.counters, 1));
    }
    // A trace loses nothing by this: what came before the first read is reported with that read.
    if setting!(trace) == TRACE_NONE {
        maps::count_loss(Loss::SocketFoundLate);
    }
}

/// Starts to count the connection: with `from_start` from its first byte, otherwise from the first byte that has not
/// been read yet. The state has counted nothing yet. `accepted`: the listening socket, if it is known.
#[inline(always)]
pub fn start_counting(
    state: &mut SocketState,
    tcp: TcpSock,
    now: u64,
    from_start: bool,
    accepted: Option<&maps::Accepted>,
) {
    let sock = tcp.sock();
    let (rcv_nxt, copied_seq) = (tcp.rcv_nxt(), tcp.copied_seq());
    let fin = sock.fin_received();
    let received = tcp.data_received();
    event(state, |state| {
        tcp.identity(&mut state.identity);
        state.listener = 0;
        if let Some(accepted) = accepted {
            state.listener = accepted.listener;
            state.identity.service_port = accepted.port;
        }
        state.rcvbuf = sock.rcvbuf();
        // `fold` counts everything after this, including a FIN.
        state.rcv_nxt = copied_seq;
        state.copied_seq = copied_seq;
        if fin && rcv_nxt == copied_seq {
            state.flags |= FIN_RECEIVED | FIN_READ;
        }
        if from_start {
            let unread = rcv_nxt.wrapping_sub(copied_seq).wrapping_sub((fin && rcv_nxt != copied_seq) as u32);
            let read = received.saturating_sub(unread as u64);
            // `fold` counts the last of the bytes that were read, and credits them to the reader of this event. Only
            // this many are left to it, because the range of sequence numbers is limited.
            let recent = if read > u16::MAX as u64 { u16::MAX as u32 } else { read as u32 };
            state.rcv_nxt = state.rcv_nxt.wrapping_sub(recent);
            state.copied_seq = state.rcv_nxt;
            state.counters.received_bytes += read - recent as u64;
            state.counters.read_bytes += read - recent as u64;
        }
        // The values of now, until the first event.
        if setting!(can_look) == 0 {
            state.seen_rmem = sock.rmem();
            state.seen_window = tcp.window();
        }
        state.reported_seq = state.copied_seq;
        state.round.begin(tcp.edge(), now);
        state.reads.begin(now);
        state.last_ns = now;
    });
}

/// Ends what was counted for the socket so far: the socket gets another state. If there is none, which is counted, it
/// goes on in this one.
#[inline(always)]
pub fn renew(state: &'static mut SocketState) -> &'static mut SocketState {
    let Some(new) = store::replace(state) else {
        maps::count_loss(Loss::SocketState);
        event(state, |state| {
            state.flags = 0;
            state.last_ns = 0;
        });
        return state;
    };
    event(state, |state| {
        let last_ns = state.last_ns;
        causes::attribute_open_round(state, last_ns, true);
        state.flags |= SOCKET_FINAL;
    });
    store::list_as_ended(state.index);
    new
}

/// Continues another state in a new one: copies everything except the totals and the last reader.
#[inline(always)]
pub fn copy_without_totals(new: &mut SocketState, state: &SocketState) {
    new.flags = state.flags;
    new.reader_edges = state.reader_edges;
    new.rcv_nxt = state.rcv_nxt;
    new.copied_seq = state.copied_seq;
    new.last_ns = state.last_ns;
    new.rcvbuf = state.rcvbuf;
    new.grow_from = state.grow_from;
    new.reads = state.reads;
    new.round = state.round;
    // The totals at the last read, which start from zero.
    (new.round.reader_limited_ns, new.reads.queue_byte_ticks) = (0, 0);
    new.reported_seq = state.reported_seq;
    new.listener = state.listener;
    new.identity = state.identity;
}

/// Reads what an event must know of the socket, and the time. The caller must hold the socket's lock, as every
/// tracepoint does from which this is called.
#[inline(always)]
pub fn sample(state: &SocketState, tcp: TcpSock) -> Observation {
    let sock = tcp.sock();
    let rcvbuf = sock.rcvbuf();
    let (window, rcv_nxt) = (tcp.window(), tcp.rcv_nxt());
    Observation {
        rcv_nxt,
        copied_seq: tcp.copied_seq(),
        rmem: sock.rmem(),
        rcvbuf,
        window,
        edge: tcp.edge(),
        arrived: rcv_nxt,
        // A 16-bit field in a cache line of its own: read only if it can matter.
        mss: if window > u16::MAX as u32 { 0 } else { tcp.mss() },
        state: sock.state(),
        fin: sock.fin_received(),
        is_growth: rcvbuf > state.rcvbuf && is_growth(state, tcp),
        // Last, because a CPU reads its clock only when all loads before that are done: cache misses of loads that come
        // first overlap with one another.
        now_ns: kernel::now_ns(),
    }
}

/// Brings the state up to what was seen, and returns the bytes drained since the last event. Must be called inside an
/// [`event`].
#[inline(always)]
pub fn fold(state: &mut SocketState, seen: &Observation, trigger: Trigger, path: impl FnOnce() -> Path) -> u32 {
    // Where nobody counts timeslices, they are always 0.
    let edges = |slot, tid| if setting!(timeslices) == 0 { Some(0) } else { edges(slot, tid) };
    let Folded { read_bytes, refused } = fold::fold(state, seen, trigger, edges, path);
    if setting!(can_look) == 0 {
        state.seen_rmem = seen.rmem;
        state.seen_window = seen.window;
    }
    if refused & REFUSED_TIME != 0 {
        maps::count_loss(Loss::ImpossibleTime);
    }
    if refused & REFUSED_BYTES != 0 {
        maps::count_loss(Loss::ImpossibleBytes);
    }
    read_bytes
}

/// What a new round needs to know about the path when this segment arrives.
#[inline(always)]
pub fn path(tcp: TcpSock, segment: Skb, now_ns: u64) -> Path {
    let (rtt_us, echoes) = tcp.round_trip_us();
    let mut echo_ms = NO_ECHO;
    if echoes && let Some(echo) = segment.echo() {
        echo_ms = tcp.echo_age_ms(echo, now_ns);
    }
    Path {
        rtt_us: if rtt_us < MAX_RTT_US { rtt_us } else { MAX_RTT_US },
        echo_ms,
        mss: tcp.mss(),
        is_short_of_memory: tcp.is_short_of_memory(),
    }
}

/// Whether autotuning caused a growth of `sk_rcvbuf` since the last event.
#[inline(always)]
pub fn is_growth(state: &SocketState, tcp: TcpSock) -> bool {
    if setting!(grow_announced) != 0 { state.grow_from != 0 } else { tcp.autotunes() }
}

/// Whether the kernel chose a listening socket's port, or its server chose it from one of the `ephemeral_ports` ranges:
/// connections to all such ports are one service.
#[inline(always)]
pub fn is_port_chosen(by_kernel: bool, port: u16) -> bool {
    let port = port as u32;
    let mut outside = !by_kernel as u32;
    let mut i = 0;
    while i < EPHEMERAL_RANGES {
        let [first, last] = setting!(ephemeral_ports[i]);
        // A distance below zero has its top bit set. Branch-free, because the verifier of 6.1 would walk all the code
        // after each branch once more.
        outside &= (port.wrapping_sub(first as u32) | (last as u32).wrapping_sub(port)) >> 31;
        i += 1;
    }
    outside == 0
}

/// Number of CPU edges of the thread in a slot, if the slot still belongs to that thread.
#[inline(always)]
pub fn edges(slot: u32, tid: u32) -> Option<u32> {
    let reader = maps::reader(slot)?;
    if reader.tid == tid { Some(reader.edges) } else { None }
}

/// Reports to user space that the socket listens.
#[inline(always)]
pub fn announce(state: &SocketState) {
    if let Some(record) = maps::reserve::<Header>(Loss::ListenerRecord) {
        *record = Header {
            kind: KIND_LISTENER,
            version: VERSION,
            cpu: kernel::cpu(),
            time_ns: kernel::now_ns(),
            cookie: state.index as u64,
        };
        maps::submit(record);
    }
}
