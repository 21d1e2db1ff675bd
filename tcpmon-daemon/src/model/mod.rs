//! What is known, without any I/O: `now` is an argument here.

mod group;
pub mod host;
mod listeners;
mod possible;
pub mod newborn;
pub mod service;
pub mod snapshot;
pub mod table;
mod tally;
mod tracked;
