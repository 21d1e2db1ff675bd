//! Families about tcpmon: what it is, whether it sees, what it lost, what it costs.

use super::family::{Family, Kind, Read, Sample, Scope, Value};
use crate::model::snapshot::Verdict;

const fn itself(
    kind: Kind,
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    read: Read,
) -> Family {
    Family { name, kind, scope: Scope::Itself, unit, labels, help, read }
}

pub(super) const FAMILIES: &[Family] = &[
    itself(
        Kind::Info,
        "tcpmon_build_info",
        "",
        &["version", "kernel", "revision"],
        "Version and commit of tcpmon, and release of the kernel that it runs on.",
        |page| {
            let identity = &page.identity;
            let labels = [identity.version, &identity.kernel, identity.revision];
            vec![Sample { labels, ..Sample::plain(1) }]
        },
    ),
    itself(Kind::Gauge, "tcpmon_probe_attached", "", &["probe"], "Whether the probe runs (1) or not (0).", |page| {
        let probes = &page.snapshot.probes;
        probes.iter().map(|p| Sample::labelled(&p.name, p.verdict == Verdict::Attached)).collect()
    }),
    itself(
        Kind::Info,
        "tcpmon_probe_info",
        "",
        &["probe", "verdict", "reason"],
        "What became of the probe, why, and what is lost without it.",
        |page| {
            let probes = page.snapshot.probes.iter();
            let labels = probes.map(|probe| [&*probe.name, verdict(probe.verdict), &probe.reason]);
            labels.map(|labels| Sample { labels, ..Sample::plain(1) }).collect()
        },
    ),
    itself(
        Kind::Counter,
        "tcpmon_lost_total",
        "",
        &["what"],
        "Events, records and map entries that were lost, by what was lost; anything above zero is a gap in the figures.",
        |page| page.snapshot.losses.iter().map(|(what, count)| Sample::labelled(what, *count)).collect(),
    ),
    itself(
        Kind::Counter,
        "tcpmon_bpf_program_runs_total",
        "",
        &["program"],
        "Runs of the eBPF program, while the kernel counts them (kernel.bpf_stats_enabled).",
        |page| {
            let programs = page.snapshot.programs.iter();
            programs.filter_map(|p| Some(Sample::labelled(&p.name, p.runs?))).collect()
        },
    ),
    itself(
        Kind::Counter,
        "tcpmon_bpf_program_run_seconds_total",
        "seconds",
        &["program"],
        "Time spent in the eBPF program, while the kernel measures it (kernel.bpf_stats_enabled).",
        |page| {
            let programs = page.snapshot.programs.iter();
            programs.filter_map(|p| Some(Sample::labelled(&p.name, p.run_time?.as_secs_f64()))).collect()
        },
    ),
    itself(Kind::Gauge, "tcpmon_map_entries", "", &["map"], "Entries in use in the eBPF map.", |page| {
        page.snapshot.maps.iter().map(|map| Sample::labelled(&map.name, map.entries)).collect()
    }),
    itself(
        Kind::Gauge,
        "tcpmon_map_capacity",
        "",
        &["map"],
        "Entries that the eBPF map has room for; absent where only memory is the limit.",
        |page| {
            let maps = page.snapshot.maps.iter();
            maps.filter_map(|map| Some(Sample::labelled(&map.name, map.capacity?))).collect()
        },
    ),
    itself(
        Kind::Counter,
        "tcpmon_groups_suppressed_total",
        "",
        &[],
        "Sockets and readers that were counted under the group other because there were too many groups.",
        |page| vec![Sample::plain(page.snapshot.groups_suppressed)],
    ),
    itself(
        Kind::Gauge,
        "tcpmon_scrape_seconds",
        "seconds",
        &[],
        "Time that it took to read the kernel's state for this page.",
        |page| vec![Sample::plain(Value::Real(page.snapshot.took.as_secs_f64()))],
    ),
];

/// As it is spelt in `/status`, too.
const fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Attached => "attached",
        Verdict::Unsupported => "unsupported",
        Verdict::Broken => "broken",
    }
}
