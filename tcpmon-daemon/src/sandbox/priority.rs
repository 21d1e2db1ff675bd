//! Priorities of threads.

use rustix::process::{getpriority_process, setpriority_process};

/// The nice value of threads that take what the programs leave: little work, but something is lost if it comes late.
const HIGHEST: i32 = -20;

/// Lets no other thread keep the CPU from the calling one. Without `CAP_SYS_NICE`, it goes on as it is. Returns its
/// priority until now.
pub fn raise_priority() -> Ordinary {
    let ordinary = Ordinary(getpriority_process(None).unwrap_or_default());
    let _ = setpriority_process(None, HIGHEST);
    ordinary
}

/// The nice value of a thread before its priority was raised.
#[derive(Clone, Copy, Debug)]
pub struct Ordinary(i32);

impl Ordinary {
    /// Does work for which nobody waits, with this priority of the calling thread.
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
        // A thread of its own: the others stay as they are.
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
