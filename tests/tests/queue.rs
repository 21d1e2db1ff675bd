//! The queue: what waits is what inet_diag shows, and its time integral is the one that follows from when the two ends
//! moved the bytes.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::{DEADLINE, connection, group, queued, sender};
use tcpmon_common::socket::TICK_NS;
use tcpmon_tests::traffic::{Between, Threads};
use tcpmon_tests::{Daemon, Lab, LabOptions, Traffic, at_least, clock, equal, eventually, report, slowly, truth};

const GROWTHS: &str = "tcpmon_receive_buffer_growths_total";

#[test]
fn a_reader_that_stops_for_200_ms_shows_the_queue_that_inet_diag_shows() {
    let lab = Lab::with(LabOptions { napi: true, ..LabOptions::default() });
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("stops").spawn();
    let _sender = sender(&lab, &reader).rate(4_000_000).message(1448).spawn();
    eventually(DEADLINE, "the flow runs", || at_least(reader.report().bytes, 500_000));
    let labels = group("stops", reader.port());
    reader.pause();
    let stopped = Instant::now();
    let mut looks = 0;
    while stopped.elapsed() < Duration::from_millis(200) || looks < 2 {
        // The queue only grows while nobody reads, so tcpmon's value lies between two reads by inet_diag.
        let before = connection(&lab, &reader).unwrap();
        let page = daemon.scrape();
        let after = connection(&lab, &reader).unwrap();
        let seen = page.value("tcpmon_receive_queue_bytes", &labels).unwrap();
        let (least, most) = (f64::from(before.recv_q), f64::from(after.recv_q));
        assert!((least..=most).contains(&seen), "tcpmon {seen}, inet_diag {least} .. {most}");
        looks += 1;
    }
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
        // The window is that of the last acknowledgement, which may come a little later than the bytes.
        let (truth, page) = eventually(DEADLINE, "the bytes wait and nothing changes", || {
            let (before, page) = (queued(&lab, &reader, waiting)?, daemon.scrape());
            let after = queued(&lab, &reader, waiting)?;
            let same = (before.rmem, before.info.rcv_wnd) == (after.rmem, after.info.rcv_wnd);
            if same { Ok((after, page)) } else { Err(format!("{before:?}, then {after:?}")) }
        });
        let value = |name: &str| page.value(name, &group("at-rest", reader.port()));
        assert_eq!(value("tcpmon_receive_queue_bytes"), Some(f64::from(waiting)));
        assert_eq!(value("tcpmon_receive_buffer_used_bytes"), Some(f64::from(truth.rmem)), "{truth:?}");
        assert_eq!(value("tcpmon_receive_buffer_limit_bytes"), Some(f64::from(truth.rcvbuf)));
        match truth.info.rcv_wnd {
            Some(window) => assert_eq!(value("tcpmon_receive_window_bytes"), Some(f64::from(window))),
            None => report::not_supported("tcp_info has no rcv_wnd to hold the window against (Linux 6.2)"),
        }
        assert_eq!(value("tcpmon_receive_backlog_bytes"), Some(f64::from(truth.backlog)));
        assert_eq!(value("tcpmon_sockets"), Some(1.0));
    }
}

#[test]
fn byte_seconds_are_the_integral_of_arrivals_and_reads() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("integral").paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    let (mut least, mut most) = (0.0, 0.0);
    for round in 1..=5u64 {
        let bytes = 10_000 * round;
        // A byte that arrived at a and was read at b contributes b - a. It arrives between the order to send it and the
        // moment at which it is seen to wait, and is read while the order to read it is carried out.
        let ordered = clock::monotonic_ns();
        assert_eq!(sender.send(bytes), bytes);
        eventually(DEADLINE, "the bytes wait", || queued(&lab, &reader, bytes as u32));
        let seen = clock::monotonic_ns();
        // A time that is long compared with the orders.
        let until = seen + slowly(60_000_000) * round;
        eventually(DEADLINE, "the bytes have waited", || clock::monotonic_ns() >= until);
        let asked = clock::monotonic_ns();
        assert_eq!(reader.read(bytes), bytes);
        let byte_seconds = |nanoseconds: u64| bytes as f64 * nanoseconds as f64 / 1e9;
        least += byte_seconds(asked - seen);
        most += byte_seconds(clock::monotonic_ns() - ordered);
    }
    sender.finish();
    reader.resume();
    reader.wait();
    let name = "tcpmon_receive_queue_byte_seconds_total";
    let seen = eventually(DEADLINE, "all is read", || {
        let page = daemon.scrape();
        let read = page.value("tcpmon_receive_read_bytes_total", &group("integral", reader.port()));
        (read == Some(150_000.0)).then(|| page.value(name, &group("integral", reader.port())).unwrap())
    });
    assert!((least..=most).contains(&seen), "tcpmon {seen} byte-seconds, the two ends {least} to {most}");
}

#[test]
fn a_closed_window_is_timed() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("closed").receive_buffer(50_000).paused().spawn();
    let _sender = sender(&lab, &reader).spawn();
    let closed = || {
        let socket = connection(&lab, &reader)?;
        // If the receiver does not report its window, uses the window that it has advertised to the sender.
        let told = |sender: &truth::Socket| sender.info.unacked == 0 && sender.info.snd_wnd < socket.info.rcv_mss;
        let has_told = || truth::sockets(lab.sender()).iter().any(told);
        let closed = socket.info.rcv_wnd.map_or_else(has_told, |window| window < socket.info.rcv_mss);
        if closed { Ok(()) } else { Err(format!("{socket:?}")) }
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
    assert_eq!(closed(), Ok(()), "it is closed no more");
    let second = look();
    let seen = second.1 - first.1;
    let (least, most) = ((second.0 - first.2) as f64 / 1e9, (second.2 - first.0) as f64 / 1e9);
    assert!((least..=most).contains(&seen), "tcpmon {seen} s, the clock {least} .. {most} s");
}

#[test]
fn data_behind_a_hole_are_out_of_order_until_it_is_filled() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("hole").paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    let labels = group("hole", reader.port());
    let gauges = || {
        let page = daemon.scrape();
        let value = |name: &str| page.value(name, &labels);
        (value("tcpmon_receive_out_of_order_bytes"), value("tcpmon_receive_queue_bytes"))
    };
    assert_eq!(sender.send(500), 500);
    eventually(DEADLINE, "nothing is out of order", || match gauges() {
        (Some(0.0), Some(500.0)) => Ok(()),
        seen => Err(format!("{seen:?}")),
    });
    // Segments of this size never get through, however often they are retransmitted; segments behind them do.
    lab.drop_payload_of(777);
    let behind = 4_000;
    assert_eq!((sender.send(777), sender.send(behind)), (777, behind));
    eventually(DEADLINE, "it has arrived behind the hole", || match connection(&lab, &reader)? {
        socket if socket.info.rcv_ooopack >= 3 => Ok(()), // in segments of 1448 bytes
        socket => Err(format!("{socket:?}")),
    });
    assert_eq!(gauges(), (Some(behind as f64), Some(500.0)));
    assert_eq!(queued(&lab, &reader, 500).unwrap().info.bytes_received, 500);
    lab.drop_nothing();
    let all = 500 + 777 + behind;
    eventually(DEADLINE, "the hole is filled", || queued(&lab, &reader, all as u32));
    assert_eq!(gauges(), (Some(0.0), Some(all as f64)));
    assert_eq!(reader.read(all), all);
}

#[test]
fn buffers_enlarged_by_other_means_than_autotuning_do_not_count_as_growths() {
    let daemon = Daemon::start(&[]);
    let growths = |lab: &Lab, prepare: &dyn Fn(&TcpStream)| {
        let listener = lab.receiver().run(|| TcpListener::bind((lab.receiver().v4, 0))).expect("a free port");
        let to = listener.local_addr().expect("an address");
        let mut client = lab.sender().run(|| TcpStream::connect(to)).expect("it listens");
        let mut accepted = listener.accept().expect("a connection").0;
        let rcvbuf = || {
            let mut sockets = truth::sockets(lab.receiver()).into_iter();
            sockets.find(|socket| socket.is_connection_to(to.port())).expect("it is open").rcvbuf
        };
        let first = rcvbuf();
        for number in 0..10 {
            client.write_all(&[7; 1000]).expect("it is open");
            if number == 5 {
                prepare(&accepted);
            }
            // With SO_RCVLOWAT, a read that may wait would wait for more.
            accepted.set_nonblocking(true).expect("it is open");
            eventually(DEADLINE, "the data have come", || {
                accepted.read(&mut [0; 1000]).is_ok_and(|bytes| bytes == 1000)
            });
        }
        let grown = rcvbuf() > first;
        let of_listener = [("service", "local:ephemeral")];
        let page = daemon.scrape();
        let received = page.sum("tcpmon_receive_bytes_total", &of_listener);
        assert!(received >= 10_000.0, "{received}");
        (grown, page.sum(GROWTHS, &of_listener))
    };
    let lab = Lab::new();
    assert_eq!(growths(&lab, &|socket| set_low_water(socket, 1 << 20)), (true, 0.0));
    lab.set_sysctl("net.ipv4.tcp_moderate_rcvbuf", "0");
    assert_eq!(growths(&lab, &|_| ()), (false, 0.0));
    let reader = Traffic::reader(lab.receiver()).comm("untuned").between(Between::Sleep(2000)).spawn();
    sender(&lab, &reader).bytes(5_000_000).spawn().wait();
    assert_eq!(daemon.scrape().sum(GROWTHS, &[("process", "untuned")]), 0.0);
}

#[expect(unsafe_code, reason = "no library here has this option")]
fn set_low_water(socket: &TcpStream, bytes: i32) {
    let (value, length) = (&raw const bytes, size_of::<i32>() as u32);
    // SAFETY: the value is an int that lives until the call returns.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value.cast(), length) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn growths_are_the_times_that_autotuning_raised_the_limit() {
    let lab = Lab::new();
    lab.set_sysctl("net.ipv4.tcp_timestamps", "0");
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("grows").chunk(8 << 20).paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    let labels = group("grows", reader.port());
    let seen = || daemon.scrape().value(GROWTHS, &labels);
    eventually(DEADLINE, "tcpmon knows whose the socket is", || equal(seen(), Some(0.0)));
    let mut socket = connection(&lab, &reader).unwrap();
    let mut grown = 0;
    // Returns how often the limit has been raised so far.
    let mut exchange = |socket: &mut truth::Socket, bytes: u32| {
        assert_eq!(sender.send(bytes.into()), u64::from(bytes));
        let waiting = eventually(DEADLINE, "the bytes wait", || queued(&lab, &reader, bytes));
        assert_eq!(waiting.rcvbuf, socket.rcvbuf, "it rises by reading only");
        assert_eq!(reader.read(bytes.into()), u64::from(bytes));
        *socket = connection(&lab, &reader).unwrap();
        grown += u32::from(socket.rcvbuf > waiting.rcvbuf);
        assert_eq!(seen(), Some(f64::from(grown)), "from {} to {}", waiting.rcvbuf, socket.rcvbuf);
        grown
    };
    // At the first read after a round trip, the kernel compares the bytes that were read since the last comparison,
    // less those that still wait behind them, with the target. Without timestamps, the receiver takes the time in which
    // a whole window arrives for a round trip: some rounds, which is long compared with the copying of a segment.
    let mut bytes = 0;
    for _ in 0..40 {
        let round_trip = Duration::from_micros((2 * socket.info.rcv_rtt_us).into());
        let (start, wait) = (Instant::now(), round_trip.max(Duration::from_nanos(slowly(4_000_000))));
        eventually(DEADLINE, "a round trip is over", || start.elapsed() > wait);
        if exchange(&mut socket, 1) == 2 {
            return;
        }
        // One and a half times the target, and more each time that this was not enough. All of it must fit in the
        // buffer.
        bytes = (socket.info.rcv_space / 2 * 3).max(bytes / 2 * 3).min(socket.info.rcv_ssthresh / 4 * 3);
        exchange(&mut socket, bytes);
    }
    panic!("autotuning has raised the limit less than twice: {socket:?}");
}

#[test]
fn a_half_closed_socket_shows_its_queue_and_its_integral() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("half").paused().log_reads().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    let labels = group("half", reader.port());
    // The first read comes before the shutdown; the rest of the test starts right after it.
    let begun = clock::monotonic_ns();
    assert_eq!((sender.send(1), reader.read(1)), (1, 1));
    reader.shutdown_write();
    eventually(DEADLINE, "the socket is half closed", || match connection(&lab, &reader)? {
        socket if socket.state == truth::State::FinWait2 => Ok(()),
        socket => Err(format!("{socket:?}")),
    });
    assert_eq!(sender.send(1), 1);
    let second_asked = clock::monotonic_ns();
    assert_eq!(reader.read(1), 1);
    let start = clock::monotonic_ns();
    // Arrivals on a half-closed socket are not seen one by one: tcpmon takes them as spread evenly over the time from
    // one read to the next. They are sent evenly, so this is right, but for half of the time between two of them.
    for round in 1..=20u32 {
        eventually(DEADLINE, "its turn has come", || {
            clock::monotonic_ns() >= start + slowly(40_000_000) * u64::from(round)
        });
        assert_eq!(sender.send(1_000), 1_000);
        eventually(DEADLINE, "the bytes wait", || queued(&lab, &reader, 1_000 * round));
        if round % 5 == 0 {
            let page = daemon.scrape();
            assert_eq!(page.value("tcpmon_receive_queue_bytes", &labels), Some(f64::from(1_000 * round)));
            assert_eq!(page.value("tcpmon_receive_bytes_total", &labels), Some(f64::from(1_000 * round + 2)));
        }
    }
    let third_asked = clock::monotonic_ns();
    assert_eq!(reader.read(20_000), 20_000);
    let log = reader.report().log;
    let [_, second, .., last] = log[..] else { panic!("{log:?}") };
    let page = daemon.scrape();
    let seen = page.value("tcpmon_receive_queue_byte_seconds_total", &labels).unwrap();
    // A read drains its bytes between the order and the moment that the log has, packet by packet. Half of the bytes
    // have waited, on average, from the second read until the third begins; until it ends, at most all of them do, and
    // the first two bytes at most until the second read ends.
    let byte_seconds = |bytes: u64, from: u64, to: u64| bytes as f64 * (to - from) as f64 / 1e9;
    let most = byte_seconds(10_000, second_asked, third_asked)
        + byte_seconds(20_000, third_asked, last.at_ns)
        + byte_seconds(2, begun, second.at_ns);
    // Each packet's wait is rounded down to a tick, and the wait of all of them if it is longer than 4 s.
    let least = byte_seconds(10_000, second.at_ns, third_asked) - byte_seconds(30_002, 0, TICK_NS);
    assert!((least..=most).contains(&seen), "tcpmon {seen} byte-seconds, the reads {least} to {most}");
    assert_eq!(page.value("tcpmon_receive_read_bytes_total", &labels), Some(20_002.0));
}

#[test]
fn every_segment_is_counted_once_with_the_fill_that_it_met() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("fills").paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    let labels = group("fills", reader.port());
    let value = |name: &str| daemon.scrape().value(name, &labels);
    eventually(DEADLINE, "tcpmon knows whose the socket is", || equal(value("tcpmon_sockets"), Some(1.0)));
    let fill = |socket: &truth::Socket| f64::from(socket.rmem) / f64::from(socket.rcvbuf);
    let mut before = connection(&lab, &reader).unwrap();
    let (mut least, mut most) = (0.0, 0.0);
    // Each message fits in one segment, and finds the buffer as inet_diag showed it at rest before. A segment that is
    // sent twice (because the acknowledgement is late) finds it as it is before or after.
    for bytes in [1, 1_400, 700, 1_000].repeat(12) {
        assert_eq!(sender.send(bytes), bytes);
        let waiting = before.recv_q + bytes as u32;
        let after = eventually(DEADLINE, "the bytes wait", || queued(&lab, &reader, waiting));
        let again = f64::from(after.info.data_segs_in - before.info.data_segs_in) - 1.0;
        least += fill(&before) * (1.0 + again);
        most += fill(&before) + fill(&after) * again;
        before = after;
    }
    let last = || {
        let before = connection(&lab, &reader)?.info.data_segs_in;
        let page = daemon.scrape();
        let after = connection(&lab, &reader)?.info.data_segs_in;
        if before == after { Ok((page, after)) } else { Err("one came again".to_owned()) }
    };
    let (page, segments) = eventually(DEADLINE, "nothing comes any more", last);
    let (again, segments) = (f64::from(segments - before.info.data_segs_in), f64::from(segments));
    assert!(segments >= 48.0, "{segments}");
    let value = |name: &str| page.value(name, &labels);
    assert_eq!(value("tcpmon_receive_segments_total"), Some(segments));
    assert_eq!(value("tcpmon_receive_buffer_fill_ratio_count"), Some(segments));
    let [process, service] = labels;
    let all = page.value("tcpmon_receive_buffer_fill_ratio_bucket", &[process, service, ("le", "+Inf")]);
    assert_eq!(all, Some(segments));
    let sum = value("tcpmon_receive_buffer_fill_ratio_sum").unwrap();
    (least, most) = (least + fill(&before) * again, most + fill(&before) * again);
    // Each ratio is stored in units of 1/640, rounded up.
    assert!(least > 1.0, "the buffer has to fill up to say something: {least}");
    assert!(sum >= least && sum <= most + segments / 640.0, "tcpmon {sum}, inet_diag {least} .. {most}");
}

#[test]
fn data_that_come_with_the_handshake_are_segments_that_found_an_empty_buffer() {
    const CONNECTIONS: u64 = 50;
    let lab = Lab::new();
    lab.allow_fast_open();
    let daemon = Daemon::start(&[]);
    for comm in ["with-ack", "with-syn", "deferred"] {
        let reader = Traffic::reader(lab.receiver()).comm(comm).threads(Threads::Epoll).connections(CONNECTIONS);
        let reader = match comm {
            "with-syn" => reader.fast_open(),
            "deferred" => reader.defer_accept(),
            _ => reader,
        };
        let reader = reader.spawn();
        let sending = sender(&lab, &reader).connections(CONNECTIONS).parallel(4).bytes(100).hold_open();
        let sending = match comm {
            "with-syn" => sending.fast_open(),
            "with-ack" => sending.data_with_ack(),
            // The listener has dropped the handshake's last ACK: the data complete the handshake.
            _ => sending,
        };
        let _sender = sending.spawn();
        eventually(DEADLINE, "all is read", || equal(reader.report().bytes, CONNECTIONS * 100));
        let sockets = truth::sockets(lab.receiver());
        let ours = sockets.iter().filter(|socket| socket.is_connection_to(reader.port()));
        let by_kernel = f64::from(ours.map(|socket| socket.info.data_segs_in).sum::<u32>());
        let page = daemon.scrape();
        let labels = group(comm, reader.port());
        for family in ["tcpmon_receive_segments_total", "tcpmon_receive_buffer_fill_ratio_count"] {
            assert_eq!(page.value(family, &labels), Some(by_kernel), "{comm}: {family}");
        }
        assert!(by_kernel >= CONNECTIONS as f64, "{by_kernel}");
    }
    let without_data = truth::tcp_counters(lab.receiver())["TCPDeferAcceptDrop"];
    assert!(without_data >= CONNECTIONS, "{without_data} handshakes of `deferred` waited for their data");
}

#[test]
fn a_fin_behind_the_data_is_not_in_the_queue() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("fin").paused().spawn();
    let sender = sender(&lab, &reader).paused().spawn();
    assert_eq!(sender.send(5_000), 5_000);
    sender.finish();
    eventually(DEADLINE, "the FIN has come", || match connection(&lab, &reader)? {
        socket if socket.state == truth::State::CloseWait => Ok(()),
        socket => Err(format!("{socket:?}")),
    });
    let queue = || daemon.scrape().value("tcpmon_receive_queue_bytes", &group("fin", reader.port()));
    eventually(DEADLINE, "tcpmon knows whose the socket is", || queue().is_some());
    assert_eq!(queue(), Some(5_000.0));
    assert_eq!(reader.read(4_999), 4_999);
    assert_eq!(queue(), Some(1.0));
}
