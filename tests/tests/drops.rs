//! Drops: a real drop of the receive buffer appears under the kernel's own reason name.

mod common;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use common::{DEADLINE, group, is_attached};
use socket2::SockRef;
use tcpmon_tests::{Daemon, Lab, LabOptions, eventually, truth};

#[test]
fn a_segment_that_finds_the_receive_buffer_full_is_dropped_as_proto_mem() {
    let lab = Lab::with(LabOptions { napi: true, ..LabOptions::default() });
    let daemon = Daemon::start(&[]);
    if !is_attached(&daemon, "kfree_skb") {
        return;
    }
    let listener = lab.receiver().run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    let to = SocketAddr::from((lab.receiver().v4, port));
    let mut sender = lab.sender().run(|| TcpStream::connect(to).unwrap());
    let (reader, _) = listener.accept().unwrap();
    // Nobody reads. The window was promised for a large buffer; then the buffer shrinks, and small segments, whose
    // memory is many times their payload, find it full although the window is open.
    SockRef::from(&reader).set_recv_buffer_size(4096).unwrap();
    sender.set_nodelay(true).unwrap();
    sender.set_nonblocking(true).unwrap();
    let drops = |name: &str| truth::tcp_counters(lab.receiver())[name];
    eventually(DEADLINE, "the kernel drops a segment for want of buffer", || {
        // Fails with WouldBlock once the send queue is full, which does not matter: it retransmits.
        let _ = sender.write(&[0; 200]);
        let dropped = drops("TCPRcvQDrop");
        if dropped > 0 { Ok(()) } else { Err(dropped.to_string()) }
    });
    let process = std::fs::read_to_string("/proc/self/comm").unwrap();
    let [process, service] = group(process.trim(), port);
    let seen = || {
        let before = drops("TCPRcvQDrop");
        let page = daemon.scrape();
        let seen = page.value("tcpmon_receive_drops_total", &[process, service, ("reason", "proto_mem")]);
        (before, seen.unwrap_or_default(), drops("TCPRcvQDrop"))
    };
    let (before, seen, after) = seen();
    assert!(before as f64 <= seen && seen <= after as f64, "tcpmon {seen}, the kernel {before} .. {after}");
}
