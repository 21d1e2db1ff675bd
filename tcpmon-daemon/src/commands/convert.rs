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
    // Before the output is created: an input that is not a trace must not empty it.
    let mut reader = open_trace(&args.input)?;
    let output = args.output.display().to_string();
    let writer = if args.output == Path::new("-") {
        write_stream(StandardStream::Output, args.format().format, reader.header())
    } else {
        write_file(create_output(&args.output, args.force)?, args.format(), reader.header())
    };
    let copied = writer.and_then(|mut writer| copy(&mut *reader, &mut *writer));
    let Copied { end, failure } = match copied {
        // `tcpmon convert FILE - | head`.
        Err(error) if is_closed(args, &error) => return Ok(()),
        copied => copied.with_context(|| format!("writing to {output} failed: it lacks the end of the trace"))?,
    };
    if let Some(error) = failure {
        if is_closed(args, &error) {
            return Ok(());
        }
        bail!("writing to {output} failed: {error}: {}", describe_output(&end, &args.input, reader.records()));
    }
    let trailer = match end {
        Ok(trailer) => trailer,
        Err(trouble) => {
            bail!("{}: {trouble}; {output} has the {} records before that", args.input.display(), reader.records())
        }
    };
    if let Some(lost) = trailer.lost_in_words() {
        super::print_message(&format!("{}: the trace is incomplete; lost: {lost}", args.input.display()));
    }
    Ok(())
}

/// What an output contains that has refused part of a trace with this many records.
fn describe_output(end: &Result<Trailer, String>, input: &Path, records: u64) -> String {
    match end {
        Ok(trailer) => format!("it has {} of the {records} records", trailer.records),
        // Only a trailer says how many records the output has.
        Err(trouble) => format!("it lacks a part of the trace; {}: {trouble}", input.display()),
    }
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
    /// The trailer as written, or why the trace could not be read to its end.
    end: Result<Trailer, String>,
    /// The first error of the output. The trailer, if there is one, counts what it has refused.
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
                let failure = failure.or(writer.finish_cut().err());
                return Ok(Copied { end: Err(error.to_string()), failure });
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
    Ok(Copied { end: Ok(trailer), failure: failure.or_else(|| writer.failure()) })
}

#[cfg(test)]
mod tests {
    use tcpmon_trace::{
        CsvWriter, JsonLinesReader, JsonLinesWriter,
        sample::{self, Disk},
    };

    use super::*;

    #[test]
    fn an_output_with_a_part_of_a_trace_that_was_cut_is_not_said_to_have_none_of_its_records() {
        let mut cut = Vec::new();
        let mut writer = JsonLinesWriter::new(&mut cut, &sample::header()).expect("memory takes all");
        for _ in 0..1000 {
            writer.record(&sample::record()).expect("memory takes all");
        }
        writer.finish_cut().expect("memory takes all");
        let mut reader = JsonLinesReader::new(&cut[..]).expect("a header");
        // Room for the names of the columns and for the first of several batches.
        let mut disk = Disk { room: 100_000, ..Disk::default() };
        let mut writer = CsvWriter::new(&mut disk, &sample::header()).expect("there is room");
        let Copied { end, failure } = copy(&mut reader, &mut writer).expect("what there is room for is written");
        assert_eq!(failure.map(|error| error.kind()), Some(io::ErrorKind::StorageFull));
        let words = describe_output(&end, Path::new("cut.jsonl"), reader.records());
        assert!(words.starts_with("it lacks a part of the trace; cut.jsonl: "), "{words}");
        assert!(disk.bytes.len() > 64 << 10, "{}", disk.bytes.len());
    }
}
