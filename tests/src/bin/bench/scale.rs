//! Scrapes of a daemon that watches many sockets.

use std::time::{Duration, Instant};

use tcpmon_tests::traffic::{Reader, Sender, Threads};
use tcpmon_tests::{Daemon, Lab, Page, Traffic, truth};

use crate::estimate::median;
use crate::interrupt;
use crate::report::{Section, Table, target};

/// Sockets that the daemon is to watch.
const LEVELS: [u64; 4] = [10, 1_000, 10_000, 50_000];
/// Connections of one pair of processes: either may have 20,000 files open.
const CONNECTIONS_OF_A_PAIR: u64 = 15_000;
/// Scrapes of which the median is shown.
const SCRAPES: u32 = 20;
/// Time between two of them.
const BETWEEN: Duration = Duration::from_millis(50);
/// Time to open and announce all connections of a pair.
const DEADLINE: Duration = Duration::from_secs(120);

/// Measures each level; `quick` leaves the last one out.
pub fn measure(quick: bool) -> Section {
    let lab = Lab::new();
    lab.allow_many_connections();
    let daemon = Daemon::start(&[]);
    let mut open: Vec<(Reader, Sender)> = Vec::new();
    let mut table =
        Table::new(&["sockets", "scrape, ms", "of which in the kernel's state, ms", "page, bytes", "RSS, MiB"]);
    let mut notes = Vec::new();
    for level in &LEVELS[..if quick { 3 } else { 4 }] {
        let watched = reach(&lab, &daemon, *level, &mut open);
        let (mut took, mut inside, mut bytes) = (Vec::new(), Vec::new(), 0);
        for _ in 0..SCRAPES {
            interrupt::sleep(BETWEEN);
            let start = Instant::now();
            let answer = daemon.get("/metrics", "text/plain");
            took.push(start.elapsed().as_secs_f64() * 1e3);
            bytes = answer.body.len();
            let page = Page::parse(&String::from_utf8_lossy(&answer.body)).expect("a page of metrics");
            inside.push(page.value("tcpmon_scrape_seconds", &[]).unwrap_or(f64::NAN) * 1e3);
        }
        table.row(vec![
            watched.to_string(),
            format!("{:.2}", median(&took)),
            format!("{:.2}", median(&inside)),
            bytes.to_string(),
            mebibytes(truth::rss_bytes(daemon.pid())),
        ]);
        if *level == 10_000 {
            notes.push(target("scrape of 10,000 sockets", median(&took), 15.0, "ms"));
        }
        eprintln!("scale: {watched} sockets");
    }
    drop(open);
    let status = daemon.stop();
    assert!(status.success(), "tcpmon daemon ended with {status}");
    let what = format!(
        "Wall time of GET /metrics, median of {SCRAPES}; sockets as the daemon counts them (the sum of tcpmon_sockets), \
         both ends of each connection among them."
    );
    Section { name: "scale", what, table, notes }
}

/// Opens connections until the daemon watches (nearly) so many sockets; returns how many.
fn reach(lab: &Lab, daemon: &Daemon, level: u64, open: &mut Vec<(Reader, Sender)>) -> u64 {
    loop {
        interrupt::check();
        let watched = daemon.scrape().sum("tcpmon_sockets", &[]) as u64;
        let missing = level.saturating_sub(watched) / 2;
        if missing * 100 <= level {
            return watched;
        }
        open.push(pair(lab, missing.min(CONNECTIONS_OF_A_PAIR)));
    }
}

/// Two processes with so many connections between them, each of which has carried a byte.
fn pair(lab: &Lab, connections: u64) -> (Reader, Sender) {
    let reader = Traffic::reader(lab.receiver()).comm("many").threads(Threads::Epoll).until_exit().spawn();
    let sender = Traffic::sender(lab.sender()).comm("many-sender").to(reader.address());
    let sender = sender.connections(connections).bytes(1).hold_open().spawn();
    let start = Instant::now();
    while reader.report().bytes < connections {
        assert!(start.elapsed() < DEADLINE, "{connections} connections do not stand after {DEADLINE:?}");
        interrupt::sleep(Duration::from_millis(50));
    }
    (reader, sender)
}

/// As it is shown.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}
