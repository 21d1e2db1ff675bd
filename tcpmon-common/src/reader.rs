//! A reader: a thread that drained data from a TCP socket.

use crate::histogram::TimeBins;

/// No slot: the socket has no known reader.
pub const SLOT_NONE: u32 = u32::MAX;

/// Why a timeslice ended; index into [`ReaderSlot::ends`].
pub const END_PREEMPTED: u32 = 0;
/// The thread went to sleep.
pub const END_BLOCKED: u32 = 1;
/// The thread exited.
pub const END_EXITED: u32 = 2;

/// The slot is in use.
pub const READER_ACTIVE: u32 = 1;
/// The thread is gone; user space takes what is here and frees the slot.
pub const READER_EXITED: u32 = 2;
/// The trace's filter matched the thread.
pub const READER_TRACED: u32 = 4;

/// What is known of one reader thread; value of the array `READERS`. Written by `sched_switch` on the CPU that the
/// thread leaves or enters, which is one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct ReaderSlot {
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Thread-group id (what `ps` calls the pid).
    pub tgid: u32,
    /// Edges seen: odd while the thread is on a CPU. Wraps.
    pub switches: u32,
    /// `READER_` flags.
    pub flags: u32,
    /// The thread group's name.
    pub process: [u8; 16],
    /// `SOCKET_` flags, ports and network namespace of the socket that it took over last.
    pub socket_flags: u32,
    /// Port of this side.
    pub local_port: u16,
    /// Port of the other side.
    pub remote_port: u16,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Zero.
    pub padding: u32,
    /// `se.sum_exec_runtime` at the last deactivation, ns.
    pub exec_ns: u64,
    /// `sched_info.run_delay` at the last deactivation, ns.
    pub run_delay_ns: u64,
    /// Timeslices by their end.
    pub ends: [u64; 3],
    /// Time on the CPU, ns.
    pub on_cpu_ns: u64,
    /// Time runnable but waiting for a CPU, ns.
    pub wait_ns: u64,
    /// Time on the CPU per timeslice.
    pub on_cpu: TimeBins,
    /// Time runnable but waiting for a CPU, per timeslice.
    pub wait: TimeBins,
}

const _: () = assert!(size_of::<ReaderSlot>() == 360);
