//! Each rule, from a well-tuned host with one thing changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    time::Duration,
};

use super::{facts::*, *};
use crate::{
    kernel::Prerequisites,
    model::{
        host::{Channels, Coalescing, Ring},
        snapshot::{ProbeStatus, Verdict},
    },
};

const GIB: u64 = 1 << 30;
const GBIT: u64 = 1_000_000_000;

/// Carries 252 Gbit/s.
const PCIE_16: PcieRate = PcieRate { gigatransfers: 16.0, lanes: 16 };

fn known<T>(found: T) -> Fact<T> {
    Fact::Known(found)
}

/// A host with 256 GiB and two NUMA nodes, tuned for 100 Gbit/s at 80 ms.
fn tuned() -> Facts {
    let probe = |name: &str, verdict| ProbeStatus { name: name.into(), verdict, reason: String::new() };
    let run = RunFacts {
        prerequisites: Prerequisites {
            release: "6.18.5".into(),
            btf: Ok(()),
            capabilities: Some(u64::MAX),
            lockdown: Some("none [integrity] confidentiality\n".into()),
            missing_functions: Vec::new(),
            object: true,
        },
        probes: known(Ok(vec![probe("tcp_probe", Verdict::Attached), probe("tcp_rcvbuf_grow", Verdict::Unsupported)])),
        security_modules: known("lockdown,capability,apparmor,bpf".into()),
        confinement: known("unconfined".into()),
        cgroup_v2: known(true),
        dmesg_restrict: known(1),
        bpf_jit_enable: known(1),
        bpf_stats_enabled: known(0),
        host_pid_namespace: known(true),
        first_network_namespace: known(true),
        others: known(BTreeMap::new()),
    };
    let host = HostFacts {
        memory_bytes: known(256 * GIB),
        swapped_bytes: known(2 * GIB),
        tuned_profile: known(Some("network-throughput".into())),
        page_bytes: 4096,
        cpus: known(64),
        numa_nodes: known(2),
        cpu_vendor: known("AuthenticAMD".into()),
        smt: known(false),
        numa_balancing: known(0),
        tcp_wmem: known([4096, 16_384, 2_147_483_647]),
        mtu_probing: known(1),
        tcp_rmem: known([4096, 131_072, 2_147_483_647]),
        rmem_max: known(2_147_483_647),
        tcp_mem: known([3_145_728, 4_194_304, 6_291_456]),
        min_free_kbytes: known(1 << 20),
        netdev_max_backlog: known(250_000),
        netdev_budget: known(600),
        softnet: known(SoftnetSums { processed: 10_000_000, dropped: 3, time_squeezed: 900 }),
        congestion_control: known("cubic".into()),
        default_qdisc: known("fq".into()),
        window_scaling: known(1),
        timestamps: known(1),
        sack: known(1),
        moderate_rcvbuf: known(1),
        optmem_max: known(1 << 20),
        ip_forward: known(0),
        governors: known(BTreeMap::from([("performance".into(), 64)])),
    };
    let device = DeviceFacts {
        name: "eth0".into(),
        driver: known("mlx5_core".into()),
        speed: known(100 * GBIT),
        mtu: known(9000),
        qdisc: known("mq".into()),
        queue_qdiscs: known(BTreeMap::from([("fq".into(), 32)])),
        ring: known(Some(Ring { entries: 8192, max_entries: 8192 })),
        gro: known(true),
        lro: known(false),
        gro_hw: known(Some(true)),
        channels: known(Some(Channels { queues: 32, max_queues: 64 })),
        coalescing: known(Some(Coalescing { is_adaptive: true, usecs: 8, packets: 128 })),
        pcie: known(Some(PcieLink { now: PCIE_16, most: PCIE_16 })),
        flow_control: known(Some(true)),
        numa_node: known(Some(1)),
        local_cpus: known((32..64).collect()),
        rx_queues: known(32),
        rps: known(false),
        interrupts: known((100..132).map(|number| (number, vec![number - 68])).collect()),
        iommu: known(Some("identity".into())),
    };
    Facts { run, host, devices: vec![device] }
}

fn goal() -> Goal {
    Goal { bandwidth: 100 * GBIT, streams: 1, rtt: Duration::from_millis(80) }
}

/// One thing that is changed.
type Change = fn(&mut Facts);

fn without(facts: &mut Facts, capability: u32) {
    facts.run.prerequisites.capabilities = Some(!(1 << capability));
}

fn refused(denied: bool) -> Fact<Result<Vec<ProbeStatus>, Refusal>> {
    known(Err(Refusal { missing: "the kernel refused tcpmon's maps".into(), remedy: "allow bpf(2)".into(), denied }))
}

/// For each change, what is found then, and what is to be set.
const CHANGES: [(Change, &str, &str); 75] = [
    (|it| it.run.prerequisites.object = false, "run.build", "cargo xtask setup"),
    (|it| it.run.prerequisites.btf = Err("No such file".into()), "run.btf", "CONFIG_DEBUG_INFO_BTF"),
    (|it| it.run.prerequisites.missing_functions = vec!["bpf_sock_from_file"], "run.kernel", "5.15"),
    (|it| it.run.prerequisites.lockdown = Some("none integrity [confidentiality]".into()), "run.lockdown", "integrity"),
    // CAP_SYS_ADMIN includes the next three.
    (|it| it.run.prerequisites.capabilities = Some(!(1 << 39 | 1 << 21)), "run.cap-bpf run.cap-sys-admin", "CAP_BPF"),
    (
        |it| it.run.prerequisites.capabilities = Some(!(1 << 38 | 1 << 21)),
        "run.cap-perfmon run.cap-sys-admin",
        "CAP_PERFMON",
    ),
    (
        |it| it.run.prerequisites.capabilities = Some(!(1 << 12 | 1 << 21)),
        "run.cap-net-admin run.cap-sys-admin",
        "CAP_NET_ADMIN",
    ),
    (|it| without(it, 39), "", ""),
    (|it| without(it, 38), "", ""),
    (|it| without(it, 12), "", ""),
    (|it| without(it, 21), "run.cap-sys-admin", "CAP_SYS_ADMIN"),
    (|it| without(it, 19), "run.cap-sys-ptrace", "CAP_SYS_PTRACE"),
    (|it| without(it, 34), "run.cap-syslog", "CAP_SYSLOG"),
    (
        |it| {
            without(it, 34);
            it.run.dmesg_restrict = known(0)
        },
        "",
        "",
    ),
    (|it| it.run.probes = refused(true), "run.programs", "allow bpf(2)"),
    (
        |it| {
            it.run.probes = refused(true);
            it.run.confinement = known("docker-default (enforce)".into())
        },
        "run.security-module",
        "profile",
    ),
    (|it| it.run.probes = refused(false), "run.programs", "allow bpf(2)"),
    (
        |it| {
            it.run.probes = known(Ok(vec![ProbeStatus {
                name: "napi_poll".into(),
                verdict: Verdict::Broken,
                reason: "in use".into(),
            }]))
        },
        "run.probes",
        "TcpmonProbeMissing",
    ),
    (|it| it.run.cgroup_v2 = known(false), "run.cgroup-v2", "unified_cgroup_hierarchy"),
    (|it| it.run.bpf_jit_enable = known(0), "run.bpf-jit", "sysctl -w net.core.bpf_jit_enable=1"),
    (|it| it.run.bpf_stats_enabled = known(1), "run.bpf-stats", "sysctl -w kernel.bpf_stats_enabled=0"),
    (|it| it.run.host_pid_namespace = known(false), "run.container", "hostPID"),
    (|it| it.run.first_network_namespace = known(false), "run.container", "hostNetwork"),
    (|it| it.run.others = known(BTreeMap::from([(7, "tcpmon daemon".into())])), "run.another", "scrape"),
    (
        |it| it.host.tcp_rmem = known([4096, 131_072, 6_291_456]),
        "host.rcv-buffer",
        "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 2000000000\"",
    ),
    (
        |it| it.host.tcp_wmem = known([4096, 16_384, 4_194_304]),
        "host.snd-buffer",
        "sysctl -w net.ipv4.tcp_wmem=\"4096 16384 2000000000\"",
    ),
    (|it| it.run.prerequisites.release = "6.7.9-rc1".into(), "host.kernel", "6.8"),
    (|it| it.host.smt = known(true), "host.smt", "smt/control"),
    (|it| it.host.numa_balancing = known(1), "host.numa-balancing", "sysctl -w kernel.numa_balancing=0"),
    (|it| it.host.mtu_probing = known(0), "host.mtu-probing", "sysctl -w net.ipv4.tcp_mtu_probing=1"),
    (|it| it.host.rmem_max = known(212_992), "host.rcv-buffer-fixed", "sysctl -w net.core.rmem_max=1000000000"),
    (|it| it.host.moderate_rcvbuf = known(0), "host.autotuning", "sysctl -w net.ipv4.tcp_moderate_rcvbuf=1"),
    (|it| it.host.window_scaling = known(0), "host.window-scaling", "sysctl -w net.ipv4.tcp_window_scaling=1"),
    (|it| it.host.timestamps = known(0), "host.timestamps", "sysctl -w net.ipv4.tcp_timestamps=1"),
    (|it| it.host.timestamps = known(2), "", ""),
    (|it| it.host.sack = known(0), "host.sack", "sysctl -w net.ipv4.tcp_sack=1"),
    (
        |it| it.host.tcp_mem = known([393_216, 524_287, 786_432]),
        "host.tcp-mem-low",
        "sysctl -w net.ipv4.tcp_mem=\"1048576 1572864 2097152\"",
    ),
    (
        |it| it.host.tcp_mem = known([3_145_728, 4_194_304, 33_554_433]),
        "host.tcp-mem-high",
        "sysctl -w net.ipv4.tcp_mem=",
    ),
    (|it| it.host.min_free_kbytes = known(67_584), "host.min-free", "sysctl -w vm.min_free_kbytes=122071"),
    (|it| it.host.min_free_kbytes = known(16 << 20), "host.min-free-high", "sysctl -w vm.min_free_kbytes=2684354"),
    (|it| it.host.swapped_bytes = known(3 * GIB), "host.swap", "swapoff -a"),
    (
        |it| it.host.tuned_profile = known(Some("balanced".into())),
        "host.tuned",
        "tuned-adm profile throughput-performance",
    ),
    (|it| it.host.tuned_profile = known(None), "", ""),
    (|it| it.host.netdev_max_backlog = known(1000), "host.backlog", "sysctl -w net.core.netdev_max_backlog=250000"),
    (
        |it| it.host.softnet = known(SoftnetSums { processed: 10_000_000, dropped: 1_001, time_squeezed: 0 }),
        "host.backlog-drops",
        "softnet_stat",
    ),
    (|it| it.host.netdev_budget = known(299), "host.napi-budget", "sysctl -w net.core.netdev_budget=300"),
    (
        |it| it.host.congestion_control = known("reno".into()),
        "host.congestion-control",
        "sysctl -w net.ipv4.tcp_congestion_control=cubic",
    ),
    (|it| it.devices[0].qdisc = known("pfifo_fast".into()), "device.qdisc", "tc qdisc replace dev eth0 root fq"),
    (
        |it| it.devices[0].queue_qdiscs = known(BTreeMap::from([("fq".into(), 6), ("pfifo_fast".into(), 2)])),
        "device.qdisc",
        "sysctl -w net.core.default_qdisc=fq && { tc qdisc del dev eth0 root; tc qdisc replace dev eth0 root mq; }",
    ),
    (|it| it.devices[0].queue_qdiscs = known(BTreeMap::from([("cake".into(), 1), ("fq_codel".into(), 31)])), "", ""),
    // A shaper that somebody has configured is not to be replaced.
    (|it| it.devices[0].qdisc = known("htb".into()), "", ""),
    (
        |it| {
            it.devices[0].qdisc = known("mqprio".into());
            it.devices[0].queue_qdiscs = known(BTreeMap::from([("fq".into(), 6), ("pfifo_fast".into(), 2)]));
        },
        "device.qdisc",
        "tc qdisc replace dev eth0 parent HANDLE fq, for each parent that tc qdisc show dev eth0 names",
    ),
    // What the device would get next time is not what it has.
    (|it| it.host.default_qdisc = known("pfifo_fast".into()), "", ""),
    (|it| it.devices[0].qdisc = known("fq".into()), "", ""),
    (
        |it| it.host.governors = known(BTreeMap::from([("performance".into(), 63), ("powersave".into(), 1)])),
        "host.governor",
        "cpupower",
    ),
    (|it| it.host.governors = known(BTreeMap::new()), "", ""),
    (|it| it.host.optmem_max = known(131_072), "host.optmem", "sysctl -w net.core.optmem_max=1048576"),
    (
        |it| it.devices[0].ring = known(Some(Ring { entries: 1024, max_entries: 8192 })),
        "device.ring",
        "ethtool -G eth0 rx 8192",
    ),
    (
        |it| it.devices[0].interrupts = known((0..9).map(|number| (number, vec![40])).collect()),
        "device.interrupts",
        "irqbalance",
    ),
    (
        |it| it.devices[0].interrupts = known((0..9).map(|number| (number, vec![number])).collect()),
        "device.numa",
        "smp_affinity_list",
    ),
    (|it| it.devices[0].rx_queues = known(1), "device.rps", "echo ffffffff > /sys/class/net/eth0/queues/rx-0/rps_cpus"),
    (
        |it| it.devices[0].channels = known(Some(Channels { queues: 1, max_queues: 64 })),
        "device.queues",
        "ethtool -L eth0 combined 2",
    ),
    (|it| it.devices[0].channels = known(Some(Channels { queues: 2, max_queues: 16 })), "", ""),
    (
        |it| it.devices[0].coalescing = known(Some(Coalescing { is_adaptive: false, usecs: 0, packets: 1 })),
        "device.coalescing",
        "ethtool -C eth0 adaptive-rx on",
    ),
    (|it| it.devices[0].coalescing = known(Some(Coalescing { is_adaptive: false, usecs: 8, packets: 0 })), "", ""),
    (|it| it.devices[0].gro_hw = known(Some(false)), "device.gro-hw", "ethtool -K eth0 rx-gro-hw on"),
    (|it| it.devices[0].gro_hw = known(None), "", ""),
    (
        |it| it.devices[0].pcie = known(Some(PcieLink { now: PcieRate { lanes: 4, ..PCIE_16 }, most: PCIE_16 })),
        "device.pcie",
        "find out why it does not run at 16 GT/s x16",
    ),
    (
        |it| {
            let slow = PcieRate { gigatransfers: 5.0, lanes: 16 };
            it.devices[0].pcie = known(Some(PcieLink { now: slow, most: slow }))
        },
        "device.pcie",
        "newer generation",
    ),
    (|it| it.devices[0].pcie = known(None), "", ""),
    (|it| it.devices[0].gro = known(false), "device.gro", "ethtool -K eth0 gro on"),
    (
        |it| {
            it.devices[0].lro = known(true);
            it.host.ip_forward = known(1)
        },
        "device.lro",
        "ethtool -K eth0 lro off",
    ),
    (|it| it.devices[0].mtu = known(1500), "device.mtu", "ip link set eth0 mtu 9000"),
    (|it| it.devices[0].flow_control = known(Some(false)), "device.flow-control", "ethtool -A eth0 tx on"),
    (|it| it.devices[0].iommu = known(Some("DMA-FQ".into())), "device.iommu", "iommu=pt"),
];

fn rules_of(diagnosis: &Diagnosis) -> Vec<&'static str> {
    diagnosis.findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn nothing_is_found_on_a_well_tuned_host_and_everything_is_checked() {
    let diagnosis = examine(&tuned(), &goal());
    let checks = RULES.into_iter().flatten().count() as u64;
    assert_eq!(diagnosis, Diagnosis { passed: checks, ..Diagnosis::default() });
}

#[test]
fn each_change_of_a_well_tuned_host_is_found_by_its_rule_alone() {
    for (change, rules, set) in CHANGES {
        let mut facts = tuned();
        change(&mut facts);
        let diagnosis = examine(&facts, &goal());
        assert_eq!(rules_of(&diagnosis).join(" "), rules, "{diagnosis:?}");
        if let Some(finding) = diagnosis.findings.first() {
            assert!(finding.set.contains(set), "{finding:?}");
            assert!(!finding.found.is_empty() && !finding.found.contains('\n'), "{finding:?}");
            assert_eq!(finding.device.as_deref(), finding.rule.starts_with("device.").then_some("eth0"));
        }
    }
    // What depends on the goal alone has a test of its own.
    let tried: BTreeSet<_> = CHANGES
        .iter()
        .flat_map(|(_, rules, _)| rules.split(' '))
        .filter(|id| !id.is_empty())
        .chain(["host.streams"])
        .collect();
    assert_eq!(tried, RULES.into_iter().flatten().map(|rule| rule.id).collect());
}

/// Following the advice of a rule about a number ends its finding.
#[test]
fn what_is_advised_is_enough() {
    let slow = Goal { bandwidth: GBIT, streams: 1, rtt: Duration::from_millis(80) };
    for (goal, wanted) in [(slow, 20_000_000), (goal(), 2_000_000_000)] {
        let mut facts = tuned();
        facts.host.tcp_rmem = known([4096, 131_072, wanted - 1]);
        assert_eq!(rules_of(&examine(&facts, &goal)), ["host.rcv-buffer"]);
        facts.host.tcp_rmem = known([4096, 131_072, wanted]);
        assert_eq!(rules_of(&examine(&facts, &goal)), Vec::<&str>::new());
    }
    let mut facts = tuned();
    facts.host.tcp_mem = known([1_048_576, 1_572_864, 2_097_152]);
    facts.host.min_free_kbytes = known(122_071);
    facts.host.netdev_max_backlog = known(250_000);
    assert_eq!(rules_of(&examine(&facts, &goal())), Vec::<&str>::new());
}

/// The figures that rules have from their sources, each as a goal in Gbit/s, the rule, a host that just passes, and one
/// that just does not. In the order of the rules.
const FIGURES: [(u64, &str, Change, Change); 15] = [
    // SC24, conclusions: 6.8 is 30 % (LAN) to 38 % (WAN) faster than 5.15.
    (
        40,
        "host.kernel",
        |it| it.run.prerequisites.release = "6.8.0".into(),
        |it| it.run.prerequisites.release = "6.7.12".into(),
    ),
    // Bowden, Wu, Crawford: 65536 kB.
    (10, "host.min-free", |it| it.host.min_free_kbytes = known(65_536), |it| it.host.min_free_kbytes = known(65_535)),
    // Red Hat: 5 to 10 % of the memory are too much.
    (
        100,
        "host.min-free-high",
        |it| it.host.min_free_kbytes = known(256 * GIB / 20 / 1024),
        |it| it.host.min_free_kbytes = known(256 * GIB / 20 / 1024 + 1),
    ),
    // ESnet, Linux host tuning (an older edition): 30000 for hosts with 10 Gbit/s, 250000 for 40.
    (
        10,
        "host.backlog",
        |it| it.host.netdev_max_backlog = known(30_000),
        |it| it.host.netdev_max_backlog = known(29_999),
    ),
    (
        40,
        "host.backlog",
        |it| it.host.netdev_max_backlog = known(250_000),
        |it| it.host.netdev_max_backlog = known(249_999),
    ),
    // net/core/dev.c: the default of the kernel.
    (1, "host.backlog", |it| it.host.netdev_max_backlog = known(1000), |it| it.host.netdev_max_backlog = known(999)),
    // docs/runbooks/TcpmonSoftnetDrops.md: 1 in 10,000.
    (
        100,
        "host.backlog-drops",
        |it| it.host.softnet = known(SoftnetSums { processed: 20_000, dropped: 2, time_squeezed: 0 }),
        |it| it.host.softnet = known(SoftnetSums { processed: 20_000, dropped: 3, time_squeezed: 0 }),
    ),
    // Red Hat: the kernel's default is 300.
    (100, "host.napi-budget", |it| it.host.netdev_budget = known(300), |it| it.host.netdev_budget = known(299)),
    // SC24: optmem_max of 1 MB.
    (40, "host.optmem", |it| it.host.optmem_max = known(1_048_576), |it| it.host.optmem_max = known(1_048_575)),
    // SC24: 8192 on the hosts with CPUs of AMD.
    (
        100,
        "device.ring",
        |it| it.devices[0].ring = known(Some(Ring { entries: 8192, max_entries: 16_384 })),
        |it| it.devices[0].ring = known(Some(Ring { entries: 8191, max_entries: 16_384 })),
    ),
    // ESnet, NIC tuning: 4096.
    (
        100,
        "device.ring",
        |it| {
            it.host.cpu_vendor = known("GenuineIntel".into());
            it.devices[0].ring = known(Some(Ring { entries: 4096, max_entries: 8192 }))
        },
        |it| {
            it.host.cpu_vendor = known("GenuineIntel".into());
            it.devices[0].ring = known(Some(Ring { entries: 4095, max_entries: 8192 }))
        },
    ),
    // Documentation/networking/scaling.rst: the smallest number of queues of which none overflows.
    (
        100,
        "device.queues",
        |it| it.devices[0].channels = known(Some(Channels { queues: 2, max_queues: 64 })),
        |it| it.devices[0].channels = known(Some(Channels { queues: 1, max_queues: 64 })),
    ),
    // SC24: MTU = 9K.
    (100, "device.mtu", |it| it.devices[0].mtu = known(9000), |it| it.devices[0].mtu = known(8999)),
    // ESnet, 40G/100G network tuning: fq_codel seems to work fine, pfifo_fast should be changed.
    (
        100,
        "device.qdisc",
        |it| it.devices[0].qdisc = known("fq_codel".into()),
        |it| it.devices[0].qdisc = known("pfifo_fast".into()),
    ),
    // PCI Express: 16 GT/s, 128 of 130 bits are data; 100 Gbit/s need 7 lanes.
    (
        100,
        "device.pcie",
        |it| it.devices[0].pcie = known(Some(PcieLink { now: PcieRate { lanes: 7, ..PCIE_16 }, most: PCIE_16 })),
        |it| it.devices[0].pcie = known(Some(PcieLink { now: PcieRate { lanes: 6, ..PCIE_16 }, most: PCIE_16 })),
    ),
];

#[test]
fn the_figures_of_rules_are_those_of_their_sources() {
    for (gbit, rule, passes, fails) in FIGURES {
        let goal = Goal { bandwidth: gbit * GBIT, ..goal() };
        for (change, expected) in [(passes, &[][..]), (fails, &[rule])] {
            let mut facts = tuned();
            facts.devices[0].speed = known(gbit * GBIT);
            change(&mut facts);
            assert_eq!(rules_of(&examine(&facts, &goal)), expected, "{rule} at {gbit} Gbit/s");
        }
    }
    let text = |id: &str| {
        let rule = RULES.into_iter().flatten().find(|rule| rule.id == id).expect("a rule");
        format!("{} {}", rule.wanted, rule.why)
    };
    // Sequence numbers of 32 bits, at 100 Gbit/s.
    let wrap = f64::from(u32::MAX) * 8.0 / 100e9;
    assert!(text("host.timestamps").contains(&format!("{wrap:.2} s")), "{wrap}");
    // RFC 3649: Reno halves its window and adds a segment in each round trip: 10 Gbit/s, 100 ms, 1500 bytes.
    let hours: f64 = 10e9 * 0.1 / 8.0 / 1500.0 / 2.0 * 0.1 / 3600.0;
    assert!((1.0..1.5).contains(&hours) && text("host.congestion-control").contains("more than an hour"), "{hours}");
    let runbook = include_str!("../../../docs/runbooks/TcpmonSoftnetDrops.md");
    assert!(runbook.contains("1 in 10,000") && text("host.backlog-drops").contains("one packet in 10,000"));
}

#[test]
fn a_small_slow_host_with_the_kernels_defaults_passes_a_short_path() {
    let mut facts = tuned();
    facts.host = HostFacts {
        memory_bytes: known(4 * GIB),
        swapped_bytes: known(0),
        numa_nodes: known(1),
        tcp_rmem: known([4096, 131_072, 6_291_456]),
        rmem_max: known(4_194_304),
        tcp_mem: known([47_000, 63_000, 94_000]),
        min_free_kbytes: known(8_192),
        netdev_max_backlog: known(1000),
        netdev_budget: known(300),
        default_qdisc: known("fq_codel".into()),
        optmem_max: known(131_072),
        ..facts.host
    };
    let device = &mut facts.devices[0];
    (device.speed, device.mtu) = (known(GBIT), known(1500));
    (device.ring, device.flow_control) = (known(Some(Ring { entries: 1024, max_entries: 4096 })), known(Some(false)));
    (device.iommu, device.rx_queues) = (known(Some("DMA".into())), known(1));
    device.queue_qdiscs = known(BTreeMap::from([("fq_codel".into(), 1)]));
    let goal = Goal { bandwidth: GBIT, streams: 1, rtt: Duration::from_millis(20) };
    assert_eq!(rules_of(&examine(&facts, &goal)), Vec::<&str>::new());
    let farther = Goal { rtt: Duration::from_millis(100), ..goal };
    assert_eq!(rules_of(&examine(&facts, &farther)), ["host.rcv-buffer", "host.rcv-buffer-fixed"]);
}

#[test]
fn advice_about_buffers_does_not_contradict_itself_where_memory_is_small() {
    let mut facts = tuned();
    facts.host.memory_bytes = known(16 * GIB);
    facts.host.swapped_bytes = known(0);
    facts.host.min_free_kbytes = known(1 << 17);
    facts.host.tcp_mem = known([188_000, 251_000, 377_000]);
    facts.host.tcp_rmem = known([4096, 131_072, 6_291_456]);
    let goal = Goal { streams: 10, rtt: Duration::from_millis(400), ..goal() };
    let diagnosis = examine(&facts, &goal);
    assert_eq!(rules_of(&diagnosis), ["host.rcv-buffer", "host.tcp-mem-low"]);
    let most = 16 * GIB / 8 / 10;
    assert!(diagnosis.findings[0].set.ends_with(&format!("{most}\"")), "{diagnosis:?}");
    assert!(diagnosis.findings[1].set.starts_with("expect less than 100 Gbit/s"), "{diagnosis:?}");
    // With the buffers that it advises, only the goal is too high.
    facts.host.tcp_rmem = known([4096, 131_072, most]);
    assert_eq!(rules_of(&examine(&facts, &goal)), ["host.tcp-mem-low"]);
    // Buffers that are larger than the goal needs.
    facts.host.tcp_rmem = known([4096, 131_072, 2_147_483_647]);
    let near = Goal { rtt: Duration::from_millis(1), ..goal };
    let diagnosis = examine(&facts, &near);
    assert_eq!(rules_of(&diagnosis), ["host.tcp-mem-low"]);
    assert!(diagnosis.findings[0].set.contains("tcp_rmem to 2500000"), "{diagnosis:?}");
    facts.host.tcp_rmem = known([4096, 131_072, 2_500_000]);
    assert_eq!(rules_of(&examine(&facts, &near)), Vec::<&str>::new());
}

#[test]
fn streams_share_the_rate_and_the_memory() {
    let facts = tuned();
    let far = Goal { bandwidth: 400 * GBIT, streams: 1, rtt: Duration::from_millis(150) };
    let diagnosis = examine(&facts, &far);
    let streams = diagnosis.findings.iter().find(|finding| finding.rule == "host.streams").expect("too much for one");
    assert!(streams.set.starts_with("use 7 streams or more"), "{streams:?}");
    let seven = rules_of(&examine(&facts, &Goal { streams: 7, ..far }));
    assert_eq!(seven, Vec::<&str>::new());
    // Ten buffers of 2 GiB are more than TCP may take before it is under pressure.
    assert_eq!(rules_of(&examine(&facts, &Goal { streams: 10, ..goal() })), ["host.tcp-mem-low"]);
    let text = tell::text(&facts, &Goal { streams: 10, ..goal() }, &Diagnosis::default());
    assert!(text.contains("receive 100 Gbit/s in 10 streams at a round trip of 80ms (1 GB on the way)? yes"), "{text}");
}

#[test]
fn programs_are_told_in_json_that_is_not_of_rust() {
    let mut facts = tuned();
    let json = |facts: &Facts| -> serde_json::Value {
        let text = tell::json(facts, &goal(), &examine(facts, &goal())).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let whole = json(&facts);
    assert_eq!(whole["format_version"], 1);
    assert_eq!(whole["facts"]["run"]["prerequisites"]["btf_error"], serde_json::Value::Null);
    assert_eq!(whole["facts"]["run"]["prerequisites"]["capabilities"][0], "CAP_BPF");
    assert_eq!(whole["facts"]["run"]["probes"][0]["name"], "tcp_probe");
    facts.run.probes = refused(true);
    facts.run.prerequisites.btf = Err("No such file".into());
    let refused = json(&facts);
    assert_eq!(refused["facts"]["run"]["probes"]["refused"]["denied"], true);
    assert_eq!(refused["facts"]["run"]["prerequisites"]["btf_error"], "No such file");
    assert!(!refused.to_string().contains("\"Ok\"") && !refused.to_string().contains("\"Err\""));
}

#[test]
fn what_has_changed_is_told_fact_by_fact() {
    let answer = |facts: &Facts| -> serde_json::Value {
        serde_json::from_str(&tell::json(facts, &goal(), &Diagnosis::default()).unwrap()).unwrap()
    };
    let before = answer(&tuned());
    assert_eq!(diff::text(&diff::differences(&before, &before)), "nothing has changed\n");
    let mut facts = tuned();
    facts.host.softnet = known(SoftnetSums { processed: 20_000_000, dropped: 4, time_squeezed: 901 });
    facts.host.swapped_bytes = known(0);
    facts.run.others = known(BTreeMap::from([(7, "tcpmon daemon".into())]));
    assert_eq!(diff::differences(&before, &answer(&facts)), [], "they change by themselves");
    facts.host.tcp_rmem = known([4096, 131_072, 6_291_456]);
    facts.host.sack = Fact::Unknown("Permission denied".into());
    facts.devices[0].gro = known(false);
    facts.devices[0].interrupts = known(BTreeMap::from([(100, vec![1, 2])]));
    facts.devices[0].queue_qdiscs = known(BTreeMap::from([("fq".into(), 30), ("pfifo_fast".into(), 2)]));
    facts.run.probes = known(Ok(Vec::new()));
    let text = diff::text(&diff::differences(&before, &answer(&facts)));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "devices.eth0.gro: true -> false");
    assert_eq!(lines[1], "devices.eth0.interrupts.100: [32] -> [1,2]");
    assert_eq!(lines[2], "devices.eth0.interrupts.101: [33] -> nothing");
    assert!(lines.contains(&"devices.eth0.queue_qdiscs.pfifo_fast: nothing -> 2"), "{text}");
    assert!(lines.contains(&r#"host.sack: 1 -> {"unknown":"Permission denied"}"#), "{text}");
    assert!(lines.contains(&"host.tcp_rmem: [4096,131072,2147483647] -> [4096,131072,6291456]"), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("run.probes.tcp_probe: {") && line.ends_with("} -> nothing")));
    assert_eq!(lines.last(), Some(&"39 facts have changed"));
    // A device that has gone.
    facts.devices.clear();
    let gone = diff::differences(&before, &answer(&facts));
    assert!(gone[0].fact == "devices.eth0" && gone[0].now.is_null() && gone[0].before["name"] == "eth0", "{gone:?}");
}

#[test]
fn what_is_not_known_is_not_found_but_named() {
    let mut facts = tuned();
    facts.host.sack = Fact::Unknown("/proc/sys/net/ipv4/tcp_sack: Permission denied".into());
    facts.devices[0].ring = Fact::Unknown("its driver does not say".into());
    let diagnosis = examine(&facts, &goal());
    assert_eq!(rules_of(&diagnosis), Vec::<&str>::new());
    let named: Vec<_> = diagnosis.not_checked.iter().map(|it| (it.rule, it.device.as_deref())).collect();
    assert_eq!(named, [("host.sack", None), ("device.ring", Some("eth0"))]);
    let text = tell::text(&facts, &goal(), &diagnosis);
    assert!(text.contains("not checked: host.sack: /proc/sys/net/ipv4/tcp_sack: Permission denied"), "{text}");
}

#[test]
fn the_queueing_disciplines_of_mq_are_named_with_their_queues() {
    let mut facts = tuned();
    for (queues, said) in [
        (&[("pfifo_fast", 8)][..], "pfifo_fast on 8 queues"),
        (&[("fq", 6), ("pfifo_fast", 2)], "fq on 6 queues, pfifo_fast on 2"),
        (&[("htb", 1), ("pfifo_fast", 2), ("tbf", 1)], "htb on 1 queue, pfifo_fast on 2, tbf on 1"),
    ] {
        facts.devices[0].queue_qdiscs = known(queues.iter().map(|(name, count)| ((*name).into(), *count)).collect());
        let diagnosis = examine(&facts, &goal());
        assert_eq!(rules_of(&diagnosis), ["device.qdisc"]);
        assert_eq!(diagnosis.findings[0].found, format!("its queueing discipline is mq with {said}"));
    }
    // Nothing is guessed from the default.
    facts.devices[0].queue_qdiscs = Fact::Unknown("rtnetlink does not list queueing disciplines".into());
    let diagnosis = examine(&facts, &goal());
    let not_checked: Vec<_> = diagnosis.not_checked.iter().map(|it| (it.rule, it.reason.as_str())).collect();
    assert_eq!(rules_of(&diagnosis), Vec::<&str>::new());
    assert_eq!(not_checked, [("device.qdisc", "rtnetlink does not list queueing disciplines")]);
}

#[test]
fn the_speed_of_a_link_is_named_only_if_it_is_known() {
    let mut facts = tuned();
    facts.devices[0].mtu = known(1500);
    let found = |facts: &Facts, gbit: u64| {
        let diagnosis = examine(facts, &Goal { bandwidth: gbit * GBIT, ..goal() });
        let finding = diagnosis.findings.into_iter().find(|finding| finding.rule == "device.mtu");
        finding.map(|finding| finding.found)
    };
    facts.devices[0].speed = known(40 * GBIT);
    assert_eq!(found(&facts, 100).as_deref(), Some("its MTU is 1500, at 40 Gbit/s"));
    assert_eq!(found(&facts, 1).as_deref(), Some("its MTU is 1500, at 40 Gbit/s"));
    facts.devices[0].speed = known(10 * GBIT);
    assert_eq!(found(&facts, 100), None);
    // A virtual device: the rule goes by the goal.
    facts.devices[0].speed = Fact::Unknown("its driver reports no speed".into());
    assert_eq!(found(&facts, 100).as_deref(), Some("its MTU is 1500, and it is to receive 100 Gbit/s"));
    assert_eq!(found(&facts, 10), None);
    assert!(tell::text(&facts, &goal(), &Diagnosis::default()).contains("mlx5_core, speed unknown, MTU 1500"));
}

#[test]
fn people_and_programs_are_told_the_same() {
    let mut facts = tuned();
    facts.host.window_scaling = known(0);
    facts.run.prerequisites.object = false;
    let diagnosis = examine(&facts, &goal());
    let text = tell::text(&facts, &goal(), &diagnosis);
    let json: serde_json::Value = serde_json::from_str(&tell::json(&facts, &goal(), &diagnosis).unwrap()).unwrap();
    assert!(text.starts_with("Can tcpmon run here? no\n"), "{text}");
    assert!(text.contains("receive 100 Gbit/s at a round trip of 80ms (1 GB on the way)? not yet\n"), "{text}");
    assert!(
        text.contains("  eth0: mlx5_core, 100 Gbit/s, MTU 9000, ring 8192 of 8192, receive queues: 32\n"),
        "{text}"
    );
    assert!(text.ends_with("2 findings; 54 checks passed. Nothing was changed.\n"), "{text}");
    assert_eq!(json["can_run"], false);
    assert_eq!(json["findings"][1]["rule"], "host.window-scaling");
    assert_eq!(json["facts"]["host"]["tcp_rmem"][1], 131_072);
    assert_eq!(json["goal"]["rtt_seconds"], 0.08);
    for finding in &diagnosis.findings {
        for part in [finding.rule, &finding.set, finding.source] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }
}

#[test]
fn the_document_lists_the_rules() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/doctor.md");
    let document = fs::read_to_string(file).unwrap();
    let (head, _) = document.split_once("\n## Rules\n").unwrap();
    let wanted = format!("{head}\n## Rules\n\n{}", tell::reference());
    if env::var_os("TCPMON_BLESS").is_some() {
        fs::write(file, &wanted).unwrap();
        return;
    }
    assert_eq!(document, wanted, "{file}: if this is meant, run the test again with TCPMON_BLESS=1");
}
