//! `inet_sock_set_state` and `tcp_destroy_sock`: where a connection begins and ends.
//!
//! The kernel does not run a program inside itself: while it looks at one connection, an interrupt may come and bring
//! hundreds of others to life or to death on the same CPU, none of which it sees. So each program here has a twin on the
//! same tracepoint, which takes what was not taken. Where tracepoints can be preempted (7.2), threads that wait for a CPU
//! can hold up both. There a callback tells the changes of state, too, and the end of a connection that was closed already
//! is taken at the last of them.

use aya_ebpf::{
    bindings::{
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB,
        BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_SOCK_OPS_TCP_LISTEN_CB,
    },
    macros::{btf_tracepoint, sock_ops},
    programs::{BtfTracePointContext, SockOpsContext},
};
use tcpmon_common::{
    fold::Cause,
    header::{KIND_FINAL, KIND_LISTENER},
    histogram::{FILL_BINS, FILLS},
    lives::{LIVES_ENDED, LIVES_OPENED, LIVES_OPENED_AGAIN},
    loss::Loss,
    socket::{SOCKET_ACTIVE, SOCKET_BEGUN, SOCKET_FINAL, SOCKET_PASSIVE, SocketCounters, SocketState},
};

use crate::{
    kernel::{self, Sock, Task, TcpSock, setting, state},
    maps, reader, socket,
};

#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn inet_sock_set_state(ctx: BtfTracePointContext) -> i32 {
    traced(&ctx, Teller::First);
    0
}

#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn inet_sock_set_state_again(ctx: BtfTracePointContext) -> i32 {
    traced(&ctx, Teller::Twin);
    0
}

#[inline(always)]
fn traced(ctx: &BtfTracePointContext, teller: Teller) -> Option<()> {
    let (old, new) = (ctx.arg::<u64>(1) as u32, ctx.arg::<u64>(2) as u32);
    let sock = Sock::argument::<0>(ctx);
    change(sock, old, new, || sock.tcp(), || sock.cookie(), teller)
}

/// Who tells that a socket's state changes: all do the same, and each change is counted by one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Teller {
    First,
    Twin,
    Callback,
}

/// A socket's state changes. How to learn the rest depends on the kind of program.
#[inline(always)]
fn change(
    sock: Sock,
    old: u32,
    new: u32,
    tcp: impl Fn() -> Option<TcpSock>,
    cookie: impl FnOnce() -> u64,
    teller: Teller,
) -> Option<()> {
    match new {
        state::SYN_SENT | state::LISTEN => open(tcp()?, new, cookie, teller),
        // Counted beside what the kernel counts as opened.
        state::SYN_RECV => {
            tcp()?;
            count_opened(teller)
        }
        state::ESTABLISHED => establish(tcp()?, old, cookie, teller),
        // What somebody can still read is not over.
        state::CLOSE if sock.orphaned() && setting!(trace) == 0 => end(tcp()?, cookie),
        _ => None,
    }
}

/// connect() and listen() run in the process that owns the socket. A socket may connect again after a disconnect, so
/// counting starts anew.
#[inline(always)]
fn open(tcp: TcpSock, new: u32, cookie: impl FnOnce() -> u64, teller: Teller) -> Option<()> {
    if new == state::SYN_SENT {
        count_opened(teller);
        // What listens for MPTCP accepts plain connections, too.
        if tcp.is_mptcp() {
            return None;
        }
    }
    let state = maps::socket_or_new(tcp.sock())?;
    let flags = if new == state::SYN_SENT { SOCKET_ACTIVE } else { 0 };
    // The twin has done it.
    let begun = state.flags & SOCKET_BEGUN;
    if state.cookie != 0 && state.last_ns == 0 && state.flags == flags | begun {
        return None;
    }
    let cookie = cookie();
    socket::event(state, |state| {
        state.flags = flags | begun;
        state.cookie = cookie;
        state.last_ns = 0;
        reader::opened_by(state, Task::current());
    });
    // Without it, connections that come and go between two scrapes and are never read would have no process.
    if new == state::LISTEN && setting!(trace) == 0 {
        socket::send(KIND_LISTENER, Loss::ListenerRecord, state, tcp, kernel::now_ns());
    }
    None
}

#[inline(always)]
fn count_opened(teller: Teller) -> Option<()> {
    match teller {
        Teller::First => maps::count_life(LIVES_OPENED),
        Teller::Twin => maps::count_life(LIVES_OPENED_AGAIN),
        Teller::Callback => {}
    }
    None
}

#[inline(always)]
fn establish(tcp: TcpSock, old: u32, cookie: impl FnOnce() -> u64, teller: Teller) -> Option<()> {
    if tcp.is_mptcp() {
        if teller == Teller::First {
            maps::count_mptcp();
        }
        return None;
    }
    let state = maps::socket_or_new(tcp.sock())?;
    let opened =
        if old == state::SYN_RECV && state.flags & SOCKET_ACTIVE == 0 { SOCKET_PASSIVE } else { SOCKET_ACTIVE };
    if state.flags & opened == 0 {
        socket::event(state, |state| state.flags |= opened);
    }
    // Already set by the twin, or where data of the handshake (TFO) were read before it was complete.
    if state.last_ns == 0 {
        socket::anchor(state, tcp, kernel::now_ns(), true, cookie);
    }
    None
}

/// The same changes as a callback of control groups tells them, just before the tracepoint. A program of this kind is run
/// even while another run of it is held up.
#[sock_ops]
pub fn sock_ops(ctx: SockOpsContext) -> u32 {
    called_back(&ctx);
    // What others have to say stands.
    1
}

#[inline(always)]
fn called_back(ctx: &SockOpsContext) -> Option<()> {
    let (old, new) = match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => (state::CLOSE, state::SYN_SENT),
        BPF_SOCK_OPS_TCP_LISTEN_CB => (state::CLOSE, state::LISTEN),
        // Both come before the kernel looks whether changes of state are wanted; a passive one is established after it.
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => return ask_for_changes(ctx),
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => {
            ask_for_changes(ctx);
            (state::SYN_SENT, state::ESTABLISHED)
        }
        BPF_SOCK_OPS_STATE_CB => (ctx.arg(0), ctx.arg(1)),
        _ => return None,
    };
    let tcp = kernel::callback_tcp(ctx)?;
    change(tcp.sock(), old, new, || Some(tcp), || kernel::callback_cookie(ctx), Teller::Callback)
}

#[inline(always)]
fn ask_for_changes(ctx: &SockOpsContext) -> Option<()> {
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
    let sock = Sock::argument::<0>(ctx);
    end(sock.tcp()?, || sock.cookie())
}

#[inline(always)]
fn end(tcp: TcpSock, cookie: impl FnOnce() -> u64) -> Option<()> {
    conclude(state_of(tcp)?, tcp, cookie);
    if setting!(delete_ended) != 0 {
        maps::delete_socket(tcp.sock());
    }
    None
}

/// The state of a socket that ends; made now for one that has received data and was never met. Where states are deleted
/// here, having none means to have been concluded.
#[inline(always)]
fn state_of(tcp: TcpSock) -> Option<&'static mut SocketState> {
    if let Some(state) = maps::socket(tcp.sock()) {
        return Some(state);
    }
    if setting!(delete_ended) != 0 || setting!(trace) != 0 || tcp.data_received() == 0 || tcp.is_mptcp() {
        return None;
    }
    maps::socket_or_new(tcp.sock())
}

#[inline(always)]
fn conclude(state: &mut SocketState, tcp: TcpSock, cookie: impl FnOnce() -> u64) -> Option<()> {
    if state.flags & SOCKET_FINAL != 0 {
        return None;
    }
    if state.last_ns == 0 && tcp.data_received() != 0 {
        socket::meet_late(state, tcp, cookie);
    }
    let now = kernel::now_ns();
    let seen = socket::look(state, tcp, now);
    socket::event(state, |state| {
        // Otherwise it was never established, or is a listener: nothing was counted.
        if state.last_ns != 0 {
            socket::fold(state, &seen, Cause::Event);
        }
        state.flags |= SOCKET_FINAL;
    });
    if state.flags & SOCKET_BEGUN != 0 {
        maps::count_life(LIVES_ENDED);
    }
    // There is nothing to add to any sum (the sending side of a transfer), and nobody has seen it.
    let counters = &state.counters;
    if counters.received_bytes | counters.segments | counters.zero_window_ns == 0 && state.shown.index().is_none() {
        return None;
    }
    if socket::send(KIND_FINAL, Loss::FinalRecord, state, tcp, now).is_none() {
        // First the mark: whoever finds the totals among the sums knows whose they are.
        if let Some(index) = state.shown.index() {
            maps::fell(index);
        }
        kernel::barrier();
        keep(&state.counters);
    }
    None
}

/// Adds the totals to this CPU's sums, so that they are right although the record is lost.
#[inline(always)]
fn keep(counters: &SocketCounters) -> Option<()> {
    let sums = maps::fallen()?;
    sums.received_bytes += counters.received_bytes;
    sums.read_bytes += counters.read_bytes;
    sums.segments += counters.segments;
    sums.queue_byte_ticks += counters.queue_byte_ticks;
    sums.zero_window_ns += counters.zero_window_ns;
    sums.growths += counters.growths;
    sums.arrived_on_cpu_bytes += counters.arrived_on_cpu_bytes;
    sums.arrived_off_cpu_bytes += counters.arrived_off_cpu_bytes;
    sums.timeslice_read_bytes += counters.timeslice_read_bytes;
    let mut which = 0;
    while which < FILLS {
        sums.fill_sums[which] += counters.fill_sums[which];
        let mut bin = 0;
        while bin < FILL_BINS {
            sums.fills[bin][which] = sums.fills[bin][which].wrapping_add(counters.fills[bin][which]);
            bin += 1;
        }
        which += 1;
    }
    None
}
