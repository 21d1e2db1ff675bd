//! One TCP socket: its state, and what user space reads of it.

use core::mem::offset_of;

use crate::{
    causes::{Reads, Round},
    counters::{Cells, counters},
    histogram::{FILLS, FillBins},
    name::Name,
};

/// The local side accepted the connection.
pub const SOCKET_PASSIVE: u32 = 1;
/// The local side opened the connection.
pub const SOCKET_ACTIVE: u32 = 2;
/// The state is final: no program writes to it any more. User space takes it and gives it back to the store.
pub const SOCKET_FINAL: u32 = 4;
/// The kernel chose the port of the listening socket: of this one, or of the one that has accepted this connection.
pub const SOCKET_PORT_CHOSEN: u32 = 16;
/// The connection is counted among those that started to open.
pub const SOCKET_OPENED: u32 = 32;
/// The connection is counted among those that are ignored because they belong to MPTCP.
pub const SOCKET_MPTCP: u32 = 64;
/// The socket listens.
pub const SOCKET_LISTENS: u32 = 128;
/// The state is final because another process reads the socket, which goes on in another state.
pub const SOCKET_HANDED_OVER: u32 = 256;
/// The state is final and is not in the list of ended states: a pass finds it.
pub const SOCKET_UNLISTED: u32 = 512;
/// Everything up to the connection's end has been folded.
pub const SOCKET_FULLY_FOLDED: u32 = 1024;
/// The connection is in the state CLOSE: after a RST, for example, data may still be unread, but no more will come.
pub const SOCKET_CLOSED: u32 = 2048;
/// The flags that determine the service.
pub const SOCKET_SERVICE: u32 = SOCKET_PASSIVE | SOCKET_ACTIVE | SOCKET_PORT_CHOSEN;

/// `rcv_nxt` includes the peer's FIN.
pub const FIN_RECEIVED: u32 = 1 << 16;
/// The application has read past the FIN: `copied_seq` includes it.
pub const FIN_READ: u32 = 1 << 17;

/// One unit of [`SocketCounters::queue_byte_ticks`] is a byte that waited this many ns. A 1 GB queue then overflows 64
/// bits after four hours without a scrape; in byte-ns it would do so after 16 seconds.
pub const TICK_NS: u64 = 1024;

/// What the last pass that showed the socket saw of it; only user space writes it. A pass leaves out a socket that was
/// at rest then and has not changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Shown {
    /// [`SocketState::sequence`] if the socket was at rest when it was shown; odd if it was not.
    pub sequence: u32,
    /// The advertised window that was shown, bytes.
    pub window: u32,
    /// `sk_rmem_alloc` that was shown, bytes.
    pub rmem: u32,
    /// `SHOWN_` bits.
    pub flags: u32,
}

/// The reader was still in the timeslice of the last event.
pub const SHOWN_RUNNING: u32 = 1;
/// A FIN has come since the last event: `rcv_nxt` is one more than in the state.
pub const SHOWN_FIN: u32 = 2;

impl Shown {
    /// Never shown, or not at rest when it was.
    pub const CHANGING: Self = Self { sequence: 1, window: 0, rmem: 0, flags: 0 };
}

counters! {
    /// The totals of one socket. Each of them only grows (and wraps), so that differences can be added to a group. What
    /// every event changes comes first: a segment and the read of its data are often events of two CPUs, and each cache
    /// line that both write costs a read more than 10 ns.
    counters SocketCounters;
    /// Sums over the sockets of a group.
    sums SocketTotals;
    {
        /// New in-order data accepted by TCP: advance of `rcv_nxt`, without SYN and FIN.
        received_bytes: u64,
        /// Data drained: advance of `copied_seq`, without the FIN.
        read_bytes: u64,
        /// Data segments seen (after GRO).
        segments: u64,
        /// Time integral of the queued bytes, in bytes x [`TICK_NS`].
        queue_byte_ticks: u64,
        /// Bytes that arrived while the reader was on a CPU.
        arrived_on_cpu_bytes: u64,
        /// Bytes that arrived while the reader was off the CPU.
        arrived_off_cpu_bytes: u64,
        /// Bytes that readers with a slot drained in their timeslices.
        timeslice_read_bytes: u64,
        /// Distributions of the observed fills.
        fills: FillBins,
        /// Sums of the observed fills, in 1/[`FILL_ONE`](crate::histogram::FILL_ONE), each rounded up.
        fill_sums: [u64; FILLS],
        /// The part of `queue_byte_ticks` in which the reader waited for a CPU.
        scheduler_byte_ticks: u64,
        /// Time for which it is known what limited the connection.
        observed_ns: u64,
        /// The part of `reader_limited_ns` in which the reader waited for a CPU.
        scheduler_limited_ns: u64,
        /// Time limited by a window that is too small for the path.
        window_limited_ns: u64,
        /// Time limited by a window that the kernel keeps small because it is short of memory.
        memory_limited_ns: u64,
        /// Time during which the advertised window was below one MSS.
        zero_window_ns: u64,
        /// How often autotuning raised `sk_rcvbuf`.
        growths: u64,
        /// Time limited by the reader. Last, next to the value that each read compares it with.
        reader_limited_ns: u64,
    }
    derived {
        /// Bytes that arrived while the socket had no known reader: together with those that arrived on and off the
        /// CPU, they are the bytes received.
        arrived_without_reader_bytes = |of| {
            of.received_bytes.wrapping_sub(of.arrived_on_cpu_bytes).wrapping_sub(of.arrived_off_cpu_bytes)
        };
        /// Time limited by the sender or the path.
        upstream_limited_ns = |of| {
            let window = of.window_limited_ns.wrapping_add(of.memory_limited_ns);
            of.observed_ns.wrapping_sub(of.reader_limited_ns).wrapping_sub(window)
        };
        /// Time limited by the reader, for other reasons than waiting for a CPU.
        application_limited_ns = |of| of.reader_limited_ns.wrapping_sub(of.scheduler_limited_ns);
        /// The part of `queue_byte_ticks` in which the reader did not wait for a CPU.
        application_byte_ticks = |of| of.queue_byte_ticks.wrapping_sub(of.scheduler_byte_ticks);
    }
    splits {
        reader_limited_ns = application_limited_ns + scheduler_limited_ns;
        queue_byte_ticks = application_byte_ticks + scheduler_byte_ticks;
    }
}

impl SocketTotals {
    /// Time integral of the queued bytes, byte-seconds.
    pub fn queue_byte_seconds(&self) -> f64 {
        byte_seconds(self.queue_byte_ticks)
    }

    /// Totals of `ns` of time at rest: only the sender or the path limits a connection then.
    pub fn at_rest(ns: u64) -> Self {
        Self { observed_ns: ns, upstream_limited_ns: ns, ..Self::ZERO }
    }

    /// Time for which it is known what limited the connections: the sum of the causes, ns.
    pub fn limited_ns(&self) -> u64 {
        let reader = self.application_limited_ns + self.scheduler_limited_ns;
        self.upstream_limited_ns + reader + self.window_limited_ns + self.memory_limited_ns
    }
}

/// Units of [`TICK_NS`] as byte-seconds.
pub fn byte_seconds(ticks: u64) -> f64 {
    ticks as f64 * TICK_NS as f64 / 1e9
}

/// Key of the map of ports that the kernel had chosen when tcpmon started: a network namespace (its inode number), a
/// port and a local address as one number. Two addresses of the same port share a key with a probability of 1 in
/// 65,536. The address part is 0 for a socket that listens on all addresses.
#[inline(always)]
pub fn port_key(netns: u32, port: u16, address: [u64; 2]) -> u64 {
    let address = address[0] ^ address[1];
    let address = address ^ address >> 32;
    (netns as u64) << 32 | (port as u64) << 16 | (address ^ address >> 16) & 0xffff
}

/// Which connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct SocketIdentity {
    /// Inode number of the network namespace.
    pub netns: u32,
    /// `AF_INET` or `AF_INET6`.
    pub family: u16,
    /// Local port.
    pub local_port: u16,
    /// Remote port.
    pub remote_port: u16,
    /// Port of the listening socket that has accepted the connection; otherwise the local port. A transparent proxy
    /// accepts connections to all ports with one listening socket.
    pub service_port: u16,
    /// Zero.
    pub padding: [u16; 2],
    /// Local address; the first four bytes for `AF_INET`.
    pub local_address: [u8; 16],
    /// Remote address.
    pub remote_address: [u8; 16],
}

impl SocketIdentity {
    /// No connection is known.
    pub const ZERO: Self = Self {
        netns: 0,
        family: 0,
        local_port: 0,
        remote_port: 0,
        service_port: 0,
        padding: [0; 2],
        local_address: [0; 16],
        remote_address: [0; 16],
    };
}

/// A socket's state, in the store ([`store`](crate::store)). Programs write it under the socket's lock; user space
/// reads it without that lock.
///
/// The first cache line holds what an event only reads, and all that a pass reads of a socket at rest besides the
/// sequence number. The next two lines hold what every event writes, and end with the fill counts of an empty queue: a
/// segment is folded on the CPU that received it and a read on the reader's CPU, so each cache line that is written has
/// to move between the two.
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct SocketState {
    /// The socket's cookie; 0 while no socket has the state.
    pub cookie: u64,
    /// Address of the `struct tcp_sock`.
    pub sock: u64,
    /// Name of the last reader's thread group; empty while unknown.
    pub process: Name,
    /// Thread-group id of the last reader. Before the first read, that of the process that opened the socket, or 0.
    pub reader_tgid: u32,
    /// Thread id of the last reader; 0 before the first read.
    pub reader_tid: u32,
    /// Slot of the thread that read last, or [`SLOT_NONE`](crate::reader::SLOT_NONE).
    pub reader_slot: u32,
    /// `SOCKET_` flags.
    pub flags: u32,
    /// What the last pass that showed the socket has seen of it.
    pub shown: Shown,
    /// Odd while an event is being folded, and a different even number after each event: see [`copy`](crate::copy). It
    /// continues when another socket gets the state.
    pub sequence: u32,
    /// The reader's [`edges`](crate::reader::ReaderSlot::edges) at the last event.
    pub reader_edges: u32,
    /// `rcv_nxt` at the last event.
    pub rcv_nxt: u32,
    /// `copied_seq` at the last event.
    pub copied_seq: u32,
    /// Time of the last event, ns; 0 before the connection is established.
    pub last_ns: u64,
    /// `sk_rcvbuf` at the last event.
    pub rcvbuf: u32,
    /// `sk_rcvbuf` when autotuning announced that the buffer should grow; 0 otherwise.
    pub grow_from: u32,
    /// What [`causes`](crate::causes) must know of the last read.
    pub reads: Reads,
    /// The totals.
    pub counters: SocketCounters,
    /// What [`causes`](crate::causes) must know of the round.
    pub round: Round,
    /// Id of the control group (v2) of the last reader, or before the first read of the process that opened the socket;
    /// 0 if it is not known. This and what follows are last, because events do not need them.
    pub cgroup: u64,
    /// In a trace: `rcv_nxt` at the last read of a traced reader.
    pub reported_seq: u32,
    /// In a trace: the socket's place in `TRACED_SOCKETS` if that reader does not keep the socket beyond its timeslice.
    pub traced_place: u32,
    /// Cookie of the listening socket that has accepted the connection; 0 if it is not known.
    pub listener: u64,
    /// Zero.
    pub padding: u64,
    /// Which connection it is, as of the time when counting started. A cache line begins here.
    pub identity: SocketIdentity,
    /// Where user space cannot look at sockets: `sk_rmem_alloc` at the last event.
    pub seen_rmem: u32,
    /// In the same case: the advertised window at the last event, bytes.
    pub seen_window: u32,
    /// The index of the state; user space writes it once.
    pub index: u32,
    /// Index of the next state in the list that the state is in, if it is in one.
    pub next: u32,
}

impl SocketState {
    /// The content of a state that has never been used.
    pub const ZERO: Self = Self {
        cookie: 0,
        sock: 0,
        process: [0; 2],
        reader_tgid: 0,
        reader_tid: 0,
        reader_slot: 0,
        flags: 0,
        shown: Shown { sequence: 0, window: 0, rmem: 0, flags: 0 },
        sequence: 0,
        reader_edges: 0,
        rcv_nxt: 0,
        copied_seq: 0,
        last_ns: 0,
        rcvbuf: 0,
        grow_from: 0,
        reads: Reads::ZERO,
        counters: SocketCounters::ZERO,
        round: Round::ZERO,
        cgroup: 0,
        reported_seq: 0,
        traced_place: 0,
        listener: 0,
        padding: 0,
        identity: SocketIdentity::ZERO,
        seen_rmem: 0,
        seen_window: 0,
        index: 0,
        next: 0,
    };
}

const _: () = assert!(offset_of!(SocketState, identity).is_multiple_of(64));
// What every event writes is in two cache lines.
const _: () = assert!(offset_of!(SocketState, sequence) == 64);
const _: () =
    assert!(offset_of!(SocketState, counters) + offset_of!(SocketCounters, fills) + size_of::<[u32; FILLS]>() <= 192);

/// The peer's FIN has been received.
pub const LIVE_FIN: u8 = 1;
/// The last reader's slot still belongs to that thread.
pub const LIVE_READER: u8 = 2;
/// If `sk_rcvbuf` is larger than at the last event, autotuning raised it.
pub const LIVE_GROWTH: u8 = 4;
/// The socket is gone: its memory is free, or another socket's.
pub const LIVE_GONE: u8 = 8;
/// No event has come between the look at the socket and the copy of its state.
pub const LIVE_CURRENT: u8 = 16;

/// What a pass reads from the socket itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct SocketLive {
    /// `rcv_nxt`.
    pub rcv_nxt: u32,
    /// `copied_seq`.
    pub copied_seq: u32,
    /// `sk_rmem_alloc`, bytes of memory charged to the receive buffer.
    pub rmem: u32,
    /// `sk_rcvbuf`, the limit of `rmem`, bytes.
    pub rcvbuf: u32,
    /// `sk_backlog.len`, bytes of memory.
    pub backlog: u32,
    /// Bytes in the out-of-order queue, as far as the SACK blocks (at most four) show them.
    pub out_of_order: u32,
    /// The last advertised window (`rcv_wnd`), bytes.
    pub window: u32,
    /// `icsk_ack.rcv_mss`, the kernel's estimate of the peer's segment size.
    pub mss: u32,
    /// `tcp_rcv_ssthresh`, bytes.
    pub rcv_ssthresh: u32,
    /// `window_clamp`, bytes.
    pub window_clamp: u32,
    /// Receiver's RTT estimate of dynamic right-sizing, us (the kernel's value / 8).
    pub rcv_rtt_us: u32,
    /// The reader's [`edges`](crate::reader::ReaderSlot::edges) at that time.
    pub reader_edges: u32,
    /// Right edge of the advertised window (`rcv_wup + rcv_wnd`).
    pub edge: u32,
    /// Local port: a listening socket may get it after it started to listen.
    pub local_port: u16,
    /// TCP state (`TCP_ESTABLISHED` = 1, ...).
    pub state: u8,
    /// `LIVE_` flags.
    pub flags: u8,
}

impl SocketLive {
    /// All zero.
    pub const ZERO: Self = Self {
        rcv_nxt: 0,
        copied_seq: 0,
        rmem: 0,
        rcvbuf: 0,
        backlog: 0,
        out_of_order: 0,
        window: 0,
        mss: 0,
        rcv_ssthresh: 0,
        window_clamp: 0,
        rcv_rtt_us: 0,
        reader_edges: 0,
        edge: 0,
        local_port: 0,
        state: 0,
        flags: 0,
    };
}

/// One socket: in a pass, at its end, or when another process takes it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketRecord {
    /// When the socket was looked at, `CLOCK_MONOTONIC`, ns; at its end, the time of the last event.
    pub time_ns: u64,
    /// The socket's own fields at that time.
    pub live: SocketLive,
    /// What was folded up to the last event.
    pub state: SocketState,
}

impl SocketRecord {
    /// Whether the peer's FIN has come since the last event: none reports it.
    pub fn has_new_fin(&self) -> bool {
        self.live.flags & LIVE_FIN != 0 && self.state.flags & FIN_RECEIVED == 0
    }

    /// Whether nothing is queued, the window is open, and the state agrees with the socket. While that stays so, time
    /// adds only to the time limited by the sender or the path.
    pub fn is_at_rest(&self) -> bool {
        let (live, state) = (&self.live, &self.state);
        let unread = live.rcv_nxt.wrapping_sub(live.copied_seq);
        // A listening socket has no data.
        live.flags & LIVE_CURRENT != 0
            && (state.last_ns == 0
                // An unread FIN is the last byte.
                || (unread == 0 || unread == 1 && live.flags & LIVE_FIN != 0)
                    && live.rcv_nxt == state.rcv_nxt.wrapping_add(self.has_new_fin().into())
                    && live.rcvbuf == state.rcvbuf
                    && live.backlog | live.out_of_order == 0
                    && live.window >= live.mss)
    }

    /// What a pass that shows this record stores in a state with this sequence number.
    pub fn shown(&self, sequence: u32) -> Shown {
        let (live, state) = (&self.live, &self.state);
        let running =
            live.flags & LIVE_READER != 0 && state.reader_edges & 1 == 1 && live.reader_edges == state.reader_edges;
        let sequence = if self.is_at_rest() { sequence } else { Shown::CHANGING.sequence };
        let flags = (SHOWN_RUNNING * u32::from(running)) | (SHOWN_FIN * u32::from(self.has_new_fin()));
        Shown { sequence, window: live.window, rmem: live.rmem, flags }
    }
}

// Not counting the counters, whose declaration allows no padding.
const _: () = assert!(size_of::<SocketState>() - size_of::<SocketCounters>() == 256);
const _: () = assert!(size_of::<SocketState>().is_multiple_of(64));
const _: () = assert!(size_of::<SocketLive>() == 56);
const _: () = assert!(size_of::<SocketIdentity>() == 48);

#[cfg(test)]
mod tests {
    use super::*;

    /// What a pass shows of a connection with a FIN behind `unread` bytes; the last event saw 100 bytes.
    fn closed_by_peer(unread: u32, state_flags: u32) -> SocketRecord {
        let state = SocketState { last_ns: 1, rcv_nxt: 100, copied_seq: 100, flags: state_flags, ..SocketState::ZERO };
        let (rcv_nxt, copied_seq) = (101, 101 - unread);
        let flags = LIVE_CURRENT | LIVE_FIN;
        SocketRecord { time_ns: 2, live: SocketLive { rcv_nxt, copied_seq, flags, ..SocketLive::ZERO }, state }
    }

    /// A server that has forgotten a connection leaves it in CLOSE_WAIT for days.
    #[test]
    fn a_connection_whose_fin_nobody_reads_is_not_shown_in_every_pass() {
        // No event reports the FIN: the next look expects one byte more than the state has.
        let record = closed_by_peer(1, 0);
        assert!(record.is_at_rest());
        assert_eq!(record.shown(6), Shown { sequence: 6, window: 0, rmem: 0, flags: SHOWN_FIN });
        // An event has seen it since, as a reset does: the state has it.
        let mut folded = closed_by_peer(1, FIN_RECEIVED);
        folded.state.rcv_nxt = 101;
        assert_eq!(folded.shown(6), Shown { sequence: 6, window: 0, rmem: 0, flags: 0 });
    }

    #[test]
    fn data_that_nobody_reads_are_shown_in_every_pass_also_before_a_fin() {
        assert_eq!(closed_by_peer(2, 0).shown(6).sequence, Shown::CHANGING.sequence);
        // One byte of data, and no FIN.
        let mut unread = closed_by_peer(1, 0);
        (unread.live.flags, unread.state.rcv_nxt) = (LIVE_CURRENT, 101);
        assert_eq!(unread.shown(6).sequence, Shown::CHANGING.sequence);
        // More than the FIN has come since the last event.
        let mut arrived = closed_by_peer(0, 0);
        (arrived.live.rcv_nxt, arrived.live.copied_seq) = (102, 102);
        assert_eq!(arrived.shown(6).sequence, Shown::CHANGING.sequence);
    }
}
