//! Reads a trace from JSON Lines.

use std::io::{BufRead, ErrorKind, Read};

use serde::de::DeserializeOwned;

use super::{
    error::ReadError,
    line::{HEADER, HeaderLine, LineType, SOCKET, THREAD, TIMESLICE, TRAILER, TrailerLine, Version},
};
use crate::{
    fields::{SocketLine, ThreadLine, TimesliceLine},
    header::{FORMAT, FORMAT_VERSION, TraceHeader},
    input::{Item, TraceReader},
    record::TimesliceRecord,
    total::Total,
    trailer::Trailer,
};

/// How the writer starts a record.
const RECORD: &[u8] = br#"{"type":"timeslice","#;

/// The longest line that is read. It bounds the memory that a file without newlines can take.
const LONGEST: u64 = 1 << 20;

/// Reads a trace from JSON Lines, record by record: an iterator over its [`TimesliceRecord`]s.
/// [`next_item`](TraceReader::next_item) returns the totals, too.
///
/// It ends after the trailer, which [`trailer`](TraceReader::trailer) then returns, or after the first error. Lines
/// with an unknown `type` and unknown keys are skipped, because a later tcpmon may write more within this version of
/// the format.
#[derive(Debug)]
pub struct JsonLinesReader<R> {
    input: R,
    header: TraceHeader,
    trailer: Option<Trailer>,
    line: Line,
    records: u64,
    ended: bool,
}

/// The line that was just read.
#[derive(Debug, Default)]
struct Line {
    bytes: Vec<u8>,
    /// Where the line starts in the file.
    offset: u64,
    /// Line number, from 1.
    number: u64,
}

/// What is wrong with a line, and at which of its bytes.
struct Bad {
    at: usize,
    reason: String,
}

impl<R: BufRead> JsonLinesReader<R> {
    /// Reads the header.
    pub fn new(mut input: R) -> Result<Self, ReadError> {
        let mut line = Line::default();
        if !line.read(&mut input)? {
            return Err(ReadError::Empty);
        }
        let header = header(&line)?;
        Ok(Self { input, header, trailer: None, line, records: 0, ended: false })
    }

    fn item(&mut self) -> Result<Option<Item>, ReadError> {
        loop {
            if !self.line.read(&mut self.input)? {
                return Err(ReadError::NoTrailer { offset: self.line.offset, records: self.records });
            }
            match self.line.content() {
                Ok(Content::Item(item)) => {
                    self.records += u64::from(matches!(item, Item::Timeslice(_)));
                    return Ok(Some(item));
                }
                Ok(Content::Trailer(trailer)) => {
                    self.check(&trailer)?;
                    self.trailer = Some(trailer);
                    return Ok(None);
                }
                Ok(Content::Other) => {}
                Err(bad) => return Err(self.bad(bad)),
            }
        }
    }

    fn check(&mut self, trailer: &Trailer) -> Result<(), ReadError> {
        if trailer.records != self.records {
            return Err(ReadError::Count { offset: self.line.offset, told: trailer.records, found: self.records });
        }
        if self.line.read(&mut self.input)? {
            return Err(ReadError::AfterTrailer { offset: self.line.offset });
        }
        Ok(())
    }

    fn bad(&self, bad: Bad) -> ReadError {
        if self.line.is_cut() {
            return ReadError::Cut { offset: self.line.offset, records: self.records };
        }
        ReadError::BadLine {
            offset: self.line.offset + bad.at as u64,
            line: self.line.number,
            records: self.records,
            reason: bad.reason,
        }
    }
}

/// Parses a line with a header.
pub(crate) fn header_of(text: &str) -> Result<TraceHeader, ReadError> {
    header(&Line::of(text))
}

/// Parses a line with totals; `None` if they are of an unknown type.
pub(crate) fn total_of(text: &str) -> Result<Option<Item>, ReadError> {
    let line = Line::of(text);
    let bad = |reason| ReadError::NotATrace { offset: 0, reason };
    match line.content() {
        Ok(Content::Item(item)) => Ok(Some(item)),
        Ok(Content::Other) => Ok(None),
        Ok(Content::Trailer(_)) => Err(bad("a trailer among the totals".into())),
        Err(error) => Err(bad(error.reason)),
    }
}

/// Parses a line with a trailer.
pub(crate) fn trailer_of(text: &str) -> Result<Trailer, ReadError> {
    let line = Line::of(text);
    Ok(first(&line, line.parse::<TrailerLine>())?.into())
}

impl<R: BufRead> TraceReader for JsonLinesReader<R> {
    fn header(&self) -> &TraceHeader {
        &self.header
    }

    fn next_item(&mut self) -> Option<Result<Item, ReadError>> {
        if self.ended {
            return None;
        }
        let item = self.item().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }

    fn trailer(&self) -> Option<&Trailer> {
        self.trailer.as_ref()
    }

    fn records(&self) -> u64 {
        self.records
    }
}

impl<R: BufRead> Iterator for JsonLinesReader<R> {
    type Item = Result<TimesliceRecord, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_item()? {
                Ok(Item::Timeslice(record)) => return Some(Ok(*record)),
                Ok(Item::Total(_)) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The content of a line after the header.
enum Content {
    Item(Item),
    Trailer(Trailer),
    Other,
}

impl Line {
    /// A line that was not read from a file of lines.
    fn of(text: &str) -> Self {
        Self { bytes: format!("{}\n", text.trim_end()).into_bytes(), offset: 0, number: 1 }
    }

    /// Reads the next line; returns false at the end of the file, with `offset` at that end.
    fn read(&mut self, input: &mut impl BufRead) -> Result<bool, ReadError> {
        self.offset += self.bytes.len() as u64;
        self.number += 1;
        self.bytes.clear();
        match input.take(LONGEST).read_until(b'\n', &mut self.bytes) {
            Ok(bytes) => Ok(bytes > 0),
            // A compressed file that was cut: what it has up to there is in the line, as of any other.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(!self.bytes.is_empty()),
            Err(source) => Err(ReadError::Io { offset: self.offset + self.bytes.len() as u64, source }),
        }
    }

    /// Whether the file ends in the middle of this line.
    fn is_cut(&self) -> bool {
        !self.bytes.ends_with(b"\n") && !self.is_too_long()
    }

    fn is_too_long(&self) -> bool {
        self.bytes.len() as u64 == LONGEST && !self.bytes.ends_with(b"\n")
    }

    fn content(&self) -> Result<Content, Bad> {
        // Any other spelling is also read, but more slowly.
        if self.bytes.starts_with(RECORD) {
            return self.record();
        }
        match self.parse::<LineType>()?.kind.as_str() {
            TIMESLICE => self.record(),
            TRAILER => Ok(Content::Trailer(self.parse::<TrailerLine>()?.into())),
            SOCKET => Ok(total(Total::Socket(self.parse::<SocketLine>()?.into()))),
            THREAD => Ok(total(Total::Thread(self.parse::<ThreadLine>()?.into()))),
            HEADER => Err(Bad { at: 0, reason: "a second header".into() }),
            _ => Ok(Content::Other),
        }
    }

    fn record(&self) -> Result<Content, Bad> {
        let record = TimesliceRecord::from(self.parse::<TimesliceLine>()?);
        let record = record.checked().map_err(|reason| Bad { at: 0, reason: reason.into() })?;
        Ok(Content::Item(Item::Timeslice(Box::new(record))))
    }

    fn parse<T: DeserializeOwned>(&self) -> Result<T, Bad> {
        if self.is_too_long() {
            return Err(Bad { at: 0, reason: format!("a line of {LONGEST} bytes or more") });
        }
        serde_json::from_slice(&self.bytes).map_err(|error| Bad {
            at: error.column().saturating_sub(1).min(self.bytes.len().saturating_sub(1)),
            reason: reason(&error),
        })
    }
}

fn total(total: Total) -> Content {
    Content::Item(Item::Total(Box::new(total)))
}

fn header(line: &Line) -> Result<TraceHeader, ReadError> {
    let version: Version = first(line, line.parse())?;
    let kind: LineType = first(line, line.parse())?;
    if version.format != FORMAT || kind.kind != HEADER {
        let reason = format!("the first line is not a header of format {FORMAT}");
        return Err(ReadError::NotATrace { offset: line.offset, reason });
    }
    if version.format_version != FORMAT_VERSION {
        return Err(ReadError::Version {
            offset: line.offset,
            found: version.format_version,
            tcpmon_version: version.tcpmon_version,
        });
    }
    Ok(first(line, line.parse::<HeaderLine>())?.into())
}

fn first<T>(line: &Line, parsed: Result<T, Bad>) -> Result<T, ReadError> {
    parsed.map_err(|bad| match line.is_cut() && line.bytes.starts_with(b"{") {
        true => ReadError::Cut { offset: line.offset, records: 0 },
        false => ReadError::NotATrace { offset: line.offset + bad.at as u64, reason: bad.reason },
    })
}

/// The parser's message without its line and column, because the parser gets one line at a time.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{JsonLinesWriter, TraceWriter, sample};

    /// A trace of two records.
    fn file() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = JsonLinesWriter::new(&mut bytes, &sample::header()).expect("memory takes all");
        for _ in 0..2 {
            writer.record(&sample::record()).expect("memory takes all");
        }
        writer.finish(&sample::ending()).expect("memory takes all");
        bytes
    }

    /// The trace with the first occurrence of some text replaced.
    fn changed(from: &str, to: &str) -> Vec<u8> {
        let text = String::from_utf8(file()).expect("JSON is UTF-8");
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1).into_bytes()
    }

    /// Where the lines start, and the end of the file.
    fn begins(bytes: &[u8]) -> Vec<u64> {
        let newlines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        [0].into_iter().chain(newlines.map(|(at, _)| at as u64 + 1)).collect()
    }

    /// Records read, and the trailer or the error.
    fn read(bytes: &[u8]) -> (u64, Result<Trailer, ReadError>) {
        let mut reader = match JsonLinesReader::new(bytes) {
            Ok(reader) => reader,
            Err(error) => return (0, Err(error)),
        };
        let error = reader.by_ref().find_map(Result::err);
        assert!(reader.next().is_none(), "it goes on after its end");
        match error {
            Some(error) => (reader.records(), Err(error)),
            None => (reader.records(), Ok(reader.trailer.expect("a trace ends in a trailer"))),
        }
    }

    fn error(bytes: &[u8]) -> ReadError {
        read(bytes).1.expect_err("the file is bad")
    }

    #[test]
    fn a_whole_file_gives_its_records_and_its_trailer() {
        let (records, trailer) = read(&file());
        assert_eq!(records, 2);
        assert!(trailer.expect("the file is whole").complete);
    }

    /// What a decompressor says at the end of a file that was cut.
    struct CutOff;

    impl Read for CutOff {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(ErrorKind::UnexpectedEof.into())
        }
    }

    #[test]
    fn a_compressed_file_that_was_cut_is_one_up_to_there() {
        let bytes = file();
        let input = bytes[..bytes.len() - 20].chain(CutOff);
        let mut reader = JsonLinesReader::new(std::io::BufReader::new(input)).expect("a header");
        let error = reader.by_ref().find_map(Result::err).expect("it lacks a part of its trailer");
        assert!(matches!(error, ReadError::Cut { records: 2, .. }), "{error:?}");
        assert!(reader.next().is_none(), "it goes on after its end");
    }

    #[test]
    fn totals_are_read_back() {
        let totals = [Total::Socket(sample::socket_total()), Total::Thread(sample::thread_total())];
        let mut bytes = Vec::new();
        let mut writer = JsonLinesWriter::new(&mut bytes, &sample::header()).expect("memory takes all");
        totals.iter().for_each(|total| writer.total(total).expect("memory takes all"));
        writer.finish(&sample::ending()).expect("memory takes all");
        let mut reader = JsonLinesReader::new(bytes.as_slice()).expect("a header");
        let items: Vec<_> = std::iter::from_fn(|| reader.next_item()).collect::<Result<_, _>>().expect("a whole file");
        assert_eq!(items, totals.map(|total| Item::Total(Box::new(total))));
    }

    #[test]
    fn every_prefix_of_a_file_is_an_error_at_the_byte_up_to_which_it_is_whole() {
        let bytes = file();
        let begins = begins(&bytes);
        // A file that lacks only its last newline is complete.
        for length in 0..bytes.len() - 1 {
            let line = begins.iter().rfind(|begin| **begin <= length as u64).expect("0 is first");
            let (records, result) = read(&bytes[..length]);
            let error = result.expect_err("the file is cut");
            match &error {
                ReadError::Empty => assert_eq!(length, 0),
                ReadError::NoTrailer { offset, .. } => assert_eq!(*offset, length as u64),
                ReadError::Cut { offset, .. } => assert_eq!(offset, line),
                other => panic!("{length} bytes: {other}"),
            }
            assert!(records <= begins.iter().filter(|begin| **begin <= length as u64 + 1).count() as u64);
        }
        assert!(read(&bytes[..bytes.len() - 1]).1.is_ok());
    }

    #[test]
    fn a_bad_line_is_named_by_byte_and_number() {
        let file = changed("\"tid\":4322", "\"tid\":x322");
        let byte = file.windows(4).position(|bytes| bytes == b"x322").expect("it is there");
        let error = error(&file);
        assert_eq!(
            error.to_string(),
            format!(
                "trace line 2 bad at byte {byte}: expected value; the 0 records before it are good: use \
                 those, or copy the file again from where it was written"
            )
        );
        assert_eq!(error.offset(), byte as u64);
    }

    #[test]
    fn values_that_no_record_has_are_bad_lines() {
        for (from, to, reason) in [
            ("\"cookie\":\"1f\"", "\"cookie\":\"+1f\"", "is not a cookie in hexadecimal"),
            ("\"comm\":\"iperf3\"", "\"comm\":\"seventeen bytes!!\"", "is not a name"),
            ("\"end\":\"blocked\"", "\"end\":\"tired\"", "unknown variant `tired`, expected one of `preempted`"),
            ("\"family\":4", "\"family\":5", "family is neither 4 nor 6"),
            ("192.0.2.2", "::1", "an IPv6 address in a record of family 4"),
            ("\"cpu\":3", "\"cpu\":-3", "expected u32"),
            ("\"cpu\":3,", "", "missing field `cpu`"),
        ] {
            let error = error(&changed(from, to)).to_string();
            assert!(error.starts_with("trace line 2 bad at byte "), "{error}");
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn another_version_names_the_tcpmon_that_reads_it() {
        let file = changed(
            "\"format_version\":1,\"tcpmon_version\":\"0.1.0\"",
            "\"format_version\":2,\"tcpmon_version\":\"3.0.0\",\"clock\":\"tai\"",
        );
        let error = error(&file);
        assert!(matches!(error, ReadError::Version { found: 2, offset: 0, .. }), "{error}");
        assert!(error.to_string().ends_with("read it with tcpmon 3.0.0, which wrote it"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_a_trace_is_refused_at_its_first_line() {
        for text in ["\n", "[]\n", "{}\n", "tid,comm\n", "\u{0}", "{\"type\":\"header\"}\n"] {
            let error = error(text.as_bytes());
            assert!(matches!(error, ReadError::NotATrace { .. }), "{text:?}: {error}");
        }
        let other = changed("tcpmon-trace", "other-trace!");
        assert!(matches!(error(&other), ReadError::NotATrace { offset: 0, .. }));
        assert!(matches!(error(b""), ReadError::Empty));
    }

    #[test]
    fn a_removed_record_is_noticed_at_the_trailer() {
        let bytes = file();
        let begins = begins(&bytes);
        let mut without = bytes[..begins[1] as usize].to_vec();
        without.extend_from_slice(&bytes[begins[2] as usize..]);
        let error = error(&without);
        assert!(matches!(error, ReadError::Count { told: 2, found: 1, .. }), "{error}");
        assert_eq!(error.offset(), begins[2]);
    }

    #[test]
    fn more_after_the_trailer_is_an_error_at_its_end() {
        let mut bytes = file();
        let length = bytes.len() as u64;
        bytes.extend_from_slice(b"{}\n");
        let error = error(&bytes);
        assert!(matches!(error, ReadError::AfterTrailer { .. }), "{error}");
        assert_eq!(error.offset(), length);
    }

    #[test]
    fn unknown_keys_and_unknown_lines_are_skipped_and_the_order_of_keys_is_free() {
        let more = changed("\"cpu\":3", "\"node\":{\"id\":[1]},\"cpu\":3");
        assert!(read(&more).1.is_ok());
        let more = changed("{\"type\":\"timeslice\"", "{\"type\":\"wakeup\",\"at\":1}\n{\"type\":\"timeslice\"");
        assert_eq!(read(&more).0, 2);
        let other = changed(
            "{\"type\":\"timeslice\",\"activated_ns\":5001500000000",
            "{\"activated_ns\" : 5001500000000, \"type\" : \"timeslice\"",
        );
        assert_eq!(read(&other).0, 2);
        assert!(read(&other).1.is_ok());
    }

    #[test]
    fn a_file_without_newlines_does_not_fill_the_memory() {
        let endless = std::io::BufReader::new(std::io::repeat(b' '));
        let error = JsonLinesReader::new(endless).expect_err("it has no header");
        assert!(matches!(error, ReadError::NotATrace { .. }), "{error}");
    }

    proptest! {
        #[test]
        fn no_bytes_can_panic_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(read(&bytes).1.is_err());
        }

        #[test]
        fn no_change_to_a_file_can_panic_the_reader(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = file();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            if let Err(error) = read(&bytes).1 {
                prop_assert!(error.offset() <= bytes.len() as u64, "{error}");
            }
        }
    }
}
