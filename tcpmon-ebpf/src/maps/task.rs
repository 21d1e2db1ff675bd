//! The map from threads to their slots, in the threads' local storage.

use core::{ffi::c_void, ptr};

use aya_ebpf::{bindings::bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE, helpers::generated::bpf_task_storage_get};
use tcpmon_common::{loss::Loss, reader::SLOT_NONE};

use super::count_loss;
use crate::kernel::Task;

/// thread -> its slot. Lives as long as the thread. Written by read; read by sched.
#[unsafe(link_section = ".maps")]
#[unsafe(export_name = "TASKS")]
static TASKS: TaskStorage = TaskStorage::new();

/// What a thread's local storage holds.
#[repr(C)]
pub struct ReaderTask {
    /// The thread's slot plus one, because new storage holds 0.
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

// SAFETY: the pointers describe types to the loader and are never dereferenced.
unsafe impl Sync for TaskStorage {}

#[inline(always)]
fn task_storage(task: Task, flags: u64) -> Option<&'static mut ReaderTask> {
    let map = (&raw const TASKS).cast_mut().cast::<c_void>();
    // SAFETY: null, or this thread's storage, which only the thread itself writes, at its first read.
    unsafe {
        bpf_task_storage_get(map, task.pointer().cast_mut().cast(), ptr::null_mut(), flags)
            .cast::<ReaderTask>()
            .as_mut()
    }
}

/// The slot of a thread, if the thread is a reader.
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

/// Makes the thread, which is a reader, an ordinary thread again.
#[inline(always)]
pub fn forget_slot(task: Task) {
    if let Some(storage) = task_storage(task, 0) {
        storage.slot_plus_one = SLOT_NONE;
    }
}

/// What is known of a thread that reads.
pub enum ReaderThread {
    /// It has this slot.
    Slot(u32),
    /// It was seen before and is not followed.
    Ignored,
    /// It was not seen before; store the result with [`NewReader::remember`].
    New(NewReader),
    /// Storage for it was refused, so nothing can be remembered about it.
    Refused,
}

/// Storage of a thread that reads for the first time.
pub struct NewReader(&'static mut ReaderTask);

impl NewReader {
    /// Assigns the thread its slot, or permanently none.
    #[inline(always)]
    pub fn remember(self, slot: Option<u32>) {
        self.0.slot_plus_one = match slot {
            Some(slot) => slot + 1,
            None => SLOT_NONE,
        };
    }
}

/// What is known of the thread; creates storage for it if there is none.
#[inline(always)]
pub fn reader_thread(task: Task) -> ReaderThread {
    let Some(storage) = task_storage(task, 1) else {
        count_loss(Loss::ReaderStorage);
        return ReaderThread::Refused;
    };
    match storage.slot_plus_one {
        0 => ReaderThread::New(NewReader(storage)),
        SLOT_NONE => ReaderThread::Ignored,
        slot => ReaderThread::Slot(slot - 1),
    }
}
