//! Traces of tcpmon: what each thread that reads a TCP socket found in the receive queue when it got the CPU and when
//! it lost the CPU.
//!
//! A trace is one [`TraceHeader`], any number of [`TimesliceRecord`]s, [`Total`]s of sockets and threads, and one
//! [`Trailer`]. This crate writes JSON Lines, a table for people and, each with the feature of its name, Parquet, CSV
//! and Perfetto's format; it reads JSON Lines and Parquet. It has nothing to do with eBPF. It opens no files and reads
//! no clock: clocks are arguments, input and output are `std::io`. `docs/trace-format.md` in the repository describes
//! the formats.
//!
//! # Example
//!
//! The bytes that a process found waiting when its threads got the CPU:
//!
//! ```
//! use tcpmon_trace::JsonLinesReader;
//!
//! fn waiting_bytes(trace: impl std::io::BufRead) -> Result<u64, tcpmon_trace::ReadError> {
//!     let mut bytes = 0;
//!     for record in JsonLinesReader::new(trace)? {
//!         bytes += u64::from(record?.activation.queued_bytes);
//!     }
//!     Ok(bytes)
//! }
//! # let error = waiting_bytes("no trace".as_bytes()).unwrap_err();
//! # assert!(matches!(error, tcpmon_trace::ReadError::NotATrace { .. }));
//! ```

/// The example of the page in the registry is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod batch;
#[cfg(feature = "csv")]
mod csv;
pub mod distribution;
mod fields;
mod header;
mod input;
mod jsonl;
mod output;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "perfetto")]
mod perfetto;
mod record;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
pub mod scale;
pub mod summary;
mod table;
mod total;
mod trailer;

#[cfg(feature = "csv")]
pub use csv::CsvWriter;
pub use header::{Clocks, FORMAT, FORMAT_VERSION, Filter, TraceHeader};
pub use input::{Item, TraceReader};
pub use jsonl::{JsonLinesReader, JsonLinesWriter, ReadError};
pub use output::{Output, Stream, TraceWriter};
#[cfg(feature = "parquet")]
pub use parquet::{ParquetReader, ParquetWriter};
#[cfg(feature = "perfetto")]
pub use perfetto::PerfettoWriter;
pub use record::{AddressFamily, Comm, CommError, Limited, Queue, TimesliceEnd, TimesliceRecord, Waited};
pub use table::{TABLE_WIDTH, TableWriter};
pub use total::{SocketTotal, ThreadTotal, Total};
pub use trailer::{EndReason, Ending, LOSSES, LOST_OUTPUT, LOST_TOTAL, LOST_WRITE, Trailer};
