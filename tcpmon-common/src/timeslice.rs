//! One timeslice of a traced reader, for one of its sockets.

use crate::{
    causes::Causes,
    header::{Header, Record},
};

/// Number of sockets that a traced reader keeps from timeslice to timeslice, and of sockets in one entry of the map
/// `TRACED_SOCKETS`.
pub const KEPT_SOCKETS: usize = 8;

/// The receive queue at an edge of a timeslice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct QueueSample {
    /// `rcv_nxt`.
    pub rcv_nxt: u32,
    /// `copied_seq`.
    pub copied_seq: u32,
    /// `sk_rmem_alloc`, bytes.
    pub rmem: u32,
    /// `sk_rcvbuf`, bytes.
    pub rcvbuf: u32,
    /// `sk_backlog.len`, bytes.
    pub backlog: u32,
    /// Advertised window, bytes.
    pub window: u32,
}

impl QueueSample {
    /// All zero.
    pub const ZERO: Self = Self { rcv_nxt: 0, copied_seq: 0, rmem: 0, rcvbuf: 0, backlog: 0, window: 0 };
}

/// The activation was not seen: tcpmon first saw the thread in the middle of this timeslice.
pub const TIMESLICE_PARTIAL: u16 = 1;
/// Another thread took the socket over during this timeslice.
pub const TIMESLICE_HANDED_OVER: u16 = 2;
/// The socket was closed during this timeslice: the deactivation shows it as of its last read.
pub const TIMESLICE_CLOSED: u16 = 4;

/// A record of the trace; `header.time_ns` is the time of the deactivation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Timeslice {
    /// Kind, CPU, time of the deactivation, cookie.
    pub header: Header,
    /// When the thread was scheduled in, ns.
    pub activated_ns: u64,
    /// Time on the CPU (`se.sum_exec_runtime`), ns.
    pub on_cpu_ns: u64,
    /// Time runnable but not running before this timeslice (`sched_info.run_delay`), ns.
    pub run_queue_wait_ns: u64,
    /// Time asleep before this timeslice, ns.
    pub sleep_ns: u64,
    /// The receive queue at the activation.
    pub activation: QueueSample,
    /// The receive queue at the deactivation.
    pub deactivation: QueueSample,
    /// Bytes that arrived after the end of the previous timeslice and before this activation.
    pub arrived_off_cpu_bytes: u64,
    /// Bytes that arrived during this timeslice.
    pub arrived_on_cpu_bytes: u64,
    /// Bytes that the thread drained.
    pub read_bytes: u64,
    /// What limited the connection, and what its bytes waited for, up to its reads in this timeslice.
    pub causes: Causes,
    /// Receiver's RTT estimate, us.
    pub rcv_rtt_us: u32,
    /// `rcv_ssthresh`, bytes.
    pub rcv_ssthresh: u32,
    /// `window_clamp`, bytes.
    pub window_clamp: u32,
    /// Thread id.
    pub tid: u32,
    /// Thread-group id.
    pub tgid: u32,
    /// The thread's name.
    pub comm: [u8; 16],
    /// Inode number of the network namespace.
    pub netns: u32,
    /// `END_` constant of [`reader`](crate::reader).
    pub end: u16,
    /// `TIMESLICE_` flags.
    pub flags: u16,
    /// `AF_INET` or `AF_INET6`.
    pub family: u16,
    /// Local port.
    pub local_port: u16,
    /// Remote port.
    pub remote_port: u16,
    /// Bit 0: the peer's FIN had been received at the activation; bit 1: at the deactivation.
    pub fin: u16,
    /// Local address.
    pub local_address: [u8; 16],
    /// Remote address.
    pub remote_address: [u8; 16],
    /// Id of the thread that got the CPU, if this one was preempted; otherwise 0.
    pub next_tid: u32,
    /// Name of that thread.
    pub next_comm: [u8; 16],
}

#[expect(unsafe_code, reason = "see `Record`")]
// SAFETY: integers only, with explicit padding (the sizes are asserted).
unsafe impl Record for Timeslice {}

const _: () = assert!(size_of::<QueueSample>() == 24);
const _: () = assert!(size_of::<Timeslice>() == 288);
