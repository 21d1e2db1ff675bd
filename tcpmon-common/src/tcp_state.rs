//! The TCP states that tcpmon distinguishes, with the kernel's numbers. They are user-space ABI, so they are constants.

/// `TCP_ESTABLISHED`.
pub const ESTABLISHED: u32 = 1;
/// `TCP_SYN_SENT`.
pub const SYN_SENT: u32 = 2;
/// `TCP_SYN_RECV`.
pub const SYN_RECV: u32 = 3;
/// `TCP_CLOSE`.
pub const CLOSE: u32 = 7;
/// `TCP_LISTEN`.
pub const LISTEN: u32 = 10;
