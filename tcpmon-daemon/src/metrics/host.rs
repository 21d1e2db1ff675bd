//! Families about the host.

use super::{
    collect::Page,
    family::{Family, Kind, Sample, Scope},
};
use crate::model::snapshot::Napi;

/// A counter per network device.
const fn device(name: &'static str, help: &'static str, read: super::family::Read) -> Family {
    Family { name, kind: Kind::Counter, scope: Scope::Host, unit: "", labels: &["device"], help, read }
}

pub(super) const FAMILIES: &[Family] = &[
    device(
        "tcpmon_napi_polls_total",
        "NAPI polls, by network device; backlog is the backlog of the CPUs (loopback, RPS).",
        |page| per_device(page, |napi| napi.polls),
    ),
    device(
        "tcpmon_napi_packets_total",
        "Work done in NAPI polls: packets, or what the driver counts its budget in.",
        |page| per_device(page, |napi| napi.packets),
    ),
    device("tcpmon_napi_budget_exhausted_total", "NAPI polls that used up their budget: more was waiting.", |page| {
        per_device(page, |napi| napi.exhausted)
    }),
];

fn per_device(page: &Page, value: impl Fn(&Napi) -> u64) -> Vec<Sample<'_>> {
    page.snapshot.napi.iter().map(|napi| Sample::labelled(&napi.device, value(napi))).collect()
}
