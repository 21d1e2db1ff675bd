//! Tests of real driver statistics (`captured/ethtool/`, as `ethtool -S` prints them), of the totals, and of this host.

use std::collections::BTreeSet;
use std::fs;

use proptest::prelude::*;

use super::*;

/// A driver, its captured statistics, the lines that count, and the overruns that result.
struct Golden {
    driver: &'static str,
    captured: &'static str,
    lines: &'static [&'static str],
    overruns: &'static [(&'static str, u64)],
}

macro_rules! captured {
    ($name:literal) => {
        include_str!(concat!("../captured/ethtool/", $name, ".txt"))
    };
}

const MISSED: &str = "link rx_missed_errors";
const FIFO: &str = "link rx_fifo_errors";
const OVER: &str = "link rx_over_errors";

#[rustfmt::skip]
const GOLDEN: [Golden; 20] = [
    Golden { driver: "8139cp", captured: captured!("8139cp"), lines: &[MISSED], overruns: &[("rx_missed_errors", 0)] },
    Golden {
        driver: "bnxt_en",
        captured: captured!("bnxt_en"),
        lines: &[MISSED],
        overruns: &[("rx_missed_errors", 0)],
    },
    Golden { driver: "e1000", captured: captured!("e1000"), lines: &[MISSED], overruns: &[("rx_missed_errors", 0)] },
    Golden { driver: "e1000e", captured: captured!("e1000e"), lines: &[MISSED], overruns: &[("rx_missed_errors", 0)] },
    Golden { driver: "ena", captured: captured!("ena"), lines: &["link rx_dropped"], overruns: &[("rx_dropped", 0)] },
    Golden {
        driver: "gve", captured: captured!("gve"),
        lines: &["rx_no_buffers_posted[0]", "rx_no_buffers_posted[1]"],
        overruns: &[("rx_no_buffers_posted", 0)],
    },
    Golden {
        driver: "i40e", captured: captured!("i40e"),
        lines: &["rx_dropped", "port.rx_dropped"],
        overruns: &[("rx_dropped", 3_322), ("port.rx_dropped", 0)],
    },
    Golden {
        driver: "i40e", captured: captured!("i40e-renamed"),
        lines: &["rx_missed_errors", "port.rx_discards"],
        overruns: &[("rx_missed_errors", 0), ("port.rx_discards", 0)],
    },
    Golden {
        driver: "ice", captured: captured!("ice"),
        lines: &["rx_dropped", "rx_dropped.nic"],
        overruns: &[("rx_dropped", 7_206_525), ("rx_dropped.nic", 158_225)],
    },
    Golden { driver: "igb", captured: captured!("igb"), lines: &[FIFO], overruns: &[("rx_fifo_errors", 0)] },
    Golden {
        driver: "ixgbe", captured: captured!("ixgbe"),
        lines: &["rx_no_dma_resources", MISSED],
        overruns: &[("rx_missed_errors", 2_538), ("rx_no_dma_resources", 590_843_871)],
    },
    Golden {
        driver: "mlx5_core", captured: captured!("mlx5_core"),
        lines: &["rx_discards_phy", MISSED],
        overruns: &[("rx_missed_errors", 990_473_555), ("rx_discards_phy", 58_591_428_329)],
    },
    Golden { driver: "tg3", captured: captured!("tg3"), lines: &[MISSED], overruns: &[("rx_missed_errors", 14)] },
    Golden { driver: "veth", captured: captured!("veth"), lines: &["link tx_dropped"], overruns: &[("tx_dropped", 0)] },
    Golden { driver: "virtio_net", captured: captured!("virtio_net"), lines: &[], overruns: &[] },
    Golden {
        driver: "vmxnet3", captured: captured!("vmxnet3"),
        lines: &["pkts rx OOB", "pkts rx OOB"],
        overruns: &[("pkts rx OOB", 0)],
    },
    // Drivers without statistics that matter, or without any.
    Golden { driver: "hv_netvsc", captured: "", lines: &[], overruns: &[] },
    Golden { driver: "mlx4_en", captured: "", lines: &[FIFO], overruns: &[("rx_fifo_errors", 0)] },
    Golden { driver: "pcnet32", captured: "", lines: &[MISSED], overruns: &[("rx_missed_errors", 0)] },
    Golden {
        driver: "a driver of next year", captured: captured!("igb"),
        lines: &[MISSED, FIFO, OVER],
        overruns: &[("rx_missed_errors", 0), ("rx_fifo_errors", 0), ("rx_over_errors", 0)],
    },
];

type Field = fn(&mut LinkStats) -> &mut u64;

/// Counters of rtnetlink: those that matter for some driver, and others that look as if they did.
const LINK: [(&str, Field); 10] = [
    ("link rx_missed_errors", |link| &mut link.rx_missed_errors),
    ("link rx_fifo_errors", |link| &mut link.rx_fifo_errors),
    ("link rx_over_errors", |link| &mut link.rx_over_errors),
    ("link rx_dropped", |link| &mut link.rx_dropped),
    ("link tx_dropped", |link| &mut link.tx_dropped),
    ("link rx_errors", |link| &mut link.rx_errors),
    ("link rx_crc_errors", |link| &mut link.rx_crc_errors),
    ("link rx_length_errors", |link| &mut link.rx_length_errors),
    ("link rx_frame_errors", |link| &mut link.rx_frame_errors),
    ("link collisions", |link| &mut link.collisions),
];

/// Names and values of a file; the names are indented as by the driver.
fn parse(captured: &str) -> (Vec<String>, Vec<u64>, LinkStats) {
    let (mut names, mut values, mut link) = (Vec::new(), Vec::new(), LinkStats::default());
    for line in captured.lines().skip(1) {
        let (name, value) = line.rsplit_once(": ").expect("name: value");
        let value = value.parse().expect("a number");
        match LINK.iter().find(|(field, _)| *field == name) {
            Some((_, field)) => *field(&mut link) = value,
            None => {
                names.push(name.strip_prefix("     ").expect("the indent of ethtool -S").to_owned());
                values.push(value);
            }
        }
    }
    (names, values, link)
}

fn exported(driver: &str, names: &[String], values: &[u64], link: &LinkStats) -> Vec<(&'static str, u64)> {
    let statistics = StatisticPositions::new(driver, names).sums(values);
    overruns(driver, Some(link), &statistics).iter().map(|overrun| (overrun.counter, overrun.value)).collect()
}

#[test]
fn overruns_of_each_driver_match_its_captured_statistics() {
    for golden in &GOLDEN {
        let (names, values, link) = parse(golden.captured);
        assert_eq!(exported(golden.driver, &names, &values, &link), golden.overruns, "{}", golden.driver);
    }
}

#[test]
fn only_statistics_of_a_full_ring_are_counted() {
    for golden in &GOLDEN {
        let (names, values, _) = parse(golden.captured);
        let counts = |values: &[u64], link: &LinkStats| {
            let sum: u64 = exported(golden.driver, &names, values, link).iter().map(|(_, value)| value).sum();
            assert!(sum <= 1, "{}: one packet counts twice", golden.driver);
            sum == 1
        };
        let mut counted = Vec::new();
        for (place, name) in names.iter().enumerate() {
            let mut only = vec![0; values.len()];
            only[place] = 1;
            if counts(&only, &LinkStats::default()) {
                counted.push(name.trim());
            }
        }
        for (name, field) in LINK {
            let mut only = LinkStats::default();
            *field(&mut only) = 1;
            if counts(&vec![0; values.len()], &only) {
                counted.push(name);
            }
        }
        assert_eq!(counted, golden.lines, "{}", golden.driver);
    }
}

#[test]
fn queues_are_summed_with_and_without_numbers() {
    let names = ["rx_no_buffers_posted[0]", "rx_no_buffers_posted[11]", "rx_bytes[0]"].map(str::to_owned);
    assert_eq!(exported("gve", &names, &[3, 4, 100], &LinkStats::default()), [("rx_no_buffers_posted", 7)]);
    let names = ["  pkts rx OOB", "  pkts rx err", "  pkts rx OOB"].map(str::to_owned);
    assert_eq!(exported("vmxnet3", &names, &[683_179, 100, 1], &LinkStats::default()), [("pkts rx OOB", 683_180)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_statistics_cause_a_panic_or_a_duplicate_counter(
        driver in prop::sample::select(GOLDEN.map(|golden| golden.driver).to_vec()),
        names in prop::collection::vec("(rx|tx|pkts rx| *)?(_no_buffers_posted|_dropped|\x20OOB|\
             _discards_phy|\\PC*)(\\[[0-9]*\\])?", 0..40),
        values in prop::collection::vec(any::<u64>(), 0..40),
    ) {
        let exported = exported(driver, &names, &values, &LinkStats::default());
        let counters: BTreeSet<_> = exported.iter().map(|(counter, _)| counter).collect();
        prop_assert_eq!(counters.len(), exported.len());
        prop_assert!(exported.len() <= 3);
    }
}

/// A device of this driver with this many `rx_missed_errors`.
fn device(index: u32, name: &str, driver: &str, missed: u64) -> (Link, DriverReport) {
    let counters = Some(LinkStats { rx_missed_errors: missed, ..LinkStats::default() });
    let link = Link { index, name: name.to_owned(), is_on_a_bus: true, counters, ..Link::default() };
    (link, DriverReport { driver: driver.to_owned(), ..DriverReport::default() })
}

fn missed(devices: &[Device]) -> Vec<(&str, u64)> {
    let of = |device: &Device| device.overruns.iter().find(|(counter, _)| counter == "rx_missed_errors").map(|of| of.1);
    devices.iter().map(|device| (device.name.as_str(), of(device).expect("rx_missed_errors"))).collect()
}

#[test]
fn totals_only_grow_and_follow_a_16_bit_register() {
    let mut devices = Devices::default();
    let mut at = |e1000, pcnet32| {
        let now = devices.add(&[device(2, "eth0", "e1000", e1000), device(3, "eth1", "pcnet32", pcnet32)]);
        missed(&now).iter().map(|(_, total)| *total).collect::<Vec<_>>()
    };
    assert_eq!(at(10, 36_588), [10, 36_588]);
    assert_eq!(at(7, 27_727), [10, 65_536 + 27_727]);
    assert_eq!(at(9, 40_761), [12, 65_536 + 40_761]);
}

#[test]
fn a_counter_that_is_missing_once_goes_on_from_where_it_was() {
    let mut devices = Devices::default();
    assert_eq!(missed(&devices.add(&[device(2, "eth0", "pcnet32", 65_535)])), [("eth0", 65_535)]);
    assert_eq!(missed(&devices.add(&[device(2, "eth0", "pcnet32", 4)])), [("eth0", 65_540)]);
    let (link, answers) = device(2, "eth0", "pcnet32", 0);
    let unreadable = devices.add(&[(Link { counters: None, ..link }, answers)]);
    assert_eq!(unreadable.iter().map(|device| device.overruns.len()).collect::<Vec<_>>(), [0]);
    assert_eq!(missed(&devices.add(&[device(2, "eth0", "pcnet32", 6)])), [("eth0", 65_542)]);
}

#[test]
fn a_renamed_or_recreated_device_starts_with_the_value_of_the_kernel() {
    let mut devices = Devices::default();
    assert_eq!(missed(&devices.add(&[device(2, "eth0", "e1000", 10)])), [("eth0", 10)]);
    assert_eq!(missed(&devices.add(&[device(2, "wan0", "e1000", 11)])), [("wan0", 11)]);
    assert_eq!(missed(&devices.add(&[device(5, "wan0", "e1000", 1)])), [("wan0", 1)]);
    assert_eq!(devices.add(&[]), []);
    assert_eq!(missed(&devices.add(&[device(5, "wan0", "e1000", 0)])), [("wan0", 0)]);
}

#[test]
fn devices_with_a_receive_ring_are_on_a_bus_or_are_veth() {
    let link = |is_on_a_bus, is_veth| Link { is_on_a_bus, is_veth, ..Link::default() };
    assert!(has_ring(&link(true, false)) && has_ring(&link(false, true)) && !has_ring(&link(false, false)));
}

#[test]
fn a_driver_is_asked_by_the_name_that_the_system_has() {
    let (mut buffer, mut notes) = (Buffer::default(), Vec::new());
    let mut ethtool = Ethtool::open(&mut buffer).unwrap();
    let mut answers = |name: &str, system_name: &str| {
        let link = Link { name: name.to_owned(), system_name: system_name.into(), ..Link::default() };
        query_driver(&mut ethtool, &link, &mut HashMap::new(), &mut notes)
    };
    assert!(answers("not-a-device", "lo").is_some());
    assert_eq!(answers("lo", "not-a-device"), None);
    assert_eq!(notes, [""; 0]);
}

#[test]
fn a_read_error_is_noted_unless_the_device_was_removed() {
    let mut notes = Vec::new();
    let mut fails = |code| note(&mut notes, "eth0", "its ring", io::Error::from_raw_os_error(code), "it is missing");
    assert_eq!(fails(libc::ENODEV), None);
    assert_eq!(fails(libc::EPERM), Some(()));
    assert_eq!(notes, ["eth0: cannot read its ring: Operation not permitted (os error 1); it is missing"]);
}

/// Devices on a bus have a link to it below `/sys`.
#[test]
fn this_host_shows_its_devices_with_the_rings_of_those_that_have_one() {
    let mut devices = Devices::default();
    let sample = devices.read().unwrap();
    assert_eq!(sample.notes, [""; 0]);
    assert!(sample.devices.iter().all(|device| device.name != "lo"));
    let again = devices.read().unwrap().devices;

    let entries = fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().path());
    for path in entries.filter(|path| path.join("device").exists()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let find = |devices: &[Device]| devices.iter().find(|device| device.name == name).cloned();
        let (device, later) = (find(&sample.devices).expect(name), find(&again).expect(name));
        assert!(device.overruns.iter().zip(&later.overruns).all(|(then, now)| then.0 == now.0 && then.1 <= now.1));
        let driver = fs::read_link(path.join("device/driver")).unwrap();
        if driver.ends_with("virtio_net") {
            assert!(device.ring.is_some_and(|ring| (1..=ring.max_entries).contains(&ring.entries)), "{device:?}");
            assert_eq!(device.overruns, []);
        }
    }
}
