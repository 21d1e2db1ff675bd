//! Signals end a trace in an orderly way.

use nix::sys::signal::Signal;
use tcpmon_tests::{Lab, Trace, Traffic, clock, eventually};

use crate::common::{DEADLINE, sender};

#[test]
fn whatever_signal_ends_a_trace_it_has_its_trailer() {
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
        let trace = Trace::start(&["--comm", "nobody"]);
        trace.signal(signal);
        let traced = trace.wait(DEADLINE);
        assert!(traced.status.success(), "{signal}: {} {}", traced.status, traced.stderr);
        assert_eq!(traced.records.last().unwrap()["reason"], "interrupt", "{signal}");
    }
}

#[test]
fn a_trace_under_nohup_outlives_its_terminal() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("nohup").spawn();
    let sender = sender(&lab, &reader).rate(100_000).message(1_000).spawn();
    let nohup = ["sh", "-c", r#"trap "" HUP; exec "$0" "$@""#];
    let trace = Trace::start_under(&nohup, &["--pid", &reader.pid().to_string()]);
    trace.signal(Signal::SIGHUP);
    // A signal that ends a trace does so within 10 ms.
    let later = clock::monotonic_ns() + 500_000_000;
    eventually(DEADLINE, "a record of a later time", || {
        trace.records().last().is_some_and(|record| record["deactivated_ns"].as_u64() > Some(later))
    });
    let traced = trace.stop();
    sender.finish();
    assert!(traced.status.success(), "{}", traced.stderr);
    assert_eq!(traced.records.last().unwrap()["reason"], "interrupt");
}
