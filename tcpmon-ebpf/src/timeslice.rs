//! Tracing: each timeslice of a reader becomes one record for each socket that it reads.
//!
//! The reader remembers the sockets that it read last. They are sampled when it is scheduled in and when it is
//! scheduled out, with reads that cannot fault. The socket's lock cannot be taken there and is not needed: every number
//! is one word. Nothing here runs unless the setting `trace` is on: otherwise the verifier removes the code.
#![expect(unsafe_code, reason = "volatile accesses to words that other CPUs access meanwhile")]

use tcpmon_common::{
    causes::Causes,
    header::{Header, KIND_TIMESLICE, VERSION},
    loss::Loss,
    reader::SLOT_NONE,
    socket::{SocketLive, SocketState},
    timeslice::{QueueSample, TIMESLICE_CLOSED, TIMESLICE_HANDED_OVER, TIMESLICE_PARTIAL, Timeslice},
};

use crate::{
    kernel::{self, Remembered, Task, TcpSock, setting},
    maps,
    traced::{FIN_ACTIVATION, FIN_LAST, SOCKETS, TracedReader, TracedSocket},
};

/// Reads or writes a field in its place among other accesses, because others may look at it meanwhile: a switch on this
/// CPU, or another CPU.
macro_rules! ordered {
    ($field:expr) => {
        // SAFETY: a reference is valid for reads.
        unsafe { core::ptr::read_volatile(&$field) }
    };
    ($field:expr, $value:expr) => {
        // SAFETY: a reference is valid for writes.
        unsafe { core::ptr::write_volatile(&mut $field, $value) }
    };
}

/// Sets up a thread that becomes a traced reader in the middle of a timeslice.
#[inline(always)]
pub fn begin(slot: u32) {
    let Some(reader) = maps::traced(slot) else {
        return;
    };
    reader.open = 1;
    reader.activated_ns = kernel::now_ns();
    reader.deactivated_ns = 0;
    let mut i = 0;
    while i < SOCKETS {
        reader.sockets[i].cookie = 0;
        i += 1;
    }
}

/// Records that the socket's reader drained `bytes` from it. The queue started at `queue_start` before that, and
/// `previous` was the slot of the socket's previous reader.
#[inline(always)]
pub fn read(previous: u32, state: &mut SocketState, tcp: TcpSock, queue_start: u32, bytes: u32) -> Option<()> {
    let slot = state.reader_slot;
    // What is queued at a thread's first read arrived before that thread was known as the reader.
    let mut arrived_from = queue_start;
    if previous != slot
        && previous != SLOT_NONE
        && let Some(rcv_nxt) = hand_over(previous, state, tcp.sock().fin_received())
    {
        arrived_from = rcv_nxt;
    }
    let reader = maps::traced(slot)?;
    let activated_ns = reader.activated_ns;
    let i = find(reader, state.cookie).unwrap_or_else(|| free_or_oldest(reader));
    let socket = &mut reader.sockets[i & (SOCKETS - 1)];
    ordered!(socket.busy, 1);
    // Read again, because a switch may have freed the entry that was found.
    let cookie = ordered!(socket.cookie);
    let displaced = cookie != 0 && cookie != state.cookie && socket.used_ns == activated_ns;
    if cookie == state.cookie || remember(socket, state, tcp, queue_start, arrived_from).is_some() {
        if displaced {
            maps::count_loss(Loss::TimesliceSocket);
        }
        note(socket, state, tcp, activated_ns, bytes);
    }
    ordered!(socket.busy, 0);
    None
}

/// Adds a read of `bytes` to the timeslice.
#[inline(always)]
fn note(socket: &mut TracedSocket, state: &mut SocketState, tcp: TcpSock, activated_ns: u64, bytes: u32) {
    let fin = tcp.sock().fin_received();
    if socket.taken == state.cookie {
        // The socket came back before the timeslice ended: what arrived meanwhile belongs to the other thread.
        socket.arrived_bytes += advance(socket.counted_rcv_nxt, socket.taken_data_end);
        socket.taken = 0;
    } else {
        socket.arrived_bytes += advance(socket.counted_rcv_nxt, data_end(state.rcv_nxt, fin));
    }
    socket.counted_rcv_nxt = state.rcv_nxt;
    socket.used_ns = activated_ns;
    socket.read_bytes += bytes as u64;
    // From the state: what one reader's record reports is not reported again by another's.
    socket.causes.take(state);
    tcp.sample_queue(&mut socket.last);
    if fin {
        socket.fin |= FIN_LAST;
    }
}

/// Remembers a socket that the thread has open before tracing starts: the thread may be stuck and never read it.
#[inline(always)]
pub fn seed(slot: u32, state: &SocketState, tcp: TcpSock) -> Option<()> {
    let reader = maps::traced(slot)?;
    if find(reader, state.cookie).is_some() {
        return None;
    }
    let i = free_or_oldest(reader);
    let socket = &mut reader.sockets[i & (SOCKETS - 1)];
    remember(socket, state, tcp, state.copied_seq, tcp.rcv_nxt())
}

/// Handles another thread taking over the socket. Returns the sequence number up to which arrivals belong to the
/// previous reader. That is the current one if the previous reader is in a timeslice, which then ends for this socket;
/// otherwise it is the one at which that reader's last timeslice ended. A switch that comes in between, or on the
/// previous reader's CPU, sees either nothing of the takeover or all of it.
#[inline(always)]
fn hand_over(slot: u32, state: &SocketState, fin: bool) -> Option<u32> {
    let reader = maps::traced(slot)?;
    let open = ordered!(reader.open);
    let socket = &mut reader.sockets[find(reader, state.cookie)? & (SOCKETS - 1)];
    if open == 0 {
        ordered!(socket.cookie, 0);
        return Some(ordered!(socket.rcv_nxt));
    }
    ordered!(socket.taken_data_end, data_end(state.rcv_nxt, fin));
    ordered!(socket.taken, state.cookie);
    Some(state.rcv_nxt)
}

/// Where the data end if the queue ends at `rcv_nxt`: the FIN arrives last and takes a sequence number, but is not
/// data.
#[inline(always)]
fn data_end(rcv_nxt: u32, fin: bool) -> u32 {
    rcv_nxt.wrapping_sub(fin as u32)
}

/// Bytes from `from` to `to`; 0 if `to` is behind `from`.
#[inline(always)]
fn advance(from: u32, to: u32) -> u64 {
    let distance = to.wrapping_sub(from) as i32;
    if distance > 0 { distance as u64 } else { 0 }
}

#[inline(always)]
fn find(reader: &TracedReader, cookie: u64) -> Option<usize> {
    let mut i = 0;
    while i < SOCKETS {
        if reader.sockets[i].cookie == cookie {
            return Some(i);
        }
        i += 1;
    }
    None
}

#[inline(always)]
fn free_or_oldest(reader: &TracedReader) -> usize {
    let mut best = 0;
    let mut best_ns = u64::MAX;
    let mut i = 0;
    while i < SOCKETS {
        let used_ns = if reader.sockets[i].cookie == 0 { 0 } else { reader.sockets[i].used_ns };
        if used_ns < best_ns {
            best_ns = used_ns;
            best = i;
        }
        i += 1;
    }
    best
}

/// Fills an entry; `None` if the port filters include neither of the socket's ports.
#[inline(always)]
fn remember(
    socket: &mut TracedSocket,
    state: &SocketState,
    tcp: TcpSock,
    queue_start: u32,
    arrived_from: u32,
) -> Option<()> {
    if setting!(filter_ports) != 0 {
        let (local, remote) = tcp.ports();
        if !maps::filter_has_port(local) && !maps::filter_has_port(remote) {
            return None;
        }
    }
    // The entry is free until it is completely filled.
    ordered!(socket.cookie, 0);
    socket.sock = tcp.sock().pointer() as u64;
    socket.used_ns = 0;
    socket.fin = if tcp.sock().fin_received() { FIN_ACTIVATION | FIN_LAST } else { 0 };
    tcp.sample_queue(&mut socket.last);
    socket.activation = socket.last;
    socket.activation.copied_seq = queue_start;
    socket.rcv_nxt = arrived_from;
    socket.counted_rcv_nxt = socket.last.rcv_nxt;
    socket.arrived_bytes = 0;
    socket.read_bytes = 0;
    socket.causes = Causes::ZERO;
    socket.taken = 0;
    socket.flags = TIMESLICE_PARTIAL;
    let mut live = SocketLive::ZERO;
    tcp.address(&mut live);
    socket.netns = live.netns;
    socket.family = live.family;
    (socket.local_port, socket.remote_port) = tcp.ports();
    socket.local_address = live.local_address;
    socket.remote_address = live.remote_address;
    ordered!(socket.cookie, state.cookie);
    Some(())
}

/// Samples a socket whose arrivals up to `counted_rcv_nxt` have been counted; returns whether the FIN has been
/// received.
///
/// The kernel first advances `rcv_nxt` and only then marks that this was for a FIN. Another CPU completes both while
/// the sample is taken. A reader that is switched out while it processes the backlog does not complete them before it
/// runs again, so a byte that may be a FIN is left to the next sample.
#[inline(always)]
fn sample(sock: Remembered, counted_rcv_nxt: u32, queue: &mut QueueSample) -> bool {
    sock.sample_queue(queue);
    let owned = sock.owned_by_user();
    let fin = sock.fin_received();
    if fin {
        queue.rcv_nxt = sock.rcv_nxt();
    } else if owned && queue.rcv_nxt != counted_rcv_nxt && queue.rcv_nxt != queue.copied_seq {
        queue.rcv_nxt = queue.rcv_nxt.wrapping_sub(1);
    }
    fin
}

/// The reader in `slot` is scheduled in.
#[inline(always)]
pub fn activate(slot: u32) -> Option<()> {
    let reader = maps::traced(slot)?;
    ordered!(reader.open, 1);
    reader.activated_ns = kernel::now_ns();
    let mut i = 0;
    while i < SOCKETS {
        let socket = &mut reader.sockets[i];
        i += 1;
        // If the socket was taken over just after the last deactivation checked for that, the next deactivation reports
        // it.
        if socket.cookie == 0 || socket.busy != 0 || socket.taken == socket.cookie {
            continue;
        }
        let sock = Remembered(socket.sock);
        if sock.cookie() != socket.cookie {
            socket.cookie = 0;
            continue;
        }
        let fin = sample(sock, socket.rcv_nxt, &mut socket.activation);
        socket.fin = (socket.fin & FIN_LAST) | if fin { FIN_ACTIVATION } else { 0 };
        socket.counted_rcv_nxt = socket.activation.rcv_nxt;
        socket.arrived_bytes = 0;
        socket.flags = 0;
    }
    None
}

/// The reader in `slot` is scheduled out.
#[inline(always)]
pub fn deactivate(slot: u32, task: Task, on_cpu_ns: u64, run_queue_wait_ns: u64, end: u32) -> Option<()> {
    let reader = maps::traced(slot)?;
    let now = kernel::now_ns();
    // At the start of a trace, or after a switch that was not seen, it is unknown when the thread was off the CPU.
    let off_cpu_ns = if reader.deactivated_ns == 0 || reader.activated_ns < reader.deactivated_ns {
        run_queue_wait_ns
    } else {
        reader.activated_ns - reader.deactivated_ns
    };
    let edge = Edge {
        now,
        activated_ns: if reader.activated_ns < reader.deactivated_ns {
            now.wrapping_sub(on_cpu_ns)
        } else {
            reader.activated_ns
        },
        on_cpu_ns,
        run_queue_wait_ns,
        sleep_ns: off_cpu_ns.saturating_sub(run_queue_wait_ns),
        end: end as u16,
    };
    let mut i = 0;
    while i < SOCKETS {
        let socket = &mut reader.sockets[i];
        i += 1;
        if socket.cookie == 0 {
            continue;
        }
        if socket.busy != 0 {
            socket.flags = TIMESLICE_PARTIAL;
            maps::count_loss(Loss::TimesliceEdge);
            continue;
        }
        close(socket, task, &edge);
    }
    reader.deactivated_ns = now;
    ordered!(reader.open, 0);
    None
}

/// What all records of one timeslice have in common.
struct Edge {
    now: u64,
    activated_ns: u64,
    on_cpu_ns: u64,
    run_queue_wait_ns: u64,
    sleep_ns: u64,
    end: u16,
}

/// Sends the record of one socket, if there is anything to report, and starts the next timeslice.
#[inline(always)]
fn close(socket: &mut TracedSocket, task: Task, edge: &Edge) -> Option<()> {
    let sock = Remembered(socket.sock);
    // All fields are read first and evaluated afterwards, so that the verifier walks the reads only once.
    let mut queue = QueueSample::ZERO;
    let mut fin = sample(sock, socket.counted_rcv_nxt, &mut queue);
    let rcv_rtt_us = sock.rcv_rtt_us();
    let rcv_ssthresh = sock.rcv_ssthresh();
    let window_clamp = sock.window_clamp();
    let fin_activation = socket.fin & FIN_ACTIVATION != 0;
    let closed = sock.cookie() != socket.cookie;
    if closed {
        queue = socket.last;
        fin = socket.fin & FIN_LAST != 0;
    }
    let mut end = data_end(queue.rcv_nxt, fin);
    let queued = end.wrapping_sub(queue.copied_seq) as i32;
    // Read after the sample: what the sample shows then arrived before a takeover that is not seen here.
    let taken = ordered!(socket.taken) == socket.cookie;
    if taken {
        end = socket.taken_data_end;
    }
    let arrived_off = advance(socket.rcv_nxt, data_end(socket.activation.rcv_nxt, fin_activation));
    let arrived_on = socket.arrived_bytes + advance(socket.counted_rcv_nxt, end);

    if (arrived_off | arrived_on | socket.read_bytes != 0 || queued > 0)
        && let Some(record) = maps::reserve::<Timeslice>(Loss::TimesliceRecord)
    {
        record.header = Header {
            kind: KIND_TIMESLICE,
            version: VERSION,
            cpu: kernel::cpu(),
            time_ns: edge.now,
            cookie: socket.cookie,
        };
        record.activated_ns = edge.activated_ns;
        record.on_cpu_ns = edge.on_cpu_ns;
        record.run_queue_wait_ns = edge.run_queue_wait_ns;
        record.sleep_ns = edge.sleep_ns;
        record.activation = socket.activation;
        record.deactivation = queue;
        record.arrived_off_cpu_bytes = arrived_off;
        record.arrived_on_cpu_bytes = arrived_on;
        record.read_bytes = socket.read_bytes;
        record.causes = socket.causes;
        record.rcv_rtt_us = rcv_rtt_us;
        record.rcv_ssthresh = rcv_ssthresh;
        record.window_clamp = window_clamp;
        record.tid = task.tid();
        record.tgid = task.tgid();
        record.comm = task.comm();
        record.netns = socket.netns;
        record.end = edge.end;
        record.flags = socket.flags | (closed as u16 * TIMESLICE_CLOSED) | (taken as u16 * TIMESLICE_HANDED_OVER);
        record.family = socket.family;
        record.local_port = socket.local_port;
        record.remote_port = socket.remote_port;
        record.fin = fin_activation as u16 | (fin as u16) << 1;
        record.local_address = socket.local_address;
        record.remote_address = socket.remote_address;
        record.padding = 0;
        maps::submit(record);
    }
    if closed || taken {
        socket.cookie = 0;
        return None;
    }
    start_next(socket, queue, fin);
    None
}

/// Starts the next timeslice with the queue as it is now, in case its activation is not seen.
#[inline(always)]
fn start_next(socket: &mut TracedSocket, queue: QueueSample, fin: bool) {
    socket.activation = queue;
    socket.rcv_nxt = queue.rcv_nxt;
    socket.counted_rcv_nxt = queue.rcv_nxt;
    socket.arrived_bytes = 0;
    socket.read_bytes = 0;
    socket.causes = Causes::ZERO;
    socket.flags = TIMESLICE_PARTIAL;
    socket.fin = (socket.fin & FIN_LAST) | if fin { FIN_ACTIVATION } else { 0 };
}
