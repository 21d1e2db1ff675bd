//! A reader: a thread that drained data from a TCP socket.

use crate::{counters::counters, histogram::TimeBins, name::Name};

/// No slot: the socket has no known reader.
pub const SLOT_NONE: u32 = u32::MAX;

/// The thread was preempted. Like the next two constants: why a timeslice ended, and an index into
/// [`ReaderCounters::ends`].
pub const END_PREEMPTED: u32 = 0;
/// The thread went to sleep.
pub const END_BLOCKED: u32 = 1;
/// The thread exited.
pub const END_EXITED: u32 = 2;

/// Slots of readers that were never taken. Like the next constant, a key of the array `UNUSED`.
pub const UNUSED_SLOTS: u32 = 0;
/// Places for further sockets of traced readers that were never taken.
pub const UNUSED_PLACES: u32 = 1;

/// The slot is in use.
pub const READER_ACTIVE: u32 = 1;
/// The thread has exited; user space collects the slot's totals and frees the slot.
pub const READER_EXITED: u32 = 2;
/// The trace's filter matched the thread.
pub const READER_TRACED: u32 = 4;

/// First port of the range from which systems choose ports for outgoing connections. A remote port in that range does
/// not name a service.
pub const FIRST_EPHEMERAL: u16 = 32_768;

/// Services that are told apart for each thread. The last one is `other` and stands for all further services.
pub const READER_SERVICES: usize = 8;

/// What is known of one reader thread: value of the array `READERS`. Written by `sched_switch` on the CPU that the
/// thread leaves or enters, and by the thread's own reads: only one writer at a time.
///
/// A thread that reads for several services has one more slot for each further service. The slots form a chain, and
/// each timeslice is added to the slot of the service that was read last in it. The first slot of the chain is the
/// thread's own; the others hold only sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct ReaderSlot {
    /// Thread id in the initial PID namespace.
    pub tid: u32,
    /// Thread-group id (what `ps` calls the pid).
    pub tgid: u32,
    /// Number of times that the thread got or lost a CPU: odd while it is on a CPU. Wraps. 0 if nobody counts
    /// timeslices.
    pub edges: u32,
    /// `READER_` flags.
    pub flags: u32,
    /// Cookie of the socket that the thread read last.
    pub cookie: u64,
    /// Slot to which the thread's timeslices are now added: its own while it reads for one service.
    pub sums: u32,
    /// Next slot of the chain, or [`SLOT_NONE`].
    pub next: u32,
    /// `se.sum_exec_runtime` when it was last added to the totals, ns: at the last deactivation, or at the last read if
    /// nobody counts timeslices.
    pub exec_ns: u64,
    /// `sched_info.run_delay` at the same moment, ns.
    pub run_delay_ns: u64,
    /// The thread group's name.
    pub process: Name,
    /// `SOCKET_` flags that determine the service, of the socket for which the slot was made.
    pub socket_flags: u32,
    /// Local port, if it determines the service.
    pub local_port: u16,
    /// Remote port, if it determines the service.
    pub remote_port: u16,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Services that the thread has slots for; used only in the first of its slots.
    pub services: u32,
    /// When the thread was first seen reading, `CLOCK_MONOTONIC`, ns.
    pub begun_ns: u64,
    /// Id of the thread's control group (v2) when the slot was made; 0 if it is not known.
    pub cgroup: u64,
    /// In a trace: bytes that the thread has read.
    pub read_bytes: u64,
    /// The totals.
    pub counters: ReaderCounters,
}

counters! {
    /// The totals of one reader for one service. Each of them only grows (and wraps).
    counters ReaderCounters;
    /// Sums over the readers of a group.
    sums ReaderTotals;
    {
        /// Timeslices by how they ended: `END_PREEMPTED`, `END_BLOCKED`, `END_EXITED`.
        ends: [u64; 3],
        /// Time on the CPU, ns.
        on_cpu_ns: u64,
        /// Time runnable but waiting for a CPU, ns.
        run_queue_wait_ns: u64,
        /// Time on the CPU per timeslice.
        on_cpu: TimeBins,
        /// Time runnable but waiting for a CPU, per timeslice.
        run_queue_wait: TimeBins,
    }
    derived {}
    splits {}
}

// Not counting the counters, whose declaration allows no padding.
const _: () = assert!(size_of::<ReaderSlot>() - size_of::<ReaderCounters>() == 104);
