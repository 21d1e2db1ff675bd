//! The validated settings. [`Config`] has them as they are written.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use tcpmon_common::settings::EPHEMERAL_RANGES;

use super::{Config, Log};
use crate::http::{ListenAddress, TelemetryPath};

/// Allowed values of [`Settings::max_groups`].
pub const MAX_GROUPS: RangeInclusive<u64> = 1..=10_000;
/// Allowed values of [`Settings::max_readers`].
pub const MAX_READERS: RangeInclusive<u64> = 1..=1_000_000;
/// Allowed values of [`Settings::max_drop_entries`].
pub const MAX_DROP_ENTRIES: RangeInclusive<u64> = 1..=1_000_000;
/// Largest ring buffer, bytes.
const MAX_RING_BYTES: u64 = 1 << 30;

/// The daemon's settings, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of groups with metrics of their own.
    pub max_groups: usize,
    /// An idle group is removed after this time.
    pub group_ttl: Duration,
    /// Names of processes whose groups take precedence over all others.
    pub pin: Vec<String>,
    /// Whether groups have the label `cgroup`.
    pub cgroup_label: bool,
    /// Port ranges whose listening sockets count as if the kernel had chosen the port; at most [`EPHEMERAL_RANGES`].
    pub ephemeral_ports: Vec<RangeInclusive<u16>>,
    /// Maximum number of reader threads at a time.
    pub max_readers: u32,
    /// Maximum number of pairs of socket and drop reason.
    pub max_drop_entries: u32,
    /// Size of the ring buffer: a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Addresses to listen on; not empty.
    pub listen: Vec<ListenAddress>,
    /// Path of the metrics page.
    pub telemetry_path: TelemetryPath,
    /// File with TLS settings and users; a relative path starts at the working directory.
    pub web_config_file: Option<PathBuf>,
    /// Listen on the sockets that systemd passes instead of on addresses.
    pub systemd_socket: bool,
    /// What is logged, and how.
    pub log: Log,
}

/// A key with a value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct Invalid {
    /// The key, with dots.
    pub key: &'static str,
    /// What is wrong, and what would be right.
    pub problem: String,
}

impl Config {
    /// Checks every value.
    ///
    /// # Errors
    /// Names the first key whose value cannot be used.
    pub fn validate(&self) -> Result<Settings, Invalid> {
        let mut listen = Vec::with_capacity(self.web.listen_address.len());
        for address in &self.web.listen_address {
            listen.push(valid("web.listen_address", address.parse())?);
        }
        if listen.is_empty() {
            valid("web.listen_address", Err("name at least one address, such as `127.0.0.1:10793`"))?;
        }
        Ok(Settings {
            max_groups: number("max_groups", self.max_groups, MAX_GROUPS)? as usize,
            group_ttl: valid("group_ttl", duration(&self.group_ttl))?,
            pin: self.pin.iter().map(|name| valid("pin", process_name(name))).collect::<Result<_, _>>()?,
            cgroup_label: self.cgroup_label,
            ephemeral_ports: valid("ephemeral_ports", port_ranges(&self.ephemeral_ports))?,
            max_readers: number("max_readers", self.max_readers, MAX_READERS)?,
            max_drop_entries: number("max_drop_entries", self.max_drop_entries, MAX_DROP_ENTRIES)?,
            ring_bytes: valid("ring_bytes", ring_bytes(self.ring_bytes))?,
            listen,
            telemetry_path: valid("web.telemetry_path", self.web.telemetry_path.parse())?,
            web_config_file: (!self.web.config_file.is_empty()).then(|| PathBuf::from(&self.web.config_file)),
            systemd_socket: self.web.systemd_socket,
            log: self.log,
        })
    }
}

/// A time span such as `30s`, `10m` or `1h 30m`; more than zero.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err(format!("{text:?} is no time at all: write for example `30s`")),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{text:?} is no time span ({error}): write for example `30s`, `10m` or `1h 30m`")),
    }
}

/// A name that a process can have.
pub(crate) fn process_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name.contains('\0') {
        return Err(format!("{name:?} is the name of no process: write it as `ps -o comm` shows it"));
    }
    Ok(name.to_owned())
}

/// Port ranges, at most as many as the programs can hold.
fn port_ranges(texts: &[String]) -> Result<Vec<RangeInclusive<u16>>, String> {
    if texts.len() > EPHEMERAL_RANGES {
        return Err(format!("{} ranges are more than {EPHEMERAL_RANGES}: join some of them", texts.len()));
    }
    texts.iter().map(|text| port_range(text)).collect()
}

/// A port range that includes both ends.
pub(crate) fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let ends = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match ends {
        Some((first, last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err(format!("{text:?} is no range of ports: write for example `50000-51000`")),
    }
}

/// The size of a ring buffer that the kernel accepts.
pub(crate) fn ring_bytes(bytes: u64) -> Result<u32, String> {
    let page = rustix::param::page_size() as u64;
    match u32::try_from(bytes) {
        Ok(size) if bytes.is_power_of_two() && (page..=MAX_RING_BYTES).contains(&bytes) => Ok(size),
        _ => Err(format!(
            "{bytes} is no power of two from {page} (one page here) to {MAX_RING_BYTES}: take for example {}",
            bytes.clamp(page, MAX_RING_BYTES).next_power_of_two()
        )),
    }
}

fn number(key: &'static str, value: u64, range: RangeInclusive<u64>) -> Result<u32, Invalid> {
    let number = u32::try_from(value).ok().filter(|_| range.contains(&value));
    let outside = || format!("{value} is not in the range from {} to {}", range.start(), range.end());
    valid(key, number.ok_or_else(outside))
}

fn valid<T>(key: &'static str, result: Result<T, impl ToString>) -> Result<T, Invalid> {
    result.map_err(|problem| Invalid { key, problem: problem.to_string() })
}
