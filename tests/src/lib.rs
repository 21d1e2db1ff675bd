//! What tcpmon's tests stand on: network namespaces joined by a veth pair, traffic whose bytes are counted by its own
//! ends, the kernel's word as a second opinion, and the daemon under test.
//!
//! Nothing here needs a tool on the machine but `nft`, and that only for [`Lab::drop_every`]: the same binaries run as
//! root in a machine that has nothing else. All calls panic with what failed and what to do: they serve tests.

use std::fmt::Display;

pub mod clock;
pub mod daemon;
mod device;
pub mod lab;
pub mod namespace;
mod netlink;
mod nft;
pub mod page;
mod process;
pub mod sysctl;
pub mod trace;
pub mod traffic;
pub mod truth;
pub mod wait;

pub use daemon::Daemon;
pub use lab::{Lab, LabOptions};
pub use namespace::Namespace;
pub use page::Page;
pub use process::tcpmon_binary;
pub use trace::Trace;
pub use traffic::Traffic;
pub use wait::eventually;

/// The value, or a panic that says what was being done.
#[track_caller]
fn must<T, E: Display>(result: Result<T, E>, doing: impl Display) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{doing}: {error}"),
    }
}
