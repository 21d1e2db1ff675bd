//! Writes a trace as Parquet.

use std::{
    io::{self, Write},
    iter,
    sync::Arc,
};

use ::parquet::{
    basic::{Compression, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::{KeyValue, RowGroupMetaData},
        properties::{EnabledStatistics, WriterProperties},
        writer::SerializedFileWriter,
    },
};

use super::{columns, footer, metadata};
use crate::{
    batch::{self, Contents, End},
    header::TraceHeader,
    jsonl::{append_total, header_line, trailer_line},
    output::{Output, TraceWriter},
    record::TimesliceRecord,
    total::Total,
    trailer::{EndReason, Ending, LOST_TOTAL, Trailer},
};

/// Rows of a row group.
const GROUP_ROWS: usize = 65_536;

/// A row group is ended early if its timeslices ended this far apart, because rows in memory are lost if the trace is
/// killed.
const GROUP_NS: u64 = 300_000_000_000;

/// Maximum number of totals that are kept in memory for the end of the file: readers load all of them when they open a
/// file.
const KEPT_TOTALS: usize = 100_000;

/// Follows the footer of a single row group. If a trace is killed then, its file does not end in a footer: other
/// programs would show that row group as the whole trace.
const NO_END: [u8; 4] = [0; 4];

/// Writes a trace as Parquet: a row group whenever there are enough rows, and at the end the data about the trace as a
/// whole, in the footer. Each row group is also followed by a footer of its own, which other programs skip, so that a
/// file that was cut can be [read](super::ParquetReader) up to the last of them.
///
/// When the output accepts no more, [`finish`](Self::finish) cuts it back to the end of a row group, so that there is
/// room for the footer, and counts the records that this costs.
pub struct ParquetWriter<O: Output + Send> {
    file: SerializedFileWriter<Sink<O>>,
    header: TraceHeader,
    /// Records that are not in a row group yet.
    rows: Vec<TimesliceRecord>,
    /// Where each row group ends.
    ends: Vec<u64>,
    /// Where the last footer ends.
    last_footer: Option<u64>,
    totals: Vec<u8>,
    total_count: usize,
    /// Totals for which there was no room.
    lost_totals: u64,
    /// Records in row groups.
    records: u64,
    /// Records that the output did not accept.
    refused: u64,
    failed: bool,
    /// See [`TraceWriter::failure`].
    failure: Option<io::Error>,
}

/// The output, which counts what it accepts.
struct Sink<O> {
    output: O,
    accepted: u64,
    /// Whether everything that is written is discarded.
    closed: bool,
}

impl<O: Write> Write for Sink<O> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.closed {
            return Ok(bytes.len());
        }
        let written = self.output.write(bytes)?;
        self.accepted += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl<O: Output + Send> ParquetWriter<O> {
    /// Starts a trace.
    pub fn new(output: O, header: &TraceHeader) -> io::Result<Self> {
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_offset_index_disabled(true)
            .set_statistics_enabled(EnabledStatistics::Chunk);
        for (column, encoding) in columns::encodings() {
            properties =
                properties.set_column_dictionary_enabled(column.clone(), false).set_column_encoding(column, encoding);
        }
        let sink = Sink { output, accepted: 0, closed: false };
        let schema = columns::schema(header).map_err(io_error)?;
        let mut file = SerializedFileWriter::new(sink, schema, Arc::new(properties.build())).map_err(io_error)?;
        file.flush()?;
        Ok(Self {
            file,
            header: header.clone(),
            rows: Vec::new(),
            ends: Vec::new(),
            last_footer: None,
            totals: Vec::new(),
            total_count: 0,
            lost_totals: 0,
            records: 0,
            refused: 0,
            failed: false,
            failure: None,
        })
    }

    /// Writes the rows in memory as a row group. After an error, they are lost.
    fn write_group(&mut self) -> io::Result<()> {
        let rows = self.rows.len() as u64;
        let written = self.try_group();
        self.rows.clear();
        match written {
            Ok(()) => self.records += rows,
            Err(_) => {
                self.failed = true;
                self.refused += rows;
            }
        }
        written
    }

    fn try_group(&mut self) -> io::Result<()> {
        let mut group = self.file.next_row_group().map_err(io_error)?;
        columns::write(&self.header, &self.rows, &mut group).map_err(io_error)?;
        group.close().map_err(io_error)?;
        self.file.flush()?;
        self.ends.push(self.file.inner().accepted);
        Ok(())
    }

    /// Writes a footer for the last row group. After an error, the output accepts no more, but nothing else is lost.
    fn write_own_footer(&mut self) -> io::Result<()> {
        let mut all = vec![entry(metadata::HEADER, &header_line(&self.header)?)];
        all.extend(self.last_footer.map(|end| entry(metadata::PREVIOUS, end.to_string().as_bytes())));
        let groups = self.file.flushed_row_groups();
        let footer = self.encode(&groups[groups.len().saturating_sub(1)..], all)?;
        let written = self.append(&footer);
        self.last_footer = Some(self.file.inner().accepted);
        let written = written.and_then(|()| self.append(&NO_END));
        self.failed |= written.is_err();
        written
    }

    /// The footer at the end of the file.
    fn footer(&self, groups: &[RowGroupMetaData], totals: &[u8], trailer: Option<&Trailer>) -> io::Result<Vec<u8>> {
        let mut all = vec![entry(metadata::HEADER, &header_line(&self.header)?), entry(metadata::TOTALS, totals)];
        if let Some(trailer) = trailer {
            all.push(entry(metadata::TRAILER, &trailer_line(trailer)?));
        }
        self.encode(groups, all)
    }

    fn encode(&self, groups: &[RowGroupMetaData], metadata: Vec<KeyValue>) -> io::Result<Vec<u8>> {
        let schema = Arc::new(self.file.schema_descr().clone());
        footer::encode(&schema, groups, metadata).map_err(io_error)
    }

    fn append(&mut self, footer: &[u8]) -> io::Result<()> {
        self.file.write_all(footer)?;
        self.file.flush()
    }

    /// Cuts the output back to the end of a row group, far enough for the footer to fit into the space of the removed
    /// bytes, and writes the footer there. The totals are dropped first: they can be computed from the records, more or
    /// less, but the records cannot be computed from the totals.
    ///
    /// # Errors
    /// That of the output, or if it holds too little even for a footer: then it stays as it is.
    fn finish_full(&mut self, ending: &Ending) -> io::Result<Trailer> {
        // The list also contains the last group if it was closed but not accepted.
        let all = &self.file.flushed_row_groups()[..self.ends.len()];
        let ways = iter::once((all, true)).chain((0..=all.len()).rev().map(|kept| (&all[..kept], false)));
        let ends = ways.map(|(groups, has_totals)| {
            let begin = groups.len().checked_sub(1).map_or(footer::MAGIC.len() as u64, |last| self.ends[last]);
            let records = groups.iter().map(|group| group.num_rows() as u64).sum();
            let lost = Contents {
                records: self.refused + self.records - records,
                totals: if has_totals { 0 } else { self.total_count as u64 },
            };
            let totals = if has_totals { self.totals.as_slice() } else { &[] };
            let footer = |trailer: &Trailer| self.footer(groups, totals, Some(trailer));
            End::new(begin, batch::trailer_of(ending, records, lost), footer)
        });
        let end = End::fitting(self.file.inner().accepted, ends)?;
        let sink = self.file.inner_mut();
        sink.closed = true;
        end.write(&mut sink.output)
    }
}

impl<O: Output + Send> TraceWriter for ParquetWriter<O> {
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()> {
        if self.failed {
            self.refused += 1;
            return Err(io::Error::other("an earlier write has failed"));
        }
        self.rows.push(*record);
        let lasted_ns = record.deactivated_ns.saturating_sub(self.rows[0].deactivated_ns);
        if self.rows.len() < GROUP_ROWS && lasted_ns < GROUP_NS {
            return Ok(());
        }
        self.write_group()?;
        self.write_own_footer()
    }

    fn total(&mut self, total: &Total) -> io::Result<()> {
        if self.total_count == KEPT_TOTALS {
            self.lost_totals += 1;
            return Ok(());
        }
        self.total_count += 1;
        append_total(&mut self.totals, total)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
        let mut ending = ending.clone();
        if self.lost_totals > 0 {
            ending.lost.insert(LOST_TOTAL.into(), self.lost_totals);
        }
        let mut error = None;
        if !self.rows.is_empty() && !self.failed {
            error = self.write_group().err();
        }
        if !self.failed {
            let trailer = Trailer::new(&ending, self.records, self.refused);
            let footer = self.footer(self.file.flushed_row_groups(), &self.totals, Some(&trailer))?;
            match self.append(&footer) {
                Ok(()) => return Ok(trailer),
                Err(refused) => error = Some(refused),
            }
        }
        match self.finish_full(&ending) {
            Ok(trailer) => {
                // Without the footers in between, everything may fit.
                self.failure = error.filter(|_| trailer.reason == EndReason::WriteError);
                Ok(trailer)
            }
            Err(second) => Err(error.unwrap_or(second)),
        }
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    fn finish_cut(&mut self) -> io::Result<()> {
        if !self.rows.is_empty() {
            self.write_group()?;
        }
        let footer = self.footer(self.file.flushed_row_groups(), &self.totals, None)?;
        self.append(&footer)
    }
}

/// Lines as an entry of the metadata.
fn entry(key: &str, lines: &[u8]) -> KeyValue {
    KeyValue::new(key.into(), String::from_utf8_lossy(lines).into_owned())
}

/// The system's error, if there is one behind it.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}
