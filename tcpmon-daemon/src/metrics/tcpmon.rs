//! Families about tcpmon itself: what it is, whether it sees events, what it lost, what it costs.

use std::borrow::Cow;

use super::family::{Family, Sample, Scope, Value};
use crate::status::Verdict;

pub(super) const FAMILIES: &[Family] = &[
    Scope::Tcpmon.info(
        "tcpmon_build_info",
        "",
        &["version", "kernel", "revision"],
        &["tcpmon"],
        "Version and commit of tcpmon, and release of the kernel on which it runs.",
        |page| {
            let identity = &page.identity;
            let labels = [identity.version, &identity.kernel, identity.revision];
            vec![Sample::with(labels.map(Cow::Borrowed), 1)]
        },
    ),
    Scope::Tcpmon.gauge(
        "tcpmon_probe_attached",
        "",
        &["probe"],
        &["tcpmon"],
        "Whether the probe runs (1) or not (0). A probe that is switched off is not shown.",
        |page| {
            let probes = page.snapshot.probes.iter().filter(|probe| probe.verdict != Verdict::SwitchedOff);
            probes.map(|p| Sample::labelled(&p.name, p.verdict == Verdict::Attached)).collect()
        },
    ),
    Scope::Tcpmon.info(
        "tcpmon_probe_info",
        "",
        &["probe", "verdict", "reason"],
        &["tcpmon"],
        "State of the probe, the reason for it, and what is missing without the probe.",
        |page| {
            let probes = page.snapshot.probes.iter();
            let labels = probes.map(|probe| [&*probe.name, verdict(probe.verdict), &probe.reason]);
            labels.map(|labels| Sample::with(labels.map(Cow::Borrowed), 1)).collect()
        },
    ),
    Scope::Tcpmon.gauge(
        "tcpmon_host_source_available",
        "",
        &["source"],
        &["tcpmon"],
        "Whether a source other than the eBPF programs (/proc, netlink, the kernel log) can be read (1) or not (0). \
         /status gives the reason. A source that is switched off is not shown.",
        |page| {
            let sources = page.host.sources.iter().filter(|source| !source.switched_off);
            sources.map(|source| Sample::labelled(source.name, source.available)).collect()
        },
    ),
    Scope::Tcpmon.counter(
        "tcpmon_lost_total",
        "",
        &["what"],
        &["tcpmon"],
        "Events, records and map entries that were lost, by kind. If it is above zero, the other metrics are \
         incomplete.",
        |page| {
            let seen = page.snapshot.losses.iter().map(|(what, count)| Sample::labelled(what, *count));
            seen.chain(page.host.losses.iter().map(|(what, count)| Sample::labelled(*what, *count))).collect()
        },
    ),
    Scope::Tcpmon.counter(
        "tcpmon_sockets_ignored_total",
        "",
        &["why"],
        &["inet_sock_set_state"],
        "Established sockets that are not counted, by reason. mptcp: they are subflows of MPTCP connections, and \
         applications read from those instead.",
        |page| page.snapshot.ignored.iter().map(|(why, count)| Sample::labelled(*why, *count)).collect(),
    ),
    Scope::Tcpmon.counter(
        "tcpmon_bpf_program_runs_total",
        "",
        &["program"],
        &["tcpmon"],
        "Runs of the eBPF program, while the kernel counts them (kernel.bpf_stats_enabled).",
        |page| {
            let programs = page.snapshot.programs.iter();
            programs.filter_map(|p| Some(Sample::labelled(&p.name, p.runs?))).collect()
        },
    ),
    Scope::Tcpmon.counter(
        "tcpmon_bpf_program_run_seconds_total",
        "seconds",
        &["program"],
        &["tcpmon"],
        "Time spent in the eBPF program, while the kernel measures it (kernel.bpf_stats_enabled).",
        |page| {
            let programs = page.snapshot.programs.iter();
            programs.filter_map(|p| Some(Sample::labelled(&p.name, p.run_time?.as_secs_f64()))).collect()
        },
    ),
    Scope::Tcpmon.gauge(
        "tcpmon_map_entries",
        "",
        &["map"],
        &["tcpmon"],
        "Entries in use in the eBPF map, or in a table of the daemon (groups, groups_hidden).",
        |page| page.snapshot.maps.iter().map(|map| Sample::labelled(&map.name, map.entries)).collect(),
    ),
    Scope::Tcpmon.gauge(
        "tcpmon_map_capacity",
        "",
        &["map"],
        &["tcpmon"],
        "Entries for which the eBPF map or the table of the daemon has room.",
        |page| page.snapshot.maps.iter().map(|map| Sample::labelled(&map.name, map.capacity)).collect(),
    ),
    Scope::Tcpmon.counter(
        "tcpmon_groups_suppressed_total",
        "",
        &[],
        &["tcpmon"],
        "Sockets and readers that were counted under the group other because there were too many groups.",
        |page| vec![Sample::plain(page.snapshot.groups_suppressed)],
    ),
    Scope::Tcpmon.counter(
        "tcpmon_connections_opened_total",
        "",
        &["counted_by"],
        &["inet_sock_set_state", "netstat"],
        "Connections that started to open, as counted by the kernel (ActiveOpens and PassiveOpens, in all network \
         namespaces that tcpmon may enter) and by the eBPF programs. The programs missed the difference, except for \
         connections that they found later (tcpmon_sockets_found_late_total). A connect() that finds no free port is \
         not counted; if a page was made while it looked for one, it counts until another connection starts to open.",
        |page| {
            let kernel = page.host.connections_opened.map(|count| Sample::labelled("kernel", count));
            // Without the kernel's count, the programs' count cannot be compared with anything, so neither is shown.
            let programs = kernel.is_some().then(|| Sample::labelled("programs", page.snapshot.connections_opened));
            kernel.into_iter().chain(programs).collect()
        },
    ),
    Scope::Tcpmon.counter(
        "tcpmon_sockets_found_late_total",
        "",
        &[],
        &["tcp_probe", "tcp_rcv_space_adjust"],
        "Connections whose start no program saw, or that waited to be accepted when tcpmon started. No byte is \
         lost: they are counted from their first byte.",
        |page| vec![Sample::plain(page.snapshot.sockets_found_late)],
    ),
    Scope::Tcpmon.gauge(
        "tcpmon_groups_held_at_zero",
        "",
        &[],
        &["tcpmon"],
        "Groups, and new drop reasons and histograms of other groups, whose counters are zero on this page because a \
         regular scraper has not seen them yet.",
        |page| vec![Sample::plain(page.snapshot.new_at_zero)],
    ),
    Scope::Tcpmon.gauge(
        "tcpmon_scrape_duration_seconds",
        "seconds",
        &[],
        &["tcpmon"],
        "Time that it took to read the kernel's state for this page.",
        |page| vec![Sample::plain(Value::Real(page.snapshot.took.as_secs_f64()))],
    ),
];

/// The same spelling as in `/status`.
const fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Attached => "attached",
        Verdict::Unsupported => "unsupported",
        Verdict::Broken => "broken",
        Verdict::SwitchedOff => "switched_off",
    }
}
