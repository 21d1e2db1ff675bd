//! `inet_sock_set_state` and `tcp_destroy_sock`: where a connection starts and ends.
//!
//! The kernel does not run a program on a CPU on which another instance of it is running. While the program handles one
//! connection, an interrupt may arrive on that CPU and open or close hundreds of others, and the program sees none of
//! these. So each program here has a second program on the same tracepoint, which handles what the first one missed. A
//! per-CPU word tells the second program whether the first one has run (see [`unless_handled`]).
//!
//! Where programs on tracepoints can be preempted (7.0 and newer), threads that wait for a CPU can preempt both
//! programs on it at the same time. There a sock_ops program reports state changes, too. An end that no program sees is
//! found by a pass, with everything up to the change to CLOSE.

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
    connections::{CONNECTIONS_OPENED, CONNECTIONS_UNSENT},
    fold::{self, Trigger},
    settings::TRACE_NONE,
    socket::{
        SOCKET_ACTIVE, SOCKET_CLOSED, SOCKET_FINAL, SOCKET_FULLY_FOLDED, SOCKET_LISTENS, SOCKET_MPTCP, SOCKET_OPENED,
        SOCKET_PASSIVE, SOCKET_PORT_CHOSEN, SocketState,
    },
    tcp_state,
    tracepoint::{
        inet_sock_set_state::{self, NEW, OLD},
        tcp_destroy_sock,
    },
};

use crate::{
    kernel::{self, MaybeFreedSock as _, Sock, Task, TcpSock, setting},
    maps, reader, socket, store,
};

/// Which of the two programs on a tracepoint this is. Handling an event twice does no harm, but the second program
/// returns early if the first one has just handled it.
#[derive(Clone, Copy)]
enum WhichProgram {
    First,
    Second,
}

/// Stands for a socket's end among the TCP states in the events of [`unless_handled`].
const DESTROYED: u32 = 0;

#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn inet_sock_set_state(ctx: BtfTracePointContext) -> i32 {
    state_changed(&ctx, WhichProgram::First);
    0
}

#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn inet_sock_set_state_again(ctx: BtfTracePointContext) -> i32 {
    state_changed(&ctx, WhichProgram::Second);
    0
}

#[inline(always)]
fn state_changed(ctx: &BtfTracePointContext, which: WhichProgram) -> Option<()> {
    let (old, new) = (ctx.arg::<u64>(OLD.position) as u32, ctx.arg::<u64>(NEW.position) as u32);
    let sock = Sock::argument::<{ inet_sock_set_state::SOCK.position }>(ctx);
    match new {
        tcp_state::SYN_SENT | tcp_state::LISTEN | tcp_state::ESTABLISHED | tcp_state::CLOSE => {
            unless_handled(which, sock, new, || change(sock, old, new, || sock.tcp(), || sock.cookie()))
        }
        tcp_state::SYN_RECV if old == tcp_state::LISTEN => {
            unless_handled(which, sock, new, || note_listener(sock.tcp()?))
        }
        _ if old == tcp_state::SYN_RECV => unless_handled(which, sock, new, || count_accepted(sock.tcp()?)),
        _ => {
            // The word may still name an event of a connection that is long gone; a program in an interrupt must not
            // take it for its own.
            *maps::last_handled_event()? = 0;
            None
        }
    }
}

/// Runs `handle` unless this is the second program and the first one has handled the event. The word that says so is
/// cleared before the first program begins: if an interrupt comes, the first program does not run in it, and the second
/// one finds no event in the word, or one of another socket.
#[inline(always)]
fn unless_handled(which: WhichProgram, sock: Sock, new: u32, handle: impl FnOnce() -> Option<()>) -> Option<()> {
    let event = (sock.address() as u64) << 8 | new as u64;
    let handled = maps::last_handled_event()?;
    let before = *handled;
    *handled = 0;
    kernel::barrier();
    if matches!(which, WhichProgram::Second) && before == event {
        return None;
    }
    handle();
    if matches!(which, WhichProgram::First) {
        kernel::barrier();
        *handled = event;
    }
    None
}

/// Handles a change of a socket's state. Each program that reports the change does the same; what was counted is marked
/// in the state, so that it is counted once. How to get the TCP socket and the cookie depends on the kind of program.
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
        tcp_state::ESTABLISHED => establish(tcp()?, old, cookie),
        tcp_state::CLOSE => close(sock, tcp()?, old),
        _ => None,
    }
}

/// connect() and listen() run in the process that owns the socket. A socket may connect again after a disconnect: what
/// was counted for it before then ends.
#[inline(always)]
fn open(tcp: TcpSock, new: u32, cookie: impl FnOnce() -> u64) -> Option<()> {
    let mut state = socket::known_or_new(tcp, cookie)?;
    if state.last_ns != 0 || state.flags & SOCKET_LISTENS != 0 && new == tcp_state::SYN_SENT {
        state = socket::renew(state);
    }
    if new == tcp_state::SYN_SENT {
        count_opened(state);
        // Only here: a socket that listens for MPTCP also accepts plain connections, so it is watched.
        if tcp.is_mptcp() {
            return None;
        }
    }
    let opened = if new == tcp_state::SYN_SENT { SOCKET_ACTIVE } else { SOCKET_LISTENS };
    // Another program has already handled this change.
    if state.flags & !(SOCKET_PORT_CHOSEN | SOCKET_OPENED) == opened {
        return None;
    }
    // A socket that was never bound gets its port from the kernel just after this event.
    let chosen = new == tcp_state::LISTEN && socket::is_port_chosen(tcp.sock().port_chosen(), tcp.ports().0);
    socket::event(state, |state| {
        state.flags = opened | (chosen as u32 * SOCKET_PORT_CHOSEN) | (state.flags & SOCKET_OPENED);
        tcp.identity(&mut state.identity);
        reader::opened_by(state, Task::current());
    });
    // Without this record, connections that start and end between two passes and are never read would have no process.
    if new == tcp_state::LISTEN && setting!(trace) == TRACE_NONE {
        socket::announce(state);
    }
    None
}

/// Counts a connection that starts to open; the count is shown next to the kernel's own.
#[inline(always)]
fn count_opened(state: &mut SocketState) {
    if state.flags & SOCKET_OPENED == 0 {
        socket::event(state, |state| state.flags |= SOCKET_OPENED);
        maps::count_connection(CONNECTIONS_OPENED);
    }
}

/// Counts an accepted connection that is not established and never will be.
#[inline(always)]
fn count_accepted(tcp: TcpSock) -> Option<()> {
    // It has no state unless data in its handshake (TFO) was read.
    match socket::known(tcp.sock()) {
        Some(state) => count_opened(state),
        None => maps::count_connection(CONNECTIONS_OPENED),
    }
    None
}

/// A connection was just copied from the listening socket that accepts it. It becomes established on the same CPU,
/// before any other connection is accepted there, unless data in its handshake (TFO) has opened it earlier.
#[inline(always)]
fn note_listener(tcp: TcpSock) -> Option<()> {
    let listener = tcp.original();
    let accepted = maps::accepted()?;
    accepted.connection = 0;
    if listener.state() == tcp_state::LISTEN {
        accepted.listener = listener.cookie();
        accepted.port = listener.local_port();
        accepted.port_chosen = socket::is_port_chosen(listener.port_chosen(), accepted.port) as u16;
        accepted.connection = tcp.address();
    }
    None
}

#[inline(always)]
fn establish(tcp: TcpSock, old: u32, cookie: impl FnOnce() -> u64) -> Option<()> {
    let state = socket::known_or_new(tcp, cookie)?;
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
    let listener = if accepted { maps::accepted() } else { None };
    let listener = listener.filter(|listener| listener.connection == tcp.address());
    if state.flags & opened == 0 {
        let chosen = listener.as_ref().is_some_and(|listener| listener.port_chosen != 0);
        // Data in the SYN has already arrived, data that comes with the ACK has not.
        let in_syn = (tcp.bytes_received() != 0) as u32;
        let with_ack = (tcp.data_segments() > in_syn) as u32;
        let is_new = (state.last_ns == 0) as u32;
        socket::event(state, |state| {
            state.flags |= opened | (chosen as u32 * SOCKET_PORT_CHOSEN);
            fold::count_handshake(&mut state.counters, with_ack + in_syn * is_new);
        });
    }
    // Not 0 if another program was first, or if data in the handshake (TFO) was read before the handshake was complete.
    if state.last_ns == 0 {
        socket::start_counting(state, tcp, kernel::now_ns(), true, listener.as_deref());
    }
    // The next connection at this address may have another listener.
    if let Some(listener) = listener {
        listener.connection = 0;
    }
    None
}

/// A connection closes: what it has received is folded while the socket still has it, because a disconnect clears it. A
/// socket that its owner has not closed can still be read or connect again.
#[inline(always)]
fn close(sock: Sock, tcp: TcpSock, old: u32) -> Option<()> {
    if old == tcp_state::SYN_RECV {
        count_accepted(tcp);
    }
    let state = socket::known(tcp.sock())?;
    // connect() changes to SYN_SENT before it looks for a port, and fails without sending anything if all ports are
    // taken.
    if old == tcp_state::SYN_SENT && state.flags & SOCKET_OPENED != 0 && !tcp.has_sent() {
        maps::count_connection(CONNECTIONS_UNSENT);
    }
    let closed = sock.orphaned();
    if state.last_ns != 0 && state.flags & SOCKET_FULLY_FOLDED == 0 {
        fold_now(state, tcp, closed);
    }
    socket::event(state, |state| state.flags = state.flags & !(SOCKET_OPENED | SOCKET_MPTCP) | SOCKET_CLOSED);
    None
}

/// Folds what the socket shows now. `last`: nothing can come after it.
#[inline(always)]
fn fold_now(state: &mut SocketState, tcp: TcpSock, last: bool) {
    let mut seen = socket::sample(state, tcp);
    // A disconnect (by connect(), or of a connection that nobody has accepted when its listener is closed) drops unread
    // data, moves `copied_seq` as a read would, and sets `bytes_received` to zero.
    if tcp.bytes_received() == 0 {
        seen.copied_seq = state.copied_seq;
    }
    // Not `socket::event`: from a closure with this much code, the compiler would make a function that each program
    // calls, which the verifier does not accept.
    socket::begin_event(state);
    socket::fold(state, &seen, Trigger::Event, || Path::NONE);
    if last {
        causes::attribute_open_round(state, seen.now_ns, true);
        state.flags |= SOCKET_FULLY_FOLDED;
    }
    socket::end_event(state);
}

/// A sock_ops program that reports the same changes, just before the tracepoint fires. The kernel runs such a program
/// even while another instance of it is preempted.
#[sock_ops]
pub fn sock_ops(ctx: SockOpsContext) -> u32 {
    handle_sock_ops(&ctx);
    // `reply` is unchanged, so the value that other programs have set stays.
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
    destroy(&ctx, WhichProgram::First);
    0
}

#[btf_tracepoint(function = "tcp_destroy_sock")]
pub fn tcp_destroy_sock_again(ctx: BtfTracePointContext) -> i32 {
    destroy(&ctx, WhichProgram::Second);
    0
}

#[inline(always)]
fn destroy(ctx: &BtfTracePointContext, which: WhichProgram) -> Option<()> {
    let sock = Sock::argument::<{ tcp_destroy_sock::SOCK.position }>(ctx);
    unless_handled(which, sock, DESTROYED, || destroyed(which, sock.tcp()?))
}

#[inline(always)]
fn destroyed(which: WhichProgram, tcp: TcpSock) -> Option<()> {
    if let Some(state) = socket::known(tcp.sock()) {
        return end(state, tcp);
    }
    // A socket that has received data but was never seen. The second program cannot always tell such a socket from one
    // that the first program has just ended, because an interrupt in between clears the word.
    if matches!(which, WhichProgram::First)
        && setting!(trace) == TRACE_NONE
        && tcp.data_received() != 0
        && !tcp.is_mptcp()
    {
        let state = socket::known_or_new(tcp, || tcp.sock().cookie())?;
        socket::start_late(state, tcp);
        return end(state, tcp);
    }
    None
}

#[inline(always)]
fn end(state: &'static mut SocketState, tcp: TcpSock) -> Option<()> {
    if state.last_ns == 0 && tcp.data_received() != 0 && !tcp.is_mptcp() {
        socket::start_late(state, tcp);
    }
    // If `last_ns` is 0, the connection was never established, or the socket listens: nothing was counted.
    if state.last_ns != 0 && state.flags & SOCKET_FULLY_FOLDED == 0 {
        fold_now(state, tcp, true);
    }
    socket::event(state, |state| state.flags |= SOCKET_FINAL);
    store::end(state);
    None
}
