//! How the snapshot copies a socket's state while events change it.
//!
//! The state carries a sequence number: a sequence lock. The number is odd while an event is being folded, and a
//! different even number after each event. An event first reads the clock and the socket. It then makes the number odd,
//! writes the state, and makes the number even. The snapshot reads the sequence number, **then** the clock, then the
//! socket, then the state, and then the sequence number again. If both reads give the same even number, the state is
//! one that stood between two events, the time is not before its last event, and the socket's own fields are not older
//! than the state.
//!
//! This relies on the compiler and on the CPU. The compiler keeps the order of the accesses, because they are volatile
//! or have a barrier between them. x86-64 makes stores visible to other CPUs in program order and keeps loads in
//! program order (TSO); it may move a load ahead of an earlier store to another address, and nothing here depends on
//! that order. arm64 keeps neither order: there the same barriers are atomic additions with a result, which the
//! kernel's JIT compiler makes fully ordered instructions. So the unit test, which takes one access after another in
//! every interleaving, holds on both. `tests/memory_model.rs` tests the barriers themselves, in the memory model of
//! C11. On another architecture, the daemon does not build.

/// What the snapshot reads of one socket; each method is one step of the copy.
pub trait Shared {
    /// [`SocketState::sequence`](crate::socket::SocketState::sequence).
    fn sequence(&mut self) -> u32;
    /// Copies the clock.
    fn time(&mut self);
    /// Copies the fields that are read from the socket itself.
    fn socket(&mut self);
    /// Copies the state.
    fn state(&mut self);
}

/// How often the snapshot tries to copy a state. An event takes less time than a copy.
pub const TRIES: u32 = 4;

/// How often a try looks whether the event that is being folded has ended: for longer than an event takes, unless an
/// interrupt comes in between.
const LOOKS: u32 = 256;

/// Copies once and returns the sequence number of the copy; `None` if the copy is torn and must not be used.
#[inline(always)]
pub fn copy(shared: &mut impl Shared) -> Option<u32> {
    let mut before = shared.sequence();
    let mut looks = 1;
    while before & 1 == 1 {
        if looks == LOOKS {
            return None;
        }
        looks += 1;
        before = shared.sequence();
    }
    shared.time();
    shared.socket();
    shared.state();
    if shared.sequence() == before { Some(before) } else { None }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// The memory that an event's program and the snapshot's share; only one access happens at a time.
    #[derive(Clone, Default)]
    struct Memory {
        clock: u64,
        rcv_nxt: u32,
        sequence: u32,
        last_ns: u64,
        state_rcv_nxt: u32,
        received: u32,
        // Registers of the event's program.
        now: u64,
        seen: u32,
        /// The states that stood between two events.
        stood: Vec<(u64, u32, u32)>,
    }

    /// What one event does, in this order. The kernel queues a segment before it, between it and the next event, or
    /// never.
    const EVENT: [fn(&mut Memory); 9] = [
        |memory| memory.rcv_nxt += 100,
        |memory| memory.now = memory.clock,
        |memory| memory.seen = memory.rcv_nxt,
        |memory| memory.sequence += 1,
        |memory| memory.received += memory.seen - memory.state_rcv_nxt,
        |memory| memory.state_rcv_nxt = memory.seen,
        |memory| memory.last_ns = memory.now,
        |memory| {
            memory.sequence += 1;
            memory.stood.push((memory.last_ns, memory.state_rcv_nxt, memory.received));
        },
        |memory| memory.rcv_nxt += 1,
    ];
    const EVENTS: usize = 2;

    /// The snapshot's program in one interleaving: `schedule` has the number of the event's steps that run before each
    /// access; before later ones, one step runs.
    struct Reader<'a> {
        memory: Memory,
        schedule: &'a [usize],
        access: usize,
        done: usize,
        time: u64,
        rcv_nxt: u32,
        state: (u64, u32, u32),
    }

    impl<'a> Reader<'a> {
        fn new(memory: Memory, schedule: &'a [usize]) -> Self {
            Self { memory, schedule, access: 0, done: 0, time: 0, rcv_nxt: 0, state: (u64::MAX, 0, 0) }
        }

        fn access<T>(&mut self, read: impl FnOnce(&Memory) -> T) -> T {
            let steps = self.schedule.get(self.access).copied().unwrap_or(1);
            for _ in 0..steps.min(EVENTS * EVENT.len() - self.done) {
                self.memory.clock += 1;
                EVENT[self.done % EVENT.len()](&mut self.memory);
                self.done += 1;
            }
            self.access += 1;
            self.memory.clock += 1;
            read(&self.memory)
        }
    }

    impl Shared for Reader<'_> {
        fn sequence(&mut self) -> u32 {
            self.access(|memory| memory.sequence)
        }
        fn time(&mut self) {
            self.time = self.access(|memory| memory.clock);
        }
        fn socket(&mut self) {
            self.rcv_nxt = self.access(|memory| memory.rcv_nxt);
        }
        fn state(&mut self) {
            // In arbitrary order: a copy goes word by word.
            self.state.2 = self.access(|memory| memory.received);
            self.state.0 = self.access(|memory| memory.last_ns);
            self.state.1 = self.access(|memory| memory.state_rcv_nxt);
        }
    }

    /// Number of accesses in one copy.
    const ACCESSES: usize = 7;

    /// Runs `protocol` in every interleaving with two events. Returns how many copies were taken, and how many of these
    /// are torn, have a time before their last event, or have a socket that is older than their state.
    fn explore(protocol: fn(&mut Reader<'_>) -> Option<u32>) -> (usize, usize) {
        fn all(schedule: &mut Vec<usize>, left: usize, each: &mut impl FnMut(&[usize])) {
            if schedule.len() == ACCESSES {
                each(schedule);
                return;
            }
            for steps in 0..=left {
                schedule.push(steps);
                all(schedule, left - steps, each);
                schedule.pop();
            }
        }
        let (mut taken, mut wrong) = (0, 0);
        all(&mut Vec::new(), EVENTS * EVENT.len(), &mut |schedule| {
            let memory = Memory { stood: [(0, 0, 0)].to_vec(), ..Memory::default() };
            let mut reader = Reader::new(memory, schedule);
            if protocol(&mut reader).is_some() {
                taken += 1;
                let stood = reader.memory.stood.contains(&reader.state);
                let (last_ns, rcv_nxt, _) = reader.state;
                wrong += usize::from(!stood || reader.time < last_ns || reader.rcv_nxt < rcv_nxt);
            }
        });
        (taken, wrong)
    }

    #[test]
    fn no_interleaving_makes_a_wrong_copy() {
        let (taken, wrong) = explore(|reader| copy(reader));
        assert!(taken > 400, "{taken} copies were taken");
        assert_eq!(wrong, 0);
    }

    #[test]
    fn an_event_that_is_being_folded_is_waited_for() {
        let begun = EVENT.len() - 4;
        let memory = Memory { stood: [(0, 0, 0)].to_vec(), ..Memory::default() };
        // The event goes on by one step at each look, and then no other comes.
        let schedule = [begun, 1, 1, 1, 0, 0, 0, 0, 0, 0];
        let mut reader = Reader::new(memory, &schedule);
        assert_eq!(copy(&mut reader), Some(2));
        assert_eq!(reader.state.1, 100);
    }

    #[test]
    fn an_event_that_does_not_end_is_given_up() {
        let memory = Memory { sequence: 1, ..Memory::default() };
        let mut reader = Reader::new(memory, &[0; LOOKS as usize]);
        assert_eq!((copy(&mut reader), reader.access), (None, LOOKS as usize));
    }

    /// Checks the exploration itself: it must find the errors of other orders.
    #[test]
    fn every_other_order_makes_a_wrong_copy_in_some_interleaving() {
        let time_first: fn(&mut Reader<'_>) -> Option<u32> = |reader| {
            reader.time();
            let before = reader.sequence();
            reader.socket();
            reader.state();
            (before & 1 == 0 && reader.sequence() == before).then_some(before)
        };
        let socket_first: fn(&mut Reader<'_>) -> Option<u32> = |reader| {
            reader.socket();
            let before = reader.sequence();
            reader.time();
            reader.state();
            (before & 1 == 0 && reader.sequence() == before).then_some(before)
        };
        let no_second_look: fn(&mut Reader<'_>) -> Option<u32> = |reader| {
            let before = reader.sequence();
            reader.time();
            reader.socket();
            reader.state();
            (before & 1 == 0).then_some(before)
        };
        let odd_is_fine: fn(&mut Reader<'_>) -> Option<u32> = |reader| {
            let before = reader.sequence();
            reader.time();
            reader.socket();
            reader.state();
            (reader.sequence() == before).then_some(before)
        };
        for (name, protocol) in [
            ("time first", time_first),
            ("socket first", socket_first),
            ("no second look", no_second_look),
            ("odd is fine", odd_is_fine),
        ] {
            let (_, wrong) = explore(protocol);
            assert!(wrong > 0, "{name}");
        }
    }
}
