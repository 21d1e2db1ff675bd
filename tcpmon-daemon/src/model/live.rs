//! What a live view shows at one moment: groups, single sockets, their readers and the host. Totals only grow, so the
//! difference of two samples is what happened in between.

mod changes;

use std::{net::SocketAddr, sync::Arc};

use serde::{Deserialize, Serialize};
use tcpmon_common::{
    counters::{Cells as _, Counted as _},
    histogram::{FILL_ACTIVATION, FILL_DEACTIVATION},
    reader::{END_BLOCKED, END_PREEMPTED, ReaderCounters, ReaderSlot, ReaderTotals},
    socket::{LIVE_FIN, SocketCounters, SocketLive, SocketRecord, SocketTotals},
};

#[cfg(doc)]
use tcpmon_trace::summary::causes;

pub use self::changes::Changes;
use super::{
    snapshot::{Group, GroupGauges, GroupKey, Snapshot},
    tracked::SocketGauges,
};
use crate::{decode, host_state::Host, status::Verdict};

/// A sample of one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveSample {
    /// Number of the pass, from which a client can ask for changes.
    pub pass: u64,
    /// When the pass started, `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: u64,
    /// Whether `sockets` and `readers` are complete; otherwise they have only what has changed since the pass that the
    /// client named.
    pub complete: bool,
    /// Groups, sorted by process and service.
    pub groups: Vec<LiveGroup>,
    /// Connections.
    pub sockets: Vec<Arc<LiveSocket>>,
    /// [`LiveSocket::index`] of all connections that are alive, as bits.
    pub alive: Vec<u64>,
    /// Threads that read from sockets.
    pub readers: Vec<LiveReader>,
    /// [`LiveReader::slot`] of all slots in use, as bits.
    pub slots: Vec<u64>,
    /// The host, and tcpmon itself.
    pub host: LiveHost,
}

/// One connection, as a pass found it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LiveSocket {
    /// A small number that no other connection has at that time.
    pub index: u32,
    /// The kernel's cookie, which no other socket has until the next boot.
    pub cookie: u64,
    /// When it was looked at, `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: u64,
    /// Name of its last reader's process; before the first read, of the process that has it or its listening socket
    /// open.
    pub process: String,
    /// See [`GroupKey::service`].
    pub service: String,
    /// Label of the last reader's control group; `None` if that label is off.
    pub cgroup: Option<String>,
    /// Thread-group id of that process, or 0.
    pub tgid: u32,
    /// Thread id of its last reader; 0 before the first read.
    pub tid: u32,
    /// Inode number of its network namespace.
    pub netns: u32,
    /// The local address.
    pub local: SocketAddr,
    /// The remote address.
    pub remote: SocketAddr,
    /// TCP state, the kernel's number.
    pub state: u8,
    /// Receiver's estimate of the round trip, us; 0 if unknown.
    pub rcv_rtt_us: u32,
    /// The present values.
    pub gauges: GroupGauges,
    /// Everything that was counted for it, up to the time of the pass.
    pub totals: LiveTotals,
}

/// What was counted for a connection or a group; each number only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveTotals {
    /// Data received in order, bytes.
    pub received_bytes: u64,
    /// Data read, bytes.
    pub read_bytes: u64,
    /// Data segments.
    pub segments: u64,
    /// Time integral of the queue, in bytes x [`tcpmon_common::socket::TICK_NS`].
    pub queue_byte_ticks: u64,
    /// The part of it in which the reader waited for a CPU.
    pub scheduler_byte_ticks: u64,
    /// Time by what limited the connections, in the order of [`causes`], ns.
    pub limited_ns: [u64; 5],
    /// Time with a window below one segment, ns.
    pub zero_window_ns: u64,
    /// How often autotuning raised the buffer.
    pub growths: u64,
    /// Segments dropped.
    pub drops: u64,
    /// Edges at which the reader got the CPU and lost it.
    pub edges: [u64; 2],
    /// Sums of the shares of the buffer that were in use at these edges, in
    /// 1/[`tcpmon_common::histogram::FILL_ONE`].
    pub edge_fills: [u64; 2],
    /// The timeslices of its readers; only for a group.
    pub timeslices: LiveTimeslices,
}

/// Timeslices; each number only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveTimeslices {
    /// Those that ended because another thread took the CPU.
    pub preempted: u64,
    /// Those that ended because the thread went to sleep.
    pub blocked: u64,
    /// Time on a CPU, ns.
    pub on_cpu_ns: u64,
    /// Time runnable without a CPU, ns.
    pub run_queue_wait_ns: u64,
}

/// One thread that reads, for one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveReader {
    /// A small number that no other reader has at that time.
    pub slot: u32,
    /// Its thread id.
    pub tid: u32,
    /// Whether it was on a CPU.
    pub is_running: bool,
    /// When it was first seen reading, `CLOCK_MONOTONIC`, ns.
    pub begun_ns: u64,
    /// Its timeslices.
    pub timeslices: LiveTimeslices,
}

/// One group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LiveGroup {
    /// Name of the readers' process.
    pub process: String,
    /// See [`GroupKey::service`].
    pub service: String,
    /// Label of the readers' control group; `None` if that label is off.
    pub cgroup: Option<String>,
    /// The present values of its connections, added up.
    pub gauges: GroupGauges,
    /// What was counted for them.
    pub totals: LiveTotals,
}

/// The host, and tcpmon itself. Counters only grow; a source that this host lacks is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveHost {
    /// Packets that found no room in a receive ring.
    pub ring_overruns: Option<u64>,
    /// Packets dropped because the backlog of a CPU was full.
    pub softnet_dropped: Option<u64>,
    /// Times that a CPU used up its budget for packets.
    pub softnet_squeezed: Option<u64>,
    /// Memory of all TCP sockets, the value above which TCP is under memory pressure, and whether it is now.
    pub tcp_memory: Option<(u64, u64, bool)>,
    /// Events that tcpmon lost.
    pub lost: u64,
    /// Probes that should run but do not.
    pub broken_probes: Vec<String>,
    /// Probes that are switched off in the settings.
    pub switched_off_probes: Vec<String>,
    /// Groups that have no room of their own and are part of `other`.
    pub hidden_groups: u64,
}

impl LiveSocket {
    /// Makes it from the record of the pass, and the labels and the id of the process that has it; `counters` are its
    /// totals at the time of the pass.
    pub(super) fn new(record: &SocketRecord, key: GroupKey, tgid: u32, counters: &SocketCounters) -> Self {
        let SocketRecord { time_ns, live, state } = record;
        let identity = &state.identity;
        let GroupKey { process, service, cgroup } = key;
        let address = |bytes| decode::address(identity.family, bytes);
        let mut gauges = GroupGauges::default();
        gauges.add(&SocketGauges::of(live, queue_bytes(live)));
        Self {
            index: state.index,
            cookie: state.cookie,
            monotonic_ns: *time_ns,
            process,
            service,
            cgroup: cgroup.map(|cgroup| cgroup.label.clone()),
            tgid,
            tid: state.reader_tid,
            netns: identity.netns,
            local: SocketAddr::new(address(identity.local_address), identity.local_port),
            remote: SocketAddr::new(address(identity.remote_address), identity.remote_port),
            state: live.state,
            rcv_rtt_us: live.rcv_rtt_us,
            gauges,
            totals: LiveTotals::of_sockets(&counters.since(&SocketCounters::ZERO)),
        }
    }
}

impl LiveTotals {
    fn of_sockets(totals: &SocketTotals) -> Self {
        let edges = |which: usize| totals.fills.iter().map(|bin| bin[which]).sum();
        Self {
            received_bytes: totals.received_bytes,
            read_bytes: totals.read_bytes,
            segments: totals.segments,
            queue_byte_ticks: totals.queue_byte_ticks,
            scheduler_byte_ticks: totals.scheduler_byte_ticks,
            limited_ns: [
                totals.upstream_limited_ns,
                totals.application_limited_ns,
                totals.scheduler_limited_ns,
                totals.window_limited_ns,
                totals.memory_limited_ns,
            ],
            zero_window_ns: totals.zero_window_ns,
            growths: totals.growths,
            drops: 0,
            edges: [edges(FILL_ACTIVATION), edges(FILL_DEACTIVATION)],
            edge_fills: [totals.fill_sums[FILL_ACTIVATION], totals.fill_sums[FILL_DEACTIVATION]],
            timeslices: LiveTimeslices::default(),
        }
    }
}

impl From<&ReaderTotals> for LiveTimeslices {
    fn from(totals: &ReaderTotals) -> Self {
        Self {
            preempted: totals.ends[END_PREEMPTED as usize],
            blocked: totals.ends[END_BLOCKED as usize],
            on_cpu_ns: totals.on_cpu_ns,
            run_queue_wait_ns: totals.run_queue_wait_ns,
        }
    }
}

impl LiveReader {
    fn new(slot: u32, reader: &ReaderSlot) -> Self {
        let timeslices = LiveTimeslices::from(&reader.counters.since(&ReaderCounters::ZERO));
        // Only the first slot of a thread counts edges.
        Self { slot, tid: reader.tid, is_running: reader.edges % 2 == 1, begun_ns: reader.begun_ns, timeslices }
    }
}

impl From<&Group> for LiveGroup {
    fn from(group: &Group) -> Self {
        let counters = &group.counters;
        let mut totals = LiveTotals::of_sockets(&counters.sockets);
        totals.drops = counters.drops.iter().map(|(_, count)| count).sum();
        totals.timeslices = LiveTimeslices::from(&counters.readers);
        Self {
            process: group.key.process.clone(),
            service: group.key.service.clone(),
            cgroup: group.key.cgroup.as_ref().map(|cgroup| cgroup.label.clone()),
            gauges: group.gauges,
            totals,
        }
    }
}

impl LiveHost {
    /// Makes it from the data of the programs and of the host's sources.
    pub fn new(snapshot: &Snapshot, host: &Host) -> Self {
        let available = |name: &str| host.sources.iter().any(|source| source.name == name && source.available);
        let softnet = available("softnet");
        let sum = |value: fn(&crate::host_state::Softnet) -> u64| softnet.then(|| host.softnet.iter().map(value).sum());
        let overruns = host.devices.iter().flat_map(|device| device.overruns.iter().map(|(_, count)| count)).sum();
        let probes = |verdict| {
            let those = snapshot.probes.iter().filter(move |probe| probe.verdict == verdict);
            those.map(|probe| probe.name.clone()).collect()
        };
        let hidden = snapshot.maps.iter().find(|map| map.name == "groups_hidden");
        Self {
            ring_overruns: available("devices").then_some(overruns),
            softnet_dropped: sum(|cpu| cpu.dropped),
            softnet_squeezed: sum(|cpu| cpu.time_squeezed),
            tcp_memory: host
                .tcp_memory
                .and_then(|memory| Some((memory.bytes?, memory.pressure?, memory.under_pressure?))),
            lost: snapshot
                .losses
                .iter()
                .map(|(_, count)| count)
                .chain(host.losses.iter().map(|(_, count)| count))
                .sum(),
            broken_probes: probes(Verdict::Broken),
            switched_off_probes: probes(Verdict::SwitchedOff),
            hidden_groups: hidden.map_or(0, |map| map.entries),
        }
    }
}

/// Data in a socket's queue, without the FIN.
pub(super) fn queue_bytes(live: &SocketLive) -> u32 {
    let queued = live.rcv_nxt.wrapping_sub(live.copied_seq).cast_signed().max(0).cast_unsigned();
    queued.saturating_sub(u32::from(live.flags & LIVE_FIN != 0))
}
