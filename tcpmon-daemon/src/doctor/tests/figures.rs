//! The figures of the rules: those of their sources.

use super::*;

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
    let runbook = include_str!("../../../../docs/runbooks/TcpmonSoftnetDrops.md");
    assert!(runbook.contains("1 in 10,000") && text("host.backlog-drops").contains("one packet in 10,000"));
}
