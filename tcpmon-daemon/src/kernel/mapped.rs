//! BPF arrays that are mapped into this process: thousands of values can be read without a system call.
#![expect(unsafe_code, reason = "mmap(2) of a BPF array")]

use std::{
    io,
    marker::PhantomData,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, AtomicU64},
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use zerocopy::FromBytes;

/// A type of word that user space and programs both change.
pub trait Word {
    /// What it holds.
    type Plain;

    /// # Safety
    /// A word of this type must be there for as long as the result is used.
    unsafe fn at<'a>(word: *mut Self::Plain) -> &'a Self;
}

macro_rules! word {
    ($($word:ident of $plain:ident),+) => {
        $(
            impl Word for $word {
                type Plain = $plain;

                unsafe fn at<'a>(word: *mut $plain) -> &'a Self {
                    // SAFETY: as the caller promises.
                    unsafe { $word::from_ptr(word) }
                }
            }
        )+
    };
}

word!(AtomicU32 of u32, AtomicU64 of u64);

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
        // SAFETY: within the value and aligned; any bytes are a valid value.
        self.is_inside::<U>(index, offset)
            .then(|| unsafe { ptr::read_volatile(self.first.add(index).byte_add(offset).cast::<U>().as_ptr()) })
    }

    /// Writes the part of a value that starts at byte `offset` in it; does nothing if it is not inside.
    pub fn poke<U: FromBytes>(&self, index: usize, offset: usize, value: U) {
        if self.is_inside::<U>(index, offset) {
            // SAFETY: within the value and aligned.
            unsafe { ptr::write_volatile(self.first.add(index).byte_add(offset).cast::<U>().as_ptr(), value) };
        }
    }

    /// A word that programs also change.
    ///
    /// # Panics
    /// If it is not inside the array.
    pub fn word<U: Word>(&self, index: usize, offset: usize) -> &U {
        assert!(self.is_inside::<U::Plain>(index, offset), "the callers know the array");
        // SAFETY: within the value and aligned; the mapping lives as long as this value.
        unsafe { U::at(self.first.add(index).byte_add(offset).cast().as_ptr()) }
    }

    fn is_inside<U>(&self, index: usize, offset: usize) -> bool {
        index < self.count && offset.is_multiple_of(align_of::<U>()) && offset + size_of::<U>() <= size_of::<T>()
    }

    /// Replaces a value; does nothing if `index` is beyond the array.
    pub fn set(&self, index: usize, value: T) {
        if index < self.count {
            // SAFETY: within the mapping.
            unsafe { ptr::write_volatile(self.first.add(index).as_ptr(), value) };
        }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`; nothing borrows from it, because values are copied out.
        let unmapped = unsafe { munmap(self.first.as_ptr().cast(), self.count * size_of::<T>()) };
        debug_assert!(unmapped.is_ok(), "the mapping was ours: {unmapped:?}");
    }
}
