//! Folds what is seen at an event into a socket's totals.
//!
//! The programs run it at every event. User space runs it on a copy, to bring a snapshot up to the time at which it was
//! taken. Both use this one function, so they cannot disagree.
//!
//! Between two events of a socket its queue is constant, so the values read at an event have held since the previous
//! event.

use crate::{
    causes::{self, Path},
    histogram::{FILL_ACTIVATION, FILL_DEACTIVATION, FILL_SEGMENT, fill_bin, fill_ratio},
    reader::SLOT_NONE,
    socket::{FIN_READ, FIN_RECEIVED, SocketCounters, SocketState, TICK_NS},
    tcp_state::{CLOSE, FIN_WAIT1, FIN_WAIT2},
};

/// This side has sent its FIN and may still receive.
const HALF_CLOSED: [u32; 2] = [FIN_WAIT1, FIN_WAIT2];

/// What is read from the socket at an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// `CLOCK_MONOTONIC`, ns.
    pub now_ns: u64,
    /// `rcv_nxt`.
    pub rcv_nxt: u32,
    /// `copied_seq`.
    pub copied_seq: u32,
    /// `sk_rmem_alloc`, bytes.
    pub rmem: u32,
    /// `sk_rcvbuf`, bytes.
    pub rcvbuf: u32,
    /// The last advertised window, bytes.
    pub window: u32,
    /// Right edge of the advertised window: `rcv_wup + rcv_wnd`.
    pub edge: u32,
    /// End of the data that have arrived: that of the segment, if this is a segment's event, otherwise `rcv_nxt`.
    pub arrived: u32,
    /// `icsk_ack.rcv_mss`, bytes.
    pub mss: u32,
    /// TCP state.
    pub state: u32,
    /// The peer's FIN is in `rcv_nxt`.
    pub fin: bool,
    /// Whether autotuning raised `sk_rcvbuf`, if it is larger than at the last event.
    pub is_growth: bool,
}

impl Observation {
    /// 1 if nothing more will come, otherwise 0: the peer has sent a FIN, or the connection was reset.
    #[inline(always)]
    pub fn is_over(&self) -> u32 {
        self.fin as u32 | (self.state ^ CLOSE).wrapping_sub(1) >> 31
    }

    /// With a segment that ends before the sequence number `end`, if that lies within the window.
    #[inline(always)]
    pub fn with_segment(mut self, end: u32) -> Self {
        let beyond = (self.edge.wrapping_sub(end) as i32 >> 31) as u32;
        let before = (end.wrapping_sub(self.rcv_nxt) as i32 >> 31) as u32;
        let outside = beyond | before;
        self.arrived = self.rcv_nxt & outside | end & !outside;
        self
    }
}

/// Why [`fold`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A data segment arrives: it is counted, with the fill of the receive buffer that it finds.
    Segment,
    /// Any other event.
    Event,
    /// No event: a copy is brought up to the time of the snapshot.
    Snapshot,
}

/// Time went backwards between two events.
pub const REFUSED_TIME: u32 = 1;
/// A sequence number went backwards.
pub const REFUSED_BYTES: u32 = 2;

/// What [`fold`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folded {
    /// Bytes drained since the last event.
    pub read_bytes: u32,
    /// `REFUSED_` bits: impossible values were seen, and were treated as no change.
    pub refused: u32,
}

/// Brings `state` up to `seen`. `reader_edges` takes a reader slot and a thread id, and returns the thread's number of
/// CPU edges if the slot still belongs to that thread. `path` is called when a round ends.
#[inline(always)]
pub fn fold(
    state: &mut SocketState,
    seen: &Observation,
    trigger: Trigger,
    reader_edges: impl FnOnce(u32, u32) -> Option<u32>,
    path: impl FnOnce() -> Path,
) -> Folded {
    let mut received = seen.rcv_nxt.wrapping_sub(state.rcv_nxt);
    let mut read = seen.copied_seq.wrapping_sub(state.copied_seq);
    // The queue until now: the only bytes drained since the last event are those that this event reports.
    let mut queued = seen.rcv_nxt.wrapping_sub(state.copied_seq);
    // A distance is negative if its top bit is set. These are masks instead of branches because the verifier would walk
    // all the code below once more for each branch.
    let mut elapsed = seen.now_ns.wrapping_sub(state.last_ns);
    let early = elapsed >> 63;
    elapsed &= early.wrapping_sub(1);
    let backwards = (received | read | queued) >> 31;
    let possible = backwards.wrapping_sub(1);
    received &= possible;
    read &= possible;
    queued &= possible;
    let refused = (REFUSED_TIME * early as u32) | (REFUSED_BYTES * backwards);
    if seen.fin {
        // A FIN occupies one sequence number but is not data.
        if state.flags & FIN_RECEIVED == 0 {
            state.flags |= FIN_RECEIVED;
            received = received.saturating_sub(1);
        }
        if state.flags & FIN_READ == 0 {
            queued = queued.saturating_sub(1);
            if seen.copied_seq == seen.rcv_nxt {
                state.flags |= FIN_READ;
                read = read.saturating_sub(1);
            }
        }
    }
    if seen.state == HALF_CLOSED[0] || seen.state == HALF_CLOSED[1] {
        // Single arrivals were not seen, so treat them as spread evenly over the interval.
        queued = queued.saturating_sub(received / 2);
    }

    let counters = &mut state.counters;
    counters.received_bytes = counters.received_bytes.wrapping_add(received as u64);
    counters.read_bytes = counters.read_bytes.wrapping_add(read as u64);
    counters.queue_byte_ticks = counters.queue_byte_ticks.wrapping_add(byte_ticks(queued, elapsed));
    if seen.window < seen.mss && seen.is_over() == 0 {
        counters.zero_window_ns = counters.zero_window_ns.wrapping_add(elapsed);
    }
    if seen.rcvbuf > state.rcvbuf && seen.is_growth {
        counters.growths = counters.growths.wrapping_add(1);
    }

    let mut edges = Edges { activations: 0, deactivations: 0 };
    if state.reader_slot != SLOT_NONE {
        match reader_edges(state.reader_slot, state.reader_tid) {
            Some(count) => edges = fold_edges(state, received, queued, count, trigger),
            // The slot no longer belongs to the thread, which is gone.
            None => state.reader_slot = SLOT_NONE,
        }
    }
    let segment = matches!(trigger, Trigger::Segment);
    if segment || edges.activations | edges.deactivations != 0 {
        let counters = &mut state.counters;
        counters.segments = counters.segments.wrapping_add(segment as u64);
        let fill = fill_ratio(seen.rmem, seen.rcvbuf);
        let bins = &mut counters.fills[fill_bin(fill)];
        let times = [segment as u32, edges.activations, edges.deactivations];
        bins[FILL_SEGMENT] = bins[FILL_SEGMENT].wrapping_add(times[FILL_SEGMENT]);
        bins[FILL_ACTIVATION] = bins[FILL_ACTIVATION].wrapping_add(times[FILL_ACTIVATION]);
        bins[FILL_DEACTIVATION] = bins[FILL_DEACTIVATION].wrapping_add(times[FILL_DEACTIVATION]);
        if fill != 0 {
            let sums = &mut counters.fill_sums;
            sums[FILL_SEGMENT] = sums[FILL_SEGMENT].wrapping_add(fill as u64 * times[FILL_SEGMENT] as u64);
            sums[FILL_ACTIVATION] = sums[FILL_ACTIVATION].wrapping_add(fill as u64 * times[FILL_ACTIVATION] as u64);
            sums[FILL_DEACTIVATION] =
                sums[FILL_DEACTIVATION].wrapping_add(fill as u64 * times[FILL_DEACTIVATION] as u64);
        }
    }

    causes::account(state, seen, queued, elapsed, segment, path);

    if state.grow_from != 0 {
        state.grow_from = 0;
    }
    state.rcv_nxt = seen.rcv_nxt;
    state.copied_seq = seen.copied_seq;
    if state.rcvbuf != seen.rcvbuf {
        state.rcvbuf = seen.rcvbuf;
    }
    state.last_ns = seen.now_ns;
    Folded { read_bytes: read, refused }
}

/// Bytes x time in units of [`TICK_NS`], without overflow and without losing short intervals.
#[inline(always)]
fn byte_ticks(bytes: u32, elapsed_ns: u64) -> u64 {
    if elapsed_ns >> 32 == 0 {
        bytes as u64 * elapsed_ns / TICK_NS
    } else {
        (bytes as u64).wrapping_mul(elapsed_ns / TICK_NS)
    }
}

/// The edges of the reader's timeslices since the last event that count for the socket.
struct Edges {
    activations: u32,
    deactivations: u32,
}

/// Counts the edges of the reader's timeslices since the last event; the queue was the same at each of them. A
/// timeslice in which the queue was empty and nothing arrived or was read carries no information and is not counted.
#[inline(always)]
fn fold_edges(state: &mut SocketState, received: u32, queued: u32, count: u32, trigger: Trigger) -> Edges {
    let was_running = state.reader_edges & 1;
    let counters = &mut state.counters;
    // `received` is the segment of the last event, which found the reader in this state.
    if was_running == 1 {
        counters.arrived_on_cpu_bytes = counters.arrived_on_cpu_bytes.wrapping_add(received as u64);
    } else {
        counters.arrived_off_cpu_bytes = counters.arrived_off_cpu_bytes.wrapping_add(received as u64);
    }
    let edges = count.wrapping_sub(state.reader_edges);
    if edges == 0 {
        return Edges { activations: 0, deactivations: 0 };
    }
    state.reader_edges = count;
    if queued == 0 {
        // An event belongs to the timeslice that is running now. Without an event, nothing has happened in that
        // timeslice yet.
        let activations = if matches!(trigger, Trigger::Snapshot) { 0 } else { count & 1 };
        return Edges { activations, deactivations: was_running };
    }
    // Not (edges + was_running) / 2, which can overflow.
    let deactivations = (edges >> 1) + (edges & was_running);
    Edges { activations: edges - deactivations, deactivations }
}

/// Counts the segments of the handshake, which find an empty buffer and are seen by no event.
#[inline(always)]
pub fn count_handshake(counters: &mut SocketCounters, segments: u32) {
    counters.segments = counters.segments.wrapping_add(segments as u64);
    let bin = &mut counters.fills[fill_bin(0)][FILL_SEGMENT];
    *bin = bin.wrapping_add(segments);
}

/// Counts one observed fill outside of [`fold`].
#[inline(always)]
pub fn observe(counters: &mut SocketCounters, which: usize, rmem: u32, rcvbuf: u32) {
    let fill = fill_ratio(rmem, rcvbuf);
    let bin = &mut counters.fills[fill_bin(fill)][which];
    *bin = bin.wrapping_add(1);
    counters.fill_sums[which] = counters.fill_sums[which].wrapping_add(fill as u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::FILLS;

    fn seen(now_ns: u64, rcv_nxt: u32, copied_seq: u32) -> Observation {
        Observation {
            now_ns,
            rcv_nxt,
            copied_seq,
            rmem: 0,
            rcvbuf: 100_000,
            window: 65_536,
            edge: rcv_nxt.wrapping_add(65_536),
            arrived: rcv_nxt,
            mss: 1448,
            state: 1,
            fin: false,
            is_growth: false,
        }
    }

    fn fold_one(
        state: &mut SocketState,
        seen: &Observation,
        trigger: Trigger,
        edges: impl FnOnce(u32, u32) -> Option<u32>,
    ) {
        fold(state, seen, trigger, edges, || Path { mss: 1448, ..Path::NONE });
    }

    fn edges(state: &SocketState) -> [u32; FILLS] {
        state.counters.fills.iter().fold([0; FILLS], |sum, bin| [sum[0] + bin[0], sum[1] + bin[1], sum[2] + bin[2]])
    }

    fn state() -> SocketState {
        SocketState { rcvbuf: 100_000, reader_slot: SLOT_NONE, last_ns: 0, ..SocketState::ZERO }
    }

    #[test]
    fn the_integral_counts_a_byte_from_its_arrival_to_its_read() {
        let mut state = state();
        // A segment of 1000 bytes arrives at 1 ms (its event comes before it is queued) and is read at 3 ms.
        fold_one(&mut state, &seen(1_024_000, 0, 0), Trigger::Event, |_, _| None);
        fold_one(&mut state, &seen(3 * 1_024_000, 1000, 1000), Trigger::Event, |_, _| None);
        fold_one(&mut state, &seen(9 * 1_024_000, 1000, 1000), Trigger::Event, |_, _| None);
        assert_eq!(state.counters.queue_byte_ticks, 1000 * 2000);
        assert_eq!((state.counters.received_bytes, state.counters.read_bytes), (1000, 1000));
    }

    #[test]
    fn sequence_numbers_may_wrap() {
        let mut state = SocketState { rcv_nxt: u32::MAX - 10, copied_seq: u32::MAX - 10, ..state() };
        fold_one(&mut state, &seen(1, 89, 19), Trigger::Event, |_, _| None);
        assert_eq!((state.counters.received_bytes, state.counters.read_bytes), (100, 30));
    }

    #[test]
    fn a_fin_is_neither_received_nor_read_nor_queued_data() {
        let mut state = state();
        let fin = |now, rcv_nxt, copied| Observation { fin: true, ..seen(now, rcv_nxt, copied) };
        fold_one(&mut state, &fin(1, 101, 0), Trigger::Event, |_, _| None);
        assert_eq!(state.counters.received_bytes, 100);
        fold_one(&mut state, &fin(1 + 1024, 101, 100), Trigger::Event, |_, _| None);
        assert_eq!((state.counters.read_bytes, state.counters.queue_byte_ticks), (100, 100));
        fold_one(&mut state, &fin(1 + 2048, 101, 101), Trigger::Event, |_, _| None);
        fold_one(&mut state, &fin(1 + 9999, 101, 101), Trigger::Event, |_, _| None);
        assert_eq!((state.counters.received_bytes, state.counters.read_bytes), (100, 100));
        assert_eq!(state.counters.queue_byte_ticks, 100);
    }

    #[test]
    fn arrivals_belong_to_where_the_reader_was_when_they_arrived() {
        let mut state = SocketState { reader_slot: 0, reader_edges: 1, ..state() };
        // 100 bytes arrive while the reader runs (known at the next event). It then sleeps while 200 more arrive, wakes
        // up and reads.
        fold_one(&mut state, &seen(10, 0, 0), Trigger::Event, |_, _| Some(1));
        fold_one(&mut state, &seen(20, 100, 0), Trigger::Event, |_, _| Some(2));
        fold_one(&mut state, &seen(30, 300, 300), Trigger::Event, |_, _| Some(3));
        let SocketCounters { arrived_on_cpu_bytes, arrived_off_cpu_bytes, .. } = state.counters;
        assert_eq!((arrived_on_cpu_bytes, arrived_off_cpu_bytes), (100, 200));
        assert_eq!(edges(&state), [0, 1, 1]);
    }

    #[test]
    fn a_stalled_reader_is_counted_at_each_edge_and_an_idle_socket_only_once() {
        let mut stalled = SocketState { reader_slot: 0, reader_edges: 1, ..state() };
        fold_one(&mut stalled, &Observation { rmem: 50_000, ..seen(10, 500, 0) }, Trigger::Event, |_, _| Some(201));
        assert_eq!(edges(&stalled), [0, 100, 100]);
        assert_eq!(stalled.counters.fill_sums, [0, 100 * 320, 100 * 320]);
        let mut idle = SocketState { reader_slot: 0, reader_edges: 1, ..state() };
        fold_one(&mut idle, &seen(10, 0, 0), Trigger::Event, |_, _| Some(201));
        assert_eq!(edges(&idle), [0, 1, 1]);
    }

    #[test]
    fn a_slot_of_another_thread_is_let_go() {
        let mut state = SocketState { reader_slot: 7, reader_edges: 1, ..state() };
        fold_one(&mut state, &seen(10, 100, 0), Trigger::Event, |_, _| None);
        assert_eq!(state.reader_slot, SLOT_NONE);
        assert_eq!(state.counters.received_bytes, 100);
    }

    #[test]
    fn a_long_stall_does_not_overflow_the_integral() {
        let mut state = state();
        let hour = 3_600_000_000_000;
        fold_one(&mut state, &seen(hour, 1 << 30, 0), Trigger::Event, |_, _| None);
        let exact = (1u128 << 30) * u128::from(hour) / u128::from(TICK_NS);
        assert!(exact > u128::from(u64::MAX >> 7));
        assert!(exact.abs_diff(u128::from(state.counters.queue_byte_ticks)) < exact / 1_000_000);
    }

    #[test]
    fn a_half_closed_socket_takes_its_arrivals_as_spread_over_the_interval() {
        for half_closed in HALF_CLOSED {
            let mut state = state();
            fold_one(&mut state, &Observation { state: half_closed, ..seen(1024, 1000, 0) }, Trigger::Event, |_, _| {
                None
            });
            assert_eq!((state.counters.received_bytes, state.counters.queue_byte_ticks), (1000, 500));
        }
    }

    #[test]
    fn a_window_below_one_segment_is_timed() {
        let mut state = state();
        fold_one(&mut state, &Observation { window: 1447, ..seen(100, 0, 0) }, Trigger::Event, |_, _| None);
        fold_one(&mut state, &Observation { window: 1448, ..seen(300, 0, 0) }, Trigger::Event, |_, _| None);
        assert_eq!(state.counters.zero_window_ns, 100);
        // After a FIN or a RST, the window holds nobody up.
        fold_one(&mut state, &Observation { window: 0, fin: true, ..seen(400, 1, 0) }, Trigger::Event, |_, _| None);
        fold_one(&mut state, &Observation { window: 0, state: 7, ..seen(500, 1, 0) }, Trigger::Event, |_, _| None);
        assert_eq!(state.counters.zero_window_ns, 100);
    }

    #[test]
    fn segments_of_the_handshake_find_an_empty_buffer() {
        let mut state = state();
        count_handshake(&mut state.counters, 2);
        assert_eq!((state.counters.segments, edges(&state), state.counters.fill_sums), (2, [2, 0, 0], [0; FILLS]));
        assert_eq!(state.counters.fills[0][FILL_SEGMENT], 2);
    }

    #[test]
    fn growth_counts_only_where_autotuning_announced_it() {
        let mut state = state();
        fold_one(&mut state, &Observation { rcvbuf: 200_000, ..seen(1, 0, 0) }, Trigger::Event, |_, _| None);
        fold_one(
            &mut state,
            &Observation { rcvbuf: 300_000, is_growth: true, ..seen(2, 0, 0) },
            Trigger::Event,
            |_, _| None,
        );
        fold_one(
            &mut state,
            &Observation { rcvbuf: 300_000, is_growth: true, ..seen(3, 0, 0) },
            Trigger::Event,
            |_, _| None,
        );
        assert_eq!(state.counters.growths, 1);
    }
}
