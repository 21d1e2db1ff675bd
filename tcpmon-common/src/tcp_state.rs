//! The TCP states that tcpmon distinguishes, with the kernel's numbers. They are user-space ABI, so they are constants.

/// `TCP_ESTABLISHED`.
pub const ESTABLISHED: u32 = 1;
/// `TCP_SYN_SENT`.
pub const SYN_SENT: u32 = 2;
/// `TCP_SYN_RECV`.
pub const SYN_RECV: u32 = 3;
/// `TCP_FIN_WAIT1`: this side has sent its FIN.
pub const FIN_WAIT1: u32 = 4;
/// `TCP_FIN_WAIT2`: this side has sent its FIN, and the peer has acknowledged it.
pub const FIN_WAIT2: u32 = 5;
/// `TCP_CLOSE`.
pub const CLOSE: u32 = 7;
/// `TCP_CLOSE_WAIT`: the peer has sent its FIN.
pub const CLOSE_WAIT: u32 = 8;
/// `TCP_LAST_ACK`: both have sent their FIN, the peer first.
pub const LAST_ACK: u32 = 9;
/// `TCP_LISTEN`.
pub const LISTEN: u32 = 10;
/// `TCP_CLOSING`: both have sent their FIN at the same time.
pub const CLOSING: u32 = 11;
