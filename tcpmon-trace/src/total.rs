//! Totals of a socket or a thread over a trace. They are counted in the kernel, so they are exact even if timeslices
//! were lost.

use std::net::SocketAddr;

use crate::record::{AddressFamily, Comm, Limited, NOWHERE, Waited};

/// Totals of one socket or one thread; the timeslices of a trace come before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// Totals of a socket.
    Socket(SocketTotal),
    /// Totals of a thread.
    Thread(ThreadTotal),
}

/// What a socket received, and what the traced threads read from it, during the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketTotal {
    /// When the totals were taken, at the socket's or the trace's end: `CLOCK_MONOTONIC`, ns.
    pub at_ns: u64,
    /// The socket's cookie.
    pub cookie: u64,
    /// The socket's family.
    pub family: AddressFamily,
    /// This side.
    pub local: SocketAddr,
    /// The other side.
    pub remote: SocketAddr,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Id of the thread that read last.
    pub tid: u32,
    /// Its thread group.
    pub tgid: u32,
    /// Name of the thread group.
    pub comm: Comm,
    /// The socket was closed during the trace.
    pub closed: bool,
    /// Data that arrived in order during the trace, plus data that was unread when it began, bytes.
    pub received_bytes: u64,
    /// Data that traced threads read, bytes.
    pub read_bytes: u64,
    /// The part of it that is in timeslices of this trace, bytes.
    pub timeslices_read_bytes: u64,
    /// Time during which the advertised window was below one segment, ns.
    pub zero_window_ns: u64,
    /// What limited the connection: the sum over its timeslices and what was decided after the last of them, but not
    /// what was in lost timeslices.
    pub limited: Limited,
    /// What its bytes waited for, counted in the same way.
    pub waited: Waited,
}

impl SocketTotal {
    /// Totals in which everything is empty or zero.
    pub(crate) const EMPTY: Self = Self {
        at_ns: 0,
        cookie: 0,
        family: AddressFamily::V4,
        local: NOWHERE,
        remote: NOWHERE,
        netns: 0,
        tid: 0,
        tgid: 0,
        comm: Comm::EMPTY,
        closed: false,
        received_bytes: 0,
        read_bytes: 0,
        timeslices_read_bytes: 0,
        zero_window_ns: 0,
        limited: Limited::NONE,
        waited: Waited::NONE,
    };
}

/// A thread's time, from its first traced read to its or the trace's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadTotal {
    /// When it was first seen reading, `CLOCK_MONOTONIC`, ns.
    pub begun_ns: u64,
    /// When the totals were taken, `CLOCK_MONOTONIC`, ns.
    pub at_ns: u64,
    /// Thread id.
    pub tid: u32,
    /// Thread group id.
    pub tgid: u32,
    /// The thread's name; that of its group if it has no timeslice in the trace.
    pub comm: Comm,
    /// It exited during the trace.
    pub exited: bool,
    /// Time on the CPU in timeslices that have ended, ns.
    pub on_cpu_ns: u64,
    /// Time runnable but without a CPU before these, ns.
    pub wait_ns: u64,
    /// Timeslices that ended because another thread got the CPU.
    pub preempted: u64,
    /// Timeslices that ended because the thread went to sleep.
    pub blocked: u64,
    /// Data that it read from TCP sockets, bytes.
    pub read_bytes: u64,
}

impl ThreadTotal {
    /// Totals in which everything is empty or zero.
    pub(crate) const EMPTY: Self = Self {
        begun_ns: 0,
        at_ns: 0,
        tid: 0,
        tgid: 0,
        comm: Comm::EMPTY,
        exited: false,
        on_cpu_ns: 0,
        wait_ns: 0,
        preempted: 0,
        blocked: 0,
        read_bytes: 0,
    };
}
