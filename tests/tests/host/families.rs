//! The families of docs/metrics.md about the host, and the source of each.

use std::collections::BTreeMap;

use tcpmon_tests::Page;

const METRICS: &str = include_str!("../../../docs/metrics.md");

/// Sources and probes, with the prefixes of their families' names, without `tcpmon_`.
const SOURCES: [(&str, &str); 14] = [
    ("napi_", "napi_poll"),
    ("softnet_", "softnet"),
    ("tcp_events_", "netstat"),
    ("ip_events_", "netstat"),
    ("stuck_", "inet_diag"),
    ("orphan_", "sockstat"),
    ("context_switches_", "stat"),
    ("tcp_memory_pressure_seconds_", "netstat"),
    ("tcp_memory_", "tcp_memory"),
    ("memory_limit_", "sock_exceed_buf_limit"),
    ("zone_", "zones"),
    ("page_allocation_", "kernel_log"),
    ("psi_", "psi"),
    ("cgroup_", "cgroups"),
];

/// Every family of the host is on the metrics page if its source or probe is on. It is missing, with a reason in
/// `/status`, if that is off. There may be no devices and no control groups, so their families may be missing in any
/// case.
#[track_caller]
pub fn shown_where_the_source_is_on(page: &Page, status: &BTreeMap<String, (bool, String)>) {
    let section = METRICS.split("\n## ").find(|section| section.starts_with("Host\n")).expect("a section Host");
    let families: Vec<&str> =
        section.lines().filter_map(|line| line.strip_prefix("| `tcpmon_")?.split('`').next()).collect();
    assert!(families.len() > 25, "{families:?}");
    for family in families.into_iter().filter(|family| !family.starts_with("device_")) {
        let source = SOURCES.iter().find(|(beginning, _)| family.starts_with(beginning));
        let (_, source) = source.unwrap_or_else(|| panic!("which source has {family}? Add it to SOURCES"));
        let (on, reason) = status.get(*source).unwrap_or_else(|| panic!("/status does not tell of {source}"));
        let shown = !page.samples(&format!("tcpmon_{family}")).is_empty();
        assert!(shown == *on || (*source == "cgroups" && *on), "{family} shown: {shown}, {source} on: {on} {reason}");
        assert!(*on || !reason.is_empty(), "{source} is off without a reason");
    }
}
