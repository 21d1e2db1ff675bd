//! MPTCP: what applications read from MPTCP sockets is not counted, and what they read from TCP sockets is.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use common::{DEADLINE, group};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tcpmon_tests::{Daemon, Lab, eventually, report};

const BYTES: usize = 95_000;

fn socket(protocol: Protocol) -> std::io::Result<Socket> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))
}

fn listen(lab: &Lab, protocol: Protocol, port: u16) -> TcpListener {
    lab.receiver().run(|| {
        let socket = socket(protocol).expect("a socket");
        socket.bind(&SocketAddr::from((lab.receiver().v4, port)).into()).expect("a free port");
        socket.listen(8).expect("it listens");
        socket.into()
    })
}

/// Both ends of a connection, the connecting end first.
fn connect(lab: &Lab, listener: &TcpListener, protocol: Protocol) -> (TcpStream, TcpStream) {
    let client = lab.sender().run(|| {
        let socket = socket(protocol).expect("a socket");
        socket.connect(&listener.local_addr().expect("an address").into()).expect("a connection");
        TcpStream::from(socket)
    });
    (client, listener.accept().expect("a connection").0)
}

/// Sends [`BYTES`] from one end to the other, which reads them.
fn send(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(&[7; BYTES]).expect("it fits into the buffers");
    to.read_exact(&mut [0; BYTES]).expect("it comes");
}

#[test]
fn mptcp_connections_are_left_out_and_counted_and_plain_ones_are_not() {
    let lab = Lab::new();
    // MPTCP is not built in, or it is switched off (net.mptcp.enabled).
    let lacks = [libc::EPROTONOSUPPORT, libc::ENOPROTOOPT];
    if let Err(error) = lab.receiver().run(|| socket(Protocol::MPTCP)) {
        assert!(error.raw_os_error().is_some_and(|number| lacks.contains(&number)), "{error}");
        report::not_supported("this kernel has no MPTCP");
        return;
    }
    let (mixed, plain) = (listen(&lab, Protocol::MPTCP, 7301), listen(&lab, Protocol::TCP, 7302));
    let mut old = connect(&lab, &mixed, Protocol::MPTCP);
    let daemon = Daemon::start(&[]);
    // tcpmon knows the process name of every socket that starts to listen from now on, MPTCP sockets included.
    let named = listen(&lab, Protocol::MPTCP, 7303);
    let mut new = connect(&lab, &named, Protocol::MPTCP);
    let mut fallen_back = connect(&lab, &plain, Protocol::MPTCP);
    let mut accepted_plain = connect(&lab, &named, Protocol::TCP);
    let protocol = |stream: &TcpStream| SockRef::from(stream).protocol().unwrap().unwrap();
    assert_eq!((protocol(&old.1), protocol(&new.1)), (Protocol::MPTCP, Protocol::MPTCP));
    assert_eq!((protocol(&fallen_back.1), protocol(&accepted_plain.1)), (Protocol::TCP, Protocol::TCP));
    for (client, server) in [&mut old, &mut new, &mut fallen_back, &mut accepted_plain] {
        send(client, server);
        send(server, client);
    }
    let process = std::fs::read_to_string("/proc/self/comm").unwrap();
    // By listening port: the bytes of the accepting ends and of the connecting ends.
    let seen = || {
        let page = daemon.scrape();
        let sum = |name: &str, service: String| page.sum(name, &[group(process.trim(), 0)[0], ("service", &service)]);
        let both = |service: &str, port| {
            let sums = ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"];
            sums.map(|name| sum(name, format!("{service}:{port}")) as usize)
        };
        [7301, 7302, 7303].map(|port| (both("local", port), both("remote", port)))
    };
    let (counted, left_out) = ([BYTES; 2], [0; 2]);
    let expected = [
        (left_out, left_out),
        // The end that asked for MPTCP reads through an MPTCP socket although the other end did not.
        (counted, left_out),
        // The end that accepted a plain connection reads from a TCP socket, and so does the other end.
        (counted, counted),
    ];
    eventually(DEADLINE, "plain ends are counted, and no others", || {
        let seen = seen();
        if seen == expected { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    // Both ends of one connection and one end of another; the oldest connection existed before tcpmon started.
    let status = daemon.status();
    assert_eq!(status["ignored_sockets"]["mptcp"], 3, "{status}");
    let page = daemon.scrape();
    assert_eq!(page.value("tcpmon_sockets_ignored_total", &[("why", "mptcp")]), Some(3.0));
    assert_eq!(common::lost(&page), 0.0, "{:?}", page.samples("tcpmon_lost_total"));

    // A socket that disconnects and connects again is another connection: both of its ends are left out, too.
    rustix::net::connect_unspec(&new.0).expect("it disconnects");
    SockRef::from(&new.0).connect(&named.local_addr().unwrap().into()).expect("it connects again");
    let again = named.accept().expect("a connection").0;
    assert_eq!(protocol(&again), Protocol::MPTCP);
    eventually(DEADLINE, "both ends of the second connection are left out", || {
        let ignored = daemon.scrape().value("tcpmon_sockets_ignored_total", &[("why", "mptcp")]);
        if ignored == Some(5.0) { Ok(()) } else { Err(format!("{ignored:?}")) }
    });
}
