//! The foundation of tcpmon's tests: network namespaces joined by a veth pair, traffic whose two ends count its bytes
//! themselves, the kernel's own figures as a second opinion, and the daemon under test.
//!
//! The harness needs no tools on the machine except `nft` (for the rules that drop segments), `ethtool` (for the driver
//! counters of a flooded NIC) and the servers that [`Prometheus`] and [`Alertmanager`] start: the same binaries run as
//! root on a machine that has nothing else. All calls panic with a message that says what failed and what to do,
//! because they serve tests.

use std::fmt::Display;
use std::io;
use std::net::{Ipv6Addr, TcpListener};

pub mod alertmanager;
pub mod browser;
mod cgroup;
pub mod clock;
pub mod daemon;
pub mod dashboard;
pub mod device;
pub mod dice;
pub mod document;
pub mod emulated;
pub mod fault;
pub mod fifo;
pub mod figures;
mod held_page;
pub mod interrupt;
pub mod lab;
pub mod mean;
pub mod namespace;
pub mod nbd;
mod netlink;
mod nft;
pub mod page;
mod path;
pub mod physics;
mod process;
pub mod prometheus;
pub mod refusal;
pub mod report;
pub mod rules;
mod server;
pub mod sysctl;
pub mod tmux;
pub mod trace;
pub mod traffic;
pub mod truth;
pub mod wait;

pub use alertmanager::Alertmanager;
pub use browser::Browser;
pub use cgroup::{Cgroup, MemoryCgroup};
pub use daemon::{Daemon, Refused};
pub use emulated::{fewer, many, slowly};
pub use held_page::HeldPage;
pub use lab::{Lab, LabOptions};
pub use namespace::Namespace;
pub use nbd::Nbd;
pub use page::Page;
pub use path::Delay;
pub use physics::Physics;
pub use process::{Killed, tcpmon_binary};
pub use prometheus::Prometheus;
pub use trace::Trace;
pub use traffic::Traffic;
pub use wait::{at_least, equal, eventually, within};

/// A port that was free a moment ago in this thread's network namespace, to be bound explicitly: to tcpmon, ports that
/// the kernel chooses for listening sockets are one service.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))?.local_addr()?.port())
}

/// Returns the value, or panics with what was being done.
#[track_caller]
fn must<T, E: Display>(result: Result<T, E>, doing: impl Display) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{doing}: {error}"),
    }
}
