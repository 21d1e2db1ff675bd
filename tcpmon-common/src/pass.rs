//! One pass of the snapshot over all sockets: what user space tells the iterator, and what that leaves for it.
//!
//! The iterator writes nothing to its file, so the kernel runs it on and on. It puts records into the array `RECORDS`
//! and ends the system call, before it looks at the next socket, when that is full or a call has done enough; user space
//! takes the records, resets the counts, and reads on. Both never run at the same time.

/// Records that one system call can make.
pub const RECORDS: u32 = 2048;

/// Sockets that one system call looks at, when none of them has changed. One that is shown counts as two.
pub const WORK: u32 = 2 * RECORDS;

/// Shows sockets that have changed since they were shown last, or are not at rest.
pub const SHOW_CHANGED: u32 = 0;
/// Shows all sockets.
pub const SHOW_ALL: u32 = 1;
/// Shows listening sockets that were not shown yet.
pub const SHOW_LISTENERS: u32 = 2;

/// The only value of the array `PASS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Pass {
    /// A `SHOW_` constant; set by user space.
    pub show: u32,
    /// Work done in this system call; reset by user space.
    pub work: u32,
    /// Records made in this system call; reset by user space.
    pub records: u32,
    /// How many of [`Pass::free`] are free; set by user space.
    pub free_count: u32,
    /// How many of them were taken in this system call; reset by user space.
    pub taken: u32,
    /// Connections met in this system call that counting has begun for and that have not ended; reset by user space.
    pub living: u32,
    /// Indexes that no socket has: the iterator gives them, in this order, to sockets that it shows for the first time.
    pub free: [u32; RECORDS as usize],
}

impl Pass {
    /// All zero.
    pub const ZERO: Self =
        Self { show: 0, work: 0, records: 0, free_count: 0, taken: 0, living: 0, free: [0; RECORDS as usize] };
}

const _: () = assert!(size_of::<Pass>() == 24 + 4 * RECORDS as usize);
