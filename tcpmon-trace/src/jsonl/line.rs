//! The lines as they are written: the field names here are the keys of the format, in its order.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};

use crate::{
    header::{Clocks, FORMAT, FORMAT_VERSION, Filter, TraceHeader},
    record::{AddressFamily, Comm, TimesliceEnd, TimesliceRecord},
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

/// Declares the line of a record: each key once, with its type and the place of its value in the record. A `default` is
/// for keys that are not in the traces of the first version that had the format; what is computed (`=>`) is not read.
macro_rules! line {
    (
        $(#[$attribute:meta])*
        $line:ident of $record:ident, type $kind:ident;
        $($key:ident: $type:ty = $place:tt $(, $default:ident)?;)*
        $(=> $computed:ident: $computed_type:ty = $compute:expr;)*
    ) => {
        $(#[$attribute])*
        #[derive(Serialize, Deserialize)]
        pub struct $line {
            #[serde(rename = "type", skip_deserializing)]
            kind: &'static str,
            $($(#[serde($default)])? $key: $type,)*
            $(#[serde(skip_deserializing)] $computed: $computed_type,)*
        }

        impl From<&$record> for $line {
            fn from(record: &$record) -> Self {
                Self {
                    kind: $kind,
                    $($key: value_of!(record, $place).into(),)*
                    $($computed: $compute(record),)*
                }
            }
        }

        impl $line {
            /// What the line says.
            fn read(self) -> $record {
                let mut record = $record::EMPTY;
                $(set!(record, $place, self.$key.into());)*
                record
            }
        }
    };
}

/// The value at a place: `[a.b]`, or `[a.read(), a.write]` with the methods that read and write it.
macro_rules! value_of {
    ($record:ident, [$($place:ident).+]) => { $record.$($place).+ };
    ($record:ident, [$from:ident.$read:ident(), $to:ident.$write:ident]) => { $record.$from.$read() };
}

macro_rules! set {
    ($record:ident, [$($place:ident).+], $value:expr) => { $record.$($place).+ = $value };
    ($record:ident, [$from:ident.$read:ident(), $to:ident.$write:ident], $value:expr) => { $record.$to.$write($value) };
}

line! {
    /// A timeslice.
    TimesliceLine of TimesliceRecord, type TIMESLICE;
    activated_ns: u64 = [activated_ns];
    deactivated_ns: u64 = [deactivated_ns];
    cpu: u32 = [cpu];
    tid: u32 = [tid];
    tgid: u32 = [tgid];
    comm: Comm = [comm];
    cookie: Cookie = [cookie];
    family: AddressFamily = [family];
    local_address: IpAddr = [local.ip(), local.set_ip];
    local_port: u16 = [local.port(), local.set_port];
    remote_address: IpAddr = [remote.ip(), remote.set_ip];
    remote_port: u16 = [remote.port(), remote.set_port];
    netns: u32 = [netns];
    end: TimesliceEnd = [end];
    partial: bool = [partial];
    handed_over: bool = [handed_over];
    closed: bool = [closed];
    sleep_ns: u64 = [sleep_ns];
    wait_ns: u64 = [wait_ns];
    on_cpu_ns: u64 = [on_cpu_ns];
    arrived_off_cpu_bytes: u64 = [arrived_off_cpu_bytes];
    arrived_on_cpu_bytes: u64 = [arrived_on_cpu_bytes];
    read_bytes: u64 = [read_bytes];
    activation_queued_bytes: u32 = [activation.queued_bytes];
    activation_rmem_bytes: u32 = [activation.rmem_bytes];
    activation_rcvbuf_bytes: u32 = [activation.rcvbuf_bytes];
    activation_backlog_bytes: u32 = [activation.backlog_bytes];
    activation_window_bytes: u32 = [activation.window_bytes];
    deactivation_queued_bytes: u32 = [deactivation.queued_bytes];
    deactivation_rmem_bytes: u32 = [deactivation.rmem_bytes];
    deactivation_rcvbuf_bytes: u32 = [deactivation.rcvbuf_bytes];
    deactivation_backlog_bytes: u32 = [deactivation.backlog_bytes];
    deactivation_window_bytes: u32 = [deactivation.window_bytes];
    rcv_rtt_us: u32 = [rcv_rtt_us];
    rcv_ssthresh_bytes: u32 = [rcv_ssthresh_bytes];
    window_clamp_bytes: u32 = [window_clamp_bytes];
    limited_upstream_ns: u64 = [limited.upstream_ns], default;
    limited_application_ns: u64 = [limited.application_ns], default;
    limited_scheduler_ns: u64 = [limited.scheduler_ns], default;
    limited_window_ns: u64 = [limited.window_ns], default;
    limited_memory_ns: u64 = [limited.memory_ns], default;
    waited_application_byte_us: u64 = [waited.application_byte_us], default;
    waited_scheduler_byte_us: u64 = [waited.scheduler_byte_us], default;
    preempted_by_tid: u32 = [preempted_by_tid], default;
    preempted_by: Comm = [preempted_by], default;
}

impl TimesliceLine {
    /// The record, if its addresses are those of its family.
    pub fn record(self) -> Result<TimesliceRecord, &'static str> {
        let record = self.read();
        let both_v4 = record.local.is_ipv4() && record.remote.is_ipv4();
        if record.family == AddressFamily::V4 && !both_v4 {
            return Err("an IPv6 address in a record of family 4");
        }
        Ok(record)
    }
}

line! {
    /// Totals of a socket.
    SocketLine of SocketTotal, type SOCKET;
    at_ns: u64 = [at_ns];
    cookie: Cookie = [cookie];
    family: AddressFamily = [family];
    local_address: IpAddr = [local.ip(), local.set_ip];
    local_port: u16 = [local.port(), local.set_port];
    remote_address: IpAddr = [remote.ip(), remote.set_ip];
    remote_port: u16 = [remote.port(), remote.set_port];
    netns: u32 = [netns];
    tid: u32 = [tid];
    tgid: u32 = [tgid];
    comm: Comm = [comm];
    closed: bool = [closed];
    received_bytes: u64 = [received_bytes];
    read_bytes: u64 = [read_bytes];
    timeslices_read_bytes: u64 = [timeslices_read_bytes];
    zero_window_ns: u64 = [zero_window_ns];
    limited_upstream_ns: u64 = [limited.upstream_ns], default;
    limited_application_ns: u64 = [limited.application_ns], default;
    limited_scheduler_ns: u64 = [limited.scheduler_ns], default;
    limited_window_ns: u64 = [limited.window_ns], default;
    limited_memory_ns: u64 = [limited.memory_ns], default;
    waited_application_byte_us: u64 = [waited.application_byte_us], default;
    waited_scheduler_byte_us: u64 = [waited.scheduler_byte_us], default;
    => timeslices_complete: bool = |total: &SocketTotal| total.timeslices_read_bytes == total.read_bytes;
}

impl SocketLine {
    /// The totals.
    pub fn total(self) -> SocketTotal {
        self.read()
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

impl From<u64> for Cookie {
    fn from(cookie: u64) -> Self {
        Self(cookie)
    }
}

impl From<Cookie> for u64 {
    fn from(cookie: Cookie) -> Self {
        cookie.0
    }
}

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
