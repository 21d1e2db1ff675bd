//! What limited a connection, and what its reader did while bytes waited. `docs/causes.md` has the rules.
//!
//! While unread data takes up two thirds of the window, the reader limits the connection. All other time is split into
//! rounds. A round begins by noting the right edge of the advertised window. The sender learns of that edge half a
//! round trip later, and what it then sends at once arrives after another half. If data up to the edge arrives within
//! [`Round::limit_us`] (one and a half round trips), the sender used the window as fast as it was granted: the window
//! limited the round. Otherwise the sender or the path did.

mod path;
mod reads;
mod round;

#[cfg(test)]
mod tests;

use core::mem;

pub use self::{
    path::{MAX_LIMIT_US, MAX_RTT_US, NO_ECHO, Path},
    reads::{Reads, attribute_read},
    round::{Round, attribute_open_round},
};
use crate::{fold::Observation, socket::SocketState};

/// What limited a connection over some time, and what its bytes waited for: a trace shows this for each timeslice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Causes {
    /// Limited by the sender or the path, ns.
    pub upstream_ns: u64,
    /// Limited by the reader, for other reasons than waiting for a CPU, ns.
    pub application_ns: u64,
    /// Limited by the reader, which waited for a CPU, ns.
    pub scheduler_ns: u64,
    /// Limited by a window that is too small for the path, ns.
    pub window_ns: u64,
    /// Limited by a window that the kernel keeps small because it is short of memory, ns.
    pub memory_ns: u64,
    /// Bytes x time that waited in the queue for other reasons than the reader waiting for a CPU, in units of
    /// [`TICK_NS`](crate::socket::TICK_NS).
    pub application_byte_ticks: u64,
    /// Bytes x time that waited while the reader waited for a CPU, in the same unit.
    pub scheduler_byte_ticks: u64,
}

impl Causes {
    /// Nothing counted.
    pub const ZERO: Self = Self {
        upstream_ns: 0,
        application_ns: 0,
        scheduler_ns: 0,
        window_ns: 0,
        memory_ns: 0,
        application_byte_ticks: 0,
        scheduler_byte_ticks: 0,
    };

    /// Moves what the state has counted up to the last read into `self`. Call [`attribute_read`] first, which divides
    /// that time between the application and the scheduler.
    #[inline(always)]
    pub fn take_from(&mut self, state: &mut SocketState) {
        let SocketState { round, reads, counters, .. } = state;
        let reader = mem::take(&mut counters.reader_limited_ns);
        let scheduler = mem::take(&mut counters.scheduler_limited_ns);
        let window = mem::take(&mut counters.window_limited_ns);
        let memory = mem::take(&mut counters.memory_limited_ns);
        let observed = mem::take(&mut counters.observed_ns);
        let ticks = mem::take(&mut counters.queue_byte_ticks);
        let scheduler_ticks = mem::take(&mut counters.scheduler_byte_ticks);
        (round.reader_limited_ns, reads.queue_byte_ticks) = (0, 0);
        self.upstream_ns = self.upstream_ns.wrapping_add(observed.wrapping_sub(reader + window + memory));
        self.application_ns = self.application_ns.wrapping_add(reader.wrapping_sub(scheduler));
        self.scheduler_ns = self.scheduler_ns.wrapping_add(scheduler);
        self.window_ns = self.window_ns.wrapping_add(window);
        self.memory_ns = self.memory_ns.wrapping_add(memory);
        self.application_byte_ticks = self.application_byte_ticks.wrapping_add(ticks.wrapping_sub(scheduler_ticks));
        self.scheduler_byte_ticks = self.scheduler_byte_ticks.wrapping_add(scheduler_ticks);
    }
}

/// 1 if `a >= b`, otherwise 0, for distances below 2^63. Branch-free, because the verifier would walk all the code
/// after a branch once more.
#[inline(always)]
fn at_least(a: u64, b: u64) -> u64 {
    a.wrapping_sub(b) >> 63 ^ 1
}

/// 1 if `value` is not 0, otherwise 0.
#[inline(always)]
fn is_some(value: u32) -> u64 {
    (value as u64).wrapping_neg() >> 63
}

/// Bytes that the sender may still send: from `rcv_nxt` to the right edge of the advertised window.
#[inline(always)]
pub fn window_left(edge: u32, rcv_nxt: u32) -> u32 {
    let left = edge.wrapping_sub(rcv_nxt);
    left & !((left as i32 >> 31) as u32)
}

/// Accounts for the time since the last event, in which `queued` bytes waited. `path` is called when a round ends.
#[inline(always)]
pub(crate) fn account(
    state: &mut SocketState,
    seen: &Observation,
    queued: u32,
    elapsed: u64,
    segment: bool,
    path: impl FnOnce() -> Path,
) {
    let SocketState { round, reads, counters, .. } = state;
    let left = window_left(seen.edge, seen.rcv_nxt);
    // While data are in flight, a sender waits until it may send a third of the window (`tcp_tso_win_divisor`). Large
    // segments in a small buffer are merged into few packets, each of which takes memory until its last byte is read:
    // the window stays closed while little is unread. After a FIN or a RST, nothing more will come.
    let two_thirds = at_least(queued as u64, left as u64 * 2);
    let fills_buffer =
        at_least(seen.mss as u64, left as u64 + 1) & at_least(seen.rmem as u64 * 3, seen.rcvbuf as u64 * 2);
    let held = is_some(queued) & (two_thirds | fills_buffer) & (seen.is_over() as u64 ^ 1);
    if held != 0 {
        round.began_ns = round.began_ns.wrapping_add(elapsed);
        counters.reader_limited_ns = counters.reader_limited_ns.wrapping_add(elapsed);
        counters.observed_ns = counters.observed_ns.wrapping_add(elapsed);
    }
    if segment {
        // The segment that finds the queue empty starts the time in which data wait.
        let stays = is_some(seen.rcv_nxt.wrapping_sub(seen.copied_seq)).wrapping_neg();
        reads.queued_since_ns = reads.queued_since_ns & stays | seen.now_ns & !stays;
        // Only a segment ends a round: if another event shows that data have reached the edge, the time at which they
        // did is not known.
        if seen.arrived.wrapping_sub(round.edge) >> 31 == 0 {
            round::end_round(state, seen, path());
        }
    }
}
