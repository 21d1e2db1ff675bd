//! The state of tcpmon's own parts, with reasons: what `/status` and `/healthz` show.

/// State of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is attached and runs.
    Attached,
    /// This kernel does not offer it; the reason states what is lost.
    Unsupported,
    /// It should run but does not.
    Broken,
    /// The settings do not want it; the reason states what is lost.
    SwitchedOff,
}

/// The status of one probe.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ProbeStatus {
    /// Name of the tracepoint, or `look` for the program that looks at sockets.
    pub name: String,
    /// Its state.
    pub verdict: Verdict,
    /// Why, and what is lost without it; empty when attached.
    pub reason: String,
}

impl ProbeStatus {
    /// The status of a probe that is attached.
    pub fn attached(name: &str) -> Self {
        Self { name: name.into(), verdict: Verdict::Attached, reason: String::new() }
    }
}

/// How the daemon is confined.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SandboxStatus {
    /// Whether each thread may use only the system calls that it needs.
    pub system_calls: bool,
    /// Whether the endpoint and the collector may read only the files that they need.
    pub files: bool,
    /// What is missing, and why; empty if nothing is.
    pub reason: String,
}

/// The daemon's flight recorder.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FlightStatus {
    /// Where its files are.
    pub directory: String,
    /// Whether it still runs.
    pub running: bool,
}

/// No data is available: why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);
