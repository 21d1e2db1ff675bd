//! Owners: which processes have open a socket with unread data. User space runs this iterator from time to time.
#![expect(unsafe_code, reason = "the context of an iterator, and what it writes for user space")]

use tcpmon_common::{owner::Owner, socket::SOCKET_LISTENS, tracepoint::TaskFile};

use crate::{
    kernel::{self, Task, TcpSock},
    socket,
};

/// Visits every open file of every process, and writes an [`Owner`] for each listening socket and each socket with
/// unread data.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub extern "C" fn owners(ctx: *const TaskFile) -> i32 {
    // SAFETY: the kernel passes this context to an iterator of this kind.
    if let Some((task, tcp)) = unsafe { kernel::open_socket(ctx) } {
        write_owner(ctx, task, tcp);
    }
    0
}

#[inline(always)]
fn write_owner(ctx: *const TaskFile, task: Task, tcp: TcpSock) -> Option<()> {
    let state = socket::known(tcp.sock())?;
    let waits = state.last_ns != 0 && tcp.rcv_nxt() != tcp.copied_seq();
    if state.flags & SOCKET_LISTENS == 0 && !waits {
        return None;
    }
    let owner = Owner {
        cookie: state.cookie,
        process: task.process(),
        cgroup: task.cgroup(),
        tgid: task.process_id(),
        padding: 0,
    };
    // SAFETY: the kernel's own context.
    unsafe { kernel::tell(ctx, owner) };
    None
}
