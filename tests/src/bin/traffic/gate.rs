//! Limits how many bytes each connection may move, and guarantees that workers that must stop have stopped.
//!
//! Each order starts an epoch. A worker (a thread, or the threads of `turns` together) checks the epoch before each
//! call, and reports when it has nothing left to move in it. A worker that is blocked in a call is kicked by a signal
//! until it has checked.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::session::lock;

/// An allowance without limit.
pub const UNLIMITED: u64 = u64::MAX;

const KICK: Signal = Signal::SIGUSR1;
const KICK_EVERY: Duration = Duration::from_millis(1);

/// See the module documentation.
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

/// A worker's registration at the gate. Dropping it deregisters the worker.
pub struct Registration<'g> {
    gate: &'g Gate,
    id: u64,
    looked: u64,
    done: u64,
}

/// The gate's answer to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// There is no new order.
    Same,
    /// Each connection may move this many bytes from now on.
    Allowed(u64),
    /// The worker has to finish.
    Close,
}

impl Gate {
    /// A gate that lets this many bytes of each connection through.
    pub fn new(allowance: u64) -> Self {
        let state = State { epoch: 1, allowance, closing: false, entered: 0, workers: Vec::new() };
        Self { epoch: AtomicU64::new(1), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Registers the calling thread as a worker.
    pub fn enter(&self) -> Registration<'_> {
        let mut state = lock(&self.state);
        state.entered += 1;
        let id = state.entered;
        state.workers.push(Worker { id, thread: pthread_self(), looked: 0, done: 0 });
        self.changed.notify_all();
        Registration { gate: self, id, looked: 0, done: 0 }
    }

    /// Sets the allowance of each connection. Returns when all workers know it and, if it is a limit, have nothing left
    /// to move. If there has been no worker yet, a limit above 0 waits for the first one.
    pub fn set(&self, allowance: u64) {
        self.change(|state| state.allowance = allowance);
    }

    /// Tells all workers to finish; returns when they know.
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

impl Registration<'_> {
    /// The order that was given since the last call (on the first call: the one in force). Cheap if there was none.
    pub fn look(&mut self) -> Instruction {
        if self.looked == self.gate.epoch.load(Ordering::Acquire) {
            return Instruction::Same;
        }
        let mut state = lock(&self.gate.state);
        self.looked = state.epoch;
        self.update(&mut state, |worker, epoch| worker.looked = epoch);
        if state.closing { Instruction::Close } else { Instruction::Allowed(state.allowance) }
    }

    /// Reports that nothing is left to move in this epoch. Cheap if that was reported before.
    pub fn done(&mut self) {
        if self.done < self.looked {
            self.done = self.looked;
            let (mut state, done) = (lock(&self.gate.state), self.done);
            self.update(&mut state, |worker, _| worker.done = done);
        }
    }

    /// Reports that nothing is left to move, and blocks until the next order.
    pub fn rest(&mut self) {
        self.done();
        let state = lock(&self.gate.state);
        let rested = self.gate.changed.wait_while(state, |state| state.epoch == self.looked);
        drop(rested.unwrap_or_else(PoisonError::into_inner));
    }

    /// Makes the calling thread the one that is kicked.
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

impl Drop for Registration<'_> {
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
