//! Host-wide TCP memory pressure.

use crate::eventually;
use crate::fault::DEADLINE;
use crate::lab::Lab;
use crate::sysctl::{self, HostSysctl};
use crate::traffic::{Reader, Sender, Threads, Traffic};
use crate::truth::{TcpMemory, tcp_memory};

/// Connections whose data nobody reads.
const STALLED: u64 = 8;
/// Pages that they hold at least, well above the 256 pages that each CPU holds back for itself.
const HELD_PAGES: u64 = 4_096;

/// Keeps TCP under memory pressure for as long as this lives: stalled connections hold megabytes, and `tcp_mem`, of
/// which the whole host has one, is set so that its second value is below that.
///
/// The third value stays, so no allocation is refused: other connections of the host only get smaller windows. Keep it
/// for a few seconds only. The kernel enters the pressure state when a socket allocates memory above the second value.
/// It leaves the state when a socket allocates or frees memory below the first. So one connection stays busy, and the
/// sysctl is restored before the stalled connections end and free their memory.
#[derive(Debug)]
pub struct TcpMemoryPressure {
    _tcp_mem: HostSysctl,
    _busy: (Sender, Reader),
    _stalled: (Sender, Reader),
    _lab: Lab,
}

impl TcpMemoryPressure {
    /// Causes memory pressure; the kernel reports the pressure when this returns.
    ///
    /// Call it on a thread in the host's own network namespace: no other namespace shows `tcp_mem`.
    #[track_caller]
    pub fn new() -> Self {
        let lab = Lab::new();
        // The buffer of a reader that never reads stays at the default: 4 MiB for each connection.
        lab.set_sysctl("net.ipv4.tcp_rmem", "4096\t4194304\t8388608");
        lab.set_sysctl("net.ipv4.tcp_wmem", "4096\t4194304\t8388608");
        let before = tcp_memory().pages;
        let reader = Traffic::reader(lab.receiver()).comm("fault-stalled").paused().connections(STALLED);
        let reader = reader.threads(Threads::Epoll).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address()).flows(STALLED).spawn();
        let stalled = (sender, reader);
        let used = eventually(DEADLINE, "stalled connections hold memory", || match tcp_memory() {
            TcpMemory { pages, .. } if pages >= before + HELD_PAGES => Ok(pages),
            other => Err(format!("{other:?}, {before} pages before")),
        });
        let reader = Traffic::reader(lab.receiver()).comm("fault-busy").spawn();
        let busy = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address()).rate(10_000_000).spawn();
        let most = sysctl::read("net.ipv4.tcp_mem");
        let most = most.split_ascii_whitespace().last().expect("tcp_mem has three values");
        let tcp_mem = HostSysctl::set("net.ipv4.tcp_mem", &format!("{} {} {most}", used / 4, used / 2));
        let pressure = Self { _tcp_mem: tcp_mem, _busy: (busy, reader), _stalled: stalled, _lab: lab };
        eventually(DEADLINE, "TCP is under memory pressure", || match tcp_memory() {
            TcpMemory { pressure: true, .. } => Ok(()),
            other => Err(format!("{other:?}")),
        });
        pressure
    }
}

impl Default for TcpMemoryPressure {
    fn default() -> Self {
        Self::new()
    }
}
