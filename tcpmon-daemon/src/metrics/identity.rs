//! Which tcpmon this is, where it runs and since when.

use std::time::{Duration, Instant, SystemTime};

use super::usage;

/// Read once, at the start.
#[derive(Clone, Debug)]
pub struct Identity {
    /// tcpmon's version.
    pub version: &'static str,
    /// Commit from which it was built.
    pub revision: &'static str,
    /// Release of the running kernel.
    pub kernel: String,
    /// When the process started, since 1970; `None` if `/proc` cannot be read.
    pub started: Option<Duration>,
    /// When these values were read.
    pub since: Instant,
    /// The same time, since 1970.
    pub since_1970: Duration,
}

impl Identity {
    /// Reads the values of the running process and kernel.
    pub fn read() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            revision: env!("TCPMON_REVISION"),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            started: usage::started(),
            since: Instant::now(),
            since_1970: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
        }
    }

    /// Converts a time to time since 1970. The result for a given time never changes, even if the host's clock is set
    /// meanwhile: if a series seemed to start later than it did, its values would be counted twice.
    pub(super) fn since_1970(&self, moment: Instant) -> Duration {
        match moment.checked_duration_since(self.since) {
            Some(after) => self.since_1970 + after,
            None => self.since_1970.saturating_sub(self.since.duration_since(moment)),
        }
    }
}
