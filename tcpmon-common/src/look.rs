//! What a pass reads from the sockets themselves, with a program that user space runs for a few hundred states at a
//! time.

use crate::socket::SocketLive;

/// Number of states that one run looks at: at most 0.64 ms of CPU time on the slowest machine so far
/// (docs/performance.md).
pub const LOOKS: u32 = 256;

/// Looks at sockets that have changed since they were last shown, or are not at rest.
pub const SHOW_CHANGED: u32 = 0;
/// Looks at all sockets.
pub const SHOW_ALL: u32 = 1;
/// Looks at listening sockets only.
pub const SHOW_LISTENERS: u32 = 2;

/// The program's arguments.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LookArguments {
    /// Index of the first state.
    pub first: u64,
    /// Number of states, at most [`LOOKS`].
    pub count: u64,
    /// A `SHOW_` constant.
    pub show: u64,
}

/// One socket: value of the array `LOOKS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Look {
    /// The index of its state.
    pub index: u32,
    /// [`SocketState::sequence`](crate::socket::SocketState::sequence) before the clock and the socket were read.
    pub sequence: u32,
    /// When the socket was looked at, `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// The socket's fields.
    pub live: SocketLive,
}

const _: () = assert!(size_of::<Look>() == 72);
