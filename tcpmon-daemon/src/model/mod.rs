//! What is known, without any I/O: `now` is an argument here.

mod group;
pub mod host;
pub mod service;
pub mod snapshot;
pub mod table;
mod tally;
