//! `docs/metrics.md`, made from the registry.

use std::fmt::Write as _;

use super::{Kind, Scope, drops::HARMLESS, families};

const INTRODUCTION: &str = "# Metrics

<!-- Made from the registry (tcpmon-daemon/src/metrics): `TCPMON_BLESS=1 cargo test -p tcpmon-daemon` writes it anew. -->

What `/metrics` shows, in its order. Names end in their unit; counters in `_total`. Histograms are classic, and native too where Prometheus asks for
protobuf. A family whose source this host does not have is not shown, and `/status` says why. [operating.md](operating.md) has what they cost and how many
series to expect.
";

/// What Prometheus makes of series that begin and end, and what tcpmon does for it.
const TOTALS: &str = "
## Totals from birth to end

Ask for rates first and sum them then, as in `sum(rate(tcpmon_receive_bytes_total[5m]))`.
`rate()` and `increase()` look at each series alone, and take a fall for a restart from zero.
The plain sum of totals falls when a group leaves.

**End.** A group that has been idle for `group_ttl` is no longer on the page.
Prometheus marks its series as ended; what they counted stays in every range that reaches back so far, and counts once.
Their totals are added to no other series: Prometheus would take them for what was received within that one scrape.

**Birth.** `increase()` counts from the first sample of a series, so what that sample holds is lost.
So the counters and histograms of a new group are shown at zero until every regular scraper has had a page with them, and truly from then on.
The same is true of a drop reason that a group has not had before, and of a group that comes back: it is a new one, from zero.
Gauges are shown truly from the first page on.

- A regular scraper has asked twice within five minutes and is not overdue by more than another of its intervals. Where there is none, the second page shows the truth.
- Nothing is held for longer than 60 s after it was first shown. With several scrapers of which one comes less often than once a minute, that one may lose what a group received before it.
- Scrapers are told apart by address, `User-Agent` and `Accept`. Of two that look the same, such as replicas behind one translated address, the second may lose what a group received before its first page. So may the second of two that have not come twice since tcpmon's start.
- `tcpmon_newborn_groups` is how many the page holds at zero. Whoever asks once, as with `curl`, asks again to see them.

**Created timestamps** are in protobuf, which Prometheus asks for with native histograms or `--enable-feature=created-timestamp-zero-ingestion`.
They are for each counter and histogram of a group the moment of the last reading without the group.
OpenMetrics text has no `_created` lines: a Prometheus without that feature stores each of them as a series of its own, and one with it asks for protobuf.

**Restart of tcpmon.** Everything but the host's own counters begins at zero.
That includes `tcpmon_tcp_events_total` and `tcpmon_ip_events_total`: they count from tcpmon's start, in namespaces that were made later from their beginning.
Sums since the host was booted would not do: they fall with every namespace that has gone meanwhile, and Prometheus would take what is left for new.
";

/// Explains `effect` of `tcpmon_receive_drops_total`.
const DROPS: &str = "
### Harmless drops

`tcpmon_receive_drops_total` has `effect=\"harmless\"` where the kernel gives the reason only to segments that bring no new data, and `effect=\"lost\"` for every
other reason: what was new in such a segment must be sent again.
Reasons that are given to segments of both kinds are `lost`.

| reason | given in (`net/ipv4/tcp_input.c`) | the segment |
|---|---|---|
";

/// Heading of a scope, and what is true of all its families.
const SCOPES: [(Scope, &str, &str); 3] = [
    (
        Scope::Group,
        "Receivers",
        "Labels of each: `process`, the name of the reader's thread group; `service`, which is `local:PORT` where this host accepted the connection, \
         `remote:PORT` where it connected to a registered port (below 32768), else `other`; and `cgroup` where `cgroup_label` is on. What is beyond \
         `max_groups` pairs is counted under `process=\"other\", service=\"other\"`. A group that has been idle for `group_ttl` leaves, and its series end: \
         see [below](#totals-from-birth-to-end).",
    ),
    (
        Scope::Host,
        "Host",
        "Of the whole host, but devices and softnet, which are those of the daemon's own network namespace.",
    ),
    (Scope::Itself, "tcpmon itself", "What it is, whether it sees, what it lost and what it takes."),
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
