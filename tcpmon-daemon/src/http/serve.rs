//! Accepts and serves connections within limits, and stops within a bounded time.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use hyper::{
    Request, StatusCode,
    body::Incoming,
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    select,
    sync::watch,
    task::{JoinSet, yield_now},
    time::{sleep, timeout},
};
#[cfg(feature = "web-config")]
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

#[cfg(not(feature = "web-config"))]
use super::no_web_config::Policy;
#[cfg(feature = "web-config")]
use super::web_config::Policy;
use super::{
    DataSource, Endpoint,
    connections::{Client, Connections, WaitingSince, max_connections},
    deadline_stream::DeadlineStream,
    page::Response,
    plain,
};

/// Limits on the resources that a client can use.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimits {
    /// A connection that has not sent a complete request header within this time is closed, idle ones included. The
    /// same limit applies to the TLS handshake.
    pub(super) header_timeout: Duration,
    /// A connection whose client has not taken its complete response within this time is closed.
    pub(super) send_timeout: Duration,
    /// Connections open at once; a further one replaces another, see [`Connections`].
    pub(super) max_connections: usize,
    /// When tcpmon stops, requests in progress have this long to finish.
    pub(super) stop_timeout: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            send_timeout: Duration::from_secs(30),
            max_connections: max_connections(),
            stop_timeout: Duration::from_millis(700),
        }
    }
}

/// Kernel send buffer of a connection, which bounds the kernel memory that a client can hold. The kernel doubles the
/// value; on a path of 100 ms it allows 1 MB/s.
const SEND_BUFFER_BYTES: usize = 128 << 10;

/// Largest request header, bytes.
const MAX_HEADER_BYTES: usize = 32 << 10;

/// Answers requests until `shutdown` completes; then requests in progress get at most 0.7 s to finish. Without a web
/// config, everybody may send requests, over plain HTTP.
pub async fn serve<S: DataSource>(
    listeners: Vec<TcpListener>,
    endpoint: Endpoint<S>,
    shutdown: impl Future<Output = ()>,
) {
    serve_with_limits(ConnectionLimits::default(), listeners, endpoint, shutdown).await;
}

pub(super) async fn serve_with_limits<S: DataSource>(
    limits: ConnectionLimits,
    listeners: Vec<TcpListener>,
    endpoint: Endpoint<S>,
    shutdown: impl Future<Output = ()>,
) {
    let (stop, stopped) = watch::channel(());
    let server = HttpServer { endpoint: Arc::new(endpoint), limits, stopped };
    let mut accepting = pin!(server.run(listeners));
    select! {
        () = accepting.as_mut() => {}
        () = shutdown => {
            // Dropping the sender is the signal to stop.
            drop(stop);
            accepting.await;
        }
    }
}

/// Answers the requests in any bytes, and drops the answers.
#[cfg(feature = "full")]
pub(super) async fn answer_any<S: DataSource>(endpoint: Endpoint<S>, bytes: &[u8]) {
    let (_stop, stopped) = watch::channel(());
    let server = HttpServer { endpoint: Arc::new(endpoint), limits: ConnectionLimits::default(), stopped };
    let client = SocketAddr::from(([127, 0, 0, 1], 0)).into();
    server.answer(tokio::io::join(bytes, tokio::io::sink()), client, WaitingSince::now()).await;
}

struct HttpServer<S> {
    endpoint: Arc<Endpoint<S>>,
    limits: ConnectionLimits,
    stopped: watch::Receiver<()>,
}

/// Each connection has its own copy.
impl<S> Clone for HttpServer<S> {
    fn clone(&self) -> Self {
        Self { endpoint: Arc::clone(&self.endpoint), limits: self.limits, stopped: self.stopped.clone() }
    }
}

impl<S: DataSource> HttpServer<S> {
    async fn run(mut self, mut listeners: Vec<TcpListener>) {
        let mut tasks = JoinSet::new();
        let mut connections = Connections::default();
        let mut failing = false;
        loop {
            select! {
                // Ended connections are removed first, so that no open one is closed while there is room.
                biased;
                _ = self.stopped.changed() => break,
                Some(ended) = tasks.join_next_with_id() => {
                    connections.remove(ended.map_or_else(|error| error.id(), |(id, ())| id));
                }
                (stream, address) = accept(&mut listeners, &mut failing) => {
                    connections.make_room(self.limits.max_connections);
                    let (client, waiting_since) = (address.into(), WaitingSince::now());
                    let task = tasks.spawn(self.clone().connection(stream, client, waiting_since.clone()));
                    connections.add(client, waiting_since, task);
                    // Under a flood of new connections, the open ones still make progress between two new ones.
                    yield_now().await;
                }
            }
        }
        drop(listeners);
        let drained = async { while tasks.join_next().await.is_some() {} };
        if timeout(self.limits.stop_timeout, drained).await.is_err() {
            // Dropping the set aborts its tasks.
            debug!("aborted the connections that did not end in time");
        }
    }

    async fn connection(self, stream: TcpStream, client: Client, waiting_since: WaitingSince) {
        if let Err(error) = self.set_socket_options(&stream) {
            debug!(%error, "cannot set the socket options of a connection");
        }
        let stream = DeadlineStream::new(stream, waiting_since.clone(), self.limits.send_timeout);
        #[cfg(feature = "web-config")]
        if let Some(tls) = self.policy().tls.clone() {
            let mut stopped = self.stopped.clone();
            let handshake = timeout(self.limits.header_timeout, TlsAcceptor::from(tls).accept(stream));
            select! {
                handshake = handshake => match handshake {
                    Ok(Ok(stream)) => self.answer(stream, client, waiting_since).await,
                    Ok(Err(error)) => debug!(%error, "a TLS handshake failed"),
                    Err(_) => debug!("a TLS handshake timed out"),
                },
                _ = stopped.changed() => {}
            }
            return;
        }
        self.answer(stream, client, waiting_since).await;
    }

    async fn answer(
        mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        client: Client,
        waiting_since: WaitingSince,
    ) {
        let server = self.clone();
        let service = service_fn(move |request| {
            let (server, waiting_since) = (server.clone(), waiting_since.clone());
            async move {
                waiting_since.clear();
                let response = server.respond(request, client).await;
                waiting_since.restart();
                Ok::<_, Infallible>(response)
            }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_buf_size(MAX_HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service);
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

    async fn respond(&self, request: Request<Incoming>, client: Client) -> Response {
        let policy = self.policy();
        let login = match self.endpoint.web() {
            Some(web) => web.login(request.headers().get(header::AUTHORIZATION), client).await,
            None => Login::Granted,
        };
        let mut response = match login {
            Login::Granted => self.endpoint.answer(client, &request).await,
            Login::Denied => {
                let mut response = plain(StatusCode::UNAUTHORIZED, "this page requires a user name and password\n");
                let challenge = HeaderValue::from_static("Basic realm=\"tcpmon\", charset=\"UTF-8\"");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
                response
            }
            Login::Busy => {
                let text = "the password cannot be checked now: retry later\n";
                let mut response = plain(StatusCode::TOO_MANY_REQUESTS, text);
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
                response
            }
        };
        response.headers_mut().extend(policy.headers.clone());
        response
    }

    fn policy(&self) -> Arc<Policy> {
        self.endpoint.web().map_or_else(Arc::default, |web| web.policy())
    }

    fn set_socket_options(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_send_buffer_size(stream, SEND_BUFFER_BYTES)?;
        // Data that has left this process is covered by the kernel's timeout.
        let ms = self.limits.send_timeout.as_millis() as u32;
        Ok(sockopt::set_tcp_user_timeout(stream, ms)?)
    }
}

/// The result of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "web-config"), expect(dead_code, reason = "nobody is asked for a password"))]
pub(super) enum Login {
    Granted,
    Denied,
    /// Too many passwords of this client are already waiting to be checked, or this one could not be checked.
    Busy,
}

/// The next connection from any of the listening sockets.
async fn accept(listeners: &mut [TcpListener], failing: &mut bool) -> (TcpStream, SocketAddr) {
    loop {
        let accepted = poll_fn(|context| {
            let ready =
                listeners.iter().enumerate().find_map(|(index, listener)| match listener.poll_accept(context) {
                    Poll::Ready(accepted) => Some((index, accepted)),
                    Poll::Pending => None,
                });
            match ready {
                Some((index, accepted)) => {
                    // Next time, poll the other sockets first.
                    listeners.rotate_left(index + 1);
                    Poll::Ready(accepted)
                }
                None => Poll::Pending,
            }
        });
        match accepted.await {
            Ok(accepted) => {
                *failing = false;
                return accepted;
            }
            Err(error) => {
                if !*failing {
                    warn!(%error, "cannot accept connections; retrying");
                }
                *failing = true;
                // Out of descriptors or memory: an immediate retry would only burn CPU.
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
