//! `cargo xtask demo`: ten seconds of real traffic in namespaces of its own, and what tcpmon saw of it.
//!
//! Three receivers, each in a different state: one keeps up, one reads too slowly, and one shares its CPU with a hog.
//! The demo scrapes the daemon at the default address, or starts a daemon itself.

use std::{
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use tcpmon_tests::{
    Daemon, Lab, Page, Traffic, eventually,
    traffic::{Between, Reader, ReaderBuilder, Sender},
};
use tcpmon_trace::scale::Bytes;

/// Address on which a daemon with default settings answers.
const ADDRESS: &str = "127.0.0.1:10793";

/// How long the traffic runs.
const TIME: Duration = Duration::from_secs(10);

/// New groups are shown at zero for up to a minute, until all regular scrapers of the daemon have seen them.
const SHOWN: Duration = Duration::from_secs(70);

/// Name, what it does, bytes per second (`None`: as fast as the sender can), and CPU of each receiver.
const RECEIVERS: [(&str, &str, Option<u64>, usize); 3] = [
    ("demo-keeps-up", "reads whatever comes, 50 MB/s", Some(50_000_000), 0),
    ("demo-slow", "sleeps 2 ms between reads of 64 KiB; the sender gives all it can", None, 0),
    (
        "demo-starved",
        "has to wait for its CPU, which a more important process keeps busy, 20 MB/s",
        Some(20_000_000),
        1,
    ),
];

fn main() -> ExitCode {
    let own = ask(ADDRESS).is_none().then(|| {
        println!("No daemon answers at {ADDRESS}, so this demo starts one for itself.");
        Daemon::start(&[])
    });
    let address = own.as_ref().map_or_else(|| ADDRESS.to_owned(), |daemon| daemon.address().to_string());
    let page = || ask(&address).expect("the daemon that answered a moment ago still does");

    println!("Three transfers run for {} s in two network namespaces:", TIME.as_secs());
    let lab = Lab::new();
    let _hog = Traffic::hog(1, -10);
    let running = start(&lab);
    eventually(SHOWN, "tcpmon shows the receivers", || {
        let page = page();
        RECEIVERS.iter().all(|(name, ..)| page.sum("tcpmon_receive_segments_total", &[("process", name)]) > 0.0)
    });
    // The first second is slow start.
    let warm = Instant::now() + Duration::from_secs(1);
    let before = at(warm, &page);
    let slow = running[1].0.pid().to_string();
    let trace = Command::new(tcpmon_tests::tcpmon_binary())
        .args(["trace", "--pid", &slow, "--duration", "300ms"])
        .output()
        .expect("tcpmon can be started");
    let after = at(warm + TIME, &page);

    print_metrics(&before, &after);
    println!("\nAnd one of them through the lens, `tcpmon trace --pid {slow} --duration 300ms`:\n");
    print_trace(&String::from_utf8_lossy(&trace.stdout));
    for (reader, sender) in &running {
        sender.exit();
        reader.exit();
    }
    if trace.status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Starts the receivers and their senders.
fn start(lab: &Lab) -> Vec<(Reader, Sender)> {
    let mut running = Vec::new();
    for (name, what, rate, cpu) in RECEIVERS {
        println!("  {name:<14} {what}");
        let reader: ReaderBuilder = Traffic::reader(lab.receiver()).comm(name).cpu(cpu).chunk(65_536);
        let reader = match name {
            "demo-slow" => reader.between(Between::Sleep(2_000)),
            "demo-starved" => reader.nice(10),
            _ => reader,
        };
        let reader = reader.spawn();
        let sender = Traffic::sender(lab.sender()).comm("demo-sender").to(reader.address()).cpu(0);
        let sender = match rate {
            Some(rate) => sender.rate(rate),
            None => sender,
        };
        running.push((reader, sender.spawn()));
    }
    running
}

/// Prints a row of rates for each receiver, from two pages and the times at which they were requested.
fn print_metrics(before: &(Instant, Page), after: &(Instant, Page)) {
    let seconds = (after.0 - before.0).as_secs_f64();
    println!(
        "\nWhat the metrics say of these {seconds:.1} s (rates of the counters, as Prometheus would have them):\n"
    );
    println!(
        "{:<14}{:>12}{:>13}{:>12}{:>13}{:>13}{:>13}",
        "process", "received", "mean queue", "mean wait", "buffer fill", "zero window", "run queue"
    );
    for (name, ..) in RECEIVERS {
        println!("{}", row(name, &before.1, &after.1, seconds));
    }
    println!(
        "\n  mean queue   bytes that waited in the receive queue, on average     mean wait    of a byte, from \
         arrival to read\n  \
         buffer fill  when the reader lost its CPU, on average               zero window  share of time the sender \
         was told to stop\n  \
         run queue    share of time the reader was runnable but had no CPU"
    );
}

/// Prints the first and the last lines of a trace.
fn print_trace(text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    for line in lines.iter().take(12) {
        println!("{line}");
    }
    if lines.len() > 24 {
        println!("...");
    }
    for line in lines.iter().skip(12.max(lines.len().saturating_sub(8))) {
        println!("{line}");
    }
}

/// The metrics page at that moment, and the time at which it was requested.
fn at(moment: Instant, page: &impl Fn() -> Page) -> (Instant, Page) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
    (Instant::now(), page())
}

/// The metrics of whatever answers at this address.
fn ask(address: &str) -> Option<Page> {
    let answer = minreq::get(format!("http://{address}/metrics")).with_timeout(5).send().ok()?;
    Page::parse(answer.as_str().ok()?).ok()
}

fn row(name: &str, before: &Page, after: &Page, seconds: f64) -> String {
    let grown = |family: &str, more: &[(&str, &str)]| {
        let mut labels = vec![("process", name)];
        labels.extend(more);
        after.sum(family, &labels) - before.sum(family, &labels)
    };
    let byte_seconds = grown("tcpmon_receive_queue_byte_seconds_total", &[]);
    let read = grown("tcpmon_receive_read_bytes_total", &[]);
    let deactivation = [("edge", "deactivation")];
    let fill = grown("tcpmon_timeslice_fill_ratio_sum", &deactivation)
        / grown("tcpmon_timeslice_fill_ratio_count", &deactivation).max(1.0);
    let share = |family: &str| 100.0 * grown(family, &[]) / seconds;
    format!(
        "{name:<14}{:>7.1} MB/s{:>13}{:>9.2} ms{:>11.0} %{:>11.0} %{:>11.0} %",
        grown("tcpmon_receive_bytes_total", &[]) / seconds / 1e6,
        Bytes((byte_seconds / seconds).round() as u64).to_string(),
        1e3 * byte_seconds / read.max(1.0),
        100.0 * fill,
        share("tcpmon_receive_zero_window_seconds_total"),
        share("tcpmon_reader_run_queue_seconds_total"),
    )
}
