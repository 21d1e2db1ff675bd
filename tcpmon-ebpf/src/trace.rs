//! Tracing: each timeslice of a reader becomes one record for each socket that it reads.
//!
//! The reader keeps the sockets that it read last. They are sampled when it is scheduled in and when it is scheduled
//! out, with reads that cannot fault. The socket's lock cannot be taken there and is not needed: every number is one
//! word. An event loop reads more sockets in a timeslice than can be sampled at each switch: the further ones have a
//! place only from their first read in a timeslice to its end, and their arrivals are reported up to their last read.
//! Nothing here runs unless the setting `trace` asks for timeslices: otherwise the verifier removes the code.
#![expect(unsafe_code, reason = "volatile accesses to words that other CPUs access meanwhile, and functions by name")]

use tcpmon_common::{
    causes::Causes,
    header::{Header, KIND_TIMESLICE, VERSION},
    loss::Loss,
    reader::{END_PREEMPTED, SLOT_NONE},
    settings::TRACE_TIMESLICES,
    socket::SocketState,
    timeslice::{KEPT_SOCKETS, QueueSample, TIMESLICE_CLOSED, TIMESLICE_HANDED_OVER, TIMESLICE_PARTIAL, Timeslice},
};

use crate::{
    kernel::{self, MaybeFreedSock, Probed, Task, TcpSock, setting},
    maps,
    traced::{Edge, FIN_ACTIVATION, FIN_LAST, MAX_FURTHER_SOCKETS, TracedReader, TracedSocket},
};

/// Reads or writes a field without reordering it among other accesses, because others may look at it meanwhile: a
/// switch on this CPU, or another CPU.
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
pub fn begin(slot: u32) -> Option<()> {
    let reader = maps::traced_reader(slot)?;
    reader.open = 1;
    reader.activated_ns = kernel::now_ns();
    reader.deactivated_ns = 0;
    reader.first_further = 0;
    reader.further_count = 0;
    reader.further_busy = 0;
    let kept = maps::kept_sockets(slot)?;
    let mut i = 0;
    while i < KEPT_SOCKETS {
        kept[i].cookie = 0;
        i += 1;
    }
    None
}

/// Records that the socket's reader drained `bytes` from it. The queue started at `queue_start` before that, and
/// `previous` was the slot of the socket's previous reader.
#[inline(always)]
pub fn read(previous: u32, state: &mut SocketState, tcp: TcpSock, queue_start: u32, bytes: u32) -> Option<()> {
    if !ports_match(tcp) {
        return None;
    }
    let slot = state.reader_slot;
    maps::reader(slot)?.read_bytes += bytes as u64;
    if setting!(trace) != TRACE_TIMESLICES {
        return None;
    }
    let mut begin = Begin { queue_start, arrived_from: unreported_from(state, queue_start), arrived_on_cpu: 0 };
    if previous != slot
        && previous != SLOT_NONE
        && let Some(rcv_nxt) = hand_over(previous, state, tcp.sock().fin_received())
    {
        begin.arrived_from = rcv_nxt;
    } else {
        begin.arrived_on_cpu = state.counters.arrived_on_cpu_bytes;
    }
    state.counters.arrived_on_cpu_bytes = 0;
    let reader = maps::traced_reader(slot)?;
    let activated_ns = reader.activated_ns;
    let mut i = kept_with_cookie(slot, state.cookie);
    if i >= KEPT_SOCKETS as u32 {
        i = reusable_kept_entry(slot, activated_ns);
    }
    if let Some(socket) = kept_entry(slot, i) {
        ordered!(socket.busy, 1);
        // Read the cookie again: a switch may have freed the entry that was found, or reported more of the entry that
        // was idle.
        let cookie = ordered!(socket.cookie);
        let known = cookie == state.cookie;
        if known || cookie == 0 || ordered!(socket.rcv_nxt) == socket.last.rcv_nxt {
            if !known {
                remember(socket, state, tcp, &begin);
            }
            note(socket, state, tcp, activated_ns, bytes);
            ordered!(socket.busy, 0);
            return None;
        }
        ordered!(socket.busy, 0);
    }
    ordered!(reader.further_busy, 1);
    if read_further(reader, slot, state, tcp, &begin, bytes).is_none() {
        maps::count_loss(Loss::TimesliceSocket);
    }
    ordered!(reader.further_busy, 0);
    None
}

/// The values from which a reader's first record of a socket starts.
struct Begin {
    /// `copied_seq` before the read.
    queue_start: u32,
    /// `rcv_nxt` up to which arrivals have been reported, or belong to another reader.
    arrived_from: u32,
    /// Of the bytes that have arrived since then, those that arrived while the reader was on a CPU.
    arrived_on_cpu: u64,
}

/// Sequence number from which arrivals are in no record yet: that of the last traced read, or the start of the queue if
/// the queue does not include it.
#[inline(always)]
fn unreported_from(state: &SocketState, queue_start: u32) -> u32 {
    let reported = state.reported_seq;
    let queued = state.rcv_nxt.wrapping_sub(queue_start);
    if reported.wrapping_sub(queue_start) <= queued { reported } else { queue_start }
}

/// Records a read of a socket that the reader does not keep; `None` if there is no place for it.
#[inline(always)]
fn read_further(
    reader: &mut TracedReader,
    slot: u32,
    state: &mut SocketState,
    tcp: TcpSock,
    begin: &Begin,
    bytes: u32,
) -> Option<()> {
    let activated_ns = reader.activated_ns;
    if let Some(socket) = maps::traced_socket(state.traced_place)
        && socket.owner == slot + 1
        && socket.cookie == state.cookie
        && socket.taken != state.cookie
    {
        note(socket, state, tcp, activated_ns, bytes);
        return Some(());
    }
    if reader.further_count >= MAX_FURTHER_SOCKETS {
        return None;
    }
    let place = maps::take_place()?;
    let socket = maps::traced_socket(place)?;
    remember(socket, state, tcp, begin);
    let arrived = advance(begin.arrived_from, data_end(socket.activation.rcv_nxt, socket.fin & FIN_ACTIVATION != 0));
    let on_cpu = if begin.arrived_on_cpu < arrived { begin.arrived_on_cpu } else { arrived };
    socket.arrived_bytes = on_cpu;
    socket.rcv_nxt = socket.rcv_nxt.wrapping_add(on_cpu as u32);
    socket.owner = slot + 1;
    socket.next = reader.first_further;
    reader.first_further = place;
    reader.further_count += 1;
    state.traced_place = place;
    note(socket, state, tcp, activated_ns, bytes);
    Some(())
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
    state.reported_seq = state.rcv_nxt;
    socket.used_ns = activated_ns;
    socket.read_bytes += bytes as u64;
    // Moved out of the state, so that another reader's record does not report it again.
    socket.causes.take_from(state);
    tcp.sample_queue(&mut socket.last);
    if fin {
        socket.fin |= FIN_LAST;
    }
}

/// Keeps a socket that the thread has open before tracing starts: the thread may be stuck and never read it.
#[inline(always)]
pub fn seed(slot: u32, state: &mut SocketState, tcp: TcpSock) -> Option<()> {
    if !ports_match(tcp) || kept_with_cookie(slot, state.cookie) < KEPT_SOCKETS as u32 {
        return None;
    }
    let socket = kept_entry(slot, reusable_kept_entry(slot, 0))?;
    state.reported_seq = tcp.rcv_nxt();
    let begin = Begin { queue_start: state.copied_seq, arrived_from: state.reported_seq, arrived_on_cpu: 0 };
    remember(socket, state, tcp, &begin);
    None
}

/// Handles another thread taking over the socket. If the previous reader keeps the socket, returns the sequence number
/// up to which arrivals belong to that reader. That is the current one if the previous reader is in a timeslice, which
/// then ends for this socket; otherwise it is the one at which that reader's last timeslice ended. A switch that comes
/// in between, or on the previous reader's CPU, sees either nothing of the takeover or all of it.
#[inline(always)]
fn hand_over(slot: u32, state: &SocketState, fin: bool) -> Option<u32> {
    let reader = maps::traced_reader(slot)?;
    let open = ordered!(reader.open);
    let Some(socket) = kept_entry(slot, kept_with_cookie(slot, state.cookie)) else {
        if let Some(socket) = maps::traced_socket(state.traced_place)
            && socket.owner == slot + 1
            && socket.cookie == state.cookie
        {
            ordered!(socket.taken, state.cookie);
        }
        return None;
    };
    if open == 0 {
        ordered!(socket.cookie, 0);
        return Some(ordered!(socket.rcv_nxt));
    }
    ordered!(socket.taken_data_end, data_end(state.rcv_nxt, fin));
    kernel::shared_barrier();
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

/// Which of the kept sockets has this cookie; [`KEPT_SOCKETS`] if none has.
///
/// A function that takes and returns only numbers, so that the verifier walks it once for all its callers. The same
/// holds for the others of this kind below.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn kept_with_cookie(slot: u32, cookie: u64) -> u32 {
    let Some(kept) = maps::kept_sockets(slot) else {
        return KEPT_SOCKETS as u32;
    };
    let mut i = 0;
    while i < KEPT_SOCKETS && kept[i].cookie != cookie {
        i += 1;
    }
    i as u32
}

/// The kept entry that a new socket may use: a free one, or else the one that was read longest ago. An entry in use
/// must not have been read in this timeslice, and all that was reported of it must have been read, so that nothing is
/// reported twice when the socket comes back. [`KEPT_SOCKETS`] if there is none.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn reusable_kept_entry(slot: u32, activated_ns: u64) -> u32 {
    let Some(kept) = maps::kept_sockets(slot) else {
        return KEPT_SOCKETS as u32;
    };
    let mut best = KEPT_SOCKETS;
    let mut best_ns = u64::MAX;
    let mut i = 0;
    while i < KEPT_SOCKETS {
        let socket = &kept[i];
        if socket.cookie == 0 {
            return i as u32;
        }
        let all_read = socket.rcv_nxt == socket.last.rcv_nxt && socket.last.rcv_nxt == socket.last.copied_seq;
        if all_read && socket.busy == 0 && socket.used_ns != activated_ns && socket.used_ns < best_ns {
            best_ns = socket.used_ns;
            best = i;
        }
        i += 1;
    }
    best as u32
}

/// The kept entry with this number; `None` if the number is [`KEPT_SOCKETS`].
#[inline(always)]
fn kept_entry(slot: u32, i: u32) -> Option<&'static mut TracedSocket> {
    if i >= KEPT_SOCKETS as u32 {
        return None;
    }
    maps::traced_socket(maps::first_kept(slot) + i)
}

/// Whether the port filters include one of the socket's ports.
#[inline(always)]
fn ports_match(tcp: TcpSock) -> bool {
    if setting!(filter_ports) == 0 {
        return true;
    }
    let (local, remote) = tcp.ports();
    maps::filter_has_port(local) || maps::filter_has_port(remote)
}

/// Fills an entry for a socket.
#[inline(always)]
fn remember(socket: &mut TracedSocket, state: &SocketState, tcp: TcpSock, begin: &Begin) {
    // The entry is free until it is completely filled.
    ordered!(socket.cookie, 0);
    socket.sock = tcp.sock().pointer() as u64;
    socket.used_ns = 0;
    socket.fin = if tcp.sock().fin_received() { FIN_ACTIVATION | FIN_LAST } else { 0 };
    tcp.sample_queue(&mut socket.last);
    socket.activation = socket.last;
    socket.activation.copied_seq = begin.queue_start;
    socket.rcv_nxt = begin.arrived_from;
    socket.counted_rcv_nxt = socket.last.rcv_nxt;
    socket.arrived_bytes = 0;
    socket.read_bytes = 0;
    socket.causes = Causes::ZERO;
    socket.taken = 0;
    socket.flags = TIMESLICE_PARTIAL;
    let identity = &state.identity;
    socket.netns = identity.netns;
    socket.family = identity.family;
    (socket.local_port, socket.remote_port) = (identity.local_port, identity.remote_port);
    socket.local_address = identity.local_address;
    socket.remote_address = identity.remote_address;
    ordered!(socket.cookie, state.cookie);
}

/// Samples a socket whose arrivals up to `counted_rcv_nxt` have been counted; returns whether the FIN has been
/// received.
///
/// The kernel first advances `rcv_nxt` and only then marks that this was for a FIN. If it does so on another CPU, it
/// completes both while the sample is taken. A reader that is switched out while it processes the backlog does not
/// complete them before it runs again, so a byte that may be a FIN is left to the next sample.
#[inline(always)]
fn sample(sock: Probed, counted_rcv_nxt: u32, queue: &mut QueueSample) -> bool {
    sock.sample_queue(queue);
    kernel::shared_barrier();
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
    let reader = maps::traced_reader(slot)?;
    ordered!(reader.open, 1);
    reader.activated_ns = kernel::now_ns();
    let mut place = maps::first_kept(slot);
    let end = place + KEPT_SOCKETS as u32;
    while place < end {
        begin_timeslice(place);
        place += 1;
    }
    None
}

/// Samples the socket at a place at the start of a timeslice.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn begin_timeslice(place: u32) -> u32 {
    if setting!(trace) == TRACE_TIMESLICES
        && let Some(socket) = maps::traced_socket(place)
    {
        open(socket);
    }
    0
}

#[inline(always)]
fn open(socket: &mut TracedSocket) {
    // If the socket was taken over just after the last deactivation checked for that, the next deactivation reports it.
    if socket.cookie == 0 || socket.busy != 0 || socket.taken == socket.cookie {
        return;
    }
    let sock = Probed(socket.sock);
    if sock.cookie() != socket.cookie {
        socket.cookie = 0;
        return;
    }
    let fin = sample(sock, socket.rcv_nxt, &mut socket.activation);
    socket.fin = (socket.fin & FIN_LAST) | if fin { FIN_ACTIVATION } else { 0 };
    socket.counted_rcv_nxt = socket.activation.rcv_nxt;
    socket.arrived_bytes = 0;
    socket.flags = 0;
}

/// The reader in `slot` is scheduled out, in favor of `next`.
#[inline(always)]
pub fn deactivate(slot: u32, task: Task, next: Task, on_cpu_ns: u64, run_queue_wait_ns: u64, end: u32) -> Option<()> {
    let reader = maps::traced_reader(slot)?;
    let now = kernel::now_ns();
    // At the start of a trace, or after a switch that was not seen, it is unknown when the thread was off the CPU.
    let seen = reader.activated_ns >= reader.deactivated_ns;
    let off_cpu_ns = if reader.deactivated_ns == 0 || !seen {
        run_queue_wait_ns
    } else {
        reader.activated_ns - reader.deactivated_ns
    };
    let (next_comm, next_tid) = if end == END_PREEMPTED { (next.comm(), next.tid()) } else { ([0; 16], 0) };
    reader.edge = Edge {
        now,
        activated_ns: if seen { reader.activated_ns } else { now.wrapping_sub(on_cpu_ns) },
        on_cpu_ns,
        run_queue_wait_ns,
        sleep_ns: off_cpu_ns.saturating_sub(run_queue_wait_ns),
        comm: task.comm(),
        next_comm,
        tid: task.tid(),
        tgid: task.tgid(),
        next_tid,
        end,
    };
    let mut place = maps::first_kept(slot);
    let after = place + KEPT_SOCKETS as u32;
    while place < after {
        end_timeslice(slot, place);
        place += 1;
    }
    if reader.further_busy == 0 {
        let mut place = reader.first_further;
        let mut i = 0;
        while i < MAX_FURTHER_SOCKETS && place != 0 {
            place = end_timeslice(slot, place);
            i += 1;
        }
        reader.first_further = 0;
        reader.further_count = 0;
    } else {
        maps::count_loss(Loss::TimesliceEdge);
    }
    reader.deactivated_ns = now;
    ordered!(reader.open, 0);
    None
}

/// Ends a timeslice for the socket at a place; returns the place of the next socket in the list, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn end_timeslice(slot: u32, place: u32) -> u32 {
    if setting!(trace) != TRACE_TIMESLICES {
        return 0;
    }
    close(slot, place).unwrap_or(0)
}

#[inline(always)]
fn close(slot: u32, place: u32) -> Option<u32> {
    let edge = &maps::traced_reader(slot)?.edge;
    let socket = maps::traced_socket(place)?;
    if socket.cookie == 0 {
        return None;
    }
    let kept = socket.owner == 0;
    if socket.busy != 0 {
        socket.flags = TIMESLICE_PARTIAL;
        maps::count_loss(Loss::TimesliceEdge);
        return None;
    }
    let sock = Probed(socket.sock);
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
    // Read after the sample: if no takeover is seen here, what the sample shows arrived before one.
    kernel::shared_barrier();
    let taken = ordered!(socket.taken) == socket.cookie;
    kernel::shared_barrier();
    if taken {
        end = socket.taken_data_end;
    }
    if !kept {
        end = socket.counted_rcv_nxt;
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
        record.tid = edge.tid;
        record.tgid = edge.tgid;
        record.comm = edge.comm;
        record.next_tid = edge.next_tid;
        record.next_comm = edge.next_comm;
        record.netns = socket.netns;
        record.end = edge.end as u16;
        record.flags = socket.flags | (closed as u16 * TIMESLICE_CLOSED) | (taken as u16 * TIMESLICE_HANDED_OVER);
        record.family = socket.family;
        record.local_port = socket.local_port;
        record.remote_port = socket.remote_port;
        record.fin = fin_activation as u16 | (fin as u16) << 1;
        record.local_address = socket.local_address;
        record.remote_address = socket.remote_address;
        maps::submit(record);
    }
    if !kept {
        let next = socket.next;
        socket.cookie = 0;
        socket.owner = 0;
        maps::free_place(place);
        return Some(next);
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
