//! `docs/metrics.md`, made from the registry.

use std::fmt::Write as _;

use super::{Kind, Scope, families};

const INTRODUCTION: &str = "# Metrics

<!-- Made from the registry (tcpmon-daemon/src/metrics): `TCPMON_BLESS=1 cargo test -p tcpmon-daemon` writes it anew. -->

What `/metrics` shows, in its order. Names end in their unit; counters in `_total`. Histograms are classic, and native too where Prometheus asks for
protobuf. A family whose source this host does not have is not shown, and `/status` says why. [operating.md](operating.md) has what they cost and how many
series to expect.
";

/// Heading of a scope, and what is true of all its families.
const SCOPES: [(Scope, &str, &str); 3] = [
    (
        Scope::Group,
        "Receivers",
        "Labels of each: `process`, the name of the reader's thread group; `service`, which is `local:PORT` where this host accepted the connection, \
         `remote:PORT` where it connected to a registered port (below 32768), else `other`; and `cgroup` where `cgroup_label` is on. What is beyond \
         `max_groups` pairs, or has been idle for `group_ttl`, is counted under `process=\"other\", service=\"other\"`.",
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
    }
    page
}
