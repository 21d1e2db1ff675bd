//! Faults that a test makes on purpose: each lives in a lab of its own, is bounded in count, and is over when dropped.
//!
//! What a fault has done can be asked of the kernel by itself, without tcpmon. The names of all processes that are not
//! named by the test begin with `fault-`.

use std::time::Duration;

mod nic;
mod receiver;
mod ring;
mod stuck;
mod tcp_memory;

pub use nic::Nic;
pub use receiver::SlowReader;
pub use ring::RingOverrun;
pub use stuck::StuckSockets;
pub use tcp_memory::TcpMemoryPressure;

/// Time for a fault to show in the kernel's own counters.
const DEADLINE: Duration = Duration::from_secs(30);
