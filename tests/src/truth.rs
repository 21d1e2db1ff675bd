//! The kernel's own word about what tcpmon claims, read without tcpmon.

mod proc;
mod sockets;

pub use proc::{Softnet, Switches, TaskTimes, rss_bytes, softnet, switches, task_times, tcp_counters};
pub use sockets::{Socket, State, sockets};
