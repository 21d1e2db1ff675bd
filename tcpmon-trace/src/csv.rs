//! The CSV form: a row for each timeslice, below the names of the columns. It has no room for the header, the totals
//! and the trailer.

use std::{
    io,
    time::{Duration, UNIX_EPOCH},
};

use humantime::format_rfc3339_micros;

use crate::{
    batch::BatchedOutput,
    fields::{self, FieldValue},
    header::TraceHeader,
    output::{Output, TraceWriter},
    record::TimesliceRecord,
    total::Total,
    trailer::{Ending, Trailer},
};

/// The column with a hexadecimal number.
const COOKIE: &str = "cookie";

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
        output.add(&row(header, &TimesliceRecord::EMPTY, |name, _| name.into())?)?;
        output.flush()?;
        Ok(Self { output, header: header.clone() })
    }
}

/// A row with a field for each key of a record.
fn row(
    header: &TraceHeader,
    record: &TimesliceRecord,
    field: impl Fn(&'static str, FieldValue<'_>) -> String,
) -> io::Result<Vec<u8>> {
    let mut row = csv::WriterBuilder::new().buffer_capacity(ROW).from_writer(Vec::with_capacity(ROW));
    let mut written = Ok(());
    fields::each(header, record, |name, value| {
        if written.is_ok() {
            written = row.write_field(field(name, value));
        }
    });
    written?;
    row.write_record(None::<&[u8]>)?;
    row.into_inner().map_err(|error| io::Error::other(error.to_string()))
}

fn text(name: &str, value: FieldValue<'_>) -> String {
    match value {
        // As text, because other programs guess types: `1e5` would be a hundred thousand.
        FieldValue::Text(cookie) if name == COOKIE => format!("sk:{cookie}"),
        FieldValue::Text(text) => text.into(),
        FieldValue::Small(value) => value.to_string(),
        FieldValue::Integer(value) => value.to_string(),
        FieldValue::Time(us) => format_rfc3339_micros(UNIX_EPOCH + Duration::from_micros(us)).to_string(),
        FieldValue::Flag(value) => value.to_string(),
    }
}

impl<O: Output> TraceWriter for CsvWriter<O> {
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()> {
        self.output.record(&row(&self.header, record, text)?)
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
