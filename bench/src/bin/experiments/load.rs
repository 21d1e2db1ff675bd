//! Background load as in White's thesis: random accesses to a piece of memory, with a sleep after each few.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_timerslack;
use nix::unistd::Pid;

/// Accesses between two sleeps.
const ACCESSES: usize = 64;

/// A thread that loads the first CPU for as long as this lives.
pub struct Load {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Uses this much memory, and sleeps this long between accesses. With no sleep, it takes all the CPU time it gets.
    pub fn new(bytes: usize, sleep: Duration) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mine = Arc::clone(&over);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let work = move || {
            let mut cpus = CpuSet::new();
            cpus.set(0).expect("there is a first CPU");
            sched_setaffinity(Pid::from_raw(0), &cpus).expect("any thread may");
            set_timerslack(1).expect("any thread may");
            // Filled with ones, so that all pages are really allocated.
            let mut memory = vec![1_u8; bytes.max(4096)];
            let _ = ready.send(());
            let mut random = 1_u64;
            while !mine.load(Ordering::Relaxed) {
                for _ in 0..ACCESSES {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = (random >> 16) as usize % memory.len();
                    memory[at] = memory[at].wrapping_add(1);
                }
                if !sleep.is_zero() {
                    thread::sleep(sleep);
                }
            }
        };
        let load = Self { over, thread: Some(thread::spawn(work)) };
        let _ = is_ready.recv();
        load
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
