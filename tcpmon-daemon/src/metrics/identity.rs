//! Which tcpmon this is, and where and since when it runs.

use std::time::{Duration, Instant, SystemTime};

use super::process;

/// Read once at start.
#[derive(Clone, Debug)]
pub struct Identity {
    /// tcpmon's version.
    pub version: &'static str,
    /// Commit that it was built from.
    pub revision: &'static str,
    /// The running kernel's release.
    pub kernel: String,
    /// When the process started, since 1970; `None` where `/proc` cannot be read.
    pub started: Option<Duration>,
    /// When this was read.
    pub since: Instant,
    /// The same moment, since 1970.
    pub since_1970: Duration,
}

impl Identity {
    /// Looks at the running process and kernel.
    pub fn read() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            revision: env!("TCPMON_REVISION"),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            started: process::started(),
            since: Instant::now(),
            since_1970: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
        }
    }

    /// When that was, since 1970. The answer for a moment never changes, however the host's clock is set meanwhile: a
    /// series that seems to begin later than it did would be counted twice.
    pub(super) fn since_1970(&self, moment: Instant) -> Duration {
        match moment.checked_duration_since(self.since) {
            Some(after) => self.since_1970 + after,
            None => self.since_1970.saturating_sub(self.since.duration_since(moment)),
        }
    }
}
