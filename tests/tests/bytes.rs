//! Bytes: `receive_bytes_total` and `receive_read_bytes_total` equal exactly what the reader counted.

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{DEADLINE, connection, group, lost, sender};
use nix::sys::signal::{Signal, kill};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use tcpmon_tests::traffic::{Method, Reader, ReaderBuilder, SenderBuilder, Threads};
use tcpmon_tests::truth::{self, State};
use tcpmon_tests::{Daemon, Lab, LabOptions, Page, Traffic, emulated, equal, eventually, many};

/// Bytes received and read by all processes named `comm`.
fn bytes(page: &Page, comm: &str) -> (u64, u64) {
    let sum = |name: &str| page.sum(name, &[("process", comm)]) as u64;
    (sum("tcpmon_receive_bytes_total"), sum("tcpmon_receive_read_bytes_total"))
}

/// A daemon that watches a lab.
struct Watched {
    lab: Lab,
    daemon: Daemon,
}

impl Watched {
    fn new(lab: Lab) -> Self {
        Self { lab, daemon: Daemon::start(&[]) }
    }

    fn reader(&self) -> ReaderBuilder {
        Traffic::reader(self.lab.receiver())
    }

    /// Runs one transfer to its end and compares tcpmon's numbers with the reader's own. Each transfer has its own
    /// name.
    #[track_caller]
    fn exact(&self, comm: &str, reader: ReaderBuilder, flows: u64, send: impl FnOnce(SenderBuilder) -> SenderBuilder) {
        let reader = reader.comm(comm).connections(flows).spawn();
        let sent = send(sender(&self.lab, &reader).comm("sender").flows(flows)).spawn().wait();
        let report = reader.wait();
        assert_eq!((sent.bytes, sent.broken, report.broken), (report.bytes, 0, 0), "{comm}");
        let expected = (report.bytes, report.bytes);
        eventually(DEADLINE, &format!("{comm}: received and read are {expected:?}"), || {
            let page = self.daemon.scrape();
            let seen = bytes(&page, comm);
            let groups = page.samples("tcpmon_receive_bytes_total");
            let mut lost = page.samples("tcpmon_lost_total");
            lost.retain(|sample| sample.value > 0.0);
            if seen == expected { Ok(()) } else { Err(format!("{seen:?} in {groups:?}, lost {lost:?}")) }
        });
        let page = self.daemon.scrape();
        assert_eq!(bytes(&page, comm), expected, "{comm}: and stay so");
        assert_eq!(page.value("tcpmon_receive_bytes_total", &group(comm, reader.port())), Some(report.bytes as f64));
        // These are from one more scrape, because a socket can end between two scrapes.
        let losses = page.samples("tcpmon_lost_total");
        // An interrupt can come while a program handles a segment that was in the backlog, and bring more segments to
        // that CPU. The kernel skips the program for these and counts it; their bytes are counted with the next event.
        let skipped = match page.value("tcpmon_lost_total", &[("what", "recursion_tcp_probe")]) {
            Some(skipped) if !emulated::recursion_is_usual() => skipped,
            _ => 0.0,
        };
        assert_eq!(lost(&page) - skipped, 0.0, "{comm}: nothing was lost, but {losses:?}");
    }
}

#[test]
fn one_flow_is_counted_to_the_byte() {
    let watched = Watched::new(Lab::new());
    watched.exact("one-flow", watched.reader(), 1, |sender| sender.bytes(50_000_001));
}

#[test]
fn sixty_four_flows_are_counted_to_the_byte_however_they_are_read() {
    let watched = Watched::new(Lab::new());
    for (comm, threads) in
        [("flows-threads", Threads::PerFlow), ("flows-epoll", Threads::Epoll), ("flows-stealing", Threads::Turns(4))]
    {
        watched.exact(comm, watched.reader().threads(threads), 64, |sender| sender.bytes(300_007));
    }
}

#[test]
fn every_way_of_receiving_is_counted_to_the_byte() {
    let watched = Watched::new(Lab::new());
    watched.lab.allow_fast_open();
    let reader = || watched.reader().chunk(10_007);
    let plain = |sender: SenderBuilder| sender.bytes(3_000_001);
    watched.exact("ipv6", reader().ipv6(), 1, plain);
    watched.exact("mapped", reader().mapped(), 1, plain);
    watched.exact("half-closed", reader().half_closed(), 1, plain);
    watched.exact("peek", reader().method(Method::PeekFirst), 1, plain);
    watched.exact("splice", reader().method(Method::Splice), 1, plain);
    watched.exact("small-buffer", reader().receive_buffer(20_000), 1, plain);
    watched.exact("with-ack", reader(), 1, |sender| sender.bytes(100_001).data_with_ack());
    watched.exact("fast-open", reader().fast_open(), 1, |sender| sender.bytes(100_001).fast_open());
}

#[test]
fn out_of_order_arrival_is_counted_to_the_byte() {
    let watched = Watched::new(Lab::with(LabOptions { napi: true, ..LabOptions::default() }));
    watched.exact("lossy", watched.reader().drop_one_in(20), 1, |sender| sender.bytes(2_000_003));
}

#[test]
fn ten_thousand_short_connections_are_counted_to_the_byte() {
    let watched = Watched::new(Lab::new());
    watched.lab.allow_many_connections();
    watched.exact("short", watched.reader(), many(10_000), |sender| sender.parallel(2).bytes(101));
}

#[test]
fn connections_closed_without_a_read_are_received_and_not_read() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("no-read").threads(Threads::Epoll).paused().until_exit().spawn();
    let sender = sender(&lab, &reader).connections(50).bytes(10).hold_open().spawn();
    eventually(DEADLINE, "10 bytes wait in each of the 50 connections", || {
        let sockets = truth::sockets(lab.receiver());
        let waiting = sockets.iter().filter(|socket| socket.is_connection_to(reader.port()) && socket.recv_q == 10);
        waiting.count() == 50
    });
    reader.exit();
    eventually(DEADLINE, "the sockets have ended", || {
        daemon.scrape().sum("tcpmon_sockets", &[("process", "no-read")]) == 0.0
    });
    assert_eq!(bytes(&daemon.scrape(), "no-read"), (500, 0));
    drop(sender);
}

#[test]
fn connections_that_nobody_has_accepted_when_their_listener_closes_are_received_and_not_read() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("no-accept").spawn();
    let process = nix::unistd::Pid::from_raw(reader.pid().cast_signed());
    kill(process, Signal::SIGSTOP).unwrap();
    let sender = sender(&lab, &reader).flows(5).paused().spawn();
    assert_eq!(sender.send(10), 50);
    let queued = |port: u16| {
        let sockets = truth::sockets(lab.receiver());
        sockets.iter().filter(|socket| socket.is_connection_to(port)).map(|socket| socket.recv_q).sum::<u32>()
    };
    eventually(DEADLINE, "10 bytes wait in each of the 5 connections", || equal(queued(reader.port()), 50));
    kill(process, Signal::SIGKILL).unwrap();
    eventually(DEADLINE, "all is received, and nothing is read", || {
        let seen = (queued(reader.port()), bytes(&daemon.scrape(), "no-accept"));
        if seen == (0, (50, 0)) { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    drop(sender);
}

#[test]
fn bytes_unread_when_a_program_disconnects_its_socket_are_received_and_not_read() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let listener = lab.receiver().run(|| TcpListener::bind("127.0.0.1:7310")).unwrap();
    let mut client = lab.receiver().run(|| TcpStream::connect("127.0.0.1:7310")).unwrap();
    let mut accepted = listener.accept().unwrap().0;
    client.write_all(&[0; 300]).unwrap();
    accepted.read_exact(&mut [0; 100]).unwrap();
    rustix::net::connect_unspec(&accepted).unwrap();
    drop((accepted, client));
    eventually(DEADLINE, "300 bytes are received, and 100 of them read", || {
        let page = daemon.scrape();
        let sum = |name| page.sum(name, &[("service", "local:7310")]);
        let seen = (sum("tcpmon_receive_bytes_total"), sum("tcpmon_receive_read_bytes_total"), sum("tcpmon_sockets"));
        if seen == (300.0, 100.0, 0.0) { Ok(()) } else { Err(format!("{seen:?}")) }
    });
}

#[test]
fn a_connection_older_than_tcpmon_counts_from_the_first_byte_that_waits_when_tcpmon_begins() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("older").paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    assert_eq!(sender.send(40_000), 40_000);
    let queued = || {
        let sockets = truth::sockets(lab.receiver());
        sockets.iter().find(|socket| socket.is_connection_to(reader.port())).map(|socket| socket.recv_q)
    };
    eventually(DEADLINE, "40000 bytes wait", || equal(queued(), Some(40_000)));

    let daemon = Daemon::start(&[]);
    let page = daemon.scrape();
    assert_eq!(page.value("tcpmon_receive_queue_bytes", &group("older", reader.port())), Some(40_000.0));
    assert_eq!(bytes(&page, "older"), (40_000, 0));
    assert_eq!((sender.send(5_000), reader.read(45_000)), (5_000, 45_000));
    eventually(DEADLINE, "as much is received as is read", || {
        let seen = bytes(&daemon.scrape(), "older");
        if seen == (45_000, 45_000) { Ok(()) } else { Err(format!("{seen:?}")) }
    });
}

#[test]
fn bytes_read_from_a_connection_closed_before_tcpmon_began_are_not_counted() {
    let lab = Lab::new();
    let listener = lab.receiver().run(|| TcpListener::bind("127.0.0.1:7311")).unwrap();
    let mut client = lab.receiver().run(|| TcpStream::connect("127.0.0.1:7311")).unwrap();
    let mut accepted = listener.accept().unwrap().0;
    client.write_all(&[0; 70_000]).unwrap();
    accepted.read_exact(&mut [0; 70_000]).unwrap();
    // The client does not read, so the server's socket outlives its descriptor.
    accepted.set_nonblocking(true).unwrap();
    while accepted.write(&[0; 100_000]).is_ok() {}
    drop(accepted);

    let daemon = Daemon::start(&[]);
    daemon.scrape();
    drop(client);
    eventually(DEADLINE, "the server's socket ends", || {
        let sockets = truth::sockets(lab.receiver());
        let left = sockets.iter().find(|socket| socket.local.port() == 7311 && socket.state != State::Listen);
        left.map_or(Ok(()), |socket| Err(format!("{socket:?}")))
    });
    for _ in 0..3 {
        let page = daemon.scrape();
        assert_eq!(page.sum("tcpmon_receive_bytes_total", &[("service", "local:7311")]), 0.0);
    }
}

/// Duplicates the socket of the reader's only connection into this process.
#[expect(clippy::unwrap_used, reason = "it is part of a test")]
fn shared(lab: &Lab, reader: &Reader) -> TcpStream {
    let socket = format!("socket:[{}]", connection(lab, reader).unwrap().inode);
    let descriptors = fs::read_dir(format!("/proc/{}/fd", reader.pid())).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| fs::read_link(path).is_ok_and(|link| link.as_os_str() == socket.as_str());
    let path = descriptors.into_iter().find(is_it).unwrap();
    let number: i32 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let pid = Pid::from_raw(reader.pid().cast_signed()).unwrap();
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    pidfd_getfd(process, number, PidfdGetfdFlags::empty()).unwrap().into()
}

#[test]
fn bytes_that_a_process_read_stay_with_it_when_the_connection_is_handed_over() {
    // This process takes over the connection.
    let taker = format!("taker-{}", std::process::id());
    fs::write("/proc/self/comm", &taker).unwrap();
    for (comm, looked_at) in [("giver-unseen", false), ("giver-seen", true)] {
        let lab = Lab::new();
        let daemon = Daemon::start(&[]);
        let reader = Traffic::reader(lab.receiver()).comm(comm).paused().spawn();
        let sender = sender(&lab, &reader).paused().spawn();
        let service = format!("local:{}", reader.port());
        let counts = |page: &Page, process: &str| {
            let labels = [("process", process), ("service", service.as_str())];
            ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"].map(|name| page.sum(name, &labels))
        };
        assert_eq!((sender.send(10_001), reader.read(10_001)), (10_001, 10_001));
        if looked_at {
            assert_eq!(counts(&daemon.scrape(), comm), [10_001.0; 2]);
        }
        let mut socket = shared(&lab, &reader);
        let mut take = |bytes: usize| {
            assert_eq!(sender.send(bytes as u64), bytes as u64);
            socket.read_exact(&mut vec![0; bytes]).unwrap();
        };
        // The connection goes to this process and back, and to this process once more.
        take(5_003);
        assert_eq!((sender.send(2_007), reader.read(2_007)), (2_007, 2_007));
        take(307);
        let page = daemon.scrape();
        let [given, taken] = [comm, &taker].map(|process| counts(&page, process));
        assert_eq!((given[1], taken[1]), (12_008.0, 5_310.0), "{comm}: read by the one and the other");
        assert_eq!(given[0] + taken[0], 17_318.0, "{comm}: received by both: {given:?}, {taken:?}");
        assert_eq!(lost(&page), 0.0, "{comm}: {:?}", page.samples("tcpmon_lost_total"));
        reader.exit();
    }
}

#[test]
fn connections_that_wait_to_be_accepted_when_tcpmon_begins_are_counted_from_their_first_byte() {
    const WAITING: u64 = 20;
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("waited").connections(WAITING).threads(Threads::PerFlow).spawn();
    let process = nix::unistd::Pid::from_raw(reader.pid().cast_signed());
    kill(process, Signal::SIGSTOP).unwrap();
    let sender = sender(&lab, &reader).flows(WAITING).paused().spawn();
    assert_eq!(sender.send(5_000), WAITING * 5_000);
    eventually(DEADLINE, "all wait with their bytes", || {
        let mut sockets = truth::sockets(lab.receiver());
        sockets.retain(|socket| socket.is_connection_to(reader.port()) && socket.recv_q == 5_000);
        if sockets.len() as u64 == WAITING { Ok(()) } else { Err(format!("{sockets:?}")) }
    });
    let daemon = Daemon::start(&[]);
    kill(process, Signal::SIGCONT).unwrap();
    assert_eq!(sender.send(3_001), WAITING * 3_001);
    sender.finish();
    let report = reader.wait();
    assert_eq!(report.bytes, WAITING * 8_001);
    let page = eventually(DEADLINE, "as much is received and read as the reader read", || {
        let page = daemon.scrape();
        let seen = bytes(&page, "waited");
        if seen == (report.bytes, report.bytes) { Ok(page) } else { Err(format!("{seen:?}")) }
    });
    assert_eq!(lost(&page), 0.0, "{:?}", page.samples("tcpmon_lost_total"));
    let late = page.value("tcpmon_sockets_found_late_total", &[]).unwrap();
    assert!(late >= WAITING as f64, "{late}");
}

#[test]
fn where_the_reader_was_when_bytes_arrived_adds_up_to_what_was_received() {
    let watched = Watched::new(Lab::new());
    watched.exact("adds-short", watched.reader(), many(500), |sender| sender.parallel(2).bytes(101).data_with_ack());
    watched.exact("adds-epoll", watched.reader().threads(Threads::Epoll), 16, |sender| sender.bytes(100_003));
    watched.exact("adds-half", watched.reader().half_closed(), 1, |sender| sender.bytes(1_000_003));
    let page = watched.daemon.scrape();
    for sample in page.samples("tcpmon_receive_bytes_total") {
        let labels: Vec<_> = sample.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let arrived = page.sum("tcpmon_timeslice_arrived_bytes_total", &labels);
        assert_eq!(arrived, sample.value, "{labels:?}");
    }
    // Bytes that came with the handshake arrived before there was a reader.
    let early =
        page.sum("tcpmon_timeslice_arrived_bytes_total", &[("process", "adds-short"), ("context", "no_reader")]);
    assert!(early > 0.0, "{early}: {:?}", page.samples("tcpmon_timeslice_arrived_bytes_total"));
}

#[test]
fn a_half_closed_connection_whose_window_closes_is_counted_to_the_byte() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("half-full").receive_buffer(20_000).paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    assert_eq!((sender.send(1), reader.read(1)), (1, 1));
    reader.shutdown_write();
    eventually(DEADLINE, "it is half closed", || match connection(&lab, &reader)? {
        socket if socket.state == truth::State::FinWait2 => Ok(()),
        socket => Err(format!("{socket:?}")),
    });
    // For a while nothing happens that a program would see, and metrics pages are made while the bytes wait.
    assert_eq!(sender.send(1_000), 1_000);
    let start = Instant::now();
    eventually(DEADLINE, "time has passed", || {
        daemon.scrape();
        start.elapsed() > Duration::from_millis(500)
    });
    sender.resume();
    eventually(DEADLINE, "the window closes", || match connection(&lab, &reader)? {
        socket if socket.rmem > socket.rcvbuf / 2 && socket.info.rcv_wnd.is_none_or(|window| window == 0) => Ok(()),
        socket => Err(format!("{socket:?}")),
    });
    // Data that the sender had in flight may still arrive.
    let page = eventually(DEADLINE, "what waits and what was read is what was received", || {
        let page = daemon.scrape();
        let expected = (u64::from(connection(&lab, &reader)?.recv_q) + 1, 1);
        let seen = bytes(&page, "half-full");
        if seen == expected { Ok(page) } else { Err(format!("{seen:?} of {expected:?}")) }
    });
    assert_eq!(lost(&page), 0.0, "{:?}", page.samples("tcpmon_lost_total"));
}

#[test]
fn the_programs_see_as_many_connections_opened_as_the_kernel_counts() {
    let daemon = Daemon::start(&[]);
    let opened = || {
        let page = daemon.scrape();
        ["kernel", "programs"].map(|by| page.value("tcpmon_connections_opened_total", &[("counted_by", by)]).unwrap())
    };
    let before = opened();
    // Of namespaces that are younger than tcpmon, everything is counted. The processes stay alive, because the kernel's
    // counts of a namespace are found through its processes.
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("opened").until_exit().spawn();
    let _sender = sender(&lab, &reader).connections(200).bytes(10).hold_open().spawn();
    // A socket may connect again after it was refused: each attempt counts.
    lab.sender().run(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        for _ in 0..2 {
            let refused = socket.connect(&SocketAddr::from((lab.receiver().v4, 9)).into()).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED));
        }
    });
    eventually(DEADLINE, "both ends of 200 connections are counted", || {
        let now = opened();
        let [kernel, programs] = [now[0] - before[0], now[1] - before[1]];
        if kernel == programs && kernel >= 402.0 {
            Ok(())
        } else {
            Err(format!("{kernel}, by the programs {programs}"))
        }
    });
}

#[test]
fn a_connect_that_finds_no_port_and_sends_no_syn_does_not_count_as_opened() {
    let lab = Lab::new();
    lab.set_sysctl("net.ipv4.ip_local_port_range", "40000 40007");
    let daemon = Daemon::start(&[]);
    let opened = || {
        let page = daemon.scrape();
        ["kernel", "programs"].map(|by| page.value("tcpmon_connections_opened_total", &[("counted_by", by)]).unwrap())
    };
    // The process stays alive, because the kernel's counts of a namespace are found through its processes.
    let reader = Traffic::reader(lab.receiver()).comm("no-port").paused().until_exit().spawn();
    let _inside = Traffic::reader(lab.sender()).comm("inside").paused().until_exit().spawn();
    let before = opened();
    let mut open = Vec::new();
    let without_port = lab.sender().run(|| {
        (0..108)
            .filter(|_| match TcpStream::connect(reader.address()) {
                Ok(stream) => {
                    open.push(stream);
                    false
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL));
                    true
                }
            })
            .count()
    });
    // The process inside listens on one of the eight ports.
    assert_eq!((open.len(), without_port), (7, 101));
    eventually(DEADLINE, "both ends of 7 connections are counted", || {
        let now = opened();
        let [kernel, programs] = [now[0] - before[0], now[1] - before[1]];
        if kernel == programs && kernel >= 14.0 { Ok(()) } else { Err(format!("{kernel}, by the programs {programs}")) }
    });
}

#[test]
fn iperf3_is_counted_as_it_counts_itself() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let iperf3 = |end: &tcpmon_tests::lab::End, arguments: &[&str]| {
        let mut command = end.command("iperf3");
        command.args(arguments).stdout(std::process::Stdio::piped());
        command.spawn().expect("iperf3 is installed by `cargo xtask test`")
    };
    let mut server = iperf3(lab.receiver(), &["-s", "-1", "-p", "5201"]);
    eventually(DEADLINE, "the server listens", || {
        truth::sockets(lab.receiver()).iter().any(|socket| socket.local.port() == 5201)
    });
    let to = lab.receiver().v4.to_string();
    let client = iperf3(lab.sender(), &["-c", &to, "-p", "5201", "-n", "200M", "-P", "4", "-C", "cubic", "--json"]);
    let output = client.wait_with_output().unwrap();
    server.wait().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let counted = report["end"]["sum_received"]["bytes"].as_u64().unwrap_or_else(|| panic!("{report}"));
    // Besides its streams, iperf3 sends a cookie for each stream, and exchanges parameters and results on a separate
    // connection.
    let spoken = 4_000;
    eventually(DEADLINE, "tcpmon counts the streams and little more", || {
        let page = daemon.scrape();
        let labels = group("iperf3", 5201);
        let seen = page.value("tcpmon_receive_read_bytes_total", &labels).unwrap_or_default() as u64;
        if (counted..counted + spoken).contains(&seen) { Ok(()) } else { Err(format!("{seen}, iperf3 {counted}")) }
    });
}
