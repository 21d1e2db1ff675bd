//! The daemon's settings: as written in the config file and in flags, and as validated.

mod collect;
mod keys;
mod locate;
mod probes;
mod settings;

#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tcpmon_common::store::DEFAULT_MAX_SOCKETS;
use toml::de::DeTable;
use tracing::level_filters::LevelFilter;

pub use self::collect::Collect;
pub(crate) use self::keys::ConfigKey;
use self::keys::{keys, table};
use self::locate::{key_at, line_number, span_of};
pub use self::probes::{ProbeProfile, Probes};
pub use self::settings::{DaemonSettings, FlightSettings, InvalidSetting, Keep};
pub(crate) use self::settings::{check_process_name, check_ring_bytes, parse_duration, parse_keep, parse_size};
use crate::http::WebConfigError;

table! {
    /// All settings as written: those of the config file, with flags applied.
    Config, "";
    max_groups: u64 = 200, "N", "Maximum number of groups with their own metrics; the others share the group `other`";
    group_ttl: String = "10m".into(), "TIME",
        "Time after which an idle group is removed and its series end, such as `90s`";
    pin: Vec<String> = Vec::new(), "NAME",
        "Process name whose groups are shown before others, such as `nginx`; may be repeated";
    cgroup_label: bool = false, "true|false", "Whether to split groups by control group, with the label `cgroup`";
    ephemeral_ports: Vec<String> = Vec::new(), "FIRST-LAST",
        "Port range to count as one service, such as `50000-51000` (GridFTP); may be repeated";
    max_sockets: u64 = DEFAULT_MAX_SOCKETS.into(), "N",
        "Maximum number of TCP sockets that are watched at the same time";
    max_readers: u64 = 4096, "N", "Maximum number of threads that are tracked as readers at the same time";
    max_drop_entries: u64 = 4096, "N",
        "Maximum number of pairs of socket and drop reason that are counted at the same time";
    ring_bytes: u64 = 1 << 18, "N", "Size of the eBPF ring buffer, in bytes: a power of two, at least one page";
    sandbox: bool = true, "true|false",
        "Whether threads are confined to the system calls and files that they need";
    live_socket: String = String::new(), "PATH", "Local socket for `tcpmon top`; its group sees all connections";
    [collect]: Collect;
    [probes]: Probes;
    [flight]: Flight;
    [web]: Web;
    [log]: Log;
}

table! {
    /// The flight recorder, which runs if it has a directory.
    Flight, "flight.";
    directory: String = String::new(), "DIR",
        "Directory for what the flight recorder writes, such as `/var/lib/tcpmon`";
    ring: String = "60s".into(), "TIME", "Time before and after a trigger that each file covers";
    trigger: Vec<String> =
        ["cause=scheduler>50% for 2s", "cause=memory>10% for 2s", "zero-window>5s", "drop"].map(str::to_owned).into(),
        "RULE", "Rules that make the flight recorder write a file, as for `tcpmon trace --trigger`";
    keep: String = "1GB".into(), "SIZE",
        "Keep only the newest files: as many as fit in this size, such as `1GB`, or this number of files";
}

table! {
    /// The HTTP endpoint.
    Web, "web.";
    listen_address: Vec<String> = vec!["127.0.0.1:10793".into()], "ADDRESS",
        "Address to listen on, or `:10793` for all addresses; may be repeated";
    telemetry_path: String = "/metrics".into(), "PATH", "Path of the metrics page";
    config_file: String = String::new(), "FILE",
        "Web config file for TLS and user names, in the YAML format of Prometheus exporters";
    systemd_socket: bool = false, "true|false",
        "Whether to listen on the sockets that systemd passes instead of on addresses";
}

table! {
    /// What is logged, and how.
    #[derive(Copy)]
    Log, "log.";
    level: LogLevel = LogLevel::Info, "error|warn|info|debug|trace",
        "Lowest severity that is logged: error, warn, info, debug or trace";
    format: LogFormat = LogFormat::Text, "text|json",
        "Format of log lines: text, or json for one JSON object per line";
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// An operator must act.
    Error,
    /// tcpmon runs, but something is missing or wrong.
    Warn,
    /// Start, stop and changes.
    Info,
    /// For developers.
    Debug,
    /// Everything.
    Trace,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(
        "cannot read the config file {}: {source}: choose another file with --config, or omit it for the defaults",
        file.display()
    )]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line of the file is wrong.
    #[error("config file {}, line {line}: {problem} (`tcpmon daemon --print-config` lists all keys)", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The key if there is one, what is wrong, and what would be right.
        problem: String,
    },
    /// A flag is wrong, or the file and the flags together are.
    #[error("{0}")]
    Invalid(#[from] InvalidSetting),
    /// The web config file is wrong.
    #[error("{0}")]
    Web(#[from] WebConfigError),
}

impl Config {
    /// Reads a file; keys that it does not have get their defaults. The result is valid.
    ///
    /// # Errors
    /// If the file cannot be read, or a line of it cannot be used.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        match std::fs::read_to_string(file) {
            Ok(text) => {
                Self::parse(&text).map_err(|(line, problem)| ConfigError::Line { file: file.to_owned(), line, problem })
            }
            Err(source) => Err(ConfigError::Read { file: file.to_owned(), source }),
        }
    }

    /// An error has the number of the line and what is wrong there.
    pub(crate) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let at = |error: &toml::de::Error| {
            let span = error.span().unwrap_or_default();
            (line_number(text, span.start), error.message().replace('\n', ", "))
        };
        let table = DeTable::parse(text).map_err(|error| at(&error))?;
        let config: Self = toml::from_str(text).map_err(|error| {
            let (line, problem) = at(&error);
            match error.span().and_then(|span| key_at(table.get_ref(), &span)) {
                Some(key) => (line, format!("{key}: {problem}")),
                None => (line, problem),
            }
        })?;
        match config.validate() {
            Ok(_) => Ok(config),
            Err(invalid) => {
                let span = span_of(table.get_ref(), invalid.key).unwrap_or_default();
                Err((line_number(text, span.start), invalid.to_string()))
            }
        }
    }

    /// The keys with different values, with dots.
    pub fn changed_keys(&self, other: &Self) -> Vec<&'static str> {
        keys().filter(|key| self.value(key) != other.value(key)).map(|key| key.name).collect()
    }
}

/// Prints a config file with the same settings.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut open = "";
        for key in keys() {
            let (table, name) = key.name.split_once('.').unwrap_or(("", key.name));
            if table != open {
                writeln!(f, "\n[{table}]")?;
                open = table;
            }
            writeln!(f, "# {}\n{name} = {}", key.help(), self.value(key))?;
        }
        Ok(())
    }
}
