//! Timeslices: what arrived while the reader was on and off its CPU, what it drained, and its times, compared with
//! schedstat.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use common::{DEADLINE, group, has_two_cpus, leaves_no_entries, queued, sender, sleeps};
use tcpmon_tests::traffic::{Between, Reader, Running, Sender, Threads};
use tcpmon_tests::truth::TaskTimes;
use tcpmon_tests::{Daemon, Lab, Page, Traffic, clock, equal, eventually, truth};

#[test]
fn a_reader_that_sleeps_and_drains_shows_what_arrived_meanwhile() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("sleeps").paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    // The first read makes the thread known as the socket's reader; what arrived before belongs to no timeslice.
    assert_eq!((sender.send(1), reader.read(1)), (1, 1));
    let mut expected = 0;
    for bytes in [10_000, 1, 33_333, 5] {
        assert_eq!(sender.send(bytes), bytes);
        // The test asserts only on data that arrived while the reader slept, so they must have arrived before it may
        // run.
        eventually(DEADLINE, "the bytes wait", || queued(&lab, &reader, bytes as u32));
        assert_eq!(reader.read(bytes), bytes);
        expected += bytes;
    }
    let labels = group("sleeps", reader.port());
    let arrived = |page: &Page, context| {
        let mut labels = labels.to_vec();
        labels.push(("context", context));
        page.value("tcpmon_timeslice_arrived_bytes_total", &labels).unwrap()
    };
    let page = daemon.scrape();
    assert_eq!((arrived(&page, "off_cpu"), arrived(&page, "on_cpu")), (expected as f64, 0.0));
    assert_eq!(page.value("tcpmon_timeslice_read_bytes_total", &labels), Some(expected as f64 + 1.0));
}

#[test]
fn a_reader_that_spins_shows_what_arrived_beside_it() {
    if !has_two_cpus() {
        return;
    }
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    // Bytes that come while the host keeps the sender from its CPU find the queue empty and the reader asleep, so a
    // round that the host has disturbed is repeated.
    let mut expected = 0.0;
    eventually(DEADLINE, "nearly all bytes of a round arrive beside the reader", || {
        let sum = |page: &Page, context| {
            page.sum("tcpmon_timeslice_arrived_bytes_total", &[("process", "spins"), ("context", context)])
        };
        let before = sum(&daemon.scrape(), "on_cpu");
        let reader = Traffic::reader(lab.receiver()).comm("spins").cpu(0).between(Between::Spin(20_000)).chunk(100_000);
        let reader = reader.spawn();
        sender(&lab, &reader).cpu(1).rate(2_000_000).message(2_000).bytes(2_000_000).spawn().wait();
        assert_eq!(reader.wait().bytes, 2_000_000);
        expected += 2_000_000.0;
        let page = daemon.scrape();
        let (on, off) = (sum(&page, "on_cpu"), sum(&page, "off_cpu"));
        assert!(on + off <= expected, "on {on} off {off} of {expected}");
        // The reader sleeps only if the queue is empty at the end of a spin. At this rate it is never empty for long.
        if on - before > 0.8 * 2_000_000.0 { Ok(()) } else { Err(format!("on {on} off {off}, before {before}")) }
    });
}

/// A reader that shares its CPU with a hog, and has something to do all the time.
struct Contended {
    daemon: Daemon,
    reader: Reader,
    _sender: Sender,
    _hog: Running,
    _lab: Lab,
}

impl Contended {
    /// Started with these arguments of the daemon, and known to it; reports it if there are too few CPUs.
    fn start(arguments: &[&str]) -> Option<Self> {
        if !has_two_cpus() {
            return None;
        }
        let lab = Lab::new();
        let daemon = Daemon::start(arguments);
        let hog = Traffic::hog(0, 0);
        let reader = Traffic::reader(lab.receiver()).comm("contended").cpu(0).between(Between::Spin(300)).spawn();
        // It sends as fast as it can.
        let sender = sender(&lab, &reader).cpu(1).spawn();
        let labels = group("contended", reader.port());
        eventually(DEADLINE, "the reader is known", || {
            let time = daemon.scrape().value("tcpmon_reader_cpu_seconds_total", &labels);
            if time > Some(0.01) { Ok(()) } else { Err(format!("{time:?}")) }
        });
        Some(Self { daemon, reader, _sender: sender, _hog: hog, _lab: lab })
    }

    fn truth(&self) -> TaskTimes {
        truth::task_times(self.reader.pid(), self.reader.pid())
    }

    /// The reader's times on the CPU and in the run queue in seconds, and its timeslices, by tcpmon.
    fn seen(&self) -> (f64, f64, Option<f64>) {
        let (page, labels) = (self.daemon.scrape(), group("contended", self.reader.port()));
        let value = |name: &str| page.value(name, &labels).unwrap_or_else(|| panic!("no {name}"));
        let seen = (
            value("tcpmon_reader_cpu_seconds_total"),
            value("tcpmon_reader_run_queue_seconds_total"),
            page.value("tcpmon_timeslice_seconds_count", &labels),
        );
        if seen.2.is_some() {
            assert_eq!(value("tcpmon_timeslice_seconds_sum"), seen.0);
            assert_eq!(value("tcpmon_reader_run_queue_wait_seconds_sum"), seen.1);
        }
        seen
    }
}

fn pass(time: Duration) {
    let until = clock::monotonic_ns() + time.as_nanos() as u64;
    eventually(DEADLINE, "time passes", || clock::monotonic_ns() >= until);
}

/// Both count at the end of a timeslice, so they agree to the nanosecond while the reader sleeps.
#[test]
fn times_on_the_cpu_and_in_the_run_queue_are_those_of_schedstat() {
    let Some(contended) = Contended::start(&[]) else { return };
    let look = || {
        contended.reader.pause();
        sleeps(&contended.reader);
        let (truth, (running, waiting, timeslices)) = (contended.truth(), contended.seen());
        assert_eq!(contended.truth(), truth, "the reader sleeps");
        // A float has room for the nanoseconds of 104 days.
        let [running, waiting] = [running, waiting].map(|seconds| (seconds * 1e9).round() as u64);
        let seen = [running, waiting, timeslices.expect("sched_switch counts them") as u64];
        (seen, [truth.running.as_nanos() as u64, truth.waiting.as_nanos() as u64, truth.timeslices])
    };
    let first = look();
    contended.reader.resume();
    pass(Duration::from_secs(3));
    let last = look();
    let added = |last: [u64; 3], first: [u64; 3]| [0, 1, 2].map(|at| last[at] - first[at]);
    let (seen, truth) = (added(last.0, first.0), added(last.1, first.1));
    assert!(truth.iter().all(|added| *added > 0), "{truth:?}");
    assert_eq!(seen, truth, "ns on the CPU, ns in the run queue, timeslices: tcpmon and schedstat");
}

/// Then tcpmon counts at each read only.
#[test]
fn times_are_those_of_schedstat_without_sched_switch() {
    let Some(contended) = Contended::start(&["--probes.sched-switch=false"]) else { return };
    // schedstat is read before and after each metrics page.
    let look = || (contended.truth(), contended.seen(), contended.truth());
    // Wait so that no sample is recent enough to be shared: both pages are then made at once, close to the kernel's own
    // figures.
    pass(Duration::from_millis(500));
    let first = look();
    pass(Duration::from_secs(3));
    let last = look();
    // The page was made somewhere between the two reads of schedstat, which are far apart on a slow machine. What the
    // kernel counted from the one page to the other lies between these bounds.
    let bounds = |of: fn(&TaskTimes) -> f64| (of(&last.0) - of(&first.2), of(&last.2) - of(&first.0));
    let timeslices = bounds(|times| times.timeslices as f64);
    let running = bounds(|times| times.running.as_secs_f64());
    let waiting = bounds(|times| times.waiting.as_secs_f64());
    // A read finds the time on the CPU as of the last tick, and each page lacks what came after the last read before
    // it. Nothing here says how long these are; together, they are in a few timeslices at each end.
    let cut = |total: f64| 4.0 * total / timeslices.1;
    for (what, seen, (least, most), cut) in [
        ("on the CPU", last.1.0 - first.1.0, running, cut(running.1)),
        ("in the run queue", last.1.1 - first.1.1, waiting, cut(waiting.1)),
    ] {
        assert!(
            (least - cut..=most + cut).contains(&seen),
            "{what}: tcpmon {seen}, schedstat {least} to {most}, cut {cut}"
        );
    }
    assert_eq!((first.1.2, last.1.2), (None, None), "nobody counts timeslices");
}

/// Voluntary and involuntary context switches of the reader's main thread, which reads and carries out orders, once it
/// sleeps.
fn switches_at_rest(reader: &Reader) -> (f64, f64) {
    sleeps(reader);
    let switches = truth::switches(reader.pid(), reader.pid());
    (switches.voluntary as f64, switches.involuntary as f64)
}

#[test]
fn every_end_of_a_timeslice_is_a_context_switch_of_the_reader() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("switches").paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    assert_eq!((sender.send(1), reader.read(1)), (1, 1));
    let labels = group("switches", reader.port());
    let blocked = || {
        let page = daemon.scrape();
        let ends = |end| {
            let mut labels = labels.to_vec();
            labels.push(("end", end));
            page.value("tcpmon_timeslices_total", &labels).unwrap_or_default()
        };
        (ends("blocked"), ends("preempted"))
    };
    let truth_before = switches_at_rest(&reader);
    let before = blocked();
    for _ in 0..50 {
        assert_eq!((sender.send(100), reader.read(100)), (100, 100));
    }
    let truth_after = switches_at_rest(&reader);
    let after = blocked();
    assert_eq!(
        (after.0 - before.0, after.1 - before.1),
        (truth_after.0 - truth_before.0, truth_after.1 - truth_before.1)
    );
}

#[test]
fn an_exited_reader_ends_its_last_timeslice_as_exited() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    // The daemon's threads that answer and the test's thread that reads the pages are readers, too.
    daemon.scrape();
    let rounds = leaves_no_entries(&daemon, &["readers"], || {
        let reader = Traffic::reader(lab.receiver()).comm("exits").threads(Threads::PerFlow).connections(8).spawn();
        sender(&lab, &reader).flows(8).bytes(100_000).spawn().wait();
        assert_eq!(reader.wait().tids.len(), 8);
    });
    let (exited, readers) = ([("process", "exits"), ("end", "exited")], (8 * rounds) as f64);
    eventually(DEADLINE, "the readers have exited", || {
        let page = daemon.scrape();
        let seen = page.sum("tcpmon_timeslices_total", &exited);
        // Where programs can be preempted, all reads of a thread may come while one is preempted. They are counted as
        // lost.
        let lost = page.sum("tcpmon_lost_total", &[("what", "recursion_tcp_rcv_space_adjust")]);
        if seen <= readers && seen + lost >= readers { Ok(()) } else { Err(format!("{seen}, {lost} reads lost")) }
    });
}

#[test]
fn a_thread_that_only_peeks_is_no_reader() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("peeks").paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    assert_eq!((sender.send(1), reader.read(1)), (1, 1));
    assert_eq!(sender.send(5_000), 5_000);
    eventually(DEADLINE, "the bytes wait", || queued(&lab, &reader, 5_000));
    let ends = || daemon.scrape().sum("tcpmon_timeslices_total", &[("process", "peeks")]);
    let truth = || {
        let (voluntary, involuntary) = switches_at_rest(&reader);
        voluntary + involuntary
    };
    let before = (truth(), ends());
    // Another thread of the same process peeks at the queue, and goes to sleep after each peek.
    for _ in 0..20 {
        assert_eq!(reader.peek(5_000), 5_000);
    }
    let truth = truth() - before.0;
    assert_eq!(ends() - before.1, truth, "only the thread that reads has timeslices");
    assert_eq!(reader.read(5_000), 5_000);
    let labels = group("peeks", reader.port());
    let page = daemon.scrape();
    assert_eq!(page.value("tcpmon_timeslice_read_bytes_total", &labels), Some(5_001.0));
    assert_eq!(reader.report().tids, [reader.pid()]);
}

#[test]
fn every_timeslice_is_in_the_buckets_of_its_times() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("buckets").between(Between::Spin(300)).spawn();
    let sender = sender(&lab, &reader).rate(2_000_000).message(2_000).bytes(1_000_000).hold_open().spawn();
    eventually(DEADLINE, "all is read", || equal(reader.report().bytes, 1_000_000));
    let page = daemon.scrape();
    let [process, service] = group("buckets", reader.port());
    let ends = page.sum("tcpmon_timeslices_total", &[process, service]);
    assert!(ends > 50.0, "{ends} timeslices");
    for name in ["tcpmon_timeslice_seconds", "tcpmon_reader_run_queue_wait_seconds"] {
        let value = |suffix: &str| page.value(&format!("{name}{suffix}"), &[process, service]).unwrap();
        assert_eq!(value("_count"), ends, "{name}");
        let bucket = format!("{name}_bucket");
        let mine = page.samples(&bucket).into_iter().filter(|sample| sample.labels["process"] == "buckets");
        let (mut below, mut bound, mut least, mut most) = (0.0, 0.0, 0.0, 0.0);
        for sample in mine {
            let upper: f64 = sample.labels["le"].replace("+Inf", "inf").parse().unwrap();
            let inside = sample.value - below;
            assert!(inside >= 0.0 && upper > bound, "{sample:?}");
            least += inside * bound;
            most += if inside == 0.0 { 0.0 } else { inside * upper };
            (below, bound) = (sample.value, upper);
        }
        assert_eq!(below, ends, "{name}");
        // The sum is kept separately from the buckets; it must lie within the bounds that they give.
        let sum = value("_sum");
        assert!(least <= sum && sum <= most, "{name}: {sum} is not in {least} .. {most}");
    }
    sender.finish();
    reader.wait();
}

/// The timeslices of a group in three families: ends, times on the CPU, waits for the CPU.
fn timeslices(page: &Page, labels: &[(&str, &str)]) -> [f64; 3] {
    ["tcpmon_timeslices_total", "tcpmon_timeslice_seconds_count", "tcpmon_reader_run_queue_wait_seconds_count"]
        .map(|name| page.sum(name, labels))
}

#[test]
fn timeslices_are_the_service_s_that_was_read_last() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("two-services").threads(Threads::Epoll);
    let reader = reader.port(6_001).ports(2).until_exit().spawn();
    let to = |port| {
        let address = std::net::SocketAddr::new(reader.address().ip(), port);
        Traffic::sender(lab.sender()).to(address).paused().spawn()
    };
    let (first, second) = (to(6_001), to(6_002));
    // Both connections have been read, the second one last.
    let exchange = |sender: &tcpmon_tests::traffic::Sender, times: u64| {
        for _ in 0..times {
            let before = reader.report().bytes;
            assert_eq!(sender.send(100), 100);
            eventually(DEADLINE, "it is read", || equal(reader.report().bytes, before + 100));
            sleeps(&reader);
        }
    };
    exchange(&first, 1);
    exchange(&second, 1);
    let look = || {
        let page = daemon.scrape();
        [6_001, 6_002].map(|port| timeslices(&page, &group("two-services", port)))
    };
    let difference = |after: [[f64; 3]; 2], before: [[f64; 3]; 2]| {
        [0, 1].map(|service| [0, 1, 2].map(|family| after[service][family] - before[service][family]))
    };
    let blocked = || {
        let [process, service] = group("two-services", 6_002);
        daemon.scrape().sum("tcpmon_timeslices_total", &[process, service, ("end", "blocked")])
    };
    let (before, blocked_before) = (look(), blocked());
    exchange(&first, 20);
    let [of_first, _] = difference(look(), before);
    assert!(of_first.iter().all(|count| *count >= 19.0), "{of_first:?}");
    // The reader may lose its CPU before it reads from the first, and that timeslice is the second's. It sleeps only
    // after it has read.
    assert_eq!(blocked() - blocked_before, 0.0);

    let before = look();
    for _ in 0..20 {
        exchange(&first, 1);
        exchange(&second, 1);
    }
    for ends in difference(look(), before) {
        assert!(ends.iter().all(|count| *count >= 19.0), "{ends:?}");
        assert!(ends.iter().all(|count| *count == ends[0]), "each timeslice has its times: {ends:?}");
    }
    reader.exit();
}

#[test]
fn a_proxy_s_timeslices_are_its_clients_or_its_upstream_s() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    // This process is the proxy, with one thread: the group has the name of the process.
    let process = format!("proxy-{}", std::process::id());
    std::fs::write("/proc/self/comm", &process).unwrap();
    let (to_proxy, to_upstream) = ((lab.receiver().v4, 6_003), (lab.sender().v4, 6_004));
    lab.receiver().run(|| {
        let upstream = lab.sender().run(|| TcpListener::bind(to_upstream)).unwrap();
        let listener = TcpListener::bind(to_proxy).unwrap();
        let mut client = lab.sender().run(|| TcpStream::connect(to_proxy)).unwrap();
        let (mut from_client, _) = listener.accept().unwrap();
        let mut from_upstream = TcpStream::connect(to_upstream).unwrap();
        let (mut upstream, _) = upstream.accept().unwrap();
        let tid = nix::unistd::gettid().as_raw();
        let proxied = thread::scope(|scope| {
            let (go, orders) = channel::<(bool, u8)>();
            // Only the thread that reads has timeslices of the proxy.
            let (known, proxy) = channel();
            scope.spawn(move || {
                known.send(nix::unistd::gettid().as_raw()).unwrap();
                for (is_client, bytes) in orders {
                    let from = if is_client { &mut from_client } else { &mut from_upstream };
                    from.read_exact(&mut vec![0; bytes.into()]).unwrap();
                }
            });
            let proxy = proxy.recv().unwrap();
            assert_ne!(proxy, tid);
            // What the thread waits for in the kernel. The kernel answers only if the thread is off its run queue.
            let waits = |call: libc::c_long, what| {
                eventually(DEADLINE, what, || {
                    let state = std::fs::read_to_string(format!("/proc/self/task/{proxy}/syscall")).unwrap();
                    state.starts_with(&format!("{call} ")).then_some(())
                });
            };
            let mut exchange = |is_client| {
                // The thread waits for the bytes, whose arrival ends its sleep: one timeslice for each message.
                go.send((is_client, 50)).unwrap();
                waits(libc::SYS_recvfrom, "the proxy waits for bytes");
                if is_client { &mut client } else { &mut upstream }.write_all(&[b'x'; 50]).unwrap();
                waits(libc::SYS_futex, "the proxy has read and waits for an order");
            };
            let services = ["local:6003", "remote:6004"];
            let look = || {
                let page = daemon.scrape();
                services.map(|service| timeslices(&page, &[("process", &process), ("service", service)]))
            };
            exchange(true);
            exchange(false);
            let looks = [true, false].map(|is_client| {
                let before = look();
                for _ in 0..20 {
                    exchange(is_client);
                }
                let after = look();
                let own = usize::from(!is_client);
                let grown = |service: usize| [0, 1, 2].map(|family| after[service][family] - before[service][family]);
                (grown(own), grown(1 - own))
            });
            drop(go);
            looks
        });
        for (of_own, of_other) in proxied {
            assert!(of_own.iter().all(|count| *count >= 19.0), "{of_own:?}, the other {of_other:?}");
            assert!(of_other.iter().all(|count| *count <= 2.0), "{of_other:?}, its own {of_own:?}");
        }
    });
}

#[test]
fn many_connections_older_than_tcpmon_are_one_service() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("older-many").threads(Threads::Epoll);
    let reader = reader.port(6_005).until_exit().spawn();
    let sender = sender(&lab, &reader).flows(20).paused().spawn();
    assert_eq!(sender.send(100), 2_000);
    eventually(DEADLINE, "all is read", || equal(reader.report().bytes, 2_000));
    let daemon = Daemon::start(&[]);
    for round in 2..=5 {
        assert_eq!(sender.send(100), 2_000);
        eventually(DEADLINE, "all is read", || equal(reader.report().bytes, 2_000 * round));
    }
    let page = daemon.scrape();
    let of_service = timeslices(&page, &group("older-many", 6_005));
    assert!(of_service[0] > 0.0, "{of_service:?}");
    assert_eq!(timeslices(&page, &[("process", "older-many")]), of_service, "none is another service's");
    reader.exit();
}
