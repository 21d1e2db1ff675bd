//! All maps except those of the store, and the only functions that access them.
#![expect(unsafe_code, reason = "map memory and helpers that take pointers to maps")]

mod task;

use core::{ffi::c_void, ptr::read_volatile};

use aya_ebpf::{
    bindings::{
        BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, BPF_NOEXIST, BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP,
        BPF_RB_RING_SIZE,
    },
    helpers::generated::{bpf_ringbuf_output, bpf_ringbuf_query, bpf_ringbuf_reserve, bpf_ringbuf_submit},
    macros::map,
    maps::{Array, HashMap, PerCpuArray, PerCpuHashMap, RingBuf, Stack},
};
use tcpmon_common::{
    connections::COUNTS as CONNECTION_COUNTS,
    counters::Cells as _,
    drops::DropKey,
    header::{Header, Record, VERSION},
    ignored::IGNORED_WHY,
    look::{self, Look},
    loss::{LOSSES, Loss},
    memory_limit::KINDS,
    name::Name,
    napi::{NAPI_SLOTS, NapiDevice},
    reader::{ReaderSlot, UNUSED_PLACES, UNUSED_SLOTS},
    socket::port_key,
    timeslice::KEPT_SOCKETS,
};

use crate::{
    kernel::{TcpSock, fetch_add, zero},
    traced::{TracedReader, TracedSocket},
};

pub use self::task::{ReaderThread, forget_slot, reader_thread, slot_of};

// The loader sets the sizes of READERS, FREE_SLOTS, TRACED, TRACED_SOCKETS, FREE_PLACES, FILTER_TGIDS, DROPS and
// EVENTS.

/// slot -> reader. Written by sched and read; read by segment (only `edges`) and at each scrape.
#[map]
static READERS: Array<ReaderSlot> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// `UNUSED_` constant -> the lowest number that was never taken, and the end of the range. User space sets both.
#[map]
static UNUSED: Array<[u64; 2]> = Array::with_max_entries(2, 0);

/// Slots that are free again. Given back by user space, taken by read.
#[map]
static FREE_SLOTS: Stack<u32> = Stack::with_max_entries(1, 0);

/// slot -> a traced reader. Written by read and sched while tracing.
#[map]
static TRACED: Array<TracedReader> = Array::with_max_entries(1, 0);

/// slot -> the sockets that a traced reader keeps. After the entries of all slots come places for sockets that a reader
/// keeps for one timeslice only. Written by read and sched while tracing.
#[map]
static TRACED_SOCKETS: Array<[TracedSocket; KEPT_SOCKETS]> = Array::with_max_entries(1, 0);

/// Places for further sockets that are free again. Taken by read, freed by sched.
#[map]
static FREE_PLACES: Stack<u32> = Stack::with_max_entries(1, 0);

/// Records for user space: listening sockets, ends of readers, few states left; timeslices while tracing.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(4096, 0);

/// Loss -> count, per CPU. Written by all programs, read at each scrape.
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(LOSSES as u32, 0);

/// Number -> what a run of the look has found. Mapped by user space, which reads it between two runs.
#[map]
static LOOKS: Array<Look> = Array::with_max_entries(look::LOOKS, BPF_F_MMAPABLE);

/// (socket, reason) -> dropped segments, per CPU. Written by drop; read at each scrape; an entry is removed when it has
/// not changed since the last read.
#[map]
static DROPS: PerCpuHashMap<DropKey, u64> = PerCpuHashMap::with_max_entries(1, 0);

/// slot (by device name) -> polls, per CPU. Written by napi, read at each scrape.
#[map]
static NAPI: PerCpuArray<NapiDevice> = PerCpuArray::with_max_entries(NAPI_SLOTS + 1, 0);

/// Kind of memory -> requests that a limit refused, per CPU. Written by memory_limit, read at each scrape.
#[map]
static MEMORY_LIMITS: PerCpuArray<u64> = PerCpuArray::with_max_entries(KINDS.len() as u32, 0);

/// Index into [`IGNORED_WHY`] -> ignored sockets, per CPU. Written by lifecycle, read at each scrape.
#[map]
static IGNORED: PerCpuArray<u64> = PerCpuArray::with_max_entries(IGNORED_WHY.len() as u32, 0);

/// [`port_key`] -> 0: ports that the kernel had chosen for listening sockets when tcpmon started. Only for seeding, so
/// memory is taken as needed.
#[map]
static CHOSEN_PORTS: HashMap<u64, u8> = HashMap::with_max_entries(8192, BPF_F_NO_PREALLOC);

/// 0 -> the last connection that was accepted, per CPU. Written and read by lifecycle.
#[map]
static ACCEPTED: PerCpuArray<Accepted> = PerCpuArray::with_max_entries(1, 0);

/// `CONNECTIONS_` constant -> connections, per CPU; the word behind them is that of [`last_handled_event`]. Written
/// by lifecycle, read at each pass.
#[map]
static CONNECTIONS: PerCpuArray<u64> = PerCpuArray::with_max_entries(CONNECTION_COUNTS + 1, 0);

/// Thread groups to trace; written by user space, and by fork if the trace follows processes.
#[map]
static FILTER_TGIDS: HashMap<u32, u8> = HashMap::with_max_entries(1, 0);

/// Names of thread groups to trace; written by user space.
#[map]
static FILTER_COMMS: HashMap<Name, u8> = HashMap::with_max_entries(256, BPF_F_NO_PREALLOC);

/// Ports to trace; written by user space.
#[map]
static FILTER_PORTS: HashMap<u32, u8> = HashMap::with_max_entries(1024, BPF_F_NO_PREALLOC);

/// Counts a loss. A program that interrupts this one may count the same kind.
#[inline(always)]
pub fn count_loss(what: Loss) {
    if let Some(count) = LOST.get_ptr_mut(what as u32) {
        // SAFETY: this is the current CPU's own entry.
        unsafe { &mut *count }.add(&1);
    }
}

/// The reader in a slot.
#[inline(always)]
pub fn reader(slot: u32) -> Option<&'static mut ReaderSlot> {
    // SAFETY: array memory lives as long as the program; only one CPU at a time writes a slot (see `ReaderSlot`).
    READERS.get_ptr_mut(slot).map(|reader| unsafe { &mut *reader })
}

/// Takes a free slot; counts a loss if there is none.
#[inline(always)]
pub fn take_slot() -> Option<u32> {
    let slot = take_number(&FREE_SLOTS, UNUSED_SLOTS);
    if slot.is_none() {
        count_loss(Loss::ReaderSlot);
    }
    slot
}

/// Takes a number that is free again or was never taken.
#[inline(always)]
fn take_number(free: &Stack<u32>, unused: u32) -> Option<u32> {
    if let Some(number) = free.pop().ok().flatten() {
        return Some(number);
    }
    let next: *mut u64 = UNUSED.get_ptr_mut(unused)?.cast();
    // SAFETY: both are in the value. The end does not change, and the next number only as here: it passes the end by no
    // more than there are CPUs.
    let (end, now) = unsafe { (*next.add(1), read_volatile(next)) };
    if now >= end {
        return None;
    }
    let number = fetch_add(next, 1);
    if number < end { Some(number as u32) } else { None }
}

/// The trace's data of the reader in a slot.
#[inline(always)]
pub fn traced_reader(slot: u32) -> Option<&'static mut TracedReader> {
    // SAFETY: as in `reader`.
    TRACED.get_ptr_mut(slot).map(|reader| unsafe { &mut *reader })
}

/// The sockets that the reader in a slot keeps.
#[inline(always)]
pub fn kept_sockets(slot: u32) -> Option<&'static mut [TracedSocket; KEPT_SOCKETS]> {
    // SAFETY: as in `reader`; other threads write only words that they own, see `TracedSocket`.
    TRACED_SOCKETS.get_ptr_mut(slot).map(|sockets| unsafe { &mut *sockets })
}

/// Place of the first socket that the reader in a slot keeps.
#[inline(always)]
pub fn first_kept(slot: u32) -> u32 {
    slot * KEPT_SOCKETS as u32
}

/// The traced socket at a place.
#[inline(always)]
pub fn traced_socket(place: u32) -> Option<&'static mut TracedSocket> {
    kept_sockets(place / KEPT_SOCKETS as u32).map(|sockets| &mut sockets[place as usize % KEPT_SOCKETS])
}

/// Takes a free place for a further socket.
#[inline(always)]
pub fn take_place() -> Option<u32> {
    take_number(&FREE_PLACES, UNUSED_PLACES)
}

/// Frees a place.
#[inline(always)]
pub fn free_place(place: u32) {
    // It always succeeds: there is room for all places.
    let _ = FREE_PLACES.push(place, 0);
}

/// Reserves one record in the ring, all zeros; apart from that like [`reserve_unwritten`].
#[inline(always)]
pub fn reserve<T: Record>(otherwise: Loss) -> Option<&'static mut T> {
    let record = reserve_unwritten::<T>(otherwise)?;
    // SAFETY: all zeros is a valid record.
    unsafe { zero(&raw mut *record) };
    Some(record)
}

/// Reserves one record in the ring. `None` if there is no room: then `otherwise` is counted. The caller must write all
/// of the record (what was there before is not meant for user space), and pass it to [`submit`].
#[inline(always)]
pub fn reserve_unwritten<T: Record>(otherwise: Loss) -> Option<&'static mut T> {
    let ring = (&raw const EVENTS).cast_mut().cast::<c_void>();
    // SAFETY: the helper returns null or `size_of::<T>()` bytes, which are ours until they are submitted; any bytes are
    // a valid record.
    let record = unsafe { bpf_ringbuf_reserve(ring, size_of::<T>() as u64, 0).cast::<T>().as_mut() };
    if record.is_none() {
        count_loss(otherwise);
    }
    record
}

/// Submits a record to user space. User space polls the ring on a timer, because a wake-up costs 8 us here. A wake-up
/// is sent only when another quarter of the ring has filled up before user space polls.
#[inline(always)]
pub fn submit<T: Record>(record: &'static mut T) {
    let ring = (&raw const EVENTS).cast_mut().cast::<c_void>();
    // SAFETY: the helper only reads two numbers of the map.
    let query = |what| unsafe { bpf_ringbuf_query(ring, what) };
    let (filled, quarter) = (query(BPF_RB_AVAIL_DATA as u64), query(BPF_RB_RING_SIZE as u64) / 4);
    // The margin is more than one record because other CPUs write to the ring, too.
    let crossed = filled >= quarter && filled & (quarter - 1) < 8 * size_of::<T>() as u64;
    let flags = if crossed { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    // SAFETY: the record came from `reserve`, and nothing uses it after this call.
    unsafe { bpf_ringbuf_submit((&raw mut *record).cast(), flags as u64) };
}

/// The place in the array for the look with this number.
#[inline(always)]
pub fn look(number: u32) -> Option<&'static mut Look> {
    // SAFETY: user space makes one run at a time; any bytes are a valid look.
    LOOKS.get_ptr_mut(number).map(|look| unsafe { &mut *look })
}

/// Counts a dropped segment.
#[inline(always)]
pub fn count_drop(key: &DropKey) {
    // Two tries, because another CPU may insert the key between the lookup and the insertion.
    let mut tries = 0;
    while tries < 2 {
        if let Some(count) = DROPS.get_ptr_mut(key) {
            // SAFETY: this is the current CPU's own entry.
            unsafe { *count += 1 };
            return;
        }
        if DROPS.insert(key, 1, BPF_NOEXIST as u64).is_ok() {
            return;
        }
        tries += 1;
    }
    count_loss(Loss::DropEntry);
}

/// This CPU's slot `index` for network devices.
#[inline(always)]
pub fn napi(index: u32) -> Option<&'static mut NapiDevice> {
    // SAFETY: this is the current CPU's own entry; NAPI polls run in softirq (or in one thread), which does not nest.
    NAPI.get_ptr_mut(index).map(|device| unsafe { &mut *device })
}

/// Counts a request for socket memory that a limit refused; `kind` indexes [`KINDS`].
#[inline(always)]
pub fn count_memory_limit(kind: u32) {
    if let Some(count) = MEMORY_LIMITS.get_ptr_mut(kind) {
        // SAFETY: this is the current CPU's own entry.
        unsafe { *count += 1 };
    }
}

/// Counts a socket that is ignored because it is part of an MPTCP connection.
#[inline(always)]
pub fn count_mptcp() {
    if let Some(count) = IGNORED.get_ptr_mut(0) {
        // SAFETY: this is the current CPU's own entry.
        unsafe { &mut *count }.add(&1);
    }
}

/// The listening socket of a connection that was just accepted.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Accepted {
    /// Address of the connection's `struct tcp_sock`.
    pub connection: u64,
    /// The listening socket's cookie.
    pub listener: u64,
    /// The listening socket's port.
    pub port: u16,
    /// 1 if the kernel chose that port.
    pub port_chosen: u16,
    /// Zero.
    pub padding: u32,
}

/// This CPU's entry for the last connection that was accepted.
#[inline(always)]
pub fn accepted() -> Option<&'static mut Accepted> {
    // SAFETY: this is the current CPU's own entry. Connections are accepted in softirqs, which do not nest.
    ACCEPTED.get_ptr_mut(0).map(|accepted| unsafe { &mut *accepted })
}

/// Records that the kernel chose the port of a listening socket that is older than tcpmon. If there is no room, user
/// space learns this from the listening socket, as long as it is open.
#[inline(always)]
pub fn note_chosen(tcp: TcpSock) {
    let _ = CHOSEN_PORTS.insert(port_key(tcp.netns(), tcp.ports().0, tcp.addresses().0), 0, 0);
}

/// Whether the kernel chose the port of the listening socket that has accepted this connection, which is older than
/// tcpmon: one at its local address, or at all addresses.
#[inline(always)]
pub fn was_chosen(tcp: TcpSock) -> bool {
    let (netns, port) = (tcp.netns(), tcp.ports().0);
    CHOSEN_PORTS.get_ptr(port_key(netns, port, tcp.addresses().0)).is_some()
        || CHOSEN_PORTS.get_ptr(port_key(netns, port, [0; 2])).is_some()
}

/// Counts a connection; `what` is a `CONNECTIONS_` constant.
#[inline(always)]
pub fn count_connection(what: u32) {
    if let Some(count) = CONNECTIONS.get_ptr_mut(what) {
        // SAFETY: this is the current CPU's own entry.
        unsafe { &mut *count }.add(&1);
    }
}

/// Sends a record that only wakes user space. If there is no room for it, user space soon looks anyway.
#[inline(always)]
pub fn wake(kind: u16) {
    let ring = (&raw const EVENTS).cast_mut().cast::<c_void>();
    let mut record = Header { kind, version: VERSION, cpu: 0, time_ns: 0, cookie: 0 };
    // SAFETY: the helper copies the record.
    unsafe {
        bpf_ringbuf_output(ring, (&raw mut record).cast(), size_of::<Header>() as u64, BPF_RB_FORCE_WAKEUP as u64)
    };
}

/// This CPU's word for the last state change that was handled.
#[inline(always)]
pub fn last_handled_event() -> Option<&'static mut u64> {
    // SAFETY: this is the current CPU's own entry.
    CONNECTIONS.get_ptr_mut(CONNECTION_COUNTS).map(|event| unsafe { &mut *event })
}

/// Whether the trace's filters include this thread group.
#[inline(always)]
pub fn filter_has_tgid(tgid: u32) -> bool {
    FILTER_TGIDS.get_ptr(tgid).is_some()
}

/// Adds a process that has just started to those to trace, or removes an earlier process with the same id. False if
/// there is no room.
#[inline(always)]
pub fn follow(tgid: u32, followed: bool) -> bool {
    if followed {
        FILTER_TGIDS.insert(tgid, 1, 0).is_ok()
    } else {
        // Usually there is none.
        let _ = FILTER_TGIDS.remove(tgid);
        true
    }
}

/// Whether the trace's filters include this name.
#[inline(always)]
pub fn filter_has_comm(comm: &Name) -> bool {
    FILTER_COMMS.get_ptr(comm).is_some()
}

/// Whether the trace's filters include this port.
#[inline(always)]
pub fn filter_has_port(port: u16) -> bool {
    FILTER_PORTS.get_ptr(port as u32).is_some()
}
