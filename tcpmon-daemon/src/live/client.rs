//! A client of the local socket.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{net::UnixStream, time::timeout};

use super::wire;
use crate::model::live::LiveSample;

/// A daemon that does not answer for this long has stalled.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// A connection to a daemon.
#[derive(Debug)]
pub struct LiveClient {
    stream: UnixStream,
    path: PathBuf,
}

/// The daemon sends no sample.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection failed.
    #[error("the daemon at {}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The daemon says why it sends none.
    #[error("the daemon at {}: {problem}", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// What the daemon says.
        problem: String,
    },
}

impl LiveClient {
    /// Connects to the daemon that listens there.
    ///
    /// # Errors
    /// The system's; nobody listens if it is `NotFound` or `ConnectionRefused`.
    pub async fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self { stream: UnixStream::connect(path).await?, path: path.to_owned() })
    }

    /// Returns what has changed since this pass, or everything if it is 0.
    ///
    /// # Errors
    /// Why there is no sample.
    pub async fn sample(&mut self, since: u64) -> Result<LiveSample, ClientError> {
        let answer = timeout(MAX_WAIT, async {
            wire::write_request(&mut self.stream, since).await?;
            wire::read_message(&mut self.stream).await
        });
        let path = self.path.clone();
        match answer.await {
            Ok(Ok(Ok(sample))) => Ok(sample),
            Ok(Ok(Err(problem))) => Err(ClientError::Refused { path, problem }),
            Ok(Err(source)) => Err(ClientError::Io { path, source }),
            Err(_) => Err(ClientError::Io { path, source: io::ErrorKind::TimedOut.into() }),
        }
    }
}
