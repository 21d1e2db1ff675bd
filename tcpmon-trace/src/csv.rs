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
        let mut output = BatchedOutput::new(output);
        output.add(&row(columns().map(|column| column.key))?)?;
        output.flush()?;
        Ok(Self { output, header: header.clone() })
    }
}

/// A row with these fields.
fn row(fields: impl Iterator<Item: AsRef<[u8]>>) -> io::Result<Vec<u8>> {
    let mut row = csv::WriterBuilder::new().buffer_capacity(ROW).from_writer(Vec::with_capacity(ROW));
    row.write_record(fields)?;
    row.into_inner().map_err(|error| io::Error::other(error.to_string()))
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
        self.output.record(&row(columns().map(|column| text((column.get)(&self.header, record))))?)
    }

    fn total(&mut self, _total: &Total) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
        self.output.finish(ending, |_| Vec::new())
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.output.failure()
    }
}
