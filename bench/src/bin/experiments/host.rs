//! Experiments with the host's own resources as the daemon sees them: TCP memory, orphaned sockets and receive rings.

use std::path::Path;
use std::time::Duration;

use tcpmon_tests::fault::{RingOverrun, StuckSockets};
use tcpmon_tests::figures::Table;
use tcpmon_tests::sysctl::HostSysctl;
use tcpmon_tests::traffic::Threads;
use tcpmon_tests::truth::{self, State};
use tcpmon_tests::{Daemon, Lab, Page, Traffic, clock, eventually, interrupt};

use crate::Effort;
use crate::chart::{self, Axes, Series};
use crate::sheet::{self, Row};

type Done = Result<Table, Box<dyn std::error::Error>>;

/// Time limit for what normally takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(20);

/// Dropped segments; with the label [`LOST`], those that may have carried new data.
const DROPS: &str = "tcpmon_receive_drops_total";
const LOST: [(&str, &str); 1] = [("effect", "lost")];

/// How often tcpmon and the kernel are polled.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Pages that TCP may use on top of what it used before: without pressure, and at most.
const PRESSURE_PAGES: u64 = 2048;
const MOST_PAGES: u64 = 4096;

/// Bytes per second of all connections of an experiment together: slow enough to watch the memory fill up.
const FILL_RATE: u64 = 30_000_000;

/// Measures each setting `effort.runs` times.
fn rows<const N: usize>(settings: [u64; N], effort: Effort, name: &str, run: impl Fn(u64) -> Vec<f64>) -> Vec<Row> {
    let row = |setting: u64| {
        let runs = (0..effort.runs).map(|_| {
            interrupt::check();
            run(setting)
        });
        let row = Row { labels: vec![setting.to_string()], runs: runs.collect() };
        eprintln!("lab: {name} {setting}: {}", row.mean(0));
        row
    };
    settings.into_iter().map(row).collect()
}

/// Draws some figures over the settings.
fn draw(
    folder: &Path,
    name: &str,
    axes: Axes<'_>,
    (settings, rows): (&[u64], &[Row]),
    figures: &[(usize, &str)],
) -> Result<(), Box<dyn std::error::Error>> {
    let series: Vec<Series> = figures
        .iter()
        .map(|(at, name)| Series {
            name: (*name).to_owned(),
            points: settings.iter().zip(rows).map(|(setting, row)| (*setting as f64, row.mean(*at))).collect(),
        })
        .collect();
    chart::draw(&folder.join(format!("{name}.svg")), axes, &series)
}

/// The first time at which something is true, seconds.
#[derive(Clone, Copy, Default)]
struct First(Option<f64>);

impl First {
    fn look(&mut self, seconds: f64, is_true: bool) {
        if is_true && self.0.is_none() {
            self.0 = Some(seconds);
        }
    }

    /// The time as a figure; NaN if it was never true.
    fn figure(self) -> f64 {
        self.0.unwrap_or(f64::NAN)
    }
}

/// Bowden: connections that nobody reads, up to the limit of TCP memory.
pub fn pressure(effort: Effort, folder: &Path) -> Done {
    let headings = [
        "MiB by sockstat",
        "MiB by tcpmon",
        "KiB in each queue by ss",
        "KiB in each queue by tcpmon",
        "pressure after, s, by the kernel",
        "pressure after, s, by tcpmon",
        "first loss after, s, by the kernel",
        "first loss after, s, by tcpmon",
        "segments lost by the kernel",
        "segments lost by tcpmon",
    ];
    let counts = [1, 4, 16, 64];
    let rows = rows(counts, effort, "connections", fill);
    let axes = Axes {
        title: "Connections that nobody reads: their queues",
        x: "connections",
        y: "KiB",
        logarithmic: true,
        bytes: false,
    };
    draw(folder, "pressure", axes, (&counts, &rows), &[(2, "each queue, by ss"), (3, "each queue, by tcpmon")])?;
    Ok(sheet::write(folder, "pressure", (&["connections"], &headings, headings.len()), &rows)?)
}

fn fill(connections: u64) -> Vec<f64> {
    let lab = Lab::new();
    // The buffer of a reader that never reads stays at the default: 4 MiB for each connection.
    lab.set_sysctl("net.ipv4.tcp_rmem", "4096\t4194304\t8388608");
    let daemon = Daemon::start(&[]);
    let before = truth::sockstat().pages;
    let limits = format!("{} {} {}", before + PRESSURE_PAGES / 2, before + PRESSURE_PAGES, before + MOST_PAGES);
    let _limits = HostSysctl::set("net.ipv4.tcp_mem", &limits);
    let reader = Traffic::reader(lab.receiver()).comm("lab-stalled").paused().connections(connections);
    let reader = reader.threads(Threads::Epoll).spawn();
    let lost = |page: &Page| page.sum(DROPS, &LOST);
    // The kernel's own trace has every dropped segment and the reason.
    let trace = truth::Trace::start("skb/kfree_skb");
    let dropped = |page: &Page| {
        let reasons = page.samples(DROPS).into_iter().filter(|sample| sample.labels["effect"] == LOST[0].1);
        let reasons: Vec<String> =
            reasons.map(|sample| format!("reason: {} ", sample.labels["reason"].to_uppercase())).collect();
        let is_counted = |line: &&String| reasons.iter().any(|reason| format!("{line} ").contains(reason.as_str()));
        trace.lines().iter().filter(is_counted).count() as f64
    };
    let lost_before = lost(&daemon.scrape());
    // Data that wait at the sender's end count as TCP memory, too; a small send buffer keeps that low.
    let sender = Traffic::sender(lab.sender()).comm("lab-sender").to(reader.address()).flows(connections);
    let _sender = sender.send_buffer(32_000).rate(FILL_RATE / connections).spawn();
    let begin = clock::monotonic_ns();
    let [mut pressed, mut pressed_shown, mut loses, mut loses_shown] = [First::default(); 4];
    let mut rest = (0, begin);
    loop {
        let seconds = || (clock::monotonic_ns() - begin) as f64 / 1e9;
        let pages = truth::sockstat().pages;
        pressed.look(seconds(), truth::tcp_memory().pressure);
        let queue_drops = truth::tcp_counters(lab.receiver()).get("TCPRcvQDrop").copied().unwrap_or(0);
        loses.look(seconds(), queue_drops > 0);
        // The answer takes longer while memory is short.
        let page = daemon.scrape();
        pressed_shown.look(seconds(), page.value("tcpmon_tcp_memory_pressure", &[]) == Some(1.0));
        loses_shown.look(seconds(), lost(&page) > lost_before);
        let now = clock::monotonic_ns();
        if pages > rest.0 {
            rest = (pages, now);
        }
        // TCP memory no longer grows: all queues are full, or data have been lost for a while.
        if now - rest.1 > 1_000_000_000 || seconds() > 10.0 {
            break;
        }
        interrupt::sleep(LOOK_EVERY);
    }
    let sockets = truth::sockets(lab.receiver());
    let queues = sockets.iter().filter(|socket| socket.is_connection_to(reader.port())).map(|socket| socket.recv_q);
    let queued: f64 = queues.map(f64::from).sum();
    let pages = truth::sockstat().pages;
    let page = daemon.scrape();
    let shown = page.sum("tcpmon_receive_queue_bytes", &[("process", "lab-stalled")]);
    let bytes = page.value("tcpmon_tcp_memory_bytes", &[]).unwrap_or(f64::NAN);
    let (mebi, each) = (1024.0 * 1024.0, 1024.0 * connections as f64);
    vec![
        (pages * truth::page_bytes()) as f64 / mebi,
        bytes / mebi,
        queued / each,
        shown / each,
        pressed.figure(),
        pressed_shown.figure(),
        loses.figure(),
        loses_shown.figure(),
        dropped(&page),
        lost(&page) - lost_before,
    ]
}

/// Bowden: sockets that no process holds, with data that nobody acknowledges.
pub fn orphans(effort: Effort, folder: &Path) -> Done {
    let headings = [
        "in FIN_WAIT1 by net/tcp",
        "in FIN_WAIT1 by tcpmon",
        "KiB to send by net/tcp",
        "KiB to send by tcpmon",
        "orphans by sockstat",
        "orphans by tcpmon",
    ];
    let counts = [1, 8, 64];
    let rows = rows(counts, effort, "orphans", |count| {
        let daemon = Daemon::start(&[]);
        let fault = StuckSockets::new(count as usize);
        eventually(DEADLINE, "nothing changes while both are asked", || {
            let kernel = || {
                let queues = truth::send_queues(fault.namespace(), State::FinWait1);
                [queues.len() as f64, queues.iter().sum::<u64>() as f64 / 1024.0, truth::sockstat().orphans as f64]
            };
            let before = kernel();
            let page = daemon.scrape();
            let of = |family: &str, labels: &[_]| page.value(family, labels).ok_or_else(|| format!("no {family}"));
            let state = [("state", "fin_wait_1")];
            let sockets = of("tcpmon_stuck_sockets", &state)?;
            let bytes = of("tcpmon_stuck_send_queue_bytes", &state)?;
            let shown = [sockets, bytes / 1024.0, of("tcpmon_orphan_sockets", &[])?];
            if before != kernel() {
                return Err("it changes".to_owned());
            }
            Ok(before.into_iter().zip(shown).flat_map(|(kernel, shown)| [kernel, shown]).collect::<Vec<_>>())
        })
    });
    let axes =
        Axes { title: "Data that orphans have to send", x: "connections", y: "KiB", logarithmic: true, bytes: false };
    draw(folder, "orphans", axes, (&counts, &rows), &[(2, "by net/tcp"), (3, "by tcpmon")])?;
    Ok(sheet::write(folder, "orphans", (&["connections"], &headings, headings.len()), &rows)?)
}

/// Bowden, Wu and Crawford: bursts into a receive ring.
pub fn overrun(effort: Effort, folder: &Path) -> Done {
    let headings =
        ["sent", "lost by the kernel, %", "lost by tcpmon, %", "lost if the ring takes what it has room for, %"];
    let bursts = [128, 256, 512, 1024, 4096];
    let rows = rows(bursts, effort, "burst", |burst| {
        let fault = RingOverrun::of(burst as u32, 200);
        let daemon = Daemon::start_in(fault.namespace(), &[]);
        let shown = |page: &Page| page.sum("tcpmon_device_rx_overruns_total", &[("device", fault.device())]);
        let (dropped, overruns) = (fault.dropped(), shown(&daemon.scrape()));
        fault.begin();
        eventually(DEADLINE, "three bursts are sent", || fault.sent() >= 3 * burst);
        fault.end();
        // tcpmon looks at the devices once a second.
        interrupt::sleep(Duration::from_millis(1_200));
        let (dropped, sent) = (fault.dropped() - dropped, fault.sent() as f64);
        let overruns = shown(&daemon.scrape()) - overruns;
        let room = f64::from(RingOverrun::ENTRIES);
        let percent = |lost: f64| 100.0 * lost / sent;
        vec![sent, percent(dropped as f64), percent(overruns), 100.0 * f64::max(0.0, 1.0 - room / burst as f64)]
    });
    let axes = Axes {
        title: "Bursts against a ring of 256",
        x: "packets in a burst",
        y: "lost, %",
        logarithmic: true,
        bytes: false,
    };
    let shown = [(1, "by the kernel"), (2, "by tcpmon"), (3, "all beyond its room")];
    draw(folder, "overrun", axes, (&bursts, &rows), &shown)?;
    Ok(sheet::write(folder, "overrun", (&["packets in a burst"], &headings, headings.len()), &rows)?)
}
