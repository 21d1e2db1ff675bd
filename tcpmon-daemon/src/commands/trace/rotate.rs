//! A trace in several files, one after the other, each a trace of its own.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tcpmon_trace::{EndReason, Ending, TimesliceRecord, Total, TraceHeader, TraceWriter, Trailer};

use super::read_clocks;
use crate::{
    cli::{RotateAt, TraceFormat},
    commands::trace_file::{create_output, write_file},
};

/// How many records are written before the size of the file is looked at again.
const LOOK_EVERY: u64 = 256;

/// What has been lost since the start of the trace, by cause: the trace updates it, and each file says what was lost
/// during it.
pub(super) type Losses = Arc<Mutex<BTreeMap<String, u64>>>;

/// The files of a trace.
#[derive(Debug)]
pub(super) struct NumberedFiles {
    /// The path without the number.
    pub path: PathBuf,
    pub format: TraceFormat,
    /// Existing files are overwritten.
    pub force: bool,
    pub rotate: RotateAt,
    /// The newest files that are kept; the others are removed.
    pub keep: Option<u32>,
}

impl NumberedFiles {
    /// Creates the file with this number.
    pub(super) fn create(&self, number: u32) -> anyhow::Result<File> {
        create_output(&numbered(&self.path, number), self.force)
    }

    /// Removes the file that is one too many once this one is there.
    fn remove_before(&self, number: u32) -> io::Result<()> {
        let Some(old) = self.keep.and_then(|keep| number.checked_sub(keep)).filter(|old| *old > 0) else {
            return Ok(());
        };
        match fs::remove_file(numbered(&self.path, old)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

/// The path with a number before its extension: `run.jsonl` becomes `run.0001.jsonl`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{number:04}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Writes a trace to one file after the other.
pub(super) struct RotatingWriter {
    files: NumberedFiles,
    header: TraceHeader,
    losses: Losses,
    /// The current file.
    file: File,
    writer: Box<dyn TraceWriter>,
    number: u32,
    /// Records in it.
    records: u64,
    /// What had been lost before it.
    lost_before: BTreeMap<String, u64>,
    /// Records in the files before it, and losses in their trailers.
    written: u64,
    told: BTreeMap<String, u64>,
}

impl RotatingWriter {
    /// Writes the header to the first file, which has been created.
    pub(super) fn new(files: NumberedFiles, first: File, header: TraceHeader, losses: Losses) -> io::Result<Self> {
        let writer = write_file(first.try_clone()?, files.format, &header)?;
        Ok(Self {
            files,
            header,
            losses,
            file: first,
            writer,
            number: 1,
            records: 0,
            lost_before: BTreeMap::new(),
            written: 0,
            told: BTreeMap::new(),
        })
    }

    fn is_full(&self, now_ns: u64) -> io::Result<bool> {
        match self.files.rotate {
            RotateAt::Time(time) => {
                Ok(u128::from(now_ns.saturating_sub(self.header.start.monotonic_ns)) >= time.as_nanos())
            }
            RotateAt::Bytes(bytes) => {
                Ok(self.records.is_multiple_of(LOOK_EVERY) && self.file.metadata()?.len() >= bytes)
            }
        }
    }

    /// Ends the file and starts the next one.
    fn rotate(&mut self) -> io::Result<()> {
        let now = read_clocks();
        let lost = self.losses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ending = Ending { end: now, reason: EndReason::Rotated, lost: self.lost_since(&lost) };
        self.end(&ending)?;
        self.lost_before = lost;
        self.number += 1;
        self.header.start = now;
        self.file = self.files.create(self.number).map_err(io::Error::other)?;
        self.writer = write_file(self.file.try_clone()?, self.files.format, &self.header)?;
        self.records = 0;
        self.files.remove_before(self.number)
    }

    /// Of these losses since the start of the trace, those since the start of the file.
    fn lost_since(&self, lost: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
        let before = |cause: &String| self.lost_before.get(cause).copied().unwrap_or(0);
        lost.iter().map(|(cause, count)| (cause.clone(), count.saturating_sub(before(cause)))).collect()
    }

    fn end(&mut self, ending: &Ending) -> io::Result<Trailer> {
        let trailer = self.writer.finish(ending)?;
        self.written += trailer.records;
        for (cause, count) in &trailer.lost {
            *self.told.entry(cause.clone()).or_default() += count;
        }
        Ok(trailer)
    }
}

impl TraceWriter for RotatingWriter {
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()> {
        // Before the record, so that no file is empty but the first.
        if self.records > 0 && self.is_full(record.deactivated_ns)? {
            self.rotate()?;
        }
        self.records += 1;
        self.writer.record(record)
    }

    fn total(&mut self, total: &Total) -> io::Result<()> {
        self.writer.total(total)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// Returns what the trailers of all files say together.
    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
        let last = self.end(&Ending { lost: self.lost_since(&ending.lost), ..ending.clone() })?;
        let complete = ending.reason != EndReason::WriteError && self.told.values().all(|count| *count == 0);
        Ok(Trailer { records: self.written, lost: self.told.clone(), complete, ..last })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tcpmon_trace::{JsonLinesReader, TraceReader as _, sample};
    use tempfile::TempDir;

    use super::*;

    fn write(folder: &Path, rotate: RotateAt, keep: Option<u32>, lost: &Losses) -> Trailer {
        let path = folder.join("run.jsonl");
        let files = NumberedFiles { path, format: TraceFormat::Jsonl, force: false, rotate, keep };
        let first = files.create(1).expect("a new file");
        let mut writer = RotatingWriter::new(files, first, sample::header(), Arc::clone(lost)).expect("there is room");
        for number in 0..10_000_u64 {
            let deactivated_ns = sample::header().start.monotonic_ns + number * 1_000_000;
            writer.record(&TimesliceRecord { deactivated_ns, ..sample::record() }).expect("there is room");
            if number == 4_000 {
                lost.lock().expect("not poisoned").insert("timeslice_record".into(), 3);
            }
        }
        let mut ending = sample::ending();
        ending.lost.insert("timeslice_record".into(), 5);
        writer.finish(&ending).expect("there is room")
    }

    /// Names, trailers and sizes of the files.
    fn files(folder: &Path) -> Vec<(String, Trailer, u64)> {
        let mut found: Vec<_> = fs::read_dir(folder).expect("it is there").flatten().map(|file| file.path()).collect();
        found.sort();
        let read = |path: PathBuf| {
            let bytes = fs::read(&path).expect("it is there");
            let mut reader = JsonLinesReader::new(bytes.as_slice()).expect("a trace");
            assert!(reader.by_ref().all(|record| record.is_ok()));
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, reader.trailer().expect("it is whole").clone(), bytes.len() as u64)
        };
        found.into_iter().map(read).collect()
    }

    #[test]
    fn every_record_and_every_loss_is_in_one_file() {
        let folder = TempDir::new().expect("a temporary directory");
        let trailer = write(folder.path(), RotateAt::Bytes(1 << 20), None, &Losses::default());
        let files = files(folder.path());
        assert!(files.len() > 5, "{files:?}");
        let sum = |count: fn(&Trailer) -> u64| files.iter().map(|(_, trailer, _)| count(trailer)).sum::<u64>();
        assert_eq!((trailer.records, sum(|trailer| trailer.records)), (10_000, 10_000));
        let lost = |trailer: &Trailer| trailer.lost.get("timeslice_record").copied().unwrap_or(0);
        assert_eq!((lost(&trailer), sum(lost), trailer.complete), (5, 5, false));
        let with_losses: Vec<_> = files.iter().map(|(_, trailer, _)| lost(trailer)).filter(|lost| *lost > 0).collect();
        assert_eq!(with_losses, [3, 2]);
        let (last, others) = files.split_last().expect("files");
        assert_eq!(last.1.reason, sample::ending().reason);
        for (number, (name, trailer, size)) in others.iter().enumerate() {
            assert_eq!(
                (name.as_str(), trailer.reason),
                (format!("run.{:04}.jsonl", number + 1).as_str(), EndReason::Rotated)
            );
            assert!((1 << 20..(1 << 20) + 600_000).contains(size), "{name} {size}");
        }
    }

    #[test]
    fn only_the_newest_files_are_kept() {
        let folder = TempDir::new().expect("a temporary directory");
        let trailer = write(folder.path(), RotateAt::Bytes(1 << 20), Some(2), &Losses::default());
        let files = files(folder.path());
        assert_eq!(files.len(), 2, "{files:?}");
        assert_eq!((files[1].1.reason, trailer.records), (sample::ending().reason, 10_000));
    }

    #[test]
    fn a_file_ends_after_its_time() {
        let folder = TempDir::new().expect("a temporary directory");
        write(folder.path(), RotateAt::Time(Duration::from_secs(5)), None, &Losses::default());
        // The second begins by the clock of this machine, which is not that of the records.
        let files = files(folder.path());
        assert_eq!(files[0].1.records, 5_000, "{files:?}");
    }

    #[test]
    fn a_number_comes_before_the_extension() {
        let name = |path: &str, number| numbered(Path::new(path), number).display().to_string();
        assert_eq!(name("/a.b/run.x.jsonl", 1), "/a.b/run.x.0001.jsonl");
        assert_eq!(name("run", 12_345), "run.12345");
    }
}
