//! Which processes have a socket open: the records of an iterator that user space runs from time to time.

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
