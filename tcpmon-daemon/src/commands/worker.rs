//! Requests to a worker thread that owns the data. Requests that arrive at the same time share one reply, so that many
//! clients cause no more work than one. If the thread stalls, clients get an error instead of waiting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use tokio::{sync::oneshot, time};

/// Where to send the reply; `None` if the thread is only woken.
pub(super) type Request<R> = Option<oneshot::Sender<R>>;

/// Minimum time that a thread has for a reply, even if it has not checked its inbox for long: the whole process may
/// have been stopped.
const MIN_TIMEOUT: Duration = Duration::from_millis(500);

/// When something last succeeded; can be read from any thread.
#[derive(Debug)]
pub(super) struct Heartbeat {
    start: Instant,
    last_ms: AtomicU64,
}

impl Heartbeat {
    /// A heartbeat whose first beat is now.
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

/// Requests replies of the type `R` from a worker thread.
#[derive(Debug)]
pub(super) struct WorkerHandle<R> {
    name: &'static str,
    requests: mpsc::Sender<Request<R>>,
    heartbeat: Arc<Heartbeat>,
}

impl<R> Clone for WorkerHandle<R> {
    fn clone(&self) -> Self {
        Self { name: self.name, requests: self.requests.clone(), heartbeat: Arc::clone(&self.heartbeat) }
    }
}

/// The requests that come through a handle. They end when every handle is gone.
#[derive(Debug)]
pub(super) struct WorkerInbox<R> {
    requests: mpsc::Receiver<Request<R>>,
    heartbeat: Arc<Heartbeat>,
}

/// Why there is no reply.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoReply {
    /// The thread has ended.
    #[error("the {0} has stopped: see the log of tcpmon")]
    Stopped(&'static str),
    /// The thread does not check its inbox.
    #[error("the {0} has not answered for {1} s: restart tcpmon if it does not recover")]
    Unresponsive(&'static str, u64),
}

/// A handle to the thread with this name, and the thread's inbox.
pub(super) fn channel<R>(name: &'static str) -> (WorkerHandle<R>, WorkerInbox<R>) {
    let (requests, inbox) = mpsc::channel();
    let heartbeat = Arc::new(Heartbeat::new());
    (WorkerHandle { name, requests, heartbeat: Arc::clone(&heartbeat) }, WorkerInbox { requests: inbox, heartbeat })
}

impl<R> WorkerHandle<R> {
    /// Returns a reply that the thread started to make after this call.
    ///
    /// # Errors
    /// If the thread has stopped, or has not checked its inbox for `timeout`.
    pub(super) async fn request(&self, timeout: Duration) -> Result<R, NoReply> {
        let (sender, reply) = oneshot::channel();
        self.requests.send(Some(sender)).map_err(|_| NoReply::Stopped(self.name))?;
        self.wait_for(reply, timeout).await
    }

    /// Waits for the reply to a request that was sent in another way; see [`WorkerHandle::wake`].
    ///
    /// # Errors
    /// As for [`WorkerHandle::request`].
    pub(super) async fn wait_for<T>(&self, mut reply: oneshot::Receiver<T>, timeout: Duration) -> Result<T, NoReply> {
        let start = Instant::now();
        loop {
            let remaining = timeout.saturating_sub(self.since_last_check());
            let left = remaining.max(MIN_TIMEOUT.saturating_sub(start.elapsed()));
            if left.is_zero() {
                return Err(NoReply::Unresponsive(self.name, self.since_last_check().as_secs()));
            }
            if let Ok(reply) = time::timeout(left, &mut reply).await {
                return reply.map_err(|_| NoReply::Stopped(self.name));
            }
        }
    }

    /// Time since the thread last checked its inbox.
    pub(super) fn since_last_check(&self) -> Duration {
        self.heartbeat.age()
    }

    /// Wakes the thread without requesting a reply.
    ///
    /// # Errors
    /// If the thread has stopped.
    pub(super) fn wake(&self) -> Result<(), NoReply> {
        self.requests.send(None).map_err(|_| NoReply::Stopped(self.name))
    }
}

impl<R: Clone> WorkerInbox<R> {
    /// The next request, if one arrives in time.
    pub(super) fn wait(&self, time: Duration) -> Result<Request<R>, mpsc::RecvTimeoutError> {
        let request = self.requests.recv_timeout(time);
        self.heartbeat.beat();
        request
    }

    /// Makes one reply for the first request and for all that have arrived since, sends it to them, and returns it.
    pub(super) fn reply(&self, first: Request<R>, make: impl FnOnce() -> R) -> R {
        // Collect the requests before making the reply: a client whose request arrives meanwhile may have seen
        // something that this reply does not include.
        let waiting: Vec<_> = std::iter::once(first).chain(self.requests.try_iter()).flatten().collect();
        let reply = make();
        for request in waiting {
            // The client may have disconnected meanwhile.
            let _ = request.send(reply.clone());
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn waiting_requests_share_a_reply_and_a_request_during_it_gets_the_next_one() {
        let (handle, inbox) = channel("thread");
        let request = || {
            let (sender, reply) = oneshot::channel();
            handle.requests.send(Some(sender)).expect("the inbox is there");
            reply
        };
        let [mut first, mut second] = [request(), request()];
        let mut third = None;
        inbox.reply(inbox.wait(SOON).expect("a request"), || {
            third = Some(request());
            1
        });
        assert_eq!([first.try_recv(), second.try_recv()], [Ok(1), Ok(1)]);
        let mut third = third.expect("requested");
        assert!(third.try_recv().is_err());
        inbox.reply(inbox.wait(SOON).expect("a request"), || 2);
        assert_eq!(third.try_recv(), Ok(2));
    }

    #[tokio::test]
    async fn a_thread_that_has_ended_is_an_error() {
        let (handle, inbox) = channel::<u8>("thread");
        drop(inbox);
        assert_eq!(handle.request(SOON).await, Err(NoReply::Stopped("thread")));
    }

    #[tokio::test]
    async fn a_thread_that_does_not_check_its_inbox_is_an_error_with_its_name() {
        let (handle, inbox) = channel::<u8>("thread");
        let error = handle.request(Duration::ZERO).await.expect_err("nobody replies").to_string();
        assert!(error.starts_with("the thread has not answered for 0 s"), "{error}");
        drop(inbox);
    }
}
