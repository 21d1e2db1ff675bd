//! What programs and user space share where nothing is ordered but what a barrier orders, as on arm64. loom runs them
//! in every order that it knows of the memory model of C11, with the barriers of the eBPF programs and of user space.
//! It does not let a load see a store that comes later in its own order; an event writes only what depends on what it
//! has read.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use loom::sync::atomic::{Ordering::SeqCst, fence};
use loom::thread;
use tcpmon_common::copy::{Shared, copy};
use tcpmon_common::store::{NO_STATE, head_after};

/// Runs `sides` in every order; if something is known to be `wrong` with them, only in orders with a few switches
/// between threads, which are enough to find it.
fn model(wrong: bool, sides: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = wrong.then_some(2);
    builder.check(sides);
}

/// What an event's program and a pass share. No access orders another one.
struct Memory {
    clock: AtomicU64,
    rcv_nxt: AtomicU32,
    sequence: AtomicU32,
    last_ns: AtomicU64,
    state_rcv_nxt: AtomicU32,
}

/// Barriers: in `begin_event` and `end_event` of the programs, after the look's read of the sequence number, and around
/// the sequence number in user space.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Barrier {
    AfterOdd,
    BeforeEven,
    AfterLooked,
    BeforeSequence,
    AfterSequence,
}

/// Both sides, without one of the barriers if so wished.
#[derive(Clone)]
struct Sides {
    memory: Arc<Memory>,
    without: Option<Barrier>,
}

impl Sides {
    /// A barrier of a program.
    fn barrier(&self, barrier: Barrier) {
        if self.without != Some(barrier) {
            fence(SeqCst);
        }
    }

    /// Time passes, the kernel queues a segment, and the program folds it.
    fn event(&self) {
        let memory = &*self.memory;
        memory.clock.store(1, Relaxed);
        memory.rcv_nxt.store(100, Relaxed);
        let (now, seen) = (memory.clock.load(Relaxed), memory.rcv_nxt.load(Relaxed));
        memory.sequence.store(1, Relaxed);
        self.barrier(Barrier::AfterOdd);
        memory.state_rcv_nxt.store(seen, Relaxed);
        memory.last_ns.store(now, Relaxed);
        self.barrier(Barrier::BeforeEven);
        memory.sequence.store(2, Relaxed);
    }
}

/// A pass: what it has looked at, and what it has copied.
struct Pass {
    sides: Sides,
    looked: u32,
    time: u64,
    rcv_nxt: u32,
    last_ns: u64,
    state_rcv_nxt: u32,
}

impl Pass {
    /// What the program does that user space runs.
    fn look(&mut self) {
        let memory = &self.sides.memory;
        self.looked = memory.sequence.load(Relaxed);
        self.sides.barrier(Barrier::AfterLooked);
        self.time = memory.clock.load(Relaxed);
        self.rcv_nxt = memory.rcv_nxt.load(Relaxed);
    }

    /// Whether the state stood before or after the event; and if the look is current, the time is not before that event
    /// and the socket is not older.
    fn is_right(&self, current: bool) -> bool {
        let stood = [(0, 0), (1, 100)].contains(&(self.last_ns, self.state_rcv_nxt));
        stood && (!current || self.time >= self.last_ns && self.rcv_nxt >= self.state_rcv_nxt)
    }
}

impl Shared for Pass {
    fn sequence(&mut self) -> u32 {
        if self.sides.without != Some(Barrier::BeforeSequence) {
            fence(Acquire);
        }
        let order = if self.sides.without == Some(Barrier::AfterSequence) { Relaxed } else { Acquire };
        self.sides.memory.sequence.load(order)
    }

    fn state(&mut self) {
        self.last_ns = self.sides.memory.last_ns.load(Relaxed);
        self.state_rcv_nxt = self.sides.memory.state_rcv_nxt.load(Relaxed);
    }

    fn wait(&mut self) -> bool {
        // The event goes on.
        thread::yield_now();
        true
    }
}

/// In all executions without this barrier, how many copies are made, and how many of them are wrong.
fn explore(without: Option<Barrier>) -> (usize, usize) {
    let counts = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let counting = Arc::clone(&counts);
    model(without.is_some(), move || {
        let memory = Memory {
            clock: AtomicU64::new(0),
            rcv_nxt: AtomicU32::new(0),
            sequence: AtomicU32::new(0),
            last_ns: AtomicU64::new(0),
            state_rcv_nxt: AtomicU32::new(0),
        };
        let sides = Sides { memory: Arc::new(memory), without };
        let other = sides.clone();
        let event = thread::spawn(move || other.event());
        let mut pass = Pass { sides, looked: 0, time: 0, rcv_nxt: 0, last_ns: 0, state_rcv_nxt: 0 };
        pass.look();
        let sequence = copy(&mut pass);
        let current = sequence == Some(pass.looked);
        for (count, is_counted) in counting.iter().zip([true, !pass.is_right(current)]) {
            count.fetch_add(usize::from(is_counted), Relaxed);
        }
        event.join().expect("the event does not panic");
    });
    let [made, wrong] = [0, 1].map(|count: usize| counts[count].load(Relaxed));
    eprintln!("without {without:?}: {wrong} of {made} copies are wrong");
    (made, wrong)
}

#[test]
fn with_its_barriers_no_order_makes_a_wrong_copy() {
    let (made, wrong) = explore(None);
    assert!(made > 100, "{made} copies were made");
    assert_eq!(wrong, 0);
}

/// Checks the exploration itself.
#[test]
fn without_one_of_the_barriers_some_order_makes_a_wrong_copy() {
    let barriers =
        [Barrier::AfterOdd, Barrier::BeforeEven, Barrier::AfterLooked, Barrier::BeforeSequence, Barrier::AfterSequence];
    for barrier in barriers {
        let (_, wrong) = explore(Some(barrier));
        assert!(wrong > 0, "{barrier:?}");
    }
}

/// The two lists of the store, with three states.
struct Lists {
    free: AtomicU64,
    ended: AtomicU64,
    next: [AtomicU32; 3],
    /// What each state holds.
    values: [AtomicU32; 3],
    /// Whether the head of the free list counts how many states were taken.
    counts: bool,
}

impl Lists {
    /// The states 0, 1 and 2 are free, in this order.
    fn new(counts: bool) -> Self {
        Self {
            free: AtomicU64::new(0),
            ended: AtomicU64::new(NO_STATE.into()),
            next: [1, 2, NO_STATE].map(AtomicU32::new),
            values: [0; 3].map(AtomicU32::new),
            counts,
        }
    }

    /// What a program does to take a state; a compare-and-swap of a program is fully ordered.
    fn take(&self) -> u32 {
        loop {
            // The address of what is read next depends on it, which orders the two reads on every CPU that tcpmon runs
            // on.
            let head = self.free.load(Acquire);
            let index = head as u32;
            if index == NO_STATE {
                return NO_STATE;
            }
            let next = self.next[index as usize].load(Relaxed);
            let after = if self.counts { head_after(head, next) } else { next.into() };
            if self.free.compare_exchange(head, after, SeqCst, Relaxed).is_ok() {
                return index;
            }
        }
    }

    /// What user space does to give a state back.
    fn give(&self, index: u32) {
        let mut head = self.free.load(Relaxed);
        loop {
            self.next[index as usize].store(head as u32, Relaxed);
            let with = head & !u64::from(u32::MAX) | u64::from(index);
            match self.free.compare_exchange(head, with, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// What a program does with a state that has ended with this value.
    fn end(&self, index: u32, value: u32) {
        self.values[index as usize].store(value, Relaxed);
        loop {
            let head = self.ended.load(Relaxed);
            self.next[index as usize].store(head as u32, Relaxed);
            if self.ended.compare_exchange(head, index.into(), SeqCst, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// What user space does: the indexes and values of all that have ended.
    fn take_ended(&self) -> Vec<(u32, u32)> {
        let mut ended = Vec::new();
        let mut index = self.ended.swap(NO_STATE.into(), AcqRel) as u32;
        while index != NO_STATE {
            ended.push((index, self.values[index as usize].load(Relaxed)));
            index = self.next[index as usize].load(Relaxed);
        }
        ended
    }
}

/// Takes a state while others take two and give the first one back; returns in how many orders two sockets got the same
/// state, or a state was lost.
fn taken_twice(counts: bool) -> usize {
    let wrong = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&wrong);
    model(!counts, move || {
        let lists = Arc::new(Lists::new(counts));
        let other = Arc::clone(&lists);
        let taker = thread::spawn(move || other.take());
        let (first, second) = (lists.take(), lists.take());
        lists.give(first);
        let mut all = vec![second, taker.join().expect("it does not panic")];
        all.extend(std::iter::from_fn(|| Some(lists.take()).filter(|index| *index != NO_STATE)).take(4));
        all.sort_unstable();
        count.fetch_add(usize::from(all != [0, 1, 2]), Relaxed);
    });
    wrong.load(Relaxed)
}

#[test]
fn no_order_gives_a_state_to_two_sockets() {
    assert_eq!(taken_twice(true), 0);
    // Checks the exploration itself: the head must count.
    assert!(taken_twice(false) > 0);
}

#[test]
fn states_that_end_at_the_same_time_are_all_taken_once_with_what_they_hold() {
    loom::model(|| {
        let lists = Arc::new(Lists::new(true));
        let other = Arc::clone(&lists);
        let program = thread::spawn(move || other.end(1, 11));
        lists.end(0, 10);
        let mut ended = lists.take_ended();
        program.join().expect("it does not panic");
        ended.extend(lists.take_ended());
        ended.sort_unstable();
        assert_eq!(ended, [(0, 10), (1, 11)]);
    });
}

/// What user space may do too late: tell the store of a new state, or ask for it.
#[derive(Clone, Copy, PartialEq)]
enum Late {
    Nothing,
    Told,
    Asked,
}

/// A state is added, taken and ended, while the store takes what has ended; returns in how many orders the store did
/// not know a state that it took.
fn taken_unknown(late: Late) -> usize {
    let wrong = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&wrong);
    model(late != Late::Nothing, move || {
        let lists = Arc::new(Lists::new(true));
        lists.free.store(NO_STATE.into(), Relaxed);
        let told = Arc::new(AtomicU32::new(0));
        let (of_grower, to_store) = (Arc::clone(&lists), Arc::clone(&told));
        let grower = thread::spawn(move || {
            if late != Late::Told {
                to_store.store(1, Relaxed);
            }
            of_grower.give(0);
            to_store.store(1, Relaxed);
        });
        let of_program = Arc::clone(&lists);
        let program = thread::spawn(move || {
            // loom then also tries what follows with the other threads ahead.
            thread::yield_now();
            if of_program.take() == 0 {
                of_program.end(0, 10);
            }
        });
        let before = told.load(Relaxed);
        thread::yield_now();
        let ended = lists.take_ended();
        let known = if late == Late::Asked { before } else { told.load(Relaxed) };
        count.fetch_add(usize::from(!ended.is_empty() && known == 0), Relaxed);
        program.join().expect("it does not panic");
        grower.join().expect("it does not panic");
    });
    wrong.load(Relaxed)
}

#[test]
fn the_store_knows_each_state_that_has_ended() {
    assert_eq!(taken_unknown(Late::Nothing), 0);
    // Checks the exploration itself.
    assert!(taken_unknown(Late::Told) > 0);
    assert!(taken_unknown(Late::Asked) > 0);
}
