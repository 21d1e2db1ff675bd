//! The Parquet form: a row for each timeslice, compressed with zstd. `docs/trace-format.md` describes it.
//!
//! All integers are signed, because DuckDB fails where a difference of unsigned ones is negative, and Spark turns
//! unsigned 64-bit integers into decimals. No time has a type in nanoseconds, because Spark refuses such a file.

mod columns;
mod footer;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::ParquetReader;
pub use write::ParquetWriter;

/// Keys in the file's metadata.
mod metadata {
    /// The header.
    pub const HEADER: &str = "tcpmon.header";
    /// Where the previous footer ends, if there is one.
    pub const PREVIOUS: &str = "tcpmon.previous_footer";
    /// The totals of sockets and threads, one line each.
    pub const TOTALS: &str = "tcpmon.totals";
    /// The trailer.
    pub const TRAILER: &str = "tcpmon.trailer";
}
