//! The queue: what waits is what inet_diag shows, and its time integral is the one that follows from the two ends' own
//! logs.

mod common;

use std::time::{Duration, Instant};

use common::{DEADLINE, connection, group, queued, sender};
use tcpmon_tests::{Daemon, Lab, LabOptions, Traffic, clock, eventually};

#[test]
fn a_reader_that_stops_for_200_ms_shows_the_queue_that_inet_diag_shows() {
    let lab = Lab::with(LabOptions { napi: true, ..LabOptions::default() });
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("stops").spawn();
    let _sender = sender(&lab, &reader).rate(4_000_000).message(1448).spawn();
    eventually(DEADLINE, "the flow runs", || reader.report().bytes > 500_000);
    let labels = group("stops", reader.port());
    reader.pause();
    let stopped = Instant::now();
    let mut looks = 0;
    while stopped.elapsed() < Duration::from_millis(200) {
        // The queue only grows while nobody reads: what tcpmon says lies between two looks of inet_diag.
        let before = connection(&lab, &reader).unwrap();
        let page = daemon.scrape();
        let after = connection(&lab, &reader).unwrap();
        let seen = page.value("tcpmon_receive_queue_bytes", &labels).unwrap();
        let one_segment = 1448.0;
        assert!(
            seen >= f64::from(before.recv_q) - one_segment && seen <= f64::from(after.recv_q) + one_segment,
            "tcpmon {seen}, inet_diag {} .. {}",
            before.recv_q,
            after.recv_q
        );
        looks += 1;
    }
    assert!(looks > 5, "{looks} looks in 200 ms");
    reader.resume();
}

#[test]
fn a_queue_at_rest_is_shown_to_the_byte_with_its_memory_and_window() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("at-rest").paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    for bytes in [1, 30_000, 60_000] {
        let total = sender.send(bytes);
        let waiting = u32::try_from(sender.report().bytes).unwrap();
        assert_eq!(total, bytes);
        let truth = eventually(DEADLINE, "the bytes wait", || queued(&lab, &reader, waiting));
        let page = daemon.scrape();
        let value = |name: &str| page.value(name, &group("at-rest", reader.port()));
        assert_eq!(value("tcpmon_receive_queue_bytes"), Some(f64::from(waiting)));
        assert_eq!(value("tcpmon_receive_buffer_used_bytes"), Some(f64::from(truth.rmem)));
        assert_eq!(value("tcpmon_receive_buffer_limit_bytes"), Some(f64::from(truth.rcvbuf)));
        assert_eq!(value("tcpmon_receive_window_bytes"), Some(f64::from(truth.info.rcv_wnd)));
        assert_eq!(value("tcpmon_receive_backlog_bytes"), Some(f64::from(truth.backlog)));
        assert_eq!(value("tcpmon_sockets"), Some(1.0));
    }
}

#[test]
fn byte_seconds_are_the_integral_of_arrivals_and_reads() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("integral").paused().log_reads().spawn();
    let sender = sender(&lab, &reader).paused().log_writes().spawn();
    for round in 1..=5u64 {
        let bytes = 10_000 * round;
        assert_eq!(sender.send(bytes), bytes);
        // Let it wait for a while that is long beside what the two logs may miss by.
        let until = clock::monotonic_ns() + 60_000_000 * round;
        eventually(DEADLINE, "the bytes have waited", || clock::monotonic_ns() >= until);
        assert_eq!(reader.read(bytes), bytes);
    }
    let written = sender.finish().log;
    reader.resume();
    let read = reader.wait().log;
    let moments = |log: &[tcpmon_tests::traffic::plan::Call]| -> f64 {
        log.iter().map(|call| call.bytes as f64 * call.at_ns as f64 / 1e9).sum()
    };
    // A byte that came at a and went at b contributes b - a.
    let expected = moments(&read) - moments(&written);
    let name = "tcpmon_receive_queue_byte_seconds_total";
    let seen = eventually(DEADLINE, "all is read", || {
        let page = daemon.scrape();
        let read = page.value("tcpmon_receive_read_bytes_total", &group("integral", reader.port()));
        (read == Some(150_000.0)).then(|| page.value(name, &group("integral", reader.port())).unwrap())
    });
    assert!((seen - expected).abs() <= 0.02 * expected, "tcpmon {seen} byte-seconds, the logs {expected}");
}

#[test]
fn a_closed_window_is_timed() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("closed").receive_buffer(50_000).paused().spawn();
    let _sender = sender(&lab, &reader).spawn();
    let closed = || match connection(&lab, &reader)? {
        socket if socket.info.rcv_wnd < socket.info.rcv_mss => Ok(()),
        socket => Err(format!("{socket:?}")),
    };
    eventually(DEADLINE, "the window closes", closed);
    let labels = group("closed", reader.port());
    let look = || {
        let before = clock::monotonic_ns();
        let page = daemon.scrape();
        let seconds = page.value("tcpmon_receive_zero_window_seconds_total", &labels).unwrap();
        (before, seconds, clock::monotonic_ns())
    };
    let first = look();
    let until = clock::monotonic_ns() + 500_000_000;
    eventually(DEADLINE, "half a second passes", || clock::monotonic_ns() >= until);
    assert!(closed().is_ok());
    let second = look();
    let seen = second.1 - first.1;
    let (least, most) = ((second.0 - first.2) as f64 / 1e9, (second.2 - first.0) as f64 / 1e9);
    assert!(seen >= least - 0.001 && seen <= most + 0.001, "tcpmon {seen} s, the clock {least} .. {most} s");
}
