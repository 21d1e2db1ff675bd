//! The harness works as promised, because the other tests rely on it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tcpmon_tests::lab::End;
use tcpmon_tests::sysctl::HostSysctl;
use tcpmon_tests::traffic::{Between, Method, Reader, ReaderBuilder, SenderBuilder, Threads};
use tcpmon_tests::truth::{self, Socket, State};
use tcpmon_tests::{Delay, Lab, LabOptions, Namespace, Traffic, at_least, equal, eventually, many};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_lab_vanishes_with_its_last_holder() {
    let lab = Lab::new();
    let (sender, device) = (Namespace::clone(lab.sender()), lab.sender().device.clone());
    has(&sender, &device);
    has(lab.receiver(), &lab.receiver().device);
    drop(lab);
    // A veth end disappears with the namespace of its other end.
    eventually(SOON, "the wire is gone", || gone(&sender, &device));
}

#[test]
fn a_killed_run_leaves_no_lab_behind() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a lab can be run");
    let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let line = output.lines().map_while(Result::ok).find(|line| line.contains("LAB "));
    let line = line.expect("the run makes a lab");
    let mut words = line.split(' ').skip_while(|word| *word != "LAB").skip(1);
    let sender = Namespace::open(words.next().expect("the line has a path"));
    let device = words.next().expect("the line has a device").to_owned();
    let reader: i32 = words.next().and_then(|pid| pid.parse().ok()).expect("the line has a reader");
    has(&sender, &device);
    child.kill().expect("a child can be killed");
    child.wait().expect("a child can be waited for");
    eventually(SOON, "the wire is gone", || gone(&sender, &device));
    eventually(SOON, "the reader is gone", || !std::path::Path::new(&format!("/proc/{reader}/stat")).exists());
}

#[test]
fn every_kind_of_reader_counts_every_byte() {
    let lab = Lab::new();
    let bytes = 3_000_001;
    let reader = || Traffic::reader(lab.receiver()).chunk(10_007);
    let readers = [
        reader(),
        reader().method(Method::PeekFirst),
        reader().method(Method::Splice),
        reader().between(Between::Sleep(50)),
        reader().between(Between::Spin(20)),
        reader().receive_buffer(20_000),
        reader().half_closed(),
        reader().ipv6(),
        reader().mapped(),
        reader().threads(Threads::PerFlow),
        reader().threads(Threads::Epoll),
        reader().threads(Threads::Epoll).method(Method::Splice),
        reader().threads(Threads::Turns(3)),
    ];
    for reader in readers {
        let described = format!("{reader:?}");
        let reader = reader.spawn();
        let sent = sender(&lab, &reader).bytes(bytes).spawn().wait();
        let report = reader.wait();
        assert_eq!((sent.bytes, sent.broken), (bytes, 0), "{described}");
        assert_eq!((report.bytes, report.connections, report.broken), (bytes, 1, 0), "{described}");
    }
}

#[test]
fn many_flows_are_read_by_the_threads_that_were_asked_for() {
    let lab = Lab::new();
    for (threads, tids) in
        [(Threads::Sequential, 1), (Threads::PerFlow, 8), (Threads::Epoll, 1), (Threads::Turns(4), 4)]
    {
        let reader = Traffic::reader(lab.receiver()).connections(8).threads(threads).log_reads().spawn();
        let sent = sender(&lab, &reader).flows(8).bytes(500_000).spawn().wait();
        let report = reader.wait();
        assert_eq!((sent.bytes, report.bytes, report.connections), (4_000_000, 4_000_000, 8), "{threads:?}");
        assert_eq!(report.tids.len(), tids, "{threads:?}");
        assert_eq!(report.tids.contains(&report.pid), threads != Threads::PerFlow, "{threads:?}");
        assert_eq!(report.log.iter().map(|call| call.bytes).sum::<u64>(), report.bytes);
        let earlier = report.log.windows(2).find(|pair| pair[0].at_ns > pair[1].at_ns);
        assert!(earlier.is_none(), "{threads:?}: {earlier:?}");
        if let Threads::Turns(4) = threads {
            assert!(report.log.windows(2).all(|pair| pair[0].tid != pair[1].tid), "no thread reads twice in a row");
        }
    }
}

#[test]
fn a_paused_reader_leaves_its_queue_to_be_seen() {
    let lab = Lab::new();
    for threads in [Threads::Sequential, Threads::PerFlow, Threads::Epoll, Threads::Turns(2)] {
        let reader = Traffic::reader(lab.receiver()).threads(threads).spawn();
        let sender = sender(&lab, &reader).paused().spawn();
        assert_eq!(sender.send(1000), 1000);
        eventually(SOON, "the first bytes are read", || equal(reader.report().bytes, 1000));
        reader.pause();
        assert_eq!(sender.send(30_000), 30_000);
        let socket = eventually(SOON, "30000 bytes wait", || queue(&lab, &reader, 30_000));
        assert_eq!((socket.state, socket.info.bytes_received), (State::Established, 31_000));
        assert!(socket.rmem >= socket.recv_q && socket.rcvbuf > socket.rmem, "{socket:?}");
        assert_eq!(reader.peek(100), 100);
        assert_eq!(reader.read(12_345), 12_345);
        assert_eq!(connection(&lab, &reader).map(|socket| socket.recv_q), Ok(17_655));
        assert_eq!(reader.report().bytes, 13_345);
        reader.resume();
        eventually(SOON, "the queue is empty", || queue(&lab, &reader, 0));
        assert_eq!(sender.finish().bytes, 31_000);
        assert_eq!(reader.wait().bytes, 31_000);
    }
}

#[test]
fn a_reader_can_shut_its_writing_side_and_still_receive() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    assert_eq!((sender.send(10), reader.read(10)), (10, 10));
    reader.shutdown_write();
    let state = || connection(&lab, &reader).map(|socket| socket.state);
    eventually(SOON, "the FIN is acknowledged", || (state() == Ok(State::FinWait2)).then_some(()));
    assert_eq!((sender.send(10), reader.read(10)), (10, 10));
}

#[test]
fn a_reader_at_full_speed_stops_at_once_and_a_blocked_sender_too() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("full-speed").spawn();
    let sender = sender(&lab, &reader).spawn();
    eventually(SOON, "megabytes are read", || at_least(reader.report().bytes, 5_000_000));
    reader.pause();
    let paused = reader.report().bytes;
    eventually(SOON, "the window closes", || {
        let socket = connection(&lab, &reader)?;
        // Before Linux 6.2 the kernel does not report the window.
        if socket.info.rcv_wnd.is_none_or(|window| window < 1448) { Ok(()) } else { Err(format!("{socket:?}")) }
    });
    assert_eq!(reader.report().bytes, paused);
    sender.pause();
    let written = sender.report().bytes;
    reader.resume();
    eventually(SOON, "what was written is read", || equal(reader.report().bytes, written));
    assert_eq!(sender.finish().bytes, reader.wait().bytes);
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", reader.pid()));
    assert_eq!(comm.expect("a process has a name until it is waited for"), "full-speed\n");
}

#[test]
fn short_connections_come_in_numbers() {
    let lab = Lab::new();
    lab.allow_many_connections();
    let count = many(2000);
    for (reader, parallel) in [
        (Traffic::reader(lab.receiver()), 1),
        (Traffic::reader(lab.receiver()).port(7000).ports(4).threads(Threads::Epoll), 8),
        (Traffic::reader(lab.receiver()).threads(Threads::PerFlow), 4),
    ] {
        let reader = reader.connections(count).spawn();
        let ports = if reader.port() == 7000 { 4 } else { 1 };
        let sender = sender(&lab, &reader).ports(ports).connections(count).parallel(parallel).bytes(100).await_close();
        let sent = sender.spawn().wait();
        let report = reader.wait();
        assert_eq!((sent.connections, sent.broken, sent.bytes), (count, 0, 100 * count));
        assert_eq!((report.connections, report.broken, report.bytes), (count, 0, 100 * count));
    }
}

#[test]
fn connections_can_be_held_open() {
    let lab = Lab::new();
    let count = many(3000);
    let reader = Traffic::reader(lab.receiver()).connections(count).threads(Threads::Epoll).spawn();
    let sender = sender(&lab, &reader).connections(count).parallel(2).bytes(10).hold_open().spawn();
    eventually(SOON, "all bytes are read", || equal(reader.report().bytes, 10 * count));
    let standing = |socket: &Socket| socket.is_connection_to(reader.port()) && socket.state == State::Established;
    assert_eq!(truth::sockets(lab.receiver()).iter().filter(|socket| standing(socket)).count() as u64, count);
    assert_eq!(sender.finish().connections, count);
    assert_eq!(reader.wait().connections, count);
}

#[test]
fn a_reader_may_close_without_reading_and_a_sender_by_reset() {
    let lab = Lab::new();
    for threads in [Threads::Sequential, Threads::Epoll] {
        let reader = Traffic::reader(lab.receiver()).close_at_once().connections(50).threads(threads).spawn();
        let sent = sender(&lab, &reader).connections(50).bytes(10).spawn().wait();
        let report = reader.wait();
        assert_eq!((sent.connections, report.connections, report.bytes), (50, 50, 0));
    }
    let reader = Traffic::reader(lab.receiver()).connections(50).spawn();
    let sent = sender(&lab, &reader).connections(50).bytes(10).reset().spawn().wait();
    let report = reader.wait();
    assert_eq!((sent.broken, report.broken, report.bytes), (0, 50, 500));
    let waiting = truth::sockets(lab.sender())
        .into_iter()
        .filter(|socket| socket.state == State::TimeWait && socket.remote == reader.address());
    assert_eq!(waiting.count(), 0, "a reset leaves no TIME_WAIT");
}

#[test]
fn data_can_come_with_the_handshake() {
    let lab = Lab::new();
    // SYN, ACK, data and FIN. The reader's end stays open, so the sender's socket stays in FIN_WAIT2.
    let segments_sent = |sender: SenderBuilder, reader: &Reader| {
        let _sender = sender.to(reader.address()).bytes(100).await_close().spawn();
        let socket = eventually(SOON, "the data and the FIN are acknowledged", || {
            let mut sockets = truth::sockets(lab.sender()).into_iter();
            sockets.find(|socket| socket.remote == reader.address() && socket.state == State::FinWait2)
        });
        assert_eq!(reader.read(100), 100);
        socket.info.segs_out
    };
    let reader = || Traffic::reader(lab.receiver()).paused();
    let usual = segments_sent(Traffic::sender(lab.sender()), &reader().spawn());
    let with_ack = segments_sent(Traffic::sender(lab.sender()).data_with_ack(), &reader().spawn());
    assert_eq!((usual, with_ack), (4, 3), "no segment is spent on an ACK alone");
    let with_data_only = segments_sent(Traffic::sender(lab.sender()), &reader().defer_accept().spawn());
    assert_eq!(with_data_only, usual, "it is spent, and dropped");
    assert_eq!(truth::tcp_counters(lab.receiver())["TCPDeferAcceptDrop"], 1);

    lab.allow_fast_open();
    let with_syn = segments_sent(Traffic::sender(lab.sender()).fast_open(), &reader().fast_open().spawn());
    assert!(with_syn <= 3, "SYN with data, ACK and FIN, the last two perhaps together: {with_syn}");
    assert_eq!(truth::tcp_counters(lab.receiver())["TCPFastOpenPassive"], 1);
}

#[test]
fn a_rate_is_kept() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).spawn();
    let sent = sender(&lab, &reader).bytes(500_000).message(5_000).rate(1_000_000).spawn().wait();
    assert_eq!(reader.wait().bytes, 500_000);
    let nanoseconds = sent.last_ns - sent.first_ns;
    assert!(nanoseconds >= 485_000_000, "99 waits of 5 ms took {nanoseconds} ns");
}

#[test]
fn a_lossy_socket_receives_out_of_order() {
    let lab = Lab::with(LabOptions { napi: true, ..LabOptions::default() });
    let reader = Traffic::reader(lab.receiver()).drop_one_in(20).until_exit();
    let socket = lossy_transfer(&lab, reader);
    assert!(socket.drops > 0 && socket.info.rcv_ooopack > 0, "{socket:?}");
}

#[test]
fn a_lossy_wire_delivers_out_of_order() {
    let lab = Lab::with(LabOptions { napi: true, ..LabOptions::default() });
    lab.drop_every(50);
    let socket = lossy_transfer(&lab, Traffic::reader(lab.receiver()).until_exit());
    assert!(lab.dropped() > 0 && socket.info.rcv_ooopack > 0, "{socket:?}");
}

#[test]
fn a_long_path_takes_as_long_as_asked_and_loses_what_it_is_told_to() {
    let delay = Delay { one_way: Duration::from_millis(20), lose_every: 50 };
    let lab = Lab::with(LabOptions { delay: Some(delay), ..LabOptions::default() });
    let reader = Traffic::reader(lab.receiver()).until_exit().spawn();
    let sender = sender(&lab, &reader).bytes(500_000).hold_open().spawn();
    eventually(SOON, "all is read", || equal(reader.report().bytes, 500_000));
    let sockets = truth::sockets(lab.sender()).into_iter();
    let socket = sockets.into_iter().find(|socket| socket.remote == reader.address()).expect("a connection");
    assert!((40_000..45_000).contains(&socket.info.min_rtt_us), "{socket:?}");
    assert!(lab.lost() >= 500_000 / 1448 / 50, "{}", lab.lost());
    sender.finish();
    reader.exit();
}

#[test]
fn the_napi_wire_carries_single_segments() {
    let packets = |napi: bool| {
        let lab = Lab::with(LabOptions { napi, ..LabOptions::default() });
        let reader = Traffic::reader(lab.receiver()).spawn();
        sender(&lab, &reader).bytes(3_000_000).spawn().wait();
        reader.wait();
        let path = format!("/sys/class/net/{}/statistics/rx_packets", lab.receiver().device);
        let text = lab.receiver().with_own_sys(|| std::fs::read_to_string(path)).expect("a device has statistics");
        text.trim().parse::<u64>().expect("a statistic is a number")
    };
    let ([with, without], segments) = ([true, false].map(packets), 3_000_000 / 1460);
    assert!(without < segments && segments < with, "{with} packets with NAPI, {without} without, {segments} segments");
}

#[test]
fn a_reader_beside_a_hog_waits_for_its_cpu() {
    let lab = Lab::new();
    let _hog = Traffic::hog(0, -5);
    let reader = Traffic::reader(lab.receiver()).cpu(0).spawn();
    let _sender = sender(&lab, &reader).rate(20_000_000).spawn();
    eventually(SOON, "the reader has waited 20 ms", || {
        let times = truth::task_times(reader.pid(), reader.pid());
        if times.waiting >= Duration::from_millis(20) { Ok(()) } else { Err(format!("{times:?}")) }
    });
    let (switches, bytes) = (truth::switches(reader.pid(), reader.pid()), truth::rss_bytes(reader.pid()));
    assert!(switches.voluntary > 0 && bytes > 0, "{switches:?}, {bytes} bytes");
    let (rows, cpus) = (truth::softnet(), std::thread::available_parallelism().expect("the number of CPUs").get());
    assert!(rows.len() >= cpus, "{cpus} CPUs: {rows:?}");
}

#[test]
fn who_waits_for_an_order_is_asleep_and_who_spins_is_not() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).paused().spawn();
    eventually(SOON, "the reader sleeps", || truth::is_asleep(reader.pid()).then_some(()));
    let (spins, looked) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !looked.load(Ordering::Relaxed) {
                spins.store(true, Ordering::Relaxed);
            }
        });
        eventually(SOON, "a thread of this process spins", || spins.load(Ordering::Relaxed).then_some(()));
        let asleep = truth::is_asleep(std::process::id());
        looked.store(true, Ordering::Relaxed);
        assert!(!asleep, "a thread of this process spins, and all of them are said to sleep");
    });
}

#[test]
fn sysctls_belong_to_their_namespace_or_are_put_back() {
    let lab = Lab::new();
    let name = "net.ipv4.tcp_rmem";
    let host = End::host().sysctl(name);
    lab.receiver().set_sysctl(name, "4096\t5000\t6000");
    assert_eq!(lab.receiver().sysctl(name), "4096\t5000\t6000");
    assert_eq!(End::host().sysctl(name), host);
    lab.receiver().run(|| {
        let guard = HostSysctl::set(name, "4096\t7000\t8000");
        drop(guard);
    });
    assert_eq!(lab.receiver().sysctl(name), "4096\t5000\t6000");
}

#[test]
fn a_trace_under_a_process_has_what_happens_while_it_is_current() {
    let mut other = Command::new("sleep").arg("60").spawn().expect("sleep can be started");
    let event = "sock/inet_sock_set_state";
    let (own, others) = (truth::Trace::under(std::process::id(), event), truth::Trace::under(other.id(), event));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    other.kill().expect("a process of ours");
    other.wait().expect("it ends");
    let lines = own.lines();
    assert!(lines.iter().any(|line| line.contains(&format!("sport={port} "))), "{lines:?}");
    assert_eq!(others.lines(), [""; 0]);
}

#[test]
fn inet_diag_says_what_ss_says() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    sender.send(5_000);
    let socket = eventually(SOON, "5000 bytes wait at a connection that was accepted", || {
        // Until then it has no inode.
        queue(&lab, &reader, 5_000).ok().filter(|socket| socket.inode != 0)
    });
    let output = lab.receiver().command("ss").args(["-tmneiOH", "state", "established"]).output();
    let output = output.expect("ss is installed by `cargo xtask test` (package iproute2)");
    let text = String::from_utf8(output.stdout).expect("ss writes text");
    let expected = [
        format!("5000 0 {} {}", socket.local, socket.remote),
        format!("ino:{} sk:{:x}", socket.inode, socket.cookie),
        format!("skmem:(r{},rb{},", socket.rmem, socket.rcvbuf),
        format!("bytes_received:{}", socket.info.bytes_received),
        format!("segs_in:{}", socket.info.segs_in),
        format!("data_segs_in:{}", socket.info.data_segs_in),
        format!("rcv_space:{}", socket.info.rcv_space),
        format!("rcv_ssthresh:{}", socket.info.rcv_ssthresh),
    ];
    let words = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    for part in expected {
        assert!(words.contains(&part), "{part} is not in {words}");
    }
}

fn sender(lab: &Lab, reader: &Reader) -> SenderBuilder {
    Traffic::sender(lab.sender()).to(reader.address())
}

/// Sends until a loss shows. Losses are random, so it gives up after a time in which one should have happened.
fn lossy_transfer(lab: &Lab, reader: ReaderBuilder) -> Socket {
    let reader = reader.spawn();
    let sender = sender(lab, &reader).paused().spawn();
    let mut sent = 0;
    loop {
        sent += sender.send(2_000_000);
        eventually(SOON, "all is read in spite of losses", || equal(reader.report().bytes, sent));
        let socket = connection(lab, &reader).expect("the connection stands");
        if socket.info.rcv_ooopack > 0 || sent >= 20_000_000 {
            return socket;
        }
    }
}

/// The receiver's side of the reader's only connection.
fn connection(lab: &Lab, reader: &Reader) -> Result<Socket, String> {
    let mut sockets = truth::sockets(lab.receiver());
    sockets.retain(|socket| socket.is_connection_to(reader.port()));
    if sockets.len() == 1 { Ok(sockets.remove(0)) } else { Err(format!("{sockets:?}")) }
}

fn queue(lab: &Lab, reader: &Reader, bytes: u32) -> Result<Socket, String> {
    let socket = connection(lab, reader)?;
    if socket.recv_q == bytes { Ok(socket) } else { Err(format!("{socket:?}")) }
}

fn devices(namespace: &Namespace) -> Vec<String> {
    namespace.run(|| {
        let interfaces = nix::net::if_::if_nameindex().expect("devices can be listed");
        interfaces.iter().map(|interface| interface.name().to_string_lossy().into_owned()).collect()
    })
}

#[track_caller]
fn has(namespace: &Namespace, device: &String) {
    let devices = devices(namespace);
    assert!(devices.contains(device), "{device}: {devices:?}");
}

fn gone(namespace: &Namespace, device: &String) -> Result<(), String> {
    let devices = devices(namespace);
    if devices.contains(device) { Err(format!("{devices:?}")) } else { Ok(()) }
}
