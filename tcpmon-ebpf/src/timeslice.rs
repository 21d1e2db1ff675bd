//! Tracing: each timeslice of a reader becomes one record per socket that it reads.
//!
//! The reader remembers the sockets that it read last. When it gets the CPU and when it loses it, each of them is
//! photographed by reads that cannot fault (the socket's lock cannot be taken there, and is not needed: every number
//! is one word). Nothing here runs unless the setting `trace` is on: the verifier drops the code.

use tcpmon_common::{
    header::{Header, KIND_TIMESLICE, VERSION},
    loss::Loss,
    reader::SLOT_NONE,
    socket::{SocketLive, SocketState},
    timeslice::{QueuePhoto, TIMESLICE_CLOSED, TIMESLICE_HANDED_OVER, TIMESLICE_PARTIAL, Timeslice},
};

use crate::{
    kernel::{self, Remembered, Task, TcpSock, setting},
    maps,
};

/// Sockets remembered per reader.
const SOCKETS: usize = 8;

/// What is traced of one reader; value of the array `TRACED`.
#[repr(C)]
pub struct TracedReader {
    /// When it got the CPU, ns.
    activated_ns: u64,
    /// When it lost the CPU before that, ns; 0 when that was not seen.
    deactivated_ns: u64,
    sockets: [TracedSocket; SOCKETS],
}

/// One socket of a traced reader.
#[repr(C)]
struct TracedSocket {
    /// Address of the `struct sock`.
    sock: u64,
    /// 0 when the entry is free.
    cookie: u64,
    /// `activated_ns` of the timeslice in which it was read last.
    used_ns: u64,
    /// At the activation.
    activation: QueuePhoto,
    /// At the last read: stands for the deactivation when the socket is gone by then.
    last: QueuePhoto,
    /// Bytes drained in this timeslice.
    read_bytes: u64,
    /// Bytes that arrived in this timeslice, up to `counted_rcv_nxt`.
    arrived_bytes: u64,
    /// `rcv_nxt` when the reader's previous timeslice ended.
    rcv_nxt: u32,
    /// `rcv_nxt` up to which arrivals of this timeslice are counted: a reader that is never switched can take more
    /// than sequence numbers hold.
    counted_rcv_nxt: u32,
    netns: u32,
    /// `TIMESLICE_` flags.
    flags: u16,
    /// `FIN_` bits.
    fin: u16,
    family: u16,
    local_port: u16,
    remote_port: u16,
    padding: u16,
    local_address: [u8; 16],
    remote_address: [u8; 16],
}

/// The FIN had been received when the previous timeslice ended.
const FIN_BEFORE: u16 = 1;
/// ... when this one began.
const FIN_ACTIVATION: u16 = 2;
/// ... when another thread took the socket over.
const FIN_HANDED: u16 = 4;

/// A thread becomes a traced reader, in the middle of a timeslice.
#[inline(always)]
pub fn begin(slot: u32) {
    let Some(reader) = maps::traced(slot) else {
        return;
    };
    reader.activated_ns = kernel::now_ns();
    reader.deactivated_ns = 0;
    let mut i = 0;
    while i < SOCKETS {
        reader.sockets[i].cookie = 0;
        i += 1;
    }
}

/// The socket's reader drained `bytes` from it; the queue began at `queue_start` before, and `previous` was the slot
/// of its last reader.
#[inline(always)]
pub fn read(previous: u32, state: &SocketState, tcp: TcpSock, queue_start: u32, bytes: u32) -> Option<()> {
    let slot = state.reader_slot;
    // What is queued at a first read arrived before its thread was known as the reader.
    let mut arrived_from = queue_start;
    if previous != slot
        && previous != SLOT_NONE
        && let Some(rcv_nxt) = hand_over(previous, state, tcp)
    {
        arrived_from = rcv_nxt;
    }
    let reader = maps::traced(slot)?;
    let activated_ns = reader.activated_ns;
    let socket = match find(reader, state.cookie) {
        Some(i) => &mut reader.sockets[i & (SOCKETS - 1)],
        None => {
            let i = free_or_oldest(reader);
            let socket = &mut reader.sockets[i & (SOCKETS - 1)];
            let displaced = socket.cookie != 0 && socket.used_ns == activated_ns;
            remember(socket, state, tcp, queue_start, arrived_from)?;
            if displaced {
                maps::lose(Loss::TimesliceSocket);
            }
            socket
        }
    };
    if socket.flags & TIMESLICE_HANDED_OVER != 0 {
        // It came back within the timeslice: what arrived meanwhile was the other thread's.
        socket.flags &= !TIMESLICE_HANDED_OVER;
    } else {
        socket.arrived_bytes += advance(socket.counted_rcv_nxt, state.rcv_nxt);
    }
    socket.counted_rcv_nxt = state.rcv_nxt;
    socket.used_ns = activated_ns;
    socket.read_bytes += bytes as u64;
    tcp.photo(&mut socket.last);
    None
}

/// Before tracing begins: the thread has the socket open, and it may be stuck and never read.
#[inline(always)]
pub fn seed(slot: u32, state: &SocketState, tcp: TcpSock) -> Option<()> {
    let reader = maps::traced(slot)?;
    if find(reader, state.cookie).is_some() {
        return None;
    }
    let i = free_or_oldest(reader);
    let socket = &mut reader.sockets[i & (SOCKETS - 1)];
    remember(socket, state, tcp, state.copied_seq, state.rcv_nxt)
}

/// Another thread takes over the socket. Returns up to where arrivals are the former reader's: until now, if it is in
/// a timeslice, which then ends for this socket; else until its last one ended.
#[inline(always)]
fn hand_over(slot: u32, state: &SocketState, tcp: TcpSock) -> Option<u32> {
    let running = maps::reader(slot)?.switches & 1 == 1;
    let reader = maps::traced(slot)?;
    let socket = &mut reader.sockets[find(reader, state.cookie)? & (SOCKETS - 1)];
    if !running {
        socket.cookie = 0;
        return Some(socket.rcv_nxt);
    }
    if socket.flags & TIMESLICE_HANDED_OVER == 0 {
        socket.flags |= TIMESLICE_HANDED_OVER;
        socket.arrived_bytes += advance(socket.counted_rcv_nxt, state.rcv_nxt);
        socket.counted_rcv_nxt = state.rcv_nxt;
        if tcp.sock().fin_received() {
            socket.fin |= FIN_HANDED;
        }
    }
    Some(socket.counted_rcv_nxt)
}

/// How far `to` is ahead of `from`. Two CPUs may look at an entry at once, when a thread loses its CPU just as another
/// takes over its socket: what is then behind is no distance.
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

/// Fills an entry; `None` when the filters do not name the socket's ports.
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
    occupy(socket, 0);
    socket.sock = tcp.sock().pointer() as u64;
    socket.used_ns = 0;
    tcp.photo(&mut socket.last);
    socket.activation = socket.last;
    socket.activation.copied_seq = queue_start;
    socket.rcv_nxt = arrived_from;
    socket.counted_rcv_nxt = socket.last.rcv_nxt;
    socket.arrived_bytes = 0;
    socket.read_bytes = 0;
    socket.flags = TIMESLICE_PARTIAL;
    socket.fin = if tcp.sock().fin_received() { FIN_ACTIVATION } else { 0 };
    let mut live = SocketLive::ZERO;
    tcp.address(&mut live);
    socket.netns = live.netns;
    socket.family = live.family;
    (socket.local_port, socket.remote_port) = tcp.ports();
    socket.local_address = live.local_address;
    socket.remote_address = live.remote_address;
    occupy(socket, state.cookie);
    Some(())
}

/// Gives the entry away (0) before it is filled, and takes it after: where a program can be preempted, the switch away from
/// its thread looks at the entries in between.
#[inline(always)]
fn occupy(socket: &mut TracedSocket, cookie: u64) {
    // SAFETY: a reference is valid for writes. Volatile keeps it in its place.
    unsafe { core::ptr::write_volatile(&mut socket.cookie, cookie) };
}

/// The reader in `slot` gets the CPU.
#[inline(always)]
pub fn activate(slot: u32) -> Option<()> {
    let reader = maps::traced(slot)?;
    reader.activated_ns = kernel::now_ns();
    let mut i = 0;
    while i < SOCKETS {
        let socket = &mut reader.sockets[i];
        i += 1;
        if socket.cookie == 0 {
            continue;
        }
        let sock = Remembered(socket.sock);
        if sock.cookie() != socket.cookie {
            socket.cookie = 0;
            continue;
        }
        sock.photo(&mut socket.activation);
        socket.counted_rcv_nxt = socket.activation.rcv_nxt;
        socket.arrived_bytes = 0;
        socket.flags = 0;
        socket.fin = (socket.fin & FIN_BEFORE) | if sock.fin_received() { FIN_ACTIVATION } else { 0 };
    }
    None
}

/// The reader in `slot` loses the CPU.
#[inline(always)]
pub fn deactivate(slot: u32, task: Task, on_cpu_ns: u64, wait_ns: u64, end: u32) -> Option<()> {
    let reader = maps::traced(slot)?;
    let now = kernel::now_ns();
    // Neither the start of a trace nor a switch that was not seen tells when the thread was off the CPU.
    let off_cpu_ns = if reader.deactivated_ns == 0 || reader.activated_ns < reader.deactivated_ns {
        wait_ns
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
        wait_ns,
        sleep_ns: off_cpu_ns.saturating_sub(wait_ns),
        end: end as u16,
    };
    let mut i = 0;
    while i < SOCKETS {
        let socket = &mut reader.sockets[i];
        i += 1;
        if socket.cookie != 0 {
            close(socket, task, &edge);
        }
    }
    reader.deactivated_ns = now;
    None
}

/// What the records of one timeslice have in common.
struct Edge {
    now: u64,
    activated_ns: u64,
    on_cpu_ns: u64,
    wait_ns: u64,
    sleep_ns: u64,
    end: u16,
}

/// Sends the record of one socket, if there is anything to say, and opens the next timeslice.
#[inline(always)]
fn close(socket: &mut TracedSocket, task: Task, edge: &Edge) -> Option<()> {
    let sock = Remembered(socket.sock);
    // Read first and judged then, so that the verifier walks the reads once.
    let mut photo = QueuePhoto::ZERO;
    sock.photo(&mut photo);
    let mut fin = sock.fin_received() as u64;
    let rcv_rtt_us = sock.rcv_rtt_us();
    let rcv_ssthresh = sock.rcv_ssthresh();
    let window_clamp = sock.window_clamp();
    let fin_before = (socket.fin & FIN_BEFORE) as u64;
    let fin_activation = (socket.fin & FIN_ACTIVATION != 0) as u64;
    if sock.cookie() != socket.cookie {
        socket.flags |= TIMESLICE_CLOSED;
        photo = socket.last;
        fin = fin_activation;
    }
    let mut arrived_on = socket.arrived_bytes;
    let mut fin_counted = fin;
    if socket.flags & TIMESLICE_HANDED_OVER == 0 {
        arrived_on += advance(socket.counted_rcv_nxt, photo.rcv_nxt);
    } else {
        fin_counted = (socket.fin & FIN_HANDED != 0) as u64;
    }
    // A FIN is no data; it is counted in the part in which it came.
    let arrived_off = advance(socket.rcv_nxt, socket.activation.rcv_nxt).saturating_sub(fin_activation & !fin_before);
    let arrived_on = arrived_on.saturating_sub(fin_counted & !fin_activation);
    let queued = photo.rcv_nxt.wrapping_sub(photo.copied_seq).wrapping_sub(fin as u32) as i32;

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
        record.wait_ns = edge.wait_ns;
        record.sleep_ns = edge.sleep_ns;
        record.activation = socket.activation;
        record.deactivation = photo;
        record.arrived_off_cpu_bytes = arrived_off;
        record.arrived_on_cpu_bytes = arrived_on;
        record.read_bytes = socket.read_bytes;
        record.rcv_rtt_us = rcv_rtt_us;
        record.rcv_ssthresh = rcv_ssthresh;
        record.window_clamp = window_clamp;
        record.tid = task.tid();
        record.tgid = task.tgid();
        record.comm = task.comm();
        record.netns = socket.netns;
        record.end = edge.end;
        record.flags = socket.flags;
        record.family = socket.family;
        record.local_port = socket.local_port;
        record.remote_port = socket.remote_port;
        record.fin = (fin_activation | fin << 1) as u16;
        record.local_address = socket.local_address;
        record.remote_address = socket.remote_address;
        record.padding = 0;
        maps::submit(record);
    }
    if socket.flags & (TIMESLICE_HANDED_OVER | TIMESLICE_CLOSED) != 0 {
        socket.cookie = 0;
        return None;
    }
    // The next timeslice begins here, should its activation not be seen.
    socket.activation = photo;
    socket.rcv_nxt = photo.rcv_nxt;
    socket.counted_rcv_nxt = photo.rcv_nxt;
    socket.arrived_bytes = 0;
    socket.read_bytes = 0;
    socket.flags = TIMESLICE_PARTIAL;
    socket.fin = if fin != 0 { FIN_BEFORE | FIN_ACTIVATION } else { 0 };
    None
}
