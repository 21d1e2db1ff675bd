//! Churn: after 100,000 connections, map entries, groups and memory are where they were.

mod common;

use std::time::Duration;

use common::sender;
use tcpmon_tests::traffic::Threads;
use tcpmon_tests::{Daemon, Lab, Traffic, eventually, truth};

const CONNECTIONS: u64 = 100_000;

#[test]
fn a_hundred_thousand_connections_leave_nothing_behind() {
    let lab = Lab::new();
    lab.allow_many_connections();
    let daemon = Daemon::start(&[]);
    let churn = |connections: u64| {
        let reader = Traffic::reader(lab.receiver())
            .comm("churn")
            .port(7100)
            .ports(4)
            .threads(Threads::Epoll)
            .connections(connections)
            .spawn();
        let sender = sender(&lab, &reader).ports(4).connections(connections).parallel(8).bytes(100).reset();
        let sent = sender.spawn().wait_for(Duration::from_secs(120));
        assert_eq!(sent.connections, connections);
        reader.wait_for(Duration::from_secs(60));
    };
    daemon.scrape();
    let readers = daemon.scrape().value("tcpmon_map_entries", &[("map", "readers")]).unwrap();
    let rest = || {
        eventually(common::DEADLINE, "the sockets and readers have gone", || {
            let page = daemon.scrape();
            let entries = |map| page.value("tcpmon_map_entries", &[("map", map)]).unwrap();
            let churning = page.sum("tcpmon_sockets", &[("process", "churn")]);
            if churning == 0.0 && entries("readers") <= readers && entries("drops") == 0.0 {
                Ok(())
            } else {
                Err(format!("{churning} sockets, {} readers, {} drops", entries("readers"), entries("drops")))
            }
        });
        let page = daemon.scrape();
        let groups = page.value("tcpmon_map_entries", &[("map", "groups")]).unwrap();
        (groups, truth::rss_bytes(daemon.pid()))
    };
    // The first thousands bring buffers and groups to their size.
    churn(5_000);
    let before = rest();
    churn(CONNECTIONS);
    let after = rest();
    assert_eq!(after.0, before.0, "groups");
    assert!(after.1 as f64 <= before.1 as f64 * 1.1, "RSS {} before, {} after", before.1, after.1);
    let page = daemon.scrape();
    assert_eq!(page.sum("tcpmon_lost_total", &[]), 0.0, "{:?}", page.samples("tcpmon_lost_total"));
    let groups = page.samples("tcpmon_receive_bytes_total");
    assert_eq!(
        page.sum("tcpmon_receive_bytes_total", &[("process", "churn")]),
        (CONNECTIONS + 5_000) as f64 * 100.0,
        "{groups:?}"
    );
}
