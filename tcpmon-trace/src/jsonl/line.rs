//! The lines of the header and the trailer as they are written: the field names here are the keys of the format, in its
//! order. `fields` has the other lines.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    header::{Clocks, FORMAT, FORMAT_VERSION, Filter, TraceHeader},
    trailer::{EndReason, Trailer},
};

/// Value of `type` of the first line.
pub const HEADER: &str = "header";
/// Value of `type` of a record.
pub const TIMESLICE: &str = "timeslice";
/// Value of `type` of a socket's totals.
pub const SOCKET: &str = "socket";
/// Value of `type` of a thread's totals.
pub const THREAD: &str = "thread";
/// Value of `type` of the last line.
pub const TRAILER: &str = "trailer";

/// The key `type` of a line.
#[derive(Deserialize)]
pub struct LineType {
    #[serde(rename = "type")]
    pub kind: String,
}

/// What the first line has in every version of the format.
#[derive(Deserialize)]
pub struct Version {
    pub format: String,
    pub format_version: u32,
    pub tcpmon_version: String,
}

/// The first line.
#[derive(Serialize, Deserialize)]
pub struct HeaderLine {
    #[serde(rename = "type", skip_deserializing)]
    kind: &'static str,
    #[serde(skip_deserializing)]
    format: &'static str,
    #[serde(skip_deserializing)]
    format_version: u32,
    tcpmon_version: String,
    kernel_release: String,
    hostname: String,
    #[serde(default)]
    boot_id: String,
    #[serde(default)]
    cpus: u32,
    #[serde(skip_deserializing)]
    start_time: String,
    start_monotonic_ns: u64,
    start_realtime_ns: u64,
    filter: Filter,
    #[serde(default)]
    trigger: String,
}

impl From<&TraceHeader> for HeaderLine {
    fn from(header: &TraceHeader) -> Self {
        Self {
            kind: HEADER,
            format: FORMAT,
            format_version: FORMAT_VERSION,
            tcpmon_version: header.tcpmon_version.clone(),
            kernel_release: header.kernel_release.clone(),
            hostname: header.hostname.clone(),
            boot_id: header.boot_id.clone(),
            cpus: header.cpus,
            start_time: header.start.utc().to_string(),
            start_monotonic_ns: header.start.monotonic_ns,
            start_realtime_ns: header.start.realtime_ns,
            filter: header.filter.clone(),
            trigger: header.trigger.clone(),
        }
    }
}

impl From<HeaderLine> for TraceHeader {
    fn from(line: HeaderLine) -> Self {
        Self {
            tcpmon_version: line.tcpmon_version,
            kernel_release: line.kernel_release,
            hostname: line.hostname,
            boot_id: line.boot_id,
            cpus: line.cpus,
            start: Clocks { monotonic_ns: line.start_monotonic_ns, realtime_ns: line.start_realtime_ns },
            filter: line.filter,
            trigger: line.trigger,
        }
    }
}

/// The last line.
#[derive(Serialize, Deserialize)]
pub struct TrailerLine {
    #[serde(rename = "type", skip_deserializing)]
    kind: &'static str,
    records: u64,
    lost: BTreeMap<String, u64>,
    #[serde(skip_deserializing)]
    end_time: String,
    end_monotonic_ns: u64,
    end_realtime_ns: u64,
    reason: EndReason,
    complete: bool,
}

impl From<&Trailer> for TrailerLine {
    fn from(trailer: &Trailer) -> Self {
        Self {
            kind: TRAILER,
            records: trailer.records,
            lost: trailer.lost.clone(),
            end_time: trailer.end.utc().to_string(),
            end_monotonic_ns: trailer.end.monotonic_ns,
            end_realtime_ns: trailer.end.realtime_ns,
            reason: trailer.reason,
            complete: trailer.complete,
        }
    }
}

impl From<TrailerLine> for Trailer {
    fn from(line: TrailerLine) -> Self {
        Self {
            records: line.records,
            lost: line.lost,
            end: Clocks { monotonic_ns: line.end_monotonic_ns, realtime_ns: line.end_realtime_ns },
            reason: line.reason,
            complete: line.complete,
        }
    }
}
