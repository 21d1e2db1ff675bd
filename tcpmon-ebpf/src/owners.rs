//! Owners: which process has a socket open that nobody has read yet. User space runs it now and then.
#![expect(unsafe_code, reason = "the context of an iterator, and what it writes for user space")]

use aya_ebpf::helpers::generated::{bpf_seq_write, bpf_sock_from_file};
use tcpmon_common::{owner::Owner, socket::SOCKET_LISTENS, tracepoint::TaskFile};

use crate::{
    kernel::{Sock, Task},
    socket,
};

/// Visits every open file of every process, and writes an [`Owner`] for each socket that listens, and for each one with
/// data that nobody has read.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub extern "C" fn owners(ctx: *const TaskFile) -> i32 {
    // SAFETY: the kernel passes this context to an iterator of this kind.
    let ctx = unsafe { &*ctx };
    visit(ctx);
    0
}

#[inline(always)]
fn visit(ctx: &TaskFile) -> Option<()> {
    let task = Task::new(ctx.task)?;
    if ctx.file.is_null() {
        return None;
    }
    // SAFETY: a typed file pointer; the result is null if the file is not a socket.
    let socket = unsafe { bpf_sock_from_file(ctx.file.cast()) } as *const u8;
    let tcp = Sock::of_socket(socket)?.tcp()?;
    let state = socket::known(tcp.sock())?;
    let waits = state.last_ns != 0 && state.reader_tid == 0 && tcp.rcv_nxt() != tcp.copied_seq();
    if state.flags & SOCKET_LISTENS == 0 && !waits {
        return None;
    }
    let mut owner = Owner {
        cookie: state.cookie,
        process: task.process(),
        cgroup: task.cgroup(),
        tgid: task.process_id(),
        padding: 0,
    };
    // SAFETY: the kernel's own pointer; the helper copies the record. If there is no room, the kernel visits the file
    // again for the next read.
    unsafe {
        let output = (*ctx.meta).output;
        bpf_seq_write(output.cast(), (&raw mut owner).cast(), size_of::<Owner>() as u32)
    };
    None
}
