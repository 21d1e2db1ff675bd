//! A metrics page for tests: two groups, one of which has labels that need escaping.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tcpmon_common::{
    histogram::{FILL_ACTIVATION, FILL_DEACTIVATION, FILL_SEGMENT, TIME_BINS},
    reader::ReaderTotals,
    socket::SocketTotals,
};

use super::{Identity, page::Page, usage::Usage};
use crate::{
    host_state::{
        CgroupSockets, Device, Host, PageAllocationFailures, PressureStalls, Ring, Softnet, SourceStatus, Stuck,
        TcpMemory, Zone,
    },
    model::{
        cgroup_label::Cgroup,
        snapshot::{Group, GroupCounters, GroupGauges, GroupKey, MapUse, NapiPolls, ProgramRuns, Snapshot},
    },
    status::{ProbeStatus, Verdict},
};

pub(super) fn page() -> Page {
    Page {
        shown: None,
        snapshot: Arc::new(snapshot(vec![
            busy(GroupKey { process: "iperf3".into(), service: "local:5201".into(), cgroup: None }),
            Group {
                key: GroupKey { process: "odd \"name\" \\ \n".into(), service: "other".into(), cgroup: None }.into(),
                born: Instant::now(),
                counters: GroupCounters::default(),
                gauges: GroupGauges::default(),
                histograms: false,
            },
        ])),
        host: Arc::new(host()),
        identity: Arc::new(Identity {
            version: "0.1.0",
            revision: "0123abc",
            kernel: "6.18.0-test".into(),
            started: Some(Duration::from_millis(1_700_000_000_250)),
            since: Instant::now(),
            since_1970: Duration::from_millis(1_700_000_100_500),
        }),
        usage: Some(Usage {
            cpu: Duration::from_millis(1250),
            resident_bytes: 12 << 20,
            virtual_bytes: 90 << 20,
            threads: 3,
            open_fds: 25,
            max_fds: Some(1024),
        }),
    }
}

/// A group in which all values differ from each other.
pub(super) fn busy(key: GroupKey) -> Group {
    Group {
        key: key.into(),
        born: Instant::now(),
        counters: GroupCounters {
            sockets: sockets(),
            readers: readers(),
            drops: vec![("socket_rcvbuff".into(), 14), ("tcp_ofomerge".into(), 15)],
        },
        gauges: GroupGauges {
            sockets: 16,
            queue_bytes: 17,
            used_bytes: 18,
            limit_bytes: 19,
            backlog_bytes: 20,
            out_of_order_bytes: 21,
            window_bytes: 22,
        },
        histograms: true,
    }
}

pub(super) fn snapshot(groups: Vec<Group>) -> Snapshot {
    let probe = |name: &str, verdict, reason: &str| ProbeStatus { name: name.into(), verdict, reason: reason.into() };
    Snapshot {
        groups,
        cgroups: vec![
            Arc::new(Cgroup { label: "nginx.service".into(), ..Cgroup::default() }),
            Arc::new(Cgroup {
                label: "pod/6bd2a4d3-a55a-4450-b6fd-2a7ecc72c904/0123456789ab".into(),
                pod_uid: "6bd2a4d3-a55a-4450-b6fd-2a7ecc72c904".into(),
                container_id: "0123456789abcdef".repeat(4),
            }),
        ],
        napi: vec![NapiPolls { device: "eth0".into(), polls: 31, packets: 32, exhausted: 33 }],
        memory_limit_exceeded: vec![("send", 60), ("receive", 61)],
        ignored: vec![("mptcp", 62)],
        probes: vec![
            probe("tcp_probe", Verdict::Attached, ""),
            probe("tcp_rcvbuf_grow", Verdict::Unsupported, "no such tracepoint before 6.18"),
        ],
        losses: vec![("drop_entry".into(), 0), ("socket_state".into(), 34)],
        programs: vec![
            ProgramRuns { name: "segment".into(), runs: Some(35), run_time: Some(Duration::from_nanos(36_000)) },
            ProgramRuns { name: "read".into(), runs: None, run_time: None },
        ],
        maps: vec![
            MapUse { name: "readers".into(), entries: 37, capacity: 4096 },
            MapUse { name: "sockets".into(), entries: 38, capacity: 262_144 },
        ],
        groups_suppressed: 39,
        sockets_found_late: 40,
        connections_opened: 41,
        new_at_zero: 95,
        took: Duration::from_micros(1500),
    }
}

/// A host in which all values differ from each other.
fn host() -> Host {
    let source =
        |name, available, reason: &str| SourceStatus { name, available, switched_off: false, reason: reason.into() };
    let off = SourceStatus { switched_off: true, ..source("zones", false, "switched off") };
    Host {
        devices: vec![
            Device {
                name: "eth0".into(),
                overruns: vec![("rx_missed_errors".into(), 62), ("rx_no_buffer_count".into(), 63)],
                ring: Some(Ring { entries: 512, max_entries: 4096 }),
            },
            Device { name: "veth0".into(), overruns: vec![("tx_dropped".into(), 64)], ring: None },
        ],
        softnet: vec![
            Softnet { cpu: 0, processed: 65, dropped: 66, time_squeezed: 67 },
            Softnet { cpu: 12, processed: 68, dropped: 69, time_squeezed: 70 },
        ],
        tcp_memory: Some(TcpMemory {
            bytes: Some(71),
            low: Some(72),
            pressure: Some(73),
            max: Some(74),
            under_pressure: Some(true),
        }),
        orphan_sockets: Some(75),
        connections_opened: Some(42),
        tcp_events: vec![("TCPMemoryPressuresChrono".into(), 76), ("TCPRcvQDrop".into(), 77)],
        ip_events: vec![("InTruncatedPkts".into(), 78)],
        stuck: vec![Stuck { state: "fin_wait_1", sockets: 79, send_queue_bytes: 80 }],
        zones: vec![Zone {
            node: 1,
            zone: "Normal".into(),
            managed_bytes: 81,
            free_bytes: 82,
            min_bytes: 83,
            low_bytes: 84,
            high_bytes: 85,
            free_blocks: vec![86, 87],
        }],
        page_allocation_failures: Some(vec![
            PageAllocationFailures { order: 0, atomic: true, count: 88 },
            PageAllocationFailures { order: 3, atomic: false, count: 89 },
        ]),
        memory_pressure_stalls: Some(PressureStalls {
            some: Some(Duration::from_micros(90)),
            full: Some(Duration::from_micros(91)),
        }),
        cgroups: vec![CgroupSockets { cgroup: "/system.slice/a.service".into(), capped: true, bytes: 92 }],
        context_switches: Some(93),
        losses: vec![("kernel_log_record", 94)],
        sources: vec![source("softnet", true, ""), source("kernel_log", false, "needs CAP_SYSLOG"), off],
    }
}

fn sockets() -> SocketTotals {
    let mut totals = SocketTotals {
        received_bytes: 9_007_199_254_740_991,
        read_bytes: 1_000_001,
        segments: 1_002,
        queue_byte_ticks: 1_205_625_000,
        scheduler_byte_ticks: 205_625_000,
        application_byte_ticks: 1_000_000_000,
        observed_ns: 100_000_000_000,
        upstream_limited_ns: 40_000_000_000,
        reader_limited_ns: 50_000_000_000,
        application_limited_ns: 30_000_000_000,
        scheduler_limited_ns: 20_000_000_000,
        window_limited_ns: 9_000_000_000,
        memory_limited_ns: 1_000_000_000,
        zero_window_ns: 1_500_000_000,
        growths: 3,
        arrived_on_cpu_bytes: 1_003,
        arrived_off_cpu_bytes: 1_004,
        arrived_without_reader_bytes: 5,
        timeslice_read_bytes: 1_005,
        ..SocketTotals::default()
    };
    for (which, seed) in [(FILL_SEGMENT, 10), (FILL_ACTIVATION, 20), (FILL_DEACTIVATION, 30)] {
        totals.fill_sums[which] = seed * 640;
        for (bin, count) in totals.fills.iter_mut().zip(seed..) {
            bin[which] = count;
        }
    }
    totals
}

fn readers() -> ReaderTotals {
    ReaderTotals {
        ends: [11, 12, 13],
        on_cpu_ns: 40_000_000,
        on_cpu: durations(40),
        run_queue_wait_ns: 50_000_000,
        run_queue_wait: durations(50),
    }
}

/// Counts in the bins from 1 us to 1 ms.
fn durations(seed: u64) -> [u64; TIME_BINS] {
    let mut bins = [0; TIME_BINS];
    for (bin, count) in bins[4..14].iter_mut().zip(seed..) {
        *bin = count;
    }
    bins
}
