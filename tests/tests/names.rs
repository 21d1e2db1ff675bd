//! Names: bytes count for the process that read them, under the name that it had then, and ports that the kernel chose
//! are one service.

mod common;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread::{sleep, spawn};
use std::time::Duration;

use common::{DEADLINE, group, is_attached, queued, sender, sleeps, sources_and_probes};
use io_uring::{IoUring, opcode, squeue, types};
use socket2::{Domain, Socket, Type};
use tcpmon_tests::traffic::{Reader, Threads};
use tcpmon_tests::{Daemon, Killed, Lab, Nbd, Page, Traffic, equal, eventually, free_port, many, report, truth};

const READ: &str = "tcpmon_receive_read_bytes_total";

/// The sum of a family over all processes of a service.
fn of_service(page: &Page, family: &str, port: u16) -> f64 {
    page.sum(family, &[("service", &format!("local:{port}"))])
}

#[test]
fn a_reader_that_renames_itself_is_followed() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("rn-before").chunk(1000).paused().spawn();
    let sender = sender(&lab, &reader).bytes(300_000).hold_open().spawn();
    assert_eq!(reader.read(100_000), 100_000);
    reader.rename();
    assert_eq!(reader.read(200_000), 200_000);
    let page = daemon.scrape();
    let read = |process: &str| page.value(READ, &group(process, reader.port())).unwrap_or_default();
    assert_eq!((read("rn-before"), read("renamed")), (100_000.0, 200_000.0));
    assert_eq!(of_service(&page, "tcpmon_receive_bytes_total", reader.port()), 300_000.0);
    assert_eq!(of_service(&page, "tcpmon_timeslice_read_bytes_total", reader.port()), 300_000.0);
    no_read_is_an_activation(&page, reader.port());
    sender.finish();
    reader.resume();
    reader.wait();
}

#[test]
fn a_process_without_a_name_is_the_same_one_in_every_family() {
    const BYTES: u64 = 50_000;
    let lab = Lab::new();
    let reader = |comm: &str| Traffic::reader(lab.receiver()).comm(comm).chunk(1000).paused().spawn();
    // One that is older than tcpmon, one that is younger, and one to compare them with.
    let old = reader("");
    let daemon = Daemon::start(&[]);
    let (young, named) = (reader(""), reader("has-a-name"));
    let all = [(&old, "unnamed"), (&young, "unnamed"), (&named, "has-a-name")];
    for (reader, process) in all {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", reader.pid())).unwrap();
        assert_eq!(comm, if process == "unnamed" { "\n" } else { "has-a-name\n" });
    }
    let _senders = all.map(|(reader, _)| sender(&lab, reader).bytes(BYTES).hold_open().spawn());
    for (reader, _) in all {
        eventually(DEADLINE, "the data wait", || queued(&lab, reader, BYTES as u32));
    }
    eventually(DEADLINE, "what waits is of the process that has it", || {
        let page = daemon.scrape();
        let waits = all.map(|(reader, name)| page.value("tcpmon_receive_queue_bytes", &group(name, reader.port())));
        equal(waits, [Some(BYTES as f64); 3])
    });
    for (reader, _) in all {
        assert_eq!(reader.read(BYTES), BYTES);
        sleeps(reader);
    }
    let page = daemon.scrape();
    let nameless: Vec<_> =
        page.samples.iter().filter(|sample| sample.labels.get("process").is_some_and(String::is_empty)).collect();
    assert!(nameless.is_empty(), "{nameless:?}");
    for (reader, process) in all {
        let labels = group(process, reader.port());
        for family in ["tcpmon_receive_bytes_total", READ, "tcpmon_timeslice_read_bytes_total"] {
            assert_eq!(page.value(family, &labels), Some(BYTES as f64), "{process}: {family}");
        }
        assert_eq!(page.sum("tcpmon_timeslice_arrived_bytes_total", &labels), BYTES as f64, "{process}");
        for family in ["tcpmon_timeslices_total", "tcpmon_reader_cpu_seconds_total"] {
            assert!(page.sum(family, &labels) > 0.0, "{process}: {family}");
        }
    }
    // What has one name has it everywhere. A drop is chance.
    let of_port = |reader: &Reader| -> BTreeSet<(&str, &str)> {
        let service = format!("local:{}", reader.port());
        let samples = page.samples.iter().filter(|sample| sample.labels.get("service") == Some(&service));
        let samples = samples.filter(|sample| sample.name != "tcpmon_receive_drops_total");
        samples.map(|sample| (sample.name.as_str(), sample.labels["process"].as_str())).collect()
    };
    let expected: BTreeSet<_> = of_port(&named).into_iter().map(|(family, _)| (family, "unnamed")).collect();
    assert!(expected.len() >= 20, "{expected:?}");
    assert_eq!([of_port(&old), of_port(&young)], [expected.clone(), expected]);
}

#[test]
fn a_reader_that_becomes_another_program_in_a_thread_of_its_own_is_followed() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("ex-before").chunk(100).paused().spawn();
    let sender = sender(&lab, &reader).bytes(54_096).hold_open().spawn();
    // Both threads have read before. The one that stays gets the thread id of the one that ends.
    assert_eq!(reader.read(10_000), 10_000);
    assert_eq!(eventually(DEADLINE, "all has come", || Some(reader.receive()).filter(|bytes| *bytes > 0)), 4096);
    reader.exec();
    assert_eq!(reader.read(40_000), 40_000);
    let page = daemon.scrape();
    let read = |process: &str| page.value(READ, &group(process, reader.port())).unwrap_or_default();
    assert_eq!((read("ex-before"), read("traffic")), (14_096.0, 40_000.0));
    assert_eq!(of_service(&page, "tcpmon_timeslice_read_bytes_total", reader.port()), 54_096.0);
    no_read_is_an_activation(&page, reader.port());
    sender.finish();
    reader.resume();
    reader.wait();
}

#[test]
fn unread_data_counts_for_the_process_that_listens_on_that_address() {
    let lab = Lab::new();
    let four = Traffic::reader(lab.receiver()).comm("on-four").paused().spawn();
    let six = Traffic::reader(lab.receiver()).comm("on-six").ipv6().port(four.port()).paused().spawn();
    let daemon = Daemon::start(&[]);
    let _senders = [(&four, 10_000), (&six, 20_000)].map(|(reader, bytes)| {
        let sender = sender(&lab, reader).bytes(bytes).hold_open().spawn();
        eventually(DEADLINE, "the data wait", || {
            let mut sockets = truth::sockets(lab.receiver()).into_iter();
            sockets.any(|socket| socket.local == reader.address() && socket.recv_q == bytes as u32)
        });
        sender
    });
    let page = daemon.scrape();
    let waiting = |process: &str| page.value("tcpmon_receive_queue_bytes", &group(process, four.port()));
    assert_eq!([waiting("on-four"), waiting("on-six")], [Some(10_000.0), Some(20_000.0)]);
}

/// Hands the socket over to a process named `tail`, which only keeps it open. This process no longer has it.
fn passed_on(lab: &Lab, socket: impl Into<OwnedFd>) -> Killed {
    let socket = socket.into();
    let inherited = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty());
    nix::fcntl::fcntl(&socket, inherited).expect("a descriptor can be inherited");
    Killed(lab.receiver().command("tail").args(["-f", "/dev/null"]).spawn().expect("tail starts"))
}

/// Whether the process has a descriptor of the socket with this inode.
fn has_open(process: u32, inode: u32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).expect("the process runs");
    let targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    targets.into_iter().any(|target| target == Path::new(&format!("socket:[{inode}]")))
}

#[test]
fn of_two_that_listen_on_one_port_each_has_what_it_accepts() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let listen = |port: u16| {
        let socket = lab.receiver().run(|| Socket::new(Domain::IPV4, Type::STREAM, None)).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&SocketAddr::from((lab.receiver().v4, port)).into()).unwrap();
        socket.listen(1000).unwrap();
        TcpListener::from(socket)
    };
    let port = free_port().unwrap();
    let (own, other) = (listen(port), listen(port));
    let other = passed_on(&lab, other);
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let mut client = lab.sender().run(|| TcpStream::connect((lab.receiver().v4, port))).unwrap();
            client.write_all(&[7; 1000]).unwrap();
            client
        })
        .collect();
    // The kernel chooses one of the two for each connection.
    let accepted = |process: u32| {
        let sockets = truth::sockets(lab.receiver());
        let mut listening = sockets.iter().filter(|socket| socket.state == truth::State::Listen);
        f64::from(listening.find(|socket| has_open(process, socket.inode)).expect("it listens").recv_q)
    };
    eventually(DEADLINE, "all connections wait to be accepted", || {
        accepted(std::process::id()) + accepted(other.0.id()) == clients.len() as f64
    });
    let expected = [accepted(std::process::id()), accepted(other.0.id())].map(|connections| connections * 1000.0);
    assert!(expected[0] > 0.0 && expected[1] > 0.0, "{expected:?}");
    let own_name = std::fs::read_to_string("/proc/self/comm").unwrap();
    eventually(DEADLINE, "what waits is of the process whose listening socket has accepted it", || {
        let page = daemon.scrape();
        let found = [own_name.trim(), "tail"]
            .map(|process| page.value("tcpmon_receive_queue_bytes", &group(process, port)).unwrap_or_default());
        if found == expected { Ok(()) } else { Err(format!("{found:?}, not {expected:?}")) }
    });
    drop(own);
}

#[test]
fn unread_data_counts_for_the_process_that_has_the_socket_open() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let port = free_port().unwrap();
    let (listener, mut client, accepted) = accepted_at(&lab, port);
    client.write_all(&[7; 5000]).unwrap();
    let own_name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let is_of = |process: &str| waits_at(&daemon, port, process);
    is_of(own_name.trim());
    let other = passed_on(&lab, accepted);
    let page = is_of("tail");
    assert_eq!(of_service(&page, "tcpmon_receive_bytes_total", port), 5000.0);
    // What was received before counts for the process that had the socket then.
    assert_eq!(page.value("tcpmon_receive_bytes_total", &group(own_name.trim(), port)), Some(5000.0));
    client.write_all(&[7; 1000]).unwrap();
    eventually(DEADLINE, "what comes from now on is of the process that has it", || {
        daemon.scrape().value("tcpmon_receive_bytes_total", &group("tail", port)) == Some(1000.0)
    });
    drop((listener, other));
}

/// A listener of this process at this port, and both ends of a connection that it has accepted.
fn accepted_at(lab: &Lab, port: u16) -> (TcpListener, TcpStream, TcpStream) {
    let address = (lab.receiver().v4, port);
    let listener = lab.receiver().run(|| TcpListener::bind(address)).expect("the port is free");
    let client = lab.sender().run(|| TcpStream::connect(address)).expect("it listens");
    let accepted = listener.accept().expect("the connection").0;
    (listener, client, accepted)
}

/// Waits until the 5,000 bytes that wait at this port count for `process`: the test's own process or `tail`.
#[track_caller]
fn waits_at(daemon: &Daemon, port: u16, process: &str) -> Page {
    let own_name = std::fs::read_to_string("/proc/self/comm").expect("this process has a name");
    let names = [own_name.trim(), "tail"];
    eventually(DEADLINE, "what waits is of the process that has it", || {
        let page = daemon.scrape();
        let found =
            names.map(|process| page.value("tcpmon_receive_queue_bytes", &group(process, port)).unwrap_or_default());
        let expected = names.map(|name| if name == process { 5000.0 } else { 0.0 });
        if found == expected { Ok(page) } else { Err(format!("{found:?}, not {expected:?}")) }
    })
}

/// Some processes accept a connection, and look at its first bytes to see whom it is for.
#[test]
fn unread_data_of_a_socket_that_its_reader_passed_on_counts_for_the_new_owner() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let port = free_port().unwrap();
    let (listener, mut client, mut accepted) = accepted_at(&lab, port);
    client.write_all(&[7; 1000]).unwrap();
    accepted.read_exact(&mut [0; 1000]).unwrap();
    client.write_all(&[7; 5000]).unwrap();
    let own_name = std::fs::read_to_string("/proc/self/comm").unwrap();
    waits_at(&daemon, port, own_name.trim());
    let other = passed_on(&lab, accepted);
    let page = waits_at(&daemon, port, "tail");
    assert_eq!(page.value(READ, &group(own_name.trim(), port)), Some(1000.0));
    assert_eq!(of_service(&page, "tcpmon_receive_bytes_total", port), 6000.0);
    drop((listener, other));
}

/// If two processes have a socket open, the daemon finds the one with the lower id at its start, and the iterator
/// `owners` finds the other one.
#[test]
fn where_the_kernel_refuses_to_tell_who_has_a_socket_open_what_waits_is_of_whom_the_start_has_found() {
    /// Of `enum bpf_cmd`.
    const BPF_LINK_CREATE: u64 = 28;
    let lab = Lab::new();
    let port = free_port().unwrap();
    let listener = lab.receiver().run(|| TcpListener::bind((lab.receiver().v4, port))).unwrap();
    let other = passed_on(&lab, listener.try_clone().unwrap());
    let daemon = Daemon::start(&[]);
    let refused = Daemon::try_start_refusing_own(BPF_LINK_CREATE, &[]).unwrap();
    let (mut all, mut told) = (sources_and_probes(&daemon), sources_and_probes(&refused));
    assert_eq!(all.remove("owners"), Some((true, String::new())));
    let (attached, reason) = told.remove("owners").unwrap();
    assert!(!attached && reason.contains("Operation not permitted"), "{reason}");
    assert_eq!(told, all);

    // The connection is not accepted, so no process has it open, and it counts for one that has the listening socket.
    let mut client = lab.sender().run(|| TcpStream::connect((lab.receiver().v4, port))).unwrap();
    client.write_all(&[7; 5000]).unwrap();
    let own_name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let mut names = [own_name.trim(), "tail"];
    // Process ids wrap around.
    if other.0.id() < std::process::id() {
        names.reverse();
    }
    for (daemon, process) in [(&refused, names[0]), (&daemon, names[1])] {
        let page = waits_at(daemon, port, process);
        assert_eq!(of_service(&page, "tcpmon_receive_bytes_total", port), 5000.0);
    }
}

#[test]
fn connections_of_a_transparent_proxy_are_one_service() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let socket = lab.receiver().run(|| Socket::new(Domain::IPV4, Type::STREAM, None)).unwrap();
    let port = free_port().unwrap();
    socket.set_ip_transparent_v4(true).unwrap();
    socket.bind(&SocketAddr::from((lab.receiver().v4, port)).into()).unwrap();
    socket.listen(1000).unwrap();
    let proxy = TcpListener::from(socket);
    lab.proxy_to(port);
    for to in 2000..2020 {
        let mut client = lab.sender().run(|| TcpStream::connect((lab.receiver().v4, to))).unwrap();
        let mut accepted = proxy.accept().unwrap().0;
        // The proxy is transparent: the local port is the one that the client connected to.
        assert_eq!(accepted.local_addr().unwrap().port(), to);
        client.write_all(&[7; 1000]).unwrap();
        accepted.read_exact(&mut [0; 1000]).unwrap();
    }
    let page = daemon.scrape();
    let own_name = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(page.value(READ, &group(own_name.trim(), port)), Some(20_000.0));
    let timeslices = page.samples("tcpmon_timeslices_total");
    let services = timeslices.iter().map(|sample| &*sample.labels["service"]);
    assert_eq!(services.filter(|service| service.starts_with("local:20")).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_port_may_be_chosen_at_one_address_and_asked_for_at_another() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let chosen = Traffic::reader(lab.receiver()).comm("chosen").port_of_the_kernels_choice().until_exit().spawn();
    let asked_for = Traffic::reader(lab.receiver()).comm("asked-for").ipv6().port(chosen.port()).until_exit().spawn();
    for (reader, bytes) in [(&chosen, 1_000), (&asked_for, 2_000), (&chosen, 4_000)] {
        sender(&lab, reader).bytes(bytes).spawn().wait();
    }
    let port = format!("local:{}", chosen.port());
    let page = daemon.scrape();
    for (process, service, bytes) in [("chosen", "local:ephemeral", 5_000.0), ("asked-for", &port, 2_000.0)] {
        assert_eq!(page.sum(READ, &[("process", process)]), bytes);
        assert_eq!(page.sum(READ, &[("process", process), ("service", service)]), bytes, "{service}");
    }
}

/// Each activation is followed by the end of a timeslice. So there are at most as many activations as timeslices, plus
/// the first activation of each of three threads.
fn no_read_is_an_activation(page: &Page, port: u16) {
    let service = format!("local:{port}");
    let labels = [("service", service.as_str()), ("edge", "activation")];
    let activations = page.sum("tcpmon_timeslice_fill_ratio_count", &labels);
    let timeslices = of_service(page, "tcpmon_timeslices_total", port);
    assert!(activations > 0.0 && activations <= timeslices + 3.0, "{activations} of {timeslices} timeslices");
}

#[test]
fn ports_that_the_kernel_chose_are_one_service_and_those_that_were_asked_for_are_not() {
    let lab = Lab::new();
    let old =
        Traffic::reader(lab.receiver()).comm("old-ftp").port_of_the_kernels_choice().paused().until_exit().spawn();
    let held = sender(&lab, &old).bytes(5_000).hold_open().spawn();
    let daemon = Daemon::start(&[]);
    // A separate port for each connection, as FTP does it, all read by one thread.
    let ports = many(2_000);
    let (clients, to_write) = channel::<TcpStream>();
    let writer = spawn(move || to_write.into_iter().for_each(|mut client| client.write_all(&[7; 1000]).unwrap()));
    for number in 0..ports {
        let listener = lab.receiver().run(|| TcpListener::bind((lab.receiver().v4, 0))).unwrap();
        let to = listener.local_addr().unwrap();
        let client = lab.sender().run(|| TcpStream::connect(to)).unwrap();
        // Every second listening socket is closed before its connection is read.
        let mut accepted = listener.accept().unwrap().0;
        let listener = (number % 2 == 0).then_some(listener);
        clients.send(client).unwrap();
        accepted.read_exact(&mut [0; 1000]).unwrap();
        drop((accepted, listener));
    }
    drop(clients);
    writer.join().unwrap();
    let asked_for = Traffic::reader(lab.receiver()).comm("asked-for").threads(Threads::Epoll).spawn();
    sender(&lab, &asked_for).bytes(3_000).spawn().wait();
    assert_eq!(old.read(5_000), 5_000);
    let own_name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let expected = [(own_name.trim(), ports as f64 * 1000.0), ("old-ftp", 5_000.0)];
    let page = eventually(DEADLINE, "all of them are counted as one service", || {
        let page = daemon.scrape();
        let found =
            expected.map(|(process, _)| page.sum(READ, &[("process", process), ("service", "local:ephemeral")]));
        if found == expected.map(|(_, bytes)| bytes) { Ok(page) } else { Err(format!("{found:?}")) }
    });
    for (process, _) in expected {
        let mut services: Vec<&str> = page
            .samples(READ)
            .iter()
            .filter(|sample| sample.labels["process"] == process)
            .map(|sample| &*sample.labels["service"])
            .collect();
        // The other ends of the connections also belong to this test.
        services.retain(|service| !(process == own_name.trim() && *service == "other"));
        assert_eq!(services, ["local:ephemeral"], "{process}");
    }
    // The same holds for the timeslices of a thread that has read from all of them. The few others come from reading
    // tcpmon's metrics pages.
    let own = |service| page.sum("tcpmon_timeslices_total", &[("process", own_name.trim()), ("service", service)]);
    assert!(own("local:ephemeral") > own("other"), "{} and {}", own("local:ephemeral"), own("other"));
    assert_eq!(page.value(READ, &group("asked-for", asked_for.port())), Some(3_000.0));
    held.finish();
}

#[test]
fn ports_of_a_range_are_one_service_and_those_beside_it_are_not() {
    let lab = Lab::new();
    let listeners = [50_000, 50_500, 51_000, 51_001]
        .map(|port| lab.receiver().run(|| TcpListener::bind((lab.receiver().v4, port))).unwrap());
    let connect = |to: &TcpListener, from: u16| {
        let client = lab.sender().run(|| Socket::new(Domain::IPV4, Type::STREAM, None)).unwrap();
        client.bind(&SocketAddr::from((lab.sender().v4, from)).into()).unwrap();
        client.connect(&to.local_addr().unwrap().into()).unwrap();
        (TcpStream::from(client), to.accept().unwrap().0)
    };
    // Judged by the clients' ports alone, three of these would be connections that this side opened to services.
    let old: Vec<_> =
        listeners.iter().zip([2000, 2001, 2002, 40_000]).map(|(listener, from)| connect(listener, from)).collect();
    let daemon = Daemon::start(&["--ephemeral-ports", "50000-51000"]);
    let young: Vec<_> = listeners.iter().zip(3000..).map(|(listener, from)| connect(listener, from)).collect();
    for (mut client, mut accepted) in old.into_iter().chain(young) {
        client.write_all(&[7; 1000]).unwrap();
        accepted.read_exact(&mut [0; 1000]).unwrap();
        // Sleep, so that each read ends a timeslice of its own.
        sleep(Duration::from_millis(1));
    }
    let own_name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let page = daemon.scrape();
    // The other connections of this test are those to tcpmon.
    let of_services = |family| -> Vec<(&str, f64)> {
        let samples = page.samples(family).into_iter().filter(|sample| sample.labels["process"] == own_name.trim());
        let mut values: Vec<_> = samples.map(|sample| (&*sample.labels["service"], sample.value)).collect();
        values.retain(|(service, value)| *service != "other" && *value > 0.0);
        values.sort_by_key(|(service, _)| *service);
        values
    };
    assert_eq!(of_services(READ), [("local:51001", 2000.0), ("local:ephemeral", 6000.0)]);
    let timeslices = of_services("tcpmon_timeslice_seconds_count").into_iter().map(|(service, _)| service);
    assert_eq!(timeslices.collect::<Vec<_>>(), ["local:51001", "local:ephemeral"]);
}

#[test]
fn threads_of_the_kernel_are_one_process_each_kind() {
    if !Nbd::exists() {
        return report::not_supported("this kernel has no nbd module, whose threads read from TCP");
    }
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let port = free_port().unwrap();
    let listener = lab.receiver().run(|| TcpListener::bind((lab.receiver().v4, port))).unwrap();
    let other_end = lab.sender().run(|| TcpStream::connect(listener.local_addr().unwrap())).unwrap();
    let device = Nbd::start(listener.accept().unwrap().0, other_end, 8 << 20);
    let bytes = device.read_all();
    assert!(bytes > 8 << 20, "{bytes}");
    let page = daemon.scrape();
    assert_eq!(of_service(&page, READ, port), bytes as f64);
    let service = format!("local:{port}");
    let samples = page.samples(READ).into_iter().filter(|sample| sample.labels["service"] == service);
    let mut processes: Vec<&str> = samples.map(|sample| &*sample.labels["process"]).collect();
    // If no worker is available in time, the work queue's own rescuer thread reads.
    processes.retain(|process| !process.ends_with("nbd0-recv"));
    assert!(processes.is_empty() || processes == ["kworker"], "{processes:?}");
    let threads = page.samples("tcpmon_timeslices_total");
    let mut names = threads.iter().map(|sample| &sample.labels["process"]);
    assert_eq!(names.find(|name| name.contains('/')), None);
}

/// Reads with io_uring in the kernel's worker threads and in its submission thread.
#[test]
fn reads_by_threads_of_io_uring_count_for_the_process_they_work_for() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let own_name = std::fs::read_to_string("/proc/self/comm").unwrap();
    for (polled, flags) in [(false, squeue::Flags::ASYNC), (true, squeue::Flags::empty())] {
        let mut builder = IoUring::builder();
        if polled {
            builder.setup_sqpoll(1000);
        }
        let mut ring = match builder.build(8) {
            Ok(ring) => ring,
            Err(error) => return report::not_supported(&format!("io_uring cannot be used here ({error})")),
        };
        let port = free_port().unwrap();
        let listener = lab.receiver().run(|| TcpListener::bind((lab.receiver().v4, port))).unwrap();
        let mut client = lab.sender().run(|| TcpStream::connect(listener.local_addr().unwrap())).unwrap();
        let accepted = listener.accept().unwrap().0;
        client.write_all(&[7; 20_000]).unwrap();
        let mut buffer = vec![0; 1000];
        for _ in 0..20 {
            receive(&mut ring, &accepted, &mut buffer, flags);
        }
        let page = daemon.scrape();
        assert_eq!(page.value(READ, &group(own_name.trim(), port)), Some(20_000.0), "polled: {polled}");
        assert_eq!(of_service(&page, READ, port), 20_000.0);
    }
}

/// Fills the buffer with one io_uring receive.
#[expect(unsafe_code, reason = "io_uring writes to the buffer behind the compiler's back")]
fn receive(ring: &mut IoUring, from: &TcpStream, buffer: &mut [u8], flags: squeue::Flags) {
    use std::os::fd::AsRawFd as _;

    let all = libc::MSG_WAITALL;
    let entry = opcode::Recv::new(types::Fd(from.as_raw_fd()), buffer.as_mut_ptr(), buffer.len() as u32).flags(all);
    // SAFETY: the buffer lives until the completion, which is waited for.
    unsafe { ring.submission().push(&entry.build().flags(flags)).expect("the queue has room") };
    ring.submit_and_wait(1).expect("submitted");
    let completion = ring.completion().next().expect("a completion");
    assert_eq!(completion.result(), buffer.len() as i32);
}

#[test]
fn drops_of_sockets_that_live_leave_their_map_and_stay_counted() {
    let lab = Lab::new();
    let daemon = Daemon::start(&["--max-drop-entries", "8"]);
    if !is_attached(&daemon, "kfree_skb") {
        return;
    }
    // Uses the kernel's own trace, because a socket counts the segments that GRO has merged. Only this test's sockets
    // have a filter.
    let by_kernel = truth::Trace::start("skb/kfree_skb");
    let expected = || by_kernel.lines().iter().filter(|line| line.contains("SOCKET_FILTER")).count() as f64;
    // Four connections at a time, all of which stay open.
    let mut connections = Vec::new();
    let dropped = |page: &Page| page.sum("tcpmon_receive_drops_total", &[("process", "dropping"), ("effect", "lost")]);
    for _ in 0..4 {
        // One in 10: with one in 4, a segment in 16,000 is lost seven times in a row, which takes 25 s.
        let reader = Traffic::reader(lab.receiver())
            .comm("dropping")
            .threads(Threads::Epoll)
            .until_exit()
            .drop_one_in(10)
            .spawn();
        let sender = sender(&lab, &reader).flows(4).message(1000).bytes(40_000).hold_open().spawn();
        eventually(DEADLINE, "all is read", || equal(reader.report().bytes, 160_000));
        eventually(DEADLINE, "the drops are counted, and the map is empty", || {
            let page = daemon.scrape();
            let left = page.value("tcpmon_map_entries", &[("map", "drops")]);
            let (found, expected) = ((dropped(&page), left), expected());
            if found == (expected, Some(0.0)) { Ok(()) } else { Err(format!("{found:?}, {expected} expected")) }
        });
        connections.push((reader, sender));
    }
    let dropped = expected();
    assert!(dropped > 8.0, "{dropped} drops do not overflow eight entries");
    assert_eq!(daemon.scrape().value("tcpmon_lost_total", &[("what", "drop_entry")]), Some(0.0));
}
