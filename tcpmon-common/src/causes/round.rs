//! Rounds: whether the sender used the window as fast as it was granted.

use super::{Path, at_least, path::round_trip_us};
use crate::{fold::Observation, socket::SocketState};

/// The open round, and `reader_limited_ns` as of the last read, which is kept here because few reads change it. All
/// times are `CLOCK_MONOTONIC`, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Round {
    /// `reader_limited_ns` of the counters at the last read.
    pub reader_limited_ns: u64,
    /// The round ends when data up to this sequence number have arrived: the noted edge less what a sender leaves
    /// unused.
    pub edge: u32,
    /// The window limited the round if it ends within this time, us; 0 while no round trip has been measured.
    pub limit_us: u32,
    /// Timestamp echoes that arrive before this time are not used: their age includes the time in which the sender had
    /// nothing to send.
    pub echoes_from_ns: u64,
    /// When the round began, plus the time since then that counts as the reader's or has already been shown.
    pub began_ns: u64,
    /// The lowest 23 bits: mean age of the timestamps that segments at the ends of rounds echo, in units of 1/2048 us.
    /// The other bits: the number of echoes in the mean, up to 511. 0 before the first echo.
    pub echo: u32,
    /// The part of the round that has already been shown, us.
    pub shown_us: u32,
}

impl Round {
    /// Begins the first round of a connection whose counting starts at `now_ns`; `self` is all zeros. This round never
    /// counts as limited by the window, because nobody saw it begin. `edge` is the right edge of the advertised window.
    #[inline(always)]
    pub fn begin(&mut self, edge: u32, now_ns: u64) {
        self.edge = edge;
        self.began_ns = now_ns;
    }

    /// The content of a new state.
    pub const ZERO: Self =
        Self { reader_limited_ns: 0, edge: 0, limit_us: 0, echoes_from_ns: 0, began_ns: 0, echo: 0, shown_us: 0 };
}

/// Decides what limited the round, and begins the next one.
#[inline(always)]
pub(super) fn end_round(state: &mut SocketState, seen: &Observation, path: Path) {
    let SocketState { round, counters, .. } = state;
    let time = seen.now_ns.saturating_sub(round.began_ns);
    let limited = time & at_least(round.limit_us as u64 * 1000, time).wrapping_neg();
    let memory = limited & (path.is_short_of_memory as u64).wrapping_neg();
    counters.observed_ns = counters.observed_ns.wrapping_add(time);
    counters.memory_limited_ns = counters.memory_limited_ns.wrapping_add(memory);
    counters.window_limited_ns = counters.window_limited_ns.wrapping_add(limited - memory);
    // A sender leaves less than a segment of the window unused, and less than half of a small window.
    let offered = seen.edge.wrapping_sub(seen.copied_seq);
    let unused = if path.mss < offered / 2 { path.mss } else { offered / 2 };
    round.edge = seen.edge.wrapping_sub(unused);
    let rtt_us = round_trip_us(round, seen.now_ns, time + round.shown_us as u64 * 1000, path);
    round.limit_us = rtt_us + rtt_us / 2;
    round.began_ns = seen.now_ns;
    round.shown_us = 0;
}

/// Attributes the time of the open round up to `now_ns` to the sender or the path, if the round is already too long for
/// the window to have limited it, or if nothing can follow (`last`). Otherwise that time is held back until the round
/// ends.
#[inline(always)]
pub fn attribute_open_round(state: &mut SocketState, now_ns: u64, last: bool) {
    let SocketState { round, counters, .. } = state;
    let time = now_ns.saturating_sub(round.began_ns);
    if last || time > round.limit_us as u64 * 1000 {
        counters.observed_ns = counters.observed_ns.wrapping_add(time);
        round.began_ns = now_ns;
        round.shown_us = round.shown_us.saturating_add((time / 1000) as u32);
        // What is left of the round says nothing about a round trip.
        round.limit_us = 0;
    }
}
