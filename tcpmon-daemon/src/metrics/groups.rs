//! Families per group of sockets and readers.

use tcpmon_common::reader::{END_BLOCKED, END_EXITED, END_PREEMPTED};

use super::{
    drops::effect,
    family::{Family, Kind, Scope, per_group, per_group_and_label, per_group_and_labels, seconds},
};

/// What sockets receive, and what waits in their queues.
pub(super) const FAMILIES: &[Family] = &[
    Scope::Group.family(
        Kind::Counter,
        "tcpmon_receive_bytes_total",
        "bytes",
        &[],
        "In-order data that TCP accepted.",
        |page| per_group(page, |group| group.counters.received_bytes),
    ),
    Scope::Group.family(
        Kind::Counter,
        "tcpmon_receive_segments_total",
        "",
        &[],
        "Data segments received, after GRO merged them.",
        |page| per_group(page, |group| group.counters.segments),
    ),
    Scope::Group.family(
        Kind::Counter,
        "tcpmon_receive_read_bytes_total",
        "bytes",
        &[],
        "Data that applications read from their sockets.",
        |page| per_group(page, |group| group.counters.read_bytes),
    ),
    Scope::Group.family(
        Kind::Gauge,
        "tcpmon_receive_queue_bytes",
        "bytes",
        &[],
        "Data received and not yet read.",
        |page| per_group(page, |group| group.gauges.queue_bytes),
    ),
    Scope::Group.family(
        Kind::Counter,
        "tcpmon_receive_queue_byte_seconds_total",
        "byte_seconds",
        &[],
        "Time integral of the data that waits to be read. Its rate is the mean queue; its rate divided by the rate \
         of receive_read_bytes_total is the mean wait of a byte.",
        |page| per_group(page, |group| group.counters.queue_byte_seconds),
    ),
    Scope::Group.family(
        Kind::Gauge,
        "tcpmon_receive_buffer_used_bytes",
        "bytes",
        &[],
        "Memory charged to the receive buffers (sk_rmem_alloc).",
        |page| per_group(page, |group| group.gauges.used_bytes),
    ),
    Scope::Group.family(
        Kind::Gauge,
        "tcpmon_receive_buffer_limit_bytes",
        "bytes",
        &[],
        "Memory that the receive buffers may take (sk_rcvbuf).",
        |page| per_group(page, |group| group.gauges.limit_bytes),
    ),
    Scope::Group.family(
        Kind::Histogram,
        "tcpmon_receive_buffer_fill_ratio",
        "ratio",
        &[],
        "Share of the receive buffer in use (sk_rmem_alloc / sk_rcvbuf) when a data segment arrives.",
        |page| per_group(page, |group| &group.counters.segment_fill),
    ),
    Scope::Group.family(
        Kind::Gauge,
        "tcpmon_receive_backlog_bytes",
        "bytes",
        &[],
        "Memory of segments in the backlogs of sockets that are locked by their owners.",
        |page| per_group(page, |group| group.gauges.backlog_bytes),
    ),
    Scope::Group.family(
        Kind::Gauge,
        "tcpmon_receive_out_of_order_bytes",
        "bytes",
        &[],
        "Data that waits for earlier data that is missing, according to the SACK blocks.",
        |page| per_group(page, |group| group.gauges.out_of_order_bytes),
    ),
    Scope::Group.family(
        Kind::Gauge,
        "tcpmon_receive_window_bytes",
        "bytes",
        &[],
        "Windows advertised to the senders.",
        |page| per_group(page, |group| group.gauges.window_bytes),
    ),
    Scope::Group.family(
        Kind::Counter,
        "tcpmon_receive_zero_window_seconds_total",
        "seconds",
        &[],
        "Time during which the advertised window was below one segment.",
        |page| per_group(page, |group| seconds(group.counters.zero_window_ns)),
    ),
    Scope::Group.family(
        Kind::Counter,
        "tcpmon_receive_buffer_growths_total",
        "",
        &[],
        "Times that autotuning enlarged a receive buffer.",
        |page| per_group(page, |group| group.counters.growths),
    ),
    Scope::Group.family(
        Kind::Counter,
        "tcpmon_receive_drops_total",
        "",
        &["reason", "effect"],
        "Received segments that the kernel dropped, by its own reason, and by effect: new data may be lost with \
         them (lost), or they contained none (harmless).",
        |page| {
            per_group_and_labels(page, |group| {
                let drops = group.counters.drops.iter();
                drops.map(|(reason, count)| ([reason.as_str(), effect(reason)], *count))
            })
        },
    ),
    Scope::Group.family(Kind::Gauge, "tcpmon_sockets", "", &[], "Sockets watched.", |page| {
        per_group(page, |group| group.gauges.sockets)
    }),
];

/// What happens during and between the timeslices of readers.
pub(super) const TIMESLICE_FAMILIES: &[Family] = &[
    Scope::Group.family(
        Kind::Counter,
        "tcpmon_timeslices_total",
        "",
        &["end"],
        "Times that a reader lost its CPU, by how: preempted, blocked (it went to sleep) or exited.",
        |page| {
            per_group_and_label(page, |group| {
                let ends = [("preempted", END_PREEMPTED), ("blocked", END_BLOCKED), ("exited", END_EXITED)];
                ends.map(|(name, end)| (name, group.counters.timeslices[end as usize]))
            })
        },
    ),
    Scope::Group.family(
        Kind::Histogram,
        "tcpmon_timeslice_fill_ratio",
        "ratio",
        &["edge"],
        "Share of the receive buffer in use when its reader got the CPU (activation) and when the reader lost it \
         (deactivation).",
        |page| {
            per_group_and_label(page, |group| {
                let counters = &group.counters;
                [("activation", &counters.activation_fill), ("deactivation", &counters.deactivation_fill)]
            })
        },
    ),
    Scope::Group.family(
        Kind::Histogram,
        "tcpmon_timeslice_seconds",
        "seconds",
        &[],
        "Time on the CPU per timeslice of a reader.",
        |page| per_group(page, |group| &group.counters.on_cpu),
    ),
    Scope::Group.family(
        Kind::Counter,
        "tcpmon_timeslice_arrived_bytes_total",
        "bytes",
        &["context"],
        "Data that arrived while the reader was on its CPU (on_cpu), while it was not (off_cpu), and while no \
         reader was known (no_reader), as before the first read. The three add up to receive_bytes_total.",
        |page| {
            per_group_and_label(page, |group| {
                let counters = &group.counters;
                [
                    ("on_cpu", counters.arrived_on_cpu_bytes),
                    ("off_cpu", counters.arrived_off_cpu_bytes),
                    ("no_reader", counters.arrived_without_reader_bytes),
                ]
            })
        },
    ),
    Scope::Group.family(
        Kind::Counter,
        "tcpmon_timeslice_read_bytes_total",
        "bytes",
        &[],
        "Data that readers read in their timeslices.",
        |page| per_group(page, |group| group.counters.timeslice_read_bytes),
    ),
    Scope::Group.family(
        Kind::Histogram,
        "tcpmon_reader_run_queue_wait_seconds",
        "seconds",
        &[],
        "Time that a reader was runnable and waited for a CPU, per activation.",
        |page| per_group(page, |group| &group.counters.run_queue_wait),
    ),
];
