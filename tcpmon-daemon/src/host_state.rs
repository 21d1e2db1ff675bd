//! The state of the host at one moment, apart from what the programs saw. A field is empty if its source is off.

use std::time::Duration;

/// Everything that is read from `/proc`, netlink, ethtool and the kernel log. A counter never decreases while its
/// series exists, whatever the kernel's own counter does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// Network devices of the daemon's network namespace, sorted by name.
    pub devices: Vec<Device>,
    /// Softnet counters per CPU, sorted by CPU number.
    pub softnet: Vec<Softnet>,
    /// Memory of all TCP sockets of the host.
    pub tcp_memory: Option<TcpMemory>,
    /// TCP sockets that no process holds any more (orphans).
    pub orphan_sockets: Option<u64>,
    /// Connections that the kernel started to open (`ActiveOpens` and `PassiveOpens`), summed over the network
    /// namespaces that can be entered.
    pub connections_opened: Option<u64>,
    /// `TcpExt` counters by the kernel's names, summed over the network namespaces that can be entered.
    pub tcp_events: Vec<(String, u64)>,
    /// `IpExt` counters, summed in the same way.
    pub ip_events: Vec<(String, u64)>,
    /// Sockets that are not established and still have data to send, by state (`host/stuck.rs` lists the states).
    pub stuck: Vec<Stuck>,
    /// Memory zones, sorted by node and address.
    pub zones: Vec<Zone>,
    /// Page allocation failures that the kernel has logged since tcpmon started to read the log.
    pub page_allocation_failures: Option<Vec<PageAllocationFailures>>,
    /// Time that tasks spent waiting for memory.
    pub memory_pressure_stalls: Option<PressureStalls>,
    /// Control groups (v2) that hold socket memory.
    pub cgroups: Vec<CgroupSockets>,
    /// Context switches of all CPUs since boot.
    pub context_switches: Option<u64>,
    /// What the sources missed: the kind, and how often.
    pub losses: Vec<(&'static str, u64)>,
    /// Status of each source.
    pub sources: Vec<SourceStatus>,
}

/// One network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Packets that found no room in the receive ring: the driver's or rtnetlink's name of the counter, and its value.
    pub overruns: Vec<(String, u64)>,
    /// Size of the receive ring; `None` if the driver does not report it.
    pub ring: Option<Ring>,
}

/// Size of a receive ring, descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Ring {
    /// Current size.
    pub entries: u64,
    /// Maximum that the driver allows.
    pub max_entries: u64,
}

/// How many receive queues a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Channels {
    /// Queues in use.
    pub queues: u64,
    /// Maximum number of queues of the driver.
    pub max_queues: u64,
}

/// How long a device waits before it interrupts a CPU for received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Coalescing {
    /// Whether the driver adapts the two limits to the traffic.
    pub is_adaptive: bool,
    /// The longest time that it waits, microseconds.
    pub usecs: u64,
    /// The number of packets after which it no longer waits.
    pub packets: u64,
}

/// Receive-side counters of one CPU (`/proc/net/softnet_stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Softnet {
    /// The CPU.
    pub cpu: u32,
    /// Packets processed.
    pub processed: u64,
    /// Packets dropped because the CPU's backlog was full.
    pub dropped: u64,
    /// Times that the CPU used up its budget or its time and had work left.
    pub time_squeezed: u64,
}

/// Memory of all TCP sockets and its limits (`tcp_mem`), bytes. `None` for what the kernel's files do not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpMemory {
    /// In use.
    pub bytes: Option<u64>,
    /// Memory pressure ends below this.
    pub low: Option<u64>,
    /// Memory pressure starts above this.
    pub pressure: Option<u64>,
    /// Hard limit.
    pub max: Option<u64>,
    /// Whether TCP is under memory pressure now.
    pub under_pressure: Option<bool>,
}

/// Sockets in one state that still have data to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stuck {
    /// The state as `ss` names it, in lower case with underscores: `fin_wait_1`.
    pub state: &'static str,
    /// Number of sockets.
    pub sockets: u64,
    /// Sum of their send queues (`Send-Q`), bytes.
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
    /// Watermark below which only atomic allocations may take memory, bytes.
    pub min_bytes: u64,
    /// Watermark below which background reclaim starts, bytes.
    pub low_bytes: u64,
    /// Watermark at which background reclaim stops, bytes.
    pub high_bytes: u64,
    /// Free blocks of 2^index pages (`/proc/buddyinfo`); empty if its line cannot be read.
    pub free_blocks: Vec<u64>,
}

/// Page allocation failures of one order and context.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageAllocationFailures {
    /// 2^order pages were requested.
    pub order: u32,
    /// The allocation was not allowed to wait (in interrupts and softirqs, where packets are received).
    pub atomic: bool,
    /// Number of failures.
    pub count: u64,
}

/// PSI of memory (`/proc/pressure/memory`). `None` for what the file does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureStalls {
    /// Time in which at least one task waited for memory.
    pub some: Option<Duration>,
    /// Time in which all non-idle tasks waited for memory.
    pub full: Option<Duration>,
}

/// Socket memory of one control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSockets {
    /// Path below the root of the hierarchy; `other` for all groups beyond the number that is shown.
    pub cgroup: String,
    /// Whether the group or an ancestor has a limit (`memory.max`) that this memory counts against.
    pub capped: bool,
    /// Bytes.
    pub bytes: u64,
}

/// Status of one source.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SourceStatus {
    /// Its name.
    pub name: &'static str,
    /// Whether its families are shown.
    pub available: bool,
    /// It is not available because the configuration says so.
    pub switched_off: bool,
    /// Why the source is not available, and what is lost without it; or what it could not read although it is
    /// available. Empty if nothing is missing.
    pub reason: String,
}
