//! What tcpmon's tests stand on: network namespaces joined by a veth pair, traffic whose bytes are counted by its own
//! ends, the kernel's word as a second opinion, and the daemon under test.
//!
//! Nothing here needs a tool on the machine but `nft` (for the rules that drop segments), and the servers that
//! [`Prometheus`] and [`Alertmanager`] start: the same binaries run as root in a machine that has nothing else. All calls panic with what failed and what to do: they serve tests.

use std::fmt::Display;

pub mod alertmanager;
pub mod client;
pub mod clock;
pub mod daemon;
pub mod dashboard;
pub mod device;
pub mod fault;
pub mod lab;
pub mod namespace;
mod nft;
pub mod page;
pub mod physics;
mod process;
pub mod prometheus;
pub mod report;
pub mod rules;
mod server;
pub mod sysctl;
pub mod trace;
pub mod traffic;
pub mod truth;
pub mod wait;

pub use alertmanager::Alertmanager;
pub use client::Client;
pub use daemon::Daemon;
pub use lab::{Lab, LabOptions};
pub use namespace::Namespace;
pub use page::Page;
pub use physics::Physics;
pub use process::tcpmon_binary;
pub use prometheus::Prometheus;
pub use trace::Trace;
pub use traffic::Traffic;
pub use wait::eventually;

/// Whether this machine's CPU is emulated: a connection takes milliseconds, and programs run long enough to be
/// interrupted by their own tracepoint. `cargo xtask vm` sets `TCPMON_EMULATED`.
pub fn is_emulated() -> bool {
    std::env::var_os("TCPMON_EMULATED").is_some()
}

/// A great number of connections: as many as asked for, or a fiftieth of that on an emulated CPU.
pub fn many(connections: u64) -> u64 {
    if is_emulated() { connections / 50 } else { connections }
}

/// A time that is long beside system calls and interrupts: five times as long on an emulated CPU.
pub fn slowly(nanoseconds: u64) -> u64 {
    if is_emulated() { 5 * nanoseconds } else { nanoseconds }
}

/// The value, or a panic that says what was being done.
#[track_caller]
fn must<T, E: Display>(result: Result<T, E>, doing: impl Display) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{doing}: {error}"),
    }
}
