//! `inet_sock_set_state` and `tcp_destroy_sock`: where a connection starts and ends.
//!
//! The kernel does not run a program on a CPU on which another instance of it is running. While the program handles one
//! connection, an interrupt may arrive on that CPU and open or close hundreds of others, and the program sees none of
//! these. So each program here has a second program on the same tracepoint, which handles what the first one missed.
//! A word of the CPU tells it that the first one has run (see [`once`]).
//!
//! Where programs on tracepoints can be preempted (7.0 and newer), both can be preempted on a CPU at the same time, by
//! threads that wait for that CPU. There a sock_ops program reports state changes, too, and the end of a connection
//! that its owner has already closed is taken at the last of these changes.

use aya_ebpf::{
    bindings::{
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB,
        BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_SOCK_OPS_TCP_LISTEN_CB,
    },
    macros::{btf_tracepoint, sock_ops},
    programs::{BtfTracePointContext, SockOpsContext},
};
use tcpmon_common::{
    causes::{self, Path},
    connections::{CONNECTIONS_ENDED, CONNECTIONS_OPENED},
    counters::Cells as _,
    fold::Trigger,
    header::{KIND_FINAL, KIND_LISTENER},
    loss::Loss,
    reader::SLOT_NONE,
    settings::TRACE_NONE,
    socket::{
        SOCKET_ACTIVE, SOCKET_COUNTED, SOCKET_FINAL, SOCKET_MPTCP, SOCKET_OPENED, SOCKET_PASSIVE, SOCKET_PORT_CHOSEN,
        SocketCounters, SocketState,
    },
    tcp_state,
    tracepoint::{
        inet_sock_set_state::{self, NEW, OLD},
        tcp_destroy_sock,
    },
};

use crate::{
    kernel::{self, Sock, Task, TcpSock, setting},
    maps, reader, socket,
};

/// Which of the two programs on a tracepoint this is. The programs do the same if they run twice for an event; the
/// second one returns early if the first one has just done it.
#[derive(Clone, Copy)]
enum Place {
    First,
    Second,
}

#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn inet_sock_set_state(ctx: BtfTracePointContext) -> i32 {
    traced(&ctx, Place::First);
    0
}

#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn inet_sock_set_state_again(ctx: BtfTracePointContext) -> i32 {
    traced(&ctx, Place::Second);
    0
}

#[inline(always)]
fn traced(ctx: &BtfTracePointContext, place: Place) -> Option<()> {
    let (old, new) = (ctx.arg::<u64>(OLD.position) as u32, ctx.arg::<u64>(NEW.position) as u32);
    let sock = Sock::argument::<{ inet_sock_set_state::SOCK.position }>(ctx);
    match new {
        tcp_state::SYN_SENT | tcp_state::LISTEN | tcp_state::SYN_RECV | tcp_state::ESTABLISHED | tcp_state::CLOSE => {
            once(place, sock, new, || change(sock, old, new, || sock.tcp(), || sock.cookie()))
        }
        _ => {
            // What is left there can be of a connection long ago, and an interrupt must not find it.
            *maps::handled()? = 0;
            None
        }
    }
}

/// Runs `handle` unless this is the second program and the first one has handled the event. The word that says so is
/// cleared before the first program begins: the programs of an interrupt, of which the first one does not run then,
/// find no event there, or one of another socket.
#[inline(always)]
fn once(place: Place, sock: Sock, new: u32, handle: impl FnOnce() -> Option<()>) -> Option<()> {
    let event = (sock.address() as u64) << 8 | new as u64;
    let handled = maps::handled()?;
    let before = *handled;
    *handled = 0;
    kernel::barrier();
    if matches!(place, Place::Second) && before == event {
        return None;
    }
    handle();
    if matches!(place, Place::First) {
        kernel::barrier();
        *handled = event;
    }
    None
}

/// Handles a change of a socket's state. Each program that reports the change does the same, and what is counted is
/// marked in the state, so that it is counted once. How to get the TCP socket and the cookie depends on the kind of
/// program.
#[inline(always)]
fn change(
    sock: Sock,
    old: u32,
    new: u32,
    tcp: impl Fn() -> Option<TcpSock>,
    cookie: impl FnOnce() -> u64,
) -> Option<()> {
    match new {
        tcp_state::SYN_SENT | tcp_state::LISTEN => open(tcp()?, new, cookie),
        tcp_state::SYN_RECV => count_opened(maps::socket_or_new(tcp()?.sock())?),
        tcp_state::ESTABLISHED => establish(tcp()?, old, cookie),
        // A socket that its owner has not closed can still be read or connect again, so it has not ended.
        tcp_state::CLOSE if sock.orphaned() => end(tcp()?, cookie),
        tcp_state::CLOSE => {
            let state = maps::socket(tcp()?.sock())?;
            socket::event(state, |state| state.flags &= !(SOCKET_OPENED | SOCKET_MPTCP));
            None
        }
        _ => None,
    }
}

/// connect() and listen() run in the process that owns the socket. A socket may connect again after a disconnect, so
/// counting starts anew.
#[inline(always)]
fn open(tcp: TcpSock, new: u32, cookie: impl FnOnce() -> u64) -> Option<()> {
    let state = maps::socket_or_new(tcp.sock())?;
    if new == tcp_state::SYN_SENT {
        count_opened(state);
        // A socket that listens for MPTCP accepts plain connections, too.
        if tcp.is_mptcp() {
            return None;
        }
    }
    let opened = if new == tcp_state::SYN_SENT { SOCKET_ACTIVE } else { 0 };
    // Another of the programs has already handled this change.
    let counted = state.flags & SOCKET_COUNTED;
    if state.cookie != 0
        && state.last_ns == 0
        && state.flags & !(SOCKET_PORT_CHOSEN | SOCKET_OPENED) == opened | counted
    {
        return None;
    }
    let flags = if new == tcp_state::LISTEN { socket::note_listener(tcp) } else { SOCKET_ACTIVE };
    let cookie = cookie();
    socket::event(state, |state| {
        state.flags = flags | counted | state.flags & SOCKET_OPENED;
        state.cookie = cookie;
        state.last_ns = 0;
        reader::opened_by(state, Task::current());
    });
    // Without this record, connections that start and end between two scrapes and are never read would have no process.
    if new == tcp_state::LISTEN && setting!(trace) == TRACE_NONE {
        socket::send(KIND_LISTENER, Loss::ListenerRecord, state, tcp, kernel::now_ns());
    }
    None
}

/// Counts a connection that starts to open, to be shown next to the kernel's own count.
#[inline(always)]
fn count_opened(state: &mut SocketState) -> Option<()> {
    if state.flags & SOCKET_OPENED == 0 {
        socket::event(state, |state| state.flags |= SOCKET_OPENED);
        maps::count_connection(CONNECTIONS_OPENED);
    }
    None
}

#[inline(always)]
fn establish(tcp: TcpSock, old: u32, cookie: impl FnOnce() -> u64) -> Option<()> {
    let state = maps::socket_or_new(tcp.sock())?;
    // If it was accepted, no program may have seen SYN_RECV.
    if old == tcp_state::SYN_RECV {
        count_opened(state);
    }
    if tcp.is_mptcp() {
        if state.flags & SOCKET_MPTCP == 0 {
            socket::event(state, |state| state.flags |= SOCKET_MPTCP);
            maps::count_mptcp();
        }
        return None;
    }
    let accepted = old == tcp_state::SYN_RECV && state.flags & SOCKET_ACTIVE == 0;
    let opened = if accepted { SOCKET_PASSIVE } else { SOCKET_ACTIVE };
    if state.flags & opened == 0 {
        let chosen = accepted && maps::is_chosen(tcp.netns(), tcp.ports().0);
        socket::event(state, |state| state.flags |= opened | (chosen as u32 * SOCKET_PORT_CHOSEN));
    }
    // It is already set if another of the programs was first, or if data of the handshake (TFO) was read before the
    // handshake was complete.
    if state.last_ns == 0 {
        socket::start_counting(state, tcp, kernel::now_ns(), true, cookie);
    }
    None
}

/// Reports the same changes as a sock_ops program, just before the tracepoint fires. The kernel runs a program of this
/// kind even while another instance of it is preempted.
#[sock_ops]
pub fn sock_ops(ctx: SockOpsContext) -> u32 {
    handle_sock_ops(&ctx);
    // `reply` is unchanged, so what other programs have set there stands.
    1
}

#[inline(always)]
fn handle_sock_ops(ctx: &SockOpsContext) -> Option<()> {
    let (old, new) = match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => (tcp_state::CLOSE, tcp_state::SYN_SENT),
        BPF_SOCK_OPS_TCP_LISTEN_CB => (tcp_state::CLOSE, tcp_state::LISTEN),
        // The kernel runs these two callbacks whether or not state-change callbacks are on. A passive connection
        // changes to ESTABLISHED after this, so turning them on is enough; an active one has already changed.
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => return enable_state_events(ctx),
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => {
            enable_state_events(ctx);
            (tcp_state::SYN_SENT, tcp_state::ESTABLISHED)
        }
        BPF_SOCK_OPS_STATE_CB => (ctx.arg(0), ctx.arg(1)),
        _ => return None,
    };
    let tcp = kernel::sock_ops_tcp(ctx)?;
    change(tcp.sock(), old, new, || Some(tcp), || kernel::sock_ops_cookie(ctx))
}

#[inline(always)]
fn enable_state_events(ctx: &SockOpsContext) -> Option<()> {
    ctx.set_cb_flags((ctx.cb_flags() | BPF_SOCK_OPS_STATE_CB_FLAG) as i32).ok()
}

#[btf_tracepoint(function = "tcp_destroy_sock")]
pub fn tcp_destroy_sock(ctx: BtfTracePointContext) -> i32 {
    destroy(&ctx);
    0
}

#[btf_tracepoint(function = "tcp_destroy_sock")]
pub fn tcp_destroy_sock_again(ctx: BtfTracePointContext) -> i32 {
    destroy(&ctx);
    0
}

#[inline(always)]
fn destroy(ctx: &BtfTracePointContext) -> Option<()> {
    let sock = Sock::argument::<{ tcp_destroy_sock::SOCK.position }>(ctx);
    end(sock.tcp()?, || sock.cookie())
}

#[inline(always)]
fn end(tcp: TcpSock, cookie: impl FnOnce() -> u64) -> Option<()> {
    finalize(state_of(tcp)?, tcp, cookie);
    if setting!(delete_ended) != 0 {
        maps::delete_socket(tcp.sock());
    }
    None
}

/// The state of a socket that ends. A socket that has received data but was never seen gets one now. On kernels where
/// the programs delete states, a socket without a state has already been concluded.
#[inline(always)]
fn state_of(tcp: TcpSock) -> Option<&'static mut SocketState> {
    if let Some(state) = maps::socket(tcp.sock()) {
        return Some(state);
    }
    if setting!(delete_ended) != 0 || setting!(trace) != TRACE_NONE || tcp.data_received() == 0 || tcp.is_mptcp() {
        return None;
    }
    maps::socket_or_new(tcp.sock())
}

#[inline(always)]
fn finalize(state: &mut SocketState, tcp: TcpSock, cookie: impl FnOnce() -> u64) -> Option<()> {
    if state.flags & SOCKET_FINAL != 0 {
        return None;
    }
    if state.last_ns == 0 && tcp.data_received() != 0 && !tcp.is_mptcp() {
        socket::start_late(state, tcp, cookie);
    }
    let mut seen = socket::sample(state, tcp);
    let now = seen.now_ns;
    // A disconnect (by connect(), or of a connection that nobody has accepted when its listener is closed) drops what
    // is unread, moves `copied_seq` as a read would, and sets this counter to zero.
    if tcp.bytes_received() == 0 {
        seen.copied_seq = state.copied_seq;
    }
    socket::begin_event(state);
    // Otherwise it was never established, or is a listening socket: nothing was counted.
    if state.last_ns != 0 {
        socket::fold(state, &seen, Trigger::Event, || Path::NONE);
        causes::settle(state, now, true);
    }
    state.flags |= SOCKET_FINAL;
    socket::end_event(state);
    if state.flags & SOCKET_COUNTED != 0 {
        maps::count_connection(CONNECTIONS_ENDED);
    } else if state.flags & (SOCKET_ACTIVE | SOCKET_OPENED) == 0 && socket::port_chosen(tcp) {
        // It was a listening socket: the next one on this port may have asked for the port.
        maps::note_port(tcp.netns(), tcp.ports().0, false);
    }
    // There is nothing to add to any total (for example, the sending side of a transfer), and no snapshot has shown the
    // socket.
    // The end is marked before looking whether a snapshot has shown the socket, which does it the other way round.
    kernel::full_barrier();
    let counters = &state.counters;
    if counters.received_bytes | counters.segments | counters.zero_window_ns == 0 && state.shown.index().is_none() {
        return None;
    }
    // A trace is not about it.
    if setting!(trace) != TRACE_NONE && counters.timeslice_read_bytes == 0 && state.reader_slot == SLOT_NONE {
        return None;
    }
    if socket::send(KIND_FINAL, Loss::FinalRecord, state, tcp, now).is_none() {
        // The mark comes first: when user space finds the totals among the sums, it then knows whose they are.
        if let Some(index) = state.shown.index() {
            maps::mark_final_record_lost(index);
        }
        kernel::shared_barrier();
        add_to_lost_totals(&state.counters);
    }
    None
}

/// Adds the totals to this CPU's sums, so that these are right although the final record was lost.
#[inline(always)]
fn add_to_lost_totals(counters: &SocketCounters) -> Option<()> {
    maps::lost_totals()?.add(counters);
    None
}
