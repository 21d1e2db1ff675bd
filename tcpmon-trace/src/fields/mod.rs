//! The keys of a trace's lines. Each is declared once, in `lines.rs`: JSON Lines, the columns of Parquet and CSV,
//! the annotations of Perfetto, the tables of `docs/trace-format.md` and the schema of the Python package follow from
//! that.

#[cfg(test)]
mod documents;
#[cfg(any(test, feature = "csv", feature = "parquet", feature = "perfetto"))]
mod field;
mod lines;
mod text;

#[cfg(any(feature = "parquet", feature = "perfetto"))]
pub(crate) use field::Field;
#[cfg(any(feature = "csv", feature = "parquet", feature = "perfetto"))]
pub(crate) use field::FieldValue;
#[cfg(any(feature = "csv", feature = "parquet"))]
pub(crate) use lines::columns;
pub(crate) use lines::{SocketLine, ThreadLine, TimesliceLine};
