//! Groups when there are more than may be shown, and veths when there are more than get a name.

mod common;

use common::{DEADLINE, sender};
use tcpmon_tests::traffic::{Reader, Sender};
use tcpmon_tests::{Daemon, Lab, Namespace, Page, Traffic, device, eventually};

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
    eventually(DEADLINE, "all is read", || reader.report().bytes == bytes);
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
