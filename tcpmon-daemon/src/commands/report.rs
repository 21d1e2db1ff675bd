//! `tcpmon report`: reads traces, decides, and prints the result.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::Context as _;
use tcpmon_trace::summary::Summary;

use super::trace_file::open_trace;
use crate::{
    cli::{ReportArgs, ReportFormat},
    report::{
        html::Drawn,
        read::{Trace, TraceFile},
        render::{Comparison, TraceReport},
        timeline::Timelines,
    },
};

pub(super) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let limit = args.limit as usize;
    let of = |files: &[PathBuf]| trace(files, args.format == ReportFormat::Html);
    let text = match args.files.as_slice() {
        [first, second] if !args.merge => {
            let (first, second) = (of(std::slice::from_ref(first))?, of(std::slice::from_ref(second))?);
            match args.format {
                ReportFormat::Text => Comparison::of(&first.0, &second.0, limit).text(),
                ReportFormat::Json => Comparison::of(&first.0, &second.0, limit).json()? + "\n",
                ReportFormat::Html => drawn(&first).page_beside(&drawn(&second), limit)?,
            }
        }
        files => {
            let trace = of(files)?;
            match args.format {
                ReportFormat::Text => TraceReport::of(&trace.0, limit).text(),
                ReportFormat::Json => TraceReport::of(&trace.0, limit).json()? + "\n",
                ReportFormat::Html => drawn(&trace).page(limit)?,
            }
        }
    };
    match io::stdout().write_all(text.as_bytes()) {
        // `tcpmon report FILE | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

fn drawn((trace, timelines): &(Trace, Timelines)) -> Drawn<'_> {
    Drawn { trace, timelines }
}

/// The trace in these files, and its timelines if it is to be drawn.
fn trace(files: &[PathBuf], draw: bool) -> anyhow::Result<(Trace, Timelines)> {
    let (mut summary, mut timelines) = <(Summary, Timelines)>::default();
    let mut read = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let mut reader = open_trace(file)?;
        let kept = draw.then_some(&mut timelines);
        let file = TraceFile::read(&name, &mut *reader, &mut summary, kept);
        read.push(file.with_context(|| format!("cannot read {name}"))?);
    }
    Ok((Trace::of(read, summary)?, timelines))
}
