//! The lines of timeslices and totals: what is declared here are the keys of the format, in its order.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

#[cfg(any(test, feature = "csv", feature = "parquet", feature = "perfetto"))]
use super::field::{Field, FieldValue};
use super::text::Cookie;
use crate::{
    jsonl::line::{SOCKET, THREAD, TIMESLICE},
    record::{AddressFamily, Comm, TimesliceEnd, TimesliceRecord},
    total::{SocketTotal, ThreadTotal},
};

/// Declares the line of a record. Each key has its meaning (in Markdown, as the document shows it), its type, the place
/// of its value in the record, and the source of that. A `default` is for keys that are not in the traces of the first
/// version that had the format; what is computed is not read.
macro_rules! line {
    (
        $(#[$attribute:meta])*
        $line:ident of $record:ident, type $kind:ident;
        $($(#[doc = $meaning:literal])+ $key:ident: $type:ty = $place:tt from $source:literal $(, $default:ident)?;)*
        $(computed $(#[doc = $about:literal])+ $computed:ident: $computed_type:ty = $compute:expr;)*
    ) => {
        $(#[$attribute])*
        #[derive(Serialize, Deserialize)]
        pub(crate) struct $line {
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

        impl From<$line> for $record {
            fn from(line: $line) -> Self {
                let mut record = Self::EMPTY;
                $(set!(record, $place, line.$key.into());)*
                record
            }
        }

        #[cfg(any(test, feature = "csv", feature = "parquet", feature = "perfetto"))]
        #[cfg_attr(not(test), allow(dead_code, reason = "each format uses the keys that it shows"))]
        #[allow(non_upper_case_globals, reason = "each is named as its key")]
        impl $line {
            $($(#[doc = $meaning])+
            pub(crate) const $key: Field<$record> = Field {
                key: stringify!($key),
                get: |_, record| FieldValue::from(<$type>::from(value_of!(record, $place))),
                set: Some(|record, value| {
                    set!(record, $place, <$type>::deserialize(value)?.into());
                    Ok(())
                }),
                is_later: !stringify!($($default)?).is_empty(),
                #[cfg(test)]
                meaning: concat!($($meaning),+),
                #[cfg(test)]
                source: $source,
            };)*
            $($(#[doc = $about])+
            pub(crate) const $computed: Field<$record> = Field::computed(
                stringify!($computed),
                concat!($($about),+),
                |_, record| FieldValue::from($compute(record)),
            );)*

            /// The keys without `type`.
            pub(crate) const FIELDS: &'static [Field<$record>] = &[$(Self::$key,)* $(Self::$computed,)*];
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
    /// when the thread got the CPU, on the monotonic clock
    activated_ns: u64 = [activated_ns] from "`bpf_ktime_get_ns` at `sched_switch`";
    /// when the thread left the CPU, on the monotonic clock
    deactivated_ns: u64 = [deactivated_ns] from "`bpf_ktime_get_ns` at `sched_switch`";
    /// the CPU
    cpu: u32 = [cpu] from "`bpf_get_smp_processor_id`";
    /// id of the thread, in the initial PID namespace
    tid: u32 = [tid] from "`task_struct.pid`";
    /// id of the process (what `ps` calls the pid), in the initial PID namespace
    tgid: u32 = [tgid] from "`task_struct.tgid`";
    /// name of the thread; a byte that is not UTF-8 is shown as `?`
    comm: Comm = [comm] from "`task_struct.comm`";
    /// the socket's cookie in hexadecimal; `ss -e` shows it after `sk:`; unique until the next boot
    cookie: Cookie = [cookie] from "`skc_cookie`";
    /// family of the socket: 4 (`AF_INET`) or 6 (`AF_INET6`)
    family: AddressFamily = [family] from "`skc_family`";
    /// address of this side; an IPv6 socket that carries IPv4 has IPv4 addresses and `family` 6
    local_address: IpAddr = [local.ip(), local.set_ip] from "`skc_rcv_saddr`, `skc_v6_rcv_saddr`";
    /// port of this side
    local_port: u16 = [local.port(), local.set_port] from "`skc_num`";
    /// address of the other side, in the same form
    remote_address: IpAddr = [remote.ip(), remote.set_ip] from "`skc_daddr`, `skc_v6_daddr`";
    /// port of the other side
    remote_port: u16 = [remote.port(), remote.set_port] from "`skc_dport`";
    /// inode number of the socket's network namespace; `lsns -t net` shows it
    netns: u32 = [netns] from "`net.ns.inum`";
    /// why the thread left the CPU: `preempted` (it was still runnable), `blocked` (it went to sleep), `exited`, or
    /// `unknown` (a value that this version of tcpmon does not know)
    end: TimesliceEnd = [end] from "`preempt` and `prev_state` of `sched_switch`";
    /// tcpmon did not see the activation; see below
    partial: bool = [partial] from "";
    /// another thread took the socket over; see below
    handed_over: bool = [handed_over] from "";
    /// the socket was closed; see below
    closed: bool = [closed] from "";
    /// time asleep between the previous timeslice and this one
    sleep_ns: u64 = [sleep_ns] from "time off the CPU less `wait_ns`";
    /// time runnable but without a CPU between the previous timeslice and this one
    wait_ns: u64 = [wait_ns] from "`sched_info.run_delay`";
    /// time on the CPU in this timeslice
    on_cpu_ns: u64 = [on_cpu_ns] from "`se.sum_exec_runtime`";
    /// data that arrived in order after the previous timeslice and before this activation
    arrived_off_cpu_bytes: u64 = [arrived_off_cpu_bytes] from "advance of `rcv_nxt`";
    /// data that arrived in order during this timeslice
    arrived_on_cpu_bytes: u64 = [arrived_on_cpu_bytes] from "advance of `rcv_nxt`";
    /// data that the thread read in this timeslice
    read_bytes: u64 = [read_bytes] from "advance of `copied_seq` at `tcp_rcv_space_adjust`";
    /// at the activation: data received in order and not read, not counting a FIN
    activation_queued_bytes: u32 = [activation.queued_bytes] from "`rcv_nxt - copied_seq`";
    /// at the activation: memory charged to the receive buffer
    activation_rmem_bytes: u32 = [activation.rmem_bytes] from "`sk_rmem_alloc`";
    /// at the activation: the limit on that memory
    activation_rcvbuf_bytes: u32 = [activation.rcvbuf_bytes] from "`sk_rcvbuf`";
    /// at the activation: memory of segments that wait for the socket lock
    activation_backlog_bytes: u32 = [activation.backlog_bytes] from "`sk_backlog.len`";
    /// at the activation: the advertised window
    activation_window_bytes: u32 = [activation.window_bytes] from "`rcv_wnd`";
    /// at the deactivation: data received in order and not read, not counting a FIN
    deactivation_queued_bytes: u32 = [deactivation.queued_bytes] from "`rcv_nxt - copied_seq`";
    /// at the deactivation: memory charged to the receive buffer
    deactivation_rmem_bytes: u32 = [deactivation.rmem_bytes] from "`sk_rmem_alloc`";
    /// at the deactivation: the limit on that memory
    deactivation_rcvbuf_bytes: u32 = [deactivation.rcvbuf_bytes] from "`sk_rcvbuf`";
    /// at the deactivation: memory of segments that wait for the socket lock
    deactivation_backlog_bytes: u32 = [deactivation.backlog_bytes] from "`sk_backlog.len`";
    /// at the deactivation: the advertised window
    deactivation_window_bytes: u32 = [deactivation.window_bytes] from "`rcv_wnd`";
    /// the receiver's estimate of the round-trip time, at the deactivation; 0 if unknown
    rcv_rtt_us: u32 = [rcv_rtt_us] from "`rcv_rtt_est.rtt_us / 8`";
    /// the largest window that the kernel is willing to advertise now, at the deactivation
    rcv_ssthresh_bytes: u32 = [rcv_ssthresh_bytes] from "`rcv_ssthresh`";
    /// the largest window that may ever be advertised, at the deactivation
    window_clamp_bytes: u32 = [window_clamp_bytes] from "`window_clamp`";
    /// time in which the sender or the path limited the connection; see below
    limited_upstream_ns: u64 = [limited.upstream_ns] from "`tcpmon_common::causes`", default;
    /// time in which the reader limited it while it did not wait for a CPU
    limited_application_ns: u64 = [limited.application_ns] from "`tcpmon_common::causes`", default;
    /// time in which the reader limited it while it waited for a CPU
    limited_scheduler_ns: u64 = [limited.scheduler_ns] from "`tcpmon_common::causes`", default;
    /// time in which a window too small for the path limited it
    limited_window_ns: u64 = [limited.window_ns] from "`tcpmon_common::causes`", default;
    /// time in which a window limited it that the kernel kept small because memory was short
    limited_memory_ns: u64 = [limited.memory_ns] from "`tcpmon_common::causes`", default;
    /// bytes in the queue x time that they waited while the reader did not wait for a CPU
    waited_application_byte_us: u64 = [waited.application_byte_us] from "`tcpmon_common::causes`", default;
    /// bytes in the queue x time that they waited while the reader waited for a CPU
    waited_scheduler_byte_us: u64 = [waited.scheduler_byte_us] from "`tcpmon_common::causes`", default;
    /// id of the thread that got the CPU, if this one was preempted; otherwise 0
    preempted_by_tid: u32 = [preempted_by_tid] from "`next` of `sched_switch`", default;
    /// name of that thread, otherwise empty
    preempted_by: Comm = [preempted_by] from "`task_struct.comm`", default;
}

/// The columns before the keys: on which host and when, because rows of several hosts can be in one table.
#[cfg(any(test, feature = "csv", feature = "parquet"))]
pub(crate) const OF_TRACE: &[Field<TimesliceRecord>] = &[
    Field::computed("hostname", "as in the header, so that rows of several hosts can be in one table", |header, _| {
        FieldValue::Text(&header.hostname)
    }),
    Field::computed(
        "activated_time",
        "`activated_ns` on the wall clock, UTC, in microseconds: Spark refuses a file with a time in nanoseconds",
        |header, record| FieldValue::Time(header.start.wall_ns(record.activated_ns) / 1000),
    ),
    Field::computed(
        "activated_realtime_ns",
        "the same in nanoseconds since 1970-01-01 UTC, as an integer",
        |header, record| FieldValue::Integer(header.start.wall_ns(record.activated_ns)),
    ),
];

/// The columns of a row.
#[cfg(any(feature = "csv", feature = "parquet"))]
pub(crate) fn columns() -> impl Iterator<Item = &'static Field<TimesliceRecord>> {
    OF_TRACE.iter().chain(TimesliceLine::FIELDS)
}

line! {
    /// Totals of a socket.
    SocketLine of SocketTotal, type SOCKET;
    /// when the totals were taken: at the end of the socket or of the trace, on the monotonic clock
    at_ns: u64 = [at_ns] from "`bpf_ktime_get_ns`";
    /// as in a timeslice
    cookie: Cookie = [cookie] from "`skc_cookie`";
    /// as in a timeslice
    family: AddressFamily = [family] from "`skc_family`";
    /// as in a timeslice
    local_address: IpAddr = [local.ip(), local.set_ip] from "`skc_rcv_saddr`, `skc_v6_rcv_saddr`";
    /// port of this side
    local_port: u16 = [local.port(), local.set_port] from "`skc_num`";
    /// as in a timeslice
    remote_address: IpAddr = [remote.ip(), remote.set_ip] from "`skc_daddr`, `skc_v6_daddr`";
    /// port of the other side
    remote_port: u16 = [remote.port(), remote.set_port] from "`skc_dport`";
    /// inode number of the socket's network namespace
    netns: u32 = [netns] from "`net.ns.inum`";
    /// id of the thread that read last
    tid: u32 = [tid] from "`task_struct.pid`";
    /// id of its process
    tgid: u32 = [tgid] from "`task_struct.tgid`";
    /// name of the process
    comm: Comm = [comm] from "`task_struct.comm`";
    /// the socket was closed during the trace
    closed: bool = [closed] from "`tcp_destroy_sock`";
    /// data that arrived in order during the trace, and data that was unread when it began
    received_bytes: u64 = [received_bytes] from "advance of `rcv_nxt`";
    /// data that traced threads read during the trace
    read_bytes: u64 = [read_bytes] from "advance of `copied_seq` at `tcp_rcv_space_adjust`";
    /// the part of `read_bytes` that is in timeslices of this trace; less if some were lost or the last one had not
    /// ended
    timeslices_read_bytes: u64 = [timeslices_read_bytes] from "`timeslice` records";
    /// time during which the advertised window was below one segment
    zero_window_ns: u64 = [zero_window_ns] from "`rcv_wnd`";
    /// sum of this key over the timeslices, plus what was decided after the last one; a lower bound if timeslices were
    /// lost, exact with `--summary-only`
    limited_upstream_ns: u64 = [limited.upstream_ns] from "`tcpmon_common::causes`", default;
    /// the same
    limited_application_ns: u64 = [limited.application_ns] from "`tcpmon_common::causes`", default;
    /// the same
    limited_scheduler_ns: u64 = [limited.scheduler_ns] from "`tcpmon_common::causes`", default;
    /// the same
    limited_window_ns: u64 = [limited.window_ns] from "`tcpmon_common::causes`", default;
    /// the same
    limited_memory_ns: u64 = [limited.memory_ns] from "`tcpmon_common::causes`", default;
    /// the same
    waited_application_byte_us: u64 = [waited.application_byte_us] from "`tcpmon_common::causes`", default;
    /// the same
    waited_scheduler_byte_us: u64 = [waited.scheduler_byte_us] from "`tcpmon_common::causes`", default;
    computed
    /// the timeslices of this trace contain all of `read_bytes`; if not, sums over them are lower bounds
    timeslices_complete: bool = |total: &SocketTotal| total.timeslices_read_bytes == total.read_bytes;
}

line! {
    /// Totals of a thread.
    ThreadLine of ThreadTotal, type THREAD;
    /// the thread's first read, or the start of the trace if it had a connection open then; on the monotonic clock
    begun_ns: u64 = [begun_ns] from "`bpf_ktime_get_ns`";
    /// when the totals were taken, on the monotonic clock
    at_ns: u64 = [at_ns] from "`CLOCK_MONOTONIC`";
    /// id of the thread
    tid: u32 = [tid] from "`task_struct.pid`";
    /// id of its process
    tgid: u32 = [tgid] from "`task_struct.tgid`";
    /// name of the thread; that of the process if no timeslice of the thread is in the trace
    comm: Comm = [comm] from "`task_struct.comm`";
    /// the thread exited during the trace
    exited: bool = [exited] from "`sched_switch`";
    /// time on the CPU in timeslices that have ended
    on_cpu_ns: u64 = [on_cpu_ns] from "`se.sum_exec_runtime`";
    /// time runnable but without a CPU before these timeslices
    wait_ns: u64 = [wait_ns] from "`sched_info.run_delay`";
    /// timeslices that ended because another thread got the CPU
    preempted: u64 = [preempted] from "`sched_switch`";
    /// timeslices that ended because the thread went to sleep
    blocked: u64 = [blocked] from "`sched_switch`";
    /// data that the thread read from TCP sockets, with `filter.ports` from those with such a port
    read_bytes: u64 = [read_bytes] from "advance of `copied_seq` at `tcp_rcv_space_adjust`";
}
