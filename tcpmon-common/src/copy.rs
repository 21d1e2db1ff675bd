//! How a pass copies a socket's state while events change it.
//!
//! The state carries a sequence number: a sequence lock. The number is odd while an event is being folded, and a
//! different even number after each event. An event first reads the clock and the socket. It then makes the number odd,
//! writes the state, and makes the number even.
//!
//! User space reads the sequence number, **then** the state, and then the sequence number again, until both are the
//! same even number: the state is then one that stood between two events. Before that, a program has looked at the
//! socket: it has read the sequence number, **then** the clock, and then the socket's fields. If it has found the
//! number of the copy, no event came in between: the time is not before the state's last event, and the socket's fields
//! are not older than the state. Otherwise the copy shows the socket as of its last event, which came after the look.
//!
//! This relies on the compilers and on the CPU. The compilers keep the order of the accesses, because they are volatile
//! or have a barrier between them. x86-64 makes stores visible to other CPUs in program order and keeps loads in
//! program order (TSO); it may move a load ahead of an earlier store to another address, and nothing here depends on
//! that order. arm64 keeps neither order: there the programs' barriers are atomic additions with a result, which the
//! kernel's JIT compiler makes fully ordered instructions, and those of user space are the fences of C11. So the unit
//! test, which takes one access after another in every interleaving, holds on both. `tests/memory_model.rs` tests the
//! barriers themselves, in the memory model of C11. On another architecture, the daemon does not build.

/// What user space reads of one state; each method is one step of the copy.
pub trait Shared {
    /// [`SocketState::sequence`](crate::socket::SocketState::sequence).
    fn sequence(&mut self) -> u32;
    /// Copies the state.
    fn state(&mut self);
    /// Waits for an event that is being folded; false to give up.
    fn wait(&mut self) -> bool;
}

/// Copies until the copy is whole and returns its sequence number; `None` if it was given up.
pub fn copy(shared: &mut impl Shared) -> Option<u32> {
    loop {
        let before = shared.sequence();
        if before & 1 == 0 {
            shared.state();
            if shared.sequence() == before {
                return Some(before);
            }
        }
        if !shared.wait() {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// The memory that an event's program and the pass share; only one access happens at a time.
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

    /// The steps of one event, in this order. The kernel queues a segment before it, between it and the next event, or
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

    /// A pass in one interleaving: `schedule` has the number of the event's steps that run before each access; one step
    /// runs before each later access.
    struct Pass<'a> {
        memory: Memory,
        schedule: &'a [usize],
        access: usize,
        done: usize,
        tries: usize,
        looked: u32,
        time: u64,
        rcv_nxt: u32,
        state: (u64, u32, u32),
    }

    impl<'a> Pass<'a> {
        fn new(memory: Memory, schedule: &'a [usize]) -> Self {
            let state = (u64::MAX, 0, 0);
            Self { memory, schedule, access: 0, done: 0, tries: 20, looked: 0, time: 0, rcv_nxt: 0, state }
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

        /// What the program does.
        fn look(&mut self) {
            self.looked = self.access(|memory| memory.sequence);
            self.time = self.access(|memory| memory.clock);
            self.rcv_nxt = self.access(|memory| memory.rcv_nxt);
        }
    }

    impl Shared for Pass<'_> {
        fn sequence(&mut self) -> u32 {
            self.access(|memory| memory.sequence)
        }
        fn state(&mut self) {
            // In arbitrary order: a copy goes word by word.
            self.state.2 = self.access(|memory| memory.received);
            self.state.0 = self.access(|memory| memory.last_ns);
            self.state.1 = self.access(|memory| memory.state_rcv_nxt);
        }
        fn wait(&mut self) -> bool {
            self.tries -= 1;
            self.tries > 0
        }
    }

    /// Number of accesses in one look and one copy.
    const ACCESSES: usize = 8;

    /// Runs `protocol` in every interleaving with two events. It returns whether the look is current. Returns how many
    /// copies were current and how many were not, and how many of all are torn, or are current with a time before their
    /// last event or a socket that is older than their state.
    fn explore(protocol: fn(&mut Pass<'_>) -> bool) -> ([usize; 2], usize) {
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
        let (mut counts, mut wrong) = ([0; 2], 0);
        all(&mut Vec::new(), EVENTS * EVENT.len(), &mut |schedule| {
            let memory = Memory { stood: [(0, 0, 0)].to_vec(), ..Memory::default() };
            let mut pass = Pass::new(memory, schedule);
            let current = protocol(&mut pass);
            counts[usize::from(!current)] += 1;
            let (last_ns, rcv_nxt, _) = pass.state;
            let stood = pass.memory.stood.contains(&pass.state);
            let older = pass.time < last_ns || pass.rcv_nxt < rcv_nxt;
            wrong += usize::from(!stood || current && older);
        });
        (counts, wrong)
    }

    #[test]
    fn no_interleaving_makes_a_wrong_copy_and_each_copy_is_made() {
        let ([current, later], wrong) = explore(|pass| {
            pass.look();
            let sequence = copy(pass).expect("two events end");
            sequence == pass.looked
        });
        assert!(current > 400 && later > 400, "{current} {later}");
        assert_eq!(wrong, 0);
    }

    #[test]
    fn an_event_that_does_not_end_is_given_up() {
        let memory = Memory { sequence: 1, ..Memory::default() };
        let mut pass = Pass::new(memory, &[0; 40]);
        assert_eq!((copy(&mut pass), pass.access), (None, 20));
    }

    /// Checks the exploration itself: it must find the errors of other orders.
    #[test]
    fn every_other_order_makes_a_wrong_copy_in_some_interleaving() {
        let time_first: fn(&mut Pass<'_>) -> bool = |pass| {
            pass.time = pass.access(|memory| memory.clock);
            pass.looked = pass.access(|memory| memory.sequence);
            pass.rcv_nxt = pass.access(|memory| memory.rcv_nxt);
            copy(pass) == Some(pass.looked)
        };
        let socket_first: fn(&mut Pass<'_>) -> bool = |pass| {
            pass.rcv_nxt = pass.access(|memory| memory.rcv_nxt);
            pass.looked = pass.access(|memory| memory.sequence);
            pass.time = pass.access(|memory| memory.clock);
            copy(pass) == Some(pass.looked)
        };
        let always_current: fn(&mut Pass<'_>) -> bool = |pass| {
            pass.look();
            copy(pass).is_some()
        };
        let no_second_look: fn(&mut Pass<'_>) -> bool = |pass| {
            pass.look();
            let before = pass.sequence();
            pass.state();
            before == pass.looked
        };
        let odd_is_fine: fn(&mut Pass<'_>) -> bool = |pass| {
            pass.look();
            loop {
                let before = pass.sequence();
                pass.state();
                if pass.sequence() == before {
                    return before == pass.looked;
                }
            }
        };
        for (name, protocol) in [
            ("time first", time_first),
            ("socket first", socket_first),
            ("always current", always_current),
            ("no second look", no_second_look),
            ("odd is fine", odd_is_fine),
        ] {
            let (_, wrong) = explore(protocol);
            assert!(wrong > 0, "{name}");
        }
    }
}
