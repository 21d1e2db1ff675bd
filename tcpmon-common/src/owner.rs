//! Which processes have a socket open: the records of iterators that user space runs.

use crate::name::Name;

/// A process that has a listening socket open, or a connection with unread data. A socket that is open in
/// several processes has a record for each, in the order of their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Owner {
    /// The socket's cookie.
    pub cookie: u64,
    /// Name of the process.
    pub process: Name,
    /// Id of its control group (v2); 0 if it is not known.
    pub cgroup: u64,
    /// Its id.
    pub tgid: u32,
    /// Zero.
    pub padding: u32,
}

/// A descriptor of a process, by which it has open a TCP socket without a cookie. The records of a process are next to
/// each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Descriptor {
    /// Id of the process.
    pub tgid: u32,
    /// Number of the descriptor.
    pub number: u32,
}
