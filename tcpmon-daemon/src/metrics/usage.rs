//! The resources that tcpmon itself uses, as `/proc` shows them.

use std::{fs, time::Duration};

use rustix::{
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};

use crate::process_stat::ProcessStat;

/// The resources that the process uses now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) cpu: Duration,
    pub(super) resident_bytes: u64,
    pub(super) virtual_bytes: u64,
    pub(super) threads: u64,
    pub(super) open_fds: u64,
    /// `None` if there is no limit.
    pub(super) max_fds: Option<u64>,
}

impl Usage {
    /// `None` if `/proc` cannot be read.
    pub(super) fn read() -> Option<Self> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        // One of the descriptors is that of the directory that is being read.
        let open_fds = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Some(Self {
            cpu: Duration::try_from(cpu).ok()?,
            resident_bytes: status_value(&status, "VmRSS")? * 1024,
            virtual_bytes: status_value(&status, "VmSize")? * 1024,
            threads: status_value(&status, "Threads")?,
            open_fds: open_fds as u64,
            max_fds: getrlimit(Resource::Nofile).current,
        })
    }
}

/// When the process started, since 1970.
pub(super) fn started() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let host = fs::read_to_string("/proc/stat").ok()?;
    start_time(&stat, &host, rustix::param::clock_ticks_per_second())
}

/// A number from `/proc/PID/status`, in the unit that the file uses.
fn status_value(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

fn start_time(stat: &str, host: &str, ticks_per_second: u64) -> Option<Duration> {
    let ticks = ProcessStat::parse(stat)?.start_ticks()?;
    let boot: u64 = host.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(Duration::from_secs(boot) + Duration::from_millis(ticks * 1000 / ticks_per_second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn values_come_from_their_own_lines() {
        let status = "Name:\tVmRSS\nVmPeak:\t  999 kB\nVmSize:\t  1234 kB\nVmRSS:\t   56 kB\nThreads:\t3\n";
        assert_eq!(status_value(status, "VmSize"), Some(1234));
        assert_eq!(status_value(status, "VmRSS"), Some(56));
        assert_eq!(status_value(status, "Threads"), Some(3));
        assert_eq!(status_value(status, "Vm"), None);
    }

    #[test]
    fn the_start_is_found_behind_a_strange_name() {
        let stat = "7 (a) 1 (b)) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 0 0 20 0 2 0 4250 1000 20 18446744073709551615";
        let host = "cpu  1 2 3\nbtime 1700000000\nprocesses 9\n";
        assert_eq!(start_time(stat, host, 100), Some(Duration::from_millis(1_700_000_042_500)));
        assert_eq!(start_time("7 (a", host, 100), None);
        assert_eq!(start_time(stat, "cpu 1\n", 100), None);
    }

    #[test]
    fn this_process_is_plausible() {
        let usage = Usage::read().expect("/proc");
        assert!(usage.resident_bytes > 0 && usage.resident_bytes <= usage.virtual_bytes);
        assert!(usage.threads >= 1 && usage.open_fds >= 3);
        let started = SystemTime::UNIX_EPOCH + started().expect("/proc");
        let age = SystemTime::now().duration_since(started + Duration::from_secs(1)).unwrap_or_default();
        assert!(age < Duration::from_secs(3600), "{age:?}");
    }
}
