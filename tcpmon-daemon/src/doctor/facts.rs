//! The facts that the rules decide from: what was found, or the reason why it could not be found.

use std::{collections::BTreeMap, time::Duration};

use serde::{Serialize, Serializer, ser::SerializeMap as _};

use crate::{
    host_state::{Channels, Coalescing, Ring},
    kernel::Prerequisites,
    status::ProbeStatus,
};

/// Something that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact<T> {
    /// What was found.
    Known(T),
    /// Why it is not known, in words that can follow "not checked: ".
    Unknown(String),
}

impl<T> Fact<T> {
    /// What was found.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn get(&self) -> Result<&T, String> {
        match self {
            Self::Known(found) => Ok(found),
            Self::Unknown(reason) => Err(reason.clone()),
        }
    }
}

impl<T, E: std::fmt::Display> From<Result<T, E>> for Fact<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(found) => Self::Known(found),
            Err(error) => Self::Unknown(error.to_string()),
        }
    }
}

impl<T: Serialize> Serialize for Fact<T> {
    /// The value itself if it is known; otherwise an object with the reason as `unknown`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Known(found) => found.serialize(serializer),
            Self::Unknown(reason) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("unknown", reason)?;
                map.end()
            }
        }
    }
}

/// Everything that the rules look at, and what only a comparison with an earlier answer shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// What tcpmon needs to run.
    pub run: RunFacts,
    /// The host's settings.
    pub host: HostFacts,
    /// The network devices that are examined, by name.
    pub devices: Vec<DeviceFacts>,
    /// Why some of them may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices_missing: Option<String>,
}

/// What tcpmon needs to run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunFacts {
    /// What is checked before the programs are loaded.
    pub prerequisites: Prerequisites,
    /// The status of each probe once the programs were loaded and attached, or how the kernel refused them.
    #[serde(serialize_with = "probes")]
    pub probes: Fact<Result<Vec<ProbeStatus>, Refusal>>,
    /// `/sys/kernel/security/lsm`: the active security modules, separated by commas.
    pub security_modules: Fact<String>,
    /// `/proc/self/attr/current`: the security module's profile or context of this process; empty if it has none.
    pub confinement: Fact<String>,
    /// Whether cgroup v2 is mounted at `/sys/fs/cgroup` or below.
    pub cgroup_v2: Fact<bool>,
    /// `kernel.dmesg_restrict`.
    pub dmesg_restrict: Fact<u64>,
    /// `net.core.bpf_jit_enable`.
    pub bpf_jit_enable: Fact<u64>,
    /// `kernel.bpf_stats_enabled`.
    pub bpf_stats_enabled: Fact<u64>,
    /// Whether this process is in the PID namespace of the host.
    pub host_pid_namespace: Fact<bool>,
    /// Whether this process is in the network namespace of process 1.
    pub first_network_namespace: Fact<bool>,
    /// Other processes of tcpmon, by process id: the command line.
    pub others: Fact<BTreeMap<u32, String>>,
}

/// How the kernel refused to load or attach the programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// What it refused, and its error.
    pub missing: String,
    /// What to do about it.
    pub remedy: String,
    /// Whether it refused because of a missing permission.
    pub denied: bool,
}

/// The host's settings that matter to a receiver. Names of settings are those of `sysctl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostFacts {
    /// Memory of the host, bytes.
    pub memory_bytes: Fact<u64>,
    /// Memory of processes that is in swap space, bytes.
    pub swapped_bytes: Fact<u64>,
    /// The active profile of tuned; none if it is not installed or has none.
    pub tuned_profile: Fact<Option<String>>,
    /// Size of a page, bytes: the unit of `tcp_mem`.
    pub page_bytes: u64,
    /// Number of CPUs that are online.
    pub cpus: Fact<u64>,
    /// Number of NUMA nodes that are online.
    pub numa_nodes: Fact<u64>,
    /// `vendor_id` of the first CPU; empty if the architecture has none.
    pub cpu_vendor: Fact<String>,
    /// Whether several threads share a core.
    pub smt: Fact<bool>,
    /// `kernel.numa_balancing`; 0 if the kernel has none.
    pub numa_balancing: Fact<u64>,
    /// `net.ipv4.tcp_wmem`: smallest, first and largest send buffer, bytes.
    pub tcp_wmem: Fact<[u64; 3]>,
    /// `net.ipv4.tcp_mtu_probing`.
    pub mtu_probing: Fact<u64>,
    /// `net.ipv4.tcp_rmem`: smallest, first and largest receive buffer, bytes.
    pub tcp_rmem: Fact<[u64; 3]>,
    /// `net.core.rmem_max`, bytes.
    pub rmem_max: Fact<u64>,
    /// `net.core.wmem_max`, bytes. No rule looks at it.
    pub wmem_max: Fact<u64>,
    /// `net.ipv4.tcp_mem`: low, pressure and maximum, pages.
    pub tcp_mem: Fact<[u64; 3]>,
    /// `vm.min_free_kbytes`.
    pub min_free_kbytes: Fact<u64>,
    /// `vm.overcommit_memory`. No rule looks at it.
    pub overcommit_memory: Fact<u64>,
    /// `net.core.netdev_max_backlog`, packets.
    pub netdev_max_backlog: Fact<u64>,
    /// `net.core.netdev_budget`, packets.
    pub netdev_budget: Fact<u64>,
    /// `net.core.netdev_budget_usecs`. No rule looks at it.
    pub netdev_budget_usecs: Fact<u64>,
    /// `/proc/net/softnet_stat`, the sum of all CPUs since the host started.
    pub softnet: Fact<SoftnetSums>,
    /// `net.ipv4.tcp_congestion_control`.
    pub congestion_control: Fact<String>,
    /// `net.core.default_qdisc`.
    pub default_qdisc: Fact<String>,
    /// `net.ipv4.tcp_window_scaling`.
    pub window_scaling: Fact<u64>,
    /// `net.ipv4.tcp_timestamps`.
    pub timestamps: Fact<u64>,
    /// `net.ipv4.tcp_sack`.
    pub sack: Fact<u64>,
    /// `net.ipv4.tcp_moderate_rcvbuf`.
    pub moderate_rcvbuf: Fact<u64>,
    /// `net.core.optmem_max`, bytes.
    pub optmem_max: Fact<u64>,
    /// `net.ipv4.ip_forward`.
    pub ip_forward: Fact<u64>,
    /// CPUs by frequency governor; none if the kernel does not set frequencies. A CPU whose
    /// `energy_performance_preference` is `performance` has that governor.
    pub governors: Fact<BTreeMap<String, u64>>,
}

/// What all CPUs did with received packets since the host started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SoftnetSums {
    /// Packets processed.
    pub processed: u64,
    /// Packets dropped because the backlog of a CPU was full.
    pub dropped: u64,
    /// Times that a CPU used up its budget or its time and had work left.
    pub time_squeezed: u64,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// Name of its driver.
    pub driver: Fact<String>,
    /// Speed of its link, bit/s.
    pub speed: Fact<u64>,
    /// Its MTU, bytes.
    pub mtu: Fact<u64>,
    /// Its queueing discipline; empty if the kernel does not say.
    pub qdisc: Fact<String>,
    /// If that is `mq`, `mqprio` or `multiq`: number of transmit queues by the queueing discipline that they have.
    /// Empty otherwise.
    pub queue_qdiscs: Fact<BTreeMap<String, u64>>,
    /// The receive ring; none if its driver has none.
    pub ring: Fact<Option<Ring>>,
    /// The transmit ring; none if its driver has none. No rule looks at it.
    pub tx_ring: Fact<Option<Ring>>,
    /// Whether generic receive offload is on.
    pub gro: Fact<bool>,
    /// Whether large receive offload is on.
    pub lro: Fact<bool>,
    /// Whether the device itself merges packets as GRO does; none if it cannot.
    pub gro_hw: Fact<Option<bool>>,
    /// Whether each of its other offloads (segmentation, checksums, ...) is on, by the kernel's name; those that it
    /// cannot have are left out. No rule looks at them.
    pub offloads: Fact<BTreeMap<String, bool>>,
    /// Its receive queues; none if its driver does not let their number be set.
    pub channels: Fact<Option<Channels>>,
    /// When it interrupts; none if its driver does not say.
    pub coalescing: Fact<Option<Coalescing>>,
    /// Its link on the PCI Express bus; none if it is not on one, or the bus does not say (as in virtual machines).
    pub pcie: Fact<Option<PcieLink>>,
    /// Whether it sends pause frames when its ring fills; none if its driver has no flow control.
    pub flow_control: Fact<Option<bool>>,
    /// NUMA node of its bus; none if it has none.
    pub numa_node: Fact<Option<u64>>,
    /// CPUs of that node.
    pub local_cpus: Fact<Vec<u64>>,
    /// Number of receive queues.
    pub rx_queues: Fact<u64>,
    /// Whether RPS spreads the packets of at least one receive queue.
    pub rps: Fact<bool>,
    /// CPUs that handle each of its interrupts, by the interrupt's number.
    pub interrupts: Fact<BTreeMap<u64, Vec<u64>>>,
    /// Type of its IOMMU domain (`DMA`, `DMA-FQ`, `identity`); none if no IOMMU is in use.
    pub iommu: Fact<Option<String>>,
}

/// A link on a PCI Express bus.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PcieLink {
    /// The rate at which it runs.
    pub now: PcieRate,
    /// The highest rate that both of its ends support: the device, and the port above it (the slot), if the bus shows
    /// one.
    pub most: PcieRate,
}

/// Rate of a link on a PCI Express bus.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PcieRate {
    /// Transfers of one bit on each lane, 10^9 a second.
    pub gigatransfers: f64,
    /// Lanes.
    pub lanes: u64,
}

impl PcieRate {
    /// Data rate, bit/s: 8 bits are sent as 10 up to 5 GT/s, and 128 as 130 above. The headers of packets, some 10 %,
    /// are not subtracted.
    pub fn bits_per_second(self) -> u64 {
        let coding = if self.gigatransfers <= 5.0 { 8.0 / 10.0 } else { 128.0 / 130.0 };
        (self.gigatransfers * 1e9 * coding * self.lanes as f64) as u64
    }
}

/// The transfers that the host should be able to handle.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// Rate of a transfer, all of its streams together, bit/s.
    pub bandwidth: u64,
    /// Number of connections of a transfer.
    pub streams: u64,
    /// Longest round trip.
    #[serde(rename = "rtt_seconds", serialize_with = "seconds")]
    pub rtt: Duration,
}

impl Goal {
    /// Bytes in flight on each connection of a transfer at this rate and round trip (the bandwidth-delay product).
    pub fn bdp(self) -> u64 {
        (self.bandwidth as f64 / 8.0 * self.rtt.as_secs_f64() / self.streams as f64) as u64
    }
}

/// A list, or an object with the refusal as `refused`.
fn probes<S: Serializer>(probes: &Fact<Result<Vec<ProbeStatus>, Refusal>>, serializer: S) -> Result<S::Ok, S::Error> {
    match probes {
        Fact::Known(Ok(probes)) => probes.serialize(serializer),
        Fact::Known(Err(refusal)) => {
            let mut map = serializer.serialize_map(Some(1))?;
            map.serialize_entry("refused", refusal)?;
            map.end()
        }
        Fact::Unknown(reason) => Fact::<()>::Unknown(reason.clone()).serialize(serializer),
    }
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}
