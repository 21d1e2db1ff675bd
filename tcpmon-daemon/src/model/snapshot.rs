//! What tcpmon knows at one moment. Metrics, the status page and screens are made from nothing else.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tcpmon_common::histogram::{FILL_BINS, TIME_BINS};

use super::host::Host;

/// The labels that all sockets and readers of a group share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// Name of the reader's thread group.
    pub process: String,
    /// `local:PORT`, `local:ephemeral`, `remote:PORT` or `other`.
    pub service: String,
    /// Label made from the path of the control group (`model/cgroup_label.rs`); `None` if that label is off.
    pub cgroup: Option<String>,
}

impl GroupKey {
    /// The group for everything that has no group of its own.
    pub fn other(with_cgroup: bool) -> Self {
        Self { process: "other".into(), service: "other".into(), cgroup: with_cgroup.then(|| "other".into()) }
    }
}

/// Distribution of `sk_rmem_alloc / sk_rcvbuf`; see [`tcpmon_common::histogram::FILL_BOUNDS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Observations per bin.
    pub bins: [u64; FILL_BINS],
    /// Sum of the ratios in 1/[`tcpmon_common::histogram::FILL_ONE`].
    pub sum: u64,
}

/// Distribution of a duration; see [`tcpmon_common::histogram::TIME_FIRST_EXPONENT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Observations per bin.
    pub bins: [u64; TIME_BINS],
    /// Sum, ns.
    pub sum_ns: u64,
}

/// Everything that is counted per group; never decreases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupCounters {
    /// New in-order data accepted by TCP, bytes.
    pub received_bytes: u64,
    /// Data that the application drained, bytes.
    pub read_bytes: u64,
    /// Data segments, after GRO.
    pub segments: u64,
    /// Time integral of queued bytes, byte-seconds.
    pub queue_byte_seconds: f64,
    /// Time with an advertised window below one MSS, ns.
    pub zero_window_ns: u64,
    /// Times that autotuning raised `sk_rcvbuf`.
    pub growths: u64,
    /// Bytes that arrived while the reader was on a CPU.
    pub arrived_on_cpu_bytes: u64,
    /// Bytes that arrived while the reader was off the CPU.
    pub arrived_off_cpu_bytes: u64,
    /// Bytes that arrived while the socket had no known reader.
    pub arrived_without_reader_bytes: u64,
    /// Bytes drained in timeslices of known readers.
    pub timeslice_read_bytes: u64,
    /// Fill that each data segment found.
    pub segment_fill: Fill,
    /// Fill at activations.
    pub activation_fill: Fill,
    /// Fill at deactivations.
    pub deactivation_fill: Fill,
    /// Timeslices that ended because the thread was preempted, blocked or exited, in this order.
    pub timeslices: [u64; 3],
    /// Time on the CPU per timeslice.
    pub on_cpu: Durations,
    /// Time runnable but not running, per activation.
    pub run_queue_wait: Durations,
    /// Dropped segments by the kernel's drop reason, in lower case without prefix; sorted by name.
    pub drops: Vec<(String, u64)>,
}

/// Current sums over the group's sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupGauges {
    /// Sockets that are watched.
    pub sockets: u64,
    /// Bytes queued and not yet read.
    pub queue_bytes: u64,
    /// Memory charged (`sk_rmem_alloc`), bytes.
    pub used_bytes: u64,
    /// Limit of `used_bytes` (`sk_rcvbuf`), bytes.
    pub limit_bytes: u64,
    /// Memory in the backlogs, bytes.
    pub backlog_bytes: u64,
    /// Bytes in the out-of-order queues, as far as the SACK blocks show them.
    pub out_of_order_bytes: u64,
    /// Advertised windows, bytes.
    pub window_bytes: u64,
}

impl GroupGauges {
    /// Adds the gauges of another group.
    pub fn add_all(&mut self, other: &Self) {
        let Self { sockets, queue_bytes, used_bytes, limit_bytes, backlog_bytes, out_of_order_bytes, window_bytes } =
            other;
        self.sockets += sockets;
        self.queue_bytes += queue_bytes;
        self.used_bytes += used_bytes;
        self.limit_bytes += limit_bytes;
        self.backlog_bytes += backlog_bytes;
        self.out_of_order_bytes += out_of_order_bytes;
        self.window_bytes += window_bytes;
    }
}

/// One group.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its labels.
    pub key: GroupKey,
    /// The group counts nothing that happened before this time. A group that is removed and comes back is a new group,
    /// with a new time.
    pub born: Instant,
    /// Its totals.
    pub counters: GroupCounters,
    /// Its current values.
    pub gauges: GroupGauges,
}

/// NAPI polls of one device, over all CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Napi {
    /// The device; `backlog` for the per-CPU backlog.
    pub device: String,
    /// Polls.
    pub polls: u64,
    /// Work done, in the driver's unit (packets).
    pub packets: u64,
    /// Polls that used up their budget.
    pub exhausted: u64,
}

/// State of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is attached and runs.
    Attached,
    /// This kernel does not offer it; the reason states what is lost.
    Unsupported,
    /// It should run but does not.
    Broken,
}

/// One probe.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Probe {
    /// Name of the tracepoint or iterator.
    pub name: String,
    /// Its state.
    pub verdict: Verdict,
    /// Why, and what is lost without it; empty when attached.
    pub reason: String,
}

/// The kernel's statistics of one program.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ProgramRuns {
    /// Name of the program.
    pub name: String,
    /// Number of runs; `None` unless the kernel counts them (`kernel.bpf_stats_enabled`).
    pub runs: Option<u64>,
    /// Time spent in it.
    pub run_time: Option<Duration>,
}

/// Use of one map.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MapUse {
    /// Name of the map, lower case.
    pub name: String,
    /// Entries in use.
    pub entries: u64,
    /// Entries possible; `None` where only memory is the limit.
    pub capacity: Option<u64>,
}

/// Everything that a metrics page is made from: what the programs saw, and the state of the host.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// From the programs.
    pub snapshot: Arc<Snapshot>,
    /// From the host.
    pub host: Arc<Host>,
}

/// What the programs saw, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Groups, sorted by key.
    pub groups: Vec<Group>,
    /// Devices, sorted by name.
    pub napi: Vec<Napi>,
    /// Requests for TCP socket memory that a limit refused, by what the memory was for; empty if the probe is not
    /// attached.
    pub limits_exceeded: Vec<(&'static str, u64)>,
    /// Sockets that are not watched, by reason.
    pub ignored: Vec<(&'static str, u64)>,
    /// Probes.
    pub probes: Vec<Probe>,
    /// Losses: the kind, and how often. Every kind is present, zero or not.
    pub losses: Vec<(String, u64)>,
    /// Programs.
    pub programs: Vec<ProgramRuns>,
    /// Maps.
    pub maps: Vec<MapUse>,
    /// Times that a socket or reader started to be counted under `other` because there was no room for its group.
    pub groups_suppressed: u64,
    /// Connections that the programs saw being opened.
    pub connections_opened: u64,
    /// Connections whose start no program saw, but which are counted from their first byte.
    pub begins_late: u64,
    /// Groups, and new drop reasons of other groups, that are shown at zero because they are new: see
    /// [`super::newborn`].
    pub newborn: u64,
    /// Time that it took to make this snapshot.
    pub took: Duration,
}
