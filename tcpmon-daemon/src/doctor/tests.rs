//! Each rule, from a well-tuned host with one thing changed.

mod figures;
mod memory;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{facts::*, *};
use crate::{
    host_state::{Channels, Coalescing, Ring},
    kernel::Prerequisites,
    status::{ProbeStatus, Verdict},
    tests,
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
        wmem_max: known(2_147_483_647),
        tcp_mem: known([3_145_728, 4_194_304, 6_291_456]),
        min_free_kbytes: known(1 << 20),
        overcommit_memory: known(0),
        netdev_max_backlog: known(250_000),
        netdev_budget: known(600),
        netdev_budget_usecs: known(8000),
        softnet: known(SoftnetSums { processed: 10_000_000, dropped: 3, time_squeezed: 1_000_000 }),
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
        tx_ring: known(Some(Ring { entries: 1024, max_entries: 8192 })),
        gro: known(true),
        lro: known(false),
        gro_hw: known(Some(true)),
        offloads: known(BTreeMap::from([("tx-tcp-segmentation".into(), true), ("rx-checksum".into(), true)])),
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
    Facts { run, host, devices: vec![device], devices_missing: None }
}

fn goal() -> Goal {
    Goal { bandwidth: 100 * GBIT, streams: 1, rtt: Duration::from_millis(80) }
}

/// Changes one thing on the host.
type Change = fn(&mut Facts);

fn without(facts: &mut Facts, capability: u32) {
    facts.run.prerequisites.capabilities = Some(!(1 << capability));
}

fn refused(denied: bool) -> Fact<Result<Vec<ProbeStatus>, Refusal>> {
    known(Err(Refusal { missing: "the kernel refused tcpmon's maps".into(), remedy: "allow bpf(2)".into(), denied }))
}

/// For each change: what is found then, and what the advice is to set.
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
        "sysctl -w net.ipv4.tcp_mem=\"524287 786431 1048575\"",
    ),
    (
        |it| it.host.tcp_mem = known([3_145_728, 4_194_304, 16_777_217]),
        "host.tcp-mem-high",
        "sysctl -w net.ipv4.tcp_mem=\"8388608 12582912 16777216\"",
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
    // A shaper that somebody has configured must not be replaced.
    (|it| it.devices[0].qdisc = known("htb".into()), "", ""),
    (
        |it| {
            it.devices[0].qdisc = known("mqprio".into());
            it.devices[0].queue_qdiscs = known(BTreeMap::from([("fq".into(), 6), ("pfifo_fast".into(), 2)]));
        },
        "device.qdisc",
        "tc qdisc replace dev eth0 parent HANDLE fq, for each parent that tc qdisc show dev eth0 names",
    ),
    // The default qdisc is not the one that the device has.
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
        "stop irqbalance, and write a CPU of its own to /proc/irq/N/smp_affinity_list of each; keep readers off these \
         CPUs",
    ),
    (
        |it| it.devices[0].interrupts = known((0..9).map(|number| (number, vec![number])).collect()),
        "device.numa",
        "stop irqbalance, and write CPUs of that node to /proc/irq/N/smp_affinity_list; keep readers off these CPUs",
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
fn each_rule_names_its_source_and_says_what_it_wants_and_why() {
    for rule in RULES.into_iter().flatten() {
        for text in [rule.id, rule.wanted, rule.why, rule.source] {
            assert!(!text.is_empty() && text == text.trim(), "{rule:?}");
        }
    }
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
    // Rules that depend on the goal alone have a test of their own.
    let tried: BTreeSet<_> = CHANGES
        .iter()
        .flat_map(|(_, rules, _)| rules.split(' '))
        .filter(|id| !id.is_empty())
        .chain(["host.streams"])
        .collect();
    assert_eq!(tried, RULES.into_iter().flatten().map(|rule| rule.id).collect());
}

#[test]
fn bytes_are_binary_as_in_other_commands_and_rates_are_decimal() {
    let shown = [0, 999, 4096, 6_291_456, 2_147_483_647, 16 * GIB, u64::MAX].map(bytes);
    assert_eq!(shown, ["0 bytes", "999 bytes", "4.0 KiB", "6.0 MiB", "2.0 GiB", "16 GiB", "16 EiB"]);
    let shown = [1, 1_500, 25_000_000, 100 * GBIT, 2_500_000_000].map(rate);
    assert_eq!(shown, ["1 bit/s", "1.5 kbit/s", "25 Mbit/s", "100 Gbit/s", "2.5 Gbit/s"]);
}

#[test]
fn programs_are_told_in_json_that_is_not_of_rust() {
    let mut facts = tuned();
    let json = |facts: &Facts| -> serde_json::Value {
        let text = render::json(facts, &goal(), &examine(facts, &goal())).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let whole = json(&facts);
    assert_eq!(whole["format_version"], 1);
    // docs/doctor.md has all keys.
    let document = include_str!("../../../docs/doctor.md");
    let section = document.split("\n## ").find(|section| section.starts_with("JSON\n")).expect("a section on it");
    let keys = |value: &serde_json::Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    for key in [keys(&whole), keys(&whole["goal"])].concat() {
        assert!(section.contains(&format!("`{key}`")), "{key}");
    }
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
fn differences_are_listed_fact_by_fact_without_those_that_change_by_themselves() {
    let answer = |facts: &Facts| -> serde_json::Value {
        serde_json::from_str(&render::json(facts, &goal(), &Diagnosis::default()).unwrap()).unwrap()
    };
    let before = answer(&tuned());
    assert_eq!(diff::text(&diff::differences(&before, &before)), "nothing has changed\n");
    let mut facts = tuned();
    facts.host.softnet = known(SoftnetSums { processed: 20_000_000, dropped: 4, time_squeezed: 1_000_001 });
    facts.host.swapped_bytes = known(0);
    facts.run.others = known(BTreeMap::from([(7, "tcpmon daemon".into())]));
    assert_eq!(diff::differences(&before, &answer(&facts)), [], "they change by themselves");
    facts.host.tcp_rmem = known([4096, 131_072, 6_291_456]);
    facts.host.sack = Fact::Unknown("Permission denied".into());
    facts.devices[0].gro = known(false);
    facts.devices[0].interrupts = known(BTreeMap::from([(100, vec![1, 2])]));
    facts.devices[0].queue_qdiscs = known(BTreeMap::from([("fq".into(), 30), ("pfifo_fast".into(), 2)]));
    facts.host.netdev_budget_usecs = known(2000);
    facts.devices[0].tx_ring = known(Some(Ring { entries: 256, max_entries: 8192 }));
    facts.devices[0].offloads = known(BTreeMap::from([("rx-checksum".into(), false)]));
    facts.run.probes = known(Ok(Vec::new()));
    let text = diff::text(&diff::differences(&before, &answer(&facts)));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "devices.eth0.gro: true -> false");
    assert_eq!(lines[1], "devices.eth0.interrupts.100: [32] -> [1,2]");
    assert_eq!(lines[2], "devices.eth0.interrupts.101: [33] -> nothing");
    assert!(lines.contains(&"devices.eth0.queue_qdiscs.pfifo_fast: nothing -> 2"), "{text}");
    // No rule looks at these.
    assert!(lines.contains(&"host.netdev_budget_usecs: 8000 -> 2000"), "{text}");
    assert!(lines.contains(&"devices.eth0.tx_ring.entries: 1024 -> 256"), "{text}");
    assert!(lines.contains(&"devices.eth0.offloads.rx-checksum: true -> false"), "{text}");
    assert!(lines.contains(&"devices.eth0.offloads.tx-tcp-segmentation: true -> nothing"), "{text}");
    assert!(lines.contains(&r#"host.sack: 1 -> {"unknown":"Permission denied"}"#), "{text}");
    assert!(lines.contains(&"host.tcp_rmem: [4096,131072,2147483647] -> [4096,131072,6291456]"), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("run.probes.tcp_probe: {") && line.ends_with("} -> nothing")));
    assert_eq!(lines.last(), Some(&"43 facts have changed"));
    // A device that is gone.
    facts.devices.clear();
    let gone = diff::differences(&before, &answer(&facts));
    assert!(gone[0].fact == "devices.eth0" && gone[0].now.is_null() && gone[0].before["name"] == "eth0", "{gone:?}");
}

#[test]
fn devices_that_cannot_be_listed_are_not_checked() {
    let mut facts = tuned();
    facts.devices.clear();
    facts.devices_missing = Some("cannot list the network devices over rtnetlink: No buffer space".into());
    let diagnosis = examine(&facts, &goal());
    let of_devices = |rule: &&Rule| matches!(rule.check, Check::Device(_));
    let rules = RULES.into_iter().flatten().filter(of_devices).map(|rule| rule.id);
    assert_eq!(diagnosis.not_checked.iter().map(|it| it.rule).collect::<Vec<_>>(), rules.collect::<Vec<_>>());
    let text = render::text(&facts, &goal(), &diagnosis);
    let said = "  network devices may be missing: cannot list the network devices over rtnetlink: No buffer space\n";
    assert!(text.contains(said) && !text.contains("no network device"), "{text}");
}

#[test]
fn a_rule_whose_fact_is_unknown_is_not_a_finding_but_listed_as_not_checked() {
    let mut facts = tuned();
    facts.host.sack = Fact::Unknown("/proc/sys/net/ipv4/tcp_sack: Permission denied".into());
    facts.devices[0].ring = Fact::Unknown("its driver does not say".into());
    let diagnosis = examine(&facts, &goal());
    assert_eq!(rules_of(&diagnosis), Vec::<&str>::new());
    let named: Vec<_> = diagnosis.not_checked.iter().map(|it| (it.rule, it.device.as_deref())).collect();
    assert_eq!(named, [("host.sack", None), ("device.ring", Some("eth0"))]);
    let text = render::text(&facts, &goal(), &diagnosis);
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
    // The rule does not guess from the default.
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
    // A virtual device: the rule uses the speed of the goal.
    facts.devices[0].speed = Fact::Unknown("its driver reports no speed".into());
    assert_eq!(found(&facts, 100).as_deref(), Some("its MTU is 1500, and the goal is to receive 100 Gbit/s"));
    assert_eq!(found(&facts, 10), None);
    assert!(render::text(&facts, &goal(), &Diagnosis::default()).contains("mlx5_core, speed unknown, MTU 1500"));
}

#[test]
fn people_and_programs_are_told_the_same() {
    let mut facts = tuned();
    facts.host.window_scaling = known(0);
    facts.run.prerequisites.object = false;
    let diagnosis = examine(&facts, &goal());
    let text = render::text(&facts, &goal(), &diagnosis);
    let json: serde_json::Value = serde_json::from_str(&render::json(&facts, &goal(), &diagnosis).unwrap()).unwrap();
    assert!(text.starts_with("Can tcpmon run here? no\n"), "{text}");
    assert!(text.contains("receive 100 Gbit/s at a round trip of 80ms (954 MiB in flight)? no\n"), "{text}");
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
    const FILE: &str = "../docs/doctor.md";
    let document = tests::read(FILE);
    let (head, _) = document.split_once("\n## Rules\n").unwrap();
    tests::is_kept_in(FILE, &format!("{head}\n## Rules\n\n{}", render::reference()));
}
