//! Losses: with a ring that is far too small, lost records are counted and the counters still equal the truth.

mod common;

use common::{DEADLINE, sender};
use tcpmon_tests::{Daemon, Lab, Traffic, eventually, many};

#[test]
fn lost_records_are_counted_and_the_sums_still_hold() {
    let lab = Lab::new();
    lab.allow_many_connections();
    // One page holds seven final records of sockets. The daemon is stopped, so nothing empties the ring.
    let daemon = Daemon::start(&["--ring-bytes", "4096"]);
    let connections = many(10_000);
    let bytes = connections * 1_001;
    daemon.stopped_while(|| {
        let reader = Traffic::reader(lab.receiver()).comm("lost").connections(connections).spawn();
        let sender = sender(&lab, &reader).comm("lost-sender").connections(connections).parallel(2).bytes(1_001);
        assert_eq!((sender.spawn().wait().bytes, reader.wait().bytes), (bytes, bytes));
    });
    let lost = |what| daemon.scrape().value("tcpmon_lost_total", &[("what", what)]).unwrap();
    assert!(lost("final_record") > 100.0, "{} lost", lost("final_record"));
    // A lost record names no group, so what the group lacks is in `other`. The connections of the scrapes have groups
    // of their own: they come before and after the storm, when nothing is lost.
    let seen = |name: &str| -> f64 {
        let page = daemon.scrape();
        ["lost", "other"].map(|process| page.sum(name, &[("process", process)])).iter().sum()
    };
    for name in ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"] {
        eventually(DEADLINE, "every byte is counted once", || {
            let seen = seen(name);
            if seen == bytes as f64 { Ok(()) } else { Err(format!("{name} {seen}")) }
        });
    }
}

#[test]
fn a_reader_without_a_slot_is_counted_as_lost_and_its_bytes_are_not() {
    let lab = Lab::new();
    let daemon = Daemon::start(&["--max-readers", "2"]);
    let reader = Traffic::reader(lab.receiver())
        .comm("crowd")
        .threads(tcpmon_tests::traffic::Threads::PerFlow)
        .connections(8)
        .spawn();
    let sender = sender(&lab, &reader).flows(8).bytes(200_000).hold_open().spawn();
    eventually(DEADLINE, "all is read", || reader.report().bytes == 1_600_000);
    let page = daemon.scrape();
    let lost = page.value("tcpmon_lost_total", &[("what", "reader_slot")]).unwrap();
    assert!(lost >= 6.0, "{lost}");
    for name in ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"] {
        assert_eq!(page.sum(name, &[("process", "crowd")]), 1_600_000.0, "{name}");
    }
    sender.finish();
    reader.wait();
}
