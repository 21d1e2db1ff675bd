//! `docs/metrics.md`, generated from the registry.

use std::fmt::Write as _;

use super::{FamilyType, Scope, families};
use crate::drop_effect::HARMLESS;

const INTRODUCTION: &str = include_str!("reference/introduction.md");

/// How Prometheus treats series that start and end, and what tcpmon does about it.
const TOTALS: &str = include_str!("reference/totals.md");

/// The sources that can be switched off.
const SWITCHES: &str = include_str!("reference/switches.md");

/// Explains the label `effect` of `tcpmon_receive_drops_total`.
const DROPS: &str = include_str!("reference/drops.md");

/// Heading of a scope, and what applies to all its families.
const SCOPES: [(Scope, &str, &str); 3] = [
    (Scope::Group, "Receivers", include_str!("reference/receivers.md")),
    (
        Scope::Host,
        "Host",
        "For the whole host, except devices and softnet, which are those of the daemon's own network namespace.\n\
         Six sources can be [switched off](#what-node_exporter-has-too).",
    ),
    (Scope::Tcpmon, "tcpmon itself", "Version, state of the probes and sources, losses, and cost."),
];

pub(super) fn markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (scope, heading, introduction) in SCOPES {
        write!(
            page,
            "\n## {heading}\n\n{introduction}\n\n| family | type | labels | source | meaning |\n|---|---|---|---|---|\n"
        )
        .expect("a string takes all");
        for family in families().filter(|family| family.scope == scope) {
            let kind = match family.kind {
                FamilyType::Counter => "counter",
                FamilyType::Gauge => "gauge",
                FamilyType::Histogram => "histogram",
                FamilyType::Info => "info (always 1)",
            };
            let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            let sources: Vec<_> = family.sources.iter().map(|source| format!("`{source}`")).collect();
            let (labels, sources) = (labels.join(", "), sources.join(", "));
            writeln!(page, "| `{}` | {kind} | {labels} | {sources} | {} |", family.name, family.help)
                .expect("a string takes all");
        }
        if scope == Scope::Host {
            page.push_str(SWITCHES);
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
