//! tcpmon shows where received bytes wait on a Linux host, and why.
//!
//! One way through: [`kernel`] loads the programs and reads bytes; [`decode`] makes types of them; [`model`] keeps
//! totals per group; [`metrics`] and [`http`] show them; [`record`] writes traces. `commands` alone joins I/O, time
//! and model.

pub mod decode;
pub mod kernel;
pub mod model;
pub mod commands {
    //! The commands: they alone join I/O, time and model.
    pub mod collector;
}
