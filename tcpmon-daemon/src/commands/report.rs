//! The report: reads traces, decides, tells.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write as _},
    path::Path,
};

use anyhow::Context as _;
use flate2::bufread::MultiGzDecoder;
use tcpmon_trace::summary::Summary;

use crate::{
    cli::{ReportArgs, ReportFormat},
    report::{
        read::{Trace, TraceFile},
        tell::{Comparison, TraceReport},
    },
};

/// How a file that gzip wrote begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];

pub(super) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let limit = args.limit as usize;
    let text = match (args.files.as_slice(), args.format) {
        ([first, second], format) if !args.merge => {
            let of = |file| trace(std::slice::from_ref(file));
            let comparison = Comparison::of(&of(first)?, &of(second)?, limit);
            match format {
                ReportFormat::Text => comparison.text(),
                ReportFormat::Json => comparison.json()? + "\n",
            }
        }
        (files, format) => {
            let report = TraceReport::of(&trace(files)?, limit);
            match format {
                ReportFormat::Text => report.text(),
                ReportFormat::Json => report.json()? + "\n",
            }
        }
    };
    io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
}

/// The trace in these files.
fn trace(files: &[std::path::PathBuf]) -> anyhow::Result<Trace> {
    let mut summary = Summary::default();
    let mut read = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let input = open(file).with_context(|| format!("cannot read {name}"))?;
        read.push(TraceFile::read(&name, input, &mut summary).with_context(|| format!("cannot read {name}"))?);
    }
    Ok(Trace::of(read, summary)?)
}

/// Opens a file, which gzip may have compressed; `-` is standard input.
fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut input: Box<dyn BufRead> =
        if path == Path::new("-") { Box::new(io::stdin().lock()) } else { Box::new(BufReader::new(File::open(path)?)) };
    Ok(if input.fill_buf()?.starts_with(&GZIP) { Box::new(BufReader::new(MultiGzDecoder::new(input))) } else { input })
}
