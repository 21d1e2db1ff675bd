//! The kernel's own figures for what tcpmon reports, read without tcpmon.

mod cpus;
mod hidden;
mod kernel_log;
mod limits;
mod memory;
mod proc;
mod sockets;
mod trace;

pub use cpus::CpuCounters;
pub use hidden::HiddenEnds;
pub use kernel_log::kernel_alarms;
pub use limits::LimitTrace;
pub use memory::{Sockstat, TcpMemory, Zone, memory_stalls_us, page_bytes, sockstat, tcp_memory, zones};
pub use proc::{
    Softnet, Switches, TaskTimes, context_switches, cpu_time, is_asleep, netstat, own_rss_bytes, peak_own_rss_bytes,
    rss_bytes, send_queues, softnet, stolen_time, switches, task_times, tcp_counters, threads,
    tracepoints_are_preemptible,
};
pub use sockets::{Socket, State, sockets};
pub use trace::Trace;
