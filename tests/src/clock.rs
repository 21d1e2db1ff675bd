//! The clock that tcpmon's eBPF programs use, too.

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC` in nanoseconds: what `bpf_ktime_get_ns` returns.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every kernel has CLOCK_MONOTONIC");
    let seconds = u64::try_from(now.tv_sec()).expect("the machine was started in the past");
    let nanoseconds = u64::try_from(now.tv_nsec()).expect("a timespec's nanoseconds are 0..1e9");
    seconds * 1_000_000_000 + nanoseconds
}
