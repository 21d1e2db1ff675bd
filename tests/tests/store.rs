//! The store of the sockets' states: which connection a state is, which sockets have one, and what a kernel may refuse.
#![expect(clippy::unwrap_used, reason = "a test ends where its claim does")]

mod common;
#[allow(dead_code, reason = "one claim uses a part of it")]
#[path = "privileges/intruder.rs"]
mod intruder;
#[path = "privileges/registers.rs"]
mod registers;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData, MapInfo};
use common::{DEADLINE, lost, sender, sources_and_probes};
use intruder::{Intruder, Outcome};
use rustix::thread::{MembarrierCommand, membarrier};
use socket2::{Domain, SockRef, Socket, Type};
use tcpmon_common::socket::{SOCKET_FINAL, SOCKET_UNLISTED, SocketState};
use tcpmon_common::store::{BUCKET, CROWDED, bucket, buckets_log2};
use tcpmon_tests::refusal::BPF_PROG_TEST_RUN;
use tcpmon_tests::traffic::Threads;
use tcpmon_tests::{Daemon, Lab, Page, Traffic, eventually, fewer, many, truth};

/// Bytes received and read for this service.
fn of_service(page: &Page, service: &str) -> [f64; 2] {
    ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"]
        .map(|name| page.sum(name, &[("service", service)]))
}

/// Nothing was lost but the ends of connections that the kernel has hidden from all programs: a pass finds these, with
/// all that they have received.
#[track_caller]
fn nothing_lost(page: &Page, hidden: &truth::HiddenEnds) {
    let unseen = page.value("tcpmon_lost_total", &[("what", "socket_end")]).unwrap();
    hidden.explain(unseen as u64);
    assert_eq!(lost(page), unseen, "{:?}", page.samples("tcpmon_lost_total"));
}

/// Waits until tcpmon has counted these bytes, received and read, for these services.
#[track_caller]
fn counted(daemon: &Daemon, expected: &[(&str, u64)]) {
    eventually(DEADLINE, "every byte has its service", || {
        let page = daemon.scrape();
        let seen: Vec<_> = expected.iter().map(|(service, _)| of_service(&page, service)).collect();
        let is_right = |(seen, (_, bytes)): (&[f64; 2], &(&str, u64))| *seen == [*bytes as f64; 2];
        let lost = || page.samples("tcpmon_lost_total").into_iter().filter(|lost| lost.value > 0.0).collect::<Vec<_>>();
        if seen.iter().zip(expected).all(is_right) {
            Ok(())
        } else {
            Err(format!("{seen:?} of {expected:?}: {:?}", lost()))
        }
    });
}

fn listen(lab: &Lab, port: u16) -> TcpListener {
    lab.receiver().run(|| TcpListener::bind(("127.0.0.1", port))).unwrap()
}

fn connect(lab: &Lab, port: u16) -> TcpStream {
    lab.receiver().run(|| TcpStream::connect(("127.0.0.1", port))).unwrap()
}

/// Sends `bytes` from one end to the other, which reads them.
fn transfer(mut from: &TcpStream, mut to: &TcpStream, bytes: usize) {
    from.write_all(&vec![0; bytes]).unwrap();
    to.read_exact(&mut vec![0; bytes]).unwrap();
}

/// The client closes with a reset, as many benchmarks and proxies do: the kernel then forgets its port before the
/// socket ends.
#[test]
fn connections_that_are_reset_by_their_client_have_its_service() {
    let lab = Lab::new();
    let hidden = truth::HiddenEnds::start();
    let daemon = Daemon::start(&[]);
    let listener = listen(&lab, 7_400);
    let connections = many(1_000);
    for _ in 0..connections {
        let client = connect(&lab, 7_400);
        let server = listener.accept().unwrap().0;
        transfer(&client, &server, 20);
        transfer(&server, &client, 10);
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    }
    counted(&daemon, &[("remote:7400", 10 * connections), ("local:7400", 20 * connections)]);
    assert_eq!(of_service(&daemon.scrape(), "remote:0"), [0.0; 2]);
    nothing_lost(&daemon.scrape(), &hidden);
}

#[test]
fn each_connection_of_a_socket_that_connects_again_and_then_listens_is_counted() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let listeners = [7_401, 7_402, 7_403].map(|port| listen(&lab, port));
    let socket = lab.receiver().run(|| Socket::new(Domain::IPV4, Type::STREAM, None)).unwrap();
    socket.set_reuse_address(true).unwrap();
    let client = TcpStream::from(socket);
    for (listener, scrapes) in listeners.iter().zip([true, false, true]) {
        SockRef::from(&client).connect(&listener.local_addr().unwrap().into()).unwrap();
        let server = listener.accept().unwrap().0;
        transfer(&server, &client, 1_000);
        // With and without a pass that has shown it.
        if scrapes {
            daemon.scrape();
        }
        rustix::net::connect_unspec(&client).unwrap();
    }
    let remote = [("remote:7401", 1_000), ("remote:7402", 1_000), ("remote:7403", 1_000)];
    counted(&daemon, &remote);

    let listener = SockRef::from(&client);
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 7_404)).into()).unwrap();
    let accepted = match listener.listen(1) {
        Ok(()) => {
            let peer = connect(&lab, 7_404);
            let accepted = TcpStream::from(listener.accept().unwrap().0);
            transfer(&peer, &accepted, 500);
            500
        }
        // Some kernels let no socket listen that has been connected.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => 0,
        Err(error) => panic!("{error}"),
    };
    // It is open and connected again.
    rustix::net::connect_unspec(&client).unwrap();
    SockRef::from(&client).connect(&listeners[0].local_addr().unwrap().into()).unwrap();
    let server = listeners[0].accept().unwrap().0;
    transfer(&server, &client, 70);
    counted(&daemon, &[("remote:7401", 1_070), remote[1], remote[2], ("local:7404", accepted)]);
    assert_eq!(daemon.scrape().sum("tcpmon_sockets", &[("service", "remote:7401")]), 1.0);
    drop((server, client));
    eventually(DEADLINE, "none is left", || {
        let page = daemon.scrape();
        ["remote:7401", "remote:7402", "remote:7403", "local:7404"]
            .iter()
            .all(|service| page.sum("tcpmon_sockets", &[("service", service)]) == 0.0)
    });
    assert_eq!(lost(&daemon.scrape()), 0.0);
}

/// Sets or gets an option of TCP that is a number.
fn option(socket: &impl std::os::fd::AsRawFd, name: i32, value: Option<u32>) -> u32 {
    let mut number = value.unwrap_or_default();
    let mut length = size_of::<u32>() as u32;
    let (socket, address) = (socket.as_raw_fd(), (&raw mut number).cast());
    #[expect(unsafe_code, reason = "options that no crate wraps")]
    // SAFETY: the number is alive, and as long as is said.
    let result = unsafe {
        match value {
            Some(_) => libc::setsockopt(socket, libc::IPPROTO_TCP, name, address, length),
            None => libc::getsockopt(socket, libc::IPPROTO_TCP, name, address, &raw mut length),
        }
    };
    assert_eq!(result, 0, "option {name}: {}", std::io::Error::last_os_error());
    number
}

/// A process that is moved (CRIU) gets its connections back in new sockets, whose numbers do not begin at their first
/// byte.
#[test]
fn a_connection_that_is_restored_in_another_socket_is_counted_from_there() {
    /// `TCP_REPAIR_QUEUE`: of what is received, and of what is sent.
    const QUEUES: [u32; 2] = [1, 2];
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let listener = listen(&lab, 7_405);
    let client = connect(&lab, 7_405);
    let server = listener.accept().unwrap().0;
    transfer(&server, &client, 1_000);
    transfer(&client, &server, 300);

    option(&client, libc::TCP_REPAIR, Some(1));
    let sequences = QUEUES.map(|queue| {
        option(&client, libc::TCP_REPAIR_QUEUE, Some(queue));
        option(&client, libc::TCP_QUEUE_SEQ, None)
    });
    let local = client.local_addr().unwrap();
    // Without a word to the peer.
    drop(client);
    let restored = lab.receiver().run(|| Socket::new(Domain::IPV4, Type::STREAM, None)).unwrap();
    option(&restored, libc::TCP_REPAIR, Some(1));
    restored.set_reuse_address(true).unwrap();
    restored.bind(&local.into()).unwrap();
    for (queue, sequence) in QUEUES.into_iter().zip(sequences) {
        option(&restored, libc::TCP_REPAIR_QUEUE, Some(queue));
        option(&restored, libc::TCP_QUEUE_SEQ, Some(sequence));
    }
    restored.connect(&listener.local_addr().unwrap().into()).unwrap();
    option(&restored, libc::TCP_REPAIR, Some(0));
    let restored = TcpStream::from(restored);
    transfer(&server, &restored, 2_000);
    transfer(&restored, &server, 40);
    let by_kernel = truth::sockets(lab.receiver());
    let by_kernel = by_kernel.iter().find(|socket| socket.local == local).unwrap();
    assert_eq!(by_kernel.info.bytes_received, 2_000);
    counted(&daemon, &[("remote:7405", 3_000), ("local:7405", 340)]);
    assert_eq!(lost(&daemon.scrape()), 0.0);
}

/// Opens connections to a server of its own, one after another, until told to end: each end sends some bytes.
struct Clients {
    threads: Vec<thread::JoinHandle<()>>,
    end: Arc<AtomicBool>,
    connections: Arc<AtomicU64>,
}

/// The last packet of a connection may find a socket that is closed. It is dropped and counted by socket, and no pass
/// takes these counts while the connections are made: a few of 100 connections on a busy machine.
const ROOM_FOR_DROPS: [&str; 2] = ["--max-drop-entries", "65536"];

/// Bytes that each end of a connection gets.
const EACH_WAY: u64 = 100;

/// See [`Clients::start`].
const CATCHES_UP: Duration = Duration::from_millis(20);

impl Clients {
    /// As many threads as there are `ports`, each with a server on one of them, and at most `rate` connections a second
    /// each: who was late by more than [`CATCHES_UP`] does not catch up.
    fn start(lab: &Lab, ports: &[u16], rate: f64) -> Self {
        let (end, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        for port in ports {
            let listener = listen(lab, *port);
            let server = thread::spawn(move || {
                for accepted in listener.incoming() {
                    let mut accepted = accepted.unwrap();
                    let mut bytes = [0; EACH_WAY as usize];
                    // An empty connection is the last one.
                    if accepted.read_exact(&mut bytes).is_err() {
                        return;
                    }
                    accepted.write_all(&bytes).unwrap();
                }
            });
            let (namespace, end) = (lab.receiver().clone(), Arc::clone(&end));
            let (connections, port) = (Arc::clone(&connections), *port);
            let client = move || {
                let mut due = Instant::now();
                while !end.load(Ordering::Relaxed) {
                    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
                    let mut bytes = [0; EACH_WAY as usize];
                    (&client).write_all(&bytes).unwrap();
                    (&client).read_exact(&mut bytes).unwrap();
                    // Its port is free at once.
                    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
                    drop(client);
                    connections.fetch_add(1, Ordering::Relaxed);
                    let now = Instant::now();
                    due = (due + Duration::from_secs_f64(1.0 / rate)).max(now - CATCHES_UP);
                    thread::sleep(due.saturating_duration_since(now));
                }
                drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
            };
            threads.push(thread::spawn(move || namespace.run(client)));
            threads.push(server);
        }
        Self { threads, end, connections }
    }

    fn so_far(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Ends, and returns the number of connections that were made, without the last one of each thread.
    fn finish(self) -> u64 {
        self.end.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.connections.load(Ordering::Relaxed)
    }
}

/// Waits until at least this time has passed and at least so many connections were made.
fn wait_for(clients: &Clients, time: Duration, connections: u64) {
    let begun = Instant::now();
    eventually(time + DEADLINE, "enough connections", || begun.elapsed() >= time && clients.so_far() >= connections);
}

#[test]
fn a_daemon_that_is_stopped_for_half_a_minute_under_two_thousand_connections_a_second_loses_nothing() {
    let lab = Lab::new();
    let hidden = truth::HiddenEnds::start();
    let daemon = Daemon::start(&ROOM_FOR_DROPS);
    let (rate, stopped) = fewer((2_000.0, 30), (50.0, 5));
    let open_maps = || {
        let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
        let files = open.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
        files.filter(|file| file.as_os_str() == "anon_inode:bpf-map").count()
    };
    let open_before = open_maps();
    let clients = Clients::start(&lab, &[7_410], rate);
    // The store makes room for half a minute at the rate that it sees, for both ends.
    let states = (2.0 * rate * stopped as f64) as u32;
    eventually(3 * DEADLINE, "there is room for half a minute", || {
        let arrays = aya::maps::loaded_maps().flatten().filter(|map| map.name_as_str() == Some("STATES"));
        let room: u32 = arrays.filter(|map| map.value_size() > 4).map(|map| map.max_entries()).sum();
        // The daemon closes the descriptor of an array when it has given its states.
        let adding = open_maps() - open_before;
        if room > states && adding == 0 { Ok(()) } else { Err(format!("{room} of {states} states, {adding} arrays")) }
    });
    let enough = clients.so_far() + (rate * stopped as f64) as u64;
    daemon.stopped_while(|| wait_for(&clients, Duration::from_secs(stopped), enough));
    let connections = clients.finish();
    counted(&daemon, &[("local:7410", connections * EACH_WAY), ("remote:7410", connections * EACH_WAY)]);
    nothing_lost(&daemon.scrape(), &hidden);
}

#[test]
fn as_many_connections_are_begun_ended_and_counted_as_three_clients_make_at_full_speed() {
    let lab = Lab::new();
    let hidden = truth::HiddenEnds::start();
    let daemon = Daemon::start(&ROOM_FOR_DROPS);
    // The kernel counts by network namespace: that of the daemon, and the lab's.
    let opened = || {
        let page = daemon.scrape();
        let count = |by: &str| page.sum("tcpmon_connections_opened_total", &[("counted_by", by)]);
        let in_lab = truth::tcp_counters(lab.receiver());
        (count("programs"), count("kernel") + (in_lab["ActiveOpens"] + in_lab["PassiveOpens"]) as f64)
    };
    let before = opened();
    let ports = [7_420, 7_421, 7_422];
    let clients = Clients::start(&lab, &ports, f64::INFINITY);
    let begun = Instant::now();
    wait_for(&clients, Duration::from_secs(fewer(10, 3)), 0);
    let connections = clients.finish();
    println!("{:.0} connections a second", connections as f64 / begun.elapsed().as_secs_f64());
    for service in ["local", "remote"] {
        eventually(DEADLINE, "every byte is counted once", || {
            let page = daemon.scrape();
            let sums = ports.map(|port| of_service(&page, &format!("{service}:{port}")));
            let seen: f64 = sums.iter().map(|[received, _]| received).sum();
            if seen == (connections * EACH_WAY) as f64 { Ok(()) } else { Err(format!("{seen} of {connections}")) }
        });
    }
    // Each thread has one more, and the scrapes have theirs, at both ends.
    eventually(DEADLINE, "the programs have seen as many begin as the kernel has", || {
        let after = opened();
        let (by_programs, by_kernel) = (after.0 - before.0, after.1 - before.1);
        let enough = by_programs >= (2 * connections) as f64;
        if by_programs == by_kernel && enough { Ok(()) } else { Err(format!("{by_programs} {by_kernel}")) }
    });
    nothing_lost(&daemon.scrape(), &hidden);
    eventually(DEADLINE, "each of them has ended, and their states are free again", || {
        let page = daemon.scrape();
        let of_port = |service: &str, port| page.sum("tcpmon_sockets", &[("service", &format!("{service}:{port}"))]);
        let open: f64 = ports.iter().map(|port| of_port("local", port) + of_port("remote", port)).sum();
        let in_use = page.value("tcpmon_map_entries", &[("map", "sockets")]).unwrap();
        let by_kernel = truth::sockets(lab.receiver()).len();
        let seen = format!("{open} are open, {in_use} states in use, {by_kernel} sockets in the lab");
        if open == 0.0 && in_use < 100.0 { Ok(()) } else { Err(seen) }
    });
}

/// A socket, and the numbers of its two buckets in a table of `1 << (64 - shift)` buckets.
fn socket_of_buckets(shift: u32) -> (Socket, [u32; 2]) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let cookie = socket.cookie().unwrap();
    (socket, [false, true].map(|second| bucket(cookie, second, shift)))
}

/// A socket, and others that fill both of its buckets if they connect before it, in this order. The last one has no
/// other buckets either.
///
/// That is one of 16,384 sockets in the smallest table, and four are needed: some 75,000 sockets are made for them (at
/// most 241,000 in 200 simulated runs), which takes about a second.
fn crowded_out(shift: u32) -> (Socket, Vec<Socket>) {
    let has_two = |(_, [first, second]): &(Socket, [u32; 2])| first != second;
    let (socket, buckets) = std::iter::repeat_with(|| socket_of_buckets(shift)).find(has_two).unwrap();
    let (mut used, mut others) = ([0_usize; 2], Vec::new());
    while used != [BUCKET; 2] {
        let (other, own) = socket_of_buckets(shift);
        let [first, second] = own.map(|number| buckets.iter().position(|full| *full == number));
        // Where the programs enter it.
        let place = match (first, second) {
            (Some(first), _) if used[first] <= CROWDED as usize => first,
            (Some(first), Some(second)) if used[second] < used[first] => second,
            (Some(first), Some(_)) if used[first] < BUCKET => first,
            _ => continue,
        };
        used[place] += 1;
        others.push(other);
    }
    (socket, others)
}

#[test]
fn a_connection_whose_buckets_are_full_is_counted_as_lost_and_once_there_is_room_from_its_first_byte() {
    /// The fewest that can be set.
    const MAX_SOCKETS: u32 = 1024;
    let lab = Lab::new();
    let daemon = Daemon::start(&["--max-sockets", &MAX_SOCKETS.to_string()]);
    let listeners = [7_440, 7_441].map(|port| listen(&lab, port));
    let (socket, others) = lab.receiver().run(|| crowded_out(64 - buckets_log2(MAX_SOCKETS)));
    let connected = |socket: Socket, listener: &TcpListener| {
        socket.connect(&listener.local_addr().unwrap().into()).unwrap();
        let (client, server) = (TcpStream::from(socket), listener.accept().unwrap().0);
        transfer(&server, &client, 1_000);
        transfer(&client, &server, 10);
        (client, server)
    };
    let mut others: Vec<_> = others.into_iter().map(|other| connected(other, &listeners[0])).collect();
    let (client, server) = connected(socket, &listeners[1]);
    let number = others.len() as u64;
    let of_others = [("remote:7440", 1_000 * number), ("local:7440", 10 * number)];
    counted(&daemon, &[of_others[0], of_others[1], ("remote:7441", 0), ("local:7441", 10)]);
    let page = daemon.scrape();
    let refused = page.value("tcpmon_lost_total", &[("what", "socket_table")]).unwrap();
    assert!(refused > 0.0 && lost(&page) == refused, "{:?}", page.samples("tcpmon_lost_total"));

    let (ends, _its_server) = others.pop().unwrap();
    // At once.
    SockRef::from(&ends).set_linger(Some(Duration::ZERO)).unwrap();
    drop(ends);
    transfer(&server, &client, 70);
    counted(&daemon, &[of_others[0], of_others[1], ("remote:7441", 1_070), ("local:7441", 10)]);
}

/// Takes the programs on the ends of sockets away from a daemon: the kernel detaches a program when nobody has its link
/// open any more.
fn hide_ends(daemon: &Daemon) {
    let files = fs::read_dir(format!("/proc/{}/fdinfo", daemon.pid())).unwrap().map(|file| file.unwrap().path());
    let is_of_ends = |file: &PathBuf| {
        // A file that has been closed meanwhile is no link.
        let about = fs::read_to_string(file).unwrap_or_default();
        about.lines().any(|line| line.split_whitespace().eq(["tp_name:", "tcp_destroy_sock"]))
    };
    let links: Vec<PathBuf> = files.filter(is_of_ends).collect();
    assert_eq!(links.len(), 2, "each of the two programs has a link");
    let intruder = Intruder::in_thread(daemon.pid().cast_signed());
    for link in links {
        let descriptor: i32 = link.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert_eq!(intruder.call(libc::SYS_close, &[descriptor.into()]), Outcome::Returned(0));
    }
}

/// After the owner has closed a connection, nothing can come after the change to CLOSE. After a reset its owner still
/// has it: what might have come until it was closed counts as lost.
#[test]
fn an_end_that_no_program_sees_is_found_by_a_pass_with_all_that_was_received() {
    const CONNECTIONS: u64 = 20;
    let lab = Lab::new();
    let hidden = truth::HiddenEnds::start();
    let daemon = Daemon::start(&[]);
    hide_ends(&daemon);
    for (port, is_reset) in [(7_442, false), (7_443, true)] {
        let listener = listen(&lab, port);
        for _ in 0..CONNECTIONS {
            let client = connect(&lab, port);
            let mut server = listener.accept().unwrap().0;
            transfer(&server, &client, 1_000);
            transfer(&client, &server, 300);
            if is_reset {
                SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
            }
            drop(client);
            // It is closed after that has arrived.
            assert_eq!(server.read(&mut [0]).is_err(), is_reset);
        }
    }
    let [to_client, to_server] = [1_000, 300].map(|bytes| bytes * CONNECTIONS);
    let expected =
        [("remote:7442", to_client), ("local:7442", to_server), ("remote:7443", to_client), ("local:7443", to_server)];
    counted(&daemon, &expected);
    eventually(DEADLINE, "none is left", || {
        let page = daemon.scrape();
        expected.iter().all(|(service, _)| page.sum("tcpmon_sockets", &[("service", service)]) == 0.0)
    });
    let page = daemon.scrape();
    let unseen = page.value("tcpmon_lost_total", &[("what", "socket_end")]).unwrap();
    // Both ends of each, and those of scrapes, whose server shuts them down before it closes them.
    let (resets, own) = ((2 * CONNECTIONS) as f64, (4 * CONNECTIONS) as f64);
    let opened = page.value("tcpmon_connections_opened_total", &[("counted_by", "programs")]).unwrap();
    let most = resets + (opened - own) + hidden.most() as f64;
    assert!((resets..=most).contains(&unseen), "{unseen} instead of {resets} to {most}");
    assert_eq!(lost(&page), unseen, "{:?}", page.samples("tcpmon_lost_total"));
}

/// The state of a socket as the kernel's maps have it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct State(SocketState);

#[expect(unsafe_code, reason = "a trait of aya for what maps have")]
// SAFETY: it has no padding, and any bytes are one.
unsafe impl aya::Pod for State {}

/// The array with the state of the socket with this cookie, and its place there.
fn state_of(cookie: u64) -> Option<(Array<MapData, State>, u32)> {
    let is_array =
        |map: &MapInfo| map.name_as_str() == Some("STATES") && map.value_size() as usize == size_of::<SocketState>();
    let mut arrays = aya::maps::loaded_maps().flatten().filter(is_array);
    arrays.find_map(|map| {
        let states = Array::try_from(Map::Array(MapData::from_id(map.id()).unwrap())).unwrap();
        let has_cookie = |index: &u32| states.get(index, 0).is_ok_and(|state: State| state.0.cookie == cookie);
        let index = (0..states.len()).find(has_cookie)?;
        Some((states, index))
    })
}

/// An end has no place in the list of ends if other CPUs change the head of the list each time before this one can,
/// which no test can bring about.
#[test]
fn an_end_that_had_no_place_in_the_list_is_taken_by_the_next_pass() {
    for refused in [None, Some(BPF_PROG_TEST_RUN)] {
        let lab = Lab::new();
        let daemon = refused.map_or_else(|| Daemon::start(&[]), |command| refusing(command).unwrap());
        let listener = listen(&lab, 7_445);
        let client = connect(&lab, 7_445);
        let server = listener.accept().unwrap().0;
        transfer(&server, &client, 1_000);
        transfer(&client, &server, 300);
        let expected = [("remote:7445", 1_000), ("local:7445", 300)];
        let open = || {
            let page = daemon.scrape();
            expected.map(|(service, _)| page.sum("tcpmon_sockets", &[("service", service)]))
        };
        counted(&daemon, &expected);
        assert_eq!(open(), [1.0, 1.0]);
        let cookie = SockRef::from(&client).cookie().unwrap();
        let (mut states, index) = state_of(cookie).unwrap();
        let mut state = states.get(&index, 0).unwrap();
        state.0.flags |= SOCKET_FINAL | SOCKET_UNLISTED;
        states.set(index, state, 0).unwrap();
        eventually(DEADLINE, "the end is counted and its state is free", || {
            let seen = (open(), state_of(cookie).is_some());
            if seen == ([0.0, 1.0], false) { Ok(()) } else { Err(format!("{seen:?}")) }
        });
        counted(&daemon, &expected);
        assert_eq!(lost(&daemon.scrape()), 0.0);
    }
}

/// A daemon for which bpf(2) refuses a command, as a hardened kernel does.
fn refusing(command: u64) -> Result<Daemon, tcpmon_tests::Refused> {
    Daemon::try_start_refusing(command, &[])
}

/// `enum bpf_cmd`.
const BPF_MAP_UPDATE_BATCH: u64 = 26;
const BPF_ITER_CREATE: u64 = 33;

/// As before Linux 5.19.
#[test]
fn where_the_kernel_adds_arrays_one_by_one_there_is_room_all_the_same() {
    const FLOWS: u64 = 250;
    let lab = Lab::new();
    let daemon = refusing(BPF_MAP_UPDATE_BATCH).unwrap();
    let reader = Traffic::reader(lab.receiver()).comm("room").threads(Threads::Epoll).until_exit().spawn();
    let service = format!("local:{}", reader.port());
    let in_use = || daemon.scrape().value("tcpmon_map_entries", &[("map", "sockets")]).unwrap();
    let mut senders = Vec::new();
    // The 4,097th state is in an array that was added later; both ends have one.
    while in_use() < 5_000.0 {
        senders.push(sender(&lab, &reader).flows(FLOWS).bytes(EACH_WAY).hold_open().spawn());
        counted(&daemon, &[(&service, senders.len() as u64 * FLOWS * EACH_WAY)]);
    }
    assert_eq!(lost(&daemon.scrape()), 0.0);
}

#[test]
fn where_the_kernel_runs_no_program_for_user_space_all_is_as_of_the_last_event_and_the_status_says_so() {
    let lab = Lab::new();
    let daemon = refusing(BPF_PROG_TEST_RUN).unwrap();
    let (attached, reason) = sources_and_probes(&daemon).remove("look").unwrap();
    assert!(!attached && reason.contains("Operation not permitted"), "{reason}");
    let listener = listen(&lab, 7_430);
    let client = connect(&lab, 7_430);
    let server = listener.accept().unwrap().0;
    for _ in 0..10 {
        transfer(&client, &server, 5_000);
    }
    let page = daemon.scrape();
    let sockets = |page: &Page| page.sum("tcpmon_sockets", &[("service", "local:7430")]);
    assert_eq!((of_service(&page, "local:7430"), sockets(&page)), ([50_000.0; 2], 1.0));
    // What waits is seen up to the last segment but one.
    let segments = [1, 2, 3].map(|sent| {
        (&client).write_all(&[0; 700]).unwrap();
        eventually(DEADLINE, "the segment waits, and its ACK has brought a window", || {
            let sockets = truth::sockets(lab.receiver());
            let ends = |stream: &TcpStream| (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            let of = |stream| sockets.iter().find(|socket| (socket.local, socket.remote) == ends(stream));
            let (client, server) = (of(&client)?, of(&server)?);
            (server.recv_q == sent * 700 && client.info.unacked == 0).then(|| server.clone())
        })
    });
    let page = daemon.scrape();
    let of_page = |name: &str| page.sum(&format!("tcpmon_receive_{name}_bytes"), &[("service", "local:7430")]);
    let last_but_one = &segments[1];
    // Before 6.2, the kernel does not say the window.
    let window = last_but_one.info.rcv_wnd.map_or_else(|| of_page("window").max(1.0), f64::from);
    let expected = [1_400.0, last_but_one.rmem.into(), last_but_one.rcvbuf.into(), window];
    assert_eq!(["queue", "buffer_used", "buffer_limit", "window"].map(of_page), expected);
    // After a reset, what is unread can still be read, but the reader holds up nobody.
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    eventually(DEADLINE, "the connection is reset", || {
        let mut sockets = truth::sockets(lab.receiver());
        sockets.retain(|socket| socket.is_connection_to(7_430));
        if sockets.is_empty() { Ok(()) } else { Err(format!("{sockets:?}")) }
    });
    // It leaves inet_diag before the tracepoint fires: this waits until all softirqs that now run have ended.
    membarrier(MembarrierCommand::Global).unwrap();
    let limited = |cause| {
        let labels = [("service", "local:7430"), ("cause", cause)];
        daemon.scrape().sum("tcpmon_receive_limited_seconds_total", &labels)
    };
    let (application, upstream) = (limited("application"), limited("upstream"));
    eventually(DEADLINE, "time passes, which the reader does not limit", || {
        let seen = limited("upstream") - upstream;
        if seen >= 1.0 { Ok(()) } else { Err(format!("{seen} s, {} of the reader", limited("application"))) }
    });
    assert_eq!(limited("application"), application, "s that the reader was the limit");
    drop(server);
    eventually(DEADLINE, "the end shows all", || {
        let page = daemon.scrape();
        let seen = (page.sum("tcpmon_receive_bytes_total", &[("service", "local:7430")]), sockets(&page));
        if seen == (52_100.0, 0.0) { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    assert_eq!(lost(&daemon.scrape()), 0.0);
}

#[test]
fn where_the_kernel_runs_no_program_for_user_space_an_older_connection_has_the_window_that_it_had_at_the_start() {
    let lab = Lab::new();
    let listener = listen(&lab, 7_431);
    let client = connect(&lab, 7_431);
    let server = listener.accept().unwrap().0;
    transfer(&client, &server, 5_000);
    let sockets = truth::sockets(lab.receiver());
    let truth = sockets.iter().find(|socket| socket.remote == client.local_addr().unwrap()).unwrap();
    let daemon = refusing(BPF_PROG_TEST_RUN).unwrap();
    let page = daemon.scrape();
    let [window, closed] = ["tcpmon_receive_window_bytes", "tcpmon_receive_zero_window_seconds_total"]
        .map(|name| page.sum(name, &[("service", "local:7431")]));
    // Before 6.2, the kernel does not say it.
    assert_eq!(window, truth.info.rcv_wnd.map_or(window.max(1.0), f64::from));
    assert_eq!(closed, 0.0);
    drop((client, server));
}

#[test]
fn where_the_kernel_refuses_the_iterator_tcpmon_says_so_in_one_sentence() {
    let Err(refusal) = refusing(BPF_ITER_CREATE) else { panic!("it starts without the sockets that are open") };
    assert_eq!(refusal.status.code(), Some(3), "{refusal:?}");
    assert_eq!(refusal.stderr.trim().lines().count(), 1, "{refusal:?}");
    let parts = ["iterator task_file", "Operation not permitted", "forbids"];
    assert!(parts.iter().all(|part| refusal.stderr.contains(part)), "{refusal:?}");
}

/// Nobody has asked for the cookies of their sockets before tcpmon starts.
#[test]
fn where_programs_may_not_use_the_socket_of_a_file_open_connections_are_watched_all_the_same() {
    let lab = Lab::new();
    let listener = listen(&lab, 7_447);
    let client = connect(&lab, 7_447);
    let mut server = listener.accept().unwrap().0;
    (&client).write_all(&[0; 5_000]).unwrap();
    eventually(DEADLINE, "all has arrived", || server.peek(&mut [0; 6_000]).unwrap() == 5_000);
    let daemon = Daemon::start_refusing_program("seed", "seed_with_cooki");
    let page = daemon.scrape();
    let of_page = |name, service| page.sum(name, &[("service", service)]);
    assert_eq!(of_page("tcpmon_receive_queue_bytes", "local:7447"), 5_000.0);
    assert_eq!(["local:7447", "remote:7447"].map(|service| of_page("tcpmon_sockets", service)), [1.0; 2]);
    server.read_exact(&mut [0; 5_000]).unwrap();
    transfer(&server, &client, 1_000);
    counted(&daemon, &[("local:7447", 5_000), ("remote:7447", 1_000)]);
    assert_eq!(lost(&daemon.scrape()), 0.0);
}

/// A listener without a port of its own gets one after it has started to listen.
#[test]
fn connections_to_a_listener_that_was_never_bound_are_those_of_a_port_that_the_kernel_chose() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let socket = lab.receiver().run(|| Socket::new(Domain::IPV4, Type::STREAM, None)).unwrap();
    socket.listen(1).unwrap();
    #[expect(unsafe_code, reason = "a copy of the descriptor")]
    // SAFETY: dup(2) returns a new descriptor, which nobody else has.
    let listener = TcpListener::from(unsafe { OwnedFd::from_raw_fd(libc::dup(socket.as_raw_fd())) });
    let port = listener.local_addr().unwrap().port();
    daemon.scrape();
    let client = connect(&lab, port);
    let server = listener.accept().unwrap().0;
    transfer(&client, &server, 900);
    counted(&daemon, &[("local:ephemeral", 900)]);
}
