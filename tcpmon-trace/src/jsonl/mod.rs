//! The JSON Lines form: one object per line. `docs/trace-format.md` describes each key.

mod error;
mod line;
mod read;
#[cfg(test)]
mod schema;
mod write;

pub use error::ReadError;
pub use read::{Item, JsonLinesReader};
pub use write::JsonLinesWriter;

/// How [`JsonLinesWriter`] starts a record.
const RECORD: &[u8] = br#"{"type":"timeslice","#;
