//! Asking a thread that owns what is asked about. Whoever asks at the same time shares one answer, so that many clients
//! cause no more work than one.

use std::sync::mpsc;

use tokio::sync::oneshot;

/// Where an answer is awaited; `None` where there is only something to do.
pub(super) type Request<A> = Option<oneshot::Sender<A>>;

/// Asks a thread for answers of the type `A`.
#[derive(Debug)]
pub(super) struct Handle<A>(mpsc::Sender<Request<A>>);

impl<A> Clone for Handle<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The thread has ended.
#[derive(Debug, thiserror::Error)]
#[error("a thread of tcpmon has stopped: see the log")]
pub(super) struct Stopped;

/// A handle, and the requests that come through it. They end with the handle.
pub(super) fn channel<A>() -> (Handle<A>, mpsc::Receiver<Request<A>>) {
    let (requests, inbox) = mpsc::channel();
    (Handle(requests), inbox)
}

impl<A> Handle<A> {
    /// An answer whose making begins after this call.
    ///
    /// # Errors
    /// When the thread has stopped.
    pub(super) async fn ask(&self) -> Result<A, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Some(reply)).map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }

    /// Wakes the thread without a question.
    ///
    /// # Errors
    /// When the thread has stopped.
    pub(super) fn nudge(&self) -> Result<(), Stopped> {
        self.0.send(None).map_err(|_| Stopped)
    }
}

/// Makes one answer for the first who asked and all who have asked since, and hands it back, too.
pub(super) fn answer<A: Clone>(first: Request<A>, inbox: &mpsc::Receiver<Request<A>>, make: impl FnOnce() -> A) -> A {
    // Before it is made: who asks meanwhile may have seen something that this answer has not.
    let waiting: Vec<_> = std::iter::once(first).chain(inbox.try_iter()).flatten().collect();
    let answer = make();
    for request in waiting {
        // Whoever asked may have gone away meanwhile.
        let _ = request.send(answer.clone());
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_shares_an_answer_and_who_asks_meanwhile_gets_a_later_one() {
        let (handle, inbox) = channel();
        let ask = || {
            let (reply, answer) = oneshot::channel();
            handle.0.send(Some(reply)).expect("the inbox is there");
            answer
        };
        let [mut first, mut second] = [ask(), ask()];
        let mut third = None;
        answer(inbox.recv().expect("a request"), &inbox, || {
            third = Some(ask());
            1
        });
        assert_eq!([first.try_recv(), second.try_recv()], [Ok(1), Ok(1)]);
        let mut third = third.expect("asked");
        assert!(third.try_recv().is_err());
        answer(inbox.try_recv().expect("a request"), &inbox, || 2);
        assert_eq!(third.try_recv(), Ok(2));
    }

    #[tokio::test]
    async fn a_thread_that_has_ended_is_an_error() {
        let (handle, inbox) = channel::<u8>();
        drop(inbox);
        assert!(handle.ask().await.is_err());
    }
}
