//! Groups: what happens when there are more than may be shown, and when they expire. veths: when there are more than
//! get a name.

mod common;

use common::{DEADLINE, sender};
use tcpmon_tests::prometheus::{PrometheusOptions, Version};
use tcpmon_tests::traffic::{Reader, Sender};
use tcpmon_tests::{Daemon, Lab, Namespace, Page, Prometheus, Traffic, device, equal, eventually};

const RECEIVED: &str = "tcpmon_receive_bytes_total";

/// The bytes that a metrics page shows for a process.
fn received(page: &Page, process: &str) -> Option<f64> {
    let shown = page.samples(RECEIVED).iter().any(|sample| sample.labels["process"] == process);
    shown.then(|| page.sum(RECEIVED, &[("process", process)]))
}

/// A process with this name that receives this many bytes and then keeps the connection to its sender open.
fn receiving(lab: &Lab, name: &str, bytes: u64) -> (Reader, Sender) {
    let reader = Traffic::reader(lab.receiver()).comm(name).spawn();
    let flow = sender(lab, &reader).bytes(bytes).hold_open().spawn();
    eventually(DEADLINE, "all is read", || equal(reader.report().bytes, bytes));
    (reader, flow)
}

#[test]
fn groups_beyond_the_limit_are_counted_and_keep_their_bytes() {
    let lab = Lab::new();
    // One place for `other`, and one for the first group: that of this test, which scrapes.
    let daemon = Daemon::start(&["--max-groups", "2"]);
    daemon.scrape();
    let (reader, flow) = receiving(&lab, "late", 12_345);
    eventually(DEADLINE, "its bytes are in the group `other`", || {
        let page = daemon.scrape();
        let (late, other) = (received(&page, "late"), received(&page, "other").unwrap_or_default());
        let suppressed = page.value("tcpmon_groups_suppressed_total", &[]).unwrap();
        let hidden = page.value("tcpmon_map_entries", &[("map", "groups_hidden")]).unwrap();
        if late.is_none() && other >= 12_345.0 && suppressed > 0.0 && hidden > 0.0 {
            Ok(())
        } else {
            Err(format!("late {late:?}, other {other}, suppressed {suppressed}, hidden {hidden}"))
        }
    });
    flow.finish();
    reader.wait();
}

#[test]
fn a_busy_reader_is_shown_although_many_names_came_first() {
    let lab = Lab::new();
    let daemon = Daemon::start(&["--max-groups", "8"]);
    for name in 0..12 {
        let (reader, flow) = receiving(&lab, &format!("early{name}"), 1_000);
        flow.finish();
        reader.wait();
    }
    let page = daemon.scrape();
    assert_eq!(page.samples(RECEIVED).len(), 8, "all places are taken: {:?}", page.samples(RECEIVED));
    let reader = Traffic::reader(lab.receiver()).comm("busy").spawn();
    let flow = sender(&lab, &reader).rate(10_000_000).spawn();
    eventually(DEADLINE, "it has a group of its own, whose bytes grow", || {
        let page = daemon.scrape();
        assert!(page.samples(RECEIVED).len() <= 8, "{:?}", page.samples(RECEIVED));
        received(&page, "busy").is_some_and(|bytes| bytes > 1_000_000.0)
    });
    flow.finish();
    reader.wait();
}

#[test]
fn a_pinned_reader_is_shown_from_its_first_byte_on_however_busy_others_are() {
    let lab = Lab::new();
    let daemon = Daemon::start(&["--max-groups", "4", "--pin", "pinned", "--pin", "another"]);
    let others: Vec<_> = (0..6).map(|name| receiving(&lab, &format!("busy{name}"), 1_000_000)).collect();
    assert_eq!(daemon.scrape().samples(RECEIVED).len(), 4);
    let (reader, flow) = receiving(&lab, "pinned", 1_000);
    for _ in 0..10 {
        let page = daemon.scrape();
        assert_eq!((received(&page, "pinned"), page.samples(RECEIVED).len()), (Some(1_000.0), 4));
    }
    for (reader, flow) in others.iter().chain([&(reader, flow)]) {
        flow.finish();
        reader.wait();
    }
}

#[test]
fn of_70_pairs_of_veths_64_devices_have_names_and_the_others_are_one() {
    const OVERRUNS: &str = "tcpmon_device_rx_overruns_total";
    let namespace = Namespace::new();
    device::add_veths(&namespace, "pod", 70);
    namespace.run(|| device::set_up("lo").expect("lo can be set up"));
    let daemon = Daemon::start_in(&namespace, &[]);
    let page = daemon.scrape();
    let named = page.samples(OVERRUNS).iter().filter(|sample| sample.labels["device"].starts_with("pod")).count();
    assert_eq!(named, 64);
    assert_eq!(page.value(OVERRUNS, &[("device", "veth*")]), Some(0.0));
}

/// Makes a reader with this name receive this many bytes over a connection of its own, and end.
fn receive(lab: &Lab, comm: &str, bytes: u64) {
    let reader = Traffic::reader(lab.receiver()).comm(comm).port(7200).spawn();
    sender(lab, &reader).bytes(bytes).spawn().wait();
    assert_eq!(reader.wait().bytes, bytes);
}

/// The increase of a counter; after a reset it counts from zero. As in `increase()`, the first value does not count.
fn rise(values: &[f64]) -> f64 {
    values.windows(2).map(|pair| if pair[1] < pair[0] { pair[1] } else { pair[1] - pair[0] }).sum()
}

#[test]
fn the_sum_of_increases_is_what_was_received_over_births_ends_and_returns() {
    const COUNTED: &str = "tcpmon_receive_bytes_total{process=~\"born.*|again|other\"}";
    // `other` takes what expires on the whole host, so nothing else may receive meanwhile.
    let lab = Lab::new();
    let daemon = Daemon::start(&["--group-ttl", "12s"]);
    let host = Namespace::current();
    let start = |version, created_timestamps| {
        let options = PrometheusOptions { version, created_timestamps, ..PrometheusOptions::default() };
        Prometheus::start(&host, &daemon, options)
    };
    let servers = [
        ("installed", start(Version::Installed, false)),
        ("today's", start(Version::Newest, false)),
        ("today's with created timestamps", start(Version::Newest, true)),
    ];
    for (name, server) in &servers {
        eventually(DEADLINE, &format!("{name} is a regular scraper"), || {
            let scrapes = server.value("count_over_time(up[1m])")?;
            if scrapes >= 3.0 { Ok(()) } else { Err(format!("{scrapes} scrapes")) }
        });
    }
    // The server that scrapes last may be a second behind.
    let there = || servers[2].1.value("sum(tcpmon_receive_bytes_total{process=~\"born.*|again\"})");
    let mut truth = 0;
    for (round, bytes) in [(1, 3_000_000), (2, 50_000_000)] {
        // The traffic is over before any scraper has seen the group, so all of it is in the group's first values. The
        // second time it is more than what was shown last, so that it does not look like a reset to zero.
        for comm in [format!("born{round}"), "again".to_owned()] {
            receive(&lab, &comm, bytes);
            truth += bytes;
        }
        eventually(DEADLINE, "the groups are shown truly", || there().is_ok_and(|sum| sum == 2.0 * bytes as f64));
        eventually(2 * DEADLINE, "the groups have left", || there().is_err());
    }
    for (name, server) in &servers {
        let exact = eventually(DEADLINE, &format!("{name} has all that was received"), || {
            let rises: f64 = server.values(&format!("{COUNTED}[10m]"))?.iter().map(|values| rise(values)).sum();
            if rises >= truth as f64 { Ok(rises) } else { Err(format!("{rises} of {truth}")) }
        });
        assert_eq!(exact, truth as f64, "{name}");
        // Prometheus assumes that a series that has ended went on for half an interval more, beyond the 12 that it
        // existed for.
        eventually(DEADLINE, &format!("the sum of {name} increases is the truth"), || {
            let ratio = server.value(&format!("sum(increase({COUNTED}[10m])) / {truth}"))?;
            if (1.0..1.06).contains(&ratio) { Ok(()) } else { Err(format!("{ratio} times the truth")) }
        });
        let series = server.value("count(count by (__name__) ({__name__=~\"tcpmon_.*_created\"})) or vector(0)");
        assert_eq!(series, Ok(0.0), "{name}");
    }
}
