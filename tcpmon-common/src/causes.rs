//! What limited a connection, and what its reader did while bytes waited. `docs/causes.md` has the rules.
//!
//! While unread data take up two thirds of the window, the reader limits the connection. All other time is split by
//! rounds. A round begins by noting the right edge of the advertised window. The sender hears of that edge half a round
//! trip later, and what it then sends at once is here after another half. If data up to the edge arrive within
//! [`Round::limit_us`] (one round trip and a half), the sender used the window as fast as it was granted: the
//! window limited the round. Otherwise the sender or the path did.

use core::mem;

use crate::{fold::Observation, socket::SocketState};

/// The open round, and `reader_limited_ns` as of the last read, which is here because few reads change it. All times
/// are `CLOCK_MONOTONIC`, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Round {
    /// `reader_limited_ns` of the counters at the last read.
    pub reader_limited_ns: u64,
    /// The round ends when data up to this sequence number have arrived: the noted edge less what a sender leaves
    /// unused.
    pub edge: u32,
    /// The round was limited if it ends within this time, us; 0 while no round trip was measured.
    pub limit_us: u32,
    /// Echoes that come before this time are as old as the sender's data were late.
    pub echoes_from_ns: u64,
    /// When the round began, moved on by the time that was the reader's since then, or that is shown already.
    pub began_ns: u64,
    /// The lowest 23 bits: mean age of the timestamps that segments at the ends of rounds echo, in units of 1/2048 us.
    /// The others: how many there were, up to 511. 0 before the first.
    pub echo: u32,
    /// The part of the round that is shown already, us.
    pub shown_us: u32,
}

impl Round {
    /// Begins the first round of a connection whose counting starts at `now_ns`, in a round that is all zeros. It tells
    /// nothing, because nobody saw how it began. `edge` is the right edge of the advertised window.
    #[inline(always)]
    pub fn begin(&mut self, edge: u32, now_ns: u64) {
        self.edge = edge;
        self.began_ns = now_ns;
    }

    /// The content of new storage.
    pub const ZERO: Self =
        Self { reader_limited_ns: 0, edge: 0, limit_us: 0, echoes_from_ns: 0, began_ns: 0, echo: 0, shown_us: 0 };
}

/// What is known of the last read. Apart from [`Round`], because every segment or read writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Reads {
    /// The queue has held data since then, or since the last read if that was later; `CLOCK_MONOTONIC`, ns.
    pub queued_since_ns: u64,
    /// The last reader's `run_delay` at its last read.
    pub run_delay_ns: u64,
    /// `queue_byte_ticks` of the counters at the last read.
    pub queue_byte_ticks: u64,
}

impl Reads {
    /// Begins with a connection whose counting starts at `now_ns`, when they are all zeros.
    #[inline(always)]
    pub fn begin(&mut self, now_ns: u64) {
        self.queued_since_ns = now_ns;
    }

    /// The content of new storage.
    pub const ZERO: Self = Self { queued_since_ns: 0, run_delay_ns: 0, queue_byte_ticks: 0 };
}

/// What limited a connection, and for what its bytes waited, over some time: what a trace shows of each timeslice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Causes {
    /// Limited by the sender or the path, ns.
    pub upstream_ns: u64,
    /// Limited by the reader, for other reasons than the want of a CPU, ns.
    pub application_ns: u64,
    /// Limited by the reader's want of a CPU, ns.
    pub scheduler_ns: u64,
    /// Limited by a window that is too small for the path, ns.
    pub window_ns: u64,
    /// Limited by a window that the kernel holds down for want of memory, ns.
    pub memory_ns: u64,
    /// Bytes x time that waited in the queue for other reasons than the want of a CPU, in units of
    /// [`TICK_NS`](crate::socket::TICK_NS).
    pub application_byte_ticks: u64,
    /// Bytes x time that waited while the reader had no CPU, in the same unit.
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

    /// Moves to here what was counted until the last read, which [`place`] has just placed.
    #[inline(always)]
    pub fn take(&mut self, state: &mut SocketState) {
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

/// What a new round needs to know of the path; read once a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The kernel's estimate of a round trip, us, at most [`MAX_RTT_US`]; 0 if it has none.
    pub rtt_us: u32,
    /// How long ago this host sent the timestamp that the segment echoes, ms: the difference of two readings of a clock
    /// that ticks each ms. [`NO_ECHO`] if it has none, or if `rtt_us` is exact.
    pub echo_ms: u32,
    /// `icsk_ack.rcv_mss`, bytes.
    pub mss: u32,
    /// The kernel holds the receive buffer down for want of memory.
    pub is_short_of_memory: bool,
}

impl Path {
    /// Of a connection that begins no further round.
    pub const NONE: Self = Self { rtt_us: 0, echo_ms: NO_ECHO, mss: 0, is_short_of_memory: false };
}

/// [`Path::echo_ms`] of a segment whose echo says nothing.
pub const NO_ECHO: u32 = u32::MAX;

/// Longer estimates of a round trip are cut to this, us.
pub const MAX_RTT_US: u32 = 2_600_000;

/// Longest round that can be limited, us.
pub const MAX_LIMIT_US: u32 = MAX_RTT_US + MAX_RTT_US / 2;

/// Echoes of a path with a round trip below 2 ms are at most this old, ms, unless the sender had nothing to send.
const MAX_ECHO_MS: u32 = 4;

/// Each echo moves the mean by 2^-11 of its distance: the error of the mean is 1/64 of that of one, which is half a
/// tick.
const ECHO_SHIFT: u32 = 11;

/// Each of the first ones moves it by 2^-7: the rounds of a path whose handshake was much shorter than its loaded round
/// trip count as upstream until the mean has come close.
const FIRST_ECHO_SHIFT: u32 = 7;

/// How many echoes are the first ones: they move the mean to 1/54 of its distance.
const FIRST_ECHOES: u32 = 511;

/// A mean of up to [`MAX_ECHO_MS`] needs so many bits.
const ECHO_BITS: u32 = 23;

/// 1 if `a >= b`, otherwise 0, for distances below 2^63. Without a branch: the verifier would walk all that follows
/// once more.
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

/// Accounts for the time since the last event, in which `queued` bytes waited. `path` is asked when a round ends.
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
        // The segment that finds the queue empty begins its time with data.
        let stays = is_some(seen.rcv_nxt.wrapping_sub(seen.copied_seq)).wrapping_neg();
        reads.queued_since_ns = reads.queued_since_ns & stays | seen.now_ns & !stays;
        // Data that have reached the edge at another event did so at a time that is not known.
        if seen.arrived.wrapping_sub(round.edge) >> 31 == 0 {
            end_round(state, seen, path());
        }
    }
}

/// Decides what limited the round, and begins the next one.
#[inline(always)]
fn end_round(state: &mut SocketState, seen: &Observation, path: Path) {
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

/// The time in which a sender that has data uses what it is granted, us; 0 if it is not known.
///
/// Under load, packets and acknowledgements wait at many places, so the handshake's round trip is too short for a local
/// path. The age of an echo is the difference of two readings of a clock of 1 ms. Each is wrong by up to 1 ms, but
/// their mean is exact, because the first reading comes at any time within a tick.
#[inline(always)]
fn round_trip_us(round: &mut Round, now_ns: u64, round_ns: u64, path: Path) -> u32 {
    if path.echo_ms == NO_ECHO {
        return path.rtt_us;
    }
    let least = if path.rtt_us < MAX_ECHO_MS * 1000 { path.rtt_us } else { MAX_ECHO_MS * 1000 };
    if round.echo == 0 {
        round.echo = least << ECHO_SHIFT;
    }
    let (echoes, scaled) = (round.echo >> ECHO_BITS, round.echo & ((1 << ECHO_BITS) - 1));
    let mean = scaled >> ECHO_SHIFT;
    // The mean of a very short path strays by as much as it is: without a bound, it would sooner or later be so low
    // that no round counts any more.
    let rtt_us = if mean > least { mean } else { least };
    if round_ns > rtt_us as u64 * 3000 {
        // The sender had nothing to send, and has heard of no acknowledgement of its new data until then.
        round.echoes_from_ns = now_ns + rtt_us as u64 * 2000;
    } else if path.echo_ms <= MAX_ECHO_MS && now_ns >= round.echoes_from_ns {
        let is_first = (echoes < FIRST_ECHOES) as u32;
        let distance = (path.echo_ms * 1000).wrapping_sub(mean) << ((ECHO_SHIFT - FIRST_ECHO_SHIFT) * is_first);
        round.echo = (echoes + is_first) << ECHO_BITS | scaled.wrapping_add(distance);
    }
    rtt_us
}

/// Places the time since the reader's last read, after [`fold`](crate::fold::fold) has counted that time: the part in
/// which the reader waited for a CPU is the scheduler's. `run_delay_ns` is the thread's `run_delay`; without
/// `same_reader`, what it was at its last read is unknown, and everything stays the application's. Each read is divided
/// by itself, because the few reads that wait for a CPU find most bytes.
#[inline(always)]
pub fn place(state: &mut SocketState, now_ns: u64, run_delay_ns: u64, same_reader: bool) {
    let SocketState { round, reads, counters, .. } = state;
    // A reader that sleeps waits for a CPU only after data have come.
    let with_data = now_ns.wrapping_sub(reads.queued_since_ns);
    let mut waited = if same_reader { run_delay_ns.wrapping_sub(reads.run_delay_ns) } else { 0 };
    if (waited | with_data) >> 47 != 0 {
        waited = 0;
    }
    if waited > with_data {
        waited = with_data;
    }
    let ticks = counters.queue_byte_ticks.wrapping_sub(reads.queue_byte_ticks);
    // Mostly 0: then the cache lines of these two fields are not written.
    let limited = counters.reader_limited_ns.wrapping_sub(round.reader_limited_ns);
    if waited != 0 && with_data != 0 {
        let share = (waited << 16) / with_data;
        counters.scheduler_byte_ticks = counters.scheduler_byte_ticks.wrapping_add(part(ticks, share));
        if limited != 0 {
            counters.scheduler_limited_ns = counters.scheduler_limited_ns.wrapping_add(part(limited, share));
        }
    }
    if limited != 0 {
        round.reader_limited_ns = counters.reader_limited_ns;
    }
    reads.run_delay_ns = run_delay_ns;
    reads.queued_since_ns = now_ns;
    reads.queue_byte_ticks = counters.queue_byte_ticks;
}

/// `share` (of 65,536) of `whole`, without overflow.
#[inline(always)]
fn part(whole: u64, share: u64) -> u64 {
    (whole >> 16) * share + (((whole & 0xffff) * share) >> 16)
}

/// Decides an open round by `now_ns`, if it is too long already to be limited: the sender or the path limited it.
/// Otherwise its time is held back, except for the `last` time.
#[inline(always)]
pub fn settle(state: &mut SocketState, now_ns: u64, last: bool) {
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

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        counters::{Cells as _, Counted as _, Summed as _},
        fold::{Trigger, fold},
        reader::SLOT_NONE,
        socket::{SocketCounters, SocketTotals, TICK_NS},
    };

    const MS: u64 = 1_000_000;
    const MSS: u32 = 1_000;
    const BUFFER: u32 = 10_000;
    /// Of a round trip of 40 ms.
    const PATH: Path = Path { rtt_us: 40_000, echo_ms: NO_ECHO, mss: MSS, is_short_of_memory: false };

    /// A connection with a buffer of [`BUFFER`] bytes, as the kernel would run it.
    struct Connection {
        state: SocketState,
        /// What a trace has taken from the state.
        traced: Option<Causes>,
        seen: Observation,
        path: Path,
        run_delay_ns: u64,
        tid: u32,
        begun_ns: u64,
    }

    impl Connection {
        fn new(start: u32) -> Self {
            let seen = Observation {
                now_ns: MS,
                rcv_nxt: start,
                copied_seq: start,
                rmem: 0,
                rcvbuf: BUFFER,
                window: BUFFER,
                edge: start.wrapping_add(BUFFER),
                arrived: start,
                mss: MSS,
                state: 1,
                fin: false,
                is_growth: false,
            };
            let state = SocketState {
                rcv_nxt: start,
                copied_seq: start,
                last_ns: MS,
                reader_slot: SLOT_NONE,
                reader_tid: 1,
                round: Round { edge: seen.edge, began_ns: MS, ..Round::ZERO },
                reads: Reads { queued_since_ns: MS, ..Reads::ZERO },
                ..SocketState::ZERO
            };
            Self { state, traced: None, seen, path: PATH, run_delay_ns: 0, tid: 1, begun_ns: MS }
        }

        fn queued(&self) -> u32 {
            self.seen.rcv_nxt.wrapping_sub(self.seen.copied_seq)
        }

        fn fold(&mut self, trigger: Trigger) {
            let path = self.path;
            fold(&mut self.state, &self.seen, trigger, |_, _| None, || path);
        }

        /// The receiver acknowledges all that has arrived, and offers what its buffer has room for. The edge never
        /// moves to the left.
        fn acknowledge(&mut self) {
            let edge = self.seen.copied_seq.wrapping_add(BUFFER);
            if edge.wrapping_sub(self.seen.edge) as i32 >= MSS as i32 {
                self.seen.edge = edge;
            }
        }

        /// A segment arrives after this time, if the window has room for it.
        fn segment(&mut self, after_ns: u64, bytes: u32) {
            self.seen.now_ns += after_ns;
            let bytes = bytes.min(window_left(self.seen.edge, self.seen.rcv_nxt));
            if bytes == 0 || self.seen.fin {
                return;
            }
            let end = self.seen.rcv_nxt.wrapping_add(bytes);
            self.seen = self.seen.with_segment(end);
            self.fold(Trigger::Segment);
            (self.seen.rcv_nxt, self.seen.arrived) = (end, end);
            self.acknowledge();
        }

        /// The thread `tid` reads after this time, for `waited_ns` of which it had no CPU.
        fn read(&mut self, after_ns: u64, bytes: u32, waited_ns: u64, tid: u32) {
            self.seen.now_ns += after_ns;
            let bytes = bytes.min(self.queued());
            if bytes == 0 {
                return;
            }
            self.run_delay_ns += waited_ns.min(after_ns);
            self.seen.copied_seq = self.seen.copied_seq.wrapping_add(bytes);
            self.fold(Trigger::Event);
            place(&mut self.state, self.seen.now_ns, self.run_delay_ns, tid == self.tid);
            if let Some(traced) = &mut self.traced {
                settle(&mut self.state, self.seen.now_ns, false);
                traced.take(&mut self.state);
            }
            self.tid = tid;
            self.acknowledge();
        }

        fn step(&mut self, step: &Step) {
            match *step {
                Step::Segment(after, bytes) => self.segment(after, bytes),
                Step::Read(after, bytes, waited, tid) => self.read(after, bytes, waited, tid),
                Step::Memory(short) => self.path.is_short_of_memory = short,
                Step::Fin if !self.seen.fin => {
                    self.fold(Trigger::Event);
                    self.seen.fin = true;
                    self.seen.rcv_nxt = self.seen.rcv_nxt.wrapping_add(1);
                }
                Step::Fin => {}
                Step::Pause(time) => self.seen.now_ns += time,
            }
        }

        /// What a snapshot shows.
        fn shown(&self) -> SocketTotals {
            let mut copy = Self { state: self.state, seen: self.seen, ..*self };
            copy.fold(Trigger::Snapshot);
            settle(&mut copy.state, copy.seen.now_ns, false);
            copy.state.counters.since(&SocketCounters::ZERO)
        }

        /// What its end shows.
        fn end(&mut self) -> SocketTotals {
            self.fold(Trigger::Event);
            settle(&mut self.state, self.seen.now_ns, true);
            self.state.counters.since(&SocketCounters::ZERO)
        }
    }

    /// Shares of the time in percent: upstream, application, scheduler, window, memory.
    fn shares(totals: &SocketTotals) -> [u64; 5] {
        let SocketTotals { upstream_limited_ns, application_limited_ns, scheduler_limited_ns, .. } = *totals;
        let reader = [application_limited_ns, scheduler_limited_ns];
        let all = [upstream_limited_ns, reader[0], reader[1], totals.window_limited_ns, totals.memory_limited_ns];
        all.map(|ns| (ns * 100 + totals.observed_ns / 2) / totals.observed_ns)
    }

    #[test]
    fn a_window_that_is_used_as_fast_as_it_is_granted_is_too_small() {
        let mut connection = Connection::new(0);
        for _ in 0..100 {
            for _ in 0..10 {
                connection.segment(0, MSS);
            }
            connection.read(10_000, BUFFER, 0, 1);
            connection.seen.now_ns += 40 * MS;
        }
        // The last round is open, and nobody will see how it ends.
        assert_eq!(shares(&connection.end()), [1, 0, 0, 99, 0]);
        connection.path.is_short_of_memory = true;
        let before = connection.state.counters;
        for _ in 0..100 {
            connection.segment(40 * MS, MSS);
            (0..9).for_each(|_| connection.segment(0, MSS));
            connection.read(10_000, BUFFER, 0, 1);
        }
        assert!(connection.state.counters.since(&before).memory_limited_ns > 3_900 * MS);
    }

    fn mean_echo_us(round: &Round) -> u32 {
        (round.echo & ((1 << ECHO_BITS) - 1)) >> ECHO_SHIFT
    }

    #[test]
    fn echoes_tell_the_round_trip_of_a_loaded_local_path() {
        // 300 us by the handshake, 700 us under load.
        let path = |echo_ms| Path { rtt_us: 300, echo_ms, ..PATH };
        let mut connection = Connection { path: path(0), ..Connection::new(0) };
        // It is known after a few rounds, and stays so.
        let mut at = Vec::new();
        for round in 0..20_000_u64 {
            if [200, 1_000, 10_000].contains(&round) {
                at.push(connection.state.counters);
            }
            let sent_ns = connection.seen.now_ns;
            connection.path = path(((sent_ns + 700_000) / MS - sent_ns / MS) as u32);
            connection.segment(700_000, MSS);
            (0..9).for_each(|_| connection.segment(0, MSS));
            connection.read(10_000, BUFFER, 0, 1);
        }
        let mean = mean_echo_us(&connection.state.round);
        assert!((680..720).contains(&mean), "{mean} us");
        at.push(connection.state.counters);
        for times in at.windows(2) {
            assert_eq!(shares(&times[1].since(&times[0])), [0, 1, 0, 99, 0]);
        }
        // A sender with nothing to send teaches nothing, whether its rounds are shown before they end or not.
        for settled in [false, true] {
            for _ in 0..10_000 {
                connection.path = path(3);
                connection.seen.now_ns += 3 * MS;
                if settled {
                    settle(&mut connection.state, connection.seen.now_ns, false);
                }
                connection.segment(0, MSS);
                (0..9).for_each(|_| connection.segment(0, MSS));
                connection.read(0, BUFFER, 0, 1);
            }
        }
        assert_eq!(mean_echo_us(&connection.state.round), mean);
    }

    #[test]
    fn an_echo_without_sense_is_left_out() {
        let mut round = Round::ZERO;
        let path = |rtt_us, echo_ms| Path { rtt_us, echo_ms, ..PATH };
        assert_eq!(round_trip_us(&mut round, 0, 0, path(300, NO_ECHO)), 300);
        assert_eq!(round_trip_us(&mut round, 0, 0, path(300, NO_ECHO - 1)), 300);
        assert_eq!(round_trip_us(&mut round, 0, 0, path(300, MAX_ECHO_MS + 1)), 300);
        assert_eq!(round_trip_us(&mut round, MS, 900_000, path(300, MAX_ECHO_MS)), 300);
        let one = 300 + (MAX_ECHO_MS * 1000 - 300) / 128;
        assert_eq!(round_trip_us(&mut round, MS, 1_000_000, path(300, MAX_ECHO_MS)), one);
        assert_eq!(round_trip_us(&mut round, MS, 1_000_000, path(300, MAX_ECHO_MS)), one);
        // The longest round trip that the handshake can show does not overflow.
        let mut round = Round::ZERO;
        assert_eq!(round_trip_us(&mut round, 0, 0, path(MAX_RTT_US, MAX_ECHO_MS)), MAX_ECHO_MS * 1000);
        // However low the mean strays, it finds back.
        let mut round = Round::ZERO;
        let after = |round: &mut Round, echo_ms| {
            (0..50_000).map(|_| round_trip_us(round, MS, 10_000, path(10, echo_ms))).last().expect("many")
        };
        assert_eq!((after(&mut round, 0), mean_echo_us(&round)), (10, 0));
        assert!(after(&mut round, 1) > 990);
        // Without any estimate, nothing is limited.
        let mut round = Round::ZERO;
        assert_eq!(round_trip_us(&mut round, MS, 1, path(0, 1)), 0);
    }

    #[test]
    fn a_sender_that_takes_longer_is_the_limit() {
        let mut connection = Connection::new(0);
        for _ in 0..100 {
            connection.segment(8 * MS, MSS);
            connection.read(10_000, BUFFER, 0, 1);
        }
        assert_eq!(shares(&connection.end()), [100, 0, 0, 0, 0]);
    }

    #[test]
    fn unread_data_that_fill_the_buffer_are_the_readers() {
        let mut connection = Connection::new(0);
        for _ in 0..100 {
            (0..10).for_each(|_| connection.segment(1_000, MSS));
            connection.read(10 * MS, 2 * MSS, 4 * MS, 1);
        }
        assert_eq!(shares(&connection.end()), [0, 60, 40, 0, 0]);
        // Then nobody reads any more.
        (0..10).for_each(|_| connection.segment(1_000, MSS));
        let before = connection.state.counters;
        connection.seen.now_ns += 3_600_000 * MS;
        let stuck =
            connection.shown().application_limited_ns - before.since(&SocketCounters::ZERO).application_limited_ns;
        assert!(stuck >= 3_600_000 * MS);
    }

    #[test]
    fn the_reader_limits_while_unread_data_take_up_two_thirds_of_the_window_however_late_the_next_arrive() {
        for (segments, expected) in [(6, [100, 0, 0, 0, 0]), (7, [0, 100, 0, 0, 0])] {
            let mut connection = Connection::new(0);
            (0..segments).for_each(|_| connection.segment(0, MSS));
            for _ in 0..100 {
                connection.read(100 * MS, MSS, 0, 1);
                connection.segment(0, MSS);
            }
            assert_eq!(shares(&connection.end()), expected, "{segments} segments");
        }
    }

    #[test]
    fn packets_that_fill_the_buffer_until_their_last_byte_is_read_are_the_readers() {
        // The window has room for less than a segment, although little is unread.
        for (rmem, mss, expected) in [(6_667, 9_000, 100), (6_666, 9_000, 0), (6_667, 8_000, 0)] {
            let mut connection = Connection::new(0);
            connection.segment(0, 1_000);
            (connection.seen.edge, connection.seen.rmem, connection.seen.mss) = (1_000 + 8_000, rmem, mss);
            connection.seen.now_ns += 100 * MS;
            assert_eq!(shares(&connection.end())[1], expected, "{rmem} {mss}");
        }
    }

    #[test]
    fn what_another_thread_waited_for_is_not_known() {
        let mut connection = Connection::new(0);
        for tid in 0..100 {
            (0..10).for_each(|_| connection.segment(1_000, MSS));
            connection.read(10 * MS, 2 * MSS, 4 * MS, tid);
        }
        assert_eq!(shares(&connection.end()), [0, 100, 0, 0, 0]);
    }

    #[test]
    fn nothing_is_limited_once_the_sender_has_finished() {
        let end = |finish: fn(&mut Observation)| {
            let mut connection = Connection::new(0);
            (0..10).for_each(|_| connection.segment(1_000, MSS));
            // The window has room for no more.
            connection.seen.edge = connection.seen.rcv_nxt;
            finish(&mut connection.seen);
            connection.seen.now_ns += 1_000 * MS;
            shares(&connection.end())
        };
        let by_sender = [100, 0, 0, 0, 0];
        assert_ne!(end(|_| ()), by_sender);
        assert_eq!(end(|seen| (seen.fin, seen.rcv_nxt) = (true, seen.rcv_nxt + 1)), by_sender);
        // After a RST.
        assert_eq!(end(|seen| seen.state = crate::tcp_state::CLOSE), by_sender);
    }

    #[test]
    fn a_reader_that_sleeps_waits_for_a_cpu_only_after_data_have_come() {
        let mut connection = Connection::new(0);
        for _ in 0..100 {
            connection.segment(100 * MS, MSS);
            connection.read(MS, BUFFER, MS, 1);
        }
        let totals = connection.end();
        assert_eq!(totals.queue_byte_ticks, 100 * (u64::from(MSS) * MS / TICK_NS));
        assert!(totals.application_byte_ticks <= 100);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Segment(u64, u32),
        Read(u64, u32, u64, u32),
        Memory(bool),
        Fin,
        Pause(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let time = || prop_oneof![0..2_000_u64, 0..200 * MS, Just(0)];
        prop_oneof![
            8 => (time(), 1..3 * MSS).prop_map(|(after, bytes)| Step::Segment(after, bytes)),
            6 => (time(), 1..2 * BUFFER, time(), 1..3_u32)
                .prop_map(|(after, bytes, waited, tid)| Step::Read(after, bytes, waited, tid)),
            1 => any::<bool>().prop_map(Step::Memory),
            1 => time().prop_map(Step::Pause),
            1 => Just(Step::Fin),
        ]
    }

    /// The causes of these totals.
    fn causes(totals: &SocketTotals) -> Causes {
        Causes {
            upstream_ns: totals.upstream_limited_ns,
            application_ns: totals.application_limited_ns,
            scheduler_ns: totals.scheduler_limited_ns,
            window_ns: totals.window_limited_ns,
            memory_ns: totals.memory_limited_ns,
            application_byte_ticks: totals.application_byte_ticks,
            scheduler_byte_ticks: totals.scheduler_byte_ticks,
        }
    }

    fn plus(a: Causes, b: Causes) -> Causes {
        Causes {
            upstream_ns: a.upstream_ns + b.upstream_ns,
            application_ns: a.application_ns + b.application_ns,
            scheduler_ns: a.scheduler_ns + b.scheduler_ns,
            window_ns: a.window_ns + b.window_ns,
            memory_ns: a.memory_ns + b.memory_ns,
            application_byte_ticks: a.application_byte_ticks + b.application_byte_ticks,
            scheduler_byte_ticks: a.scheduler_byte_ticks + b.scheduler_byte_ticks,
        }
    }

    proptest! {
        /// Whatever happens, the causes add up to the time, none is negative, and what is shown never falls.
        #[test]
        fn causes_add_up_and_never_fall(start: u32, steps in prop::collection::vec(step(), 1..200)) {
            let mut connection = Connection::new(start);
            // A trace's records and what is left at the end are together what the daemon shows.
            let mut traced = Connection { traced: Some(Causes::ZERO), ..Connection::new(start) };
            let mut shown = SocketTotals::default();
            for step in steps {
                connection.step(&step);
                traced.step(&step);
                let now = connection.shown();
                let parts = |totals: &SocketTotals| Vec::from([
                    totals.upstream_limited_ns,
                    totals.application_limited_ns,
                    totals.scheduler_limited_ns,
                    totals.window_limited_ns,
                    totals.memory_limited_ns,
                ]);
                for part in parts(&now).into_iter().chain([now.application_byte_ticks, now.scheduler_byte_ticks]) {
                    prop_assert!(part.cast_signed() >= 0, "{now:?}");
                }
                prop_assert_eq!(parts(&now).iter().sum::<u64>(), now.observed_ns);
                let open = connection.seen.now_ns - connection.begun_ns - now.observed_ns;
                prop_assert!(open <= u64::from(PATH.rtt_us) * 1500, "{} held back", open);
                let before = shown;
                shown.raise_to(&now);
                prop_assert_eq!(shown.limited_ns(), now.observed_ns);
                prop_assert_eq!(shown.application_byte_ticks + shown.scheduler_byte_ticks, now.queue_byte_ticks);
                for (before, after) in parts(&before).iter().zip(parts(&shown)) {
                    prop_assert!(*before <= after);
                }
            }
            let end = connection.end();
            prop_assert_eq!(end.observed_ns, connection.seen.now_ns - connection.begun_ns);
            let left = causes(&traced.end());
            prop_assert_eq!(plus(traced.traced.expect("a trace"), left), causes(&end));
        }
    }
}
