//! `/status`: what the daemon knows about itself, as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    metrics::Identity,
    model::snapshot::{MapUse, Probe, Snapshot},
};

#[derive(Serialize)]
struct Status<'a> {
    version: &'a str,
    revision: &'a str,
    kernel: &'a str,
    uptime_seconds: f64,
    probes: &'a [Probe],
    losses: BTreeMap<&'a str, u64>,
    programs: Vec<Program<'a>>,
    maps: &'a [MapUse],
    groups: usize,
    groups_suppressed: u64,
}

#[derive(Serialize)]
struct Program<'a> {
    name: &'a str,
    /// `null` while the kernel does not count.
    runs: Option<u64>,
    run_seconds: Option<f64>,
}

/// The page, indented for people.
pub(super) fn body(identity: &Identity, snapshot: &Snapshot) -> serde_json::Result<Vec<u8>> {
    let programs = snapshot.programs.iter().map(|program| Program {
        name: &program.name,
        runs: program.runs,
        run_seconds: program.run_time.map(|time| time.as_secs_f64()),
    });
    let mut body = serde_json::to_vec_pretty(&Status {
        version: identity.version,
        revision: identity.revision,
        kernel: &identity.kernel,
        uptime_seconds: identity.since.elapsed().as_secs_f64(),
        probes: &snapshot.probes,
        losses: snapshot.losses.iter().map(|(what, count)| (what.as_str(), *count)).collect(),
        programs: programs.collect(),
        maps: &snapshot.maps,
        groups: snapshot.groups.len(),
        groups_suppressed: snapshot.groups_suppressed,
    })?;
    body.push(b'\n');
    Ok(body)
}
