//! One pass of the snapshot over all sockets: what user space passes to the iterator, and what the iterator leaves for
//! it.
//!
//! The iterator writes nothing to its file, so the kernel keeps running it within one system call. It puts records into
//! the array `RECORDS`. When that array is full or the call has done enough work, it ends the system call before the
//! next socket. User space then takes the records, resets the counts, and reads again. The two never run at the same
//! time.

/// Most records that one system call makes.
pub const RECORDS: u32 = 2048;

/// Most sockets that one system call visits if none of them has changed. A socket that is shown counts as two.
pub const WORK: u32 = 2 * RECORDS;

/// Shows sockets that have changed since they were last shown, or are not at rest.
pub const SHOW_CHANGED: u32 = 0;
/// Shows all sockets.
pub const SHOW_ALL: u32 = 1;
/// Shows listening sockets that have not been shown yet.
pub const SHOW_LISTENERS: u32 = 2;

/// The only value of the array `PASS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct PassControl {
    /// A `SHOW_` constant; set by user space.
    pub show: u32,
    /// Work done in this system call, in the unit of [`WORK`]; reset by user space.
    pub work: u32,
    /// Records made in this system call; reset by user space.
    pub records: u32,
    /// Number of indexes in [`PassControl::free`]; set by user space.
    pub free_count: u32,
    /// How many of these indexes were taken in this system call; reset by user space.
    pub taken: u32,
    /// Connections visited in this system call for which counting has started and that have not ended; reset by user
    /// space.
    pub living: u32,
    /// Indexes that no socket has. The iterator gives them, in this order, to sockets that it shows for the first time.
    pub free: [u32; RECORDS as usize],
}

impl PassControl {
    /// All zero.
    pub const ZERO: Self =
        Self { show: 0, work: 0, records: 0, free_count: 0, taken: 0, living: 0, free: [0; RECORDS as usize] };
}

const _: () = assert!(size_of::<PassControl>() == 24 + 4 * RECORDS as usize);
