//! Reads the facts and changes nothing: the programs that it loads on trial are removed again before it returns.

mod device;

use std::{collections::BTreeMap, fs, io, os::unix::fs::MetadataExt as _, path::Path, str::FromStr};

pub use self::device::NoDevice;
use super::facts::{Fact, Facts, HostFacts, Refusal, RunFacts, SoftnetSums};
use crate::{
    host::{self, is_host_pid_namespace},
    kernel::{self, Kernel, Options},
    status::ProbeStatus,
};

/// Reads all facts: about the named devices, or if none is named, about all devices that are on a bus and up.
///
/// # Errors
/// If there is no device of a name.
pub fn gather(devices: &[String]) -> Result<Facts, NoDevice> {
    // Before anything else: a name may be misspelt.
    let (devices, devices_missing) = device::all(devices)?;
    let root = Root(Path::new("/"));
    Ok(Facts { run: run(root), host: host(root), devices, devices_missing })
}

fn run(root: Root<'_>) -> RunFacts {
    let prerequisites = kernel::prerequisites();
    let probes = match kernel::decide(&prerequisites) {
        Ok(()) => trial(),
        Err(_) => Fact::Unknown("the programs are loaded only if nothing else prevents it".into()),
    };
    RunFacts {
        prerequisites,
        probes,
        security_modules: root.file("sys/kernel/security/lsm").into(),
        confinement: confinement(),
        cgroup_v2: Fact::Known(host::cgroup::root().is_ok()),
        dmesg_restrict: root.sysctl("kernel/dmesg_restrict"),
        bpf_jit_enable: root.sysctl("net/core/bpf_jit_enable"),
        bpf_stats_enabled: root.sysctl("kernel/bpf_stats_enabled"),
        host_pid_namespace: is_host_pid_namespace().map_err(|error| format!("/proc/self/ns/pid: {error}")).into(),
        first_network_namespace: first_network_namespace().map_err(|error| format!("/proc/1/ns/net: {error}")).into(),
        others: others().map_err(|error| format!("/proc: {error}")).into(),
    }
}

/// Loads and attaches the programs as the daemon does, but with small maps, and removes them again.
fn trial() -> Fact<Result<Vec<ProbeStatus>, Refusal>> {
    let options =
        Options { max_sockets: 64, max_readers: 64, max_drop_entries: 64, ring_bytes: 1 << 16, ..Options::default() };
    match Kernel::load(options) {
        Ok(kernel) => Fact::Known(Ok(kernel.probes().to_vec())),
        Err(refusal) => {
            let denied = refusal.is_denied();
            Fact::Known(Err(Refusal { missing: refusal.missing, remedy: refusal.remedy, denied }))
        }
    }
}

/// The security module's profile or context of this process. Without a security module that has one, the kernel does
/// not have the file or does not let it be read.
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

/// Other running daemons and traces.
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

/// Everything except the page size and the packet counts is read below `root`.
fn host(root: Root<'_>) -> HostFacts {
    HostFacts {
        memory_bytes: root.file("proc/meminfo").and_then(|text| memory(&text)).into(),
        swapped_bytes: root.file("proc/meminfo").and_then(|text| swapped(&text)).into(),
        tuned_profile: tuned_profile(root).into(),
        page_bytes: rustix::param::page_size() as u64,
        cpus: online_cpus(root).map(|cpus| cpus.len() as u64).into(),
        // A kernel without NUMA has no such file.
        numa_nodes: root
            .optional("sys/devices/system/node/online")
            .and_then(|text| text.map_or(Ok(1), |text| Ok(cpu_list(&text)?.len() as u64)))
            .into(),
        cpu_vendor: root.file("proc/cpuinfo").map(|text| vendor(&text)).into(),
        // A kernel that supports neither lacks the files.
        smt: root.number_or_zero("sys/devices/system/cpu/smt/active").map(|active| active != 0).into(),
        numa_balancing: root.number_or_zero("proc/sys/kernel/numa_balancing").into(),
        tcp_wmem: root.sysctl_three("net/ipv4/tcp_wmem"),
        mtu_probing: root.sysctl("net/ipv4/tcp_mtu_probing"),
        tcp_rmem: root.sysctl_three("net/ipv4/tcp_rmem"),
        rmem_max: root.sysctl("net/core/rmem_max"),
        wmem_max: root.sysctl("net/core/wmem_max"),
        tcp_mem: root.sysctl_three("net/ipv4/tcp_mem"),
        min_free_kbytes: root.sysctl("vm/min_free_kbytes"),
        overcommit_memory: root.sysctl("vm/overcommit_memory"),
        netdev_max_backlog: root.sysctl("net/core/netdev_max_backlog"),
        netdev_budget: root.sysctl("net/core/netdev_budget"),
        netdev_budget_usecs: root.sysctl("net/core/netdev_budget_usecs"),
        softnet: softnet(),
        congestion_control: root.sysctl("net/ipv4/tcp_congestion_control"),
        default_qdisc: root.sysctl("net/core/default_qdisc"),
        window_scaling: root.sysctl("net/ipv4/tcp_window_scaling"),
        timestamps: root.sysctl("net/ipv4/tcp_timestamps"),
        sack: root.sysctl("net/ipv4/tcp_sack"),
        moderate_rcvbuf: root.sysctl("net/ipv4/tcp_moderate_rcvbuf"),
        optmem_max: root.sysctl("net/core/optmem_max"),
        ip_forward: root.sysctl("net/ipv4/ip_forward"),
        governors: governors(root).into(),
    }
}

fn softnet() -> Fact<SoftnetSums> {
    let parsed = match host::softnet::SoftnetCounters::default().read() {
        // A sum that leaves out a CPU would be wrong.
        Ok(parsed) if !parsed.skipped.is_empty() => return Fact::Unknown(parsed.skipped.to_string()),
        parsed => parsed,
    };
    let sums = |parsed: host::Parsed<Vec<crate::host_state::Softnet>>| {
        parsed.value.iter().fold(SoftnetSums::default(), |sums, cpu| SoftnetSums {
            processed: sums.processed + cpu.processed,
            dropped: sums.dropped + cpu.dropped,
            time_squeezed: sums.time_squeezed + cpu.time_squeezed,
        })
    };
    parsed.map(sums).into()
}

fn online_cpus(root: Root<'_>) -> Result<Vec<u64>, String> {
    cpu_list(&root.file("sys/devices/system/cpu/online")?)
}

/// CPUs by frequency governor.
fn governors(root: Root<'_>) -> Result<BTreeMap<String, u64>, String> {
    let mut governors = BTreeMap::new();
    for cpu in online_cpus(root)? {
        let policy = |name| root.optional(format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}"));
        let Some(governor) = policy("scaling_governor")? else { continue };
        // Without this file, only the governor decides.
        let preference = policy("energy_performance_preference");
        let prefers_speed = preference.is_ok_and(|preference| preference.as_deref() == Some("performance"));
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

/// Swap space in use according to `/proc/meminfo`, bytes.
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
fn tuned_profile(root: Root<'_>) -> Result<Option<String>, String> {
    Ok(root.optional("etc/tuned/active_profile")?.filter(|profile| !profile.is_empty()))
}

/// The directory that has `proc`, `sys` and `etc`.
#[derive(Clone, Copy)]
struct Root<'a>(&'a Path);

impl Root<'_> {
    fn sysctl<T: FromStr>(self, name: &str) -> Fact<T> {
        let path = format!("proc/sys/{name}");
        self.file(&path).and_then(|text| self.parse(&path, &text)).into()
    }

    fn sysctl_three(self, name: &str) -> Fact<[u64; 3]> {
        let path = format!("proc/sys/{name}");
        let numbers = self.file(&path).and_then(|text| {
            let numbers: Result<Vec<_>, _> = text.split_ascii_whitespace().map(str::parse).collect();
            let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
            numbers.ok_or_else(|| format!("{}: {text:?} is not three numbers", self.0.join(path).display()))
        });
        numbers.into()
    }

    /// A number, or 0 if there is no such file.
    fn number_or_zero(self, path: &str) -> Result<u64, String> {
        self.optional(path)?.map_or(Ok(0), |text| self.parse(path, &text))
    }

    fn parse<T: FromStr>(self, path: &str, text: &str) -> Result<T, String> {
        text.parse().map_err(|_| format!("{}: {text:?}", self.0.join(path).display()))
    }

    /// Reads a file as [`file()`] does.
    fn file(self, path: impl AsRef<Path>) -> Result<String, String> {
        file(self.0.join(path))
    }

    /// Reads a file as [`file()`] does; none if there is no such file.
    fn optional(self, path: impl AsRef<Path>) -> Result<Option<String>, String> {
        let path = self.0.join(path);
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => trimmed(&path, text).map(Some),
        }
    }
}

/// A file without the whitespace around it, or why it cannot be read.
fn file(path: impl AsRef<Path>) -> Result<String, String> {
    trimmed(path.as_ref(), fs::read_to_string(&path))
}

fn trimmed(path: &Path, text: io::Result<String>) -> Result<String, String> {
    text.map(|text| text.trim().to_owned()).map_err(|error| format!("{}: {error}", path.display()))
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
    use tempfile::TempDir;

    use super::*;

    /// A directory with these files.
    pub(super) fn tree(files: &[(&str, &str)]) -> TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().expect("it has a folder")).expect("its folder");
            fs::write(path, text).expect("the file");
        }
        directory
    }

    /// The facts of a host that has these files.
    fn host_with(files: &[(&str, &str)]) -> HostFacts {
        host(Root(tree(files).path()))
    }

    #[test]
    fn settings_are_read_as_the_kernel_writes_them() {
        let facts = host_with(&[
            ("sys/devices/system/cpu/online", "0-2,4\n"),
            ("sys/devices/system/node/online", "0-1\n"),
            ("sys/devices/system/cpu/smt/active", "1\n"),
            ("proc/sys/kernel/numa_balancing", "2\n"),
            ("proc/sys/net/ipv4/tcp_mtu_probing", "1\n"),
            ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
            ("proc/sys/net/core/default_qdisc", "fq_codel\n"),
            ("proc/sys/net/core/netdev_budget_usecs", "8000\n"),
            ("proc/sys/net/core/wmem_max", "212992\n"),
            ("proc/sys/vm/overcommit_memory", "2\n"),
            ("etc/tuned/active_profile", "network-throughput\n"),
        ]);
        assert_eq!((facts.cpus, facts.numa_nodes), (Fact::Known(4), Fact::Known(2)));
        assert_eq!((facts.smt, facts.numa_balancing), (Fact::Known(true), Fact::Known(2)));
        assert_eq!(facts.mtu_probing, Fact::Known(1));
        assert_eq!(facts.tcp_wmem, Fact::Known([4096, 16_384, 4_194_304]));
        assert_eq!(facts.default_qdisc, Fact::Known("fq_codel".into()));
        let alone = [facts.netdev_budget_usecs, facts.wmem_max, facts.overcommit_memory];
        assert_eq!(alone, [8000, 212_992, 2].map(Fact::Known));
        assert_eq!(facts.tuned_profile, Fact::Known(Some("network-throughput".into())));
        let off = host_with(&[("sys/devices/system/cpu/smt/active", "0\n"), ("etc/tuned/active_profile", "\n")]);
        assert_eq!((off.smt, off.tuned_profile), (Fact::Known(false), Fact::Known(None)));
    }

    #[test]
    fn a_file_that_a_kernel_may_lack_has_its_meaning_and_any_other_is_not_known() {
        let facts = host_with(&[]);
        assert_eq!((facts.smt, facts.numa_balancing), (Fact::Known(false), Fact::Known(0)));
        assert_eq!((facts.numa_nodes, facts.tuned_profile), (Fact::Known(1), Fact::Known(None)));
        for (fact, name) in [
            (facts.mtu_probing.get().map(drop), "proc/sys/net/ipv4/tcp_mtu_probing"),
            (facts.tcp_wmem.get().map(drop), "proc/sys/net/ipv4/tcp_wmem"),
            (facts.default_qdisc.get().map(drop), "proc/sys/net/core/default_qdisc"),
            (facts.governors.get().map(drop), "sys/devices/system/cpu/online"),
        ] {
            let reason = fact.expect_err(name);
            assert!(reason.contains(&format!("/{name}: No such file")), "{reason}");
        }
    }

    #[test]
    fn facts_whose_files_hold_no_valid_numbers_are_unknown_and_quote_the_text() {
        for text in ["", "on", "-1", "1 2"] {
            let facts = host_with(&[
                ("sys/devices/system/cpu/smt/active", text),
                ("proc/sys/kernel/numa_balancing", text),
                ("proc/sys/net/ipv4/tcp_mtu_probing", text),
            ]);
            for (fact, name) in [
                (facts.smt.get().map(drop), "smt/active"),
                (facts.numa_balancing.get().map(drop), "kernel/numa_balancing"),
                (facts.mtu_probing.get().map(drop), "ipv4/tcp_mtu_probing"),
            ] {
                let reason = fact.expect_err(name);
                assert!(reason.ends_with(&format!("{name}: {text:?}")), "{reason}");
            }
        }
        for text in ["", "4096 16384", "4096 16384 4194304 1", "4096 x 16384 4194304", "4096 -1 4194304"] {
            let facts = host_with(&[("proc/sys/net/ipv4/tcp_wmem", text)]);
            let reason = facts.tcp_wmem.get().expect_err(text);
            assert!(reason.ends_with(&format!("/tcp_wmem: {text:?} is not three numbers")), "{reason}");
        }
        let nodes = host_with(&[("sys/devices/system/node/online", "all")]).numa_nodes;
        assert_eq!(nodes, Fact::Unknown("\"all\" is not a list of CPUs".into()));
    }

    #[test]
    fn governors_are_those_of_the_cpus_that_are_online() {
        let online = ("sys/devices/system/cpu/online", "0-3\n");
        let mut files = vec![
            online,
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference", "performance\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/energy_performance_preference", "balance_performance\n"),
            ("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "schedutil\n"),
            // Offline.
            ("sys/devices/system/cpu/cpu4/cpufreq/scaling_governor", "ondemand\n"),
        ];
        let governors = |list: &[(&str, u64)]| {
            Fact::Known(list.iter().map(|(name, cpus)| ((*name).to_owned(), *cpus)).collect::<BTreeMap<_, _>>())
        };
        let one_each = governors(&[("performance", 1), ("powersave", 1), ("schedutil", 1)]);
        assert_eq!(host_with(&files).governors, one_each);
        // A kernel that sets no frequencies.
        assert_eq!(host_with(&[online]).governors, governors(&[]));
        // A file that is there and cannot be read: here, it is a folder.
        files.push(("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor/file", ""));
        let unreadable = host_with(&files).governors;
        let reason = unreadable.get().expect_err("a governor is not known");
        assert!(reason.contains("cpu3/cpufreq/scaling_governor: Is a directory"), "{reason}");
        let malformed = host_with(&[("sys/devices/system/cpu/online", "0-x")]).governors;
        assert_eq!(malformed, Fact::Unknown("\"0-x\" is not a list of CPUs".into()));
    }

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
