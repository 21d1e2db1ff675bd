//! The header that every record sent to user space starts with.

/// Version of the record layouts. Both sides come from one build, so this only guards against decoding foreign bytes.
pub const VERSION: u16 = 1;

/// What a record is, where and when it was made, and which socket it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Header {
    /// One of the `KIND_` constants.
    pub kind: u16,
    /// [`VERSION`].
    pub version: u16,
    /// The CPU that the program ran on.
    pub cpu: u32,
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// The socket's cookie (`ss -e` shows the same), or what the kind says.
    pub cookie: u64,
}

/// A record in the ring.
///
/// # Safety
/// The type is `repr(C)`, has no implicit padding, and all zeros is a valid value.
#[expect(unsafe_code, reason = "it promises a layout")]
pub unsafe trait Record {}

#[expect(unsafe_code, reason = "see `Record`")]
// SAFETY: integers only, without padding (the size is asserted).
unsafe impl Record for Header {}

/// A header only: the reader in slot `cookie` has exited and its slot can be collected.
pub const KIND_READER_EXIT: u16 = 1;
/// A header only: the socket whose state has the index `cookie` starts to listen.
pub const KIND_LISTENER: u16 = 2;
/// A header only: few states are left in the store.
pub const KIND_FEW_STATES: u16 = 3;
/// A [`Timeslice`](crate::timeslice::Timeslice).
pub const KIND_TIMESLICE: u16 = 4;

const _: () = assert!(size_of::<Header>() == 24);
