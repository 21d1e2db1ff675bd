//! What the kernel reports in /proc about tasks and about the network stack as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind::NotFound;
use std::time::Duration;

use nix::errno::Errno;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::truth::State;
use crate::{Namespace, must};

/// How a thread has spent its life, from `schedstat` (all 0 if the kernel lacks `CONFIG_SCHED_INFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskTimes {
    /// Time on a CPU.
    pub running: Duration,
    /// Time in which it was runnable and waited for a CPU.
    pub waiting: Duration,
    /// Number of times that it was given a CPU.
    pub timeslices: u64,
}

/// A thread's context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Switches because it blocked.
    pub voluntary: u64,
    /// Switches because it was preempted.
    pub involuntary: u64,
}

/// A CPU's line of `/proc/net/softnet_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Softnet {
    /// Number of the CPU.
    pub cpu: u64,
    /// Packets processed.
    pub processed: u64,
    /// Packets dropped because the backlog was full.
    pub dropped: u64,
    /// Times that the softirq ran out of budget or time.
    pub time_squeezed: u64,
    /// Times that another CPU handed it packets (RPS).
    pub received_rps: u64,
}

/// Times of one thread of a process.
pub fn task_times(pid: u32, tid: u32) -> TaskTimes {
    let text = read(&format!("/proc/{pid}/task/{tid}/schedstat"));
    let mut numbers = text.split_ascii_whitespace().map(number);
    let mut next = || numbers.next().expect("schedstat has three numbers");
    TaskTimes { running: Duration::from_nanos(next()), waiting: Duration::from_nanos(next()), timeslices: next() }
}

/// Context switches of one thread of a process.
pub fn switches(pid: u32, tid: u32) -> Switches {
    let status = read(&format!("/proc/{pid}/task/{tid}/status"));
    Switches {
        voluntary: status_field(&status, "voluntary_ctxt_switches:"),
        involuntary: status_field(&status, "nonvoluntary_ctxt_switches:"),
    }
}

/// Whether every thread of a process sleeps or has ended, and has been switched away from, so that none runs or waits
/// for a CPU. `status` cannot tell, because it already names the state before the switch. For `syscall`, the kernel
/// checks whether the thread is off the run queue.
pub fn is_asleep(pid: u32) -> bool {
    let directory = format!("/proc/{pid}/task");
    let mut threads = must(fs::read_dir(&directory), format!("reading {directory}"));
    threads.all(|thread| {
        let path = must(thread, "reading a thread").path().join("syscall");
        match fs::read_to_string(&path) {
            Ok(call) => call.trim_end() != "running",
            Err(error) if error.kind() == NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32) => true,
            Err(error) => panic!("{}: {error}", path.display()),
        }
    })
}

/// Whether the kernel can preempt a program on a tracepoint: newer kernels guard tracepoints with a lock of this type,
/// and threads have this field if RCU's lock, which the kernel takes for each program, does not disable preemption.
pub fn tracepoints_are_preemptible() -> bool {
    let types = must(fs::read("/sys/kernel/btf/vmlinux"), "reading the kernel's types");
    let has = |name: &[u8]| types.windows(name.len()).any(|bytes| bytes == name);
    has(b"\0class_srcu_fast_notrace_t\0") && has(b"\0rcu_read_lock_nesting\0")
}

/// Resident memory of a process in bytes.
pub fn rss_bytes(pid: u32) -> u64 {
    status_field(&read(&format!("/proc/{pid}/status")), "VmRSS:") * 1024
}

/// Resident memory of a process that is its own: without the maps of eBPF that it has mapped, in bytes.
pub fn own_rss_bytes(pid: u32) -> u64 {
    rss_bytes(pid).saturating_sub(bpf_maps_bytes(pid))
}

/// Peak of [`own_rss_bytes`], for maps that have never shrunk.
pub fn peak_own_rss_bytes(pid: u32) -> u64 {
    (status_field(&read(&format!("/proc/{pid}/status")), "VmHWM:") * 1024).saturating_sub(bpf_maps_bytes(pid))
}

/// Resident memory of the maps of eBPF that a process has mapped, in bytes.
fn bpf_maps_bytes(pid: u32) -> u64 {
    let smaps = read(&format!("/proc/{pid}/smaps"));
    let (mut is_map, mut sum) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            // The first line of a mapping has its addresses; all others have a name.
            Some(name) if !name.ends_with(':') => is_map = line.contains("bpf-map"),
            Some("Rss:") if is_map => sum += words.next().and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) * 1024,
            _ => {}
        }
    }
    sum
}

/// CPU time of a living process in user space and in the kernel, all its threads together.
pub fn cpu_time(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()));
    must(clock.and_then(clock_gettime), format!("the CPU clock of process {pid}")).into()
}

/// The namespace's TCP counters by name, `Tcp` and `TcpExt` together: `InSegs`, `TCPRcvCollapsed`, ...
pub fn tcp_counters(namespace: &Namespace) -> BTreeMap<String, u64> {
    namespace.run(|| {
        let mut counters = counter_table(&read("/proc/thread-self/net/snmp"), "Tcp:");
        counters.extend(counter_table(&read("/proc/thread-self/net/netstat"), "TcpExt:"));
        counters
    })
}

/// One table of the namespace's `netstat` by its title, `TcpExt:` or `IpExt:`.
pub fn netstat(namespace: &Namespace, title: &str) -> BTreeMap<String, u64> {
    namespace.run(|| counter_table(&read("/proc/thread-self/net/netstat"), title))
}

/// The send queues, in bytes, of the namespace's IPv4 sockets in this state, where not empty (`tx_queue` of `net/tcp`).
pub fn send_queues(namespace: &Namespace, state: State) -> Vec<u64> {
    let text = namespace.run(|| read("/proc/thread-self/net/tcp"));
    text.lines().skip(1).filter_map(|line| send_queue(line, state)).filter(|bytes| *bytes > 0).collect()
}

/// Number of context switches of all CPUs since boot.
pub fn context_switches() -> u64 {
    status_field(&read("/proc/stat"), "ctxt")
}

/// Number of threads on the host, those of the kernel included.
pub fn threads() -> u64 {
    let text = read("/proc/loadavg");
    let all = text.split_ascii_whitespace().nth(3).and_then(|running| running.split_once('/'));
    number(all.expect("loadavg has the threads that run and all threads").1)
}

/// Time that the hypervisor took from this machine's CPUs while they had work, of all CPUs since boot.
pub fn stolen_time() -> Duration {
    let text = read("/proc/stat");
    let ticks = text.split_ascii_whitespace().nth(8).and_then(|ticks| ticks.parse::<u64>().ok());
    // The kernel shows every time here in hundredths of a second (`USER_HZ`).
    Duration::from_millis(10 * ticks.unwrap_or_default())
}

/// The softnet line of each CPU.
pub fn softnet() -> Vec<Softnet> {
    read("/proc/net/softnet_stat").lines().zip(0..).map(|(line, row)| softnet_line(line, row)).collect()
}

fn softnet_line(line: &str, row: u64) -> Softnet {
    let hex = |field: &str| must(u64::from_str_radix(field, 16), format!("softnet field {field:?}"));
    let fields: Vec<u64> = line.split_ascii_whitespace().map(hex).collect();
    let at = |index: usize| fields.get(index).copied();
    Softnet {
        cpu: at(12).unwrap_or(row), // the column with the CPU number was added in Linux 5.10
        processed: at(0).unwrap_or(0),
        dropped: at(1).unwrap_or(0),
        time_squeezed: at(2).unwrap_or(0),
        received_rps: at(9).unwrap_or(0),
    }
}

/// The columns are: number, local and remote address, state, `tx_queue:rx_queue`, all hexadecimal.
fn send_queue(line: &str, state: State) -> Option<u64> {
    let mut words = line.split_ascii_whitespace().skip(3);
    let found = u8::from_str_radix(words.next()?, 16).ok()?;
    let (send, _) = words.next()?.split_once(':')?;
    (found == state as u8).then(|| must(u64::from_str_radix(send, 16), format!("reading tx_queue {send:?}")))
}

/// The counters in the pair of lines (names, then values) that start with `prefix`.
fn counter_table(text: &str, prefix: &str) -> BTreeMap<String, u64> {
    let mut rows = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let names = rows.next().unwrap_or_default().split_ascii_whitespace();
    let values = rows.next().unwrap_or_default().split_ascii_whitespace();
    let counters = names.zip(values).filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
    counters.collect() // `Tcp: MaxConn` is -1, so it is not a counter
}

fn status_field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in a task's status"));
    line.split_ascii_whitespace().next().map(number).expect("a status field has a value")
}

fn number(text: &str) -> u64 {
    must(text.parse(), format!("reading {text:?} as a number"))
}

fn read(path: &str) -> String {
    must(fs::read_to_string(path), format!("reading {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_pair_names_with_values() {
        let text = "Ip: A\nIp: 1\nTcpExt: SyncookiesSent PruneCalled\nTcpExt: 3 18446744073709551615\n";
        let counters = counter_table(text, "TcpExt:");
        assert_eq!(counters.len(), 2);
        assert_eq!(counters["PruneCalled"], u64::MAX);
    }

    #[test]
    fn a_send_queue_is_hexadecimal_and_of_its_state() {
        let line = "   1: 01014D0A:9C40 02014D0A:1F90 04 000186A1:00000000 01:00000014 00000001 0 0 0 2";
        assert_eq!(send_queue(line, State::FinWait1), Some(100_001));
        assert_eq!(send_queue(line, State::Established), None);
    }

    #[test]
    fn softnet_is_hexadecimal_and_names_its_cpu() {
        let line = "0000001f 00000002 00000a00 0 0 0 0 0 0 7 0 00000000 00000005 00000000 00000000";
        let expected = Softnet { cpu: 5, processed: 31, dropped: 2, time_squeezed: 2560, received_rps: 7 };
        assert_eq!(softnet_line(line, 0), expected);
    }
}
