//! Reads the facts. Changes nothing: the programs that are loaded on trial are gone when it returns.

mod device;

use std::{collections::BTreeMap, fs, io, os::unix::fs::MetadataExt as _, path::Path, str::FromStr};

pub use self::device::NoDevice;
use super::facts::{Fact, Facts, HostFacts, Refusal, RunFacts, SoftnetSums};
use crate::{
    host::{self, is_host_pid_namespace},
    kernel::{self, Kernel, LoadError, Options},
    model::snapshot::ProbeStatus,
};

/// Reads all facts: of the named devices, or of all that are on a bus and up if none is named.
///
/// # Errors
/// If there is no device of a name.
pub fn gather(devices: &[String]) -> Result<Facts, NoDevice> {
    // Before anything else: a name may be misspelt.
    let devices = device::all(devices)?;
    Ok(Facts { run: run(), host: host(), devices })
}

fn run() -> RunFacts {
    let prerequisites = kernel::prerequisites();
    let probes = match kernel::decide(&prerequisites) {
        Ok(()) => trial(),
        Err(_) => Fact::Unknown("the programs are loaded only if nothing else prevents it".into()),
    };
    RunFacts {
        prerequisites,
        probes,
        security_modules: file("/sys/kernel/security/lsm").into(),
        confinement: confinement(),
        cgroup_v2: Fact::Known(host::cgroup::root().is_ok()),
        dmesg_restrict: sysctl("kernel/dmesg_restrict"),
        bpf_jit_enable: sysctl("net/core/bpf_jit_enable"),
        bpf_stats_enabled: sysctl("kernel/bpf_stats_enabled"),
        host_pid_namespace: is_host_pid_namespace().map_err(|error| format!("/proc/self/ns/pid: {error}")).into(),
        first_network_namespace: first_network_namespace().map_err(|error| format!("/proc/1/ns/net: {error}")).into(),
        others: others().map_err(|error| format!("/proc: {error}")).into(),
    }
}

/// Loads and attaches the programs as the daemon does, with small maps, and removes them again.
fn trial() -> Fact<Result<Vec<ProbeStatus>, Refusal>> {
    let options =
        Options { max_sockets: 64, max_readers: 64, max_drop_entries: 64, ring_bytes: 1 << 16, ..Options::default() };
    match Kernel::load(options) {
        Ok(kernel) => Fact::Known(Ok(kernel.probes().to_vec())),
        Err(LoadError::CannotRun(refusal)) => {
            let denied = refusal.is_denied();
            Fact::Known(Err(Refusal { missing: refusal.missing, remedy: refusal.remedy, denied }))
        }
        Err(error) => Fact::Unknown(format!("loading the programs failed: {error}")),
    }
}

/// The profile or context of this process. Without a security module that has one, the kernel does not have the file or
/// does not let it be read.
fn confinement() -> Fact<String> {
    match fs::read_to_string("/proc/self/attr/current") {
        Ok(text) => Fact::Known(text.trim_matches(['\0', '\n']).to_owned()),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput || error.kind() == io::ErrorKind::NotFound => {
            Fact::Known(String::new())
        }
        Err(error) => Fact::Unknown(format!("/proc/self/attr/current: {error}")),
    }
}

fn first_network_namespace() -> io::Result<bool> {
    Ok(fs::metadata("/proc/self/ns/net")?.ino() == fs::metadata("/proc/1/ns/net")?.ino())
}

/// Other daemons and traces.
fn others() -> io::Result<BTreeMap<u32, String>> {
    let mut others = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()) else { continue };
        // A process may end at any time.
        let (Ok(name), Ok(line)) = (fs::read_to_string(path.join("comm")), fs::read(path.join("cmdline"))) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ");
        let runs = line.split(' ').any(|word| ["daemon", "trace"].contains(&word));
        if name.trim_end() == "tcpmon" && runs && pid != std::process::id() {
            others.insert(pid, line);
        }
    }
    Ok(others)
}

fn host() -> HostFacts {
    HostFacts {
        memory_bytes: file("/proc/meminfo").and_then(|text| memory(&text)).into(),
        swapped_bytes: file("/proc/meminfo").and_then(|text| swapped(&text)).into(),
        tuned_profile: tuned_profile().into(),
        page_bytes: rustix::param::page_size() as u64,
        cpus: file("/sys/devices/system/cpu/online").and_then(|text| Ok(cpu_list(&text)?.len() as u64)).into(),
        // A kernel without NUMA has no such file.
        numa_nodes: Fact::Known(
            file("/sys/devices/system/node/online")
                .and_then(|text| cpu_list(&text))
                .map_or(1, |nodes| nodes.len() as u64),
        ),
        cpu_vendor: file("/proc/cpuinfo").map(|text| vendor(&text)).into(),
        // A kernel that cannot have any of them lacks the files.
        smt: Fact::Known(file("/sys/devices/system/cpu/smt/active").is_ok_and(|active| active == "1")),
        numa_balancing: match sysctl("kernel/numa_balancing") {
            Fact::Unknown(_) => Fact::Known(0),
            known => known,
        },
        tcp_wmem: sysctl_three("net/ipv4/tcp_wmem"),
        mtu_probing: sysctl("net/ipv4/tcp_mtu_probing"),
        tcp_rmem: sysctl_three("net/ipv4/tcp_rmem"),
        rmem_max: sysctl("net/core/rmem_max"),
        tcp_mem: sysctl_three("net/ipv4/tcp_mem"),
        min_free_kbytes: sysctl("vm/min_free_kbytes"),
        netdev_max_backlog: sysctl("net/core/netdev_max_backlog"),
        netdev_budget: sysctl("net/core/netdev_budget"),
        softnet: softnet(),
        congestion_control: sysctl("net/ipv4/tcp_congestion_control"),
        default_qdisc: sysctl("net/core/default_qdisc"),
        window_scaling: sysctl("net/ipv4/tcp_window_scaling"),
        timestamps: sysctl("net/ipv4/tcp_timestamps"),
        sack: sysctl("net/ipv4/tcp_sack"),
        moderate_rcvbuf: sysctl("net/ipv4/tcp_moderate_rcvbuf"),
        optmem_max: sysctl("net/core/optmem_max"),
        ip_forward: sysctl("net/ipv4/ip_forward"),
        governors: governors().into(),
    }
}

fn softnet() -> Fact<SoftnetSums> {
    let parsed = match host::softnet::SoftnetCounters::default().read() {
        // A sum without a CPU would be another number.
        Ok(parsed) if !parsed.skipped.is_empty() => return Fact::Unknown(parsed.skipped.to_string()),
        parsed => parsed,
    };
    let sums = |parsed: host::Parsed<Vec<crate::model::host::Softnet>>| {
        parsed.value.iter().fold(SoftnetSums::default(), |sums, cpu| SoftnetSums {
            processed: sums.processed + cpu.processed,
            dropped: sums.dropped + cpu.dropped,
            time_squeezed: sums.time_squeezed + cpu.time_squeezed,
        })
    };
    parsed.map(sums).into()
}

/// CPUs by frequency governor.
fn governors() -> Result<BTreeMap<String, u64>, String> {
    let mut governors = BTreeMap::new();
    for cpu in cpu_list(&file("/sys/devices/system/cpu/online")?)? {
        let policy = |name| file(format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}"));
        let Ok(governor) = policy("scaling_governor") else { continue };
        let prefers_speed = policy("energy_performance_preference").is_ok_and(|preference| preference == "performance");
        *governors.entry(if prefers_speed { "performance".into() } else { governor }).or_default() += 1;
    }
    Ok(governors)
}

/// The first line `vendor_id` of `/proc/cpuinfo`; empty without one.
fn vendor(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("vendor_id"));
    line.map(|line| line.trim_start_matches([' ', '\t', ':']).trim().to_owned()).unwrap_or_default()
}

/// The line `MemTotal` of `/proc/meminfo`, as bytes.
fn memory(meminfo: &str) -> Result<u64, String> {
    meminfo_bytes(meminfo, "MemTotal")
}

/// What `/proc/meminfo` says is in swap space, bytes.
fn swapped(meminfo: &str) -> Result<u64, String> {
    Ok(meminfo_bytes(meminfo, "SwapTotal")?.saturating_sub(meminfo_bytes(meminfo, "SwapFree")?))
}

/// A line of `/proc/meminfo`, as bytes.
fn meminfo_bytes(meminfo: &str, name: &str) -> Result<u64, String> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    number.map(|kilobytes| kilobytes << 10).ok_or_else(|| format!("/proc/meminfo: no {name} in kB"))
}

/// The profile that tuned has made active.
fn tuned_profile() -> Result<Option<String>, String> {
    const PATH: &str = "/etc/tuned/active_profile";
    match fs::read_to_string(PATH) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|profile| !profile.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{PATH}: {error}")),
    }
}

fn sysctl<T: FromStr>(path: &str) -> Fact<T> {
    let file_name = format!("/proc/sys/{path}");
    file(&file_name).and_then(|text| text.parse().map_err(|_| format!("{file_name}: {text:?}"))).into()
}

fn sysctl_three(path: &str) -> Fact<[u64; 3]> {
    let file_name = format!("/proc/sys/{path}");
    let numbers = file(&file_name).and_then(|text| {
        let numbers: Vec<_> = text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().map_err(|_| format!("{file_name}: {text:?} is not three numbers"))
    });
    numbers.into()
}

/// A file without the whitespace around it, or why it cannot be read.
fn file(path: impl AsRef<Path>) -> Result<String, String> {
    let path = path.as_ref();
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// The numbers of a list such as `0-3,8`.
fn cpu_list(list: &str) -> Result<Vec<u64>, String> {
    let mut numbers = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
            (Ok(first), Ok(last)) if last < 1 << 16 => numbers.extend(first..=last),
            _ => return Err(format!("{list:?} is not a list of CPUs")),
        }
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_of_cpus_and_the_memory_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu_list("0-3,8,10-11").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(cpu_list("").unwrap(), Vec::<u64>::new());
        assert!(cpu_list("0-x").is_err() && cpu_list("0-99999999999").is_err());
        assert_eq!(memory("MemTotal:       16312345 kB\nMemFree: 1 kB\n"), Ok(16_312_345 << 10));
        assert_eq!(vendor("processor\t: 0\nvendor_id\t: AuthenticAMD\n"), "AuthenticAMD");
        assert_eq!(vendor("processor\t: 0\n"), "");
        assert_eq!(memory("MemFree: 1 kB\n"), Err("/proc/meminfo: no MemTotal in kB".into()));
        assert_eq!(swapped("SwapCached: 9 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n"), Ok(40 << 10));
    }

    proptest! {
        #[test]
        fn no_text_can_panic_the_parsers(text in "(?s).{0,100}", words in "[0-9,\\- ]{0,40}") {
            let _ = (cpu_list(&text), cpu_list(&words), memory(&text), memory(&format!("MemTotal: {words} kB")));
        }
    }
}
