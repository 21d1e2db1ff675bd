//! Work that would block the async runtime, each piece on a thread of its own.
//!
//! tokio's pool has such threads, too, but panics if it cannot start one, as at the limit of processes (`TasksMax` of
//! systemd, `pids.max` of the control group).

use std::{io, thread};

use tokio::sync::oneshot;

/// Runs the work on a new thread. It continues even if nobody waits for its result any more.
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

#[cfg(test)]
mod tests {
    use super::*;

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
