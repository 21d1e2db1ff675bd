//! The second type: settings that have been checked.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use super::{Config, Log};
use crate::http::{ListenAddress, TelemetryPath};

/// What [`Settings::max_groups`] can be.
pub const MAX_GROUPS: RangeInclusive<u64> = 1..=10_000;
/// What [`Settings::max_readers`] can be.
pub const MAX_READERS: RangeInclusive<u64> = 1..=1_000_000;
/// What [`Settings::max_drop_entries`] can be.
pub const MAX_DROP_ENTRIES: RangeInclusive<u64> = 1..=1_000_000;
/// Largest ring, bytes.
const MAX_RING_BYTES: u64 = 1 << 30;

/// The daemon's settings, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most groups with metrics of their own.
    pub max_groups: usize,
    /// An idle group leaves after this.
    pub group_ttl: Duration,
    /// Whether groups bear the label `cgroup`.
    pub cgroup_label: bool,
    /// Most reader threads at a time.
    pub max_readers: u32,
    /// Most pairs of socket and drop reason.
    pub max_drop_entries: u32,
    /// Size of the ring: a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Where to listen; not empty.
    pub listen: Vec<ListenAddress>,
    /// Path of the metrics.
    pub telemetry_path: TelemetryPath,
    /// File with TLS and users; a relative path starts at the working directory.
    pub web_config_file: Option<PathBuf>,
    /// Listen on the sockets that systemd passes instead of on addresses.
    pub systemd_socket: bool,
    /// What is logged.
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
    /// Names the first key that cannot be used.
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
            cgroup_label: self.cgroup_label,
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

/// A time span such as `30s`, `10m` or `1h 30m`; longer than nothing.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err(format!("{text:?} is no time at all: write for example `30s`")),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{text:?} is no time span ({error}): write for example `30s`, `10m` or `1h 30m`")),
    }
}

/// The size of a ring buffer, as the kernel wants it.
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
