//! Serves connections within limits, and stops in time.

use std::{future::Future, panic::resume_unwind, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    select,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

/// What a client may take of us.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// A connection that has not sent a whole request header for so long is closed, idle ones included.
    pub(super) header: Duration,
    /// A connection whose client does not take its answer for so long is closed.
    pub(super) send: Duration,
    /// Connections at a time; further ones wait in the listen queue.
    pub(super) connections: usize,
    /// When tcpmon stops, requests that are under way have so long to end.
    pub(super) stop: Duration,
}

pub(super) const LIMITS: Limits = Limits {
    header: Duration::from_secs(10),
    send: Duration::from_secs(30),
    connections: 64,
    stop: Duration::from_millis(700),
};

/// Largest request header, bytes.
const MOST_HEADER_BYTES: usize = 32 << 10;

/// Answers requests until `shutdown` completes, and then lets those under way end for at most 0.7 s.
pub async fn serve(listeners: Vec<TcpListener>, router: Router, shutdown: impl Future<Output = ()>) {
    serve_within(LIMITS, listeners, router, shutdown).await;
}

pub(super) async fn serve_within(
    limits: Limits,
    listeners: Vec<TcpListener>,
    router: Router,
    shutdown: impl Future<Output = ()>,
) {
    let (stop, stopped) = watch::channel(());
    let server = Server { router, limits, permits: Arc::new(Semaphore::new(limits.connections)), stopped };
    let mut tasks = JoinSet::new();
    for listener in listeners {
        tasks.spawn(server.clone().accept(listener));
    }
    select! {
        () = shutdown => {}
        Some(Err(error)) = tasks.join_next() => resume_unwind(error.into_panic()),
    }
    // That the sender is gone is the message.
    drop(stop);
    while tasks.join_next().await.is_some() {}
}

#[derive(Clone)]
struct Server {
    router: Router,
    limits: Limits,
    permits: Arc<Semaphore>,
    stopped: watch::Receiver<()>,
}

impl Server {
    async fn accept(mut self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        let mut failing = false;
        loop {
            select! {
                _ = self.stopped.changed() => break,
                Some(_) = connections.join_next() => {}
                (stream, permit) = next(&listener, &self.permits, &mut failing) => {
                    connections.spawn(self.clone().connection(stream, permit));
                }
            }
        }
        drop(listener);
        let drained = async { while connections.join_next().await.is_some() {} };
        if timeout(self.limits.stop, drained).await.is_err() {
            // Dropping the set ends them.
            debug!("connections were cut off because they did not end in time");
        }
    }

    async fn connection(mut self, stream: TcpStream, _permit: Option<OwnedSemaphorePermit>) {
        if let Err(error) = self.limit(&stream) {
            debug!(%error, "cannot set a connection's options");
        }
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header)
            .max_buf_size(MOST_HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(self.router));
        let mut serving = pin!(serving);
        let result = select! {
            result = serving.as_mut() => result,
            _ = self.stopped.changed() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = result {
            debug!(%error, "a connection ended with an error");
        }
    }

    fn limit(&self, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let ms = self.limits.send.as_millis() as u32;
        Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, ms)?)
    }
}

/// The next connection, as soon as there is room for one.
async fn next(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    failing: &mut bool,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed; were it, connections would not be limited.
    let permit = Arc::clone(permits).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                *failing = false;
                return (stream, permit);
            }
            Err(error) => {
                if !*failing {
                    warn!(%error, "cannot accept connections; will keep trying");
                }
                *failing = true;
                // Out of descriptors or memory: trying at once would only burn the CPU.
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
