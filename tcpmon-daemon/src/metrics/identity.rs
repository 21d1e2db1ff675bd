//! Which tcpmon this is, and where and since when it runs.

use std::time::{Duration, Instant};

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
        }
    }
}
