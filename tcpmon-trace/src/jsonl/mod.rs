//! The JSON Lines form: one object per line. `docs/trace-format.md` describes each key.

mod error;
pub(crate) mod line;
#[cfg_attr(not(feature = "parquet"), allow(dead_code))]
pub(crate) mod read;
#[cfg(test)]
mod schema;
mod write;

pub use error::ReadError;
pub use read::JsonLinesReader;
pub use write::JsonLinesWriter;
#[cfg(feature = "parquet")]
pub(crate) use write::{append_total, header_line, trailer_line};
