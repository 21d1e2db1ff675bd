//! Threads: work that would hold up the async runtime, each on a thread of its own, and priorities.
//!
//! tokio's pool has such threads, too, but panics if it cannot start one, as at the limit of processes (`TasksMax` of
//! systemd, `pids.max` of the control group).

use std::{io, thread};

use rustix::process::{getpriority_process, setpriority_process};
use tokio::sync::oneshot;

/// Runs the work on a new thread. It continues if nobody waits for its value any more.
///
/// # Errors
/// The thread cannot be started, or the work panics.
pub async fn run<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, value) = oneshot::channel();
    let start = thread::Builder::new().name(name.to_owned()).spawn(move || {
        // An error means that nobody waits.
        let _ = done.send(work());
    });
    let problem = |problem: String| io::Error::other(format!("the thread `{name}` {problem}"));
    start.map_err(|error| problem(format!("cannot be started: {error}")))?;
    value.await.map_err(|_| problem("has panicked".into()))
}

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
    /// Does work of the calling thread for which nobody waits with this priority.
    pub fn during<T>(self, work: impl FnOnce() -> T) -> T {
        let _ = setpriority_process(None, self.0);
        let result = work();
        let _ = setpriority_process(None, HIGHEST);
        result
    }
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn the_value_of_the_work_or_its_panic_arrives() {
        assert_eq!(run("work", || 7).await.ok(), Some(7));
        let error = run("work", || {
            if true {
                panic!("by intention")
            }
        })
        .await
        .expect_err("it panics");
        assert_eq!(error.to_string(), "the thread `work` has panicked");
    }
}
