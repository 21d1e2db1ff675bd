//! The Parquet form: a row for each timeslice, compressed with zstd. `docs/trace-format.md` describes it.
//!
//! All integers are signed, because DuckDB fails where a difference of unsigned ones is negative, and Spark makes
//! decimals of those of 64 bits. No time has a unit of nanoseconds as its type, because Spark refuses such a file.

mod columns;
mod footer;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::ParquetReader;
pub use write::ParquetWriter;

/// Names of what a file has beside its rows.
mod metadata {
    /// The header.
    pub const HEADER: &str = "tcpmon.header";
    /// Where the footer before this one ends, if the file has more than the last one.
    pub const PREVIOUS: &str = "tcpmon.previous_footer";
    /// The totals of sockets and threads, a line each.
    pub const TOTALS: &str = "tcpmon.totals";
    /// The trailer.
    pub const TRAILER: &str = "tcpmon.trailer";
}
