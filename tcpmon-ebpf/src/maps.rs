//! All maps, and the only functions that touch them.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    bindings::{
        BPF_F_MMAPABLE, BPF_NOEXIST, BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE,
        bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE,
    },
    btf_maps::{ArrayOfMaps, SkStorage},
    helpers::generated::{
        bpf_ringbuf_query, bpf_ringbuf_reserve, bpf_ringbuf_submit, bpf_sk_storage_delete, bpf_sk_storage_get,
        bpf_task_storage_get,
    },
    macros::{btf_map, map},
    maps::{Array, HashMap, PerCpuArray, PerCpuHashMap, RingBuf, Stack},
};
use tcpmon_common::{
    drops::DropKey,
    ignored::IGNORED_WHY,
    lives::LIVES as LIVES_COUNTS,
    loss::{LOSSES, Loss},
    napi::{NAPI_SLOTS, NapiDevice},
    pass::{Pass, RECORDS as MAX_RECORDS},
    pressure::LIMIT_KINDS,
    reader::{ReaderSlot, SLOT_NONE},
    socket::{SOCKET_INDEXES, SOCKET_MAPS, SocketCounters, SocketRecord, SocketState},
};

use crate::{
    kernel::{Sock, Task},
    timeslice::TracedReader,
};

// Sizes of READERS, FREE_SLOTS, TRACED, DROPS and EVENTS are set by the loader.

/// Part of the sockets -> one of the maps below, put there by user space.
#[btf_map]
static SOCKETS: ArrayOfMaps<Sockets, { SOCKET_MAPS as usize }> = ArrayOfMaps::new();

/// socket -> its state; with the socket's life; written by segment, read, lifecycle, autotune, and `shown` by the
/// snapshot, which reads the rest.
type Sockets = SkStorage<SocketState>;

#[btf_map]
static SOCKETS_0: Sockets = SkStorage::new();
#[btf_map]
static SOCKETS_1: Sockets = SkStorage::new();
#[btf_map]
static SOCKETS_2: Sockets = SkStorage::new();
#[btf_map]
static SOCKETS_3: Sockets = SkStorage::new();
#[btf_map]
static SOCKETS_4: Sockets = SkStorage::new();
#[btf_map]
static SOCKETS_5: Sockets = SkStorage::new();
#[btf_map]
static SOCKETS_6: Sockets = SkStorage::new();
#[btf_map]
static SOCKETS_7: Sockets = SkStorage::new();

/// thread -> its slot; with the thread's life; written by read; read by sched.
#[unsafe(link_section = ".maps")]
#[unsafe(export_name = "TASKS")]
static TASKS: TaskStorage = TaskStorage::new();

/// slot -> reader; written by sched and read; read by segment (`switches` only) and at each scrape.
#[map]
static READERS: Array<ReaderSlot> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Slots that are free; filled by user space, taken by read.
#[map]
static FREE_SLOTS: Stack<u32> = Stack::with_max_entries(1, 0);

/// slot -> sockets of a traced reader; written by read and sched while tracing.
#[map]
static TRACED: Array<TracedReader> = Array::with_max_entries(1, 0);

/// Records for user space: ends of sockets and readers; timeslices while tracing.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(4096, 0);

/// Loss -> count, per CPU; written by all, read at each scrape.
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(LOSSES as u32, 0);

/// 0 -> sums of the sockets whose last record found no room in EVENTS, per CPU; written by lifecycle.
#[map]
static FALLEN: PerCpuArray<SocketCounters> = PerCpuArray::with_max_entries(1, 0);

/// 0 -> the pass of the snapshot; mapped by user space, written by both in turns.
#[map]
static PASS: Array<Pass> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Number -> record of the snapshot; mapped by user space, which takes the records between two system calls.
#[map]
static RECORDS: Array<SocketRecord> = Array::with_max_entries(MAX_RECORDS, BPF_F_MMAPABLE);

/// index / 64 -> bits of the sockets that a pass has met; mapped and cleared by user space, written by the snapshot.
#[map]
static MET: Array<u64> = Array::with_max_entries(SOCKET_INDEXES / 64, BPF_F_MMAPABLE);

/// index / 8 -> a byte an index, not 0 where the socket's last record was lost; mapped and cleared by user space,
/// written by lifecycle.
#[map]
static FELL: Array<[u8; 8]> = Array::with_max_entries(SOCKET_INDEXES / 8, BPF_F_MMAPABLE);

/// (socket, reason) -> dropped segments, per CPU; written by drop; read at each scrape, removed with the socket.
#[map]
static DROPS: PerCpuHashMap<DropKey, u64> = PerCpuHashMap::with_max_entries(1, 0);

/// slot by device name -> polls, per CPU; written by napi, read at each scrape.
#[map]
static NAPI: PerCpuArray<NapiDevice> = PerCpuArray::with_max_entries(NAPI_SLOTS + 1, 0);

/// Kind of memory -> requests refused by a limit, per CPU; written by pressure, read at each scrape.
#[map]
static LIMITS: PerCpuArray<u64> = PerCpuArray::with_max_entries(LIMIT_KINDS.len() as u32, 0);

/// Index into [`IGNORED_WHY`] -> sockets left out, per CPU; written by lifecycle, read at each scrape.
#[map]
static IGNORED: PerCpuArray<u64> = PerCpuArray::with_max_entries(IGNORED_WHY.len() as u32, 0);

/// `LIVES_` constant -> connections, per CPU; written by lifecycle and where counting begins, read at each pass.
#[map]
static LIVES: PerCpuArray<u64> = PerCpuArray::with_max_entries(LIVES_COUNTS, 0);

/// Thread groups to trace; written by user space.
#[map]
static FILTER_TGIDS: HashMap<u32, u8> = HashMap::with_max_entries(1024, 0);

/// Names of thread groups to trace; written by user space.
#[map]
static FILTER_COMMS: HashMap<[u8; 16], u8> = HashMap::with_max_entries(256, 0);

/// Ports to trace; written by user space.
#[map]
static FILTER_PORTS: HashMap<u32, u8> = HashMap::with_max_entries(1024, 0);

/// What a thread's local storage holds.
#[repr(C)]
pub struct ReaderTask {
    /// Its slot plus one: 0 is what fresh storage holds.
    slot_plus_one: u32,
}

/// A map definition for task local storage, which aya-ebpf has no type for.
#[repr(C)]
struct TaskStorage {
    r#type: *const [i32; BPF_MAP_TYPE_TASK_STORAGE as usize],
    // BPF_F_NO_PREALLOC
    map_flags: *const [i32; 1],
    key: *const i32,
    value: *const ReaderTask,
}

impl TaskStorage {
    const fn new() -> Self {
        Self { r#type: ptr::null(), map_flags: ptr::null(), key: ptr::null(), value: ptr::null() }
    }
}

// SAFETY: the pointers describe types to the loader and are never followed.
unsafe impl Sync for TaskStorage {}

/// Counts something that was lost.
#[inline(always)]
pub fn lose(what: Loss) {
    if let Some(count) = LOST.get_ptr_mut(what as u32) {
        // SAFETY: this CPU's own entry.
        unsafe { *count += 1 };
    }
}

/// The map of a socket, by its address: the same one through its whole life.
#[inline(always)]
fn map_of(sock: Sock) -> Option<*mut c_void> {
    let map = SOCKETS.get(sock.address().wrapping_mul(0x9E37_79B1) >> (32 - SOCKET_MAPS.ilog2()))?;
    Some(ptr::from_ref(map).cast_mut().cast())
}

#[inline(always)]
fn storage(sock: Sock, flags: u64) -> Option<&'static mut SocketState> {
    let map = map_of(sock)?;
    // SAFETY: the helper returns null or memory that lives as long as the program runs, and the socket's lock keeps
    // writers apart.
    unsafe {
        bpf_sk_storage_get(map, sock.pointer().cast_mut().cast(), ptr::null_mut(), flags).cast::<SocketState>().as_mut()
    }
}

/// The socket's state, if it is watched.
#[inline(always)]
pub fn socket(sock: Sock) -> Option<&'static mut SocketState> {
    if sock.has_no_storage() { None } else { storage(sock, 0) }
}

/// The socket's state, zeroed if it is new; a refusal is counted.
#[inline(always)]
pub fn socket_or_new(sock: Sock) -> Option<&'static mut SocketState> {
    let state = storage(sock, 1);
    if state.is_none() {
        lose(Loss::SocketStorage);
    }
    state
}

/// Takes the socket's state out of the map; whoever holds it may go on until the program ends.
#[inline(always)]
pub fn delete_socket(sock: Sock) {
    if let Some(map) = map_of(sock) {
        // SAFETY: both pointers are what the helper wants. Where it fails the state goes with the socket, as elsewhere.
        unsafe { bpf_sk_storage_delete(map, sock.pointer().cast_mut().cast()) };
    }
}

#[inline(always)]
fn task_storage(task: Task, flags: u64) -> Option<&'static mut ReaderTask> {
    let map = (&raw const TASKS).cast_mut().cast::<c_void>();
    // SAFETY: null, or memory of this thread's storage, written only by the thread itself at its first read.
    unsafe {
        bpf_task_storage_get(map, task.pointer().cast_mut().cast(), ptr::null_mut(), flags)
            .cast::<ReaderTask>()
            .as_mut()
    }
}

/// The slot of a thread that is a reader.
#[inline(always)]
pub fn slot_of(task: Task) -> Option<u32> {
    if task.has_no_storage() {
        return None;
    }
    match task_storage(task, 0)?.slot_plus_one {
        0 | SLOT_NONE => None,
        slot => Some(slot - 1),
    }
}

/// What is known of a thread that reads.
pub enum Known {
    /// It has this slot.
    Slot(u32),
    /// It was looked at before and is not to be followed.
    Ignored,
    /// Never seen; remember the answer with [`NewReader::remember`].
    New(NewReader),
    /// Nothing can be remembered about it.
    Refused,
}

/// Storage of a thread that reads for the first time.
pub struct NewReader(&'static mut ReaderTask);

impl NewReader {
    /// Ties the thread to its slot, or to none for ever.
    #[inline(always)]
    pub fn remember(self, slot: Option<u32>) {
        self.0.slot_plus_one = match slot {
            Some(slot) => slot + 1,
            None => SLOT_NONE,
        };
    }
}

/// What is known of the thread; storage is made for it where there is none.
#[inline(always)]
pub fn known(task: Task) -> Known {
    let Some(storage) = task_storage(task, 1) else {
        lose(Loss::ReaderStorage);
        return Known::Refused;
    };
    match storage.slot_plus_one {
        0 => Known::New(NewReader(storage)),
        SLOT_NONE => Known::Ignored,
        slot => Known::Slot(slot - 1),
    }
}

/// The reader in a slot.
#[inline(always)]
pub fn reader(slot: u32) -> Option<&'static mut ReaderSlot> {
    // SAFETY: array memory lives as long as the program; one CPU at a time writes a slot (see `ReaderSlot`).
    READERS.get_ptr_mut(slot).map(|reader| unsafe { &mut *reader })
}

/// Takes a free slot; running out is counted.
#[inline(always)]
pub fn take_slot() -> Option<u32> {
    let slot = FREE_SLOTS.pop().ok().flatten();
    if slot.is_none() {
        lose(Loss::ReaderSlot);
    }
    slot
}

/// What is traced of the reader in a slot.
#[inline(always)]
pub fn traced(slot: u32) -> Option<&'static mut TracedReader> {
    // SAFETY: as in `reader`.
    TRACED.get_ptr_mut(slot).map(|traced| unsafe { &mut *traced })
}

/// Room for one record in the ring, or `None` and a count. Whoever reserves must [`submit`].
#[inline(always)]
pub fn reserve<T>(otherwise: Loss) -> Option<&'static mut T> {
    let ring = (&raw const EVENTS).cast_mut().cast::<c_void>();
    // SAFETY: null, or `size_of::<T>()` bytes of the ring that are ours until submitted.
    let record = unsafe { bpf_ringbuf_reserve(ring, size_of::<T>() as u64, 0).cast::<T>().as_mut() };
    if record.is_none() {
        lose(otherwise);
    }
    record
}

/// Hands a record to user space. That comes on a timer, because a wake-up costs 8 us here; it is woken with each quarter
/// of the ring that fills up before it has come.
#[inline(always)]
pub fn submit<T>(record: &'static mut T) {
    let ring = (&raw const EVENTS).cast_mut().cast::<c_void>();
    // SAFETY: the helper reads two numbers of a map.
    let query = |what| unsafe { bpf_ringbuf_query(ring, what) };
    let (filled, quarter) = (query(BPF_RB_AVAIL_DATA as u64), query(BPF_RB_RING_SIZE as u64) / 4);
    // More than one record beyond: other CPUs write, too.
    let crossed = filled >= quarter && filled & (quarter - 1) < 8 * size_of::<T>() as u64;
    let flags = if crossed { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    // SAFETY: the record came from `reserve` and is given up here.
    unsafe { bpf_ringbuf_submit((&raw mut *record).cast(), flags as u64) };
}

/// This CPU's sums of sockets whose last record was lost.
#[inline(always)]
pub fn fallen() -> Option<&'static mut SocketCounters> {
    // SAFETY: this CPU's own entry.
    FALLEN.get_ptr_mut(0).map(|sums| unsafe { &mut *sums })
}

/// The pass of the snapshot.
#[inline(always)]
pub fn pass() -> Option<&'static mut Pass> {
    // SAFETY: one pass runs at a time, and user space waits for it.
    PASS.get_ptr_mut(0).map(|pass| unsafe { &mut *pass })
}

/// Record `number` of the snapshot.
#[inline(always)]
pub fn record(number: u32) -> Option<&'static mut SocketRecord> {
    // SAFETY: as in `pass`; any bytes are a record.
    RECORDS.get_ptr_mut(number).map(|record| unsafe { &mut *record })
}

/// Notes that the pass has met the socket with this index.
#[inline(always)]
pub fn meet(index: u32) {
    if let Some(bits) = MET.get_ptr_mut(index >> 6) {
        // SAFETY: as in `pass`.
        unsafe { *bits |= 1 << (index & 63) };
    }
}

/// Notes that the last record of the socket with this index is lost.
#[inline(always)]
pub fn fell(index: u32) {
    if let Some(marks) = FELL.get_ptr_mut(index >> 3) {
        // SAFETY: a byte of its own, which one program writes in a socket's life.
        unsafe { marks.cast::<u8>().add((index & 7) as usize).write_volatile(1) };
    }
}

/// Counts a dropped segment.
#[inline(always)]
pub fn count_drop(key: &DropKey) {
    // A second look, because another CPU may have inserted the key meanwhile.
    let mut tries = 0;
    while tries < 2 {
        if let Some(count) = DROPS.get_ptr_mut(key) {
            // SAFETY: this CPU's own entry.
            unsafe { *count += 1 };
            return;
        }
        if DROPS.insert(key, 1, BPF_NOEXIST as u64).is_ok() {
            return;
        }
        tries += 1;
    }
    lose(Loss::DropEntry);
}

/// This CPU's slot `index` of the network devices.
#[inline(always)]
pub fn napi(index: u32) -> Option<&'static mut NapiDevice> {
    // SAFETY: this CPU's own entry; NAPI polls run in softirq (or one thread), which does not nest.
    NAPI.get_ptr_mut(index).map(|device| unsafe { &mut *device })
}

/// Counts a request for socket memory that a limit refused; `kind` indexes [`LIMIT_KINDS`].
#[inline(always)]
pub fn count_limit(kind: u32) {
    if let Some(count) = LIMITS.get_ptr_mut(kind) {
        // SAFETY: this CPU's own entry.
        unsafe { *count += 1 };
    }
}

/// Counts a socket that is left out because it is part of an MPTCP connection.
#[inline(always)]
pub fn count_mptcp() {
    if let Some(count) = IGNORED.get_ptr_mut(0) {
        // SAFETY: this CPU's own entry.
        unsafe { *count += 1 };
    }
}

/// Counts a connection at a point of its life. Not lost where another run of a program comes in between: sums are compared.
#[inline(always)]
pub fn count_life(what: u32) {
    if let Some(count) = LIVES.get_ptr_mut(what) {
        // SAFETY: an atomic addition to this CPU's own entry; Rust has none for eBPF.
        unsafe { core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) count, in(reg) 1_u64, options(nostack)) };
    }
}

/// Whether the trace's filters name this thread group.
#[inline(always)]
pub fn filter_has_tgid(tgid: u32) -> bool {
    FILTER_TGIDS.get_ptr(tgid).is_some()
}

/// Whether the trace's filters name this name.
#[inline(always)]
pub fn filter_has_comm(comm: &[u8; 16]) -> bool {
    FILTER_COMMS.get_ptr(comm).is_some()
}

/// Whether the trace's filters name this port.
#[inline(always)]
pub fn filter_has_port(port: u16) -> bool {
    FILTER_PORTS.get_ptr(port as u32).is_some()
}
