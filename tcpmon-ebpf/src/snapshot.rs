//! The iterators: seeding (what is open when tcpmon starts) and the snapshot (what every scrape reads).

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_seq_write, bpf_sock_from_file};
use tcpmon_common::{
    header::{Header, KIND_SNAPSHOT, VERSION},
    reader::SLOT_NONE,
    socket::{LIVE_AUTOTUNED, LIVE_READER, SOCKET_FINAL, SocketLive, SocketState},
};

use crate::{
    kernel::{self, Sock, Task, setting, state},
    maps, reader, socket, timeslice,
};

/// `struct bpf_iter_meta`.
#[repr(C)]
struct Meta {
    seq: *mut c_void,
    session_id: u64,
    seq_num: u64,
}

/// `struct bpf_iter__task_file`.
#[repr(C)]
pub struct TaskFile {
    meta: *const Meta,
    task: *const u8,
    fd: u64,
    file: *mut c_void,
}

/// `struct bpf_iter__bpf_sk_storage_map`.
#[repr(C)]
pub struct StorageEntry {
    meta: *const Meta,
    map: *const c_void,
    sock: *const u8,
    value: *const SocketState,
}

/// Every open file of every process: begins to watch the TCP sockets among them. Runs once, before `tcp_probe` and
/// `tcp_rcv_space_adjust` are attached, so nothing else writes these states yet.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub extern "C" fn seed(ctx: *const TaskFile) -> i32 {
    // SAFETY: the kernel passes this context to an iterator of this kind.
    let ctx = unsafe { &*ctx };
    adopt(ctx);
    0
}

#[inline(always)]
fn adopt(ctx: &TaskFile) -> Option<()> {
    let task = Task::new(ctx.task)?;
    if ctx.file.is_null() {
        return None;
    }
    // SAFETY: a typed file pointer; null when the file is no socket.
    let socket = unsafe { bpf_sock_from_file(ctx.file.cast()) } as *const u8;
    let tcp = Sock::of_socket(socket)?.tcp()?;
    let tcp_state = tcp.sock().state();
    if tcp_state == state::SYN_SENT || tcp_state == state::SYN_RECV || tcp_state == state::CLOSE {
        return None;
    }
    let state = maps::socket_or_new(tcp.sock())?;
    if state.cookie == 0 {
        state.cookie = tcp.sock().cookie();
        reader::opened_by(state, task);
        if tcp_state != state::LISTEN {
            socket::anchor(state, tcp, kernel::now_ns(), false, || tcp.sock().cookie());
        }
    }
    if setting!(trace) != 0 && setting!(filter_cgroups) == 0 && tcp_state != state::LISTEN {
        let slot = reader::enter(task)?;
        state.reader_slot = slot;
        state.reader_tid = task.tid();
        timeslice::seed(slot, state, tcp);
    }
    None
}

/// Every watched socket of every network namespace. Takes no socket's lock: the state's sequence number tells user
/// space when an event was being folded meanwhile.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
pub extern "C" fn snapshot(ctx: *const StorageEntry) -> i32 {
    // SAFETY: the kernel passes this context to an iterator of this kind.
    let ctx = unsafe { &*ctx };
    show(ctx);
    0
}

#[inline(always)]
fn show(ctx: &StorageEntry) -> Option<()> {
    let tcp = Sock::new(ctx.sock)?.tcp()?;
    if ctx.value.is_null() {
        return None;
    }
    // SAFETY: checked above; the kernel keeps the element alive during this call.
    let state = unsafe { &*ctx.value };
    if state.flags & SOCKET_FINAL != 0 {
        return None;
    }
    let mut record = Head {
        header: Header {
            kind: KIND_SNAPSHOT,
            version: VERSION,
            cpu: kernel::cpu(),
            time_ns: kernel::now_ns(),
            cookie: state.cookie,
        },
        live: SocketLive::ZERO,
    };
    record.live.sequence = state.sequence;
    tcp.live(&mut record.live);
    if state.reader_slot != SLOT_NONE
        && let Some(switches) = socket::switches(state.reader_slot, state.reader_tid)
    {
        record.live.reader_switches = switches;
        record.live.flags |= LIVE_READER;
    }
    if socket::autotuned(state, tcp) {
        record.live.flags |= LIVE_AUTOTUNED;
    }
    // SAFETY: both sources are as long as said. If the second does not fit, the kernel drops both and comes again.
    unsafe {
        let seq = (*ctx.meta).seq;
        bpf_seq_write(seq.cast(), (&raw const record).cast(), size_of::<Head>() as u32);
        bpf_seq_write(seq.cast(), ctx.value.cast(), size_of::<SocketState>() as u32);
    }
    None
}

/// The part of a [`tcpmon_common::socket::SocketRecord`] before its state: the two are written apart, because
/// together they exceed the stack.
#[repr(C)]
struct Head {
    header: Header,
    live: SocketLive,
}

const _: () = assert!(size_of::<Head>() + size_of::<SocketState>() == size_of::<tcpmon_common::socket::SocketRecord>());
