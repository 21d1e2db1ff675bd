//! Rules about the kernel settings of a host that receives.

use super::{Advice, Answer, Check, GBIT, Rule, SC24, bytes, find, rate};
use crate::doctor::facts::{Fact, Facts, Goal};

/// The documents that tcpmon is based on, and the kernel's own.
const BOWDEN: &str = "Bowden, Wu, Crawford: Tuning Systems for TCP/IP Performance on High Latency Networks (Fermilab)";
const IP_SYSCTL: &str = "Documentation/networking/ip-sysctl.rst";
const TUNED: &str = "tuned-main.conf(5), reapply_sysctl; tuned, profiles/network-throughput; OSG networking: Host and \
                     Network Tuning (EL9)";
const RED_HAT: &str = "Red Hat Enterprise Linux 10: Network troubleshooting and performance tuning";

const MIB: u64 = 1 << 20;

/// The largest `sk_rcvbuf`.
const MAX_BUFFER: u64 = i32::MAX as u64;

/// TCP scales a window of 16 bits by 14 bits at most.
const LARGEST_WINDOW: u64 = 65_535 << 14;

/// The rules.
pub(super) static RULES: [Rule; 24] = [
    Rule {
        id: "host.streams",
        wanted: "no connection needs more than 1 GiB in flight",
        why: "TCP has no larger window, whatever the buffers are",
        source: "RFC 7323",
        refuses: false,
        check: Check::Once(|_, goal| {
            let least = (goal.bdp() * goal.streams).div_ceil(LARGEST_WINDOW);
            find(
                goal.bdp() > LARGEST_WINDOW,
                || format!("{} must be in flight on each connection", in_flight(goal)),
                || format!("use {least} streams or more, and pass that number with --streams"),
            )
        }),
    },
    Rule {
        id: "host.kernel",
        wanted: "at 40 Gbit/s and above, the kernel is 6.8 or newer",
        why: "throughput with 6.8 was up to 38 % higher over a wide area, and 30 % higher in a data centre, than with \
              5.15",
        source: SC24,
        refuses: false,
        check: Check::Once(|facts, goal| {
            let release = &facts.run.prerequisites.release;
            let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u64>().ok());
            let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else {
                return Err(format!("{release:?} does not begin with a version"));
            };
            find(
                goal.bandwidth >= 40 * GBIT && (major, minor) < (6, 8),
                || format!("the kernel is {release}"),
                || "boot Linux 6.8 or newer".into(),
            )
        }),
    },
    Rule {
        id: "host.smt",
        wanted: "at 40 Gbit/s and above, each core runs one thread (SMT is off)",
        why: "a reader and an interrupt that share a core slow each other down",
        source: SC24,
        refuses: false,
        check: Check::Once(|facts, goal| {
            find(
                goal.bandwidth >= 40 * GBIT && *facts.host.smt.get()?,
                || "SMT is on".into(),
                || "echo off > /sys/devices/system/cpu/smt/control".into(),
            )
        }),
    },
    Rule {
        id: "host.numa-balancing",
        wanted: "at 40 Gbit/s and above, kernel.numa_balancing is 0 on a host with several NUMA nodes",
        why: "it unmaps memory to see which CPU uses it, and each page fault costs time; readers that are bound to a \
              node gain nothing by it",
        source: "Documentation/admin-guide/sysctl/kernel.rst",
        refuses: false,
        check: Check::Once(|facts, goal| {
            let (nodes, balancing) = (*facts.host.numa_nodes.get()?, *facts.host.numa_balancing.get()?);
            find(
                goal.bandwidth >= 40 * GBIT && nodes > 1 && balancing != 0,
                || format!("kernel.numa_balancing is {balancing}"),
                || "sysctl -w kernel.numa_balancing=0".into(),
            )
        }),
    },
    Rule {
        id: "host.mtu-probing",
        wanted: "net.ipv4.tcp_mtu_probing is 1 if a device has an MTU above 1500",
        why: "without it, a connection hangs if a router on the path has a smaller MTU and does not report it",
        source: "ESnet fasterdata: Linux host tuning; RFC 894 for 1500",
        refuses: false,
        check: Check::Once(|facts, _| {
            let has_large = facts.devices.iter().any(|device| device.mtu.get().is_ok_and(|mtu| *mtu > 1500));
            find(
                has_large && *facts.host.mtu_probing.get()? == 0,
                || "net.ipv4.tcp_mtu_probing is 0".into(),
                || "sysctl -w net.ipv4.tcp_mtu_probing=1".into(),
            )
        }),
    },
    Rule {
        id: "host.snd-buffer",
        wanted: "net.ipv4.tcp_wmem lets the send buffer grow to twice the bandwidth-delay product (at most 2 GiB, and \
                 an eighth of the memory for all streams)",
        why: "what this host sends is kept until it is acknowledged, and the kernel plans twice the congestion window \
              for that: a smaller buffer limits it",
        source: "net/ipv4/tcp_input.c, tcp_sndbuf_expand",
        refuses: false,
        check: Check::Once(|facts, goal| can_grow(&facts.host.tcp_wmem, "net.ipv4.tcp_wmem", facts, goal)),
    },
    Rule {
        id: "host.rcv-buffer",
        wanted: "net.ipv4.tcp_rmem lets the receive buffer grow to twice the bandwidth-delay product (at most 2 GiB, \
                 and an eighth of the memory for all streams)",
        why: "a window smaller than what is in flight limits the sender, and up to half of a buffer is overhead",
        source: "Documentation/networking/ip-sysctl.rst, tcp(7)",
        refuses: false,
        check: Check::Once(|facts, goal| can_grow(&facts.host.tcp_rmem, "net.ipv4.tcp_rmem", facts, goal)),
    },
    Rule {
        id: "host.rcv-buffer-fixed",
        wanted: "net.core.rmem_max is at least the bandwidth-delay product (at most 1 GiB, and a sixteenth of the \
                 memory for all streams)",
        why: "a program that sets SO_RCVBUF gets at most twice this much, and its buffer does not grow any more",
        source: "tcp(7), socket(7)",
        refuses: false,
        check: Check::Once(|facts, goal| {
            let limit = *facts.host.rmem_max.get()?;
            let wanted = goal.bdp().min(MAX_BUFFER / 2).min(largest_buffer(facts, goal)? / 2);
            find(
                limit < wanted,
                || format!("net.core.rmem_max is {}; {} must be in flight", bytes(limit), in_flight(goal)),
                || format!("sysctl -w net.core.rmem_max={wanted}"),
            )
        }),
    },
    Rule {
        id: "host.autotuning",
        wanted: "net.ipv4.tcp_moderate_rcvbuf is 1",
        why: "otherwise receive buffers keep their first size, the second number of tcp_rmem",
        source: IP_SYSCTL,
        refuses: false,
        check: Check::Once(|facts, _| is_on(&facts.host.moderate_rcvbuf, "net.ipv4.tcp_moderate_rcvbuf")),
    },
    Rule {
        id: "host.window-scaling",
        wanted: "net.ipv4.tcp_window_scaling is 1",
        why: "without it, no window is larger than 64 KiB",
        source: "RFC 7323",
        refuses: false,
        check: Check::Once(|facts, _| is_on(&facts.host.window_scaling, "net.ipv4.tcp_window_scaling")),
    },
    Rule {
        id: "host.timestamps",
        wanted: "net.ipv4.tcp_timestamps is 1",
        why: "they protect against old segments when sequence numbers wrap (every 0.34 s at 100 Gbit/s), and the \
              receiver measures the round trip by them",
        source: "RFC 7323",
        refuses: false,
        check: Check::Once(|facts, _| is_on(&facts.host.timestamps, "net.ipv4.tcp_timestamps")),
    },
    Rule {
        id: "host.sack",
        wanted: "net.ipv4.tcp_sack is 1",
        why: "without it, the sender repairs one loss per round trip, or sends again what has arrived",
        source: "RFC 2018",
        refuses: false,
        check: Check::Once(|facts, _| is_on(&facts.host.sack, "net.ipv4.tcp_sack")),
    },
    Rule {
        id: "host.tcp-mem-low",
        wanted: "the second number of net.ipv4.tcp_mem is at least what the full buffers of a transfer take",
        why: "above it TCP is under memory pressure: buffers stop growing, and windows are cut",
        source: IP_SYSCTL,
        refuses: false,
        check: Check::Once(tcp_memory_low),
    },
    Rule {
        id: "host.tcp-mem-high",
        wanted: "the third number of net.ipv4.tcp_mem is at most a quarter of the memory",
        why: "if TCP's queues take nearly all memory, the allocations for new packets fail",
        source: BOWDEN,
        refuses: false,
        check: Check::Once(tcp_memory_high),
    },
    Rule {
        id: "host.min-free",
        wanted: "vm.min_free_kbytes reserves memory for what arrives in 10 ms (64 MiB at 10 Gbit/s and above; at most \
                 1 % of the memory)",
        why: "packets are allocated in interrupts, which cannot wait until memory is freed: without a reserve, page \
              allocations fail and packets are lost",
        source: BOWDEN,
        refuses: false,
        check: Check::Once(reserve_low),
    },
    Rule {
        id: "host.min-free-high",
        wanted: "vm.min_free_kbytes is at most 5 % of the memory",
        why: "programs cannot use the reserve: the host swaps or kills processes while memory is free",
        source: "Red Hat Enterprise Linux 7: Performance Tuning Guide",
        refuses: false,
        check: Check::Once(|facts, _| {
            let (reserve, memory) = (*facts.host.min_free_kbytes.get()? << 10, *facts.host.memory_bytes.get()?);
            find(
                reserve > memory / 20,
                || format!("vm.min_free_kbytes reserves {} of {}", bytes(reserve), bytes(memory)),
                || format!("sysctl -w vm.min_free_kbytes={}", (memory / 100) >> 10),
            )
        }),
    },
    Rule {
        id: "host.swap",
        wanted: "at most 1 % of the memory is in swap space",
        why: "a reader that was swapped out waits for a disk while its data waits; swapping frees memory too late for \
              packets",
        source: BOWDEN,
        refuses: false,
        check: Check::Once(|facts, _| {
            let (swapped, memory) = (*facts.host.swapped_bytes.get()?, *facts.host.memory_bytes.get()?);
            find(
                swapped > memory / 100,
                || format!("{} is in swap space, and the host has {} of memory", bytes(swapped), bytes(memory)),
                || "find what needs the memory (`ps --sort -rss`) and free it, then swapoff -a && swapon -a".into(),
            )
        }),
    },
    Rule {
        id: "host.tuned",
        wanted: "if tuned runs, its profile is made for throughput or latency, not to save power",
        why: "such a profile lets CPUs clock down; any profile replaces what was set with sysctl -w, but not what is \
              in /etc/sysctl.d",
        source: TUNED,
        refuses: false,
        check: Check::Once(|facts, _| {
            let profile = facts.host.tuned_profile.get()?.as_deref().unwrap_or_default();
            let saves_power = ["balanced", "desktop", "laptop", "powersave", "spindown"];
            find(
                saves_power.iter().any(|name| profile.contains(name)),
                || format!("the profile of tuned is {profile}"),
                || {
                    "put sysctls into /etc/sysctl.d, then tuned-adm profile throughput-performance \
                     (network-throughput limits TCP buffers to 16 MiB)"
                        .into()
                },
            )
        }),
    },
    Rule {
        id: "host.backlog",
        wanted: "net.core.netdev_max_backlog is 30000 packets at 10 Gbit/s and above, 250000 at 40 Gbit/s and above",
        why: "packets that RPS, tunnels and virtual devices hand to a CPU wait there, and are dropped when it is full; \
              those of a NIC without RPS do not pass through it",
        source: "ESnet fasterdata: Linux host tuning (an older edition)",
        refuses: false,
        check: Check::Once(|facts, goal| {
            let limit = *facts.host.netdev_max_backlog.get()?;
            let wanted = match goal.bandwidth {
                fast if fast >= 40 * GBIT => 250_000,
                fast if fast >= 10 * GBIT => 30_000,
                _ => 1000,
            };
            find(
                limit < wanted,
                || format!("net.core.netdev_max_backlog is {limit}"),
                || format!("sysctl -w net.core.netdev_max_backlog={wanted}"),
            )
        }),
    },
    Rule {
        id: "host.backlog-drops",
        wanted: "at most one packet in 10,000 was dropped because the backlog of a CPU was full",
        why: "the sender has to send each dropped packet again, and slows down",
        source: "docs/runbooks/TcpmonSoftnetDrops.md",
        refuses: false,
        check: Check::Once(|facts, _| {
            let softnet = facts.host.softnet.get()?;
            find(
                softnet.dropped.saturating_mul(10_000) > softnet.processed,
                || format!("{} of {} packets were dropped since the host started", softnet.dropped, softnet.processed),
                || {
                    "if more are dropped now (second column of /proc/net/softnet_stat grows): double \
                     net.core.netdev_max_backlog for bursts; if one CPU is saturated, use more queues of the NIC"
                        .into()
                },
            )
        }),
    },
    Rule {
        id: "host.napi-budget",
        wanted: "net.core.netdev_budget is at least 300 packets, the kernel's default",
        why: "a CPU that has used up its budget leaves packets in the ring, and the ring overruns",
        source: RED_HAT,
        refuses: false,
        check: Check::Once(|facts, _| {
            let budget = *facts.host.netdev_budget.get()?;
            find(
                budget < 300,
                || format!("net.core.netdev_budget is {budget}"),
                || {
                    "sysctl -w net.core.netdev_budget=300; double it and netdev_budget_usecs only while the third \
                     column of /proc/net/softnet_stat grows"
                        .into()
                },
            )
        }),
    },
    Rule {
        id: "host.congestion-control",
        wanted: "net.ipv4.tcp_congestion_control is cubic, bbr or htcp (dctcp inside a data centre whose switches mark \
                 packets)",
        why: "Reno needs more than an hour to fill a path of 10 Gbit/s and 100 ms again after a loss; the setting \
              applies to what this host sends",
        source: "ESnet fasterdata: Linux host tuning; RFC 3649; Documentation/networking/dctcp.rst",
        refuses: false,
        check: Check::Once(|facts, _| {
            let name = facts.host.congestion_control.get()?;
            find(
                !["cubic", "bbr", "htcp", "dctcp"].iter().any(|good| name.starts_with(good)),
                || format!("net.ipv4.tcp_congestion_control is {name}"),
                || "sysctl -w net.ipv4.tcp_congestion_control=cubic".into(),
            )
        }),
    },
    Rule {
        id: "host.governor",
        wanted: "every CPU has the frequency governor `performance`, or the kernel sets no frequencies",
        why: "a CPU that is slow to speed up lets packets wait",
        source: SC24,
        refuses: false,
        check: Check::Once(|facts, _| {
            let governors = facts.host.governors.get()?;
            let others = || governors.iter().filter(|(name, _)| *name != "performance");
            let list =
                || others().map(|(name, cpus)| format!("{cpus} CPUs have {name}")).collect::<Vec<_>>().join(", ");
            find(others().next().is_some(), list, || "cpupower frequency-set -g performance".into())
        }),
    },
    Rule {
        id: "host.optmem",
        wanted: "at 40 Gbit/s and above, net.core.optmem_max is at least 1 MiB",
        why: "a send with MSG_ZEROCOPY fails with ENOBUFS when its notifications exceed this limit",
        source: "Documentation/networking/msg_zerocopy.rst; SC24 for the figure",
        refuses: false,
        check: Check::Once(|facts, goal| {
            let limit = *facts.host.optmem_max.get()?;
            find(
                goal.bandwidth >= 40 * GBIT && limit < MIB,
                || format!("net.core.optmem_max is {}", bytes(limit)),
                || format!("sysctl -w net.core.optmem_max={MIB}"),
            )
        }),
    },
];

fn is_on(setting: &Fact<u64>, name: &str) -> Answer {
    find(*setting.get()? == 0, || format!("{name} is 0"), || format!("sysctl -w {name}=1"))
}

fn in_flight(goal: &Goal) -> String {
    let each = if goal.streams > 1 { format!(" in each of {} streams", goal.streams) } else { String::new() };
    format!("{}{each} at {} and a round trip of {:?}", bytes(goal.bdp()), rate(goal.bandwidth), goal.rtt)
}

/// The buffer size that one connection needs to receive or to send.
fn wanted_buffer(goal: &Goal) -> u64 {
    (2 * goal.bdp()).min(MAX_BUFFER)
}

/// The largest buffer size that every stream can have at once: together they may take an eighth of this host's memory.
fn largest_buffer(facts: &Facts, goal: &Goal) -> Result<u64, String> {
    Ok(*facts.host.memory_bytes.get()? / 8 / goal.streams)
}

/// Checks whether a buffer can grow to what a connection needs, as far as the memory suffices for all streams.
fn can_grow(sizes: &Fact<[u64; 3]>, name: &str, facts: &Facts, goal: &Goal) -> Answer {
    let [least, first, most] = *sizes.get()?;
    let wanted = wanted_buffer(goal).min(largest_buffer(facts, goal)?);
    find(
        most < wanted,
        || format!("{name} lets a buffer grow to {}; {} must be in flight", bytes(most), in_flight(goal)),
        || format!("sysctl -w {name}=\"{least} {first} {wanted}\""),
    )
}

fn tcp_memory_low(facts: &Facts, goal: &Goal) -> Answer {
    let host = &facts.host;
    let [_, pressure, _] = *host.tcp_mem.get()?;
    let (limit, memory) = (pressure.saturating_mul(host.page_bytes), *host.memory_bytes.get()?);
    let (wanted, largest) = (wanted_buffer(goal), largest_buffer(facts, goal)?);
    let settings = [("tcp_rmem", *host.tcp_rmem.get()?), ("tcp_wmem", *host.tcp_wmem.get()?)];
    // A transfer goes one way, so the data in flight are in receive buffers or in send buffers, not in both.
    let most = settings.iter().fold(wanted, |most, (_, sizes)| most.max(sizes[2]));
    let of_all = |buffer: u64| buffer.saturating_mul(goal.streams);
    find(
        limit < of_all(most),
        || {
            format!(
                "TCP is under memory pressure above {}; the full buffers of a transfer take {} (memory: {})",
                bytes(limit),
                bytes(of_all(most)),
                bytes(memory)
            )
        },
        || {
            let too_large = settings.into_iter().filter(|(_, sizes)| sizes[2] > largest);
            let lower = too_large.map(|(name, [least, first, _])| {
                let most = wanted.max(first).min(largest);
                format!("sysctl -w net.ipv4.{name}=\"{} {} {most}\"", least.min(most), first.min(most))
            });
            let lower = lower.collect::<Vec<_>>().join(" && ");
            let needed = of_all(most.min(largest));
            match (lower.is_empty(), limit < needed) {
                (false, _) => lower,
                (true, true) => tcp_memory_for(needed, host.page_bytes),
                (true, false) => format!(
                    "expect less than {}: {} of memory is too little for such buffers (or check for a lower \
                     --bandwidth or --rtt)",
                    rate(goal.bandwidth),
                    bytes(memory)
                ),
            }
        },
    )
}

fn tcp_memory_high(facts: &Facts, _: &Goal) -> Answer {
    let host = &facts.host;
    let [.., most] = *host.tcp_mem.get()?;
    let (limit, memory) = (most.saturating_mul(host.page_bytes), *host.memory_bytes.get()?);
    find(
        limit > memory / 4,
        || format!("net.ipv4.tcp_mem lets TCP take {} of {}", bytes(limit), bytes(memory)),
        || tcp_memory_for(memory / 8, host.page_bytes),
    )
}

/// The command that sets `tcp_mem` so that buffers of this many bytes can all be full without memory pressure (or end
/// it, below the first number), and TCP takes at most twice as much: a quarter of the memory for the eighth that a
/// transfer may have.
fn tcp_memory_for(buffers: u64, page_bytes: u64) -> String {
    let halves = |number: u64| buffers / 2 * number / page_bytes;
    format!("sysctl -w net.ipv4.tcp_mem=\"{} {} {}\"", halves(2), halves(3), halves(4))
}

fn reserve_low(facts: &Facts, goal: &Goal) -> Answer {
    let (reserve, memory) = (*facts.host.min_free_kbytes.get()? << 10, *facts.host.memory_bytes.get()?);
    let floor = if goal.bandwidth >= 10 * GBIT { 64 * MIB } else { 0 };
    let wanted = (goal.bandwidth / 8 / 100).max(floor).min(memory / 100);
    Ok((reserve < wanted).then(|| Advice {
        found: format!("vm.min_free_kbytes reserves {}, and {} is needed", bytes(reserve), bytes(wanted)),
        set: format!("sysctl -w vm.min_free_kbytes={}", wanted.div_ceil(1 << 10)),
    }))
}
