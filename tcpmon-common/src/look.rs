//! What a pass reads from the sockets themselves, with a program that user space runs for a few hundred states at a
//! time.

use crate::{
    causes::{self, Path},
    fold::{self, Folded, Observation, Trigger},
    socket::{LIVE_CURRENT, LIVE_FIN, LIVE_GROWTH, LIVE_READER, SocketCounters, SocketLive, SocketRecord},
};

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

/// The record's totals brought up to the time of the look, by the same function that the programs use, and whether
/// that function refused anything.
pub fn until_now(record: &SocketRecord) -> (SocketCounters, bool) {
    let live = &record.live;
    let mut state = record.state;
    // The look at the socket came before its last event. With a busy socket this may happen in every pass: the time
    // that is held back for its open round must not add up to more than a round can last.
    if live.flags & LIVE_CURRENT == 0 {
        let last_ns = state.last_ns;
        causes::attribute_open_round(&mut state, last_ns, false);
        return (state.counters, false);
    }
    let seen = Observation {
        now_ns: record.time_ns,
        rcv_nxt: live.rcv_nxt,
        copied_seq: live.copied_seq,
        rmem: live.rmem,
        rcvbuf: live.rcvbuf,
        window: live.window,
        edge: live.edge,
        arrived: live.rcv_nxt,
        mss: live.mss,
        state: u32::from(live.state),
        fin: live.flags & LIVE_FIN != 0,
        is_growth: live.flags & LIVE_GROWTH != 0,
    };
    let edges = |_, _| (live.flags & LIVE_READER != 0).then_some(live.reader_edges);
    let Folded { refused, .. } = fold::fold(&mut state, &seen, Trigger::Snapshot, edges, || Path::NONE);
    causes::attribute_open_round(&mut state, record.time_ns, false);
    (state.counters, refused != 0)
}
