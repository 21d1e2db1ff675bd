//! What the host says of itself at one moment, beside what the programs saw. Empty where its source is off.

use std::time::Duration;

/// Everything that is read from `/proc`, netlink, ethtool and the kernel log. Counters only grow for as long as their
/// series exists, whatever the kernel's own do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// Network devices of the daemon's namespace in the order of their names.
    pub devices: Vec<Device>,
    /// CPUs in the order of their numbers.
    pub softnet: Vec<Softnet>,
    /// Memory of all TCP sockets of the host.
    pub tcp_memory: Option<TcpMemory>,
    /// TCP sockets that no process holds any more.
    pub orphan_sockets: Option<u64>,
    /// Connections that the kernel began to open (`ActiveOpens` and `PassiveOpens`), summed likewise.
    pub connections_opened: Option<u64>,
    /// `TcpExt` counters by the kernel's names, summed over the network namespaces that can be entered.
    pub tcp_events: Vec<(String, u64)>,
    /// `IpExt` counters, likewise.
    pub ip_events: Vec<(String, u64)>,
    /// Sockets with something to send in a state in which no process sends any more, by state.
    pub stuck: Vec<Stuck>,
    /// Memory zones in the order of node and address.
    pub zones: Vec<Zone>,
    /// Failures of the page allocator that the kernel logged since tcpmon began to read the log.
    pub page_allocation_failures: Option<Vec<PageAllocationFailures>>,
    /// Time in which tasks waited for memory.
    pub memory_pressure_stalls: Option<PressureStalls>,
    /// Control groups (v2) that hold socket memory.
    pub cgroups: Vec<CgroupSockets>,
    /// Context switches of all CPUs since boot.
    pub context_switches: Option<u64>,
    /// What the sources could not keep up with: what, how often.
    pub losses: Vec<(&'static str, u64)>,
    /// What became of each source.
    pub sources: Vec<Source>,
}

/// One network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Packets that found no room in the receive ring: the name that the driver or rtnetlink has for it, and how many.
    pub overruns: Vec<(String, u64)>,
    /// Descriptors of the receive ring in use and possible; `None` where the driver does not say.
    pub ring: Option<Ring>,
}

/// Size of a receive ring, descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// As it is set.
    pub entries: u64,
    /// Most that the driver allows.
    pub max_entries: u64,
}

/// Receive side of one CPU (`/proc/net/softnet_stat`), packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Softnet {
    /// The CPU.
    pub cpu: u32,
    /// Packets processed.
    pub processed: u64,
    /// Packets dropped because the CPU's backlog was full.
    pub dropped: u64,
    /// Times that the CPU ran out of budget or time with work left.
    pub time_squeezed: u64,
}

/// Memory of all TCP sockets beside its limits (`tcp_mem`), bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpMemory {
    /// In use.
    pub bytes: u64,
    /// Below it pressure ends.
    pub low: u64,
    /// Above it pressure begins.
    pub pressure: u64,
    /// Never more than this.
    pub max: u64,
    /// Whether the kernel is in the state of pressure now.
    pub under_pressure: bool,
}

/// Sockets of one state that still have something to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stuck {
    /// The state as `ss` names it, lower case, with underscores: `fin_wait_1`.
    pub state: &'static str,
    /// How many.
    pub sockets: u64,
    /// Their send queues (`Send-Q`), bytes.
    pub send_queue_bytes: u64,
}

/// One memory zone of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// The NUMA node.
    pub node: u32,
    /// `DMA`, `DMA32`, `Normal`, `HighMem`, `Movable`, ...
    pub zone: String,
    /// Memory that the page allocator manages, bytes.
    pub managed_bytes: u64,
    /// Free, bytes.
    pub free_bytes: u64,
    /// Watermark below which only the atomic may allocate, bytes.
    pub min_bytes: u64,
    /// Watermark below which reclaim begins in the background, bytes.
    pub low_bytes: u64,
    /// Watermark at which that ends, bytes.
    pub high_bytes: u64,
    /// Free blocks of 2^index pages (`/proc/buddyinfo`); empty where that cannot be read.
    pub free_blocks: Vec<u64>,
}

/// Page-allocation failures of one order and context.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageAllocationFailures {
    /// 2^order pages were asked for.
    pub order: u32,
    /// The allocation was not allowed to wait (interrupts, softirq: where packets are received).
    pub atomic: bool,
    /// How many.
    pub count: u64,
}

/// PSI of memory (`/proc/pressure/memory`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureStalls {
    /// Time in which some task waited for memory.
    pub some: Duration,
    /// Time in which all tasks that were not idle did.
    pub full: Duration,
}

/// Socket memory of one control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSockets {
    /// Path below the root of the hierarchy; `other` for what is beyond the number that is shown.
    pub cgroup: String,
    /// The group or one above it has a limit (`memory.max`) that this memory counts against.
    pub capped: bool,
    /// Bytes.
    pub bytes: u64,
}

/// What became of one source.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Source {
    /// Its name.
    pub name: &'static str,
    /// Whether its families are shown.
    pub available: bool,
    /// Why not, and what is lost without it; or what it could not see although it is available. Empty when all is well.
    pub reason: String,
}
