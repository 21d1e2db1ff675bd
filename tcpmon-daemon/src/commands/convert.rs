//! The conversion of a trace to another format, item by item.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use anyhow::{Context as _, bail};
use tcpmon_trace::{Ending, Item, TraceReader, TraceWriter, Trailer};

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
    let written = writer.and_then(|mut writer| copy(&mut *reader, &mut *writer));
    let (trouble, lost) = match written {
        // `tcpmon convert FILE - | head`.
        Err(error) if args.output == Path::new("-") && error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        written => written.with_context(|| format!("writing to {output} failed: it lacks the end of the trace"))?,
    };
    if let Some(trouble) = trouble {
        bail!("{}: {trouble}; {output} has the {} records before that", args.input.display(), reader.records());
    }
    if let Some(lost) = lost {
        super::print_message(&format!("{}: the trace is incomplete; lost: {lost}", args.input.display()));
    }
    Ok(())
}

fn are_same(one: &Path, other: &Path) -> bool {
    let place = |path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    place(one).is_ok_and(|one| place(other).is_ok_and(|other| one == other))
}

/// Copies a trace up to its trailer, or up to where it can be read no further. Returns why that is, and what it lost.
fn copy(reader: &mut dyn TraceReader, writer: &mut dyn TraceWriter) -> io::Result<(Option<String>, Option<String>)> {
    while let Some(item) = reader.next_item() {
        match item {
            Ok(Item::Timeslice(record)) => writer.record(&record)?,
            Ok(Item::Total(total)) => writer.total(&total)?,
            Err(error) => {
                writer.finish_cut()?;
                return Ok((Some(error.to_string()), None));
            }
        }
    }
    let Some(Trailer { lost, end, reason, .. }) = reader.trailer().cloned() else {
        return Err(io::Error::other("the reader has no trailer"));
    };
    let trailer = writer.finish(&Ending { end, reason, lost })?;
    Ok((None, trailer.lost_in_words()))
}
