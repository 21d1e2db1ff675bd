//! Opens trace files for reading and writing, in any format.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _, Write},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context as _;
use flate2::{bufread::MultiGzDecoder, write::GzEncoder};
#[cfg(feature = "formats")]
use tcpmon_trace::{CsvWriter, ParquetReader, ParquetWriter, PerfettoWriter};
use tcpmon_trace::{
    Ending, JsonLinesReader, JsonLinesWriter, Output, Stream, TableWriter, TimesliceRecord, Total, TraceHeader,
    TraceReader, TraceWriter, Trailer,
};

use crate::cli::{Compression, FileFormat, StandardStream, TraceFormat};

/// The first bytes of a file that gzip wrote.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The first bytes of a file that zstd wrote.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Number of bytes at the start of a file that tell its format.
const BEGIN: u64 = 4;

/// The file to write exists, and `--force` was not given.
#[derive(Debug, thiserror::Error)]
#[error("{}: the file exists: choose another name or add --force to overwrite it", .0.display())]
pub(super) struct OutputExists(PathBuf);

/// Opens a trace: JSON Lines, which gzip or zstd may have compressed, or Parquet; `-` is standard input.
///
/// # Errors
/// The file cannot be read or is not a trace.
pub(super) fn open_trace(path: &Path) -> anyhow::Result<Box<dyn TraceReader>> {
    let context = || format!("cannot read {}", path.display());
    if path == Path::new("-") {
        return json_lines(Box::new(io::stdin().lock())).with_context(context);
    }
    let mut file = File::open(path).with_context(context)?;
    let mut begin = Vec::new();
    // A pipe cannot be rewound, so the bytes that were read are put in front again.
    io::Read::by_ref(&mut file).take(BEGIN).read_to_end(&mut begin).with_context(context)?;
    #[cfg(not(feature = "formats"))]
    anyhow::ensure!(begin != *b"PAR1", "{}: {}", context(), crate::cli::WITHOUT_FORMATS);
    #[cfg(feature = "formats")]
    if ParquetReader::is_parquet(&begin) {
        use std::io::Seek as _;
        file.rewind().with_context(|| format!("{}: Parquet is read from its end, so not from a pipe", context()))?;
        return Ok(Box::new(ParquetReader::new(file).with_context(context)?));
    }
    let whole = io::Cursor::new(begin).chain(file);
    json_lines(Box::new(BufReader::new(whole))).with_context(context)
}

fn json_lines(mut input: Box<dyn BufRead>) -> anyhow::Result<Box<dyn TraceReader>> {
    let begin = input.fill_buf()?;
    let (is_gzip, is_zstd) = (begin.starts_with(&GZIP), begin.starts_with(&ZSTD));
    let input: Box<dyn BufRead> = if is_gzip {
        Box::new(BufReader::new(MultiGzDecoder::new(input)))
    } else if is_zstd {
        #[cfg(not(feature = "formats"))]
        anyhow::bail!(crate::cli::WITHOUT_FORMATS);
        #[cfg(feature = "formats")]
        Box::new(BufReader::new(zstd::Decoder::with_buffer(input)?))
    } else {
        input
    };
    Ok(Box::new(JsonLinesReader::new(input)?))
}

/// Opens a file to write a trace to. An existing one is emptied only with `force`.
pub(super) fn create_output(path: &Path, force: bool) -> anyhow::Result<File> {
    let file = match File::create_new(path) {
        // Our own standard output, a pipe or a device has no content that could be overwritten.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !force => {
            if path != Path::new("/dev/stdout") && path.is_file() {
                return Err(OutputExists(path.to_owned()).into());
            }
            File::options().append(true).create(true).open(path)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => File::create(path),
        file => file,
    };
    file.with_context(|| format!("cannot write to {}", path.display()))
}

/// A writer to a file, with the header written.
pub(super) fn write_file(file: File, format: FileFormat, header: &TraceHeader) -> io::Result<Box<dyn TraceWriter>> {
    let encoder = match format.compression {
        Compression::None => return writer(file, format.format, header),
        Compression::Gzip => Encoder::Gzip(GzEncoder::new(file, flate2::Compression::default())),
        #[cfg(not(feature = "formats"))]
        Compression::Zstd => return Err(io::Error::new(io::ErrorKind::Unsupported, crate::cli::WITHOUT_FORMATS)),
        #[cfg(feature = "formats")]
        Compression::Zstd => Encoder::Zstd(zstd::Encoder::new(file, 0)?),
    };
    let encoder = SharedEncoder(Arc::new(Mutex::new(encoder)));
    let inner = writer(Stream(encoder.clone()), format.format, header)?;
    Ok(Box::new(CompressedWriter { inner, encoder }))
}

/// Compresses what is written.
enum Encoder {
    Gzip(GzEncoder<File>),
    #[cfg(feature = "formats")]
    Zstd(zstd::Encoder<'static, File>),
}

/// An encoder that a writer writes to, and that is finished after the writer.
#[derive(Clone)]
struct SharedEncoder(Arc<Mutex<Encoder>>);

impl SharedEncoder {
    fn encoder(&self) -> MutexGuard<'_, Encoder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self) -> io::Result<()> {
        match &mut *self.encoder() {
            Encoder::Gzip(gzip) => gzip.try_finish(),
            #[cfg(feature = "formats")]
            Encoder::Zstd(zstd) => zstd.do_finish(),
        }
    }
}

impl Write for SharedEncoder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *self.encoder() {
            Encoder::Gzip(gzip) => gzip.write(bytes),
            #[cfg(feature = "formats")]
            Encoder::Zstd(zstd) => zstd.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut *self.encoder() {
            Encoder::Gzip(gzip) => gzip.flush(),
            #[cfg(feature = "formats")]
            Encoder::Zstd(zstd) => zstd.flush(),
        }
    }
}

/// A trace in a file that is compressed as a whole. As with a pipe, what was written cannot be taken back: on a full
/// disk, the trace ends without a trailer.
struct CompressedWriter {
    inner: Box<dyn TraceWriter>,
    encoder: SharedEncoder,
}

impl TraceWriter for CompressedWriter {
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()> {
        self.inner.record(record)
    }

    fn total(&mut self, total: &Total) -> io::Result<()> {
        self.inner.total(total)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
        let trailer = self.inner.finish(ending);
        // Also after an error, so that what the output has accepted can be read.
        let ended = self.encoder.finish();
        let trailer = trailer?;
        ended?;
        Ok(trailer)
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.inner.failure()
    }

    fn finish_cut(&mut self) -> io::Result<()> {
        self.inner.finish_cut()?;
        self.encoder.finish()
    }
}

/// A writer to a standard stream, with the header written.
pub(super) fn write_stream(
    stream: StandardStream,
    format: TraceFormat,
    header: &TraceHeader,
) -> io::Result<Box<dyn TraceWriter>> {
    // Not `io::stdout()`: a thread that is abandoned in a write to it would keep its lock.
    let stream = match stream {
        StandardStream::Output => io::stdout().as_fd().try_clone_to_owned(),
        StandardStream::Error => io::stderr().as_fd().try_clone_to_owned(),
    };
    writer(Stream(File::from(stream?)), format, header)
}

fn writer(
    output: impl Output + Send + 'static,
    format: TraceFormat,
    header: &TraceHeader,
) -> io::Result<Box<dyn TraceWriter>> {
    Ok(match format {
        TraceFormat::Table => Box::new(TableWriter::new(output, header)?),
        TraceFormat::Jsonl => Box::new(JsonLinesWriter::new(output, header)?),
        #[cfg(not(feature = "formats"))]
        TraceFormat::Parquet | TraceFormat::Csv | TraceFormat::Perfetto => {
            return Err(io::Error::new(io::ErrorKind::Unsupported, crate::cli::WITHOUT_FORMATS));
        }
        #[cfg(feature = "formats")]
        TraceFormat::Parquet => Box::new(ParquetWriter::new(output, header)?),
        #[cfg(feature = "formats")]
        TraceFormat::Csv => Box::new(CsvWriter::new(output, header)?),
        #[cfg(feature = "formats")]
        TraceFormat::Perfetto => Box::new(PerfettoWriter::new(output, header)?),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tcpmon_trace::{Item, sample};

    use super::*;

    #[test]
    fn a_compressed_trace_is_compressed_and_read_back() {
        let folder = tempfile::tempdir().expect("a folder");
        for (compression, begin) in [(Compression::Gzip, &GZIP[..]), (Compression::Zstd, &ZSTD[..])] {
            let path = folder.path().join(format!("{compression:?}"));
            let format = FileFormat { format: TraceFormat::Jsonl, compression };
            let file = create_output(&path, false).expect("a new file");
            let mut writer = write_file(file, format, &sample::header()).expect("there is room");
            for _ in 0..1000 {
                writer.record(&sample::record()).expect("there is room");
            }
            let trailer = writer.finish(&sample::ending()).expect("there is room");
            drop(writer);
            let bytes = fs::read(&path).expect("it is there");
            assert!(bytes.starts_with(begin) && bytes.len() < 20_000, "{compression:?}: {}", bytes.len());
            let mut reader = open_trace(&path).expect("a trace");
            let mut records = 0;
            while let Some(item) = reader.next_item() {
                assert!(matches!(item, Ok(Item::Timeslice(record)) if *record == sample::record()));
                records += 1;
            }
            assert_eq!((records, reader.trailer()), (1000, Some(&trailer)));
        }
    }

    /// What a disk has accepted that was full at some byte.
    #[test]
    fn a_compressed_trace_that_was_cut_at_any_byte_has_whole_records() {
        const RECORDS: u32 = 20;
        let folder = tempfile::tempdir().expect("a folder");
        for compression in [Compression::Gzip, Compression::Zstd] {
            let path = folder.path().join(format!("{compression:?}"));
            let format = FileFormat { format: TraceFormat::Jsonl, compression };
            let file = create_output(&path, false).expect("a new file");
            let mut writer = write_file(file, format, &sample::header()).expect("there is room");
            let record = |tid| tcpmon_trace::TimesliceRecord { tid, ..sample::record() };
            for tid in 0..RECORDS {
                writer.record(&record(tid)).expect("there is room");
                // zstd decodes whole blocks; this ends one.
                writer.flush().expect("there is room");
            }
            writer.finish(&sample::ending()).expect("there is room");
            drop(writer);
            let whole = fs::read(&path).expect("it is there");
            let mut most = 0;
            for length in 0..whole.len() {
                fs::write(&path, &whole[..length]).expect("there is room");
                let Ok(mut reader) = open_trace(&path) else {
                    assert_eq!(most, 0, "{compression:?}: {length}");
                    continue;
                };
                let mut records = 0;
                while let Some(Ok(Item::Timeslice(found))) = reader.next_item() {
                    assert_eq!(*found, record(records), "{compression:?}: {length}");
                    records += 1;
                }
                assert!(records >= most, "{compression:?}: {length}: {records} after {most}");
                // The trailer may be there before the end that says that nothing is missing.
                assert!(reader.trailer().is_none() || records == RECORDS, "{compression:?}: {length}");
                most = records;
            }
            assert_eq!(most, RECORDS, "{compression:?}");
        }
    }

    #[test]
    fn a_file_that_exists_is_kept_unless_forced() {
        let file = std::env::temp_dir().join(format!("tcpmon-output-{}", std::process::id()));
        let _ = fs::remove_file(&file);
        let write = |force| create_output(&file, force).map(|mut file| file.write_all(b"a trace"));
        write(false).expect("a new file").expect("written");
        let error = write(false).expect_err("it exists");
        let kept = fs::read(&file).expect("it is there");
        create_output(&file, true).expect("it may be overwritten");
        let emptied = fs::read(&file).expect("it is there");
        fs::remove_file(&file).expect("removed");
        assert_eq!(
            crate::commands::one_line(&error),
            format!("{}: the file exists: choose another name or add --force to overwrite it", file.display())
        );
        assert_eq!(crate::commands::exit_code(&error), 2);
        assert_eq!((kept.as_slice(), emptied.as_slice()), (b"a trace".as_slice(), b"".as_slice()));
    }

    #[test]
    fn devices_and_pipes_are_written_to_without_force() {
        for path in ["/dev/null", "/dev/stdout"] {
            for force in [false, true] {
                create_output(Path::new(path), force).expect(path);
            }
        }
        let error = create_output(Path::new("/nowhere/t.jsonl"), false).expect_err("there is no such directory");
        assert_eq!(
            crate::commands::one_line(&error),
            "cannot write to /nowhere/t.jsonl: No such file or directory (os error 2)"
        );
        assert_eq!(crate::commands::exit_code(&error), 1);
    }
}
