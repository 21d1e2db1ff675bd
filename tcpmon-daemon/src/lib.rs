//! tcpmon shows where received bytes wait on a Linux host, and why.
//!
//! Data flows in one direction: [`kernel`] loads the programs and reads bytes; [`decode`] converts them to types;
//! [`model`] keeps totals per group; [`metrics`] and [`http`] show them; `tcpmon_trace` writes traces. [`doctor`]
//! finds what keeps tcpmon or a receiver from doing its work, [`report`] says what limited the transfers of a trace,
//! and [`trigger`] decides when a flight recorder writes a file. Only [`commands`] combines I/O, time and model. What
//! several of them have to name is in [`host_state`], [`status`], [`process_stat`] and [`drop_effect`], which use no
//! other module. [`fuzz`] lists every decoder of foreign bytes, for tests.

pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod decode;
pub mod doctor;
pub mod drop_effect;
#[cfg(feature = "full")]
pub mod fuzz;
pub mod host;
pub mod host_state;
pub mod http;
pub mod kernel;
pub mod live;
pub mod metrics;
pub mod model;
pub mod process_stat;
pub mod report;
pub mod sandbox;
pub mod status;
#[cfg(test)]
mod tests;
pub mod threads;
pub mod top;
pub mod trigger;
