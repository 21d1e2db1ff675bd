//! The clock that the programs read, which is the same for the whole host.

use std::{fs, sync::LazyLock};

use rustix::time::{ClockId, clock_gettime};

/// How much `CLOCK_MONOTONIC` of this process is ahead of the programs', ns: a time namespace shifts it. Read by the
/// first call, which comes before the sandbox.
static OFFSET_NS: LazyLock<i64> =
    LazyLock::new(|| offset_ns(&fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default()));

/// The time, as the programs read it: `CLOCK_MONOTONIC` of the host, ns.
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec * 1_000_000_000 + time.tv_nsec).saturating_sub(*OFFSET_NS).max(0).cast_unsigned()
}

/// The offset of `CLOCK_MONOTONIC` in the text of `timens_offsets`: a line `monotonic SECONDS NANOSECONDS`. Zero where
/// the kernel has no such file.
fn offset_ns(text: &str) -> i64 {
    let numbers = text.lines().find_map(|line| line.trim_start().strip_prefix("monotonic")).unwrap_or_default();
    let mut numbers = numbers.split_whitespace().map(|number| number.parse::<i64>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    next().saturating_mul(1_000_000_000).saturating_add(next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_that_of_the_line_of_the_clock() {
        assert_eq!(offset_ns("monotonic       86400         5\nboottime         77         9\n"), 86_400_000_000_005);
        assert_eq!(offset_ns("monotonic          -1 500000000\n"), -500_000_000);
        assert_eq!([offset_ns(""), offset_ns("boottime 7 9"), offset_ns("monotonic x")], [0; 3]);
    }
}
