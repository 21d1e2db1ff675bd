//! What can be wrong with a trace file.

use std::io;

use crate::record::header::FORMAT_VERSION;

/// Why a trace file cannot be read, or cannot be trusted from some byte on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file itself cannot be read.
    #[error("trace file unreadable at byte {offset}: {source}; check the file and its disk")]
    Io {
        /// Where reading stopped.
        offset: u64,
        /// What the system says.
        source: io::Error,
    },
    /// There is nothing.
    #[error("trace file empty (byte 0), not even a header: trace again")]
    Empty,
    /// The first line is not a trace's header.
    #[error("not a trace, at byte {offset}: {reason}; give a file that `tcpmon trace --format jsonl` wrote")]
    NotATrace {
        /// Where the first line stops making sense.
        offset: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A version of the format that this tcpmon does not read.
    #[error(
        "trace format version {found}, in the header at byte {offset}, where this tcpmon reads version \
         {FORMAT_VERSION}: read it with tcpmon {tcpmon_version}, which wrote it"
    )]
    Version {
        /// Where the header is.
        offset: u64,
        /// The version.
        found: u32,
        /// The tcpmon that wrote the file.
        tcpmon_version: String,
    },
    /// A line that is not what the format says.
    #[error(
        "trace line {line} bad at byte {offset}: {reason}; the {records} records before it are good: use \
         those, or copy the file again from where it was written"
    )]
    BadLine {
        /// Where in the file it stops making sense.
        offset: u64,
        /// Its number, from 1.
        line: u64,
        /// Records before it.
        records: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The file ends within a line.
    #[error(
        "trace file cut within the line that begins at byte {offset}: the {records} records before it are \
         good: use those, or copy the file again, or trace again with more room on the disk"
    )]
    Cut {
        /// Where the line begins: up to there the file is good.
        offset: u64,
        /// Records before it.
        records: u64,
    },
    /// The file ends with a record instead of the trailer.
    #[error(
        "trace file without trailer, ends at byte {offset}: its {records} records are good, but there may \
         have been more: wait until the trace has ended, or trace again if tcpmon was killed"
    )]
    NoTrailer {
        /// Length of the file.
        offset: u64,
        /// Records in it.
        records: u64,
    },
    /// The trailer tells of another number of records.
    #[error(
        "trailer at byte {offset} tells of {told} records, but {found} are in the file: it was changed \
         after tcpmon wrote it, copy it again from where it was written"
    )]
    Count {
        /// Where the trailer is.
        offset: u64,
        /// Records that the trailer tells of.
        told: u64,
        /// Records in the file.
        found: u64,
    },
    /// Something follows the trailer.
    #[error("trace file goes on after its trailer: keep its first {offset} bytes (`head -c {offset}`)")]
    AfterTrailer {
        /// Where the trailer ends.
        offset: u64,
    },
}

impl ReadError {
    /// The byte of the file that the error is about.
    pub fn offset(&self) -> u64 {
        match self {
            Self::Empty => 0,
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
