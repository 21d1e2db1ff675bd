//! The JSON Lines form: one object a line. `docs/trace-format.md` says what each key means.

mod error;
mod line;
mod read;
#[cfg(test)]
mod schema;
mod write;

pub use error::ReadError;
pub use read::JsonLinesReader;
pub use write::JsonLinesWriter;
