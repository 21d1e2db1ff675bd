//! The header of a trace.

use std::time::{Duration, UNIX_EPOCH};

use humantime::{Rfc3339Timestamp, format_rfc3339_nanos};
use serde::{Deserialize, Serialize};

/// Name of the format: the value of the header's key `format`.
pub const FORMAT: &str = "tcpmon-trace";

/// Version of the format. It is raised when a key is renamed, removed or given another meaning; a new key does not
/// raise it.
pub const FORMAT_VERSION: u32 = 1;

/// Two clocks, read at the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`, ns: the clock of all records.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, ns since 1970-01-01 UTC.
    pub realtime_ns: u64,
}

impl Clocks {
    /// Converts the time of a record to wall time (`CLOCK_REALTIME`, ns), assuming that the wall clock has not been set
    /// since these clocks were read. Results that do not fit into 64 bits are limited to the smallest or largest value.
    pub fn wall_ns(&self, monotonic_ns: u64) -> u64 {
        let wall = i128::from(self.realtime_ns) + i128::from(monotonic_ns) - i128::from(self.monotonic_ns);
        u64::try_from(wall.max(0)).unwrap_or(u64::MAX)
    }

    /// The wall time in UTC as in RFC 3339, with nine digits after the second.
    pub(crate) fn utc(&self) -> Rfc3339Timestamp {
        format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(self.realtime_ns))
    }
}

/// What was traced. An empty list is no restriction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Only these processes (thread group ids).
    pub pids: Vec<u32>,
    /// Only processes with these names.
    pub comms: Vec<String>,
    /// Only sockets with one of these ports, on either side.
    pub ports: Vec<u16>,
    /// Only threads in these control groups or below them (paths below `/sys/fs/cgroup`).
    pub cgroups: Vec<String>,
    /// Everything was traced (`--all`).
    pub all: bool,
    /// The command that the trace started.
    #[serde(default)]
    pub command: Vec<String>,
    /// Processes that the traced ones started were traced, too.
    #[serde(default)]
    pub follow: bool,
    /// Only totals were traced: there are no timeslices.
    #[serde(default)]
    pub summary_only: bool,
}

/// The first line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceHeader {
    /// Version of the tcpmon that wrote the trace.
    pub tcpmon_version: String,
    /// `uname -r` of the host.
    pub kernel_release: String,
    /// Name of the host.
    pub hostname: String,
    /// The kernel's random id of the boot; empty if it is not known.
    pub boot_id: String,
    /// CPUs of the host that were online at the start; 0 if it is not known.
    pub cpus: u32,
    /// Both clocks at the start of the trace: they relate the time of every record to the wall clock.
    pub start: Clocks,
    /// What was traced.
    pub filter: Filter,
    /// What made a flight recorder write this trace; empty for other traces.
    pub trigger: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_records_wall_time_is_its_distance_from_the_anchors() {
        let start = Clocks { monotonic_ns: 5_000, realtime_ns: 1_000_000 };
        assert_eq!(start.wall_ns(5_000), 1_000_000);
        assert_eq!(start.wall_ns(7_500), 1_002_500);
        assert_eq!(start.wall_ns(4_000), 999_000);
        let late = Clocks { monotonic_ns: u64::MAX, realtime_ns: 0 };
        assert_eq!(late.wall_ns(0), 0);
        let early = Clocks { monotonic_ns: 0, realtime_ns: u64::MAX };
        assert_eq!(early.wall_ns(u64::MAX), u64::MAX);
    }

    #[test]
    fn every_wall_time_has_a_readable_form() {
        let utc = |realtime_ns| Clocks { monotonic_ns: 0, realtime_ns }.utc().to_string();
        assert_eq!(utc(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(utc(951_827_696_000_000_005), "2000-02-29T12:34:56.000000005Z");
        assert_eq!(utc(u64::MAX), "2554-07-21T23:34:33.709551615Z");
    }
}
