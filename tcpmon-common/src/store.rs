//! The store of the sockets' states: what the programs and user space share.
//!
//! The states are in mapped arrays of [`BLOCK`] each, which user space adds ahead of need. A state is known by its
//! index. Free states form a list, from which programs take and to which user space gives back; states of sockets that
//! have ended form another list, to which programs add and which user space takes as a whole. Both lists are linked
//! through [`SocketState::next`](crate::socket::SocketState::next), so neither can overflow.
//!
//! Programs find a state by its socket's cookie, which no two sockets of a host ever share, in a table of [`Bucket`]s
//! of one cache line. A cookie has two buckets.

/// States in one array.
pub const BLOCK: u32 = 1024;

/// Bits of an index in an entry of the table.
const INDEX_BITS: u32 = 20;

/// Most states that there can be. The last index stands for none.
pub const MAX_STATES: u32 = (1 << INDEX_BITS) - BLOCK;

/// No state.
pub const NO_STATE: u32 = u32::MAX;

/// Entries of a bucket.
pub const BUCKET: usize = 8;

/// With more entries than this in its first bucket, a new entry goes to the emptier one of the two. Most look-ups then
/// end in the first bucket, and none of 5.5 million entries found both full with four entries a bucket on average.
pub const CROWDED: u32 = 5;

/// Entries with the same number of sockets of a host in front of the index, or 0 if they are free.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Bucket(pub [u64; BUCKET]);

/// Number of buckets for at most this many sockets, as a power of two: four sockets a bucket.
pub fn buckets_log2(max_sockets: u32) -> u32 {
    (max_sockets / 4).max(2).next_power_of_two().ilog2()
}

/// The first or the second bucket of a cookie in a table of `1 << (64 - shift)` buckets.
#[inline(always)]
pub fn bucket(cookie: u64, second: bool, shift: u32) -> u32 {
    let factor = if second { 0xC2B2_AE3D_27D4_EB4F } else { 0x9E37_79B9_7F4A_7C15 };
    (cookie.wrapping_mul(factor) >> shift) as u32
}

/// The table's entry for a socket: the low 44 bits of its cookie, and the index of its state.
#[inline(always)]
pub fn entry(cookie: u64, index: u32) -> u64 {
    cookie << INDEX_BITS | index as u64
}

/// The index in an entry, if the entry is this cookie's.
#[inline(always)]
pub fn index_in(entry: u64, cookie: u64) -> Option<u32> {
    let index = entry ^ cookie << INDEX_BITS;
    if index >> INDEX_BITS == 0 { Some(index as u32) } else { None }
}

/// The heads of both lists, each in a cache line of its own: the only value of the array `STORE`.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C, align(64))]
pub struct StoreControl {
    /// Index of the first free state, or [`NO_STATE`]; above it how many states were ever taken, so that two equal
    /// numbers always stand for the same list.
    pub free: u64,
    /// The program that takes the state with this number wakes user space.
    pub wake_at: u32,
    /// Zero.
    pub padding: [u32; 13],
    /// Index of the state that was added last to the list of those that have ended, or [`NO_STATE`].
    pub ended: u64,
    /// Zero.
    pub padding_of_ended: [u64; 7],
}

const _: () = assert!(size_of::<StoreControl>() == 128);

/// What is left of the list's head when its first state is taken; `next` is the state behind it.
#[inline(always)]
pub fn head_after(head: u64, next: u32) -> u64 {
    ((head >> 32) + 1) << 32 | next as u64
}
