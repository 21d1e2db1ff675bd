//! What is known, without any I/O: `now` is an argument here.

mod group;
pub mod host;
mod listeners;
pub mod newborn;
mod possible;
pub mod service;
pub mod snapshot;
pub mod table;
mod tally;
mod tracked;
