//! The table form of a trace, for a person at a terminal of 100 columns.

mod columns;
mod summary;
mod write;

pub use columns::TABLE_WIDTH;
pub use write::TableWriter;
