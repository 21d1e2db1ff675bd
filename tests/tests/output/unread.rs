//! An output that is not read delays neither the end of the trace nor its reaction to signals.

use nix::sys::signal::Signal;
use serde_json::Value;
use tcpmon_tests::trace::Traced;
use tcpmon_tests::traffic::{Reader, Sender};
use tcpmon_tests::{Lab, Trace, Traffic, equal, eventually};

use crate::common::{DEADLINE, sender};

/// Redirects standard error to standard output.
const BOTH_INTO_ONE: [&str; 3] = ["sh", "-c", r#"exec "$0" "$@" 2>&1"#];

/// A reader and a sender that sends to it without end: the pipe of its trace is full within a second.
fn flow(lab: &Lab) -> (Reader, Sender) {
    let reader = Traffic::reader(lab.receiver()).comm("unread").spawn();
    let sender = sender(lab, &reader).rate(1_000_000).message(1_000).spawn();
    (reader, sender)
}

/// Checks that the trace has no trailer, and that all of its lines are complete except a cut last one.
fn assert_cut(traced: &Traced) {
    let records = &traced.records;
    assert_eq!(records[0]["type"], "header");
    assert_eq!(traced.status.code(), Some(1), "{} {:?}", traced.stderr, records.last());
    assert!(records.len() > 20, "{} records", records.len());
    let others: Vec<_> = records[1..].iter().filter(|record| record["type"] != "timeslice").collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_trace_that_nobody_reads_ends_at_its_time_and_says_what_it_lacks() {
    let lab = Lab::new();
    let (reader, sender) = flow(&lab);
    let trace = Trace::into_pipe(&[], &["--pid", &reader.pid().to_string(), "--duration", "1s"]);
    let traced = trace.wait(DEADLINE);
    sender.finish();
    assert_cut(&traced);
    let lacking = traced.stderr.split_once("lacks up to ").and_then(|(_, more)| more.split_once(" records"));
    let lacking = lacking.and_then(|(count, _)| count.parse::<u64>().ok());
    assert!(lacking > Some(0) && traced.stderr.contains("standard output"), "{}", traced.stderr);
}

#[test]
fn a_trace_that_nobody_reads_ends_by_a_signal() {
    let lab = Lab::new();
    let (reader, sender) = flow(&lab);
    // In the second case, nobody reads its error message either.
    for wrapper in [&[][..], &BOTH_INTO_ONE] {
        let trace = Trace::into_pipe(wrapper, &["--pid", &reader.pid().to_string()]);
        eventually(DEADLINE, "the pipe is full", || trace.is_stuck());
        trace.signal(Signal::SIGTERM);
        assert_cut(&trace.wait(DEADLINE));
    }
    sender.finish();
}

#[test]
fn the_trailer_counts_the_records_that_a_paused_reader_of_the_trace_has_missed() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("stalled").until_exit().spawn();
    let pid = reader.pid().to_string();
    let whole = Trace::start(&["--pid", &pid]);
    // A small ring also means a small queue.
    let stalled = Trace::into_pipe(&[], &["--pid", &pid, "--ring-bytes", "16384"]);
    let sender = sender(&lab, &reader).rate(1_000_000).message(1_000).bytes(3_000_000).spawn();
    let sent = sender.wait().bytes;
    eventually(DEADLINE, "all is read", || equal(reader.report().bytes, sent));
    assert!(stalled.is_stuck(), "tcpmon writes on, although nobody reads");
    let (whole, stalled) = (whole.stop(), stalled.read());
    stalled.signal(Signal::SIGINT);
    let stalled = stalled.wait(DEADLINE);
    let count = |traced: &Traced| {
        let (trailer, records) = traced.records.split_last().unwrap();
        let records = records.iter().filter(|record| record["type"] == "timeslice").count() as u64;
        assert_eq!(trailer["records"], records, "{trailer}");
        let lost = trailer["lost"].as_object().unwrap();
        let output = lost["output"].as_u64().unwrap();
        (records + lost.values().filter_map(Value::as_u64).sum::<u64>(), output)
    };
    let ((all, none), (found, missed)) = (count(&whole), count(&stalled));
    assert!(none == 0 && missed > 0, "{none} {missed}");
    assert_eq!(found, all);
    assert!(stalled.status.success(), "{}", stalled.stderr);
    assert!(stalled.stderr.contains(&format!("output {missed}")), "{}", stalled.stderr);
}
