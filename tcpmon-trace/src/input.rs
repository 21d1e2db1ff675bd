//! The interface of all trace readers.

use super::{header::TraceHeader, jsonl::ReadError, record::TimesliceRecord, total::Total, trailer::Trailer};

/// What a trace has between its header and its trailer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A timeslice.
    Timeslice(Box<TimesliceRecord>),
    /// Totals.
    Total(Box<Total>),
}

/// A trace that is being read, in any format.
pub trait TraceReader {
    /// The header of the trace.
    fn header(&self) -> &TraceHeader;

    /// The next record or totals; `None` after the trailer or the first error.
    fn next_item(&mut self) -> Option<Result<Item, ReadError>>;

    /// The trailer of the trace; `None` until everything has been read without an error.
    fn trailer(&self) -> Option<&Trailer>;

    /// Records read so far.
    fn records(&self) -> u64;
}
