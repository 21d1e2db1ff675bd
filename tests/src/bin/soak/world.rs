//! What all actors share: whether the run is over, what was done, what was found, and what was sent.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tcpmon_tests::emulated;

/// The run ends after this many findings: the cause is known by then.
const MOST_FINDINGS: usize = 20;

/// The run.
pub struct World {
    /// When it began.
    pub begun: Instant,
    /// The daemon that is watched throughout.
    pub daemon: std::net::SocketAddr,
    /// Its process id.
    pub pid: u32,
    /// Its config file.
    pub config: std::path::PathBuf,
    /// What is sent, by actor.
    pub accounts: [Account; Account::ALL],
    over: AtomicBool,
    ends: Condvar,
    done: Mutex<Done>,
}

#[derive(Default)]
struct Done {
    actions: BTreeMap<String, u64>,
    findings: Vec<String>,
}

/// What one actor sends to the readers at its port.
#[derive(Default)]
pub struct Account {
    /// Bytes that may have been sent.
    planned: AtomicU64,
    /// Bytes that were certainly sent and read.
    settled: AtomicU64,
}

impl Account {
    /// Number of accounts.
    pub const ALL: usize = 8;
    /// The port of the first.
    const FIRST_PORT: u16 = 7300;

    /// The port of one of the accounts, by its number.
    pub fn port(number: usize) -> u16 {
        Self::FIRST_PORT + number as u16
    }

    /// Announces bytes that will be sent.
    pub fn plan(&self, bytes: u64) {
        self.planned.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Records that both ends have counted these bytes, and that all connections that carried them are closed.
    pub fn settle(&self, bytes: u64) {
        self.settled.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Bytes that may have been sent.
    pub fn planned(&self) -> u64 {
        self.planned.load(Ordering::SeqCst)
    }

    /// Bytes that were certainly read.
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::SeqCst)
    }
}

impl World {
    /// A run with a daemon that is already running.
    pub fn new(begun: Instant, daemon: std::net::SocketAddr, pid: u32, config: std::path::PathBuf) -> Self {
        let accounts = Default::default();
        Self { begun, daemon, pid, config, accounts, over: false.into(), ends: Condvar::new(), done: Mutex::default() }
    }

    /// Calls `act` until the run is over, with a random pause of up to `pause` after each call. `act` returns what it
    /// did.
    pub fn keep_acting(&self, seed: u64, name: &str, pause: Duration, mut act: impl FnMut(&mut Rng) -> &'static str) {
        // Each actor needs random numbers of its own; otherwise all would act in step.
        let seed = name.bytes().fold(seed, |seed, byte| seed.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
        let mut dice = Rng::with_seed(seed);
        let pause = emulated::longer_pause(pause);
        while !self.is_over() {
            let Some(what) = self.attempt(name, || act(&mut dice)) else { return };
            *self.done().actions.entry(format!("{name}: {what}")).or_default() += 1;
            self.rest(pause.mul_f64(dice.f64()));
        }
    }

    /// Runs `work`, and reports a panic as a finding.
    pub fn attempt<T>(&self, name: &str, work: impl FnOnce() -> T) -> Option<T> {
        let done = panic::catch_unwind(AssertUnwindSafe(work));
        done.map_err(|panic| self.find(&format!("{name}: {}", message(&*panic)))).ok()
    }

    /// Waits for this long, or until the run is over.
    pub fn rest(&self, time: Duration) {
        let until = |_: &mut Done| !self.is_over();
        drop(self.ends.wait_timeout_while(self.done(), time, until).unwrap_or_else(PoisonError::into_inner));
    }

    /// Ends the run.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        // A thread that has seen that the run is not over holds the lock until it waits. Without taking the lock here,
        // it could miss the notification.
        drop(self.done());
        self.ends.notify_all();
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Reports a finding.
    pub fn find(&self, finding: &str) {
        let finding = format!("{:.1} s: {finding}", self.begun.elapsed().as_secs_f64());
        eprintln!("FOUND at {finding}");
        let mut done = self.done();
        done.findings.push(finding);
        let many = done.findings.len() >= MOST_FINDINGS;
        drop(done);
        if many {
            self.end();
        }
    }

    /// How often each action was done, and the findings.
    pub fn results(&self) -> (BTreeMap<String, u64>, Vec<String>) {
        let done = self.done();
        (done.actions.clone(), done.findings.clone())
    }

    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}

/// A random one of these.
pub fn one_of<T: Copy>(dice: &mut Rng, choices: &[T]) -> T {
    choices[dice.usize(..choices.len())]
}
