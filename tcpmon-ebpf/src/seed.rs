//! Seeding: starts to watch the sockets that are open when tcpmon starts.
#![expect(unsafe_code, reason = "the context of an iterator")]

use tcpmon_common::{
    owner::Descriptor,
    settings::{TRACE_NONE, TRACE_TIMESLICES},
    socket::{SOCKET_LISTENS, SOCKET_PASSIVE, SOCKET_PORT_CHOSEN},
    tcp_state,
    tracepoint::TaskFile,
};

use crate::{
    kernel::{self, Task, TcpSock, setting},
    maps, reader, socket, trace,
};

/// Visits every open file of every process, and starts to watch the TCP sockets among them. Runs once, before
/// `tcp_probe` and `tcp_rcv_space_adjust` are attached, so nothing else writes these states yet.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub extern "C" fn seed(ctx: *const TaskFile) -> i32 {
    // SAFETY: the kernel passes this context to an iterator of this kind.
    if let Some((task, tcp)) = unsafe { kernel::open_socket(ctx) } {
        adopt(task, tcp, tcp.sock().cookie());
    }
    0
}

/// The same for a kernel that lets no program pass the socket of a file to a helper, so that none can create its
/// cookie: user space asks for them before. A socket that it cannot reach is found with its next segment.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub extern "C" fn seed_with_cookies(ctx: *const TaskFile) -> i32 {
    // SAFETY: as above.
    if let Some((task, tcp)) = unsafe { kernel::open_socket(ctx) } {
        adopt(task, tcp, tcp.sock().known_cookie());
    }
    0
}

/// Writes a [`Descriptor`] for each of the sockets that [`seed_with_cookies`] leaves out for lack of a cookie.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub extern "C" fn without_cookie(ctx: *const TaskFile) -> i32 {
    // SAFETY: as above.
    unsafe {
        if let Some((task, tcp)) = kernel::open_socket(ctx)
            && is_begun(tcp)
            && tcp.sock().known_cookie() == 0
        {
            kernel::tell(ctx, Descriptor { tgid: task.process_id(), number: (*ctx).fd as u32 });
        }
    }
    0
}

/// Whether it listens, or is a connection that can have received something.
#[inline(always)]
fn is_begun(tcp: TcpSock) -> bool {
    let current = tcp.sock().state();
    current != tcp_state::SYN_SENT && current != tcp_state::SYN_RECV && current != tcp_state::CLOSE
}

#[inline(always)]
fn adopt(task: Task, tcp: TcpSock, cookie: u64) -> Option<()> {
    if !is_begun(tcp) || cookie == 0 {
        return None;
    }
    let listens = tcp.sock().state() == tcp_state::LISTEN;
    let known = socket::known(tcp.sock()).is_some();
    let state = socket::known_or_new(tcp, || cookie)?;
    if !known {
        reader::opened_by(state, task);
        if listens {
            tcp.identity(&mut state.identity);
            state.flags |= SOCKET_LISTENS;
            if socket::is_port_chosen(tcp.sock().port_chosen(), tcp.ports().0) {
                state.flags |= SOCKET_PORT_CHOSEN;
                maps::note_chosen(tcp);
            }
        } else {
            // The iterator visits a listening socket before its connections, because its descriptor and its process id
            // are lower.
            if maps::was_chosen(tcp) {
                state.flags |= SOCKET_PASSIVE | SOCKET_PORT_CHOSEN;
            }
            socket::start_counting(state, tcp, kernel::now_ns(), false, None);
        }
    }
    if setting!(trace) != TRACE_NONE && setting!(filter_cgroups) == 0 && !listens {
        let slot = reader::enter(task)?;
        state.reader_slot = slot;
        state.reader_tid = task.tid();
        if setting!(trace) == TRACE_TIMESLICES {
            trace::seed(slot, state, tcp);
        }
    }
    None
}
