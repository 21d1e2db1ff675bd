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

/// Bounds that are no figures of the kind above: a goal in Gbit/s, the rule, what the source says, a host that just
/// passes, and one that just does not. In the order of the rules.
const BOUNDS: [(u64, &str, &str, Change, Change); 5] = [
    // Red Hat.
    (
        100,
        "host.min-free-high",
        "5 to 10 % of the memory are too much",
        |it| it.host.min_free_kbytes = known(256 * GIB / 20 / 1024),
        |it| it.host.min_free_kbytes = known(256 * GIB / 20 / 1024 + 1),
    ),
    // net/core/dev.c.
    (
        1,
        "host.backlog",
        "1000 is the default of the kernel",
        |it| it.host.netdev_max_backlog = known(1000),
        |it| it.host.netdev_max_backlog = known(999),
    ),
    // Documentation/networking/scaling.rst.
    (
        100,
        "device.queues",
        "the smallest number of queues with which none overflows",
        |it| it.devices[0].channels = known(Some(Channels { queues: 2, max_queues: 64 })),
        |it| it.devices[0].channels = known(Some(Channels { queues: 1, max_queues: 64 })),
    ),
    // ESnet, 40G/100G network tuning.
    (
        100,
        "device.qdisc",
        "fq_codel seems to work fine, pfifo_fast should be changed",
        |it| it.devices[0].qdisc = known("fq_codel".into()),
        |it| it.devices[0].qdisc = known("pfifo_fast".into()),
    ),
    // PCI Express.
    (
        100,
        "device.pcie",
        "16 GT/s, 128 of 130 bits are data: 100 Gbit/s need 7 lanes",
        |it| it.devices[0].pcie = known(Some(PcieLink { now: PcieRate { lanes: 7, ..PCIE_16 }, most: PCIE_16 })),
        |it| it.devices[0].pcie = known(Some(PcieLink { now: PcieRate { lanes: 6, ..PCIE_16 }, most: PCIE_16 })),
    ),
];

/// A figure that a rule only tells, and its check does not use.
struct Reason {
    rule: &'static str,
    /// A part of the rule's `source`.
    source: &'static str,
    /// What the source says, in short.
    says: &'static str,
    /// The figures that the rule tells, from the numbers that the source says.
    told: fn(&[u64]) -> Vec<u64>,
}

/// In the order of the rules.
const REASONS: [Reason; 15] = [
    Reason { rule: "run.kernel", source: KERNELS, says: "tcpmon runs on Linux 5.15 and newer", told: as_said },
    Reason { rule: "run.cap-net-admin", source: OPERATING, says: "on Linux 7.0 and newer", told: as_said },
    Reason {
        rule: "host.streams",
        source: "RFC 7323",
        says: "a maximum permissible receive window size of 1 GiB",
        told: as_said,
    },
    Reason { rule: "host.kernel", source: SC24, says: "38% WAN, 30% LAN, Linux 5.15", told: as_said },
    Reason {
        rule: "host.mtu-probing",
        source: "RFC 894",
        says: "the maximum length of an IP datagram sent over an Ethernet is 1500 octets",
        told: as_said,
    },
    Reason {
        rule: "host.snd-buffer",
        source: "net/ipv4/tcp_input.c, tcp_sndbuf_expand",
        says: "Cubic needs 1.7 factor, rounded to 2",
        told: |said| vec![said[2]],
    },
    // A buffer has room for that part of itself.
    Reason {
        rule: "host.rcv-buffer",
        source: "Documentation/networking/ip-sysctl.rst",
        says: "tcp_adv_win_scale: count buffering overhead as bytes/2^tcp_adv_win_scale; default: 1",
        told: |said| vec![said[0].pow(said[1] as u32)],
    },
    Reason {
        rule: "host.rcv-buffer-fixed",
        source: "socket(7)",
        says: "the kernel makes it twice the value that SO_RCVBUF sets",
        told: as_said,
    },
    Reason {
        rule: "host.window-scaling",
        source: "RFC 7323",
        says: "the largest window that can be used is 2^16 = 64 KiB",
        told: |said| vec![said[2]],
    },
    Reason {
        rule: "host.tuned",
        source: "profiles/network-throughput",
        says: "net.ipv4.tcp_rmem=\"4096 131072 16777216\"",
        told: |said| vec![said[2] >> 20],
    },
    Reason {
        rule: "device.numa",
        source: "ESnet fasterdata: Interrupt binding",
        says: "TCP and UDP performance can be up to 2x slower",
        told: as_said,
    },
    Reason { rule: "device.gro", source: "SC24", says: "a super-sized TCP packet of 64KB", told: as_said },
    Reason {
        rule: "device.gro-hw",
        source: SC24,
        says: "Linux 6.11, MTU 1500 (Intel): 24 to 62 Gbps; MTU 9K (AMD): 40 to 53 Gbps",
        told: as_said,
    },
    Reason {
        rule: "device.mtu",
        source: SC24,
        says: "fragmented to the MTU size by the NIC driver (i.e. 1500B or 9000B)",
        told: |said| vec![said[1] / said[0]],
    },
    // More than half.
    Reason {
        rule: "device.iommu",
        source: SC24,
        says: "increased 8-stream throughput from 80 Gbps to 181 Gbps",
        told: |said| vec![said[2].div_ceil(said[2] - said[1])],
    },
];

fn as_said(said: &[u64]) -> Vec<u64> {
    said.to_vec()
}

/// Figures that follow from the size of a number or from a formula, which a test calculates.
const CALCULATED: [(&str, &[u64]); 5] = [
    // GiB.
    ("host.snd-buffer", &[2]),
    ("host.rcv-buffer", &[2]),
    ("host.rcv-buffer-fixed", &[1]),
    ("host.timestamps", &[0, 34, 100]),
    ("host.congestion-control", &[10, 100]),
];

/// tcpmon's own thresholds, and the rules that have them, as the documentation lists them.
const OWN: [(&[&str], &str); 7] = [
    (&[], "the lowest rate at which a rule applies"),
    (&["host.swap"], "1 % of the memory in swap space"),
    (&["host.tcp-mem-high"], "a quarter of it for TCP"),
    (
        &["host.snd-buffer", "host.rcv-buffer", "host.rcv-buffer-fixed"],
        "an eighth for the buffers of a transfer (a sixteenth for `net.core.rmem_max`)",
    ),
    (&["host.min-free"], "packets of 10 ms (at most 1 % of the memory)"),
    (&["device.queues"], "2 receive queues to begin with"),
    (&["device.ring"], "a ring of 1024 entries below 10 Gbit/s"),
];

/// The sources that are files of this repository.
const RUNBOOK: &str = "docs/runbooks/TcpmonSoftnetDrops.md";
const KERNELS: &str = "docs/kernels.md";
const OPERATING: &str = "docs/operating.md";

/// Names with digits.
const NAMES: [&str; 3] = ["bpf(2)", "/rx-0/", "ConnectX-7"];

/// The numbers of a text: `10,000`, `9K` (9000), `64KB` and `2x` (64 and 2), `6.8` as two, and fractions as their
/// divisors.
fn numbers(text: &str) -> Vec<u64> {
    let text = text.replace(',', "");
    let words = text.split(|character: char| !character.is_ascii_alphanumeric());
    let number = |word: &str| match word {
        "half" | "twice" => Some(2),
        "quarter" => Some(4),
        "sixth" => Some(6),
        "eighth" => Some(8),
        "sixteenth" => Some(16),
        _ => {
            let number = word.trim_end_matches(|character: char| character.is_ascii_alphabetic());
            let thousands = if &word[number.len()..] == "K" { 1000 } else { 1 };
            Some(number.parse::<u64>().ok()? * thousands)
        }
    };
    words.filter_map(number).collect()
}

/// The string literals of code.
fn literals(code: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = code.chars().peekable();
    while let Some(character) = rest.next() {
        if character == '/' && rest.peek() == Some(&'/') {
            rest.find(|character| *character == '\n');
        } else if character == '"' {
            let mut literal = String::new();
            while let Some(character) = rest.next().filter(|character| *character != '"') {
                match if character == '\\' { rest.next() } else { Some(character) } {
                    // The literal goes on in the next line.
                    Some('\n') if character == '\\' => while rest.next_if(char::is_ascii_whitespace).is_some() {},
                    character => literal.extend(character),
                }
            }
            literals.push(literal);
        }
    }
    literals
}

/// What a rule tells its readers, without what it takes from the facts.
fn told(rule: &Rule) -> String {
    let files = [include_str!("../run.rs"), include_str!("../receive.rs"), include_str!("../nic.rs")];
    let mut rules = files.iter().flat_map(|file| file.split("\n    Rule {\n").skip(1));
    let code = rules.find(|code| code.contains(&format!("id: \"{}\"", rule.id))).expect("its code");
    let (code, _) = code.split_once("\n    },").expect("its end");
    let mut texts = literals(code);
    assert!(texts.iter().any(|text| text == rule.wanted) && texts.iter().any(|text| text == rule.why), "{texts:?}");
    texts.retain(|text| text != rule.source);
    let mut told = String::new();
    for text in texts {
        for part in text.split('{') {
            told.push_str(part.split_once('}').map_or(part, |(_, text)| text));
        }
        told.push(' ');
    }
    NAMES.iter().fold(told, |told, name| told.replace(name, ""))
}

/// The figures of a text: its numbers, except for rates from which a rule applies and the positions of switches.
fn figures(text: &str) -> Vec<u64> {
    let words: Vec<_> = text.split_whitespace().collect();
    let is_end = |at: usize| {
        words.get(at) == Some(&"and")
            && words.get(at + 1).is_some_and(|word| word.trim_end_matches([',', ';', ')']) == "above")
    };
    let (mut figures, mut at) = (Vec::new(), 0);
    while at < words.len() {
        if words[at] == "at" && (is_end(at + 2) || is_end(at + 3)) {
            at += 2;
            continue;
        }
        let word = words[at].trim_end_matches([',', ';', ')']);
        let is_switch = ["0", "1"].contains(&word) && at > 0 && ["is", "not"].contains(&words[at - 1]);
        if !is_switch && !word.ends_with("=0") && !word.ends_with("=1") {
            figures.extend(numbers(word));
        }
        at += 1;
    }
    figures
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
    for Figure { gbit, rule: id, source, says, told_in, change } in FIGURES {
        let rule = rule(id);
        let figure = *numbers(says).last().expect("a number");
        assert!(rule.source.contains(source), "{id}: {source}");
        check_own_document(source, says);
        assert!(numbers(rule.wanted).contains(&(figure / told_in)), "{id}: {says}: {}", rule.wanted);
        assert_eq!(found(gbit, |facts| change(facts, figure)), [""; 0], "{id}: {says}");
        assert_eq!(found(gbit, |facts| change(facts, figure - 1)), [id], "{id}: {says}");
    }
    for (gbit, id, _, passes, fails) in BOUNDS {
        assert_eq!(found(gbit, passes), [""; 0], "{id} at {gbit} Gbit/s");
        assert_eq!(found(gbit, fails), [id], "{id} at {gbit} Gbit/s");
    }
}

/// If the source is a file of this repository, it says this.
fn check_own_document(source: &str, says: &str) {
    let text = match source {
        RUNBOOK => include_str!("../../../../docs/runbooks/TcpmonSoftnetDrops.md"),
        KERNELS => include_str!("../../../../docs/kernels.md"),
        OPERATING => include_str!("../../../../docs/operating.md"),
        _ => return,
    };
    assert!(text.contains(says), "{source}: {says}");
}

#[test]
fn the_figures_of_reasons_are_those_of_their_sources() {
    for Reason { rule: id, source, says, told: from_numbers } in REASONS {
        let (rule, figures) = (rule(id), from_numbers(&numbers(says)));
        assert!(rule.source.contains(source), "{id}: {source}");
        check_own_document(source, says);
        let told = numbers(&told(rule));
        assert!(
            !figures.is_empty() && figures.iter().all(|figure| told.contains(figure)),
            "{id}: {figures:?}: {told:?}"
        );
    }
    // `sk_rcvbuf` and `sk_sndbuf` are of the type int, and the kernel doubles what is set by hand.
    let largest = (u64::from(i32::MAX as u32) + 1) / GIB;
    for (id, most) in
        [("host.snd-buffer", largest), ("host.rcv-buffer", largest), ("host.rcv-buffer-fixed", largest / 2)]
    {
        assert!(rule(id).wanted.contains(&format!("(at most {most} GiB")), "{id}");
    }
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

#[test]
fn every_number_of_a_rule_is_a_sources_or_said_to_be_tcpmons_own() {
    let document = include_str!("../../../../docs/doctor.md");
    let (_, own) = document.split_once("Thresholds that no source names are tcpmon's own: ").expect("the list");
    let (own, _) = own.split_once(".\n").expect("its end");
    let listed: Vec<_> = own.split(", ").map(|clause| clause.strip_prefix("and ").unwrap_or(clause)).collect();
    assert_eq!(listed, OWN.map(|(_, clause)| clause));
    for rule in RULES.into_iter().flatten() {
        let id = rule.id;
        let mut known = Vec::new();
        for figure in FIGURES.iter().filter(|figure| figure.rule == id) {
            let numbers = numbers(figure.says);
            known.extend(numbers.last().map(|figure_said| figure_said / figure.told_in));
            known.extend(numbers);
        }
        for reason in REASONS.iter().filter(|reason| reason.rule == id) {
            known.extend((reason.told)(&numbers(reason.says)));
        }
        known.extend(BOUNDS.iter().filter(|bound| bound.1 == id).flat_map(|bound| numbers(bound.2)));
        known.extend(CALCULATED.iter().filter(|(rule, _)| *rule == id).flat_map(|(_, figures)| *figures));
        known.extend(OWN.iter().filter(|(rules, _)| rules.contains(&id)).flat_map(|(_, clause)| numbers(clause)));
        let told = told(rule);
        for figure in figures(&told) {
            assert!(known.contains(&figure), "{id}: where does {figure} come from? {told}");
        }
    }
}
