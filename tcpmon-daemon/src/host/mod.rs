//! Samples the host: one file per source, each a pure parser under a thin reader.
//!
//! A source that cannot be read turns off what it provides, and reports the reason. Everything else goes on.

pub mod cgroup;
mod devices;
mod file;
mod kernel_log;
mod monotone;
mod namespaces;
pub mod netlink;
mod netstat;
mod network;
mod pressure;
mod softnet;
mod stat;
mod stuck;
mod tcp_memory;
mod zones;

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

use self::{devices::Devices, file::FileError, kernel_log::KernelLog, network::Network, softnet::SoftnetCounters};
use crate::model::host::{Host, PageAllocationFailures, Source};

/// Orders of page allocations that are shown even if none failed: all that a kernel has by default.
const ORDERS: u32 = 11;

/// Minimum time between two reads of the devices. During a read, the kernel lets no device be changed (RTNL), and a
/// driver may query its firmware.
const DEVICES_EVERY: Duration = Duration::from_secs(1);

/// All sources. Read them from one thread: the devices are those of its network namespace.
#[derive(Debug)]
pub struct Sources {
    page_bytes: u64,
    devices: Devices,
    /// When they were last read, and the result.
    devices_read: Option<(Instant, Result<devices::Reading, String>)>,
    softnet: SoftnetCounters,
    network: Network,
    log: Result<KernelLog, FileError>,
}

impl Sources {
    /// Opens what is followed from now on: the kernel log, and the counters of the namespaces that exist now.
    pub fn open() -> Self {
        let mut network = Network::default();
        network.read(&mut Report(&mut Vec::new()));
        Self {
            page_bytes: rustix::param::page_size() as u64,
            devices: Devices::default(),
            devices_read: None,
            softnet: SoftnetCounters::default(),
            network,
            log: KernelLog::open(),
        }
    }

    /// Takes in what the kernel has logged, without waiting. Returns the last page allocation failure if there was one
    /// since the last call.
    pub fn read_kernel_log(&mut self) -> Option<String> {
        let log = self.log.as_mut().ok()?;
        let count = |log: &KernelLog| log.tally().failures().iter().map(|failures| failures.count).sum::<u64>();
        let before = count(log);
        if let Err(error) = log.poll() {
            self.log = Err(error);
            return None;
        }
        let last = log.tally().last.as_ref().filter(|_| count(log) > before)?;
        Some(last.message.clone())
    }

    /// Reads everything now, except that devices are read once a second at most.
    pub fn read(&mut self) -> Host {
        let mut host = Host::default();
        let mut take = Report(&mut host.sources);

        let read = self.devices_read.take().filter(|(read, _)| read.elapsed() < DEVICES_EVERY);
        let read = read.unwrap_or_else(|| (Instant::now(), self.devices.read().map_err(|error| error.to_string())));
        let (_, devices) = self.devices_read.insert(read);
        let devices = take.of("devices", "ring overruns and ring sizes", devices.clone()).unwrap_or_default();
        take.note(devices.notes.join("; "));
        host.devices = devices.devices;
        host.softnet = take.of("softnet", "softnet counters", self.softnet.read()).unwrap_or_default();
        let memory = tcp_memory::memory(self.page_bytes);
        host.tcp_memory = take.of("tcp_memory", "TCP's memory and its limits", memory);
        host.orphan_sockets = take.of("sockstat", "orphan sockets", tcp_memory::orphan_sockets());
        let zones = take.of("zones", "memory zones", zones::zones(self.page_bytes));
        if let Some((zones, problem)) = zones {
            take.note(problem.map(|error| format!("{error}; without it: no free blocks")).unwrap_or_default());
            host.zones = zones;
        }
        host.memory_pressure_stalls = take.of("psi", "time in which tasks wait for memory", pressure::memory());
        host.context_switches = take.of("stat", "context switches", stat::context_switches());
        if let Some(walk) = take.of("cgroups", "socket memory of control groups", cgroup::sockets()) {
            take.note(walk.lacking().unwrap_or_default());
            host.cgroups = walk.groups;
        }
        if let Some(log) = take.of("kernel_log", "page-allocation failures", self.log.as_ref()) {
            let tally = log.tally();
            host.page_allocation_failures = Some(with_zeros(tally.failures()));
            host.losses = vec![("kernel_log_record", tally.lost), ("page_allocation_failure_record", tally.suppressed)];
        }

        let network = self.network.read(&mut take);
        host.connections_opened = network.connections_opened;
        host.tcp_events = network.tcp_events;
        host.ip_events = network.ip_events;
        host.stuck = network.stuck;
        host
    }
}

/// Status of each source.
struct Report<'a>(&'a mut Vec<Source>);

impl Report<'_> {
    /// Records the status of a source. Returns what it gave, if it did not fail.
    fn of<T>(&mut self, name: &'static str, lost: &str, result: Result<T, impl Display>) -> Option<T> {
        let (reason, value) = match result {
            Ok(value) => (String::new(), Some(value)),
            Err(error) => (format!("{error}; without it: no {lost}"), None),
        };
        self.0.push(Source { name, available: value.is_some(), reason });
        value
    }

    /// Records what the last source could not read although it is available.
    fn note(&mut self, note: String) {
        if let Some(source) = self.0.last_mut()
            && source.available
        {
            source.reason = note;
        }
    }
}

/// Adds zeros: a counter that appears with its first failure would hide that failure from `increase()`.
fn with_zeros(failures: Vec<PageAllocationFailures>) -> Vec<PageAllocationFailures> {
    let zeros =
        (0..ORDERS).flat_map(|order| [true, false].map(|atomic| PageAllocationFailures { order, atomic, count: 0 }));
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
    use super::*;

    #[test]
    fn a_source_that_fails_is_off_with_a_reason_and_the_next_one_is_on() {
        let mut sources = Vec::new();
        let mut take = Report(&mut sources);
        assert_eq!(take.of("zones", "memory zones", Err::<u8, _>("cannot read /proc/zoneinfo")), None);
        take.note("what is off has no notes".into());
        assert_eq!(take.of("stat", "context switches", Ok::<_, String>(7)), Some(7));
        take.note("but not all".into());
        let said: Vec<_> = sources.iter().map(|source| (source.name, source.available, &*source.reason)).collect();
        let off = "cannot read /proc/zoneinfo; without it: no memory zones";
        assert_eq!(said, [("zones", false, off), ("stat", true, "but not all")]);
    }

    #[test]
    fn failures_of_every_order_are_there_before_the_first_one() {
        let failure = |order, atomic, count| PageAllocationFailures { order, atomic, count };
        let all = with_zeros(vec![failure(3, true, 5), failure(12, false, 1)]);
        assert_eq!(all.len(), 2 * ORDERS as usize + 1);
        assert!(all.contains(&failure(0, true, 0)) && all.contains(&failure(3, true, 5)));
        assert!(!all.contains(&failure(3, true, 0)) && all.contains(&failure(12, false, 1)));
    }

    #[test]
    fn devices_are_read_once_a_second_however_often_the_rest_is() {
        let mut sources = Sources::open();
        let read = |sources: &mut Sources| {
            sources.read();
            sources.devices_read.as_ref().expect("they are read with the rest").0
        };
        let first = read(&mut sources);
        let again = read(&mut sources);
        assert!(again == first || again - first >= DEVICES_EVERY, "{:?}", again - first);
        let (when, _) = sources.devices_read.as_mut().expect("they were read");
        *when -= DEVICES_EVERY;
        assert!(read(&mut sources) >= again);
    }

    #[test]
    fn everything_that_a_linux_host_has_is_read_and_what_is_missing_has_a_reason() {
        let host = Sources::open().read();
        assert!(host.softnet.iter().any(|cpu| cpu.processed > 0), "{host:?}");
        assert!(host.tcp_memory.is_some_and(|memory| memory.low < memory.max), "{host:?}");
        assert!(host.zones.iter().any(|zone| zone.free_bytes > 0 && !zone.free_blocks.is_empty()), "{host:?}");
        assert!(host.context_switches.is_some_and(|count| count > 0));
        for source in &host.sources {
            assert!(source.available || source.reason.contains("; without it: no "), "{source:?}");
        }
    }
}
