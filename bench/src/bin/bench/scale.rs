//! Scrapes of a daemon that watches many sockets.

use std::time::{Duration, Instant};

use tcpmon::kernel::Show;
use tcpmon_tests::traffic::{Reader, Sender, Threads};
use tcpmon_tests::{Daemon, Lab, Page, Traffic, truth};

use crate::estimate::median;
use crate::walk::{Walk, Walker};
use tcpmon_tests::figures::{Section, Table, target};
use tcpmon_tests::interrupt;

/// Numbers of sockets that the daemon is to watch.
const LEVELS: [u64; 5] = [10, 1_000, 10_000, 50_000, 100_000];
/// Connections for each pair of processes: each process may have 20,000 files open.
const CONNECTIONS_OF_A_PAIR: u64 = 15_000;
/// Number of scrapes whose median is shown.
const SCRAPES: u32 = 20;
/// The same where all sockets have to change before each scrape.
const SCRAPES_AFTER_CHANGE: u32 = 7;
/// Time between two scrapes: long enough for each scrape to get a sample of its own, and for delayed ACKs to be sent.
const BETWEEN: Duration = Duration::from_millis(300);
const SETTLED: Duration = Duration::from_millis(300);
/// `enum bpf_cmd`.
const BPF_PROG_TEST_RUN: u64 = 10;
/// Time limit to open and announce all connections of a pair, and to exchange a byte on each.
const DEADLINE: Duration = Duration::from_secs(120);

/// What the sockets of a level have done since the last pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Since {
    /// Nothing.
    Rest,
    /// Each received a byte, which was read.
    Change,
}

/// Many sockets, and the daemon that watches them.
struct Many {
    lab: Lab,
    daemon: Daemon,
    pairs: Vec<(Reader, Sender)>,
}

/// Measurements of the daemon's scrapes.
#[derive(Default)]
struct Scrapes {
    /// Time that the client sees, ms.
    wall: Vec<f64>,
    /// `tcpmon_scrape_duration_seconds`, ms.
    pass: Vec<f64>,
    /// Length of the last metrics page.
    bytes: usize,
}

/// Measures each level; `quick` leaves out the last two.
pub fn measure(quick: bool) -> Section {
    let lab = Lab::new();
    lab.allow_many_connections();
    let mut many = Many { lab, daemon: Daemon::start(&[]), pairs: Vec::new() };
    let mut table = Table::new(&[
        "sockets",
        "shown by a pass",
        "pass, ms",
        "ns a socket",
        "GET /metrics, ms",
        "kernel's walk, ms",
        "calls",
        "longest step, ms",
        "longest call, ms",
        "CPU of a call, ms",
        "page, bytes",
        "RSS, MiB",
    ]);
    let (mut notes, mut longest_call, mut few) = (Vec::new(), 0.0_f64, None);
    for level in &LEVELS[..if quick { 3 } else { 5 }] {
        let watched = many.reach(*level);
        let scraped = [Since::Rest, Since::Change].map(|since| many.scrapes(since));
        let [rss, own] = [truth::rss_bytes, truth::own_rss_bytes].map(|bytes| bytes(many.daemon.pid()));
        // Started only now, so that its programs do not add to the cost of the daemon's passes.
        let mut walker = Walker::start();
        for (since, scrapes) in [Since::Rest, Since::Change].into_iter().zip(&scraped) {
            let walks = many.walks(&mut walker, since);
            let middle = |value: fn(&Walk) -> f64| median(&walks.iter().map(value).collect::<Vec<_>>());
            let most = |value: fn(&Walk) -> Duration| {
                walks.iter().map(|walk| value(walk).as_secs_f64() * 1e3).fold(0.0, f64::max)
            };
            longest_call = longest_call.max(most(|walk| walk.longest_call));
            let pass = median(&scrapes.pass);
            table.row(vec![
                watched.to_string(),
                format!("{:.0}", middle(|walk| walk.shown as f64)),
                format!("{pass:.2}"),
                format!("{:.0}", pass * 1e6 / watched as f64),
                format!("{:.2}", median(&scrapes.wall)),
                format!("{:.2}", middle(|walk| walk.took.as_secs_f64() * 1e3)),
                format!("{:.0}", middle(|walk| f64::from(walk.calls))),
                format!("{:.2}", most(|walk| walk.longest)),
                format!("{:.2}", most(|walk| walk.longest_call)),
                format!("{:.2}", most(|walk| walk.busiest_call)),
                scrapes.bytes.to_string(),
                mebibytes(rss),
            ]);
            notes.extend(judged(*level, since).map(|(what, limit)| target(what, pass, limit, "ms")));
        }
        let (few_watched, few_own) = *few.get_or_insert((watched, own));
        if *level == 100_000 {
            let of_each = own.saturating_sub(few_own) as f64 / (watched - few_watched) as f64;
            notes.push(target("memory of the daemon for each further socket, without the states", of_each, 250.0, "B"));
            drop(walker);
            notes.push(target("the same pass without BPF_PROG_TEST_RUN, at rest", many.pass_without_look(), 5.0, "ms"));
        }
        eprintln!("scale: {watched} sockets");
    }
    notes.push(target("longest call of any walk", longest_call, 0.5, "ms"));
    drop(many.pairs);
    let status = many.daemon.stop();
    assert!(status.success(), "tcpmon daemon ended with {status}");
    let what = format!(
        "Passes of the daemon (tcpmon_scrape_duration_seconds) and wall time of GET /metrics, medians of {SCRAPES} at \
         rest and of {SCRAPES_AFTER_CHANGE} after each socket has received a byte that was read; sockets as the daemon \
         counts them (the sum of tcpmon_sockets), both ends of each connection among them. The kernel's walk is that \
         of a second copy of the programs over the same sockets in the same states, which are copied and not \
         accounted. A step is a call of the program that looks at sockets, and the copies that follow it: median time \
         of all steps of a walk, their number (calls); of all repetitions the longest step, the longest call, and the \
         most CPU time of a call."
    );
    Section { name: "scale", what, table, notes }
}

/// The target for a pass over this many sockets, ms.
fn judged(level: u64, since: Since) -> Option<(&'static str, f64)> {
    match (level, since) {
        (10_000, Since::Rest) => Some(("pass over 10,000 sockets", 8.0)),
        (100_000, Since::Rest) => Some(("pass over 100,000 sockets at rest", 20.0)),
        (100_000, Since::Change) => Some(("pass over 100,000 sockets that all changed", 80.0)),
        _ => None,
    }
}

impl Many {
    /// Opens connections until the daemon watches (nearly) this many sockets; returns how many it watches.
    fn reach(&mut self, level: u64) -> u64 {
        loop {
            interrupt::check();
            let watched = self.daemon.scrape().sum("tcpmon_sockets", &[]) as u64;
            let missing = level.saturating_sub(watched) / 2;
            if missing * 100 <= level {
                return watched;
            }
            self.pairs.push(pair(&self.lab, missing.min(CONNECTIONS_OF_A_PAIR)));
        }
    }

    fn scrapes(&self, since: Since) -> Scrapes {
        let mut scrapes = Scrapes::default();
        // Lets the daemon take in everything that happened before, which is not part of the measurement.
        interrupt::sleep(SETTLED);
        self.daemon.page();
        for _ in 0..since.repetitions() {
            self.bring(since);
            let start = Instant::now();
            let answer = self.daemon.get("/metrics", "text/plain");
            scrapes.wall.push(start.elapsed().as_secs_f64() * 1e3);
            scrapes.bytes = answer.body.len();
            let page = Page::parse(&String::from_utf8_lossy(&answer.body)).expect("a page of metrics");
            scrapes.pass.push(page.value("tcpmon_scrape_duration_seconds", &[]).unwrap_or(f64::NAN) * 1e3);
        }
        scrapes
    }

    /// Median time of a pass over the same sockets at rest by a daemon that may not use BPF_PROG_TEST_RUN, ms.
    fn pass_without_look(&self) -> f64 {
        let daemon = Daemon::try_start_refusing(BPF_PROG_TEST_RUN, &[]);
        let daemon = daemon.unwrap_or_else(|refused| panic!("{refused:?}"));
        daemon.page();
        let pass = |_| {
            interrupt::sleep(BETWEEN);
            daemon.page().value("tcpmon_scrape_duration_seconds", &[]).unwrap_or(f64::NAN) * 1e3
        };
        median(&(0..SCRAPES).map(pass).collect::<Vec<_>>())
    }

    fn walks(&self, walker: &mut Walker, since: Since) -> Vec<Walk> {
        interrupt::sleep(SETTLED);
        walker.walk(Show::Changed);
        let walk = |_| {
            self.bring(since);
            walker.walk(Show::Changed)
        };
        (0..since.repetitions()).map(walk).collect()
    }

    /// Lets the sockets rest or makes them all change before the next scrape.
    fn bring(&self, since: Since) {
        match since {
            Since::Rest => interrupt::sleep(BETWEEN),
            Since::Change => {
                self.pairs.iter().for_each(exchange);
                interrupt::sleep(SETTLED);
            }
        }
    }
}

impl Since {
    fn repetitions(self) -> u32 {
        match self {
            Self::Rest => SCRAPES,
            Self::Change => SCRAPES_AFTER_CHANGE,
        }
    }
}

/// Two processes with this many connections between them, each of which has carried a byte.
pub fn pair(lab: &Lab, connections: u64) -> (Reader, Sender) {
    let reader = Traffic::reader(lab.receiver()).comm("many").threads(Threads::Epoll).until_exit().spawn();
    let sender = Traffic::sender(lab.sender()).comm("many-sender").to(reader.address());
    let sender = sender.connections(connections).bytes(1).hold_open().spawn();
    reads(&reader, connections);
    (reader, sender)
}

/// Each end of each connection receives a byte and reads it.
pub fn exchange((reader, sender): &(Reader, Sender)) {
    let before = reader.report().bytes;
    let said = sender.send_byte();
    reads(reader, before + said);
    assert_eq!(reader.send_byte(), said, "bytes back");
    let (start, mut heard) = (Instant::now(), sender.receive());
    while heard < said {
        assert!(start.elapsed() < DEADLINE, "{heard} of {said} bytes have come back after {DEADLINE:?}");
        interrupt::sleep(Duration::from_millis(5));
        heard += sender.receive();
    }
}

/// Waits until this many bytes have been read.
fn reads(reader: &Reader, bytes: u64) {
    let start = Instant::now();
    while reader.report().bytes < bytes {
        assert!(start.elapsed() < DEADLINE, "{bytes} bytes have not been read after {DEADLINE:?}");
        interrupt::sleep(Duration::from_millis(20));
    }
}

/// Bytes as MiB, formatted for the tables.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}
