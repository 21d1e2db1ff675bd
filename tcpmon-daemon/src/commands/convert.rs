//! The conversion of a trace to another format, item by item.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use anyhow::{Context as _, bail};
use tcpmon_trace::{EndReason, Ending, Item, TraceReader, TraceWriter, Trailer};

use super::trace_file::{create_output, open_trace, write_file, write_stream};
use crate::cli::{ConvertArgs, StandardStream};

/// With `--force`, the output would be emptied before the input is read.
#[derive(Debug, thiserror::Error)]
#[error("INPUT and OUTPUT are the same file: choose another name for OUTPUT")]
pub(super) struct SameFile;

pub(super) fn run(args: &ConvertArgs) -> anyhow::Result<()> {
    if are_same(&args.input, &args.output) {
        return Err(SameFile.into());
    }
    // Before the output is created: a file that is no trace must not empty it.
    let mut reader = open_trace(&args.input)?;
    let output = args.output.display().to_string();
    let writer = if args.output == Path::new("-") {
        write_stream(StandardStream::Output, args.format().format, reader.header())
    } else {
        write_file(create_output(&args.output, args.force)?, args.format(), reader.header())
    };
    let copied = writer.and_then(|mut writer| copy(&mut *reader, &mut *writer));
    let Copied { trouble, trailer, failure } = match copied {
        // `tcpmon convert FILE - | head`.
        Err(error) if is_closed(args, &error) => return Ok(()),
        copied => copied.with_context(|| format!("writing to {output} failed: it lacks the end of the trace"))?,
    };
    if let Some(error) = failure {
        if is_closed(args, &error) {
            return Ok(());
        }
        let records = trailer.map_or(0, |trailer| trailer.records);
        bail!("writing to {output} failed: {error}: it has {records} of the {} records", reader.records());
    }
    if let Some(trouble) = trouble {
        bail!("{}: {trouble}; {output} has the {} records before that", args.input.display(), reader.records());
    }
    if let Some(lost) = trailer.and_then(|trailer| trailer.lost_in_words()) {
        super::print_message(&format!("{}: the trace is incomplete; lost: {lost}", args.input.display()));
    }
    Ok(())
}

/// Whether the reader of our standard output has closed it.
fn is_closed(args: &ConvertArgs, error: &io::Error) -> bool {
    args.output == Path::new("-") && error.kind() == io::ErrorKind::BrokenPipe
}

fn are_same(one: &Path, other: &Path) -> bool {
    let place = |path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    place(one).is_ok_and(|one| place(other).is_ok_and(|other| one == other))
}

/// How a trace was copied.
struct Copied {
    /// Why it can be read no further, if so.
    trouble: Option<String>,
    /// The trailer as written, unless it cannot be read up to that.
    trailer: Option<Trailer>,
    /// The first error of the output. What it has refused is counted in the trailer.
    failure: Option<io::Error>,
}

/// Copies a trace up to its trailer, or up to where it can be read no further.
fn copy(reader: &mut dyn TraceReader, writer: &mut dyn TraceWriter) -> io::Result<Copied> {
    let mut failure = None;
    while let Some(item) = reader.next_item() {
        let written = match item {
            // Also after an error: the writer counts what it refuses.
            Ok(Item::Timeslice(record)) => writer.record(&record),
            Ok(Item::Total(total)) => writer.total(&total),
            Err(error) => {
                writer.finish_cut()?;
                return Ok(Copied { trouble: Some(error.to_string()), trailer: None, failure });
            }
        };
        if let Err(error) = written {
            if error.kind() == io::ErrorKind::BrokenPipe {
                return Err(error);
            }
            failure.get_or_insert(error);
        }
    }
    let Some(Trailer { lost, end, mut reason, .. }) = reader.trailer().cloned() else {
        return Err(io::Error::other("the reader has no trailer"));
    };
    if failure.is_some() {
        reason = EndReason::WriteError;
    }
    let trailer = writer.finish(&Ending { end, reason, lost })?;
    Ok(Copied { trouble: None, trailer: Some(trailer), failure: failure.or_else(|| writer.failure()) })
}
