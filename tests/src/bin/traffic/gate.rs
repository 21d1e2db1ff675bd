//! How many bytes each connection may move, and the certainty that those who must stop have stopped.
//!
//! Each order begins an epoch. A worker (a thread, or the taker of turns) looks at the epoch before each call, and says
//! when it has nothing left to move in it. One that is blocked in a call is kicked by a signal until it has looked.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::session::lock;

/// The allowance that never runs out.
pub const UNLIMITED: u64 = u64::MAX;

const KICK: Signal = Signal::SIGUSR1;
const KICK_EVERY: Duration = Duration::from_millis(1);

/// See the module.
pub struct Gate {
    epoch: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    epoch: u64,
    allowance: u64,
    closing: bool,
    entered: u64,
    workers: Vec<Worker>,
}

struct Worker {
    id: u64,
    thread: Pthread,
    looked: u64,
    done: u64,
}

/// A worker's place at the gate, given up when dropped.
pub struct Pass<'g> {
    gate: &'g Gate,
    id: u64,
    looked: u64,
    done: u64,
}

/// What the gate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Nothing new.
    Same,
    /// Each connection may move so many bytes from now on.
    Allowed(u64),
    /// Come to an end.
    Close,
}

impl Gate {
    /// A gate that lets so many bytes of each connection through.
    pub fn new(allowance: u64) -> Self {
        let state = State { epoch: 1, allowance, closing: false, entered: 0, workers: Vec::new() };
        Self { epoch: AtomicU64::new(1), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Makes the calling thread a worker.
    pub fn enter(&self) -> Pass<'_> {
        let mut state = lock(&self.state);
        state.entered += 1;
        let id = state.entered;
        state.workers.push(Worker { id, thread: pthread_self(), looked: 0, done: 0 });
        self.changed.notify_all();
        Pass { gate: self, id, looked: 0, done: 0 }
    }

    /// Sets the allowance of each connection; returns when all workers know of it and, if it is a limit, have nothing
    /// left to move. A limit above 0 waits for the first worker if there has been none.
    pub fn set(&self, allowance: u64) {
        self.change(|state| state.allowance = allowance);
    }

    /// Tells all workers to come to an end; returns when they know.
    pub fn close(&self) {
        self.change(|state| {
            state.closing = true;
            state.allowance = UNLIMITED;
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        state.epoch += 1;
        self.epoch.store(state.epoch, Ordering::Release);
        self.changed.notify_all();
        while !state.is_obeyed() {
            for worker in state.workers.iter().filter(|worker| worker.looked < state.epoch) {
                // The worker deregisters under this lock before its thread ends, so the thread still exists.
                pthread_kill(worker.thread, KICK).expect("a registered worker is alive");
            }
            state = self.changed.wait_timeout(state, KICK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn is_obeyed(&self) -> bool {
        let limited = self.allowance != UNLIMITED;
        let somebody = self.entered > 0 || !limited || self.allowance == 0;
        let obeys = |worker: &Worker| worker.looked == self.epoch && (!limited || worker.done == self.epoch);
        somebody && self.workers.iter().all(obeys)
    }
}

impl Pass<'_> {
    /// What has been ordered since the last look (at first: what holds). Cheap when nothing has.
    pub fn look(&mut self) -> Word {
        if self.looked == self.gate.epoch.load(Ordering::Acquire) {
            return Word::Same;
        }
        let mut state = lock(&self.gate.state);
        self.looked = state.epoch;
        self.update(&mut state, |worker, epoch| worker.looked = epoch);
        if state.closing { Word::Close } else { Word::Allowed(state.allowance) }
    }

    /// Says that nothing is left to move in this epoch. Cheap when said before.
    pub fn done(&mut self) {
        if self.done < self.looked {
            self.done = self.looked;
            let (mut state, done) = (lock(&self.gate.state), self.done);
            self.update(&mut state, |worker, _| worker.done = done);
        }
    }

    /// Says so and blocks until the next order.
    pub fn rest(&mut self) {
        self.done();
        let state = lock(&self.gate.state);
        let rested = self.gate.changed.wait_while(state, |state| state.epoch == self.looked);
        drop(rested.unwrap_or_else(PoisonError::into_inner));
    }

    /// Makes the calling thread the one to kick.
    pub fn take_over(&self) {
        let thread = pthread_self();
        self.update(&mut lock(&self.gate.state), |worker, _| worker.thread = thread);
    }

    fn update(&self, state: &mut State, change: impl FnOnce(&mut Worker, u64)) {
        let epoch = state.epoch;
        let worker = state.workers.iter_mut().find(|worker| worker.id == self.id);
        change(worker.expect("a pass is registered until it is dropped"), epoch);
        self.gate.changed.notify_all();
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        lock(&self.gate.state).workers.retain(|worker| worker.id != self.id);
        self.gate.changed.notify_all();
    }
}

/// Makes a kick interrupt a blocking call (EINTR) and do nothing else.
#[expect(unsafe_code, reason = "installing a signal handler is unsafe")]
pub fn let_kicks_interrupt() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing, so it is safe at any point of any thread.
    unsafe { sigaction(KICK, &action) }?;
    Ok(())
}
