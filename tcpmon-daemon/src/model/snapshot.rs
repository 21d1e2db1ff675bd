//! What tcpmon knows at one moment: the only thing that metrics, status page and screens are made from.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tcpmon_common::histogram::{FILL_BINS, TIME_BINS};

use super::host::Host;

/// The labels that a group of sockets and readers shares.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// Name of the reader's thread group.
    pub process: String,
    /// `local:PORT`, `remote:PORT` or `other`.
    pub service: String,
    /// Path of the control group; `None` while that label is off.
    pub cgroup: Option<String>,
}

impl GroupKey {
    /// The group that collects what has no group of its own.
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

/// Everything that is counted per group; only grows.
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
    /// Fill met by each data segment.
    pub segment_fill: Fill,
    /// Fill at activations.
    pub activation_fill: Fill,
    /// Fill at deactivations.
    pub deactivation_fill: Fill,
    /// Timeslices that ended preempted, blocked, exited.
    pub timeslices: [u64; 3],
    /// Time on the CPU per timeslice.
    pub on_cpu: Durations,
    /// Time runnable but not running, per activation.
    pub run_queue_wait: Durations,
    /// Dropped segments by the kernel's reason, lower case, without prefix; sorted by name.
    pub drops: Vec<(String, u64)>,
}

/// Sums over the group's sockets now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupGauges {
    /// Sockets watched.
    pub sockets: u64,
    /// Bytes queued and not read.
    pub queue_bytes: u64,
    /// Memory charged (`sk_rmem_alloc`), bytes.
    pub used_bytes: u64,
    /// Limit of that (`sk_rcvbuf`), bytes.
    pub limit_bytes: u64,
    /// Memory in the backlogs, bytes.
    pub backlog_bytes: u64,
    /// Bytes in the out-of-order queues, as far as SACK blocks tell.
    pub out_of_order_bytes: u64,
    /// Advertised windows, bytes.
    pub window_bytes: u64,
}

/// One group.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its labels.
    pub key: GroupKey,
    /// Nothing that it counts happened before this; a group that comes back is another one, born anew.
    pub born: Instant,
    /// Its totals.
    pub counters: GroupCounters,
    /// Its present.
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
    /// Polls that used their whole budget.
    pub exhausted: u64,
}

/// What became of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It runs.
    Attached,
    /// This kernel does not offer it; what is lost is said in the reason.
    Unsupported,
    /// It should run and does not.
    Broken,
}

/// One probe.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Probe {
    /// Name of the tracepoint or iterator.
    pub name: String,
    /// What became of it.
    pub verdict: Verdict,
    /// Why, and what is lost without it; empty when attached.
    pub reason: String,
}

/// What the kernel counts of one program.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ProgramRuns {
    /// Name of the program.
    pub name: String,
    /// Times that it ran; `None` unless the kernel counts (`kernel.bpf_stats_enabled`).
    pub runs: Option<u64>,
    /// Time in it.
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

/// All that a page is made from: what the programs saw, and what the host says of itself.
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
    /// Groups in the order of their keys.
    pub groups: Vec<Group>,
    /// Devices in the order of their names.
    pub napi: Vec<Napi>,
    /// Requests for memory of TCP sockets that a limit refused, by what it was for; empty while the probe is not
    /// attached.
    pub limits_exceeded: Vec<(&'static str, u64)>,
    /// Sockets that were left out, by why.
    pub ignored: Vec<(&'static str, u64)>,
    /// Probes.
    pub probes: Vec<Probe>,
    /// Losses: what, how often. Every kind is present, zero or not.
    pub losses: Vec<(String, u64)>,
    /// Programs.
    pub programs: Vec<ProgramRuns>,
    /// Maps.
    pub maps: Vec<MapUse>,
    /// Sockets and readers that were folded into `other` for want of a group.
    pub groups_suppressed: u64,
    /// Connections that the programs saw being opened.
    pub connections_opened: u64,
    /// Connections whose begin no program saw, counted from their first byte all the same.
    pub begins_late: u64,
    /// Groups, and reasons of drops in others, that are shown at zero because they are new: see [`super::newborn`].
    pub newborn: u64,
    /// What it took to make this snapshot.
    pub took: Duration,
}
