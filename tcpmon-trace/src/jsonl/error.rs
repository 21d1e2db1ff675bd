//! What can be wrong with a trace file.

use std::io;

use crate::header::FORMAT_VERSION;

/// Why a trace file cannot be read, or cannot be trusted from some byte on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file itself cannot be read.
    #[error("trace file unreadable at byte {offset}: {source}; check the file and its disk")]
    Io {
        /// Where reading stopped.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file is empty.
    #[error("trace file empty, without even a header: trace again")]
    Empty,
    /// The first line is not the header of a trace.
    #[error("not a trace, at byte {offset}: {reason}; give a file that `tcpmon trace --format jsonl` wrote")]
    NotATrace {
        /// Where the first line becomes invalid.
        offset: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A version of the format that this tcpmon does not read.
    #[error(
        "trace format version {found} (header at byte {offset}), but this tcpmon reads version \
         {FORMAT_VERSION}: read it with tcpmon {tcpmon_version}, which wrote it"
    )]
    Version {
        /// Where the header is.
        offset: u64,
        /// The version.
        found: u32,
        /// The version of tcpmon that wrote the file.
        tcpmon_version: String,
    },
    /// A line that does not follow the format.
    #[error(
        "trace line {line} bad at byte {offset}: {reason}; the {records} records before it are good: use \
         those, or copy the file again from where it was written"
    )]
    BadLine {
        /// Where in the file the line becomes invalid.
        offset: u64,
        /// Line number, from 1.
        line: u64,
        /// Records before it.
        records: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The file ends in the middle of a line.
    #[error(
        "trace file cut: its last line, at byte {offset}, is incomplete; the {records} records before it are good: use \
         those, copy the file again, or free space on the disk and trace again"
    )]
    Cut {
        /// Where that line starts: the file is good up to there.
        offset: u64,
        /// Records before it.
        records: u64,
    },
    /// The file ends with a record instead of the trailer.
    #[error(
        "trace file without a trailer: it ends at byte {offset}, after {records} good records, and more may be \
         missing: wait until the trace has ended, or trace again if tcpmon was killed"
    )]
    NoTrailer {
        /// Length of the file.
        offset: u64,
        /// Records in it.
        records: u64,
    },
    /// The trailer's number of records differs from the number in the file.
    #[error(
        "the trailer at byte {offset} counts {told} records, but the file has {found}: the file was changed after \
         tcpmon wrote it: copy it again from where it was written"
    )]
    Count {
        /// Where the trailer is.
        offset: u64,
        /// Number of records according to the trailer.
        told: u64,
        /// Number of records in the file.
        found: u64,
    },
    /// A Parquet file does not hold what it should.
    #[error("Parquet trace unreadable: {reason}; copy the file again from where it was written")]
    Parquet {
        /// What is wrong with it.
        reason: String,
    },
    /// A Parquet file has no footer at all.
    #[error(
        "Parquet trace without a footer: the file was cut, or tcpmon was killed before it wrote the first row group \
         (65,536 records or 5 minutes): copy the file again, or trace again"
    )]
    NoFooter,
    /// A Parquet file has no trailer: only its row groups up to some footer can be read.
    #[error(
        "Parquet trace cut: its first {records} records are good, but more may be missing: use those (`tcpmon convert` \
         writes them to a file that other programs can open), copy the file again, or wait until the trace has ended"
    )]
    CutParquet {
        /// Records up to the last footer.
        records: u64,
    },
    /// Something follows the trailer.
    #[error("trace file has data after its trailer: keep its first {offset} bytes (`head -c {offset}`)")]
    AfterTrailer {
        /// Where the trailer ends.
        offset: u64,
    },
}

impl ReadError {
    /// The byte of the file where the error is; 0 in a Parquet file.
    pub fn offset(&self) -> u64 {
        match self {
            Self::Empty | Self::Parquet { .. } | Self::NoFooter | Self::CutParquet { .. } => 0,
            Self::Io { offset, .. }
            | Self::NotATrace { offset, .. }
            | Self::Version { offset, .. }
            | Self::BadLine { offset, .. }
            | Self::Cut { offset, .. }
            | Self::NoTrailer { offset, .. }
            | Self::Count { offset, .. }
            | Self::AfterTrailer { offset } => *offset,
        }
    }
}
