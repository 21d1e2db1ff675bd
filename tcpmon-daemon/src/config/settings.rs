//! The validated settings. [`Config`] has them as they are written.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use tcpmon_common::{settings::EPHEMERAL_RANGES, store::MAX_STATES};

use super::{Collect, Config, Flight, Log, Probes};
use crate::{
    http::{ListenAddress, TelemetryPath},
    trigger::TriggerRule,
};

/// Allowed values of [`DaemonSettings::max_groups`].
const GROUPS_RANGE: RangeInclusive<u64> = 1..=10_000;
/// Allowed values of [`DaemonSettings::max_sockets`].
const SOCKETS_RANGE: RangeInclusive<u64> = 1024..=MAX_STATES as u64;
/// Allowed values of [`DaemonSettings::max_readers`].
const READERS_RANGE: RangeInclusive<u64> = 1..=1_000_000;
/// Allowed values of [`DaemonSettings::max_drop_entries`].
const DROP_ENTRIES_RANGE: RangeInclusive<u64> = 1..=1_000_000;
/// Largest ring buffer, bytes.
const MAX_RING_BYTES: u64 = 1 << 30;

/// The daemon's settings, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSettings {
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
    /// Maximum number of sockets at a time.
    pub max_sockets: u32,
    /// Maximum number of reader threads at a time.
    pub max_readers: u32,
    /// Maximum number of pairs of socket and drop reason.
    pub max_drop_entries: u32,
    /// Size of the ring buffer: a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Whether threads are confined to the system calls and files that they need.
    pub sandbox: bool,
    /// Local socket from which `tcpmon top` reads.
    pub live_socket: Option<PathBuf>,
    /// Which sources of host metrics are read.
    pub collect: Collect,
    /// Which programs are attached.
    pub probes: Probes,
    /// The flight recorder.
    pub flight: Option<FlightSettings>,
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

/// The flight recorder's settings, validated; they are passed on to `tcpmon trace` as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightSettings {
    /// Directory of its files.
    pub directory: PathBuf,
    /// How much time a file covers before a trigger, and how much after it.
    pub ring: String,
    /// What makes it write: [`TriggerRule`]s.
    pub trigger: Vec<String>,
    /// Which files are kept: [`Keep`].
    pub keep: String,
}

/// How many of the newest files of a trace are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// This many files.
    Files(u32),
    /// As many files as fit in this total size, bytes.
    Bytes(u64),
}

/// A key with a value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct InvalidSetting {
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
    pub fn validate(&self) -> Result<DaemonSettings, InvalidSetting> {
        let mut listen = Vec::with_capacity(self.web.listen_address.len());
        for address in &self.web.listen_address {
            listen.push(checked("web.listen_address", address.parse())?);
        }
        if listen.is_empty() {
            checked("web.listen_address", Err("give at least one address, such as `127.0.0.1:10793`"))?;
        }
        Ok(DaemonSettings {
            max_groups: checked_number("max_groups", self.max_groups, GROUPS_RANGE)? as usize,
            group_ttl: checked("group_ttl", parse_duration(&self.group_ttl))?,
            pin: self.pin.iter().map(|name| checked("pin", check_process_name(name))).collect::<Result<_, _>>()?,
            cgroup_label: self.cgroup_label,
            ephemeral_ports: checked("ephemeral_ports", parse_port_ranges(&self.ephemeral_ports))?,
            max_sockets: checked_number("max_sockets", self.max_sockets, SOCKETS_RANGE)?,
            max_readers: checked_number("max_readers", self.max_readers, READERS_RANGE)?,
            max_drop_entries: checked_number("max_drop_entries", self.max_drop_entries, DROP_ENTRIES_RANGE)?,
            ring_bytes: checked("ring_bytes", check_ring_bytes(self.ring_bytes))?,
            sandbox: self.sandbox,
            live_socket: (!self.live_socket.is_empty()).then(|| PathBuf::from(&self.live_socket)),
            collect: self.collect,
            probes: self.probes,
            flight: self.flight.validate()?,
            listen,
            telemetry_path: checked("web.telemetry_path", self.web.telemetry_path.parse())?,
            web_config_file: (!self.web.config_file.is_empty()).then(|| PathBuf::from(&self.web.config_file)),
            systemd_socket: self.web.systemd_socket,
            log: self.log,
        })
    }
}

impl Flight {
    fn validate(&self) -> Result<Option<FlightSettings>, InvalidSetting> {
        checked("flight.ring", parse_duration(&self.ring))?;
        for rule in &self.trigger {
            checked("flight.trigger", rule.parse::<TriggerRule>())?;
        }
        checked("flight.keep", parse_keep(&self.keep))?;
        Ok((!self.directory.is_empty()).then(|| FlightSettings {
            directory: PathBuf::from(&self.directory),
            ring: self.ring.clone(),
            trigger: self.trigger.clone(),
            keep: self.keep.clone(),
        }))
    }
}

/// A size such as `100MB` or `1GiB`, bytes; `None` if the text does not end in a unit.
pub(crate) fn parse_size(text: &str) -> Option<Result<u64, String>> {
    const UNITS: [(&str, u64); 6] =
        [("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (number, factor) = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))?;
    let bytes = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    Some(bytes.filter(|bytes| *bytes > 0).ok_or_else(|| format!("{text:?} is not a size: use for example `1GB`")))
}

/// A number of files, or their size.
pub(crate) fn parse_keep(text: &str) -> Result<Keep, String> {
    match parse_size(text) {
        Some(bytes) => bytes.map(Keep::Bytes),
        None => match text.parse() {
            Ok(files @ 1..) => Ok(Keep::Files(files)),
            _ => Err(format!("{text:?} is neither a number of files nor a size: use for example `10` or `1GB`")),
        },
    }
}

/// A time span such as `30s`, `10m` or `1h 30m`; more than zero.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err(format!("{text:?} is too short: use for example `30s`")),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{text:?} is not a duration ({error}): use for example `30s`, `10m` or `1h 30m`")),
    }
}

/// A name that a process can have.
pub(crate) fn check_process_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name.contains('\0') {
        return Err(format!("{name:?} is not a process name: use the name that `ps -o comm` shows"));
    }
    Ok(name.to_owned())
}

/// Port ranges, at most as many as the programs can hold.
fn parse_port_ranges(texts: &[String]) -> Result<Vec<RangeInclusive<u16>>, String> {
    if texts.len() > EPHEMERAL_RANGES {
        return Err(format!("{} ranges are too many, {EPHEMERAL_RANGES} are allowed: merge some of them", texts.len()));
    }
    texts.iter().map(|text| parse_port_range(text)).collect()
}

/// A port range that includes both ends.
fn parse_port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let ends = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match ends {
        Some((first, last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err(format!("{text:?} is not a range of ports: use for example `50000-51000`")),
    }
}

/// The size of a ring buffer that the kernel accepts.
pub(crate) fn check_ring_bytes(bytes: u64) -> Result<u32, String> {
    let page = rustix::param::page_size() as u64;
    match u32::try_from(bytes) {
        Ok(size) if bytes.is_power_of_two() && (page..=MAX_RING_BYTES).contains(&bytes) => Ok(size),
        _ => Err(format!(
            "{bytes} is not a power of two from {page} (one page) to {MAX_RING_BYTES}: use for example {}",
            bytes.clamp(page, MAX_RING_BYTES).next_power_of_two()
        )),
    }
}

fn checked_number(key: &'static str, value: u64, range: RangeInclusive<u64>) -> Result<u32, InvalidSetting> {
    let number = u32::try_from(value).ok().filter(|_| range.contains(&value));
    let outside = || format!("{value} is not in the range from {} to {}", range.start(), range.end());
    checked(key, number.ok_or_else(outside))
}

fn checked<T>(key: &'static str, result: Result<T, impl ToString>) -> Result<T, InvalidSetting> {
    result.map_err(|problem| InvalidSetting { key, problem: problem.to_string() })
}
