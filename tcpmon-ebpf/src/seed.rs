//! Seeding: starts to watch the sockets that are open when tcpmon starts.
#![expect(unsafe_code, reason = "the context of an iterator")]

use tcpmon_common::{
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
/// cookie: user space has them created before. A socket that it cannot reach is found with its next segment.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub extern "C" fn seed_with_cookies(ctx: *const TaskFile) -> i32 {
    // SAFETY: as above.
    if let Some((task, tcp)) = unsafe { kernel::open_socket(ctx) } {
        adopt(task, tcp, tcp.sock().known_cookie());
    }
    0
}

#[inline(always)]
fn adopt(task: Task, tcp: TcpSock, cookie: u64) -> Option<()> {
    let current = tcp.sock().state();
    let is_early = current == tcp_state::SYN_SENT || current == tcp_state::SYN_RECV;
    if is_early || current == tcp_state::CLOSE || cookie == 0 {
        return None;
    }
    let known = socket::known(tcp.sock()).is_some();
    let state = socket::known_or_new(tcp, || cookie)?;
    if !known {
        reader::opened_by(state, task);
        if current == tcp_state::LISTEN {
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
    if setting!(trace) != TRACE_NONE && setting!(filter_cgroups) == 0 && current != tcp_state::LISTEN {
        let slot = reader::enter(task)?;
        state.reader_slot = slot;
        state.reader_tid = task.tid();
        if setting!(trace) == TRACE_TIMESLICES {
            trace::seed(slot, state, tcp);
        }
    }
    None
}
