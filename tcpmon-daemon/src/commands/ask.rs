//! Requests to a thread that owns the data. Clients that ask at the same time share one answer, so that many clients
//! cause no more work than one. If the thread stalls, clients get an error instead of waiting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use tokio::{sync::oneshot, time::timeout};

/// Where to send the answer; `None` if the thread is only woken.
pub(super) type Request<A> = Option<oneshot::Sender<A>>;

/// Minimum time that a thread gets to answer, even if it has been silent for long: the whole process may have been
/// stopped.
const GRACE: Duration = Duration::from_millis(500);

/// When something last succeeded; can be read from any thread.
#[derive(Debug)]
pub(super) struct Pulse {
    start: Instant,
    last_ms: AtomicU64,
}

impl Pulse {
    /// A pulse with its first beat now.
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    /// Records a success.
    pub(super) fn beat(&self) {
        self.last_ms.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Time since the last success.
    pub(super) fn age(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }
}

/// Requests answers of the type `A` from a thread.
#[derive(Debug)]
pub(super) struct Handle<A> {
    name: &'static str,
    requests: mpsc::Sender<Request<A>>,
    pulse: Arc<Pulse>,
}

impl<A> Clone for Handle<A> {
    fn clone(&self) -> Self {
        Self { name: self.name, requests: self.requests.clone(), pulse: Arc::clone(&self.pulse) }
    }
}

/// The requests that come through a handle. They end when every handle is gone.
#[derive(Debug)]
pub(super) struct Inbox<A> {
    requests: mpsc::Receiver<Request<A>>,
    pulse: Arc<Pulse>,
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoAnswer {
    /// The thread has ended.
    #[error("the {0} has stopped: see the log")]
    Stopped(&'static str),
    /// The thread does not check its inbox.
    #[error("the {0} has not answered for {1} s: restart tcpmon if it does not recover")]
    Silent(&'static str, u64),
}

/// A handle to the thread with this name, and the thread's inbox.
pub(super) fn channel<A>(name: &'static str) -> (Handle<A>, Inbox<A>) {
    let (requests, inbox) = mpsc::channel();
    let pulse = Arc::new(Pulse::new());
    (Handle { name, requests, pulse: Arc::clone(&pulse) }, Inbox { requests: inbox, pulse })
}

impl<A> Handle<A> {
    /// Returns an answer that the thread started to make after this call.
    ///
    /// # Errors
    /// If the thread has stopped, or has not checked its inbox for `patience`.
    pub(super) async fn ask(&self, patience: Duration) -> Result<A, NoAnswer> {
        let asked = Instant::now();
        let (reply, mut answer) = oneshot::channel();
        self.requests.send(Some(reply)).map_err(|_| NoAnswer::Stopped(self.name))?;
        loop {
            let left = patience.saturating_sub(self.silent()).max(GRACE.saturating_sub(asked.elapsed()));
            if left.is_zero() {
                return Err(NoAnswer::Silent(self.name, self.silent().as_secs()));
            }
            if let Ok(answer) = timeout(left, &mut answer).await {
                return answer.map_err(|_| NoAnswer::Stopped(self.name));
            }
        }
    }

    /// Time since the thread last checked its inbox.
    pub(super) fn silent(&self) -> Duration {
        self.pulse.age()
    }

    /// Wakes the thread without requesting an answer.
    ///
    /// # Errors
    /// If the thread has stopped.
    pub(super) fn nudge(&self) -> Result<(), NoAnswer> {
        self.requests.send(None).map_err(|_| NoAnswer::Stopped(self.name))
    }
}

impl<A: Clone> Inbox<A> {
    /// The next request, if one arrives in time.
    pub(super) fn wait(&self, time: Duration) -> Result<Request<A>, mpsc::RecvTimeoutError> {
        let request = self.requests.recv_timeout(time);
        self.pulse.beat();
        request
    }

    /// Makes one answer for the first request and for all that have arrived since, sends it to them, and returns it.
    pub(super) fn answer(&self, first: Request<A>, make: impl FnOnce() -> A) -> A {
        // Collect the requests before making the answer: a client that asks meanwhile may have seen something that this
        // answer does not include.
        let waiting: Vec<_> = std::iter::once(first).chain(self.requests.try_iter()).flatten().collect();
        let answer = make();
        for request in waiting {
            // The client may have disconnected meanwhile.
            let _ = request.send(answer.clone());
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn who_waits_shares_an_answer_and_who_asks_meanwhile_gets_a_later_one() {
        let (handle, inbox) = channel("thread");
        let ask = || {
            let (reply, answer) = oneshot::channel();
            handle.requests.send(Some(reply)).expect("the inbox is there");
            answer
        };
        let [mut first, mut second] = [ask(), ask()];
        let mut third = None;
        inbox.answer(inbox.wait(SOON).expect("a request"), || {
            third = Some(ask());
            1
        });
        assert_eq!([first.try_recv(), second.try_recv()], [Ok(1), Ok(1)]);
        let mut third = third.expect("asked");
        assert!(third.try_recv().is_err());
        inbox.answer(inbox.wait(SOON).expect("a request"), || 2);
        assert_eq!(third.try_recv(), Ok(2));
    }

    #[tokio::test]
    async fn a_thread_that_has_ended_is_an_error() {
        let (handle, inbox) = channel::<u8>("thread");
        drop(inbox);
        assert_eq!(handle.ask(SOON).await, Err(NoAnswer::Stopped("thread")));
    }

    #[tokio::test]
    async fn a_thread_that_does_not_come_round_is_an_error_with_its_name() {
        let (handle, inbox) = channel::<u8>("thread");
        let error = handle.ask(Duration::ZERO).await.expect_err("nobody answers").to_string();
        assert!(error.starts_with("the thread has not answered for 0 s"), "{error}");
        drop(inbox);
    }
}
