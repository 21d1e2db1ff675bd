//! Priorities of threads.

use rustix::process::{getpriority_process, setpriority_process};

/// The nice value of threads that take what the programs produce: this is little work, but something is lost if it
/// comes late.
const HIGHEST: i32 = -20;

/// Raises the calling thread's priority to the highest, so that no other thread keeps the CPU from it. Without
/// `CAP_SYS_NICE`, nothing changes. Returns the priority that it had.
pub fn raise_priority() -> Ordinary {
    let ordinary = Ordinary(getpriority_process(None).unwrap_or_default());
    let _ = setpriority_process(None, HIGHEST);
    ordinary
}

/// The nice value of a thread before its priority was raised.
#[derive(Clone, Copy, Debug)]
pub struct Ordinary(i32);

impl Ordinary {
    /// Runs work that nobody waits for with this priority of the calling thread.
    pub fn during<T>(self, work: impl FnOnce() -> T) -> T {
        let _ = setpriority_process(None, self.0);
        let result = work();
        let _ = setpriority_process(None, HIGHEST);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_raised_priority_is_an_ordinary_one_for_a_while() {
        let now = || getpriority_process(None).expect("the thread has one");
        // On a thread of its own, so that the other threads keep their priority.
        let thread = thread::spawn(move || {
            let before = now();
            let ordinary = raise_priority();
            let raised = now();
            assert!(raised == HIGHEST || raised == before, "{before} {raised}");
            assert_eq!((ordinary.during(now), now()), (before, raised));
        });
        thread.join().expect("it does not panic");
    }
}
