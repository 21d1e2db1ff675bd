//! The doctor: reads the facts, decides, tells.

use std::io::Write as _;

use anyhow::Context as _;

use crate::{
    cli::{DoctorArgs, DoctorFormat},
    doctor::{examine, gather::gather, tell},
    sandbox,
};

/// Returns the exit code: 0 if nothing is found, 3 if tcpmon cannot run here, 1 for any other finding.
pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<u8> {
    // What the daemon gives up first is not needed here either, so both find the same.
    sandbox::begin().context("cannot give up capabilities")?;
    let facts = gather(&args.device)?;
    let goal = args.goal(&facts);
    let diagnosis = examine(&facts, &goal);
    let text = match args.format {
        DoctorFormat::Text => tell::text(&facts, &goal, &diagnosis),
        DoctorFormat::Json => tell::json(&facts, &goal, &diagnosis)? + "\n",
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(match (diagnosis.refuses(), diagnosis.findings.is_empty()) {
        (true, _) => 3,
        (false, true) => 0,
        (false, false) => 1,
    })
}
