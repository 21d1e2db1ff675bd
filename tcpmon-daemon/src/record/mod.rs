//! The trace: its versioned record, its writers and its reader.
//!
//! A trace is one [`Header`], any number of [`Slice`]s and one [`Trailer`]. The code does no I/O of its own and reads
//! no clock: clocks are arguments, input and output are `std::io`. `docs/trace-format.md` describes the JSON Lines
//! form; a test compares it with the writer.

mod calendar;
mod header;
mod jsonl;
mod output;
#[cfg(test)]
pub(crate) mod sample;
mod slice;
mod table;
mod trailer;

pub use header::{Clocks, FORMAT, FORMAT_VERSION, Filter, Header};
pub use jsonl::{JsonLinesReader, JsonLinesWriter, ReadError};
pub use output::{Output, Stream, TraceWriter};
pub use slice::{Comm, CommError, Edge, End, Family, Slice};
pub use table::{TABLE_WIDTH, TableWriter};
pub use trailer::{Ending, LOSSES, LOST_OUTPUT, LOST_WRITE, Reason, Trailer};
