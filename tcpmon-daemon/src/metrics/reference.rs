//! `docs/metrics.md`, generated from the registry.

use std::fmt::Write as _;

use super::{Kind, Scope, drops::HARMLESS, families};

const INTRODUCTION: &str = "# Metrics

<!-- Made from the registry (tcpmon-daemon/src/metrics): `TCPMON_BLESS=1 cargo test -p tcpmon-daemon` writes it anew. -->

What `/metrics` serves, in this order.
Names end in their unit, and counters in `_total`.
Histograms are classic, and also native where Prometheus asks for protobuf.
A family whose source this host does not have is not shown, and `/status` reports why.
[operating.md](operating.md) describes what they cost and how many series to expect.
";

/// How Prometheus treats series that start and end, and what tcpmon does about it.
const TOTALS: &str = "
## Totals from birth to end

Take rates first and then sum them, as in `sum(rate(tcpmon_receive_bytes_total[5m]))`.
`rate()` and `increase()` look at each series separately, and treat a decrease as a restart from zero.
The plain sum of totals falls when a group is removed.

**End.** A group that has been idle for `group_ttl`, or that makes room for a busier one, is no longer on the metrics page.
Prometheus marks its series as ended; what they counted stays in every range that reaches back that far, and counts once.
Their totals are not added to any other series: Prometheus would count them as received within that one scrape.

**Birth.** `increase()` counts from the first sample of a series, so it misses what that sample already holds.
The counters and histograms of a new group are therefore shown as zero until every regular scraper has received a page with them, and with their real values from then on.
The same applies to a drop reason that is new to a group, and to a group that comes back: it counts as new, from zero.
Gauges have their real values from the first page on.

- A regular scraper has asked twice within five minutes, and is not overdue by more than one further interval.
  If there is none, the second page has the real values.
- Nothing is held at zero for longer than 60 s after it was first shown.
  If one of several scrapers comes less often than once a minute, that scraper may miss what a group received before its scrape.
- tcpmon tells scrapers apart by address, `User-Agent` and `Accept`.
  Of two that look the same, such as replicas behind one translated address, the second may miss what a group received before its first page.
  The same applies to the second of two scrapers that have not asked twice since tcpmon's start.
- `tcpmon_newborn_groups` is the number of groups and drop reasons that the page holds at zero.
  A client that asks only once, such as `curl`, must ask again to see the real values.

**Created timestamps** are in protobuf, which Prometheus requests with native histograms or with `--enable-feature=created-timestamp-zero-ingestion`.
For each counter and histogram of a group, the created timestamp is the time at which tcpmon last sampled the kernel without finding the group.
OpenMetrics text has no `_created` lines: a Prometheus without that feature would store each of them as a separate series, and a Prometheus with the feature asks for protobuf.

**Restart of tcpmon.** Everything except the host's own counters starts at zero.
This includes `tcpmon_tcp_events_total` and `tcpmon_ip_events_total`: they count from tcpmon's start, and in namespaces created later, from the creation of the namespace.
Sums since boot would not work: they fall with every namespace that has disappeared meanwhile, and Prometheus would count what is left as new.
";

/// Explains the label `effect` of `tcpmon_receive_drops_total`.
const DROPS: &str = "
### Harmless drops

`tcpmon_receive_drops_total` has `effect=\"harmless\"` where the kernel gives the reason only to segments that carry no new data, and `effect=\"lost\"` for every other reason: new data in such a segment must be sent again.
Reasons that the kernel gives to segments of both kinds count as `lost`.

| reason | given in (`net/ipv4/tcp_input.c`) | the segment |
|---|---|---|
";

/// Heading of a scope, and what applies to all its families.
const SCOPES: [(Scope, &str, &str); 3] = [
    (
        Scope::Group,
        "Receivers",
        "Each family has these labels:\n\
         \n\
         - `process`: the name of the reader's thread group, which tcpmon follows when it changes; for the kernel's own threads, the part before `/` (`kworker`).\n\
         - `service`: `local:PORT` where this host accepted the connection; `local:ephemeral` where the kernel chose the listening port (as for passive FTP and RPC), and for the ports of `ephemeral_ports`; `remote:PORT` where this host connected to a registered port (below 32768); otherwise `other`.\n\
         - `cgroup`, where `cgroup_label` is on.\n\
         \n\
         When there are more than `max_groups`, the busiest groups are shown, and what is in the others is counted under `process=\"other\", service=\"other\"` ([which](operating.md#more-groups-than-fit)).\n\
         A group that has been idle for `group_ttl` is removed, and its series end: see [below](#totals-from-birth-to-end).",
    ),
    (
        Scope::Host,
        "Host",
        "For the whole host, except devices and softnet, which are those of the daemon's own network namespace.",
    ),
    (Scope::Itself, "tcpmon itself", "Version, state of the probes and sources, losses, and cost."),
];

pub(super) fn markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (scope, heading, introduction) in SCOPES {
        write!(page, "\n## {heading}\n\n{introduction}\n\n| family | type | labels | meaning |\n|---|---|---|---|\n")
            .expect("a string takes all");
        for family in families().filter(|family| family.scope == scope) {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
                Kind::Info => "info (always 1)",
            };
            let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            writeln!(page, "| `{}` | {kind} | {} | {} |", family.name, labels.join(", "), family.help)
                .expect("a string takes all");
        }
        if scope == Scope::Group {
            page.push_str(DROPS);
            for (reason, function, why) in HARMLESS {
                writeln!(page, "| `{reason}` | `{function}` | {why} |").expect("a string takes all");
            }
        }
    }
    page + TOTALS
}
