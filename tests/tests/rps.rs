//! RPS: packets that one CPU hands to another lose no connection.

mod common;

use std::time::Duration;

use common::{DEADLINE, has_two_cpus, lost};
use tcpmon_tests::{Daemon, Lab, Traffic, eventually, many, truth};

#[test]
fn every_byte_is_counted_when_packets_change_their_cpu() {
    if !has_two_cpus() {
        return;
    }
    let connections = many(8_000);
    let bytes = connections * 1_000;
    let lab = Lab::new();
    lab.allow_many_connections();
    // Both ends in one namespace: what they send each other goes over its loopback device.
    let end = lab.receiver();
    end.set_device_attribute("lo", "queues/rx-0/rps_cpus", "3");
    let daemon = Daemon::start(&[]);
    let handed_over = || truth::softnet().iter().map(|cpu| cpu.received_rps).sum::<u64>();
    let before = handed_over();
    let reader = Traffic::reader(end).comm("rps").connections(connections).spawn();
    let sender = Traffic::sender(end).comm("rps-sender").to(reader.address()).connections(connections).bytes(1_000);
    let sent = sender.spawn().wait_for(Duration::from_secs(120));
    let read = reader.wait_for(Duration::from_secs(60));
    assert_eq!((sent.bytes, sent.broken, read.bytes), (bytes, 0, bytes));
    assert!(handed_over() - before >= connections, "RPS hands packets over");
    let page = eventually(DEADLINE, "every byte is counted", || {
        let page = daemon.scrape();
        let names = ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"];
        let seen = names.map(|name| page.sum(name, &[("process", "rps")]));
        let losses: Vec<_> = page.samples("tcpmon_lost_total").into_iter().filter(|loss| loss.value > 0.0).collect();
        if seen == [bytes as f64; 2] { Ok(page) } else { Err(format!("{seen:?} of {bytes}, lost {losses:?}")) }
    });
    // A connection whose begin no program saw is counted from its first byte at the first event that one does see.
    let late = page.value("tcpmon_lost_total", &[("what", "socket_begin_late")]).unwrap_or(0.0);
    assert_eq!(lost(&page) - late, 0.0, "{:?}", page.samples("tcpmon_lost_total"));
}
