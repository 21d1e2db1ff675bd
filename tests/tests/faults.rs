//! The faults that the tests cause are real: the kernel reports them, without tcpmon.

mod common;

use common::DEADLINE;
use tcpmon_tests::fault::{RingOverrun, SlowReader, StuckSockets, TcpMemoryPressure};
use tcpmon_tests::lab::End;
use tcpmon_tests::truth::{self, State};
use tcpmon_tests::{Namespace, at_least, eventually};

#[test]
fn a_ring_overflows_with_every_burst_and_not_between() {
    let fault = RingOverrun::new();
    // IPv6 packets that are sent on a new wire may arrive before its other end is up.
    let before = fault.dropped();
    assert_eq!(fault.sent(), 0);
    fault.begin();
    eventually(DEADLINE, "three bursts are sent", || at_least(fault.sent(), 3 * 2_048));
    fault.end();
    let (sent, dropped) = (fault.sent(), fault.dropped() - before);
    // The 256 packets that fit are not dropped; the IPv6 packets of a new wire take a few of the places.
    let (bursts, passed) = (sent / 2_048, sent - dropped);
    assert!((bursts * 240..=bursts * 260).contains(&passed), "{passed} of {sent} passed in {bursts} bursts");
}

#[test]
fn tcp_is_under_pressure_for_as_long_as_the_fault_lives() {
    let name = "net.ipv4.tcp_mem";
    let before = End::host().sysctl(name);
    assert!(!truth::tcp_memory().pressure, "the host is under pressure before the test");
    let fault = TcpMemoryPressure::new();
    let pressed = truth::tcp_memory();
    assert!(pressed.pressure, "{pressed:?}");
    assert_ne!(End::host().sysctl(name), before);
    drop(fault);
    assert_eq!(End::host().sysctl(name), before);
    eventually(DEADLINE, "the pressure is over", || !truth::tcp_memory().pressure);
}

#[test]
fn stuck_sockets_are_orphans_with_a_full_send_queue_and_end_with_the_fault() {
    let fault = StuckSockets::new(3);
    let sockets = fault.sockets();
    assert_eq!(sockets.len(), 3);
    for socket in &sockets {
        assert_eq!((socket.state, socket.inode), (State::FinWait1, 0), "{socket:?}");
        assert!(socket.send_q >= 100_000, "{socket:?}");
    }
    let namespace = Namespace::clone(fault.namespace());
    drop(fault);
    eventually(DEADLINE, "no socket is left", || {
        let left = truth::sockets(&namespace);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

#[test]
fn a_full_buffer_is_in_use_whenever_one_looks_and_closes_its_window_again_and_again() {
    let fault = SlowReader::with_full_buffer("fault-full");
    let mut looks = 0;
    eventually(DEADLINE, "a third of the buffer is in use in 100 looks, one after the other", || {
        let mut sockets = truth::sockets(fault.namespace());
        sockets.retain(|socket| socket.is_connection_to(fault.reader().port()));
        let used = sockets.iter().any(|socket| socket.rmem > socket.rcvbuf / 3);
        looks = if used { looks + 1 } else { 0 };
        if looks == 100 { Ok(()) } else { Err(format!("{looks} looks, {sockets:?}")) }
    });
    let closed = || truth::tcp_counters(fault.namespace())["TCPToZeroWindowAdv"];
    eventually(DEADLINE, "the window has closed ten times", || at_least(closed(), 10));
    assert!(fault.reader().report().bytes > 0, "it reads, though slowly");
}

#[test]
fn a_small_buffer_does_not_grow_while_all_is_read() {
    let fault = SlowReader::with_small_buffer("fault-small");
    eventually(DEADLINE, "200 kB are read", || at_least(fault.reader().report().bytes, 200_000));
    let mut sockets = truth::sockets(fault.namespace());
    sockets.retain(|socket| socket.is_connection_to(fault.reader().port()));
    assert_eq!(sockets.iter().map(|socket| socket.rcvbuf).collect::<Vec<_>>(), [8_000]);
}

#[test]
fn an_outnumbered_reader_waits_for_its_cpu_and_closes_its_window() {
    let fault = SlowReader::outnumbered("fault-crowded", 0);
    let pid = fault.reader().pid();
    let begin = truth::task_times(pid, pid);
    eventually(DEADLINE, "it has waited for a second", || {
        let now = truth::task_times(pid, pid);
        let (waited, ran) = (now.waiting - begin.waiting, now.running - begin.running);
        if waited.as_secs() >= 1 && waited > 2 * ran { Ok(()) } else { Err(format!("waited {waited:?}, ran {ran:?}")) }
    });
    let closed = || truth::tcp_counters(fault.namespace())["TCPToZeroWindowAdv"];
    eventually(DEADLINE, "the window has closed ten times", || at_least(closed(), 10));
}

#[test]
fn a_starved_reader_waits_for_its_cpu_most_of_the_time() {
    let fault = SlowReader::starved("fault-starved", 0);
    let pid = fault.reader().pid();
    let begin = truth::task_times(pid, pid);
    eventually(DEADLINE, "it has waited for a second", || {
        let now = truth::task_times(pid, pid);
        let (waited, ran) = (now.waiting - begin.waiting, now.running - begin.running);
        if waited.as_secs() >= 1 && waited > 5 * ran { Ok(()) } else { Err(format!("waited {waited:?}, ran {ran:?}")) }
    });
}
