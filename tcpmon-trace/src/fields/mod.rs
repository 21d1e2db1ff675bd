//! The keys of a trace's lines. Each is declared once, in `lines.rs`: JSON Lines, the columns of Parquet and CSV, the
//! tables of `docs/trace-format.md` and the schema of the Python package follow from that.

#[cfg(test)]
mod documents;
#[cfg(any(test, feature = "csv", feature = "parquet"))]
mod field;
mod lines;
mod text;

#[cfg(feature = "parquet")]
pub(crate) use field::Field;
#[cfg(any(feature = "csv", feature = "parquet"))]
pub(crate) use field::{FieldValue, columns};
pub(crate) use lines::{SocketLine, ThreadLine, TimesliceLine};
