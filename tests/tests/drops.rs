//! Drops: a real drop for lack of receive buffer appears under the kernel's own reason name, as a loss; probes do not.

mod common;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::{DEADLINE, group, is_attached};
use socket2::{SockRef, TcpKeepalive};
use tcpmon_tests::{Daemon, Lab, LabOptions, eventually, free_port, truth};

#[test]
fn a_segment_that_finds_the_receive_buffer_full_is_dropped_as_proto_mem() {
    let lab = Lab::with(LabOptions { napi: true, ..LabOptions::default() });
    let daemon = Daemon::start(&[]);
    if !is_attached(&daemon, "kfree_skb") {
        return;
    }
    let listener = lab.receiver().run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, free_port().unwrap())).unwrap());
    let port = listener.local_addr().unwrap().port();
    let to = SocketAddr::from((lab.receiver().v4, port));
    let mut sender = lab.sender().run(|| TcpStream::connect(to).unwrap());
    let (reader, _) = listener.accept().unwrap();
    // Nobody reads. The advertised window is that of a large buffer. Then the buffer shrinks, and small segments, which
    // take many times their payload in memory, find it full although the window is open.
    SockRef::from(&reader).set_recv_buffer_size(4096).unwrap();
    sender.set_nodelay(true).unwrap();
    sender.set_nonblocking(true).unwrap();
    let drops = |name: &str| truth::tcp_counters(lab.receiver())[name];
    eventually(DEADLINE, "the kernel drops a segment because the buffer is full", || {
        // Fails with WouldBlock once the send queue is full. That does not matter, because the kernel retransmits.
        let _ = sender.write(&[0; 200]);
        let dropped = drops("TCPRcvQDrop");
        if dropped > 0 { Ok(()) } else { Err(dropped.to_string()) }
    });
    let process = std::fs::read_to_string("/proc/self/comm").unwrap();
    let [process, service] = group(process.trim(), port);
    let seen = || {
        let before = drops("TCPRcvQDrop");
        let page = daemon.scrape();
        let labels = [process, service, ("reason", "proto_mem"), ("effect", "lost")];
        let seen = page.value("tcpmon_receive_drops_total", &labels);
        (before, seen.unwrap_or_default(), drops("TCPRcvQDrop"))
    };
    let (before, seen, after) = seen();
    assert!(before as f64 <= seen && seen <= after as f64, "tcpmon {seen}, the kernel {before} .. {after}");
}

#[test]
fn keepalive_and_window_probes_are_harmless_drops() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    if !is_attached(&daemon, "kfree_skb") {
        return;
    }
    let listener = lab.receiver().run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, free_port().unwrap())).unwrap());
    SockRef::from(&listener).set_recv_buffer_size(65_536).unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = SocketAddr::from((lab.receiver().v4, port));
    let mut sender = lab.sender().run(|| TcpStream::connect(to).unwrap());
    let (_reader, _) = listener.accept().unwrap();
    let second = Duration::from_secs(1);
    SockRef::from(&sender).set_tcp_keepalive(&TcpKeepalive::new().with_time(second).with_interval(second)).unwrap();
    let probes = |name: &str| truth::tcp_counters(lab.sender())[name];
    let two = |name| move || if probes(name) >= 2 { Ok(()) } else { Err(probes(name).to_string()) };
    eventually(DEADLINE, "keepalive probes", two("TCPKeepAlive"));
    // Nobody reads: the window closes, and the sender probes from time to time whether it has opened.
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 4096]).is_ok() {}
    eventually(DEADLINE, "window probes", two("TCPWinProbe"));
    let process = std::fs::read_to_string("/proc/self/comm").unwrap();
    let [process, service] = group(process.trim(), port);
    // The last segment before the window closed may have arrived twice (a tail loss probe); the receiver has reported
    // that to the sender.
    let twice = || truth::tcp_counters(lab.receiver())["TCPDSACKOldSent"];
    let sent = || probes("TCPKeepAlive") + probes("TCPWinProbe") + twice();
    let page = eventually(DEADLINE, "each probe is a harmless drop", || {
        let before = sent();
        let page = daemon.scrape();
        let harmless = page.sum("tcpmon_receive_drops_total", &[process, service, ("effect", "harmless")]);
        let after = sent();
        let all = before as f64 <= harmless && harmless <= after as f64;
        if all { Ok(page) } else { Err(format!("tcpmon {harmless}, the sender {before} .. {after}")) }
    });
    let lost = page.sum("tcpmon_receive_drops_total", &[process, service, ("effect", "lost")]);
    assert_eq!(lost, 0.0, "{:?}", page.samples("tcpmon_receive_drops_total"));
}
