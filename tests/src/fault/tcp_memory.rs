//! TCP under memory pressure, host-wide.

use crate::eventually;
use crate::fault::DEADLINE;
use crate::lab::Lab;
use crate::sysctl::{self, HostSysctl};
use crate::traffic::{Reader, Sender, Threads, Traffic};
use crate::truth::{TcpMemory, tcp_memory};

/// Connections whose data nobody reads.
const STALLED: u64 = 8;
/// Pages that they hold at least, well above what each CPU holds back for itself (256 pages).
const HELD_PAGES: u64 = 4_096;

/// TCP in the state of memory pressure, for as long as this lives: stalled connections hold megabytes, and `tcp_mem`,
/// which is one for the whole host, is set so that they are more than its second value.
///
/// The third value stays, so nobody is refused memory: other connections of the host only get smaller windows. Keep it
/// for seconds. The kernel enters the state when a socket asks for memory above the second value and leaves it when one
/// asks or gives back below the first, so one connection stays busy, and the sysctl is put back before the
/// stalled connections end and give theirs back.
#[derive(Debug)]
pub struct TcpMemoryPressure {
    _tcp_mem: HostSysctl,
    _busy: (Sender, Reader),
    _stalled: (Sender, Reader),
    _lab: Lab,
}

impl TcpMemoryPressure {
    /// Brings it about; the kernel says that it is under pressure when this returns.
    ///
    /// Call it on a thread in the host's own network namespace: `tcp_mem` is shown in no other.
    #[track_caller]
    pub fn new() -> Self {
        let lab = Lab::new();
        // A reader that never reads gets no more than the default: 4 MiB each.
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
