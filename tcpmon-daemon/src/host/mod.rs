//! Samples the host: one file per source, each a pure parser under a thin reader.
//!
//! If a source cannot be read, only its metrics are missing, and `/status` shows the reason. A line or a value that
//! cannot be parsed is skipped, and the reason of the source says so.

mod addresses;
pub mod cgroup;
pub mod cgroup_paths;
pub(crate) mod devices;
mod file;
pub(crate) mod kernel_log;
pub(crate) mod link;
mod monotonic;
mod namespaces;
pub(crate) mod netlink;
pub(crate) mod netstat;
mod network;
pub(crate) mod psi;
pub(crate) mod qdisc;
pub(crate) mod softnet;
pub(crate) mod stat;
pub(crate) mod stuck;
pub(crate) mod tcp_memory;
pub(crate) mod zones;

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

pub(crate) use self::devices::{Buffer, Ethtool};
pub(crate) use self::file::{Parsed, read_text};
use self::{devices::Devices, network::NamespaceReader, softnet::SoftnetCounters};
pub use self::{file::FileError, kernel_log::KernelLog, namespaces::is_host_pid_namespace};
use crate::host_state::{Host, PageAllocationFailures, SourceStatus};

/// Orders of page allocations that are shown even if none failed: all that a kernel has by default.
const MAX_ORDERS: u32 = 11;

/// Minimum time between two reads of the devices. During a read, the kernel holds RTNL, and a
/// driver may query its firmware.
const DEVICES_INTERVAL: Duration = Duration::from_secs(1);

/// All sources. Read them from one thread: the devices are those of its network namespace.
#[derive(Debug)]
pub struct Sources {
    page_bytes: u64,
    devices: Devices,
    /// When they were last read, and the result.
    devices_read: Option<(Instant, Result<devices::DevicesSample, String>)>,
    softnet: SoftnetCounters,
    network: NamespaceReader,
    log: Result<KernelLog, FileError>,
    /// Why the last read of the log failed, if it did.
    log_problem: Option<FileError>,
    switched_off: Vec<&'static str>,
}

impl Sources {
    /// Takes the counters of the existing namespaces as their baseline. Sources with the names in `switched_off` are
    /// not read. The caller opens the kernel log, because that may need a capability that nothing else does.
    pub fn open(switched_off: Vec<&'static str>, log: Result<KernelLog, FileError>) -> Self {
        let mut network = NamespaceReader::new();
        network.read(&mut SourceReport { sources: &mut Vec::new(), switched_off: &switched_off });
        Self {
            page_bytes: rustix::param::page_size() as u64,
            devices: Devices::default(),
            devices_read: None,
            softnet: SoftnetCounters::default(),
            network,
            log,
            log_problem: None,
            switched_off,
        }
    }

    /// Reads what the kernel has logged since the last call, without waiting. Returns the last page allocation failure
    /// if there was one since the last call.
    pub fn read_kernel_log(&mut self) -> Option<String> {
        let log = self.log.as_mut().ok()?;
        let count = |log: &KernelLog| log.counts().failures().iter().map(|failures| failures.count).sum::<u64>();
        let before = count(log);
        // The next read may succeed. The log is not opened again: that would fix no error of read(2) on /dev/kmsg, and
        // it needs CAP_SYSLOG, which this thread has given up, where kernel.dmesg_restrict is 1.
        self.log_problem = log.poll().err();
        let last = log.counts().last.as_ref().filter(|_| count(log) > before)?;
        Some(last.message.clone())
    }

    /// Reads everything now, except that devices are read once a second at most.
    pub fn read(&mut self) -> Host {
        let mut host = Host::default();
        let mut report = SourceReport { sources: &mut host.sources, switched_off: &self.switched_off };

        let read = self.devices_read.take().filter(|(read, _)| read.elapsed() < DEVICES_INTERVAL);
        let read = read.unwrap_or_else(|| (Instant::now(), self.devices.read().map_err(|error| error.to_string())));
        let (_, devices) = self.devices_read.insert(read);
        let devices =
            report.record("devices", "receive ring overruns and ring sizes", || devices.clone()).unwrap_or_default();
        report.note(devices.notes.join("; "));
        host.devices = devices.devices;
        host.softnet = report.record_parsed("softnet", "softnet counters", || self.softnet.read()).unwrap_or_default();
        let memory = || tcp_memory::memory(self.page_bytes);
        host.tcp_memory = report.record_parsed("tcp_memory", "TCP memory and its limits", memory);
        host.orphan_sockets = report.record("sockstat", "orphan sockets", tcp_memory::orphan_sockets);
        let zones = || zones::zones(self.page_bytes);
        host.zones = report.record_parsed("zones", "memory zones", zones).unwrap_or_default();
        host.memory_pressure_stalls = report.record_parsed("psi", "memory pressure stall times", psi::memory);
        host.context_switches = report.record("stat", "context switches", stat::context_switches);
        if let Some(walk) = report.record("cgroups", "socket memory of control groups", cgroup::socket_memory) {
            report.note(walk.omitted().unwrap_or_default());
            host.cgroups = walk.groups;
        }
        let log = || match (&self.log, &self.log_problem) {
            (Ok(log), None) => Ok(log),
            (Err(problem), _) | (Ok(_), Some(problem)) => Err(problem),
        };
        if let Some(log) = report.record("kernel_log", "page-allocation failures", log) {
            let counts = log.counts();
            host.page_allocation_failures = Some(with_zeros(counts.failures()));
            host.losses =
                vec![("kernel_log_record", counts.lost), ("page_allocation_failure_record", counts.suppressed)];
        }

        let network = self.network.read(&mut report);
        host.connections_opened = network.connections_opened;
        host.tcp_events = network.tcp_events;
        host.ip_events = network.ip_events;
        host.stuck = network.stuck;
        host
    }
}

/// Collects the status of each source.
struct SourceReport<'a> {
    sources: &'a mut Vec<SourceStatus>,
    switched_off: &'a [&'static str],
}

impl SourceReport<'_> {
    /// Reads a source, unless it is switched off, and records its status. Returns its value if it did not fail.
    fn record<T, E: Display>(
        &mut self,
        name: &'static str,
        missing: &str,
        read: impl FnOnce() -> Result<T, E>,
    ) -> Option<T> {
        let switched_off = self.is_switched_off(name);
        let (reason, value) = match (!switched_off).then(read) {
            Some(Ok(value)) => (String::new(), Some(value)),
            Some(Err(error)) => (format!("{error}; missing metrics: {missing}"), None),
            None => (format!("switched off by collect.{name} = false; missing metrics: {missing}"), None),
        };
        self.sources.push(SourceStatus { name, available: value.is_some(), switched_off, reason });
        value
    }

    /// Like [`SourceReport::record`]; what was skipped becomes a note.
    fn record_parsed<T, E: Display>(
        &mut self,
        name: &'static str,
        missing: &str,
        read: impl FnOnce() -> Result<Parsed<T>, E>,
    ) -> Option<T> {
        let Parsed { value, skipped } = self.record(name, missing, read)?;
        self.note(skipped.to_string());
        Some(value)
    }

    fn is_switched_off(&self, name: &str) -> bool {
        self.switched_off.contains(&name)
    }

    /// Records what the last source could not read although it is available.
    fn note(&mut self, note: String) {
        if let Some(source) = self.sources.last_mut()
            && source.available
        {
            source.reason = note;
        }
    }
}

/// Adds zeros: if a counter first appeared with its first failure, `increase()` would not see that failure.
fn with_zeros(failures: Vec<PageAllocationFailures>) -> Vec<PageAllocationFailures> {
    let zeros = (0..MAX_ORDERS)
        .flat_map(|order| [true, false].map(|atomic| PageAllocationFailures { order, atomic, count: 0 }));
    let known = |zero: &PageAllocationFailures| {
        failures.iter().any(|failure| (failure.order, failure.atomic) == (zero.order, zero.atomic))
    };
    let mut all: Vec<_> = zeros.filter(|zero| !known(zero)).collect();
    all.extend(failures.iter().cloned());
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::config::Collect;

    #[test]
    fn a_source_that_fails_is_unavailable_with_a_reason_and_the_next_one_is_available() {
        let mut sources = Vec::new();
        let mut report = SourceReport { sources: &mut sources, switched_off: &["psi"] };
        assert_eq!(report.record("zones", "memory zones", || Err::<u8, _>("cannot read /proc/zoneinfo")), None);
        report.note("an unavailable source has no notes".into());
        assert_eq!(report.record("stat", "context switches", || Ok::<_, String>(7)), Some(7));
        report.note("but not all".into());
        let reported: Vec<_> = sources.iter().map(|source| (source.name, source.available, &*source.reason)).collect();
        let reason = "cannot read /proc/zoneinfo; missing metrics: memory zones";
        assert_eq!(reported, [("zones", false, reason), ("stat", true, "but not all")]);
    }

    #[test]
    fn sources_that_the_configuration_switches_off_are_not_read_and_say_so() {
        let collect =
            Collect { softnet: false, sockstat: false, zones: false, psi: false, stat: false, netstat: false };
        let mut sources = Sources::open(collect.switched_off(), KernelLog::open());
        let host = sources.read();
        let off: Vec<_> = host.sources.iter().filter(|source| source.switched_off).collect();
        let names: HashSet<_> = off.iter().map(|source| source.name).collect();
        // A name that belongs to no source would switch nothing off.
        assert_eq!(names, collect.switched_off().into_iter().collect());
        for source in off {
            let reason = format!("switched off by collect.{} = false; missing metrics: ", source.name);
            assert!(!source.available && source.reason.starts_with(&reason), "{source:?}");
        }
        let Host { softnet, orphan_sockets, zones, memory_pressure_stalls, context_switches, tcp_events, .. } = &host;
        assert!(softnet.is_empty() && zones.is_empty() && tcp_events.is_empty() && host.ip_events.is_empty());
        assert_eq!((orphan_sockets, memory_pressure_stalls, context_switches), (&None, &None, &None));
        assert_eq!(host.connections_opened, None);
        assert!(host.tcp_memory.is_some() && !host.stuck.is_empty(), "{host:?}");
        assert_eq!(Collect::default().switched_off(), Vec::<&str>::new());
    }

    #[test]
    fn every_order_has_a_zero_before_its_first_failure() {
        let failure = |order, atomic, count| PageAllocationFailures { order, atomic, count };
        let all = with_zeros(vec![failure(3, true, 5), failure(12, false, 1)]);
        assert_eq!(all.len(), 2 * MAX_ORDERS as usize + 1);
        assert!(all.contains(&failure(0, true, 0)) && all.contains(&failure(3, true, 5)));
        assert!(!all.contains(&failure(3, true, 0)) && all.contains(&failure(12, false, 1)));
    }

    #[test]
    fn devices_are_read_at_most_once_a_second() {
        let mut sources = Sources::open(Vec::new(), KernelLog::open());
        let read = |sources: &mut Sources| {
            sources.read();
            sources.devices_read.as_ref().expect("they are read with the rest").0
        };
        let first = read(&mut sources);
        let again = read(&mut sources);
        assert!(again == first || again - first >= DEVICES_INTERVAL, "{:?}", again - first);
        let (when, _) = sources.devices_read.as_mut().expect("they were read");
        *when -= DEVICES_INTERVAL;
        assert!(read(&mut sources) >= again);
    }

    #[test]
    fn all_sources_of_a_linux_host_are_read_or_have_a_reason() {
        let host = Sources::open(Vec::new(), KernelLog::open()).read();
        assert!(host.softnet.iter().any(|cpu| cpu.processed > 0), "{host:?}");
        assert!(host.tcp_memory.is_some_and(|memory| memory.low.is_some() && memory.low < memory.max), "{host:?}");
        assert!(host.zones.iter().any(|zone| zone.free_bytes > 0 && !zone.free_blocks.is_empty()), "{host:?}");
        assert!(host.context_switches.is_some_and(|count| count > 0));
        for source in &host.sources {
            assert!(source.available || source.reason.contains("; missing metrics: "), "{source:?}");
        }
    }
}
