//! The resources that tcpmon itself uses, under the metric names that all Prometheus clients use.

use super::{
    family::{Family, Sample, Scope, Value},
    page::Page,
    usage::Usage,
};

const SOURCES: &[&str] = &["tcpmon"];

pub(super) const FAMILIES: &[Family] = &[
    Scope::Tcpmon.counter(
        "process_cpu_seconds_total",
        "seconds",
        &[],
        SOURCES,
        "CPU time that tcpmon has used, in user space and in the kernel.",
        |page| sample(page, |usage| Some(usage.cpu.as_secs_f64())),
    ),
    Scope::Tcpmon.gauge("process_resident_memory_bytes", "bytes", &[], SOURCES, "Resident memory of tcpmon.", |page| {
        sample(page, |usage| Some(usage.resident_bytes))
    }),
    Scope::Tcpmon.gauge("process_virtual_memory_bytes", "bytes", &[], SOURCES, "Address space of tcpmon.", |page| {
        sample(page, |usage| Some(usage.virtual_bytes))
    }),
    Scope::Tcpmon.gauge(
        "process_start_time_seconds",
        "seconds",
        &[],
        SOURCES,
        "When tcpmon started, in seconds since 1970.",
        |page| {
            let started = page.identity.started;
            started.map(|time| Sample::plain(time.as_secs_f64())).into_iter().collect()
        },
    ),
    Scope::Tcpmon.gauge("process_open_fds", "", &[], SOURCES, "File descriptors that tcpmon has open.", |page| {
        sample(page, |usage| Some(usage.open_fds))
    }),
    Scope::Tcpmon.gauge("process_max_fds", "", &[], SOURCES, "File descriptors that tcpmon may have open.", |page| {
        sample(page, |usage| usage.max_fds)
    }),
    Scope::Tcpmon.gauge("process_threads", "", &[], SOURCES, "Threads of tcpmon.", |page| {
        sample(page, |usage| Some(usage.threads))
    }),
];

/// The only series of a family; none if the value is not known.
fn sample<V: Into<Value<'static>>>(page: &Page, value: impl Fn(&Usage) -> Option<V>) -> Vec<Sample<'_>> {
    let value = page.usage.as_ref().and_then(value);
    value.map(Sample::plain).into_iter().collect()
}
