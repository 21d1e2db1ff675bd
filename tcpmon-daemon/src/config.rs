//! The daemon's settings: as written in the config file and in flags, and as validated.

mod collect;
mod locate;
mod probes;
mod settings;

#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tcpmon_common::store::DEFAULT_MAX_SOCKETS;
use toml::de::DeTable;
use tracing::level_filters::LevelFilter;

pub use self::collect::Collect;
use self::locate::{key_at, line_number, span_of};
pub use self::probes::{ProbeProfile, Probes};
pub use self::settings::{
    DROP_ENTRIES_RANGE, DaemonSettings, FlightSettings, GROUPS_RANGE, InvalidSetting, Keep, READERS_RANGE,
};
pub(crate) use self::settings::{
    check_process_name, check_ring_bytes, parse_duration, parse_keep, parse_port_range, parse_size,
};
use crate::http::WebConfigError;

/// All settings as written: those of the config file, with flags applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// See [`DaemonSettings::max_groups`].
    pub max_groups: u64,
    /// See [`DaemonSettings::group_ttl`].
    pub group_ttl: String,
    /// See [`DaemonSettings::pin`].
    pub pin: Vec<String>,
    /// See [`DaemonSettings::cgroup_label`].
    pub cgroup_label: bool,
    /// See [`DaemonSettings::ephemeral_ports`].
    pub ephemeral_ports: Vec<String>,
    /// See [`DaemonSettings::max_sockets`].
    pub max_sockets: u64,
    /// See [`DaemonSettings::max_readers`].
    pub max_readers: u64,
    /// See [`DaemonSettings::max_drop_entries`].
    pub max_drop_entries: u64,
    /// See [`DaemonSettings::ring_bytes`].
    pub ring_bytes: u64,
    /// See [`DaemonSettings::sandbox`].
    pub sandbox: bool,
    /// See [`DaemonSettings::live_socket`]; empty for none.
    pub live_socket: String,
    /// Which sources of host metrics are read.
    pub collect: Collect,
    /// Which programs are attached.
    pub probes: Probes,
    /// The flight recorder.
    pub flight: Flight,
    /// The HTTP endpoint.
    pub web: Web,
    /// What is logged.
    pub log: Log,
}

/// Keys below `flight`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Flight {
    /// See [`FlightSettings::directory`]; empty for no recorder.
    pub directory: String,
    /// See [`FlightSettings::ring`].
    pub ring: String,
    /// See [`FlightSettings::trigger`].
    pub trigger: Vec<String>,
    /// See [`FlightSettings::keep`].
    pub keep: String,
}

/// Keys below `web`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Web {
    /// See [`DaemonSettings::listen`].
    pub listen_address: Vec<String>,
    /// See [`DaemonSettings::telemetry_path`].
    pub telemetry_path: String,
    /// See [`DaemonSettings::web_config_file`]; empty for none.
    pub config_file: String,
    /// See [`DaemonSettings::systemd_socket`].
    pub systemd_socket: bool,
}

/// Keys below `log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Lowest severity that is logged.
    pub level: LogLevel,
    /// Format of the lines.
    pub format: LogFormat,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_groups: 200,
            group_ttl: "10m".into(),
            pin: Vec::new(),
            cgroup_label: false,
            ephemeral_ports: Vec::new(),
            max_sockets: DEFAULT_MAX_SOCKETS.into(),
            max_readers: 4096,
            max_drop_entries: 4096,
            ring_bytes: 1 << 18,
            sandbox: true,
            live_socket: String::new(),
            collect: Collect::default(),
            probes: Probes::default(),
            flight: Flight::default(),
            web: Web::default(),
            log: Log::default(),
        }
    }
}

impl Default for Flight {
    fn default() -> Self {
        Self {
            directory: String::new(),
            ring: "60s".into(),
            trigger: ["cause=scheduler>50% for 2s", "cause=memory>10% for 2s", "zero-window>5s", "drop"]
                .map(str::to_owned)
                .into(),
            keep: "1GB".into(),
        }
    }
}

impl Default for Web {
    fn default() -> Self {
        Self {
            listen_address: vec!["127.0.0.1:10793".into()],
            telemetry_path: "/metrics".into(),
            config_file: String::new(),
            systemd_socket: false,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: LogLevel::Info, format: LogFormat::Text }
    }
}

/// A key of the config file, and of the flag with the same name.
struct ConfigKey {
    /// With dots. The flag has `-` in place of `_`, but `--web.config.file` has the name that other exporters use.
    name: &'static str,
    help: &'static str,
}

const fn key(name: &'static str, help: &'static str) -> ConfigKey {
    ConfigKey { name, help }
}

/// In the order in which the file is printed: keys below a table come last.
const KEYS: &[ConfigKey] = &[
    key("max_groups", "Maximum number of groups with their own metrics; the others share the group `other`"),
    key("group_ttl", "Time after which an idle group is removed and its series end, such as `90s`"),
    key("pin", "Process name whose groups are shown before others, such as `nginx`; may be repeated"),
    key("cgroup_label", "Whether to split groups by control group, with the label `cgroup`"),
    key("ephemeral_ports", "Port range to count as one service, such as `50000-51000` (GridFTP); may be repeated"),
    key("max_sockets", "Maximum number of TCP sockets that are watched at the same time"),
    key("max_readers", "Maximum number of threads that are tracked as readers at the same time"),
    key("max_drop_entries", "Maximum number of pairs of socket and drop reason that are counted at the same time"),
    key("ring_bytes", "Size of the eBPF ring buffer, in bytes: a power of two, at least one page"),
    key("sandbox", "Whether threads are confined to the system calls and files that they need"),
    key("live_socket", "Local socket for `tcpmon top`; its group sees all connections"),
    key("collect.softnet", "Whether to show softnet counters, which node_exporter has, too"),
    key("collect.sockstat", "Whether to show the number of orphan sockets, which node_exporter has, too"),
    key("collect.zones", "Whether to show memory zones and free blocks, which node_exporter can show, too"),
    key("collect.psi", "Whether to show memory pressure stalls, which node_exporter has, too"),
    key("collect.stat", "Whether to show context switches, which node_exporter has, too"),
    key("collect.netstat", "Whether to show TcpExt and IpExt counters, some of which node_exporter has, too"),
    key("probes.profile", "full, or light: without the probes below"),
    key("probes.sched_switch", "Whether to count the readers' timeslices, a program on each switch of threads"),
    key("probes.napi_poll", "Whether to count NAPI polls and the packets of each, a program on each poll"),
    key("probes.kfree_skb", "Whether to count received segments that the kernel drops, with its reasons"),
    key("flight.directory", "Directory for what the flight recorder writes, such as `/var/lib/tcpmon`"),
    key("flight.ring", "Time before and after a trigger that a file of the flight recorder has"),
    key("flight.trigger", "Rules that make the flight recorder write, as for `tcpmon trace --trigger`"),
    key("flight.keep", "Size of the newest files that are kept, such as `1GB`, or their number"),
    key("web.listen_address", "Address to listen on, or `:10793` for all addresses; may be repeated"),
    key("web.telemetry_path", "Path of the metrics page"),
    key("web.config_file", "Web config file for TLS and user names, in the YAML format of Prometheus exporters"),
    key("web.systemd_socket", "Whether to listen on the sockets that systemd passes instead of on addresses"),
    key("log.level", "Lowest severity that is logged: error, warn, info, debug or trace"),
    key("log.format", "Format of log lines: text, or json for one JSON object per line"),
];

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

    /// An error has the line number and what is wrong there.
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

    /// The keys whose values differ, with dots.
    pub fn changed_keys(&self, other: &Self) -> Vec<&'static str> {
        KEYS.iter().map(|key| key.name).filter(|key| self.value(key) != other.value(key)).collect()
    }

    /// The value of a key, as TOML.
    fn value(&self, key: &str) -> Option<toml::Value> {
        let whole = toml::Value::try_from(self).ok()?;
        key.split('.').try_fold(&whole, |value, part| value.get(part)).cloned()
    }
}

/// Prints a config file with the same settings.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut open = "";
        for key in KEYS {
            let (table, name) = key.name.split_once('.').unwrap_or(("", key.name));
            if table != open {
                writeln!(f, "\n[{table}]")?;
                open = table;
            }
            let value = self.value(key.name).ok_or(fmt::Error)?;
            writeln!(f, "# {}\n{name} = {value}", key_help(key.name))?;
        }
        Ok(())
    }
}

/// The description of a key and its default; empty for an unknown key.
pub(crate) fn key_help(key: &str) -> String {
    let known = KEYS.iter().find(|known| known.name == key);
    let default = Config::default().value(key);
    let text = |(key, default): (&ConfigKey, _)| format!("{} [default: {}]", key.help, unquoted(&default));
    known.zip(default).map(text).unwrap_or_default()
}

/// The value as it is written for a flag.
fn unquoted(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) if text.is_empty() => "none".to_owned(),
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(values) if values.is_empty() => "none".to_owned(),
        toml::Value::Array(values) => values.iter().map(unquoted).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
