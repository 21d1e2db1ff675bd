//! BPF arrays that are mapped into this process: thousands of values can be read without a system call.
#![expect(unsafe_code, reason = "mmap(2) of a BPF array")]

use std::{
    io,
    marker::PhantomData,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use zerocopy::FromBytes;

/// A mapped array of `T`.
///
/// The kernel's programs may write to it at any time. So each access is one volatile copy: each number in a value is
/// valid by itself, but the numbers may be from different moments.
#[derive(Debug)]
pub struct Mapped<T> {
    first: NonNull<T>,
    count: usize,
    of: PhantomData<T>,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl<T> Send for Mapped<T> {}

impl<T: FromBytes + Copy> Mapped<T> {
    /// Maps an array that was created with `BPF_F_MMAPABLE` and holds `count` values, whose size is a multiple of 8
    /// bytes.
    ///
    /// # Errors
    /// The error of mmap(2).
    pub fn map(array: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8), "the kernel rounds the distance of values up to 8 bytes") };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address = unsafe { mmap(ptr::null_mut(), count * size_of::<T>(), access, MapFlags::SHARED, array, 0)? };
        let first = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { first, count, of: PhantomData })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.count
    }

    /// One value.
    pub fn get(&self, index: usize) -> Option<T> {
        // SAFETY: within the mapping; any bytes are a valid value.
        (index < self.count).then(|| unsafe { ptr::read_volatile(self.first.add(index).as_ptr()) })
    }

    /// Reads the part of a value that starts at byte `offset` in it.
    pub fn peek<U: FromBytes>(&self, index: usize, offset: usize) -> Option<U> {
        let inside =
            index < self.count && offset.is_multiple_of(align_of::<U>()) && offset + size_of::<U>() <= size_of::<T>();
        // SAFETY: within the value and aligned, as was just checked; any bytes are a valid value.
        inside.then(|| unsafe { ptr::read_volatile(self.first.add(index).byte_add(offset).cast::<U>().as_ptr()) })
    }

    /// Replaces a value; does nothing if `index` is beyond the array.
    pub fn set(&self, index: usize, value: T) {
        if index < self.count {
            // SAFETY: within the mapping.
            unsafe { ptr::write_volatile(self.first.add(index).as_ptr(), value) };
        }
    }
}

impl Mapped<[u8; 8]> {
    /// Takes a value and leaves zeros, in one step: what a program writes meanwhile is there the next time. Later reads
    /// of this thread see nothing older. Zeros if `index` is beyond the array.
    pub fn take(&self, index: usize) -> [u8; 8] {
        if index >= self.count {
            return [0; 8];
        }
        // SAFETY: within the mapping, of which each value is aligned to 8 bytes.
        let word = unsafe { AtomicU64::from_ptr(self.first.add(index).cast().as_ptr()) };
        // Mostly, there is nothing.
        if word.load(Ordering::Acquire) == 0 { [0; 8] } else { word.swap(0, Ordering::AcqRel).to_ne_bytes() }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`; nothing borrows from it, because values are copied out.
        let unmapped = unsafe { munmap(self.first.as_ptr().cast(), self.count * size_of::<T>()) };
        debug_assert!(unmapped.is_ok(), "the mapping was ours: {unmapped:?}");
    }
}
