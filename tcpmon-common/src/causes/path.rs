//! The path of a connection: how long a round trip takes under load.

use super::Round;

/// What a new round needs to know about the path; read once per round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The kernel's estimate of a round trip, us, at most [`MAX_RTT_US`]; 0 if it has none.
    pub rtt_us: u32,
    /// How long ago this host sent the timestamp that the segment echoes, ms: the difference of two readings of a clock
    /// that ticks each ms. [`NO_ECHO`] if it has none, or if `rtt_us` is exact.
    pub echo_ms: u32,
    /// `icsk_ack.rcv_mss`, bytes.
    pub mss: u32,
    /// The kernel keeps the receive buffer small because it is short of memory.
    pub is_short_of_memory: bool,
}

impl Path {
    /// For a connection that begins no further round.
    pub const NONE: Self = Self { rtt_us: 0, echo_ms: NO_ECHO, mss: 0, is_short_of_memory: false };
}

/// [`Path::echo_ms`] of a segment without a usable echo.
pub const NO_ECHO: u32 = u32::MAX;

/// Larger estimates of a round trip are limited to this, us.
pub const MAX_RTT_US: u32 = 2_600_000;

/// The longest round that the window can have limited, us.
pub const MAX_LIMIT_US: u32 = MAX_RTT_US + MAX_RTT_US / 2;

/// Echoes of a path with a round trip below 2 ms are at most this old, ms, unless the sender had nothing to send.
pub(super) const MAX_ECHO_MS: u32 = 4;

/// Each echo moves the mean by 2^-11 of its distance from the mean. The error of the mean is then 1/64 of the error of
/// one echo, which is half a tick.
pub(super) const ECHO_SHIFT: u32 = 11;

/// Each of the first echoes moves the mean by 2^-7 of the distance instead. If the round trip under load is much longer
/// than that of the handshake, rounds count as upstream until the mean has come close to it.
const FIRST_ECHO_SHIFT: u32 = 7;

/// Number of echoes that move the mean by the larger step: together they reduce its error to 1/54.
const FIRST_ECHOES: u32 = 511;

/// Number of bits for a mean of up to [`MAX_ECHO_MS`].
pub(super) const ECHO_BITS: u32 = 23;

/// Time that a sender with data needs to use the window that it was granted: a round trip, us; 0 if it is not known.
///
/// Under load, packets and acknowledgements wait at many places, so the handshake's round trip is too short for a local
/// path. The age of an echo is the difference of two readings of a clock of 1 ms. Each is wrong by up to 1 ms, but
/// their mean is exact, because the first reading comes at any time within a tick.
#[inline(always)]
pub(super) fn round_trip_us(round: &mut Round, now_ns: u64, round_ns: u64, path: Path) -> u32 {
    if path.echo_ms == NO_ECHO {
        return path.rtt_us;
    }
    let least = if path.rtt_us < MAX_ECHO_MS * 1000 { path.rtt_us } else { MAX_ECHO_MS * 1000 };
    if round.echo == 0 {
        round.echo = least << ECHO_SHIFT;
    }
    let (echoes, scaled) = (round.echo >> ECHO_BITS, round.echo & ((1 << ECHO_BITS) - 1));
    let mean = scaled >> ECHO_SHIFT;
    // The mean of a very short path can be off by as much as its own value. Without a lower bound, it would sooner or
    // later be so low that no round counts as limited any more.
    let rtt_us = if mean > least { mean } else { least };
    if round_ns > rtt_us as u64 * 3000 {
        // The sender had nothing to send. Before that time, it has not heard of an acknowledgement of its new data, so
        // its echoes are too old.
        round.echoes_from_ns = now_ns + rtt_us as u64 * 2000;
    } else if path.echo_ms <= MAX_ECHO_MS && now_ns >= round.echoes_from_ns {
        let is_first = (echoes < FIRST_ECHOES) as u32;
        let distance = (path.echo_ms * 1000).wrapping_sub(mean) << ((ECHO_SHIFT - FIRST_ECHO_SHIFT) * is_first);
        round.echo = (echoes + is_first) << ECHO_BITS | scaled.wrapping_add(distance);
    }
    rtt_us
}
