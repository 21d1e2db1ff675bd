//! Tests of the rules in `docs/causes.md`.

extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::{
    path::{ECHO_BITS, ECHO_SHIFT, MAX_ECHO_MS, round_trip_us},
    *,
};
use crate::{
    counters::{Cells as _, Counted as _, Summed as _},
    fold::{Trigger, fold},
    reader::SLOT_NONE,
    socket::{SocketCounters, SocketTotals, TICK_NS},
};

const MS: u64 = 1_000_000;
const MSS: u32 = 1_000;
const BUFFER: u32 = 10_000;
/// A path with a round trip of 40 ms.
const PATH: Path = Path { rtt_us: 40_000, echo_ms: NO_ECHO, mss: MSS, is_short_of_memory: false };

/// A connection with a buffer of [`BUFFER`] bytes, as the kernel would run it.
struct Connection {
    state: SocketState,
    /// What a trace has taken from the state; `None` without a trace.
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

    /// A segment arrives `after_ns` later, if the window has room for it.
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

    /// The thread `tid` reads `after_ns` later; for `waited_ns` of that time it waited for a CPU.
    fn read(&mut self, after_ns: u64, bytes: u32, waited_ns: u64, tid: u32) {
        self.seen.now_ns += after_ns;
        let bytes = bytes.min(self.queued());
        if bytes == 0 {
            return;
        }
        self.run_delay_ns += waited_ns.min(after_ns);
        self.seen.copied_seq = self.seen.copied_seq.wrapping_add(bytes);
        self.fold(Trigger::Event);
        attribute_read(&mut self.state, self.seen.now_ns, self.run_delay_ns, tid == self.tid);
        if let Some(traced) = &mut self.traced {
            attribute_open_round(&mut self.state, self.seen.now_ns, false);
            traced.take_from(&mut self.state);
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
        attribute_open_round(&mut copy.state, copy.seen.now_ns, false);
        copy.state.counters.since(&SocketCounters::ZERO)
    }

    /// What the record of its end shows.
    fn end(&mut self) -> SocketTotals {
        self.fold(Trigger::Event);
        attribute_open_round(&mut self.state, self.seen.now_ns, true);
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
    // The round trip is known after a few rounds, and the estimate stays there.
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
    // Rounds in which the sender had nothing to send do not change the estimate, whether or not they are shown
    // before they end.
    for attributed in [false, true] {
        for _ in 0..10_000 {
            connection.path = path(3);
            connection.seen.now_ns += 3 * MS;
            if attributed {
                attribute_open_round(&mut connection.state, connection.seen.now_ns, false);
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
    // However low the mean drifts, it recovers.
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
    let stuck = connection.shown().application_limited_ns - before.since(&SocketCounters::ZERO).application_limited_ns;
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
fn all_time_is_the_applications_if_each_read_is_by_another_thread() {
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
        // A trace's records, together with what is left at the end, are what the daemon shows.
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
