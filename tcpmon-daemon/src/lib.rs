//! tcpmon shows where received bytes wait on a Linux host, and why.
//!
//! One way through: [`kernel`] loads the programs and reads bytes; [`decode`] makes types of them; [`model`] keeps
//! totals per group; [`metrics`] and [`http`] show them; [`record`] writes traces. [`commands`] alone joins I/O, time
//! and model.

pub mod cli;
pub mod commands;
pub mod config;
pub mod decode;
pub mod host;
pub mod http;
pub mod kernel;
pub mod metrics;
pub mod model;
pub mod record;
