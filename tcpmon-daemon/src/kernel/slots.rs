//! The array `READERS`, mapped into this process: thousands of slots are looked at without a system call.
#![expect(unsafe_code, reason = "mmap(2) of a BPF array")]

use std::{io, os::fd::BorrowedFd, ptr, ptr::NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tcpmon_common::reader::ReaderSlot;

/// The mapped array.
#[derive(Debug)]
pub struct Slots {
    first: NonNull<ReaderSlot>,
    count: usize,
}

// SAFETY: the mapping belongs to this value alone and is only read, volatile, slot by slot.
unsafe impl Send for Slots {}

impl Slots {
    /// Maps an array that was made with `BPF_F_MMAPABLE` and holds `count` slots.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn map(array: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let address = unsafe {
            mmap(ptr::null_mut(), count * size_of::<ReaderSlot>(), ProtFlags::READ, MapFlags::SHARED, array, 0)?
        };
        let first = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { first, count })
    }

    /// The slots in use, with their numbers. A slot that a CPU writes meanwhile may be seen half-way: each number
    /// in it is right for itself.
    pub fn used(&self) -> impl Iterator<Item = (u32, ReaderSlot)> + '_ {
        (0..self.count).filter_map(|index| {
            // SAFETY: within the mapping. Flags are looked at first, so that free slots cost one load.
            let (flags, slot) = unsafe {
                let slot = self.first.add(index);
                (ptr::read_volatile(&raw const (*slot.as_ptr()).flags), slot)
            };
            if flags == 0 {
                return None;
            }
            // SAFETY: as above; any bytes are a value.
            Some((index as u32, unsafe { ptr::read_volatile(slot.as_ptr()) }))
        })
    }

    /// One slot.
    pub fn get(&self, index: u32) -> Option<ReaderSlot> {
        if index as usize >= self.count {
            return None;
        }
        // SAFETY: within the mapping; any bytes are a value.
        Some(unsafe { ptr::read_volatile(self.first.add(index as usize).as_ptr()) })
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; nothing borrows from it, values are copied out.
        let unmapped = unsafe { munmap(self.first.as_ptr().cast(), self.count * size_of::<ReaderSlot>()) };
        debug_assert!(unmapped.is_ok(), "the mapping was ours: {unmapped:?}");
    }
}
