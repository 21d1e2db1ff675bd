//! A connection with a deadline for each response, however slowly the client receives it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep_until},
};

use super::connections::WaitingSince;

/// See the module documentation. A write after the deadline fails, and the kernel is told to discard data that it has
/// not sent yet.
pub(super) struct DeadlineStream {
    stream: TcpStream,
    waiting_since: WaitingSince,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
}

impl DeadlineStream {
    pub(super) fn new(stream: TcpStream, waiting_since: WaitingSince, timeout: Duration) -> Self {
        Self { stream, waiting_since, timeout, timer: Box::pin(sleep_until(Instant::now() + timeout)) }
    }

    /// Ready with the error once the deadline has passed.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let Some(since) = self.waiting_since.get() else { return Poll::Pending };
        let due = Instant::from_std(since + self.timeout);
        if self.timer.deadline() != due {
            self.timer.as_mut().reset(due);
        }
        ready!(self.timer.as_mut().poll(context));
        let error = io::Error::new(io::ErrorKind::TimedOut, "the client did not receive its response in time");
        match rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)) {
            Ok(()) => Poll::Ready(error),
            Err(error) => Poll::Ready(error.into()),
        }
    }
}

impl AsyncRead for DeadlineStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for DeadlineStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Poll::Ready(error) = self.poll_deadline(context) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(error) = self.poll_deadline(context) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
