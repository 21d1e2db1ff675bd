//! `/status`: the state of the daemon, as JSON.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use serde::Serialize;

use super::WebConfig;
use crate::{
    host_state::SourceStatus,
    metrics::Identity,
    model::snapshot::{MapUse, Observed},
    status::{FlightStatus, ProbeStatus, SandboxStatus},
};

#[derive(Serialize)]
struct Status<'a> {
    version: &'a str,
    revision: &'a str,
    kernel: &'a str,
    uptime_seconds: f64,
    probes: &'a [ProbeStatus],
    sources: &'a [SourceStatus],
    /// `null` if no web config file was given.
    web_config: Option<WebConfigStatus>,
    sandbox: &'a SandboxStatus,
    /// `null` if the settings have none.
    flight: Option<&'a FlightStatus>,
    losses: BTreeMap<&'a str, u64>,
    /// Sockets that tcpmon ignores, by reason.
    ignored_sockets: BTreeMap<&'a str, u64>,
    programs: Vec<ProgramStatus<'a>>,
    maps: &'a [MapUse],
    groups: usize,
    groups_suppressed: u64,
    sockets_found_late: u64,
}

#[derive(Serialize)]
struct ProgramStatus<'a> {
    name: &'a str,
    /// `null` while the kernel does not count runs.
    runs: Option<u64>,
    run_seconds: Option<f64>,
}

#[derive(Serialize)]
struct WebConfigStatus {
    file: String,
    /// Whether the current content of the file is in force.
    ok: bool,
    /// Why the current content is not in force, and earlier content still is.
    error: Option<String>,
}

/// Writes the page, indented for human readers.
pub(super) fn write(
    identity: &Identity,
    seen: &Observed,
    web: Option<&WebConfig>,
    sink: &mut impl Write,
) -> io::Result<()> {
    let Observed { snapshot, host, sandbox, flight } = seen;
    let programs = snapshot.programs.iter().map(|program| ProgramStatus {
        name: &program.name,
        runs: program.runs,
        run_seconds: program.run_time.map(|time| time.as_secs_f64()),
    });
    let losses = snapshot.losses.iter().map(|(what, count)| (what.as_str(), *count));
    let losses = losses.chain(host.losses.iter().copied());
    let status = Status {
        version: identity.version,
        revision: identity.revision,
        kernel: &identity.kernel,
        uptime_seconds: identity.since.elapsed().as_secs_f64(),
        probes: &snapshot.probes,
        sources: &host.sources,
        web_config: web.map(|web| {
            let error = web.problem();
            WebConfigStatus { file: web.file().display().to_string(), ok: error.is_none(), error }
        }),
        sandbox,
        flight: flight.as_ref(),
        losses: losses.collect(),
        ignored_sockets: snapshot.ignored.iter().copied().collect(),
        programs: programs.collect(),
        maps: &snapshot.maps,
        groups: snapshot.groups.len(),
        groups_suppressed: snapshot.groups_suppressed,
        sockets_found_late: snapshot.sockets_found_late,
    };
    serde_json::to_writer_pretty(&mut *sink, &status)?;
    sink.write_all(b"\n")
}
