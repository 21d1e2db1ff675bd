//! What tcpmon knows at one moment. Metrics, the status page and screens are made only from this.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tcpmon_common::{
    histogram::{FILLS, TIME_BINS},
    reader::ReaderTotals,
    socket::SocketTotals,
};

use super::cgroup_label::Cgroup;
use crate::{
    host_state::Host,
    status::{FlightStatus, ProbeStatus, SandboxStatus},
};

/// The labels that all sockets and readers of a group share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// Name of the reader's thread group.
    pub process: String,
    /// `local:PORT`, `local:ephemeral`, `remote:PORT` or `other`.
    pub service: String,
    /// The reader's control group; `None` if that label is off.
    pub cgroup: Option<Arc<Cgroup>>,
}

impl GroupKey {
    /// The group for everything that has no group of its own.
    pub fn other(with_cgroup: bool) -> Self {
        let cgroup = with_cgroup.then(|| Arc::new(Cgroup::named("other")));
        Self { process: "other".into(), service: "other".into(), cgroup }
    }
}

/// What a [`Distribution`] measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// `sk_rmem_alloc / sk_rcvbuf`, in 1/[`tcpmon_common::histogram::FILL_ONE`]; bins as in
    /// [`tcpmon_common::histogram::FILL_BOUNDS`].
    Fill,
    /// A duration, ns; bins from [`tcpmon_common::histogram::TIME_FIRST_EXPONENT`].
    Duration,
}

/// One distribution of a group.
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a> {
    /// What was observed.
    pub of: Quantity,
    /// The first bin, followed by the others at each `step`.
    bins: &'a [u64],
    step: usize,
    /// Sum of all observations, in the unit of the quantity.
    pub sum: u64,
}

impl<'a> Distribution<'a> {
    /// A distribution of fills: `FILL_SEGMENT`, `FILL_ACTIVATION` or `FILL_DEACTIVATION`.
    pub fn of_fills(totals: &'a SocketTotals, which: usize) -> Self {
        let bins = &totals.fills.as_flattened()[which..];
        Self { of: Quantity::Fill, bins, step: FILLS, sum: totals.fill_sums[which] }
    }

    /// A distribution of durations.
    pub fn of_durations(bins: &'a [u64; TIME_BINS], sum: u64) -> Self {
        Self { of: Quantity::Duration, bins, step: 1, sum }
    }

    /// Observations per bin.
    pub fn bins(&self) -> Vec<u64> {
        self.bins.iter().step_by(self.step).copied().collect()
    }
}

/// Everything that is counted per group; never decreases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupCounters {
    /// Totals of its sockets.
    pub sockets: SocketTotals,
    /// Totals of its readers.
    pub readers: ReaderTotals,
    /// Dropped segments by the kernel's drop reason, in lower case without prefix; sorted by name.
    pub drops: Vec<(String, u64)>,
}

impl GroupCounters {
    /// Whether data was received, or a histogram has an entry. Once true, it stays true.
    pub fn has_fills(&self) -> bool {
        let Self { sockets, readers, drops: _ } = self;
        let used = |bins: &[u64]| bins.iter().any(|count| *count != 0);
        sockets.segments > 0
            || sockets.received_bytes > 0
            || used(sockets.fills.as_flattened())
            || has_timeslices(readers)
    }

    /// Sets the histograms to zero, and nothing else.
    pub fn clear_histograms(&mut self) {
        let Self { sockets, readers, drops: _ } = self;
        let (socket, reader) = <(SocketTotals, ReaderTotals)>::default();
        (sockets.fills, sockets.fill_sums) = (socket.fills, socket.fill_sums);
        // Where nobody counts timeslices, the times in the totals are counters, not histograms.
        if has_timeslices(readers) {
            *readers = ReaderTotals { ends: readers.ends, ..reader };
        }
    }
}

fn has_timeslices(readers: &ReaderTotals) -> bool {
    readers.on_cpu.iter().chain(&readers.run_queue_wait).any(|count| *count != 0)
}

/// Current sums over the group's sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
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
    pub key: Arc<GroupKey>,
    /// The group counts nothing that happened before this time. A group that is removed and comes back is a new group,
    /// with a new time.
    pub born: Instant,
    /// Its totals.
    pub counters: GroupCounters,
    /// Its current values.
    pub gauges: GroupGauges,
    /// Whether its histograms are shown: [`GroupCounters::has_fills`]. They are most of a group's lines, and a
    /// group that only sends has nothing in them.
    pub histograms: bool,
}

/// NAPI polls of one device, over all CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NapiPolls {
    /// The device; `backlog` for the per-CPU backlog.
    pub device: String,
    /// Polls.
    pub polls: u64,
    /// Work done, in the driver's unit (packets).
    pub packets: u64,
    /// Polls that used up their budget.
    pub exhausted: u64,
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
    /// Entries possible.
    pub capacity: u64,
}

/// All input for a metrics page: what the programs saw, and the state of the host.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// From the programs.
    pub snapshot: Arc<Snapshot>,
    /// From the host.
    pub host: Arc<Host>,
    /// How the daemon is confined.
    pub sandbox: SandboxStatus,
    /// The flight recorder, if one is configured.
    pub flight: Option<FlightStatus>,
}

/// What the programs saw, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Groups, sorted by key.
    pub groups: Vec<Group>,
    /// The control groups in the groups' labels, sorted by label, each once.
    pub cgroups: Vec<Arc<Cgroup>>,
    /// Devices, sorted by name.
    pub napi: Vec<NapiPolls>,
    /// Requests for TCP socket memory that a limit refused, by what the memory was for; empty if the probe is not
    /// attached.
    pub memory_limit_exceeded: Vec<(&'static str, u64)>,
    /// Sockets that are not watched, by reason.
    pub ignored: Vec<(&'static str, u64)>,
    /// Probes.
    pub probes: Vec<ProbeStatus>,
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
    pub sockets_found_late: u64,
    /// Groups, and new drop reasons and histograms of other groups, that are shown at zero because they are new: see
    /// [`super::new_series`].
    pub new_at_zero: u64,
    /// Time that it took to make this snapshot.
    pub took: Duration,
}
