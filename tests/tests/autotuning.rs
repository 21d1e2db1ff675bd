//! Autotuning of the receive buffer in four cases in which kernels differ: tcpmon shows what inet_diag shows.
//! `cargo xtask vm --write` puts the figures of each kernel into `docs/lab.md`.

mod common;

use std::time::Duration;

use common::{DEADLINE, sender};
use serde_json::Value;
use tcpmon_tests::mean::Mean;
use tcpmon_tests::traffic::{Between, ReaderBuilder};
use tcpmon_tests::{Daemon, Delay, Lab, LabOptions, Trace, Traffic, clock, equal, eventually, report, truth};

const GROWTHS: &str = "tcpmon_receive_buffer_growths_total";

/// A path that takes 20 ms in each direction.
fn long(lose_every: u64) -> Lab {
    let delay = Some(Delay { one_way: Duration::from_millis(20), lose_every });
    Lab::with(LabOptions { delay, ..LabOptions::default() })
}

#[test]
fn over_a_long_path() {
    transfer("long path, fast reader", &long(0), 10_000_000, |reader| reader);
}

#[test]
fn over_a_long_path_that_loses_packets() {
    transfer("long path that loses 1 in 300", &long(300), 2_000_000, |reader| reader);
}

#[test]
fn over_a_local_path() {
    transfer("local path, fast reader", &Lab::new(), 100_000_000, |reader| reader);
}

#[test]
fn for_a_reader_that_is_slower_than_the_sender() {
    transfer("local path, slow reader", &Lab::new(), 5_000_000, |reader| reader.between(Between::Sleep(2000)));
}

/// How often a transfer is repeated if its figures are recorded.
const RECORDED_RUNS: usize = 8;

/// Transfers this many bytes, compares the receive buffer at the end, and reports the figures.
fn transfer(name: &str, lab: &Lab, bytes: u64, of_reader: impl Fn(ReaderBuilder) -> ReaderBuilder) {
    let runs = if report::is_recording() { RECORDED_RUNS } else { 1 };
    let runs: Vec<[f64; 5]> = (0..runs).map(|_| run(lab, bytes, &of_reader)).collect();
    let mean = |at: usize| Mean::of(&runs.iter().map(|run| run[at]).collect::<Vec<_>>()).to_string();
    report::line("lab", &format!("autotuning\t{name}\t{}", [0, 1, 2, 3, 4].map(mean).join("\t")));
}

/// One transfer: Mbit/s, the buffer at the end in MiB by inet_diag and by tcpmon, number of growths, and its peak use
/// in MiB.
fn run(lab: &Lab, bytes: u64, of_reader: impl Fn(ReaderBuilder) -> ReaderBuilder) -> [f64; 5] {
    // Otherwise a route remembers what earlier connections have found out (`tcp_metrics`).
    lab.set_sysctl("net.ipv4.tcp_no_metrics_save", "1");
    let daemon = Daemon::start(&[]);
    let reader = of_reader(Traffic::reader(lab.receiver()).comm("tuned").chunk(8192)).until_exit().spawn();
    let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
    let sending = sender(lab, &reader).paused().spawn();
    let connection = || {
        let mut sockets = truth::sockets(lab.receiver());
        sockets.retain(|socket| socket.is_connection_to(reader.port()));
        sockets.pop()
    };
    let first = eventually(DEADLINE, "the connection is there", connection).rcvbuf;
    let begin = clock::monotonic_ns();
    assert_eq!(sending.send(bytes), bytes);
    eventually(3 * DEADLINE, "all is read", || equal(reader.report().bytes, bytes));
    let seconds = (clock::monotonic_ns() - begin) as f64 / 1e9;
    let last = connection().expect("it is still open").rcvbuf;
    let labels = [("process", "tuned"), ("service", &format!("local:{}", reader.port()))];
    let growths = daemon.scrape().value(GROWTHS, &labels).expect("the group is there");
    let traced = trace.stop();
    sending.finish();
    reader.exit();
    let slices: Vec<&Value> = traced.records.iter().filter(|record| record["type"] == "timeslice").collect();
    let number = |slice: &Value, key: &str| slice[key].as_u64().unwrap_or_else(|| panic!("{key} in {slice}"));
    let shown = slices.iter().rev().find(|slice| slice["closed"] == false).expect("a timeslice");
    assert_eq!(number(shown, "deactivation_rcvbuf_bytes"), u64::from(last), "{shown}");
    assert_eq!(growths > 0.0, last > first, "{growths} growths from {first} to {last}");
    let most = slices.iter().map(|slice| number(slice, "deactivation_rmem_bytes")).max().expect("timeslices");
    let mebi = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let shown = number(shown, "deactivation_rcvbuf_bytes");
    [8.0 * bytes as f64 / seconds / 1e6, mebi(last.into()), mebi(shown), growths, mebi(most)]
}
