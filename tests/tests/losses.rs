//! Losses: with a ring that is far too small, lost records are counted and the counters still equal the truth.

mod common;

use std::net::TcpListener;

use common::{DEADLINE, sender};
use tcpmon_tests::{Daemon, Lab, Traffic, equal, eventually, many, truth};

/// Bytes received and read of this process.
fn bytes_of(daemon: &Daemon, process: &str) -> [f64; 2] {
    let page = daemon.scrape();
    ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"]
        .map(|name| page.sum(name, &[("process", process)]))
}

fn lost(daemon: &Daemon, what: &str) -> f64 {
    daemon.scrape().value("tcpmon_lost_total", &[("what", what)]).expect("every kind is on the page")
}

#[test]
fn a_ring_that_is_far_too_small_loses_no_connection() {
    let lab = Lab::new();
    lab.allow_many_connections();
    let page = truth::page_bytes();
    let daemon = Daemon::start(&["--ring-bytes", &page.to_string()]);
    // Each sends a record that takes 32 bytes, and nobody takes any out of the ring.
    let listen = |_| lab.sender().run(|| TcpListener::bind((lab.sender().v4, 0))).expect("a free port");
    let listeners: Vec<_> = daemon.stopped_while(|| (0..page / 24).map(listen).collect());
    assert!(lost(&daemon, "listener_record") > 0.0, "{} listeners fit into the ring", listeners.len());
    let connections = many(10_000);
    let bytes = connections * 1_001;
    let reader = Traffic::reader(lab.receiver()).comm("lost").connections(connections).spawn();
    let sender = sender(&lab, &reader).comm("lost-sender").connections(connections).parallel(2).bytes(1_001);
    assert_eq!((sender.spawn().wait().bytes, reader.wait().bytes), (bytes, bytes));
    let expected = [bytes as f64; 2];
    eventually(DEADLINE, "every byte is counted once", || {
        let seen = bytes_of(&daemon, "lost");
        if seen == expected { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    assert_eq!((lost(&daemon, "socket_state"), lost(&daemon, "socket_table")), (0.0, 0.0));
}

#[test]
fn sockets_without_a_state_are_counted_as_lost() {
    let lab = Lab::new();
    lab.allow_many_connections();
    // A daemon that is stopped reclaims no states.
    let daemon = Daemon::start(&["--max-sockets", "1024"]);
    // Sent and read in many pieces, so that the connections have further events.
    let (connections, bytes) = (700, 20_000);
    let total = (connections * bytes) as f64;
    let reader = Traffic::reader(lab.receiver())
        .comm("crowded")
        .threads(tcpmon_tests::traffic::Threads::Epoll)
        .connections(connections)
        .spawn();
    let sender = daemon.stopped_while(|| {
        let sender = sender(&lab, &reader).flows(connections).bytes(bytes).hold_open().spawn();
        eventually(DEADLINE, "all is read", || equal(reader.report().bytes, connections * bytes));
        sender
    });
    let without = lost(&daemon, "socket_state");
    assert!(without > 0.0, "{connections} connections: {without} without a state");
    let seen = bytes_of(&daemon, "crowded");
    assert!(seen.iter().all(|seen| *seen > 0.0 && *seen < total), "{seen:?} of {total}");
    sender.finish();
    reader.wait();
}

#[test]
fn a_socket_that_gets_its_state_late_is_counted_from_its_first_byte() {
    let lab = Lab::new();
    lab.allow_many_connections();
    let daemon = Daemon::start(&["--max-sockets", "1024"]);
    let (connections, bytes) = (600, 1_000);
    let reader = || Traffic::reader(lab.receiver()).threads(tcpmon_tests::traffic::Threads::Epoll).until_exit();
    let first = reader().comm("first").spawn();
    // Each end of a connection takes a state, so none is left.
    let holders = sender(&lab, &first).flows(connections).bytes(bytes).hold_open().spawn();
    eventually(DEADLINE, "there are more sockets than states", || {
        first.report().bytes == connections * bytes && lost(&daemon, "socket_state") > 0.0
    });
    let late = reader().comm("late").spawn();
    let sender = sender(&lab, &late).paused().spawn();
    assert_eq!(sender.send(5_000), 5_000);
    eventually(DEADLINE, "all is read", || equal(late.report().bytes, 5_000));
    assert_eq!(bytes_of(&daemon, "late"), [0.0; 2]);
    holders.finish();
    eventually(DEADLINE, "states are free", || {
        daemon.scrape().value("tcpmon_map_entries", &[("map", "sockets")]).is_some_and(|in_use| in_use < 100.0)
    });
    let found_late = || daemon.scrape().value("tcpmon_sockets_found_late_total", &[]).expect("it is on each page");
    let before = found_late();
    assert_eq!(sender.send(70), 70);
    eventually(DEADLINE, "all bytes are counted", || {
        let seen = bytes_of(&daemon, "late");
        if seen == [5_070.0; 2] { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    // At both ends, or at the one that received.
    assert!(found_late() > before, "{before}");
    sender.finish();
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
    eventually(DEADLINE, "all is read", || equal(reader.report().bytes, 1_600_000));
    let page = daemon.scrape();
    let lost = page.value("tcpmon_lost_total", &[("what", "reader_slot")]).unwrap();
    assert!(lost >= 6.0, "{lost}");
    for name in ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"] {
        assert_eq!(page.sum(name, &[("process", "crowd")]), 1_600_000.0, "{name}");
    }
    sender.finish();
    reader.wait();
}
