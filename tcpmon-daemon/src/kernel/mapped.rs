//! BPF arrays, mapped into this process: thousands of values are looked at without a system call.
#![expect(unsafe_code, reason = "mmap(2) of a BPF array")]

use std::{io, marker::PhantomData, os::fd::BorrowedFd, ptr, ptr::NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use zerocopy::FromBytes;

/// A mapped array of `T`. The kernel's programs may write to it at any time: each access is one volatile copy, and each
/// number in a value is right for itself.
#[derive(Debug)]
pub struct Mapped<T> {
    first: NonNull<T>,
    count: usize,
    of: PhantomData<T>,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl<T> Send for Mapped<T> {}

impl<T: FromBytes + Copy> Mapped<T> {
    /// Maps an array that was made with `BPF_F_MMAPABLE` and holds `count` values, whose size is a multiple of 8 bytes.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn map(array: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8), "the kernel rounds the distance of values up to 8 bytes") };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let address = unsafe { mmap(ptr::null_mut(), count * size_of::<T>(), access, MapFlags::SHARED, array, 0)? };
        let first = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { first, count, of: PhantomData })
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// One value.
    pub fn get(&self, index: usize) -> Option<T> {
        // SAFETY: within the mapping; any bytes are a value.
        (index < self.count).then(|| unsafe { ptr::read_volatile(self.first.add(index).as_ptr()) })
    }

    /// The part of a value that lies `offset` bytes into it.
    pub fn peek<U: FromBytes>(&self, index: usize, offset: usize) -> Option<U> {
        let inside =
            index < self.count && offset.is_multiple_of(align_of::<U>()) && offset + size_of::<U>() <= size_of::<T>();
        // SAFETY: within the value and aligned, as was just checked; any bytes are a value.
        inside.then(|| unsafe { ptr::read_volatile(self.first.add(index).byte_add(offset).cast::<U>().as_ptr()) })
    }

    /// Replaces a value; nothing beyond the array.
    pub fn set(&self, index: usize, value: T) {
        if index < self.count {
            // SAFETY: within the mapping.
            unsafe { ptr::write_volatile(self.first.add(index).as_ptr(), value) };
        }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; nothing borrows from it, values are copied out.
        let unmapped = unsafe { munmap(self.first.as_ptr().cast(), self.count * size_of::<T>()) };
        debug_assert!(unmapped.is_ok(), "the mapping was ours: {unmapped:?}");
    }
}
