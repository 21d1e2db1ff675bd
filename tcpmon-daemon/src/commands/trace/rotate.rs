//! A trace in several files, one after the other, each a trace of its own.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use tcpmon_trace::{EndReason, Ending, TimesliceRecord, Total, TraceHeader, TraceWriter, Trailer};

use super::read_clocks;
use crate::{
    cli::{FileFormat, RotateAt},
    commands::trace_file::{create_output, write_file},
    config::Keep,
};

/// How many records are written before the size of the file is checked again.
const LOOK_EVERY: u64 = 256;

/// What has been lost since the start of the trace, by cause: the trace updates it, and each file says what was lost
/// during it.
pub(super) type Losses = Arc<Mutex<BTreeMap<String, u64>>>;

/// The files of a trace.
#[derive(Debug)]
pub(super) struct NumberedFiles {
    /// The path without the number.
    pub path: PathBuf,
    pub format: FileFormat,
    /// Existing files are overwritten.
    pub force: bool,
    /// Which of the newest files are kept; the others are removed.
    pub keep: Option<Keep>,
}

impl NumberedFiles {
    /// Creates the file with this number.
    pub(super) fn create(&self, number: u32) -> anyhow::Result<File> {
        create_output(&self.path_of(number), self.force)
    }

    /// Checks now whether a file can be created later.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let next = self.next_number().with_context(|| format!("cannot write to {}", self.path.display()))?;
        let file = self.path_of(next);
        drop(create_output(&file, false)?);
        Ok(fs::remove_file(&file)?)
    }

    /// The path of the file with this number.
    pub(super) fn path_of(&self, number: u32) -> PathBuf {
        numbered(&self.path, number)
    }

    /// The number after the highest one of the existing files.
    pub(super) fn next_number(&self) -> io::Result<u32> {
        Ok(self.numbers()?.last().map_or(1, |last| last + 1))
    }

    /// Removes old files so that those up to `number`, which has just been created, are within the limit of `keep`.
    pub(super) fn remove_before(&self, number: u32) -> io::Result<()> {
        let Some(keep) = self.keep else { return Ok(()) };
        let (mut files, mut bytes) = (0, 0);
        for other in self.numbers()?.into_iter().rev().filter(|other| *other <= number) {
            let path = self.path_of(other);
            files += 1;
            bytes += fs::metadata(&path).map_or(0, |file| file.len());
            let is_kept = match keep {
                Keep::Files(limit) => files <= limit,
                Keep::Bytes(limit) => bytes <= limit,
            };
            // Never remove the file that has just been created, however large it is already.
            if !is_kept && other != number {
                match fs::remove_file(&path) {
                    // Another process has removed it.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed?,
                }
            }
        }
        Ok(())
    }

    /// The numbers of the existing files, in ascending order.
    fn numbers(&self) -> io::Result<Vec<u32>> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut numbers = Vec::new();
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            let name = Path::new(&name);
            // `run.0001.jsonl` has the stem `run.0001`.
            let stem = if self.path.extension().is_some() { name.file_stem() } else { Some(name.as_os_str()) };
            let number = stem.and_then(|stem| Path::new(stem).extension()?.to_str()?.parse().ok());
            numbers.extend(number.filter(|number| self.path_of(*number).file_name() == Some(name.as_os_str())));
        }
        numbers.sort_unstable();
        Ok(numbers)
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

/// One of the files, as it is written.
pub(super) struct PartWriter {
    file: File,
    pub writer: Box<dyn TraceWriter>,
    /// What had been lost before this file.
    lost_before: BTreeMap<String, u64>,
}

impl PartWriter {
    /// Writes the header.
    pub(super) fn new(
        file: File,
        format: FileFormat,
        header: &TraceHeader,
        lost_before: BTreeMap<String, u64>,
    ) -> io::Result<Self> {
        let writer = write_file(file.try_clone()?, format, header)?;
        Ok(Self { file, writer, lost_before })
    }

    /// Ends the file. `ending` has what was lost since the start of the trace.
    fn end(&mut self, ending: &Ending) -> io::Result<Trailer> {
        let before = |cause: &String| self.lost_before.get(cause).copied().unwrap_or(0);
        let lost = ending.lost.iter().map(|(cause, count)| (cause.clone(), count.saturating_sub(before(cause))));
        self.writer.finish(&Ending { lost: lost.collect(), ..ending.clone() })
    }
}

/// Sums over the trailers of all files.
#[derive(Debug, Default)]
pub(super) struct PartTotals {
    records: u64,
    lost: BTreeMap<String, u64>,
    /// The first error with which an output refused something at the end of a file.
    failure: Option<io::Error>,
}

impl PartTotals {
    /// Ends a file, and adds what its trailer says.
    pub(super) fn end(&mut self, mut part: PartWriter, ending: &Ending) -> io::Result<()> {
        let trailer = part.end(ending)?;
        self.records += trailer.records;
        for (cause, count) in trailer.lost {
            *self.lost.entry(cause).or_default() += count;
        }
        self.failure = self.failure.take().or(part.writer.failure());
        Ok(())
    }

    /// See [`TraceWriter::failure`].
    pub(super) fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// The sums as the trailer of a trace with this ending.
    pub(super) fn trailer(&self, ending: &Ending) -> Trailer {
        let complete = ending.reason != EndReason::WriteError && self.lost.values().all(|count| *count == 0);
        Trailer { records: self.records, lost: self.lost.clone(), end: ending.end, reason: ending.reason, complete }
    }
}

/// Writes a trace to one file after the other.
pub(super) struct RotatingWriter {
    files: NumberedFiles,
    rotate: RotateAt,
    header: TraceHeader,
    losses: Losses,
    /// The current file; `None` after an error.
    part: Option<PartWriter>,
    number: u32,
    /// Records in it.
    records: u64,
    totals: PartTotals,
}

impl RotatingWriter {
    /// Writes the header to the first file, which has been created.
    pub(super) fn new(
        files: NumberedFiles,
        rotate: RotateAt,
        first: File,
        header: TraceHeader,
        losses: Losses,
    ) -> io::Result<Self> {
        let part = Some(PartWriter::new(first, files.format, &header, BTreeMap::new())?);
        Ok(Self { files, rotate, header, losses, part, number: 1, records: 0, totals: PartTotals::default() })
    }

    fn part(&mut self) -> io::Result<&mut PartWriter> {
        self.part.as_mut().ok_or_else(|| io::Error::other("an earlier write has failed"))
    }

    fn is_full(&mut self, now_ns: u64) -> io::Result<bool> {
        match self.rotate {
            RotateAt::Time(time) => {
                Ok(u128::from(now_ns.saturating_sub(self.header.start.monotonic_ns)) >= time.as_nanos())
            }
            RotateAt::Bytes(bytes) => {
                Ok(self.records.is_multiple_of(LOOK_EVERY) && self.part()?.file.metadata()?.len() >= bytes)
            }
        }
    }

    /// Ends the file and starts the next one, which has been created.
    fn rotate(&mut self, file: File) -> io::Result<()> {
        let now = read_clocks();
        let lost = self.losses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.end(&Ending { end: now, reason: EndReason::Rotated, lost: lost.clone() })?;
        let next = self.number + 1;
        let begun = match self.totals.failure() {
            None => PartWriter::new(file, self.files.format, &TraceHeader { start: now, ..self.header.clone() }, lost),
            Some(error) => Err(error),
        };
        match begun {
            Ok(part) => self.part = Some(part),
            Err(error) => {
                // It has no header, or only a part of one.
                let _ = fs::remove_file(self.files.path_of(next));
                return Err(error);
            }
        }
        self.number = next;
        self.header.start = now;
        self.records = 0;
        self.files.remove_before(self.number)
    }

    fn end(&mut self, ending: &Ending) -> io::Result<()> {
        self.part.take().map_or(Ok(()), |part| self.totals.end(part, ending))
    }
}

impl TraceWriter for RotatingWriter {
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()> {
        // Before the record, so that no file except the first can be empty.
        let mut next = Ok(());
        if self.records > 0 && self.is_full(record.deactivated_ns)? {
            match self.files.create(self.number + 1) {
                Ok(file) => self.rotate(file)?,
                // The trace ends here: the current file gets this record and a trailer.
                Err(error) => next = Err(io::Error::other(error)),
            }
        }
        self.records += 1;
        self.part()?.writer.record(record)?;
        next
    }

    fn total(&mut self, total: &Total) -> io::Result<()> {
        self.part()?.writer.total(total)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.part()?.writer.flush()
    }

    /// Returns the sums over the trailers of all files.
    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
        self.end(ending)?;
        Ok(self.totals.trailer(ending))
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.totals.failure()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tcpmon_trace::{JsonLinesReader, TraceReader as _, sample};
    use tempfile::TempDir;

    use super::*;
    use crate::cli::{Compression, TraceFormat};

    const JSONL: FileFormat = FileFormat { format: TraceFormat::Jsonl, compression: Compression::None };

    fn write(folder: &Path, rotate: RotateAt, keep: Option<Keep>, lost: &Losses) -> Trailer {
        let path = folder.join("run.jsonl");
        let files = NumberedFiles { path, format: JSONL, force: false, keep };
        let first = files.create(1).expect("a new file");
        let mut writer =
            RotatingWriter::new(files, rotate, first, sample::header(), Arc::clone(lost)).expect("there is room");
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
        let trailer = write(folder.path(), RotateAt::Bytes(1 << 20), Some(Keep::Files(2)), &Losses::default());
        let files = files(folder.path());
        assert_eq!(files.len(), 2, "{files:?}");
        assert_eq!((files[1].1.reason, trailer.records), (sample::ending().reason, 10_000));
    }

    #[test]
    fn the_newest_file_is_kept_even_if_it_is_larger_than_what_is_to_be_kept() {
        let folder = TempDir::new().expect("a temporary directory");
        let trailer = write(folder.path(), RotateAt::Bytes(1 << 20), Some(Keep::Bytes(1)), &Losses::default());
        let files = files(folder.path());
        assert_eq!((files.len(), trailer.records), (1, 10_000), "{files:?}");
        assert_eq!(files[0].1.reason, sample::ending().reason);
    }

    #[test]
    fn as_many_files_are_kept_as_have_a_size() {
        let folder = TempDir::new().expect("a temporary directory");
        write(folder.path(), RotateAt::Bytes(1 << 20), Some(Keep::Bytes(5 << 20)), &Losses::default());
        let files = files(folder.path());
        let bytes: u64 = files.iter().map(|(_, _, size)| size).sum();
        assert!((3..=5).contains(&files.len()) && bytes <= 6 << 20, "{bytes} {files:?}");
    }

    #[test]
    fn numbers_go_on_after_those_that_are_there() {
        let folder = TempDir::new().expect("a temporary directory");
        for name in
            ["run.0007.jsonl", "run.0041.jsonl", "run.99.jsonl", "run.jsonl", "other.0100.jsonl", "run.0200.csv"]
        {
            fs::write(folder.path().join(name), "").expect("there is room");
        }
        let path = folder.path().join("run.jsonl");
        let files = NumberedFiles { path, format: JSONL, force: false, keep: Some(Keep::Files(2)) };
        assert_eq!(
            (files.numbers().expect("it is there"), files.next_number().expect("it is there")),
            (vec![7, 41], 42)
        );
        drop(files.create(42).expect("there is room"));
        files.remove_before(42).expect("they can be removed");
        assert_eq!(files.numbers().expect("it is there"), [41, 42]);
    }

    #[test]
    fn a_file_ends_after_its_time() {
        let folder = TempDir::new().expect("a temporary directory");
        write(folder.path(), RotateAt::Time(Duration::from_secs(5)), None, &Losses::default());
        // The second file begins by the clock of this machine, which is not that of the records.
        let files = files(folder.path());
        assert_eq!(files[0].1.records, 5_000, "{files:?}");
    }

    /// Refuses something at its end, for this reason; nothing if it is `None`.
    struct Refusing(Option<&'static str>);

    impl TraceWriter for Refusing {
        fn record(&mut self, _record: &TimesliceRecord) -> io::Result<()> {
            Ok(())
        }

        fn total(&mut self, _total: &Total) -> io::Result<()> {
            Ok(())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
            Ok(Trailer::new(ending, 1, 0))
        }

        fn failure(&mut self) -> Option<io::Error> {
            self.0.map(io::Error::other)
        }
    }

    #[test]
    fn the_first_error_of_the_files_stays_whatever_comes_after_it() {
        let mut totals = PartTotals::default();
        for error in [None, Some("first"), None, Some("second")] {
            let file = tempfile::tempfile().expect("a temporary file");
            let part = PartWriter { file, writer: Box::new(Refusing(error)), lost_before: BTreeMap::new() };
            totals.end(part, &sample::ending()).expect("it ends");
        }
        assert_eq!(totals.trailer(&sample::ending()).records, 4);
        assert_eq!(totals.failure().expect("two files have refused something").to_string(), "first");
    }

    #[test]
    fn a_number_comes_before_the_extension() {
        let name = |path: &str, number| numbered(Path::new(path), number).display().to_string();
        assert_eq!(name("/a.b/run.x.jsonl", 1), "/a.b/run.x.0001.jsonl");
        assert_eq!(name("run", 12_345), "run.12345");
    }
}
