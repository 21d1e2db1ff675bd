//! Rules about the network devices of a host that receives.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::{Check, ESNET_100G, GBIT, Rule, SC24, find, rate};
use crate::{
    doctor::facts::{DeviceFacts, Goal, PcieLink, PcieRate},
    host::qdisc,
};

const SCALING: &str = "Documentation/networking/scaling.rst";

/// The rules.
pub(super) static RULES: [Rule; 14] = [
    Rule {
        id: "device.ring",
        wanted: "the receive ring has 1024 entries (4096 at 10 Gbit/s and above, 8192 at 40 Gbit/s and above with AMD \
                 CPUs), or as many as it can have",
        why: "the ring holds what arrives until a CPU takes it: a small one overruns",
        source: "ESnet fasterdata: NIC tuning; SC24 for AMD",
        refuses: false,
        check: Check::Device(|device, facts, goal| {
            let Some(ring) = device.ring.get()? else { return Ok(None) };
            // SC24 enlarged the ring only on its AMD hosts.
            let is_amd = facts.host.cpu_vendor.get()? == "AuthenticAMD";
            let wanted = match speed(device, goal) {
                speed if speed >= 40 * GBIT && is_amd => 8192,
                speed if speed >= 10 * GBIT => 4096,
                _ => 1024,
            };
            let wanted = ring.max_entries.min(wanted);
            find(
                ring.entries < wanted,
                || format!("its receive ring has {} of {} entries", ring.entries, ring.max_entries),
                || format!("ethtool -G {} rx {wanted}", device.name),
            )
        }),
    },
    Rule {
        id: "device.queues",
        wanted: "at 10 Gbit/s and above, the device has more than one receive queue, if it can",
        why: "one CPU at a time empties a queue, so with a single queue, one CPU does the work for all connections; \
              use the smallest number of queues of which none overruns, because each further one adds interrupts",
        source: SCALING,
        refuses: false,
        check: Check::Device(|device, facts, goal| {
            let Some(channels) = device.channels.get()? else { return Ok(None) };
            let is_one_of_many = channels.queues == 1 && channels.max_queues > 1 && *facts.host.cpus.get()? > 1;
            find(
                speed(device, goal) >= 10 * GBIT && is_one_of_many,
                || format!("it has one of {} receive queues", channels.max_queues),
                || {
                    format!(
                        "ethtool -L {} combined 2 (or rx 2); double that while its ring overruns, up to one for each \
                         core",
                        device.name
                    )
                },
            )
        }),
    },
    Rule {
        id: "device.coalescing",
        wanted: "at 10 Gbit/s and above, the device does not interrupt for every packet",
        why: "an interrupt for each of a million packets a second leaves no time for their readers",
        source: ESNET_100G,
        refuses: false,
        check: Check::Device(|device, _, goal| {
            let Some(coalescing) = device.coalescing.get()? else { return Ok(None) };
            // For such a device, the host of the virtual machine decides.
            let is_virtual = device.driver.get()? == "virtio_net";
            find(
                speed(device, goal) >= 10 * GBIT
                    && !is_virtual
                    && !coalescing.is_adaptive
                    && coalescing.usecs == 0
                    && coalescing.packets <= 1,
                || "it interrupts for every packet".into(),
                || format!("ethtool -C {} adaptive-rx on adaptive-tx on", device.name),
            )
        }),
    },
    Rule {
        id: "device.interrupts",
        wanted: "the interrupts of a device with several receive queues go to several CPUs",
        why: "otherwise one CPU does the work of all queues, and the rings overrun while other CPUs are idle",
        source: SC24,
        refuses: false,
        check: Check::Device(|device, facts, _| {
            let (interrupts, queues) = (device.interrupts.get()?, *device.rx_queues.get()?);
            let cpus: BTreeSet<_> = interrupts.values().flatten().collect();
            find(
                queues > 1 && *facts.host.cpus.get()? > 1 && interrupts.len() > 1 && cpus.len() == 1,
                || {
                    format!(
                        "its {} interrupts all go to CPU {}",
                        interrupts.len(),
                        cpus.iter().next().map_or(&0, |cpu| cpu)
                    )
                },
                || {
                    "stop irqbalance, and write a CPU of its own to /proc/irq/N/smp_affinity_list of each; keep \
                     readers off these CPUs"
                        .into()
                },
            )
        }),
    },
    Rule {
        id: "device.numa",
        wanted: "the interrupts go to CPUs of the NUMA node to which the device is attached",
        why: "otherwise every packet crosses the link between the nodes, and TCP can be half as fast",
        source: "ESnet fasterdata: Interrupt binding",
        refuses: false,
        check: Check::Device(|device, facts, _| {
            let (Some(node), true) = (device.numa_node.get()?, *facts.host.numa_nodes.get()? > 1) else {
                return Ok(None);
            };
            let (interrupts, local) = (device.interrupts.get()?, device.local_cpus.get()?);
            let far = interrupts.values().filter(|cpus| !cpus.iter().any(|cpu| local.contains(cpu))).count();
            find(
                far > 0,
                || format!("{far} of its {} interrupts go to CPUs outside its NUMA node {node}", interrupts.len()),
                || {
                    "stop irqbalance, and write CPUs of that node to /proc/irq/N/smp_affinity_list; keep readers off \
                     these CPUs"
                        .into()
                },
            )
        }),
    },
    Rule {
        id: "device.rps",
        wanted: "at 10 Gbit/s and above, the packets of a device with a single receive queue are spread by RPS",
        why: "otherwise one CPU does the work of TCP for all connections",
        source: SCALING,
        refuses: false,
        check: Check::Device(|device, facts, goal| {
            let (queues, cpus) = (*device.rx_queues.get()?, *facts.host.cpus.get()?);
            let needed = queues == 1 && cpus > 1 && speed(device, goal) >= 10 * GBIT;
            find(
                needed && !*device.rps.get()?,
                || "it has one receive queue, and RPS is off".into(),
                || {
                    let mask = u64::MAX >> (64 - cpus.min(32));
                    format!("echo {mask:x} > /sys/class/net/{}/queues/rx-0/rps_cpus", device.name)
                },
            )
        }),
    },
    Rule {
        id: "device.gro",
        wanted: "generic receive offload (GRO) is on",
        why: "without it, TCP does its work for every packet instead of once for up to 64 KiB",
        source: "Documentation/networking/device_drivers/ethernet/intel/ixgbe.rst; SC24",
        refuses: false,
        check: Check::Device(|device, _, _| {
            find(!*device.gro.get()?, || "GRO is off".into(), || format!("ethtool -K {} gro on", device.name))
        }),
    },
    Rule {
        id: "device.gro-hw",
        wanted: "at 40 Gbit/s and above, the device itself merges packets (rx-gro-hw), if it can",
        why: "on ConnectX-7 with Linux 6.11, one stream received 62 instead of 24 Gbit/s with an MTU of 1500 (Intel), \
              and 53 instead of 40 with 9000 (AMD)",
        source: SC24,
        refuses: false,
        check: Check::Device(|device, _, goal| {
            find(
                speed(device, goal) >= 40 * GBIT && *device.gro_hw.get()? == Some(false),
                || "rx-gro-hw is off".into(),
                || format!("ethtool -K {} rx-gro-hw on", device.name),
            )
        }),
    },
    Rule {
        id: "device.lro",
        wanted: "large receive offload (LRO) is off on a host that forwards packets",
        why: "merged packets cannot be forwarded as they came; GRO has no such limit",
        source: "net/core/skbuff.c, skb_warn_if_lro; Documentation/networking/device_drivers/ethernet/intel/ixgbe.rst",
        refuses: false,
        check: Check::Device(|device, facts, _| {
            find(
                *device.lro.get()? && *facts.host.ip_forward.get()? != 0,
                || "LRO is on, and net.ipv4.ip_forward is 1".into(),
                || format!("ethtool -K {} lro off", device.name),
            )
        }),
    },
    Rule {
        id: "device.mtu",
        wanted: "at 40 Gbit/s and above, the MTU is 9000 if the whole path allows it",
        why: "packets six times as large mean a sixth of the interrupts, headers and acknowledgements",
        source: SC24,
        refuses: false,
        check: Check::Device(|device, _, goal| {
            let mtu = *device.mtu.get()?;
            find(
                speed(device, goal) >= 40 * GBIT && mtu < 9000,
                || match device.speed.get() {
                    Ok(speed) => format!("its MTU is {mtu}, at {}", rate(*speed)),
                    Err(_) => format!("its MTU is {mtu}, and the goal is to receive {}", rate(goal.bandwidth)),
                },
                || format!("ip link set {} mtu 9000, once every switch on the path allows it", device.name),
            )
        }),
    },
    Rule {
        id: "device.qdisc",
        wanted: "its queueing discipline is fq, fq_codel or cake, or mq with these on all queues; shapers such as htb \
                 are left as they are",
        why: "fq paces what this host sends, so that its bursts overrun no switch; fq_codel and cake keep queues \
              short; pfifo_fast does neither; a host that only receives sends nothing but acknowledgements",
        source: ESNET_100G,
        refuses: false,
        check: Check::Device(|device, _, _| {
            let root = device.qdisc.get()?.as_str();
            let is_plain = |name: &str| ["pfifo_fast", "pfifo", "bfifo", "sfq"].contains(&name);
            if !qdisc::OF_QUEUES.contains(&root) {
                return find(
                    is_plain(root),
                    || format!("its queueing discipline is {root}"),
                    || format!("tc qdisc replace dev {} root fq", device.name),
                );
            }
            let queues = device.queue_qdiscs.get()?;
            find(
                queues.keys().any(|name| is_plain(name)),
                || format!("its queueing discipline is {root} with {}", on_queues(queues)),
                || {
                    if root != "mq" {
                        return format!(
                            "tc qdisc replace dev {0} parent HANDLE fq, for each parent that tc qdisc show dev {0} \
                             names",
                            device.name
                        );
                    }
                    // Replacing an `mq` that tc has made with another one does nothing, and an `mq` that the kernel has
                    // made cannot be deleted.
                    format!(
                        "sysctl -w net.core.default_qdisc=fq && {{ tc qdisc del dev {0} root; \
                         tc qdisc replace dev {0} root mq; }}",
                        device.name
                    )
                },
            )
        }),
    },
    Rule {
        id: "device.flow-control",
        wanted: "at 10 Gbit/s and above, the device sends pause frames (if its driver can)",
        why: "the switch then holds packets back when the ring is full, instead of losing them here",
        source: SC24,
        refuses: false,
        check: Check::Device(|device, _, goal| {
            find(
                speed(device, goal) >= 10 * GBIT && *device.flow_control.get()? == Some(false),
                || "it sends no pause frames".into(),
                || format!("ethtool -A {} tx on", device.name),
            )
        }),
    },
    Rule {
        id: "device.pcie",
        wanted: "its link on the PCI Express bus carries at least as much as its network link",
        why: "packets that the bus cannot carry in time wait in the device, which then drops some",
        source: "PCI Express Base Specification",
        refuses: false,
        check: Check::Device(|device, _, goal| {
            let Some(PcieLink { now, most }) = *device.pcie.get()? else { return Ok(None) };
            let wanted = speed(device, goal);
            let say = |rate: PcieRate| format!("{} GT/s x{}", rate.gigatransfers, rate.lanes);
            find(
                now.bits_per_second() < wanted,
                || format!("its PCIe link ({}) carries {} of {}", say(now), rate(now.bits_per_second()), rate(wanted)),
                || match most.bits_per_second() {
                    more if more > now.bits_per_second() => {
                        format!("find out why it does not run at {}: reseat it, or move it to another slot", say(most))
                    }
                    _ => "move it to a slot with more lanes or a newer generation, if the device can use one".into(),
                },
            )
        }),
    },
    Rule {
        id: "device.iommu",
        wanted: "at 10 Gbit/s and above, the IOMMU passes the device's addresses through (iommu=pt), or none is in use",
        why: "mapping and unmapping every buffer took more than half of the throughput of some hosts",
        source: SC24,
        refuses: false,
        check: Check::Device(|device, _, goal| {
            let domain = device.iommu.get()?.as_deref().unwrap_or_default();
            find(
                speed(device, goal) >= 10 * GBIT && domain.starts_with("DMA"),
                || format!("its IOMMU domain has the type {domain}"),
                || "boot with iommu=pt".into(),
            )
        }),
    },
];

/// A list such as `fq on 6 queues, pfifo_fast on 2`.
fn on_queues(qdiscs: &BTreeMap<String, u64>) -> String {
    let mut text = String::new();
    for (name, queues) in qdiscs {
        let (separator, unit) = match (text.is_empty(), queues) {
            (true, 1) => ("", " queue"),
            (true, _) => ("", " queues"),
            (false, _) => (", ", ""),
        };
        let _ = write!(text, "{separator}{name} on {queues}{unit}");
    }
    text
}

/// Speed of the device's link; that of the goal if it is not known.
fn speed(device: &DeviceFacts, goal: &Goal) -> u64 {
    device.speed.get().map_or(goal.bandwidth, |speed| *speed)
}
