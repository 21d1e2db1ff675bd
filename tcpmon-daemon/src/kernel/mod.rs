//! The kernel side as seen from user space: the only module that uses aya.

mod attach;
mod bpf;
mod cookies;
mod drops;
mod filter;
pub mod floor;
mod iterator;
mod loader;
mod look;
mod mapped;
mod owners;
mod pass;
mod patch;
#[cfg(test)]
mod promises;
mod reader;
mod store;
mod support;

// Passes copy what the programs may be writing at the same time: see `tcpmon_common::copy` for what that requires of
// a CPU.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("tcpmon has the barriers that its passes need on x86-64 and on arm64: build it for one of these");

use std::{fs, io};

use tcpmon_btf::plan::PROBES;

pub use bpf::{GROWING_COMMANDS, READING_COMMANDS};
pub use filter::TraceFilter;
pub use loader::{Kernel, Options, prerequisites};
pub use pass::{Ended, Life, Pass, Show};
pub use reader::{KernelReadError, Raw, RawReader};
pub use support::{
    CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYSLOG, CannotRun, Prerequisites, decide,
};

/// Whether this kernel requires `CAP_BPF` even to read maps that are open: before Linux 6.0, where
/// `kernel.unprivileged_bpf_disabled` forbids every call of bpf(2).
pub fn maps_need_capability() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    release.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major < 6)
}

/// Where the running kernel publishes its types.
pub const VMLINUX_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The eBPF programs, built by `build.rs`; empty if the tools for that were missing.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tcpmon.bpf.o"));

/// What the kernel counts about one loaded program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramStats {
    /// Number of runs, if `kernel.bpf_stats_enabled` is on.
    pub runs: u64,
    /// Time spent in the program, ns, if `kernel.bpf_stats_enabled` is on.
    pub run_ns: u64,
    /// Runs skipped because the program was already running on that CPU.
    pub recursion_misses: u64,
    /// Instructions that the verifier walked when the program was loaded.
    pub verified_instructions: u64,
}

/// Reads `/proc/self/fdinfo/FD` of a program.
fn program_stats(fd: i32) -> io::Result<ProgramStats> {
    Ok(parse_fdinfo(&fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?))
}

/// Parses lines of the form `key:<tab>value`; keys that this kernel does not write stay 0.
pub(crate) fn parse_fdinfo(text: &str) -> ProgramStats {
    let value = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')?.trim().parse().ok()).unwrap_or(0)
    };
    ProgramStats {
        runs: value("run_cnt"),
        run_ns: value("run_time_ns"),
        recursion_misses: value("recursion_misses"),
        verified_instructions: value("verified_insns"),
    }
}

/// Events lost because the program was already running on that CPU, by program.
///
/// Without preemption, an event can find a program running only if it comes in an interrupt, and no softirq interrupts
/// another. So of the two programs on a tracepoint at most one is already running, and nothing is lost. On the
/// tracepoints in `both_preemptible`, both can be preempted on one CPU at the same time. There, the number of events
/// that both missed is at most the smaller of their two counts.
fn skipped(programs: &[(String, ProgramStats)], both_preemptible: &[&str]) -> Vec<(String, u64)> {
    let is_second = |name: &str| PROBES.iter().any(|probe| probe.second_program == Some(name));
    let second_of = |name: &str| PROBES.iter().find(|probe| probe.name == name)?.second_program;
    let misses = |name: &str| programs.iter().find(|(of, _)| of == name).map(|(_, stats)| stats.recursion_misses);
    let alone = programs.iter().filter(|(name, _)| !is_second(name));
    let lost = alone.map(|(name, stats)| match second_of(name).and_then(misses) {
        None => (name.clone(), stats.recursion_misses),
        Some(by_second) if both_preemptible.contains(&name.as_str()) => {
            (name.clone(), stats.recursion_misses.min(by_second))
        }
        Some(_) => (name.clone(), 0),
    });
    lost.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_statistics_are_read_from_fdinfo() {
        let text =
            "pos:\t0\nprog_type:\t26\nrun_time_ns:\t120\nrun_cnt:\t2\nrecursion_misses:\t7\nverified_insns:\t345\n";
        let expected = ProgramStats { runs: 2, run_ns: 120, recursion_misses: 7, verified_instructions: 345 };
        assert_eq!(parse_fdinfo(text), expected);
        assert_eq!(parse_fdinfo("nonsense"), ProgramStats::default());
    }

    #[test]
    fn events_that_the_second_program_has_handled_do_not_count_as_lost() {
        let program = |name: &str, recursion_misses| {
            (name.to_owned(), ProgramStats { recursion_misses, ..ProgramStats::default() })
        };
        let programs = [
            program("inet_sock_set_state", 176),
            program("inet_sock_set_state_again", 1),
            program("seed", 3),
            program("tcp_destroy_sock", 2),
            program("tcp_destroy_sock_again", 5),
            program("tcp_probe", 7),
        ];
        let expected = |begin, end| {
            [("inet_sock_set_state", begin), ("seed", 3), ("tcp_destroy_sock", end), ("tcp_probe", 7)]
                .map(|(name, count)| (name.to_owned(), count))
        };
        assert_eq!(skipped(&programs, &[]), expected(0, 0));
        assert_eq!(skipped(&programs, &["inet_sock_set_state", "tcp_destroy_sock"]), expected(1, 2));
        assert_eq!(skipped(&programs, &["tcp_destroy_sock"]), expected(0, 2));
    }
}
