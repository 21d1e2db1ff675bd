//! Faults that tests cause on purpose. Each runs in a lab of its own, is limited in number, and ends when dropped.
//!
//! The effects of a fault can be read from the kernel itself, without tcpmon. The names of all processes that the test
//! does not name start with `fault-`.

use std::time::Duration;

mod clock;
mod nic;
mod offline_cpu;
mod receiver;
mod ring;
mod stuck;
mod tcp_memory;

pub use clock::WrongClock;
pub use nic::Nic;
pub use offline_cpu::OfflineCpu;
pub use receiver::SlowReader;
pub use ring::RingOverrun;
pub use stuck::StuckSockets;
pub use tcp_memory::TcpMemoryPressure;

/// Time limit for a fault to show in the kernel's own counters.
const DEADLINE: Duration = Duration::from_secs(30);
