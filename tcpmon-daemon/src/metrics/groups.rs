//! Families per group of sockets and readers.

use tcpmon_common::{
    histogram::{FILL_ACTIVATION, FILL_DEACTIVATION, FILL_SEGMENT},
    reader::{END_BLOCKED, END_EXITED, END_PREEMPTED},
    socket::byte_seconds,
};

use super::{
    family::{Family, Scope, per_group, per_group_and_label, per_group_and_labels, per_receiver},
    units::seconds,
};
use crate::{
    drop_effect::effect,
    model::snapshot::{Distribution, Group},
};

/// What sockets receive, and what waits in their queues.
pub(super) const FAMILIES: &[Family] = &[
    Scope::Group.counter(
        "tcpmon_receive_bytes_total",
        "bytes",
        &[],
        &["tcp_probe"],
        "In-order data that TCP accepted.",
        |page| per_group(page, |group| group.counters.sockets.received_bytes),
    ),
    Scope::Group.counter(
        "tcpmon_receive_segments_total",
        "",
        &[],
        &["tcp_probe"],
        "Data segments received, after GRO merged them.",
        |page| per_group(page, |group| group.counters.sockets.segments),
    ),
    Scope::Group.counter(
        "tcpmon_receive_read_bytes_total",
        "bytes",
        &[],
        &["tcp_rcv_space_adjust"],
        "Data that applications read from their sockets.",
        |page| per_group(page, |group| group.counters.sockets.read_bytes),
    ),
    Scope::Group.gauge(
        "tcpmon_receive_queue_bytes",
        "bytes",
        &[],
        &["snapshot"],
        "Data received and not yet read.",
        |page| per_group(page, |group| group.gauges.queue_bytes),
    ),
    Scope::Group.counter(
        "tcpmon_receive_queue_byte_seconds_total",
        "byte_seconds",
        &[],
        &["tcp_probe", "tcp_rcv_space_adjust"],
        "Time integral of the data that waits to be read. Its rate is the mean queue; its rate divided by the rate \
         of receive_read_bytes_total is the mean wait of a byte.",
        |page| per_group(page, |group| group.counters.sockets.queue_byte_seconds()),
    ),
    Scope::Group.counter(
        "tcpmon_receive_wait_byte_seconds_total",
        "byte_seconds",
        &["reason"],
        &["tcp_probe", "tcp_rcv_space_adjust"],
        "receive_queue_byte_seconds_total by what the reader did meanwhile: it was runnable and had no CPU \
         (scheduler), or anything else (application). Its rate divided by the rate of receive_read_bytes_total is \
         that part of the mean wait of a byte.",
        |page| {
            per_group_and_label(page, |group| {
                let totals = &group.counters.sockets;
                [("application", totals.application_byte_ticks), ("scheduler", totals.scheduler_byte_ticks)]
                    .map(|(reason, ticks)| (reason, byte_seconds(ticks)))
            })
        },
    ),
    Scope::Group.counter(
        "tcpmon_receive_limited_seconds_total",
        "seconds",
        &["cause"],
        &["tcp_probe", "tcp_rcv_space_adjust"],
        "Time of the sockets by what kept more data from arriving: the sender or the path (upstream), unread data \
         because the reader does something else (application) or has no CPU (scheduler), a window that is too small \
         for the path (window), or one that the kernel keeps small because memory is short (memory). They add up to \
         socket_seconds_total.",
        |page| {
            per_group_and_label(page, |group| {
                let totals = &group.counters.sockets;
                [
                    ("upstream", totals.upstream_limited_ns),
                    ("application", totals.application_limited_ns),
                    ("scheduler", totals.scheduler_limited_ns),
                    ("window", totals.window_limited_ns),
                    ("memory", totals.memory_limited_ns),
                ]
                .map(|(cause, ns)| (cause, seconds(ns)))
            })
        },
    ),
    Scope::Group.counter(
        "tcpmon_socket_seconds_total",
        "seconds",
        &[],
        &["tcp_probe", "tcp_rcv_space_adjust"],
        "Time of the sockets that was observed: divide by its rate for a value per socket.",
        |page| per_group(page, |group| seconds(group.counters.sockets.limited_ns())),
    ),
    Scope::Group.gauge(
        "tcpmon_receive_buffer_used_bytes",
        "bytes",
        &[],
        &["snapshot"],
        "Memory charged to the receive buffers (sk_rmem_alloc).",
        |page| per_group(page, |group| group.gauges.used_bytes),
    ),
    Scope::Group.gauge(
        "tcpmon_receive_buffer_limit_bytes",
        "bytes",
        &[],
        &["snapshot"],
        "Memory that the receive buffers may take (sk_rcvbuf).",
        |page| per_group(page, |group| group.gauges.limit_bytes),
    ),
    Scope::Group.histogram(
        "tcpmon_receive_buffer_fill_ratio",
        "ratio",
        &[],
        &["tcp_probe"],
        "Share of the receive buffer in use (sk_rmem_alloc / sk_rcvbuf) when a data segment arrives.",
        |page| per_receiver(page, |group| Distribution::of_fills(&group.counters.sockets, FILL_SEGMENT)),
    ),
    Scope::Group.gauge(
        "tcpmon_receive_backlog_bytes",
        "bytes",
        &[],
        &["snapshot"],
        "Memory of segments in the backlogs of sockets that are locked by their owners.",
        |page| per_group(page, |group| group.gauges.backlog_bytes),
    ),
    Scope::Group.gauge(
        "tcpmon_receive_out_of_order_bytes",
        "bytes",
        &[],
        &["snapshot"],
        "Data that waits for earlier data that is missing, according to the SACK blocks.",
        |page| per_group(page, |group| group.gauges.out_of_order_bytes),
    ),
    Scope::Group.gauge(
        "tcpmon_receive_window_bytes",
        "bytes",
        &[],
        &["snapshot"],
        "Windows advertised to the senders.",
        |page| per_group(page, |group| group.gauges.window_bytes),
    ),
    Scope::Group.counter(
        "tcpmon_receive_zero_window_seconds_total",
        "seconds",
        &[],
        &["tcp_probe", "tcp_rcv_space_adjust"],
        "Time during which the advertised window was below one segment.",
        |page| per_group(page, |group| seconds(group.counters.sockets.zero_window_ns)),
    ),
    Scope::Group.counter(
        "tcpmon_receive_buffer_growths_total",
        "",
        &[],
        &["tcp_rcvbuf_grow"],
        "Times that autotuning enlarged a receive buffer.",
        |page| per_group(page, |group| group.counters.sockets.growths),
    ),
    Scope::Group.counter(
        "tcpmon_receive_drops_total",
        "",
        &["reason", "effect"],
        &["kfree_skb"],
        "Received segments that the kernel dropped, by its own reason, and by effect: new data may be lost with \
         them (lost), or they contained none (harmless).",
        |page| {
            per_group_and_labels(page, |group| {
                let drops = group.counters.drops.iter();
                drops.map(|(reason, count)| ([reason.as_str(), effect(reason)], *count))
            })
        },
    ),
    Scope::Group.gauge("tcpmon_sockets", "", &[], &["snapshot"], "Sockets watched.", |page| {
        per_group(page, |group| group.gauges.sockets)
    }),
];

/// What happens during and between the timeslices of readers.
pub(super) const TIMESLICE_FAMILIES: &[Family] = &[
    Scope::Group.counter(
        "tcpmon_timeslices_total",
        "",
        &["end"],
        &["sched_switch"],
        "Times that a reader lost its CPU, by how: preempted, blocked (it went to sleep) or exited.",
        |page| {
            per_group_and_label(page, |group| {
                let ends = [("preempted", END_PREEMPTED), ("blocked", END_BLOCKED), ("exited", END_EXITED)];
                ends.map(|(name, end)| (name, group.counters.readers.ends[end as usize]))
            })
        },
    ),
    Scope::Group.histogram(
        "tcpmon_timeslice_fill_ratio",
        "ratio",
        &["edge"],
        &["sched_switch", "tcp_probe", "tcp_rcv_space_adjust"],
        "Share of the receive buffer in use when its reader got the CPU (activation) and when the reader lost it \
         (deactivation).",
        |page| {
            per_group_and_label(page, |group| {
                let edges = [("activation", FILL_ACTIVATION), ("deactivation", FILL_DEACTIVATION)];
                let edges = edges.into_iter().filter(|_| group.histograms);
                edges.map(|(edge, which)| (edge, Distribution::of_fills(&group.counters.sockets, which)))
            })
        },
    ),
    Scope::Group.histogram(
        "tcpmon_timeslice_seconds",
        "seconds",
        &[],
        &["sched_switch"],
        "Time on the CPU per timeslice of a reader.",
        |page| {
            per_receiver(page, |Group { counters, .. }| {
                Distribution::of_durations(&counters.readers.on_cpu, counters.readers.on_cpu_ns)
            })
        },
    ),
    Scope::Group.counter(
        "tcpmon_timeslice_arrived_bytes_total",
        "bytes",
        &["context"],
        &["sched_switch", "tcp_probe"],
        "Data that arrived while the reader was on its CPU (on_cpu), while it was not (off_cpu), and while no \
         reader was known (no_reader), as before the first read. The three add up to receive_bytes_total.",
        |page| {
            per_group_and_label(page, |group| {
                let totals = &group.counters.sockets;
                [
                    ("on_cpu", totals.arrived_on_cpu_bytes),
                    ("off_cpu", totals.arrived_off_cpu_bytes),
                    ("no_reader", totals.arrived_without_reader_bytes),
                ]
            })
        },
    ),
    Scope::Group.counter(
        "tcpmon_timeslice_read_bytes_total",
        "bytes",
        &[],
        &["tcp_rcv_space_adjust"],
        "Data that readers read in their timeslices.",
        |page| per_group(page, |group| group.counters.sockets.timeslice_read_bytes),
    ),
    Scope::Group.counter(
        "tcpmon_reader_cpu_seconds_total",
        "seconds",
        &[],
        &["tcp_rcv_space_adjust"],
        "Time that readers were on a CPU.",
        |page| per_group(page, |group| group.counters.readers.on_cpu_ns as f64 / 1e9),
    ),
    Scope::Group.counter(
        "tcpmon_reader_run_queue_seconds_total",
        "seconds",
        &[],
        &["tcp_rcv_space_adjust"],
        "Time that readers were runnable and waited for a CPU.",
        |page| per_group(page, |group| group.counters.readers.run_queue_wait_ns as f64 / 1e9),
    ),
    Scope::Group.histogram(
        "tcpmon_reader_run_queue_wait_seconds",
        "seconds",
        &[],
        &["sched_switch"],
        "Time that a reader was runnable and waited for a CPU, per activation.",
        |page| {
            per_receiver(page, |Group { counters, .. }| {
                Distribution::of_durations(&counters.readers.run_queue_wait, counters.readers.run_queue_wait_ns)
            })
        },
    ),
];
