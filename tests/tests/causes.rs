//! What limits a receiver, and where its bytes wait: the table of truth of `docs/causes.md`, on real traffic.

#[path = "common/mod.rs"]
mod common;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use common::{DEADLINE, has_two_cpus, queued, sender, sleeps};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::thread::{MembarrierCommand, membarrier};
use tcpmon_tests::fault::TcpMemoryPressure;
use tcpmon_tests::traffic::{Between, Method, Reader, ReaderBuilder, SenderBuilder, Threads};
use tcpmon_tests::truth::{self, State};
use tcpmon_tests::{
    Daemon, Delay, Lab, LabOptions, Page, Trace, Traffic, at_least, emulated, eventually, fewer, many, report,
};

/// How long a transfer is watched in its steady state.
const WATCHED: Duration = Duration::from_secs(3);

/// The path of the table: 40 ms there and back.
const ONE_WAY: Duration = Duration::from_millis(20);

/// What the sender's own count and ours may differ by, of the time: the two count by different rules, and this is how
/// far docs/causes.md lets them differ in each case of its table.
const AGREEMENT: f64 = 0.10;

/// The same for segments that are large in a small buffer, where the rule of the full buffer makes up for the rounds.
const AGREEMENT_OF_LARGE_SEGMENTS: f64 = 0.05;

/// What the scheduler's share and the kernel's `run_delay` may differ by, of the time: tcpmon divides the time from one
/// read to the next when that ends, and the kernel counts a wait when it ends, so each of the two may still lack the
/// last one.
const AGREEMENT_WITH_RUN_DELAY: f64 = 0.05;

/// What a trace and the daemon may differ by, of the time or of all waits: the two sets of programs see each event one
/// after the other, and a round that is near to a threshold may count for another cause in one of them. No moment of
/// this test bounds that.
const AGREEMENT_OF_A_TRACE: f64 = 0.03;

/// What rounding can make of ten numbers that add up to this: each is counted in whole nanoseconds or ticks and shown
/// as a float.
fn rounding(sum: f64) -> f64 {
    20.0 * f64::EPSILON * sum
}

/// Why a row that lives from quick answers cannot be shown: interrupts and wake-ups take longer than a round trip, and
/// a page takes so long that the sender's count beside it is one of another time.
const EMULATED: &str = "on an emulated CPU, local rounds take longer than a round trip, and pages take long";

/// How often a transfer begins again because its handshake took much longer than the path does.
const HANDSHAKES: u32 = 5;

/// Bytes per second that are far below what any reader here can take.
fn easy_rate() -> u64 {
    fewer(20_000_000, 1_000_000)
}

/// Shares of the time of the sockets.
#[derive(Clone, Copy, Debug)]
struct Shares {
    upstream: f64,
    application: f64,
    scheduler: f64,
    window: f64,
    memory: f64,
    /// The share in which the sender says that the window limited it.
    by_sender: f64,
    /// The share in which the reader's first thread waited for a CPU, by the kernel's count.
    waited: f64,
    /// Seconds that were watched, of all sockets together.
    seconds: f64,
    /// The longest round trip of a handshake, as the receiver's kernel measured it, and the longest least round trip of
    /// a connection, as the sender's did; us.
    round_trips: [u32; 2],
    /// The time that the hypervisor took from the CPUs of this machine, of the time that was watched.
    stolen: f64,
}

impl Shares {
    /// What the causes of a local path may be off by. A round that takes half a round trip longer than the path counts
    /// as upstream as a whole, one and a half round trips and more: three times what the hypervisor took from it.
    fn agreement(&self) -> f64 {
        AGREEMENT + 3.0 * self.stolen
    }

    fn limited(&self) -> f64 {
        self.application + self.scheduler + self.window + self.memory
    }

    fn agrees_with_the_sender(self) -> Self {
        assert!((self.limited() - self.by_sender).abs() <= self.agreement(), "{self:?}");
        self
    }
}

/// A connection that is watched.
struct Case {
    lab: Lab,
    daemon: Daemon,
}

impl Case {
    fn new(lab: Lab) -> Self {
        Self { lab, daemon: Daemon::start(&[]) }
    }

    fn reader(&self) -> ReaderBuilder {
        Traffic::reader(self.lab.receiver()).comm("watched").until_exit()
    }

    /// Watches a transfer from this reader's sender for a while in its steady state.
    fn transfer(&self, reader: ReaderBuilder, send: impl Fn(SenderBuilder) -> SenderBuilder) -> Shares {
        for _ in 0..HANDSHAKES {
            let reader = reader.clone().spawn();
            let sender = send(sender(&self.lab, &reader)).spawn();
            eventually(DEADLINE, "data flow", || {
                let sockets = truth::sockets(self.lab.sender()).into_iter();
                let mut ours = sockets.filter(|socket| socket.remote == reader.address());
                ours.any(|socket| socket.info.bytes_acked >= 1_000)
            });
            let shares = self.watch(&reader, || ());
            sender.finish();
            reader.exit();
            // Otherwise tcpmon takes the path for longer than it is: an edge case of docs/causes.md. The thread that
            // carries the packets of a long path may have waited for a CPU in just that moment.
            let [handshake, least] = shares.round_trips;
            if handshake <= 2 * least + 200 || emulated::rounds_are_slow() {
                return shares;
            }
        }
        panic!("{HANDSHAKES} handshakes took much longer than the path does");
    }

    /// Watches the reader's connections while `during` runs, and for as long as is usual.
    fn watch(&self, reader: &Reader, during: impl FnOnce()) -> Shares {
        let look = || (self.daemon.scrape(), Moment::now(self, reader));
        // The first page that shows a group may be made long after the request.
        self.daemon.scrape();
        let (before, first) = look();
        during();
        thread::sleep(WATCHED);
        let (after, last) = look();
        let service = format!("local:{}", reader.port());
        let added = |name: &str, more: (&str, &str)| {
            let labels = [("service", service.as_str()), more];
            after.sum(name, &labels) - before.sum(name, &labels)
        };
        let seconds = added("tcpmon_socket_seconds_total", ("process", "watched"));
        let causes = ["upstream", "application", "scheduler", "window", "memory"]
            .map(|cause| added("tcpmon_receive_limited_seconds_total", ("cause", cause)));
        assert!(causes.iter().all(|time| *time >= 0.0), "{causes:?} of {seconds} s");
        adds_up(&before);
        adds_up(&after);
        let [upstream, application, scheduler, window, memory] = causes.map(|time| time / seconds);
        let elapsed = (last.at - first.at).as_secs_f64();
        let by_sender = (last.limited_us - first.limited_us) as f64 / 1e6 / elapsed / last.connections as f64;
        let waited = (last.waiting - first.waiting).as_secs_f64() / elapsed;
        let round_trips = last.round_trips;
        let stolen = (last.stolen - first.stolen).as_secs_f64() / elapsed;
        let shares = Shares {
            upstream,
            application,
            scheduler,
            window,
            memory,
            by_sender,
            waited,
            seconds,
            round_trips,
            stolen,
        };
        println!("{shares:.3?}");
        shares
    }
}

/// What the kernel says of a reader's connections and of its first thread.
struct Moment {
    at: Instant,
    /// How long the reader's window has limited its senders, by their own count, in microseconds.
    limited_us: u64,
    connections: usize,
    waiting: Duration,
    /// See [`Shares::round_trips`].
    round_trips: [u32; 2],
    stolen: Duration,
}

impl Moment {
    fn now(case: &Case, reader: &Reader) -> Self {
        let address = reader.address();
        let open = |end, of: fn(&truth::Socket) -> SocketAddr| -> Vec<truth::Socket> {
            let sockets = truth::sockets(end).into_iter();
            sockets.filter(|socket| of(socket) == address && socket.state == State::Established).collect()
        };
        let senders = open(case.lab.sender(), |socket| socket.remote);
        let receivers = open(case.lab.receiver(), |socket| socket.local);
        let limited: Vec<u64> = senders.iter().map(|socket| socket.info.rwnd_limited_us).collect();
        let round_trip = |sockets: &[truth::Socket]| sockets.iter().map(|socket| socket.info.min_rtt_us).max();
        let round_trips = [&receivers, &senders].map(|sockets| round_trip(sockets).unwrap_or_default());
        Self {
            round_trips,
            stolen: truth::stolen_time(),
            at: Instant::now(),
            limited_us: limited.iter().sum(),
            connections: limited.len(),
            waiting: truth::task_times(reader.pid(), reader.pid()).waiting,
        }
    }
}

/// Whether the parts of each group's time and wait are all of it.
fn adds_up(page: &Page) {
    for whole in page.samples("tcpmon_socket_seconds_total") {
        let labels = [("process", whole.labels["process"].as_str()), ("service", whole.labels["service"].as_str())];
        let parts = page.sum("tcpmon_receive_limited_seconds_total", &labels);
        assert!((parts - whole.value).abs() <= rounding(whole.value), "{labels:?}: {parts} of {}", whole.value);
        let wait = page.sum("tcpmon_receive_wait_byte_seconds_total", &labels);
        let queue = page.sum("tcpmon_receive_queue_byte_seconds_total", &labels);
        assert!((wait - queue).abs() <= rounding(queue), "{labels:?}: {wait} of {queue}");
    }
}

#[test]
fn a_sender_that_holds_back_is_the_limit() {
    let case = Case::new(Lab::new());
    let paced = |sender: SenderBuilder| sender.rate(easy_rate()).message(8192);
    let shares = case.transfer(case.reader(), paced).agrees_with_the_sender();
    assert!(shares.upstream >= 0.95, "paced: {shares:?}");
    let in_batches = case.reader().chunk(1 << 20).between(Between::Sleep(5_000));
    let shares = case.transfer(in_batches, paced).agrees_with_the_sender();
    assert!(shares.upstream >= 0.95, "read in batches: {shares:?}");
    for between in [Between::Nothing, Between::Answer] {
        let requests = |sender: SenderBuilder| sender.rate(100_000).message(200);
        let shares = case.transfer(case.reader().between(between), requests).agrees_with_the_sender();
        assert!(shares.upstream >= 0.95, "requests, {between:?}: {shares:?}");
    }
    let idle = |sender: SenderBuilder| sender.bytes(10_000).hold_open();
    let shares = case.transfer(case.reader(), idle).agrees_with_the_sender();
    // A pass holds back the time of an open round, and here the last one is long over.
    assert!(shares.upstream >= 0.95 && shares.seconds >= WATCHED.as_secs_f64(), "idle: {shares:?}");
}

#[test]
fn a_sender_below_what_a_small_buffer_could_carry_is_the_limit_with_and_without_timestamps() {
    // Next to each other, and with about 100 us there and back.
    let local = Some(Duration::from_micros(50));
    for (one_way, timestamps) in [(None, "1"), (None, "0"), (local, "1"), (local, "0")] {
        let lab = one_way.map_or_else(Lab::new, Lab::long);
        lab.set_sysctl("net.ipv4.tcp_timestamps", timestamps);
        let case = Case::new(lab);
        let rate = if one_way.is_some() { easy_rate() } else { 5 * easy_rate() };
        // In pieces of a quarter and of half of the window. On an emulated CPU, a round trip takes as long as it is
        // between two of the latter.
        for (message, least) in [(16 << 10, 0.95), (32 << 10, 0.90)] {
            if emulated::rounds_are_slow() && message > 16 << 10 {
                continue;
            }
            let paced = |sender: SenderBuilder| sender.rate(rate).message(message);
            let shares = case.transfer(case.reader().receive_buffer(64 << 10), paced).agrees_with_the_sender();
            assert!(shares.upstream >= least, "{one_way:?}, timestamps {timestamps}, {message}: {shares:?}");
        }
    }
}

#[test]
fn a_reader_that_computes_or_sleeps_is_the_limit() {
    if emulated::rounds_are_slow() {
        return report::not_supported(EMULATED);
    }
    let case = Case::new(Lab::new());
    let computes = case.reader().between(Between::Spin(200));
    let shares = case.transfer(computes, |sender| sender).agrees_with_the_sender();
    assert!(shares.application + shares.waited >= 0.90, "computes: {shares:?}");
    let sleeps = case.reader().chunk(256 << 10).between(Between::Sleep(5_000));
    let shares = case.transfer(sleeps, |sender| sender).agrees_with_the_sender();
    assert!(shares.application + shares.waited >= 0.90, "sleeps: {shares:?}");
}

#[test]
fn data_that_nobody_reads_are_the_applications() {
    let case = Case::new(Lab::new());
    let shares = case.full(case.reader().paused().receive_buffer(64 << 10), |_| ());
    assert!(shares.application >= 0.95, "nobody reads: {shares:?}");
    let stop = |reader: &Reader| {
        let stopped = kill(Pid::from_raw(reader.pid().cast_signed()), Signal::SIGSTOP);
        stopped.expect("a process of ours can be stopped");
    };
    let shares = case.full(case.reader().receive_buffer(64 << 10), stop);
    assert!(shares.application >= 0.95, "stopped: {shares:?}");
}

#[test]
fn after_a_reset_nothing_more_can_come_however_much_is_unread() {
    let case = Case::new(Lab::new());
    let reader = case.reader().paused().receive_buffer(64 << 10).spawn();
    let sender = sender(&case.lab, &reader).paused().reset().spawn();
    assert_eq!(sender.send(50_000), 50_000);
    eventually(DEADLINE, "the data wait", || queued(&case.lab, &reader, 50_000));
    sender.finish();
    eventually(DEADLINE, "the connection is reset", || {
        !truth::sockets(case.lab.receiver()).iter().any(|socket| socket.is_connection_to(reader.port()))
    });
    // It leaves inet_diag before the tracepoint fires: this waits until all softirqs that now run have ended.
    membarrier(MembarrierCommand::Global).expect("the kernel has this system call");
    // `ss` does not show it any more, but it is open, and its data can be read.
    let service = format!("local:{}", reader.port());
    let shown = || {
        let page = case.daemon.scrape();
        let of = |name: &str, more: (&str, &str)| page.sum(name, &[("service", service.as_str()), more]);
        let cause = |cause: &str| of("tcpmon_receive_limited_seconds_total", ("cause", cause));
        [
            cause("application"),
            cause("upstream"),
            of("tcpmon_receive_zero_window_seconds_total", ("process", "watched")),
        ]
    };
    shown();
    let before = shown();
    thread::sleep(WATCHED);
    let [application, upstream, shut] = [0, 1, 2].map({
        let after = shown();
        move |at: usize| after[at] - before[at]
    });
    assert_eq!([application, shut], [0.0; 2], "s that the reader was the limit, and that the window was shut");
    assert!(upstream >= WATCHED.as_secs_f64(), "{upstream} s");
}

/// Its segments are as large as a third of the window.
#[test]
fn a_reader_that_computes_behind_the_large_segments_of_loopback_is_the_limit() {
    if emulated::rounds_are_slow() {
        return report::not_supported(EMULATED);
    }
    let case = Case::new(Lab::loopback());
    let reader = case.reader().receive_buffer(180_000).chunk(64 << 10).between(Between::Spin(700));
    let shares = case.transfer(reader, |sender| sender.message(64 << 10));
    assert!(shares.application + shares.scheduler >= 0.95, "{shares:?}");
    assert!((shares.limited() - shares.by_sender).abs() <= AGREEMENT_OF_LARGE_SEGMENTS, "{shares:?}");
}

impl Case {
    /// Watches a connection from the moment its buffer is full.
    fn full(&self, reader: ReaderBuilder, prepare: impl FnOnce(&Reader)) -> Shares {
        let reader = reader.spawn();
        let _sender = sender(&self.lab, &reader).spawn();
        prepare(&reader);
        eventually(DEADLINE, "the buffer is full", || self.is_full(&reader));
        self.watch(&reader, || ()).agrees_with_the_sender()
    }

    /// Whether the window that this reader's sender has heard of is used up.
    fn is_full(&self, reader: &Reader) -> bool {
        let sockets = truth::sockets(self.lab.sender()).into_iter();
        sockets.filter(|socket| socket.remote == reader.address()).any(|socket| socket.info.snd_wnd == 0)
    }
}

#[test]
fn a_reader_without_a_cpu_is_limited_by_the_scheduler() {
    if emulated::rounds_are_slow() {
        return report::not_supported(EMULATED);
    }
    if !has_two_cpus() {
        return;
    }
    let case = Case::new(Lab::new());
    let _hogs = [(); 4].map(|()| Traffic::hog(1, 0));
    let reader = case.reader().cpu(1).between(Between::Spin(100)).spawn();
    // Whatever else runs here must not slow the sender down.
    let _sender = sender(&case.lab, &reader).cpu(0).nice(-15).spawn();
    eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, 1_000_000));
    let shares = case.watch(&reader, || ()).agrees_with_the_sender();
    assert!(shares.scheduler >= 0.70, "{shares:?}");
    let of_reader = shares.scheduler / (shares.scheduler + shares.application);
    assert!((of_reader - shares.waited).abs() <= AGREEMENT_WITH_RUN_DELAY, "{shares:?}");
}

#[test]
fn a_buffer_too_small_for_the_path_is_the_window() {
    for timestamps in ["1", "0"] {
        let lab = Lab::long(ONE_WAY);
        lab.set_sysctl("net.ipv4.tcp_timestamps", timestamps);
        let case = Case::new(lab);
        let small = case.reader().receive_buffer(16 << 10);
        let shares = case.transfer(small, |sender| sender).agrees_with_the_sender();
        assert!(shares.window >= 0.80, "timestamps {timestamps}: {shares:?}");
    }
}

#[test]
fn a_sender_with_a_small_window_of_its_own_is_the_limit() {
    let case = Case::new(Lab::long(ONE_WAY));
    // Larger messages would be sent 64 KiB at a time, however small the buffer is. That is most of the first window.
    let small = |sender: SenderBuilder| sender.send_buffer(16 << 10).message(8 << 10);
    let shares = case.transfer(case.reader(), small).agrees_with_the_sender();
    assert!(shares.upstream >= 0.95, "{shares:?}");
}

#[test]
fn a_path_that_loses_packets_is_the_limit() {
    let delay = Some(Delay { one_way: ONE_WAY, lose_every: 500 });
    let case = Case::new(Lab::with(LabOptions { delay, ..LabOptions::default() }));
    let shares = case.transfer(case.reader(), |sender| sender).agrees_with_the_sender();
    assert!(case.lab.lost() > 0 && shares.upstream >= 0.85, "{shares:?}");
}

#[test]
fn small_buffers_limit_as_long_as_their_senders_say() {
    if emulated::rounds_are_slow() {
        return report::not_supported(EMULATED);
    }
    let case = Case::new(Lab::new());
    case.transfer(case.reader().receive_buffer(1_000_000), |sender| sender).agrees_with_the_sender();
    // A round of this one takes about as long as the sender works on its data: that time is the window's here, and the
    // sender's own there.
    let shares = case.transfer(case.reader().receive_buffer(64 << 10), |sender| sender);
    assert!(shares.limited() >= shares.by_sender - shares.agreement(), "{shares:?}");
}

#[test]
fn a_buffer_too_small_for_a_local_path_is_the_window() {
    if emulated::rounds_are_slow() {
        return report::not_supported(EMULATED);
    }
    for one_way in [200, 500].map(Duration::from_micros) {
        let case = Case::new(Lab::long(one_way));
        let shares = case.transfer(case.reader().receive_buffer(64 << 10), |sender| sender).agrees_with_the_sender();
        assert!(shares.window >= 0.90 - shares.agreement(), "{one_way:?}: {shares:?}");
    }
}

#[test]
fn timestamps_in_microseconds_tell_the_round_trip() {
    if emulated::rounds_are_slow() {
        return report::not_supported(EMULATED);
    }
    let lab = Lab::long(Duration::from_micros(100));
    if !lab.use_usec_timestamps() {
        return report::not_supported("the kernel has no timestamps in microseconds");
    }
    let case = Case::new(lab);
    // The sender calls all of it limited. By the handshake's round trip, it would be a tenth.
    let shares = case.transfer(case.reader().receive_buffer(64 << 10), |sender| sender);
    assert!(shares.window >= 0.90 - shares.agreement(), "{shares:?}");
    let paced = |sender: SenderBuilder| sender.rate(easy_rate()).message(16 << 10);
    let shares = case.transfer(case.reader().receive_buffer(64 << 10), paced).agrees_with_the_sender();
    assert!(shares.upstream >= 0.95, "{shares:?}");
}

#[test]
fn two_causes_share_the_time_as_it_was() {
    let case = Case::new(Lab::new());
    let reader = case.reader().receive_buffer(64 << 10).spawn();
    let _sender = sender(&case.lab, &reader).rate(easy_rate()).message(8192).spawn();
    eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, 1_000));
    let mut pause = None;
    let shares = case.watch(&reader, || {
        thread::sleep(WATCHED);
        let since = Instant::now();
        reader.pause();
        sleeps(&reader);
        pause = Some((since, truth::task_times(reader.pid(), reader.pid()), Moment::now(&case, &reader).limited_us));
        eventually(DEADLINE, "the buffer is full", || case.is_full(&reader));
    });
    let (since, before, limited_us) = pause.expect("it was paused");
    let paused = since.elapsed();
    let shares = shares.agrees_with_the_sender();
    let [application, scheduler] = [shares.application, shares.scheduler].map(|share| share * shares.seconds);
    // Watched for so long after the buffer was full. Before the pause, the reader can have been the limit only while it
    // ran, waited for a CPU, or was woken so late that its sender had used up the window.
    let most = (paused + before.running + before.waiting + Duration::from_micros(limited_us)).as_secs_f64();
    let least = WATCHED.as_secs_f64();
    assert!((least..=most).contains(&(application + scheduler)), "{least} to {most} s: {shares:?}");
    // Nobody reads in the pause: what is the scheduler's was decided before it, and is no more than the reader waited.
    assert!(application >= least - before.waiting.as_secs_f64(), "waited {:?}: {shares:?}", before.waiting);
}

#[test]
fn readers_of_every_kind_add_up_and_have_the_cause_of_a_simple_one() {
    let case = Case::new(Lab::new());
    let spin = Between::Spin(200);
    let kinds = [
        ("stealing", Threads::Turns(4), Method::Recv, 4),
        ("one thread each", Threads::PerFlow, Method::Recv, 4),
        ("one process each", Threads::Fork, Method::Recv, 4),
        ("epoll", Threads::Epoll, Method::Recv, many(200)),
        ("io_uring", Threads::PerFlow, Method::Uring, 2),
    ];
    for (name, threads, method, flows) in kinds {
        let reader = case.reader().threads(threads).method(method).between(spin).receive_buffer(256 << 10);
        let shares = case.transfer(reader, |sender| sender.flows(flows));
        // The sums hold on an emulated CPU, too.
        if !emulated::rounds_are_slow() {
            shares.agrees_with_the_sender();
            assert!(shares.application + shares.scheduler >= 0.85, "{name}: {shares:?}");
        }
    }
}

#[test]
fn a_trace_has_the_causes_and_the_waits_of_the_daemon() {
    // Each of the two sets of programs takes so long there that the times of their events differ.
    if emulated::rounds_are_slow() {
        return report::not_supported(EMULATED);
    }
    let local = Case::new(Lab::new());
    let reader = local.reader().threads(Threads::Turns(4)).between(Between::Spin(200)).receive_buffer(256 << 10);
    let waits = local.is_traced(reader.connections(4), |sender| sender.flows(4).bytes(easy_rate()));
    waits.agree();
    let paced = |sender: SenderBuilder| sender.rate(easy_rate()).message(8192).bytes(2 * easy_rate());
    local.is_traced(local.reader().connections(1), paced).agree();
    // Beside a hog, few reads wait for a CPU, and these find most bytes.
    let hogs = [0, 1].map(|cpu| Traffic::hog(cpu, 0));
    local.is_traced(local.reader().connections(1), paced).agree();
    drop((hogs, local));
    let long = Case::new(Lab::long(ONE_WAY));
    // The waits must be long beside the time that the two sets of programs take at each event.
    let reader = long.reader().connections(1).receive_buffer(16 << 10).between(Between::Spin(200));
    long.is_traced(reader, |sender| sender.bytes(1_000_000)).agree();
}

/// Byte-seconds for each reason, by the daemon and by a trace.
struct Waits {
    daemon: [f64; 2],
    trace: [f64; 2],
    /// How far they may be apart because at each event one set of programs waits until the other has run.
    apart: f64,
}

impl Waits {
    fn agree(&self) {
        let together: [f64; 2] = [&self.daemon, &self.trace].map(|waits| waits.iter().sum());
        let apart = together[0] * AGREEMENT_OF_A_TRACE + self.apart;
        let pairs = self.daemon.into_iter().zip(self.trace).chain([(together[0], together[1])]);
        for (daemon, trace) in pairs {
            let (daemon_all, trace_all) = (self.daemon, self.trace);
            assert!((daemon - trace).abs() <= apart, "{daemon_all:?}, in the trace {trace_all:?}");
        }
    }
}

impl Case {
    /// A trace of this transfer has the causes of the daemon. Returns the waits of both.
    fn is_traced(&self, reader: ReaderBuilder, send: impl FnOnce(SenderBuilder) -> SenderBuilder) -> Waits {
        let reader = reader.spawn();
        let trace = Trace::start(&["--comm", "watched"]);
        send(sender(&self.lab, &reader)).spawn().wait();
        let service = format!("local:{}", reader.port());
        reader.wait();
        let traced = trace.stop();
        let page = self.daemon.scrape();
        let sum_of = |kind: &str, key: &str| {
            let records = traced.records.iter().filter(|record| record["type"] == kind);
            records.filter_map(|record| record[key].as_u64()).sum::<u64>() as f64
        };
        let sum = |key: String| sum_of("timeslice", &key);
        let shown = |family: &str, more: (&str, &str)| page.sum(family, &[("service", &service), more]);

        let causes = ["upstream", "application", "scheduler", "window", "memory"];
        let by_daemon = causes.map(|cause| shown("tcpmon_receive_limited_seconds_total", ("cause", cause)));
        let by_trace = causes.map(|cause| sum(format!("limited_{cause}_ns")) / 1e9);
        let by_totals = causes.map(|cause| sum_of("socket", &format!("limited_{cause}_ns")) / 1e9);
        let apart = by_daemon.iter().sum::<f64>() * AGREEMENT_OF_A_TRACE;
        for (cause, (daemon, trace)) in causes.iter().zip(by_daemon.iter().zip(by_trace)) {
            // Nothing is limited after the last read, with which the trace ends.
            let is_later = *cause == "upstream" && trace < *daemon;
            let agree = (daemon - trace).abs() <= apart;
            assert!(agree || is_later, "{cause}: {by_daemon:?}, in the trace {by_trace:?}");
        }
        let (whole, whole_totals) = (by_daemon.iter().sum::<f64>(), by_totals.iter().sum::<f64>());
        // The trace ends as soon as the process has, and the daemon sees the socket until its last FIN is acknowledged,
        // limited by nothing here. So the totals may lack that time, and have none that the daemon has not.
        let after = whole - whole_totals;
        let allowed = -apart..=apart + 2.0 * ONE_WAY.as_secs_f64();
        assert!(allowed.contains(&after), "{by_daemon:?}, in the totals {by_totals:?}");
        for ((cause, daemon), total) in causes.iter().zip(by_daemon).zip(by_totals) {
            let total = if *cause == "upstream" { total + after } else { total };
            let agree = (daemon - total).abs() <= apart;
            assert!(agree, "{cause}: {by_daemon:?}, in the totals of the trace {by_totals:?}");
        }

        let reasons = ["application", "scheduler"];
        Waits {
            daemon: reasons.map(|reason| shown("tcpmon_receive_wait_byte_seconds_total", ("reason", reason))),
            trace: reasons.map(|reason| sum(format!("waited_{reason}_byte_us")) / 1e6),
            // 1 us at each event.
            apart: shown("tcpmon_receive_read_bytes_total", ("process", "watched")) / 1e6,
        }
    }
}

#[test]
fn a_window_that_memory_pressure_holds_down_is_the_memorys() {
    let case = Case::new(Lab::long(ONE_WAY));
    let _pressure = TcpMemoryPressure::new();
    let shares = case.transfer(case.reader(), |sender| sender);
    assert!(shares.memory > 0.0, "{shares:?}");
    if !emulated::rounds_are_slow() {
        shares.agrees_with_the_sender();
    }
}
