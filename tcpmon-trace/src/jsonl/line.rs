//! The lines as they are written: the field names here are the keys of the format, in its order.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};

use crate::{
    header::{Clocks, FORMAT, FORMAT_VERSION, Filter, TraceHeader},
    record::{AddressFamily, Comm, Limited, Queue, TimesliceEnd, TimesliceRecord, Waited},
    total::{SocketTotal, ThreadTotal},
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

/// A record.
#[derive(Serialize, Deserialize)]
pub struct TimesliceLine {
    #[serde(rename = "type", skip_deserializing)]
    kind: &'static str,
    activated_ns: u64,
    deactivated_ns: u64,
    cpu: u32,
    tid: u32,
    tgid: u32,
    comm: Comm,
    cookie: Cookie,
    family: AddressFamily,
    local_address: IpAddr,
    local_port: u16,
    remote_address: IpAddr,
    remote_port: u16,
    netns: u32,
    end: TimesliceEnd,
    partial: bool,
    handed_over: bool,
    closed: bool,
    sleep_ns: u64,
    wait_ns: u64,
    on_cpu_ns: u64,
    arrived_off_cpu_bytes: u64,
    arrived_on_cpu_bytes: u64,
    read_bytes: u64,
    activation_queued_bytes: u32,
    activation_rmem_bytes: u32,
    activation_rcvbuf_bytes: u32,
    activation_backlog_bytes: u32,
    activation_window_bytes: u32,
    deactivation_queued_bytes: u32,
    deactivation_rmem_bytes: u32,
    deactivation_rcvbuf_bytes: u32,
    deactivation_backlog_bytes: u32,
    deactivation_window_bytes: u32,
    rcv_rtt_us: u32,
    rcv_ssthresh_bytes: u32,
    window_clamp_bytes: u32,
    // Not in the traces of the first version that had the format.
    #[serde(default)]
    limited_upstream_ns: u64,
    #[serde(default)]
    limited_application_ns: u64,
    #[serde(default)]
    limited_scheduler_ns: u64,
    #[serde(default)]
    limited_window_ns: u64,
    #[serde(default)]
    limited_memory_ns: u64,
    #[serde(default)]
    waited_application_byte_us: u64,
    #[serde(default)]
    waited_scheduler_byte_us: u64,
    #[serde(default)]
    preempted_by_tid: u32,
    #[serde(default)]
    preempted_by: Comm,
}

impl From<&TimesliceRecord> for TimesliceLine {
    fn from(record: &TimesliceRecord) -> Self {
        Self {
            kind: TIMESLICE,
            activated_ns: record.activated_ns,
            deactivated_ns: record.deactivated_ns,
            cpu: record.cpu,
            tid: record.tid,
            tgid: record.tgid,
            comm: record.comm,
            cookie: Cookie(record.cookie),
            family: record.family,
            local_address: record.local.ip(),
            local_port: record.local.port(),
            remote_address: record.remote.ip(),
            remote_port: record.remote.port(),
            netns: record.netns,
            end: record.end,
            partial: record.partial,
            handed_over: record.handed_over,
            closed: record.closed,
            sleep_ns: record.sleep_ns,
            wait_ns: record.wait_ns,
            on_cpu_ns: record.on_cpu_ns,
            arrived_off_cpu_bytes: record.arrived_off_cpu_bytes,
            arrived_on_cpu_bytes: record.arrived_on_cpu_bytes,
            read_bytes: record.read_bytes,
            activation_queued_bytes: record.activation.queued_bytes,
            activation_rmem_bytes: record.activation.rmem_bytes,
            activation_rcvbuf_bytes: record.activation.rcvbuf_bytes,
            activation_backlog_bytes: record.activation.backlog_bytes,
            activation_window_bytes: record.activation.window_bytes,
            deactivation_queued_bytes: record.deactivation.queued_bytes,
            deactivation_rmem_bytes: record.deactivation.rmem_bytes,
            deactivation_rcvbuf_bytes: record.deactivation.rcvbuf_bytes,
            deactivation_backlog_bytes: record.deactivation.backlog_bytes,
            deactivation_window_bytes: record.deactivation.window_bytes,
            rcv_rtt_us: record.rcv_rtt_us,
            rcv_ssthresh_bytes: record.rcv_ssthresh_bytes,
            window_clamp_bytes: record.window_clamp_bytes,
            limited_upstream_ns: record.limited.upstream_ns,
            limited_application_ns: record.limited.application_ns,
            limited_scheduler_ns: record.limited.scheduler_ns,
            limited_window_ns: record.limited.window_ns,
            limited_memory_ns: record.limited.memory_ns,
            waited_application_byte_us: record.waited.application_byte_us,
            waited_scheduler_byte_us: record.waited.scheduler_byte_us,
            preempted_by_tid: record.preempted_by_tid,
            preempted_by: record.preempted_by,
        }
    }
}

impl TryFrom<TimesliceLine> for TimesliceRecord {
    type Error = &'static str;

    fn try_from(line: TimesliceLine) -> Result<Self, &'static str> {
        let both_v4 = line.local_address.is_ipv4() && line.remote_address.is_ipv4();
        if line.family == AddressFamily::V4 && !both_v4 {
            return Err("an IPv6 address in a record of family 4");
        }
        Ok(Self {
            activated_ns: line.activated_ns,
            deactivated_ns: line.deactivated_ns,
            cpu: line.cpu,
            tid: line.tid,
            tgid: line.tgid,
            comm: line.comm,
            cookie: line.cookie.0,
            family: line.family,
            local: SocketAddr::new(line.local_address, line.local_port),
            remote: SocketAddr::new(line.remote_address, line.remote_port),
            netns: line.netns,
            end: line.end,
            partial: line.partial,
            handed_over: line.handed_over,
            closed: line.closed,
            sleep_ns: line.sleep_ns,
            wait_ns: line.wait_ns,
            on_cpu_ns: line.on_cpu_ns,
            arrived_off_cpu_bytes: line.arrived_off_cpu_bytes,
            arrived_on_cpu_bytes: line.arrived_on_cpu_bytes,
            read_bytes: line.read_bytes,
            activation: Queue {
                queued_bytes: line.activation_queued_bytes,
                rmem_bytes: line.activation_rmem_bytes,
                rcvbuf_bytes: line.activation_rcvbuf_bytes,
                backlog_bytes: line.activation_backlog_bytes,
                window_bytes: line.activation_window_bytes,
            },
            deactivation: Queue {
                queued_bytes: line.deactivation_queued_bytes,
                rmem_bytes: line.deactivation_rmem_bytes,
                rcvbuf_bytes: line.deactivation_rcvbuf_bytes,
                backlog_bytes: line.deactivation_backlog_bytes,
                window_bytes: line.deactivation_window_bytes,
            },
            rcv_rtt_us: line.rcv_rtt_us,
            rcv_ssthresh_bytes: line.rcv_ssthresh_bytes,
            window_clamp_bytes: line.window_clamp_bytes,
            limited: Limited {
                upstream_ns: line.limited_upstream_ns,
                application_ns: line.limited_application_ns,
                scheduler_ns: line.limited_scheduler_ns,
                window_ns: line.limited_window_ns,
                memory_ns: line.limited_memory_ns,
            },
            waited: Waited {
                application_byte_us: line.waited_application_byte_us,
                scheduler_byte_us: line.waited_scheduler_byte_us,
            },
            preempted_by_tid: line.preempted_by_tid,
            preempted_by: line.preempted_by,
        })
    }
}

/// Totals of a socket.
#[derive(Serialize, Deserialize)]
pub struct SocketLine {
    #[serde(rename = "type", skip_deserializing)]
    kind: &'static str,
    at_ns: u64,
    cookie: Cookie,
    family: AddressFamily,
    local_address: IpAddr,
    local_port: u16,
    remote_address: IpAddr,
    remote_port: u16,
    netns: u32,
    tid: u32,
    tgid: u32,
    comm: Comm,
    closed: bool,
    received_bytes: u64,
    read_bytes: u64,
    timeslices_read_bytes: u64,
    zero_window_ns: u64,
    #[serde(default)]
    limited_upstream_ns: u64,
    #[serde(default)]
    limited_application_ns: u64,
    #[serde(default)]
    limited_scheduler_ns: u64,
    #[serde(default)]
    limited_window_ns: u64,
    #[serde(default)]
    limited_memory_ns: u64,
    #[serde(default)]
    waited_application_byte_us: u64,
    #[serde(default)]
    waited_scheduler_byte_us: u64,
    #[serde(skip_deserializing)]
    timeslices_complete: bool,
}

impl From<&SocketTotal> for SocketLine {
    fn from(total: &SocketTotal) -> Self {
        Self {
            kind: SOCKET,
            at_ns: total.at_ns,
            cookie: Cookie(total.cookie),
            family: total.family,
            local_address: total.local.ip(),
            local_port: total.local.port(),
            remote_address: total.remote.ip(),
            remote_port: total.remote.port(),
            netns: total.netns,
            tid: total.tid,
            tgid: total.tgid,
            comm: total.comm,
            closed: total.closed,
            received_bytes: total.received_bytes,
            read_bytes: total.read_bytes,
            timeslices_read_bytes: total.timeslices_read_bytes,
            zero_window_ns: total.zero_window_ns,
            limited_upstream_ns: total.limited.upstream_ns,
            limited_application_ns: total.limited.application_ns,
            limited_scheduler_ns: total.limited.scheduler_ns,
            limited_window_ns: total.limited.window_ns,
            limited_memory_ns: total.limited.memory_ns,
            waited_application_byte_us: total.waited.application_byte_us,
            waited_scheduler_byte_us: total.waited.scheduler_byte_us,
            timeslices_complete: total.timeslices_read_bytes == total.read_bytes,
        }
    }
}

impl From<SocketLine> for SocketTotal {
    fn from(line: SocketLine) -> Self {
        Self {
            at_ns: line.at_ns,
            cookie: line.cookie.0,
            family: line.family,
            local: SocketAddr::new(line.local_address, line.local_port),
            remote: SocketAddr::new(line.remote_address, line.remote_port),
            netns: line.netns,
            tid: line.tid,
            tgid: line.tgid,
            comm: line.comm,
            closed: line.closed,
            received_bytes: line.received_bytes,
            read_bytes: line.read_bytes,
            timeslices_read_bytes: line.timeslices_read_bytes,
            zero_window_ns: line.zero_window_ns,
            limited: Limited {
                upstream_ns: line.limited_upstream_ns,
                application_ns: line.limited_application_ns,
                scheduler_ns: line.limited_scheduler_ns,
                window_ns: line.limited_window_ns,
                memory_ns: line.limited_memory_ns,
            },
            waited: Waited {
                application_byte_us: line.waited_application_byte_us,
                scheduler_byte_us: line.waited_scheduler_byte_us,
            },
        }
    }
}

/// Totals of a thread; read as [`ThreadTotal`].
#[derive(Serialize)]
pub struct ThreadLine<'t> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    total: &'t ThreadTotal,
}

impl<'t> From<&'t ThreadTotal> for ThreadLine<'t> {
    fn from(total: &'t ThreadTotal) -> Self {
        Self { kind: THREAD, total }
    }
}

/// A socket's cookie in hexadecimal, as `ss -e` shows it after `sk:`.
struct Cookie(u64);

impl Serialize for Cookie {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Cookie {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let parse = |text: &str| match text.starts_with('+') {
            true => None,
            false => u64::from_str_radix(text, 16).ok().map(Cookie),
        };
        from.deserialize_str(Text { expected: "a cookie in hexadecimal", parse })
    }
}

impl Serialize for Comm {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Comm {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let parse = |text: &str| Comm::try_from(text).ok();
        from.deserialize_str(Text { expected: "a name of at most 16 bytes without NUL", parse })
    }
}

/// Parses a value from a string without keeping the string.
struct Text<F> {
    expected: &'static str,
    parse: F,
}

impl<T, F: FnOnce(&str) -> Option<T>> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).ok_or_else(|| E::custom(format_args!("{text:?} is not {}", self.expected)))
    }
}
