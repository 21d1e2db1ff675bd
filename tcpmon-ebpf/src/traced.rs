//! What a trace keeps of each reader: the values of the maps `TRACED` and `TRACED_SOCKETS`.

use tcpmon_common::{causes::Causes, timeslice::QueueSample};

/// Maximum number of further sockets that a reader may read in one timeslice, each with a record of its own.
pub const MAX_FURTHER_SOCKETS: u32 = 1024;

/// The trace's data of one reader: value of the array `TRACED`.
#[repr(C)]
pub struct TracedReader {
    /// When it was last scheduled in, ns.
    pub activated_ns: u64,
    /// When it was last scheduled out before that, ns; 0 if that was not seen.
    pub deactivated_ns: u64,
    /// 1 from the activation until all records of the timeslice have been made.
    pub open: u64,
    /// Place of the first of the further sockets that were read in this timeslice; 0 if there is none.
    pub first_further: u32,
    /// The number of these further sockets.
    pub further_count: u32,
    /// Not 0 while the reader changes the list of further sockets.
    pub further_busy: u64,
    /// The end of its last timeslice.
    pub edge: Edge,
}

/// What all records of one timeslice have in common.
#[repr(C)]
pub struct Edge {
    pub now: u64,
    pub activated_ns: u64,
    pub on_cpu_ns: u64,
    pub run_queue_wait_ns: u64,
    pub sleep_ns: u64,
    pub comm: [u8; 16],
    /// Name of the thread that got the CPU, if this one was preempted; otherwise empty.
    pub next_comm: [u8; 16],
    pub tid: u32,
    pub tgid: u32,
    pub next_tid: u32,
    pub end: u32,
}

/// One socket of a traced reader.
#[repr(C)]
pub struct TracedSocket {
    /// Address of the `struct sock`.
    pub sock: u64,
    /// 0 when the entry is free.
    pub cookie: u64,
    /// `cookie` if another thread has taken the socket over. While the reader is in a timeslice, another thread writes
    /// only this field and `taken_data_end`.
    pub taken: u64,
    /// `activated_ns` of the timeslice in which the socket was last read.
    pub used_ns: u64,
    /// The queue at the activation.
    pub activation: QueueSample,
    /// The queue at the last read: used for the deactivation if the socket is gone by then.
    pub last: QueueSample,
    /// Bytes drained in this timeslice.
    pub read_bytes: u64,
    /// Bytes that arrived in this timeslice, up to `counted_rcv_nxt`.
    pub arrived_bytes: u64,
    /// What limited the connection up to its reads in this timeslice, since that was last reported.
    pub causes: Causes,
    /// Where the data ended when the socket was taken over: what arrived before that belongs to this reader.
    pub taken_data_end: u32,
    /// `rcv_nxt` up to which arrivals were reported before this timeslice.
    pub rcv_nxt: u32,
    /// `rcv_nxt` up to which arrivals of this timeslice are counted: a reader that never leaves the CPU can receive
    /// more than sequence numbers can express.
    pub counted_rcv_nxt: u32,
    pub netns: u32,
    /// [`TIMESLICE_PARTIAL`] or 0.
    pub flags: u16,
    /// `FIN_` bits.
    pub fin: u16,
    pub family: u16,
    pub local_port: u16,
    pub remote_port: u16,
    /// Not 0 while the reader records a read here. Where programs can be preempted, the switch away from the reader may
    /// find the sums half updated.
    pub busy: u16,
    /// For a further socket: the reader's slot plus one. Otherwise 0.
    pub owner: u32,
    /// For a further socket: place of the next one; 0 for the last.
    pub next: u32,
    pub padding: u32,
    pub local_address: [u8; 16],
    pub remote_address: [u8; 16],
}

/// The FIN had been received at `activation`.
pub const FIN_ACTIVATION: u16 = 1;
/// The FIN had been received at `last`.
pub const FIN_LAST: u16 = 2;
