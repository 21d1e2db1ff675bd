//! Counts of dropped segments, by socket and reason.

/// Key of the map `DROPS`; the value is a count (u64).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct DropKey {
    /// The socket's cookie.
    pub cookie: u64,
    /// The running kernel's `enum skb_drop_reason`.
    pub reason: u32,
    /// Zero.
    pub padding: u32,
}

const _: () = assert!(size_of::<DropKey>() == 16);
