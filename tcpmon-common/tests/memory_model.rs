//! The copy of a socket's state where nothing is ordered but what a barrier orders, as on arm64. loom runs an event and
//! a copy in every order that it knows of the memory model of C11, with the barriers of the eBPF programs. It does not
//! let a load see a store that comes later in its own order; an event writes only what depends on what it has read.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use loom::thread;
use tcpmon_common::copy::{Shared, copy};

/// What an event's program and the snapshot's share. No access orders another one.
struct Memory {
    clock: AtomicU64,
    rcv_nxt: AtomicU32,
    sequence: AtomicU32,
    last_ns: AtomicU64,
    state_rcv_nxt: AtomicU32,
}

/// Barriers in the programs of `tcpmon-ebpf`: in `begin_event`, in `end_event`, and in the steps of the copy.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Barrier {
    AfterOdd,
    BeforeEven,
    BeforeSequence,
    AfterSequence,
}

/// A program, without one of its barriers if so wished.
#[derive(Clone)]
struct Program {
    memory: Arc<Memory>,
    without: Option<Barrier>,
}

impl Program {
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

/// The snapshot's program, and what it has copied.
struct Snapshot {
    program: Program,
    time: u64,
    rcv_nxt: u32,
    last_ns: u64,
    state_rcv_nxt: u32,
}

impl Snapshot {
    /// Whether the state stood before or after the event, at a time that is not before it, and the socket is not older.
    fn is_right(&self) -> bool {
        let stood = [(0, 0), (1, 100)].contains(&(self.last_ns, self.state_rcv_nxt));
        stood && self.time >= self.last_ns && self.rcv_nxt >= self.state_rcv_nxt
    }
}

impl Shared for Snapshot {
    fn sequence(&mut self) -> u32 {
        self.program.barrier(Barrier::BeforeSequence);
        let sequence = self.program.memory.sequence.load(Relaxed);
        if sequence == 1 {
            // The event goes on.
            thread::yield_now();
        }
        self.program.barrier(Barrier::AfterSequence);
        sequence
    }

    fn time(&mut self) {
        self.time = self.program.memory.clock.load(Relaxed);
    }

    fn socket(&mut self) {
        self.rcv_nxt = self.program.memory.rcv_nxt.load(Relaxed);
    }

    fn state(&mut self) {
        self.last_ns = self.program.memory.last_ns.load(Relaxed);
        self.state_rcv_nxt = self.program.memory.state_rcv_nxt.load(Relaxed);
    }
}

/// In all executions without this barrier, how many copies are taken, and how many of them are wrong.
fn explore(without: Option<Barrier>) -> (usize, usize) {
    let counts = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let counting = Arc::clone(&counts);
    loom::model(move || {
        let memory = Memory {
            clock: AtomicU64::new(0),
            rcv_nxt: AtomicU32::new(0),
            sequence: AtomicU32::new(0),
            last_ns: AtomicU64::new(0),
            state_rcv_nxt: AtomicU32::new(0),
        };
        let program = Program { memory: Arc::new(memory), without };
        let other = program.clone();
        let event = thread::spawn(move || other.event());
        let mut snapshot = Snapshot { program, time: 0, rcv_nxt: 0, last_ns: 0, state_rcv_nxt: 0 };
        if copy(&mut snapshot).is_some() {
            for (count, is_counted) in counting.iter().zip([true, !snapshot.is_right()]) {
                count.fetch_add(usize::from(is_counted), Relaxed);
            }
        }
        event.join().expect("the event does not panic");
    });
    let [taken, wrong] = [0, 1].map(|count: usize| counts[count].load(Relaxed));
    eprintln!("without {without:?}: {wrong} of {taken} copies are wrong");
    (taken, wrong)
}

#[test]
fn with_its_barriers_no_order_makes_a_wrong_copy() {
    let (taken, wrong) = explore(None);
    assert!(taken > 100, "{taken} copies were taken");
    assert_eq!(wrong, 0);
}

/// Checks the exploration itself.
#[test]
fn without_one_of_the_barriers_some_order_makes_a_wrong_copy() {
    for barrier in [Barrier::AfterOdd, Barrier::BeforeEven, Barrier::BeforeSequence, Barrier::AfterSequence] {
        let (_, wrong) = explore(Some(barrier));
        assert!(wrong > 0, "{barrier:?}");
    }
}
