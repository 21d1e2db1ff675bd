//! RPS: no connection is lost when one CPU hands packets to another.

mod common;

use std::time::Duration;

use common::{DEADLINE, has_two_cpus};
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
    // Both ends are in one namespace: what they send to each other goes over its loopback device.
    let end = lab.receiver();
    end.set_device_attribute("lo", "queues/rx-0/rps_cpus", "3");
    let daemon = Daemon::start(&[]);
    let hidden = truth::HiddenEnds::start();
    let handed_over = || truth::softnet().iter().map(|cpu| cpu.received_rps).sum::<u64>();
    let before = handed_over();
    let reader = Traffic::reader(end).comm("rps").connections(connections).spawn();
    let sender = Traffic::sender(end).comm("rps-sender").to(reader.address()).connections(connections).bytes(1_000);
    let sent = sender.spawn().wait_for(Duration::from_secs(120));
    let read = reader.wait_for(Duration::from_secs(60));
    assert_eq!((sent.bytes, sent.broken, read.bytes), (bytes, 0, bytes));
    assert!(handed_over() - before >= connections, "RPS hands packets over");
    // What is missing are the bytes of connections whose ends the kernel hid.
    let page = eventually(DEADLINE, "every byte is counted, or that it is not", || {
        let page = daemon.scrape();
        let names = ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"];
        let seen = names.map(|name| page.sum(name, &[("process", "rps")]));
        let unseen = page.value("tcpmon_lost_total", &[("what", "socket_end")]).unwrap_or(0.0);
        let alive = page.sum("tcpmon_sockets", &[("process", "rps")]);
        let losses: Vec<_> = page.samples("tcpmon_lost_total").into_iter().filter(|loss| loss.value > 0.0).collect();
        if alive == 0.0 && seen.iter().all(|seen| *seen <= bytes as f64 && *seen + unseen * 1_000.0 >= bytes as f64) {
            Ok(page)
        } else {
            Err(format!("{seen:?} of {bytes} and {alive} alive, lost {losses:?}"))
        }
    });
    let unseen = page.value("tcpmon_lost_total", &[("what", "socket_end")]).unwrap_or(0.0);
    hidden.explain(unseen as u64);
    // RPS interrupts a CPU while a program runs there, so the program may be skipped, which is counted.
    let losses = page.samples("tcpmon_lost_total").into_iter();
    let others = losses.filter(|loss| !loss.labels["what"].starts_with("recursion_")).map(|loss| loss.value);
    assert_eq!(others.sum::<f64>(), unseen, "{:?}", page.samples("tcpmon_lost_total"));
}
