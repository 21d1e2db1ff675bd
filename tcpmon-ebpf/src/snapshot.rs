//! The iterators: seeding (what is open when tcpmon starts) and the snapshot (what every scrape reads).
#![expect(unsafe_code, reason = "the context of an iterator, and words that events write meanwhile")]

use aya_ebpf::helpers::generated::bpf_sock_from_file;
use tcpmon_common::{
    copy::{self, Shared, TRIES},
    header::{KIND_SNAPSHOT, VERSION},
    loss::Loss,
    pass::{PassControl, RECORDS, SHOW_ALL, SHOW_LISTENERS, WORK},
    reader::SLOT_NONE,
    settings::{TRACE_NONE, TRACE_TIMESLICES},
    socket::{
        LIVE_ENDED, LIVE_GROWTH, LIVE_NEW, LIVE_READER, SHOWN_RUNNING, SOCKET_COUNTED, SOCKET_FINAL, SOCKET_PASSIVE,
        SOCKET_PORT_CHOSEN, SocketRecord, SocketState,
    },
    tcp_state,
    tracepoint::{StorageEntry, TaskFile},
};

use crate::{
    kernel::{self, Sock, Task, TcpSock, full_barrier, setting, shared_barrier},
    maps, reader, socket, timeslice,
};

/// Visits every open file of every process, and starts to watch the TCP sockets among them. Runs once, before
/// `tcp_probe` and `tcp_rcv_space_adjust` are attached, so nothing else writes these states yet.
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
    // SAFETY: a typed file pointer; the result is null if the file is not a socket.
    let socket = unsafe { bpf_sock_from_file(ctx.file.cast()) } as *const u8;
    let tcp = Sock::of_socket(socket)?.tcp()?;
    let current = tcp.sock().state();
    if current == tcp_state::SYN_SENT || current == tcp_state::SYN_RECV || current == tcp_state::CLOSE {
        return None;
    }
    let state = maps::socket_or_new(tcp.sock())?;
    if state.cookie == 0 {
        state.cookie = tcp.sock().cookie();
        reader::opened_by(state, task);
        if current == tcp_state::LISTEN {
            state.flags |= socket::note_listener(tcp);
        } else {
            // The iterator visits a listening socket before its connections, because its descriptor and its process id
            // are lower.
            if maps::is_chosen(tcp.netns(), tcp.ports().0) {
                state.flags |= SOCKET_PASSIVE | SOCKET_PORT_CHOSEN;
            }
            socket::start_counting(state, tcp, kernel::now_ns(), false, || tcp.sock().cookie());
        }
    }
    if setting!(trace) != TRACE_NONE && setting!(filter_cgroups) == 0 && current != tcp_state::LISTEN {
        let slot = reader::enter(task)?;
        state.reader_slot = slot;
        state.reader_tid = task.tid();
        if setting!(trace) == TRACE_TIMESLICES {
            timeslice::seed(slot, state, tcp);
        }
    }
    None
}

/// Visits every watched socket of every network namespace. Takes no socket's lock: see [`tcpmon_common::copy`].
///
/// Shows sockets that have changed since the last pass or are not at rest. Returns 1 to end the system call before this
/// socket: the kernel visits it again in the next one.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
pub extern "C" fn snapshot(ctx: *const StorageEntry) -> i32 {
    // SAFETY: the kernel passes this context to an iterator of this kind.
    let ctx = unsafe { &*ctx };
    match maps::pass() {
        Some(pass) if pass.work >= WORK || pass.records >= RECORDS => 1,
        Some(pass) => {
            visit(ctx, pass);
            0
        }
        None => 0,
    }
}

#[inline(always)]
fn visit(ctx: &StorageEntry, pass: &mut PassControl) -> Option<()> {
    let sock = Sock::new(ctx.sk)?;
    // Read only once: for each copy of the pointer, the verifier tracks separately whether it is null.
    let value = ctx.value;
    if value.is_null() {
        return None;
    }
    pass.work += 1;
    // SAFETY: checked above; the kernel keeps the element alive during this call. Events may write to it meanwhile.
    let state = unsafe { &*value };
    let flags = volatile(&state.flags);
    if flags & SOCKET_FINAL != 0 {
        return None;
    }
    pass.living += (flags & SOCKET_COUNTED != 0) as u32;
    let tcp = sock.tcp()?;
    let index = state.shown.index();
    if let Some(index) = index {
        maps::mark_visited(index);
    }
    if pass.show != SHOW_ALL && index.is_some() && unchanged(state, tcp) {
        return None;
    }
    // A socket that is not established has nothing to show; what was shown of it before remains valid.
    let connected = volatile(&state.last_ns) != 0;
    // A connection that is about to be accepted starts as a copy of its listening socket, and has no cookie yet.
    let listens = !connected && volatile(&state.cookie) != 0 && tcp.sock().state() == tcp_state::LISTEN;
    // If its port was known when it started to listen, the port has been recorded already, or its loss has been
    // counted.
    if listens && index.is_none() && flags & SOCKET_PORT_CHOSEN == 0 {
        socket::note_listener(tcp);
    }
    if !connected && !listens || connected && pass.show == SHOW_LISTENERS {
        return None;
    }
    match index {
        Some(index) => show(value, pass, tcp, index),
        None => {
            let index = next_index(pass)?;
            show(value, pass, tcp, index)?;
            pass.taken += 1;
            Some(())
        }
    }
}

/// Whether the socket is as it was last shown, at rest, so that neither an event nor time has added to its totals.
///
/// What changes without an event is visible here: arrivals on a half-closed connection in `rcv_nxt`, out-of-order
/// arrivals in the memory, and windows and limits directly. `copied_seq` is not read, because a socket whose queue was
/// empty has nothing left to read. Each additional field would cost one more cache line of every socket in every pass.
#[inline(always)]
fn unchanged(state: &SocketState, tcp: TcpSock) -> bool {
    let shown = &state.shown;
    let sock = tcp.sock();
    // A listening socket has no data, and its state has no limit to compare with.
    volatile(&state.sequence) == shown.sequence
        && sock.rmem() == shown.rmem
        && (sock.rcvbuf() == volatile(&state.rcvbuf) || volatile(&state.last_ns) == 0)
        && sock.backlog() == 0
        && tcp.rcv_nxt() == volatile(&state.rcv_nxt)
        && tcp.window() == shown.window
        && (shown.index_plus_one & SHOWN_RUNNING == 0 || running(state))
}

/// Whether the reader is still in the timeslice of the last event, so that the end of that timeslice has yet to be
/// shown.
#[inline(always)]
fn running(state: &SocketState) -> bool {
    let edges = volatile(&state.reader_edges);
    let slot = volatile(&state.reader_slot);
    slot != SLOT_NONE && edges & 1 == 1 && socket::edges(slot, volatile(&state.reader_tid)) == Some(edges)
}

/// An index for a socket that has not been shown before; it is taken once the socket is shown.
#[inline(always)]
fn next_index(pass: &mut PassControl) -> Option<u32> {
    let taken = pass.taken;
    if taken >= pass.free_count || taken >= RECORDS {
        maps::count_loss(Loss::SocketIndex);
        return None;
    }
    Some(pass.free[(taken % RECORDS) as usize])
}

#[inline(always)]
fn show(value: *mut SocketState, pass: &mut PassControl, tcp: TcpSock, index: u32) -> Option<()> {
    let record = maps::record(pass.records)?;
    let mut source = SharedSocket { tcp, state: value, record };
    let mut tries = 0;
    let sequence = loop {
        if let Some(sequence) = copy::copy(&mut source) {
            break sequence;
        }
        tries += 1;
        if tries == TRIES {
            maps::count_loss(Loss::SnapshotTorn);
            return None;
        }
    };
    let record = source.record;
    // The socket may have stopped listening since it was looked at.
    if record.state.last_ns == 0 && record.live.state != tcp_state::LISTEN as u8 {
        return None;
    }
    record.header.kind = KIND_SNAPSHOT;
    record.header.version = VERSION;
    record.header.cpu = kernel::cpu();
    record.header.cookie = record.state.cookie;
    if record.state.shown.index_plus_one == 0 {
        record.live.flags |= LIVE_NEW;
    }
    record.state.shown.index_plus_one = index + 1;
    pass.records += 1;
    // Showing a socket is as much work as visiting it.
    pass.work += 1;

    // SAFETY: as in `visit`; nothing else writes `shown`.
    let shown = unsafe { &mut (*value).shown };
    let at_rest = record.is_at_rest();
    shown.sequence = if at_rest { sequence } else { 1 };
    shown.window = record.live.window;
    shown.rmem = record.live.rmem;
    shown.index_plus_one = (index + 1) | if running(&record.state) { SHOWN_RUNNING } else { 0 };
    // A socket that ends without totals has a final record only if it was shown. `finalize` marks the end, then looks
    // whether it was shown; here it is the other way round, so that at least one of the two notices.
    full_barrier();
    // SAFETY: as in `visit`.
    if volatile(unsafe { &(*value).flags }) & SOCKET_FINAL != 0 {
        record.live.flags |= LIVE_ENDED;
    }
    Some(())
}

/// Reads a word that an event may be writing, in its place among other reads.
#[inline(always)]
fn volatile<T: Copy>(word: &T) -> T {
    // SAFETY: a reference is valid for reads.
    unsafe { core::ptr::read_volatile(word) }
}

/// A socket, and where its copy goes.
struct SharedSocket {
    tcp: TcpSock,
    state: *const SocketState,
    record: &'static mut SocketRecord,
}

impl Shared for SharedSocket {
    #[inline(always)]
    fn sequence(&mut self) -> u32 {
        shared_barrier();
        // SAFETY: the element lives as long as the program runs.
        let sequence = unsafe { core::ptr::read_volatile(&raw const (*self.state).sequence) };
        shared_barrier();
        sequence
    }

    #[inline(always)]
    fn time(&mut self) {
        self.record.header.time_ns = kernel::now_ns();
        shared_barrier();
    }

    #[inline(always)]
    fn socket(&mut self) {
        let live = &mut self.record.live;
        self.tcp.live(live);
        // SAFETY: as in `sequence`.
        let state = unsafe { &*self.state };
        let slot = volatile(&state.reader_slot);
        live.reader_edges = 0;
        if slot != SLOT_NONE
            && let Some(edges) = socket::edges(slot, volatile(&state.reader_tid))
        {
            live.reader_edges = edges;
            live.flags |= LIVE_READER;
        }
        if socket::is_growth(state, self.tcp) {
            live.flags |= LIVE_GROWTH;
        }
        if live.state == tcp_state::LISTEN as u8 {
            live.flags |= socket::chosen(self.tcp);
        }
    }

    #[inline(always)]
    fn state(&mut self) {
        let words = size_of::<SocketState>() / size_of::<u64>();
        let (from, to) = (self.state.cast::<u64>(), (&raw mut self.record.state).cast::<u64>());
        let mut word = 0;
        while word < words {
            // SAFETY: both are aligned and as long as a state.
            unsafe { to.add(word).write_volatile(from.add(word).read_volatile()) };
            word += 1;
        }
    }
}
