//! Families about the host.

use std::borrow::Cow;

use super::{
    family::{Family, Sample, Scope},
    page::Page,
};
use crate::{
    host_state::{Device, Ring, Softnet, Zone},
    model::{cgroup_label::Cgroup, snapshot::NapiPolls},
};

/// How packets arrive.
pub(super) const NETWORK_FAMILIES: &[Family] = &[
    Scope::Host.counter(
        "tcpmon_device_rx_overruns_total",
        "",
        &["device", "counter"],
        &["devices"],
        "Received packets for which the ring of the network device had no room, by the driver's or rtnetlink's own \
         name for the counter. Each lost packet is in one counter of its device.",
        |page| {
            let devices = page.host.devices.iter();
            let counters = devices.flat_map(|device| device.overruns.iter().map(move |counter| (device, counter)));
            counters.map(|(device, (name, count))| Sample::with([(&device.name).into(), name.into()], *count)).collect()
        },
    ),
    Scope::Host.gauge(
        "tcpmon_device_rx_ring_entries",
        "",
        &["device"],
        &["devices"],
        "Descriptors in the receive ring of the network device, as configured.",
        |page| per_ring(page, |ring| ring.entries),
    ),
    Scope::Host.gauge(
        "tcpmon_device_rx_ring_max_entries",
        "",
        &["device"],
        &["devices"],
        "Largest number of descriptors that the receive ring of the network device can have.",
        |page| per_ring(page, |ring| ring.max_entries),
    ),
    Scope::Host.counter(
        "tcpmon_napi_polls_total",
        "",
        &["device"],
        &["napi_poll"],
        "NAPI polls, by network device. veth* is the sum of all veths, and backlog that of the CPUs' backlogs \
         (loopback, RPS).",
        |page| per_device(page, |napi| napi.polls),
    ),
    Scope::Host.counter(
        "tcpmon_napi_packets_total",
        "",
        &["device"],
        &["napi_poll"],
        "Work done in NAPI polls: packets, or the unit in which the driver counts its budget.",
        |page| per_device(page, |napi| napi.packets),
    ),
    Scope::Host.counter(
        "tcpmon_napi_budget_exhausted_total",
        "",
        &["device"],
        &["napi_poll"],
        "NAPI polls that used up their budget, so that more packets may have waited.",
        |page| per_device(page, |napi| napi.exhausted),
    ),
    Scope::Host.counter(
        "tcpmon_softnet_processed_total",
        "",
        &["cpu"],
        &["softnet"],
        "Packets that the CPU processed, from NICs and from other CPUs.",
        |page| per_cpu(page, |cpu| cpu.processed),
    ),
    Scope::Host.counter(
        "tcpmon_softnet_dropped_total",
        "",
        &["cpu"],
        &["softnet"],
        "Packets dropped because the backlog of the CPU was full (net.core.netdev_max_backlog).",
        |page| per_cpu(page, |cpu| cpu.dropped),
    ),
    Scope::Host.counter(
        "tcpmon_softnet_time_squeezed_total",
        "",
        &["cpu"],
        &["softnet"],
        "Times that the CPU stopped processing packets while some were left, because the budget or the time was \
         used up (net.core.netdev_budget, netdev_budget_usecs).",
        |page| per_cpu(page, |cpu| cpu.time_squeezed),
    ),
    Scope::Host.counter(
        "tcpmon_tcp_events_total",
        "",
        &["event"],
        &["netstat"],
        "Events that the kernel counts for TCP under this name (TcpExt in /proc/net/netstat), in all network \
         namespaces that tcpmon may enter.",
        |page| per_event(&page.host.tcp_events),
    ),
    Scope::Host.counter(
        "tcpmon_ip_events_total",
        "",
        &["event"],
        &["netstat"],
        "Events that the kernel counts for IPv4 under this name (IpExt in /proc/net/netstat), in all network \
         namespaces that tcpmon may enter.",
        |page| per_event(&page.host.ip_events),
    ),
    Scope::Host.gauge(
        "tcpmon_stuck_sockets",
        "",
        &["state"],
        &["inet_diag"],
        "Sockets that are not established (no longer, or not yet) and have data to send, whether or not a process \
         holds them, in all network namespaces that tcpmon may enter.",
        |page| page.host.stuck.iter().map(|stuck| Sample::labelled(stuck.state, stuck.sockets)).collect(),
    ),
    Scope::Host.gauge(
        "tcpmon_stuck_send_queue_bytes",
        "bytes",
        &["state"],
        &["inet_diag"],
        "Data that those sockets have to send (Send-Q). A FIN or SYN counts as one byte.",
        |page| page.host.stuck.iter().map(|stuck| Sample::labelled(stuck.state, stuck.send_queue_bytes)).collect(),
    ),
    Scope::Host.gauge(
        "tcpmon_orphan_sockets",
        "",
        &[],
        &["sockstat"],
        "TCP sockets that no process holds any more.",
        |page| page.host.orphan_sockets.map(Sample::plain).into_iter().collect(),
    ),
    Scope::Host.counter(
        "tcpmon_context_switches_total",
        "",
        &[],
        &["stat"],
        "Context switches of all CPUs since the host booted.",
        |page| page.host.context_switches.map(Sample::plain).into_iter().collect(),
    ),
];

/// Memory of packets and sockets.
pub(super) const MEMORY_FAMILIES: &[Family] = &[
    Scope::Host.gauge(
        "tcpmon_tcp_memory_bytes",
        "bytes",
        &[],
        &["tcp_memory"],
        "Memory of all TCP sockets of the host.",
        |page| page.host.tcp_memory.and_then(|memory| memory.bytes).map(Sample::plain).into_iter().collect(),
    ),
    Scope::Host.gauge(
        "tcpmon_tcp_memory_limit_bytes",
        "bytes",
        &["level"],
        &["tcp_memory"],
        "Limits of the memory of all TCP sockets (net.ipv4.tcp_mem): low, pressure and max.",
        |page| {
            let memory = page.host.tcp_memory.unwrap_or_default();
            let levels = [("low", memory.low), ("pressure", memory.pressure), ("max", memory.max)].into_iter();
            levels.filter_map(|(level, bytes)| Some(Sample::labelled(level, bytes?))).collect()
        },
    ),
    Scope::Host.gauge(
        "tcpmon_tcp_memory_pressure",
        "",
        &[],
        &["tcp_memory"],
        "Whether TCP is under memory pressure now (1) or not (0).",
        |page| page.host.tcp_memory.and_then(|memory| memory.under_pressure).map(Sample::plain).into_iter().collect(),
    ),
    Scope::Host.counter(
        "tcpmon_tcp_memory_pressure_seconds_total",
        "seconds",
        &[],
        &["netstat"],
        "Time during which TCP was under memory pressure. The kernel adds a period when it ends.",
        |page| {
            let events = page.host.tcp_events.iter();
            let ms = events.filter(|(name, _)| name == "TCPMemoryPressuresChrono").map(|(_, ms)| *ms);
            ms.map(|ms| Sample::plain(ms as f64 / 1e3)).collect()
        },
    ),
    Scope::Host.counter(
        "tcpmon_memory_limit_exceeded_total",
        "",
        &["kind"],
        &["sock_exceed_buf_limit"],
        "Requests of TCP sockets for memory that tcp_mem or the limit of a control group refused, by what the \
         memory was for: send or receive.",
        |page| {
            page.snapshot.memory_limit_exceeded.iter().map(|(kind, count)| Sample::labelled(*kind, *count)).collect()
        },
    ),
    Scope::Host.gauge(
        "tcpmon_zone_managed_bytes",
        "bytes",
        &["node", "zone"],
        &["zones"],
        "Memory of the zone that the page allocator manages, used or free.",
        |page| per_zone(page, |zone| zone.managed_bytes),
    ),
    Scope::Host.gauge(
        "tcpmon_zone_free_bytes",
        "bytes",
        &["node", "zone"],
        &["zones"],
        "Free memory in the zone.",
        |page| per_zone(page, |zone| zone.free_bytes),
    ),
    Scope::Host.gauge(
        "tcpmon_zone_watermark_bytes",
        "bytes",
        &["node", "zone", "level"],
        &["zones"],
        "Levels of free memory in the zone: below min, only atomic allocations succeed; below low, reclaim starts; \
         above high, it stops.",
        |page| {
            let zones = page.host.zones.iter();
            let levels = zones.flat_map(|zone| {
                [("min", zone.min_bytes), ("low", zone.low_bytes), ("high", zone.high_bytes)].map(|level| (zone, level))
            });
            levels
                .map(|(zone, (level, bytes))| {
                    let [node, name] = zone_labels(zone);
                    Sample::with([node, name, level.into()], bytes)
                })
                .collect()
        },
    ),
    Scope::Host.gauge(
        "tcpmon_zone_free_blocks",
        "",
        &["node", "zone", "order"],
        &["zones"],
        "Free blocks of 2^order pages in the zone.",
        |page| {
            let zones = page.host.zones.iter();
            let blocks = zones.flat_map(|zone| zone.free_blocks.iter().enumerate().map(move |block| (zone, block)));
            blocks
                .map(|(zone, (order, count))| {
                    let [node, name] = zone_labels(zone);
                    Sample::with([node, name, order.to_string().into()], *count)
                })
                .collect()
        },
    ),
    Scope::Host.counter(
        "tcpmon_page_allocation_failures_total",
        "",
        &["order", "context"],
        &["kernel_log"],
        "Requests for 2^order pages that failed, as the kernel logged them. Atomic requests cannot wait; packets \
         are received with these.",
        |page| {
            let failures = page.host.page_allocation_failures.iter().flatten();
            failures
                .map(|failure| {
                    let context = if failure.atomic { "atomic" } else { "other" };
                    Sample::with([failure.order.to_string().into(), context.into()], failure.count)
                })
                .collect()
        },
    ),
    Scope::Host.counter(
        "tcpmon_psi_memory_stalled_seconds_total",
        "seconds",
        &["kind"],
        &["psi"],
        "Time during which some, or all, tasks with work to do waited for memory (/proc/pressure/memory).",
        |page| {
            let stalls = page.host.memory_pressure_stalls.iter();
            let kinds = stalls.flat_map(|stalls| [("some", stalls.some), ("full", stalls.full)]);
            kinds.filter_map(|(kind, time)| Some(Sample::labelled(kind, time?.as_secs_f64()))).collect()
        },
    ),
    Scope::Host.gauge(
        "tcpmon_cgroup_socket_memory_bytes",
        "bytes",
        &["cgroup", "capped"],
        &["cgroups"],
        "Socket memory of the control groups with the most of it, and whether it counts towards a limit of the \
         group (memory.max). other is the sum of the rest.",
        |page| {
            let cgroups = page.host.cgroups.iter();
            cgroups
                .map(|group| {
                    let capped = if group.capped { "true" } else { "false" };
                    Sample::with([(&group.cgroup).into(), capped.into()], group.bytes)
                })
                .collect()
        },
    ),
    Scope::Host.info(
        "tcpmon_cgroup_info",
        "",
        &["cgroup", "pod_uid", "container_id"],
        &["snapshot"],
        "Kubernetes pod and container of each control group that is a label of the groups above, with \
         cgroup_label; empty where there is none.",
        |page| {
            let cgroups = page.snapshot.cgroups.iter();
            cgroups
                .map(|cgroup| {
                    let Cgroup { label, pod_uid, container_id } = &**cgroup;
                    Sample::with([label.into(), pod_uid.into(), container_id.into()], 1)
                })
                .collect()
        },
    ),
];

fn per_device(page: &Page, value: impl Fn(&NapiPolls) -> u64) -> Vec<Sample<'_>> {
    page.snapshot.napi.iter().map(|napi| Sample::labelled(&napi.device, value(napi))).collect()
}

fn per_ring(page: &Page, value: impl Fn(&Ring) -> u64) -> Vec<Sample<'_>> {
    let ring = |device: &Device| device.ring.as_ref().map(&value);
    page.host.devices.iter().filter_map(|device| Some(Sample::labelled(&device.name, ring(device)?))).collect()
}

fn per_cpu(page: &Page, value: impl Fn(&Softnet) -> u64) -> Vec<Sample<'_>> {
    page.host.softnet.iter().map(|cpu| Sample::labelled(cpu.cpu.to_string(), value(cpu))).collect()
}

fn per_event(events: &[(String, u64)]) -> Vec<Sample<'_>> {
    events.iter().map(|(name, count)| Sample::labelled(name, *count)).collect()
}

fn per_zone(page: &Page, value: impl Fn(&Zone) -> u64) -> Vec<Sample<'_>> {
    page.host.zones.iter().map(|zone| Sample::with(zone_labels(zone), value(zone))).collect()
}

fn zone_labels(zone: &Zone) -> [Cow<'_, str>; 2] {
    [zone.node.to_string().into(), (&zone.zone).into()]
}
