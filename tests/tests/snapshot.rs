//! The silent snapshot: a pass that shows only sockets that have changed (a silent pass) leaves the table as a pass
//! that shows everything (a full pass) does.
#![expect(clippy::unwrap_used, reason = "it is one test, in pieces")]

mod common;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::DEADLINE;
use nix::unistd::gettid;
use rustix::thread::{MembarrierCommand, membarrier};
use socket2::SockRef;
use tcpmon::clock::monotonic_ns;
use tcpmon::decode::Event;
use tcpmon::kernel::{Kernel, Life, Options, Show};
use tcpmon::model::live::LiveSocket;
use tcpmon::model::snapshot::Group;
use tcpmon::model::table::{Table, TableLimits};
use tcpmon_common::reader::READER_EXITED;
use tcpmon_common::socket::{SocketRecord, SocketTotals, byte_seconds};
use tcpmon_tests::truth::{self, Socket, State};
use tcpmon_tests::{HeldPage, Lab, emulated, equal, eventually, fewer, many};

/// Ports of the services. They are in the test's own namespace, so no other process uses them.
const PORTS: [u16; 2] = [5_001, 5_002];

/// The work of the daemon's collector, without its thread.
struct Collector {
    kernel: Kernel,
    table: Table,
}

impl Collector {
    fn start() -> Self {
        let options = Options {
            trace: None,
            max_sockets: 65_536,
            max_readers: 1024,
            max_drop_entries: 1024,
            ring_bytes: 1 << 20,
            ..Options::default()
        };
        let limits =
            TableLimits { max_groups: 1000, group_ttl: Duration::from_secs(3600), pin: Vec::new(), cgroup_of: None };
        let mut kernel = Kernel::load(options).expect("tcpmon runs here");
        let (grower, placer) = kernel.grower().unwrap().unwrap();
        // They end with the kernel side.
        thread::spawn(move || grower.run());
        thread::spawn(move || placer.run());
        let table = Table::new(limits, Instant::now(), kernel.began_ns());
        let mut collector = Self { kernel, table };
        collector.sockets(Show::Listeners);
        collector.pass(Show::All);
        collector
    }

    /// Runs a whole pass. Returns how many of the test's connections it has shown, and how many of these had a closed
    /// window.
    fn pass(&mut self, show: Show) -> (usize, usize) {
        self.drain();
        let (shown, closed) = self.sockets(show);
        let now = Instant::now();
        for (slot, reader) in &self.kernel.readers() {
            self.table.reader(*slot, reader, now, monotonic_ns());
            if reader.flags & READER_EXITED != 0 {
                self.table.reader_gone(*slot);
                self.kernel.free_reader(*slot).unwrap();
            }
        }
        self.drain();
        let drops: Vec<_> =
            self.kernel.drops().unwrap().iter().map(|(key, count)| (key.cookie, key.reason, *count)).collect();
        self.table.drops(&drops, |reason| reason.to_string(), now);
        (shown, closed)
    }

    fn sockets(&mut self, show: Show) -> (usize, usize) {
        let now = Instant::now();
        self.table.begin(monotonic_ns());
        let mut pass = self.kernel.begin(show);
        let (mut shown, mut closed, mut more) = (0, 0, true);
        while more {
            let table = &mut self.table;
            let each = |record: &SocketRecord, life| {
                let (live, identity) = (&record.live, &record.state.identity);
                if [identity.local_port, identity.remote_port].iter().any(|port| PORTS.contains(port)) {
                    shown += 1;
                    closed += usize::from(live.window < live.mss);
                }
                match life {
                    Life::Open => table.socket(record, now),
                    Life::Ended => table.ended(record, now),
                    Life::Gone => table.gone(record, now),
                }
            };
            more = self.kernel.advance(&mut pass, each).unwrap();
            self.drain();
        }
        self.table.end(now);
        (shown, closed)
    }

    fn drain(&mut self) {
        let ended = self.kernel.take_ended();
        let mut listening = Vec::new();
        let each = |event| match event {
            Event::Listener { index } => listening.push(index),
            // The next pass finds the reader's slot.
            Event::ReaderExit { .. } | Event::FewStates => {}
            Event::Timeslice(_) => panic!("nothing is traced"),
        };
        self.kernel.drain(usize::MAX, each).unwrap();
        let (table, now) = (&mut self.table, Instant::now());
        for record in listening.into_iter().filter_map(|index| self.kernel.listener(index)) {
            table.socket(&record, now);
        }
        self.kernel.conclude(ended, |record| table.ended(record, now));
    }

    /// The groups of the test's own process.
    fn groups(&self, process: &str) -> Vec<Group> {
        let mut groups = self.table.groups();
        groups.retain(|group| group.key.process == process && group.key.service != "other");
        groups
    }
}

/// Numbers that look random and are the same in every run (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Both ends of a connection; both are non-blocking.
struct Connection {
    ends: [TcpStream; 2],
    /// At most one end shuts down its writing side: if both did, the connection would be over.
    half_closed: bool,
}

/// All connections of the test: one thread opens, writes to, reads from and closes them, round by round.
struct Churn<'l> {
    lab: &'l Lab,
    listeners: Vec<TcpListener>,
    open: Vec<Connection>,
    dice: Dice,
}

impl<'l> Churn<'l> {
    fn new(lab: &'l Lab) -> Self {
        let listen = |port| TcpListener::bind((lab.receiver().v4, port)).unwrap();
        let listeners = lab.receiver().run(|| PORTS.map(listen).into());
        let mut churn = Self { lab, listeners, open: Vec::new(), dice: Dice(0x9e37_79b9_7f4a_7c15) };
        for _ in 0..6 {
            churn.begin();
        }
        churn
    }

    fn begin(&mut self) {
        let listener = &self.listeners[self.dice.below(2) as usize];
        let to = listener.local_addr().unwrap();
        let client = self.lab.sender().run(|| TcpStream::connect(to)).unwrap();
        let (server, _) = listener.accept().unwrap();
        for end in [&client, &server] {
            end.set_nonblocking(true).unwrap();
            end.set_nodelay(true).unwrap();
        }
        self.open.push(Connection { ends: [client, server], half_closed: false });
    }

    /// Most connections see no traffic in a round, so a pass may leave them out.
    fn round(&mut self) {
        for _ in 0..self.dice.below(4) {
            self.begin();
        }
        let dice = &mut self.dice;
        for connection in &mut self.open {
            for (end, other) in [(0, 1), (1, 0)] {
                if dice.one_in(4) {
                    let bytes = dice.below(20_000) + 1;
                    write(&connection.ends[other], bytes);
                }
                if dice.one_in(3) {
                    let bytes = if dice.one_in(3) { dice.below(5_000) + 1 } else { u64::MAX };
                    read(&connection.ends[end], bytes);
                }
                if dice.one_in(8) {
                    let bytes = 4_000 + dice.below(200_000) as usize;
                    SockRef::from(&connection.ends[end]).set_recv_buffer_size(bytes).unwrap();
                }
                // With a small buffer, the window closes.
                if dice.one_in(40) {
                    SockRef::from(&connection.ends[end]).set_recv_buffer_size(2_000).unwrap();
                    write(&connection.ends[other], 400_000);
                }
                if dice.one_in(10) && !connection.half_closed {
                    connection.half_closed = true;
                    connection.ends[end].shutdown(Shutdown::Write).unwrap();
                }
            }
        }
        let many = self.open.len() > 40;
        self.open.retain(|_| !dice.one_in(if many { 4 } else { 20 }));
    }
}

/// Writes as much as there is room for.
fn write(mut end: &TcpStream, bytes: u64) {
    match end.write(&vec![b'x'; bytes as usize]) {
        // The writing side may be shut down.
        Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::BrokenPipe) => panic!("{error}"),
        _ => {}
    }
}

/// Reads as much as there is.
fn read(end: &TcpStream, bytes: u64) {
    match end.take(bytes).read_to_end(&mut Vec::new()) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
        _ => {}
    }
}

/// The receiving side of a connection, by inet_diag, and the port of its service.
type Look = (SocketAddr, SocketAddr, State, [u32; 6], u16);

/// The receiving sides of all connections.
fn look(lab: &Lab) -> Vec<Look> {
    let sockets = truth::sockets(lab.receiver()).into_iter().chain(truth::sockets(lab.sender()));
    // An entry without a buffer is not a full socket but a smaller structure that stands for one.
    let is_socket = |socket: &Socket| socket.state != State::Listen && socket.rcvbuf != 0;
    let mut looks: Vec<_> = sockets
        .filter(is_socket)
        .map(|socket| {
            // A FIN that was not read counts as one more byte in inet_diag.
            let has_fin = matches!(socket.state, State::CloseWait | State::Closing | State::LastAck);
            let fin = u32::from(has_fin && socket.recv_q > 0);
            let Socket { local, remote, state, recv_q, rmem, rcvbuf, backlog, info, .. } = socket;
            // The window is that of the last acknowledgement.
            let numbers = [recv_q - fin, rmem, rcvbuf, backlog, info.data_segs_in, info.segs_out];
            let port = if PORTS.contains(&local.port()) { local.port() } else { remote.port() };
            (local, remote, state, numbers, port)
        })
        .collect();
    looks.sort_by_key(|(local, remote, ..)| (*local, *remote));
    looks
}

/// Waits until the thread sleeps and nothing changes any more.
fn quiet(lab: &Lab, tid: i32) -> Vec<Look> {
    let mut before = look(lab);
    eventually(DEADLINE, "nothing moves", || {
        let now = look(lab);
        // Both ends of such a connection are closed, and what ends it is on its way.
        let ends = |(_, _, state, ..): &Look| matches!(state, State::LastAck | State::Closing);
        let same = now == before && !now.iter().any(ends);
        before = now;
        let call = std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).unwrap();
        if same && call.trim_end() != "running" { Ok(()) } else { Err(format!("{before:?}")) }
    });
    // A socket leaves inet_diag before the tracepoint of its end fires, and a host that takes the CPU away in between
    // makes that take milliseconds. This waits until all softirqs that now run have ended.
    membarrier(MembarrierCommand::Global).unwrap();
    before
}

/// The time of an open round is held back until it is decided; on the lab's wire, a round trip is much shorter.
const OPEN_ROUND: Duration = Duration::from_millis(100);

/// Compares the groups after silent passes with those after a full pass. In between nothing has happened except that
/// time has passed, `elapsed` at most, with `closed` windows closed.
#[track_caller]
fn same(round: u32, silent: &[Group], full: &[Group], elapsed: Duration, closed: usize) {
    assert_eq!(silent.len(), full.len());
    for (silent, full) in silent.iter().zip(full) {
        let mut expected = silent.clone();
        let (before, after) = (&silent.counters, &full.counters);
        let gone = after.sockets.queue_byte_seconds() - before.sockets.queue_byte_seconds();
        // The integral of each socket is rounded down to the tick, and both sums to a float.
        let ticks = if full.gauges.queue_bytes == 0 { 0 } else { full.gauges.sockets };
        let rounded = byte_seconds(ticks) + 2.0 * f64::EPSILON * after.sockets.queue_byte_seconds();
        let most = full.gauges.queue_bytes as f64 * elapsed.as_secs_f64() + rounded;
        assert!((0.0..=most).contains(&gone), "round {round}: {gone} byte-seconds more, {most} at most: {full:?}");
        let gone = after.sockets.zero_window_ns - before.sockets.zero_window_ns;
        let most = elapsed.as_nanos() as u64 * closed as u64;
        assert!(gone <= most, "round {round}: {gone} ns closed, {most} at most: {full:?}");
        let gone = after.sockets.limited_ns() - before.sockets.limited_ns();
        let most = (elapsed + OPEN_ROUND).as_nanos() as u64 * full.gauges.sockets;
        assert!(gone <= most, "round {round}: {gone} ns observed, {most} at most: {full:?}");
        // What was the application's until a read showed that it was the scheduler's is made up for as time goes on.
        expected.counters.sockets = SocketTotals {
            queue_byte_ticks: after.sockets.queue_byte_ticks,
            application_byte_ticks: after.sockets.application_byte_ticks,
            scheduler_byte_ticks: after.sockets.scheduler_byte_ticks,
            zero_window_ns: after.sockets.zero_window_ns,
            observed_ns: after.sockets.observed_ns,
            upstream_limited_ns: after.sockets.upstream_limited_ns,
            reader_limited_ns: after.sockets.reader_limited_ns,
            application_limited_ns: after.sockets.application_limited_ns,
            scheduler_limited_ns: after.sockets.scheduler_limited_ns,
            ..before.sockets
        };
        // Segments that bring nothing new may be dropped at any time.
        expected.counters.drops.clone_from(&after.drops);
        assert_eq!(expected.gauges, full.gauges, "round {round}: silent passes (left) and a full one: {:?}", full.key);
        assert_eq!(&expected, full, "round {round}: silent passes (left) and a full one");
    }
}

/// Compares the gauges with inet_diag: sockets, bytes queued, memory used and its limit, for both ends of each service.
#[track_caller]
fn true_to(looks: &[Look], groups: &[Group]) {
    for port in PORTS {
        for service in [format!("local:{port}"), format!("remote:{port}")] {
            let local = service.starts_with("local");
            let mine = looks.iter().filter(|(at, .., of)| *of == port && (at.port() == port) == local);
            let mut expected = [0; 4];
            for (_, _, _, [queue, used, limit, ..], _) in mine {
                for (sum, by) in expected.iter_mut().zip([1, *queue, *used, *limit]) {
                    *sum += u64::from(by);
                }
            }
            let group = groups.iter().find(|group| group.key.service == service).unwrap();
            let gauges = &group.gauges;
            let seen = [gauges.sockets, gauges.queue_bytes, gauges.used_bytes, gauges.limit_bytes];
            assert_eq!(seen, expected, "{service}: sockets, queue, used and limit, tcpmon and inet_diag: {looks:?}");
        }
    }
}

/// Compares single sockets with inet_diag: bytes queued, memory used, its limit and backlog.
#[track_caller]
fn each_true_to(looks: &[Look], sockets: &[Arc<LiveSocket>]) {
    let is_mine =
        |socket: &&Arc<LiveSocket>| [socket.local.port(), socket.remote.port()].iter().any(|port| PORTS.contains(port));
    let mut shown: Vec<_> = sockets
        .iter()
        .filter(is_mine)
        .map(|socket| {
            let gauges = &socket.gauges;
            let numbers = [gauges.queue_bytes, gauges.used_bytes, gauges.limit_bytes, gauges.backlog_bytes];
            (socket.local, socket.remote, numbers.map(|bytes| bytes as u32))
        })
        .collect();
    shown.sort();
    let expected: Vec<_> =
        looks.iter().map(|(local, remote, _, numbers, _)| (*local, *remote, *numbers.first_chunk().unwrap())).collect();
    assert_eq!(shown, expected, "tcpmon and inet_diag");
}

#[test]
fn a_connection_that_is_busy_is_in_every_pass() {
    let lab = &Lab::new();
    let (sender, reader) = lab.receiver().run(|| {
        let listener = TcpListener::bind(("127.0.0.1", PORTS[0])).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (sender, listener.accept().unwrap().0)
    });
    sender.set_nodelay(true).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| while (&sender).write_all(&[0; 500]).is_ok() {});
        scope.spawn(|| {
            let mut buffer = [0; 500];
            while (&reader).read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
        });
        let mut collector = Collector::start();
        let passes = many(3000);
        // Both ends are on this host.
        let shown: usize = (0..passes).map(|_| collector.pass(Show::All).0).sum();
        // The threads must end before an assertion may fail.
        sender.shutdown(Shutdown::Both).unwrap();
        assert_eq!(shown, 2 * passes as usize, "shown in {passes} passes");
    });
}

/// Both ends, client and server, of a connection to the first port that has moved 500 bytes.
fn connection_that_was_read(lab: &Lab) -> (TcpStream, TcpStream) {
    let (client, server) = lab.receiver().run(|| {
        let listener = TcpListener::bind(("127.0.0.1", PORTS[0])).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    });
    (&client).write_all(&[7; 500]).unwrap();
    (&server).read_exact(&mut [0; 500]).unwrap();
    (client, server)
}

#[test]
fn a_connection_whose_fin_nobody_reads_is_at_rest() {
    let lab = &Lab::new();
    let mut collector = Collector::start();
    let (sender, _reader) = connection_that_was_read(lab);
    sender.shutdown(Shutdown::Write).unwrap();
    eventually(DEADLINE, "the FIN has come", || {
        let sockets = truth::sockets(lab.receiver());
        let states: Vec<_> = sockets.iter().map(|socket| socket.state).collect();
        if states.contains(&truth::State::CloseWait) { Ok(()) } else { Err(format!("{states:?}")) }
    });
    // Both ends, once.
    assert_eq!(collector.pass(Show::All).0, 2);
    eventually(DEADLINE, "no pass shows it any more", || equal(collector.pass(Show::Changed).0, 0));
    assert_eq!([(); 3].map(|()| collector.pass(Show::Changed).0), [0; 3]);
}

/// The backlog of the only connection to the first port, as `ss` shows it, bytes. For what inet_diag tells besides,
/// the kernel would wait for the socket's lock.
fn backlog(lab: &Lab) -> u64 {
    let port = format!(":{}", PORTS[0]);
    let ss = || Command::new("ss").args(["-tmnH", "state", "established", "sport", "=", &port]).output();
    let text = String::from_utf8(lab.receiver().run(ss).unwrap().stdout).unwrap();
    let number = text.split_once(",bl").and_then(|(_, rest)| rest.split_once(','));
    number.and_then(|(number, _)| number.parse().ok()).unwrap_or_else(|| panic!("no backlog in {text:?}"))
}

#[test]
fn a_connection_with_a_backlog_is_in_every_pass() {
    let lab = &Lab::new();
    let mut collector = Collector::start();
    let (client, server) = connection_that_was_read(lab);
    eventually(DEADLINE, "both ends are at rest", || equal(collector.pass(Show::Changed).0, 0));
    let (page, hold) = HeldPage::new();
    thread::scope(|scope| {
        let hold = hold;
        let sending = scope.spawn(|| page.send_to(&server));
        // The thread has the socket's lock then.
        eventually(DEADLINE, "the page is awaited", || hold.is_awaited());
        (&client).write_all(&[7; 100]).unwrap();
        let expected =
            eventually(DEADLINE, "the segment is in the backlog", || Some(backlog(lab)).filter(|it| *it > 0));
        for _ in 0..3 {
            collector.table.list_sockets();
            assert_ne!(collector.pass(Show::Changed).0, 0, "connections in a pass");
            let listed = collector.table.listed_sockets();
            let seen: Vec<_> = listed.iter().filter(|socket| socket.local.port() == PORTS[0]).collect();
            let seen: Vec<_> = seen.iter().map(|it| (it.gauges.backlog_bytes, it.gauges.queue_bytes)).collect();
            assert_eq!(seen, [(expected, 0)]);
        }
        drop(hold);
        assert_eq!(sending.join().unwrap().unwrap(), 1_000);
    });
    (&server).read_exact(&mut [0; 100]).unwrap();
    (&client).read_exact(&mut [0; 1_000]).unwrap();
    eventually(DEADLINE, "both ends are at rest again", || equal(collector.pass(Show::Changed).0, 0));
}

#[test]
fn connections_that_end_while_a_pass_shows_them_are_gone_with_it() {
    let process = format!("ends-{}", std::process::id());
    std::fs::write("/proc/self/comm", &process).unwrap();
    let lab = Lab::new();
    let address = (lab.receiver().v4, PORTS[0]);
    let listener = lab.receiver().run(|| TcpListener::bind(address)).unwrap();
    let hidden = truth::HiddenEnds::start();
    let mut collector = Collector::start();
    let connections = many(20_000);
    thread::scope(|scope| {
        let opener = scope.spawn(|| {
            for _ in 0..connections {
                let client = lab.sender().run(|| TcpStream::connect(address)).unwrap();
                drop((listener.accept().unwrap(), client));
            }
        });
        while !opener.is_finished() {
            collector.pass(Show::Changed);
        }
    });
    eventually(DEADLINE, "inet_diag has no connection", || equal(look(&lab), Vec::new()));
    membarrier(MembarrierCommand::Global).unwrap();
    collector.pass(Show::Changed);
    let sockets: Vec<_> = collector.groups(&process).iter().map(|group| group.gauges.sockets).collect();
    assert!(sockets.iter().all(|sockets| *sockets == 0), "{sockets:?}");
    hidden.explain(collector.table.unseen_ends());
}

#[test]
fn silent_passes_say_what_a_full_one_says_while_connections_come_go_and_change() {
    // A name of its own, so that its group cannot be that of another test that runs at the same time.
    let process = format!("churn-{}", std::process::id());
    std::fs::write("/proc/self/comm", &process).unwrap();
    let lab = Lab::new();
    thread::scope(|scope| {
        let (go, orders): (Sender<()>, Receiver<()>) = channel();
        let (done, answers) = channel();
        let lab = &lab;
        scope.spawn(move || {
            let mut churn = Churn::new(lab);
            done.send(gettid().as_raw()).unwrap();
            for () in orders {
                churn.round();
                done.send(gettid().as_raw()).unwrap();
            }
        });
        answers.recv_timeout(DEADLINE).unwrap();
        let hidden = truth::HiddenEnds::start();
        // Some connections are older than the collector.
        let mut collector = Collector::start();
        let wanted = fewer(60, 8);
        let (mut compared, mut silent_about, mut queued, mut closed) = (0, 0, 0, 0);
        for round in 1..=10 * wanted {
            if compared == wanted {
                break;
            }
            go.send(()).unwrap();
            let tid = answers.recv_timeout(DEADLINE).unwrap();
            let before = quiet(lab, tid);
            let start = Instant::now();
            let (shown, _) = collector.pass(Show::Changed);
            // A full pass would hide what the next silent pass misses.
            if round % 2 == 0 {
                continue;
            }
            let silent = collector.groups(&process);
            collector.table.list_sockets();
            let (all, windows) = collector.pass(Show::All);
            let sockets = collector.table.listed_sockets();
            let (full, elapsed) = (collector.groups(&process), start.elapsed());
            // An acknowledgement or a probe of a closed window may have arrived in between.
            if look(lab) != before {
                continue;
            }
            same(round, &silent, &full, elapsed, windows);
            true_to(&before, &full);
            each_true_to(&before, &sockets);
            compared += 1;
            silent_about += all - shown;
            queued += full.iter().map(|group| group.gauges.queue_bytes).sum::<u64>();
            closed += windows;
        }
        assert_eq!(compared, wanted, "rounds that were quiet");
        assert!(silent_about > 0 && queued > 0, "{silent_about} {queued}");
        assert!(closed > 0 || emulated::windows_may_stay_open(), "no window was closed");
        hidden.explain(collector.table.unseen_ends());
        drop(go);
    });
}
