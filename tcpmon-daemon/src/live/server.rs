//! Answers the clients of the local socket, a few at a time.

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio::{
    io::AsyncWriteExt as _,
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::debug;

use super::wire;
use crate::{model::live::LiveSample, threads};

/// Maximum number of clients at a time; others wait.
const MAX_CLIENTS: usize = 8;

/// Minimum time between two samples for a client: each takes a pass.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// A client that sends no request, or takes no answer, for this long is cut off.
const MAX_IDLE: Duration = Duration::from_secs(120);

/// Time until the next attempt after accepting a connection has failed.
const RETRY: Duration = Duration::from_millis(100);

/// Where the samples come from.
pub trait LiveSource: Send + Sync + 'static {
    /// Returns what has changed since this pass, or everything if it is 0.
    ///
    /// # Errors
    /// Why there is no sample.
    fn live(&self, since: u64) -> impl Future<Output = Result<LiveSample, String>> + Send;
}

/// Answers clients forever.
pub async fn serve<S: LiveSource>(listener: UnixListener, source: Arc<S>) -> Infallible {
    let clients = Arc::new(Semaphore::new(MAX_CLIENTS));
    loop {
        let Ok(client) = Arc::clone(&clients).acquire_owned().await else { std::future::pending().await };
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = Arc::clone(&source);
                tokio::spawn(async move {
                    let _client = client;
                    if let Err(error) = answer(stream, &*source).await {
                        debug!(%error, "a client of the local socket is gone");
                    }
                });
            }
            Err(error) => {
                debug!(%error, "cannot accept a client of the local socket");
                sleep(RETRY).await;
            }
        }
    }
}

/// Answers one client until it closes.
async fn answer<S: LiveSource>(mut stream: UnixStream, source: &S) -> std::io::Result<()> {
    loop {
        let request = timeout(MAX_IDLE, wire::read_request(&mut stream)).await??;
        let (Some(request), start) = (request, Instant::now()) else { return Ok(()) };
        let is_refused = request.is_err();
        let sample = match request {
            Ok(since) => source.live(since).await,
            Err(problem) => Err(problem),
        };
        let encode = move || wire::message(sample.as_ref().map_err(String::as_str));
        let message = threads::run("sample", encode).await?;
        timeout(MAX_IDLE, stream.write_all(&message)).await??;
        if is_refused {
            return Ok(());
        }
        sleep_until(start + MIN_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        live::{LiveClient, listen},
        top::fixture::sample,
    };

    struct Fixed;

    impl LiveSource for Fixed {
        async fn live(&self, since: u64) -> Result<LiveSample, String> {
            if since == 13 { Err("no sample".into()) } else { Ok(sample(since as u32)) }
        }
    }

    #[tokio::test]
    async fn clients_are_answered_and_more_than_a_few_wait() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tcpmon.sock");
        tokio::spawn(serve(listen(&path).expect("it is free"), Arc::new(Fixed)));
        let mut clients = Vec::new();
        for number in 0..MAX_CLIENTS {
            let mut client = LiveClient::connect(&path).await.expect("it listens");
            assert_eq!(client.sample(number as u64).await.expect("a sample"), sample(number as u32));
            clients.push(client);
        }
        let refused = clients[0].sample(13).await.expect_err("refused").to_string();
        assert!(refused.ends_with("tcpmon.sock: no sample"), "{refused}");
        let mut late = LiveClient::connect(&path).await.expect("it listens");
        let early = timeout(Duration::from_millis(300), late.sample(1)).await;
        assert!(early.is_err(), "{early:?}");
        clients.pop();
        late = LiveClient::connect(&path).await.expect("it listens");
        assert_eq!(late.sample(2).await.expect("a sample"), sample(2));
    }
}
