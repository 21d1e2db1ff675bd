//! The CSV form: a row for each timeslice, below the names of the columns. It has no room for the header, the totals
//! and the trailer.

use std::io;

use crate::{
    batch::BatchedOutput,
    fields::{FieldValue, columns},
    header::TraceHeader,
    output::{Output, TraceWriter},
    record::TimesliceRecord,
    total::Total,
    trailer::{Ending, Trailer},
};

/// More bytes than most rows have.
const ROW: usize = 1024;

/// Writes the timeslices of a trace as CSV.
pub struct CsvWriter<O: Output> {
    output: BatchedOutput<O>,
    header: TraceHeader,
}

impl<O: Output> CsvWriter<O> {
    /// Starts a trace: writes the names of the columns to the output at once.
    pub fn new(output: O, header: &TraceHeader) -> io::Result<Self> {
        let mut names = Vec::new();
        append(&mut names, columns().map(|column| column.key))?;
        Ok(Self { output: BatchedOutput::new(output, &names)?, header: header.clone() })
    }
}

/// Appends a row with these fields.
fn append(rows: &mut Vec<u8>, fields: impl Iterator<Item: AsRef<[u8]>>) -> io::Result<()> {
    let mut row = csv::WriterBuilder::new().buffer_capacity(ROW).from_writer(rows);
    row.write_record(fields)?;
    row.flush()
}

fn text(value: FieldValue<'_>) -> String {
    match value {
        // As text, because other programs guess types: `1e5` would be a hundred thousand.
        FieldValue::Cookie(_) => format!("sk:{value}"),
        _ => value.to_string(),
    }
}

impl<O: Output> TraceWriter for CsvWriter<O> {
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()> {
        let fields = columns().map(|column| text((column.get)(&self.header, record)));
        self.output.record(|rows| append(rows, fields))
    }

    fn total(&mut self, _total: &Total) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
        self.output.finish(ending, |_| Ok(Vec::new()))
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.output.failure()
    }

    fn finish_cut(&mut self) -> io::Result<()> {
        self.output.finish_cut()
    }
}
