//! Compares the figures in the rules with those in their sources.

use super::*;

/// A figure that a rule takes from its source. The rule's check, its sentence and its source must agree on it.
struct Figure {
    /// The goal, Gbit/s.
    gbit: u64,
    rule: &'static str,
    /// A part of the rule's `source`.
    source: &'static str,
    /// What the source says, in short: the last number is the figure. A host that has it passes, and one with one less
    /// fails.
    says: &'static str,
    /// The rule's sentence states the figure divided by this number.
    told_in: u64,
    change: fn(&mut Facts, u64),
}

/// In the order of the rules.
const FIGURES: [Figure; 10] = [
    Figure {
        gbit: 40,
        rule: "host.kernel",
        source: "SC24",
        says: "kernel 6.8",
        told_in: 1,
        change: |it, minor| it.run.prerequisites.release = format!("6.{minor}.0"),
    },
    Figure {
        gbit: 10,
        rule: "host.min-free",
        source: "Bowden",
        says: "vm.min_free_kbytes 65536",
        told_in: 1 << 10,
        change: |it, kbytes| it.host.min_free_kbytes = known(kbytes),
    },
    Figure {
        gbit: 10,
        rule: "host.backlog",
        source: "ESnet fasterdata: Linux host tuning (an older edition)",
        says: "10 Gbit/s: net.core.netdev_max_backlog 30000",
        told_in: 1,
        change: |it, packets| it.host.netdev_max_backlog = known(packets),
    },
    Figure {
        gbit: 40,
        rule: "host.backlog",
        source: "ESnet fasterdata: Linux host tuning (an older edition)",
        says: "40 Gbit/s: net.core.netdev_max_backlog 250000",
        told_in: 1,
        change: |it, packets| it.host.netdev_max_backlog = known(packets),
    },
    Figure {
        gbit: 100,
        rule: "host.backlog-drops",
        source: RUNBOOK,
        says: "1 in 10,000",
        told_in: 1,
        change: |it, processed| it.host.softnet = known(SoftnetSums { processed, dropped: 1, time_squeezed: 0 }),
    },
    Figure {
        gbit: 100,
        rule: "host.napi-budget",
        source: "Red Hat Enterprise Linux 10",
        says: "net.core.netdev_budget 300",
        told_in: 1,
        change: |it, packets| it.host.netdev_budget = known(packets),
    },
    Figure {
        gbit: 40,
        rule: "host.optmem",
        source: "SC24",
        says: "net.core.optmem_max 1048576",
        told_in: 1 << 20,
        change: |it, bytes| it.host.optmem_max = known(bytes),
    },
    Figure {
        gbit: 100,
        rule: "device.ring",
        source: "SC24 for AMD",
        says: "AMD: rx 8192",
        told_in: 1,
        change: |it, entries| it.devices[0].ring = known(Some(Ring { entries, max_entries: 16_384 })),
    },
    Figure {
        gbit: 100,
        rule: "device.ring",
        source: "ESnet fasterdata: NIC tuning",
        says: "rx 4096",
        told_in: 1,
        change: |it, entries| {
            it.host.cpu_vendor = known("GenuineIntel".into());
            it.devices[0].ring = known(Some(Ring { entries, max_entries: 16_384 }));
        },
    },
    Figure {
        gbit: 100,
        rule: "device.mtu",
        source: "SC24",
        says: "MTU 9K",
        told_in: 1,
        change: |it, bytes| it.devices[0].mtu = known(bytes),
    },
];

/// Bounds without a figure in a source, or with one that is no lower bound: a goal in Gbit/s, the rule, a host that
/// just passes, and one that just does not. In the order of the rules.
const BOUNDS: [(u64, &str, Change, Change); 5] = [
    // Red Hat: 5 to 10 % of the memory are too much.
    (
        100,
        "host.min-free-high",
        |it| it.host.min_free_kbytes = known(256 * GIB / 20 / 1024),
        |it| it.host.min_free_kbytes = known(256 * GIB / 20 / 1024 + 1),
    ),
    // net/core/dev.c: the default of the kernel.
    (1, "host.backlog", |it| it.host.netdev_max_backlog = known(1000), |it| it.host.netdev_max_backlog = known(999)),
    // Documentation/networking/scaling.rst: the smallest number of queues with which none overflows.
    (
        100,
        "device.queues",
        |it| it.devices[0].channels = known(Some(Channels { queues: 2, max_queues: 64 })),
        |it| it.devices[0].channels = known(Some(Channels { queues: 1, max_queues: 64 })),
    ),
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

/// Figures of SC24 in the reasons of rules.
const REASONS: [(&str, &str); 2] = [
    ("host.kernel", "38% WAN, 30% LAN, Linux 5.15"),
    ("device.gro-hw", "Linux 6.11, MTU 1500 (Intel): 24 to 62 Gbps; MTU 9K (AMD): 40 to 53 Gbps"),
];

/// What SC24 says of `iommu=pt`: the throughput without it, and with it.
const IOMMU: &str = "increased 8-stream throughput from 80 Gbps to 181 Gbps";

/// The one source that is a file of this repository.
const RUNBOOK: &str = "docs/runbooks/TcpmonSoftnetDrops.md";

/// The numbers of a text: `10,000`, `9K` (9000), and `6.8` as two.
fn numbers(text: &str) -> Vec<u64> {
    let text = text.replace(',', "");
    let words = text.split(|character: char| !character.is_ascii_alphanumeric());
    let number = |word: &str| match word.strip_suffix('K') {
        Some(thousands) => Some(thousands.parse::<u64>().ok()? * 1000),
        None => word.parse().ok(),
    };
    words.filter_map(number).collect()
}

fn rule(id: &str) -> &'static Rule {
    RULES.into_iter().flatten().find(|rule| rule.id == id).expect("a rule")
}

/// The rules that find something on a tuned host with this change.
fn found(gbit: u64, change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
    let mut facts = tuned();
    facts.devices[0].speed = known(gbit * GBIT);
    change(&mut facts);
    rules_of(&examine(&facts, &Goal { bandwidth: gbit * GBIT, ..goal() }))
}

#[test]
fn the_figures_of_rules_are_those_of_their_sources() {
    let runbook = include_str!("../../../../docs/runbooks/TcpmonSoftnetDrops.md");
    for Figure { gbit, rule: id, source, says, told_in, change } in FIGURES {
        let rule = rule(id);
        let figure = *numbers(says).last().expect("a number");
        assert!(rule.source.contains(source), "{id}: {source}");
        assert!(source != RUNBOOK || runbook.contains(says), "{id}: {says}");
        assert!(numbers(rule.wanted).contains(&(figure / told_in)), "{id}: {says}: {}", rule.wanted);
        assert_eq!(found(gbit, |facts| change(facts, figure)), [""; 0], "{id}: {says}");
        assert_eq!(found(gbit, |facts| change(facts, figure - 1)), [id], "{id}: {says}");
    }
    for (gbit, id, passes, fails) in BOUNDS {
        assert_eq!(found(gbit, passes), [""; 0], "{id} at {gbit} Gbit/s");
        assert_eq!(found(gbit, fails), [id], "{id} at {gbit} Gbit/s");
    }
}

#[test]
fn the_figures_of_reasons_are_those_of_their_sources() {
    for (id, says) in REASONS {
        let told = numbers(rule(id).why);
        assert!(rule(id).source == SC24 && numbers(says).iter().all(|number| told.contains(number)), "{id}: {told:?}");
    }
    let rates = numbers(IOMMU);
    let (without, with) = (rates[1], rates[2]);
    let iommu = rule("device.iommu");
    let told = iommu.why.contains("took more than half of the throughput");
    assert!(iommu.source == SC24 && told && 2 * (with - without) > with, "{rates:?}: {}", iommu.why);
    // Sequence numbers of 32 bits, at 100 Gbit/s.
    let wrap = f64::from(u32::MAX) * 8.0 / 100e9;
    assert!(rule("host.timestamps").why.contains(&format!("{wrap:.2} s")), "{wrap}");
    // RFC 3649: Reno halves its window and adds a segment in each round trip: 10 Gbit/s, 100 ms, 1500 bytes.
    let hours: f64 = 10e9 * 0.1 / 8.0 / 1500.0 / 2.0 * 0.1 / 3600.0;
    assert!(
        (1.0..1.5).contains(&hours) && rule("host.congestion-control").why.contains("more than an hour"),
        "{hours}"
    );
}
