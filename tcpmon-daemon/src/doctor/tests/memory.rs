//! Checks the advice about buffers and TCP's memory: following it is enough, no advice undoes another, and everything
//! fits in memory.

use proptest::prelude::*;

use super::*;

/// The rules about buffers and memory, in their order.
const MEMORY: [&str; 5] =
    ["host.snd-buffer", "host.rcv-buffer", "host.rcv-buffer-fixed", "host.tcp-mem-low", "host.tcp-mem-high"];

/// A host with 16 GiB, and with the kernel's defaults for buffers.
fn small() -> Facts {
    let mut facts = tuned();
    facts.host = HostFacts {
        memory_bytes: known(16 * GIB),
        swapped_bytes: known(0),
        min_free_kbytes: known(1 << 17),
        tcp_mem: known([188_000, 251_000, 377_000]),
        tcp_rmem: known([4096, 131_072, 6_291_456]),
        tcp_wmem: known([4096, 16_384, 4_194_304]),
        rmem_max: known(212_992),
        ..facts.host
    };
    facts
}

fn about_memory(facts: &Facts, goal: &Goal) -> Vec<Finding> {
    examine(facts, goal).findings.into_iter().filter(|finding| MEMORY.contains(&finding.rule)).collect()
}

/// Runs the commands of a piece of advice; returns the settings that it has changed.
fn follow(host: &mut HostFacts, advice: &str) -> Vec<String> {
    let mut names = Vec::new();
    for command in advice.split(" && ") {
        let setting = command.strip_prefix("sysctl -w ").and_then(|setting| setting.split_once('='));
        let (name, value) = setting.expect("a command of sysctl");
        let words = value.trim_matches('"').split(' ');
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        let three = || -> Fact<[u64; 3]> { known(numbers[..].try_into().expect("three numbers")) };
        match name {
            "net.core.rmem_max" => host.rmem_max = known(numbers[0]),
            "net.ipv4.tcp_mem" => host.tcp_mem = three(),
            "net.ipv4.tcp_rmem" => host.tcp_rmem = three(),
            "net.ipv4.tcp_wmem" => host.tcp_wmem = three(),
            _ => panic!("{command}"),
        }
        names.push(name.to_owned());
    }
    names
}

/// Follows the advice about memory, one piece after another, as long as one is a command. Nothing may be set twice: one
/// piece of advice would then undo another.
fn follow_all(facts: &mut Facts, goal: &Goal) {
    let mut set = BTreeSet::new();
    while let Some(finding) = about_memory(facts, goal).into_iter().find(|finding| finding.set.starts_with("sysctl")) {
        for name in follow(&mut facts.host, &finding.set) {
            assert!(set.insert(name), "{finding:?} after {set:?}");
        }
    }
}

#[test]
fn following_the_advice_of_a_rule_about_a_number_ends_its_finding() {
    let slow = Goal { bandwidth: GBIT, streams: 1, rtt: Duration::from_millis(80) };
    for (goal, wanted) in [(slow, 20_000_000), (goal(), 2_000_000_000)] {
        let mut facts = tuned();
        facts.host.tcp_rmem = known([4096, 131_072, wanted - 1]);
        assert_eq!(rules_of(&examine(&facts, &goal)), ["host.rcv-buffer"]);
        facts.host.tcp_rmem = known([4096, 131_072, wanted]);
        assert_eq!(rules_of(&examine(&facts, &goal)), Vec::<&str>::new());
    }
    let mut facts = tuned();
    facts.host.tcp_mem = known([524_287, 786_431, 1_048_575]);
    facts.host.min_free_kbytes = known(122_071);
    facts.host.netdev_max_backlog = known(250_000);
    assert_eq!(rules_of(&examine(&facts, &goal())), Vec::<&str>::new());
}

#[test]
fn a_small_slow_host_with_the_kernels_defaults_passes_a_short_path() {
    let mut facts = tuned();
    facts.host = HostFacts {
        memory_bytes: known(4 * GIB),
        swapped_bytes: known(0),
        numa_nodes: known(1),
        tcp_wmem: known([4096, 16_384, 4_194_304]),
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
    let goal = Goal { bandwidth: GBIT, streams: 1, rtt: Duration::from_millis(16) };
    assert_eq!(rules_of(&examine(&facts, &goal)), Vec::<&str>::new());
    let farther = Goal { rtt: Duration::from_millis(100), ..goal };
    assert_eq!(rules_of(&examine(&facts, &farther)), ["host.snd-buffer", "host.rcv-buffer", "host.rcv-buffer-fixed"]);
}

#[test]
fn advice_about_buffers_does_not_contradict_itself_where_memory_is_small() {
    let mut facts = small();
    let goal = Goal { streams: 10, rtt: Duration::from_millis(400), ..goal() };
    let diagnosis = examine(&facts, &goal);
    assert_eq!(rules_of(&diagnosis), MEMORY[..4]);
    let advice: Vec<_> = diagnosis.findings.iter().map(|finding| finding.set.as_str()).collect();
    // Ten buffers are an eighth of the memory, and TCP as a whole gets a quarter.
    let buffer = 16 * GIB / 8 / 10;
    assert_eq!(
        advice,
        [
            format!("sysctl -w net.ipv4.tcp_wmem=\"4096 16384 {buffer}\""),
            format!("sysctl -w net.ipv4.tcp_rmem=\"4096 131072 {buffer}\""),
            format!("sysctl -w net.core.rmem_max={}", buffer / 2),
            "sysctl -w net.ipv4.tcp_mem=\"524287 786431 1048575\"".into(),
        ]
    );
    // After that, the only finding left is that the goal is too high.
    follow_all(&mut facts, &goal);
    let diagnosis = examine(&facts, &goal);
    assert_eq!(rules_of(&diagnosis), ["host.tcp-mem-low"]);
    assert!(diagnosis.findings[0].set.starts_with("expect less than 100 Gbit/s: 16 GiB of memory"), "{diagnosis:?}");
    // Buffers that are larger than the goal needs.
    facts.host.tcp_rmem = known([4096, 131_072, 2_147_483_647]);
    facts.host.tcp_wmem = known([4096, 16_384, 2_147_483_647]);
    let near = Goal { rtt: Duration::from_millis(1), ..goal };
    let diagnosis = examine(&facts, &near);
    assert_eq!(rules_of(&diagnosis), ["host.tcp-mem-low"]);
    assert_eq!(
        diagnosis.findings[0].set,
        "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 2500000\" && sysctl -w net.ipv4.tcp_wmem=\"4096 16384 2500000\""
    );
    follow_all(&mut facts, &near);
    assert_eq!(rules_of(&examine(&facts, &near)), Vec::<&str>::new());
}

/// After the advice for a host where TCP may take too much, there is still enough for the largest permitted transfer.
#[test]
fn tcp_may_take_a_quarter_of_the_memory_and_a_transfer_half_of_that_as_in_the_runbooks() {
    let (mut facts, goal) = (small(), Goal { streams: 10, ..goal() });
    let buffer = 16 * GIB / 8 / 10;
    facts.host.tcp_rmem = known([4096, 131_072, buffer]);
    facts.host.tcp_wmem = known([4096, 16_384, buffer]);
    facts.host.rmem_max = known(buffer / 2);
    facts.host.tcp_mem = known([524_288, 786_432, 1_048_577]);
    let diagnosis = examine(&facts, &goal);
    assert_eq!(rules_of(&diagnosis), ["host.tcp-mem-high"]);
    assert_eq!(diagnosis.findings[0].set, "sysctl -w net.ipv4.tcp_mem=\"524288 786432 1048576\"");
    follow_all(&mut facts, &goal);
    assert_eq!(rules_of(&examine(&facts, &goal)), Vec::<&str>::new());
    for runbook in [
        include_str!("../../../../docs/runbooks/TcpmonTcpMemoryLimitAboveMemory.md"),
        include_str!("../../../../docs/runbooks/TcpmonTcpMemoryNearMax.md"),
        include_str!("../../../../docs/runbooks/TcpmonTcpMemoryPressure.md"),
    ] {
        assert!(runbook.contains("524288 786432 1048576") && runbook.contains("a quarter of the memory"), "{runbook}");
    }
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
    let text = render::text(&facts, &Goal { streams: 10, ..goal() }, &Diagnosis::default());
    assert!(
        text.contains("receive 100 Gbit/s in 10 streams at a round trip of 80ms (954 MiB in flight)? yes"),
        "{text}"
    );
}

/// The largest number of a setting of buffers, bytes.
fn size() -> impl Strategy<Value = u64> {
    (14u32..31).prop_map(|bits| 1u64 << bits)
}

proptest! {
    #[test]
    fn no_advice_undoes_another_and_full_buffers_fit_into_the_memory(
        memory in prop_oneof![GIB..4 * GIB, GIB..64 * GIB, GIB..512 * GIB],
        (gbit, streams, milliseconds) in (1..=400u64, 1..=100u64, 1..=400u64),
        (received, sent) in (size(), size()),
        percent in 1..=200u64,
    ) {
        let mut facts = small();
        let pages = memory / 100 * percent / facts.host.page_bytes;
        facts.host.memory_bytes = known(memory);
        facts.host.tcp_mem = known([pages / 2, pages / 3 * 2, pages]);
        facts.host.tcp_rmem = known([4096, 131_072, received]);
        facts.host.tcp_wmem = known([4096, 16_384, sent]);
        let goal = Goal { bandwidth: gbit * GBIT, streams, rtt: Duration::from_millis(milliseconds) };
        follow_all(&mut facts, &goal);
        let left = about_memory(&facts, &goal);
        prop_assert!(left.iter().all(|finding| finding.set.starts_with("expect less than ")), "{left:?}");
        let host = &facts.host;
        let three = |setting: &Fact<[u64; 3]>| *setting.get().expect("it is known");
        let buffers = three(&host.tcp_rmem)[2].max(three(&host.tcp_wmem)[2]) * streams;
        let [low, pressure, limit] = three(&host.tcp_mem).map(|pages| pages * host.page_bytes);
        prop_assert!(low < pressure && pressure < limit && limit <= memory / 4, "{host:?}");
        prop_assert!(buffers <= pressure, "{host:?}");
    }
}
