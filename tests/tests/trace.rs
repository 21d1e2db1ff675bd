//! `tcpmon trace`: records of the timeslices of one process, compared with the reader's own count.

mod common;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use common::{DEADLINE, has_two_cpus, queued, sender, sleeps};
use serde_json::Value;
use tcpmon_tests::refusal::BPF_PROG_TEST_RUN;
use tcpmon_tests::trace::Traced;
use tcpmon_tests::traffic::plan::BurstPlan;
use tcpmon_tests::traffic::{Between, Running, Threads};
use tcpmon_tests::{Cgroup, Lab, Trace, Traffic, at_least, clock, emulated, equal, eventually, fewer, slowly, truth};

fn slices(traced: &Traced) -> Vec<&Value> {
    traced.records.iter().filter(|record| record["type"] == "timeslice").collect()
}

fn number(line: &Value, key: &str) -> u64 {
    line[key].as_u64().unwrap_or_else(|| panic!("{key} in {line}"))
}

fn sum(slices: &[&Value], key: &str) -> u64 {
    slices.iter().map(|slice| number(slice, key)).sum()
}

/// Time between two timeslices that is in no record, ns: there were others between them; or the kernel has hidden the
/// switch to the thread (docs/performance.md), and the hypervisor took a part of the timeslice.
fn unrecorded(previous: &Value, slice: &Value) -> u64 {
    let recorded = number(previous, "deactivated_ns") + number(slice, "wait_ns") + number(slice, "sleep_ns");
    number(slice, "activated_ns").saturating_sub(recorded)
}

#[test]
fn a_trace_of_one_process_has_its_bytes_its_header_and_its_trailer() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("traced").paused().spawn();
    let other = Traffic::reader(lab.receiver()).comm("other").spawn();
    let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
    let sender_traced = sender(&lab, &reader).paused().spawn();
    let bytes = [1000, 20_000, 3, 40_000];
    for bytes in bytes {
        sleeps(&reader);
        assert_eq!(sender_traced.send(bytes), bytes);
        eventually(DEADLINE, "the bytes wait", || queued(&lab, &reader, bytes as u32));
        assert_eq!(reader.read(bytes), bytes);
    }
    sender(&lab, &other).bytes(1_000_000).spawn().wait();
    other.wait();
    let total: u64 = bytes.iter().sum();
    let traced = trace.stop();
    assert!(traced.status.success(), "{} {}", traced.status, traced.stderr);
    let (first, last) = (&traced.records[0], traced.records.last().unwrap());
    assert_eq!((&first["type"], &first["format"]), (&"header".into(), &"tcpmon-trace".into()), "{first}");
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap().matches("processor\t").count();
    assert_eq!(first["cpus"].as_u64(), Some(cpus as u64), "{first}");
    let slices = slices(&traced);
    assert_eq!((&last["type"], last["records"].as_u64()), (&"trailer".into(), Some(slices.len() as u64)), "{last}");
    assert!(slices.iter().all(|slice| slice["tgid"] == reader.pid()), "only the process that was asked for");
    assert_eq!(sum(&slices, "read_bytes"), total);
    assert_eq!(sum(&slices, "arrived_off_cpu_bytes") + sum(&slices, "arrived_on_cpu_bytes"), total);
    // After the first read, all data arrived while the reader slept, and were seen waiting at its activation.
    for bytes in &bytes[1..] {
        let found = slices.iter().find(|slice| slice["arrived_off_cpu_bytes"] == *bytes);
        let slice = found.unwrap_or_else(|| panic!("no timeslice with {bytes} bytes"));
        assert_eq!(slice["activation_queued_bytes"], *bytes, "{slice}");
    }
    reader.resume();
}

#[test]
fn where_the_kernel_runs_no_program_for_user_space_a_trace_has_all_bytes() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("traced").paused().spawn();
    let trace = Trace::start_refusing(BPF_PROG_TEST_RUN, &["--pid", &reader.pid().to_string()]);
    let sender = sender(&lab, &reader).paused().spawn();
    let bytes = [1000, 20_000];
    for bytes in bytes {
        assert_eq!(sender.send(bytes), bytes);
        eventually(DEADLINE, "the bytes wait", || queued(&lab, &reader, bytes as u32));
        assert_eq!(reader.read(bytes), bytes);
    }
    // A timeslice that goes on when the trace ends is not in it.
    sleeps(&reader);
    let traced = trace.stop();
    reader.resume();
    let trailer = traced.records.last().unwrap();
    assert!(lost_only_what_interrupts(trailer), "{} {trailer}", traced.stderr);
    let [socket] = totals(&traced, "socket")[..] else { panic!("{:?}", traced.records) };
    let (read, recorded) = (number(socket, "read_bytes"), sum(&slices(&traced), "read_bytes"));
    assert_eq!(number(socket, "timeslices_read_bytes"), recorded, "{socket}");
    let sent: u64 = bytes.iter().sum();
    assert!(read == sent || number(&trailer["lost"], "recursion_tcp_rcv_space_adjust") > 0, "{socket} {trailer}");
    assert!(recorded == sent || trailer["complete"] == false, "{recorded} of {sent} bytes in records, {trailer}");
}

#[test]
fn the_first_bytes_of_a_connection_wait_from_their_arrival_however_old_the_connection_is() {
    const BYTES: u64 = 5000;
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("traced").paused().spawn();
    let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
    let sender = sender(&lab, &reader).paused().spawn();
    let opened = clock::monotonic_ns();
    sleeps(&reader);
    let age = Duration::from_millis(500).as_nanos() as u64;
    eventually(DEADLINE, "the connection is half a second old", || clock::monotonic_ns() - opened > age);
    let before = clock::monotonic_ns();
    assert_eq!(sender.send(BYTES), BYTES);
    eventually(DEADLINE, "the bytes wait", || queued(&lab, &reader, BYTES as u32));
    let queued_at = clock::monotonic_ns();
    eventually(DEADLINE, "they have waited", || clock::monotonic_ns() - queued_at > age / 10);
    assert_eq!(reader.read(BYTES), BYTES);
    let waited = (age / 10)..=(clock::monotonic_ns() - before);
    sleeps(&reader);
    let traced = trace.stop();
    reader.resume();
    let slices = slices(&traced);
    let byte_us = sum(&slices, "waited_application_byte_us") + sum(&slices, "waited_scheduler_byte_us");
    let each = byte_us * 1000 / BYTES;
    assert!(waited.contains(&each), "each byte waited {each} ns, in truth {waited:?}");
}

/// Preempts whatever runs on CPU 0 a thousand times per second, including tcpmon's programs where these can be
/// preempted.
fn pulse(lab: &Lab) -> Running {
    let to = SocketAddr::new(lab.receiver().v4.into(), 9);
    let plan = BurstPlan { to, cpu: 0, datagrams: 1, payload: 1, pause_ms: 1, bursts: 100_000 };
    let burst = Traffic::burst(lab.sender(), plan);
    burst.resume();
    burst
}

#[test]
fn a_reader_that_is_preempted_while_its_reads_are_noted_has_all_its_bytes() {
    const BYTES: u64 = 200_000;
    const CONNECTIONS: u64 = 20;
    let lab = Lab::new();
    // The buffer is so small that the last data arrive with the FIN while the reader is reading, so the reader
    // processes them itself.
    let reading = Traffic::reader(lab.receiver()).comm("interrupted").cpu(0).chunk(1).receive_buffer(4096);
    let reader = reading.connections(CONNECTIONS).spawn();
    let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
    // Four would leave the reader nothing of an emulated CPU that has to share the host's.
    let pulses: Vec<Running> = (0..fewer(4, 1)).map(|_| pulse(&lab)).collect();
    sender(&lab, &reader).connections(CONNECTIONS).bytes(BYTES / CONNECTIONS).spawn().wait();
    assert_eq!(reader.wait().bytes, BYTES);
    drop(pulses);
    let traced = trace.stop();
    let slices = slices(&traced);
    let edges = traced.records.last().unwrap()["lost"]["timeslice_edge"].as_u64().unwrap();
    assert_eq!(sum(&slices, "read_bytes"), BYTES);
    assert_eq!(sum(&slices, "arrived_off_cpu_bytes") + sum(&slices, "arrived_on_cpu_bytes"), BYTES);
    if truth::tracepoints_are_preemptible() {
        assert!(edges > 0 || !emulated::pulses_hit_programs(), "no program was preempted: {edges}");
    } else {
        assert_eq!(edges, 0);
    }
}

#[test]
fn threads_that_steal_each_others_work_are_each_counted_once() {
    const BYTES: u64 = 1_000_000;
    const CHUNK: usize = 1000;
    let lab = Lab::new();
    let stealing = Traffic::reader(lab.receiver()).comm("stealing").chunk(CHUNK).threads(Threads::Turns(3));
    let reader = stealing.connections(4).spawn();
    let trace = Trace::start(&["--comm", "stealing"]);
    let sender = sender(&lab, &reader).flows(4).bytes(BYTES / 4).paused().spawn();
    let pulse = pulse(&lab);
    sender.resume();
    sender.wait();
    let report = reader.wait();
    drop(pulse);
    assert_eq!(report.bytes, BYTES);
    let traced = trace.stop();
    let slices = slices(&traced);
    let arrived = sum(&slices, "arrived_off_cpu_bytes") + sum(&slices, "arrived_on_cpu_bytes");
    let read = sum(&slices, "read_bytes");
    // If a read met its program already running, its bytes are in the socket's next record, or in none if it was the
    // last read. A connection whose start was missed lacks the bytes of its first read.
    let lost = &traced.records.last().unwrap()["lost"];
    let missed = lost["recursion_tcp_rcv_space_adjust"].as_u64().unwrap();
    assert!(missed == 0 || emulated::recursion_is_usual(), "lost {lost}");
    assert!(read <= BYTES && BYTES - read <= missed * CHUNK as u64, "{read} read, lost {lost}");
    assert!(arrived == BYTES || missed > 0 && arrived < BYTES, "{arrived} arrived, lost {lost}");
    let mut tids: Vec<u64> = slices.iter().filter_map(|slice| slice["tid"].as_u64()).collect();
    tids.sort_unstable();
    tids.dedup();
    assert_eq!(tids.len(), 3);
}

#[test]
fn a_trace_ends_with_its_process_or_its_time_and_says_so() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("ends").spawn();
    let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
    sender(&lab, &reader).bytes(100_000).spawn().wait();
    reader.wait();
    drop(reader);
    let traced = trace.wait(DEADLINE);
    assert!(traced.status.success(), "{}", traced.stderr);
    assert_eq!(traced.records.last().unwrap()["reason"], "process_exit");
    assert_eq!(sum(&slices(&traced), "read_bytes"), 100_000);

    let traced = Trace::run(&["--all", "--duration", "200ms"], DEADLINE);
    assert!(traced.status.success(), "{}", traced.stderr);
    assert_eq!(traced.records.last().unwrap()["reason"], "duration");
}

#[test]
fn a_port_filter_traces_only_that_port() {
    let lab = Lab::new();
    let wanted = Traffic::reader(lab.receiver()).comm("wanted").spawn();
    let unwanted = Traffic::reader(lab.receiver()).comm("unwanted").spawn();
    let trace = Trace::start(&["--port", &wanted.port().to_string(), "--comm", "wanted", "--comm", "unwanted"]);
    for reader in [&wanted, &unwanted] {
        sender(&lab, reader).bytes(50_000).spawn().wait();
        reader.wait();
    }
    let traced = trace.stop();
    let slices = slices(&traced);
    assert!(slices.iter().all(|slice| slice["local_port"] == wanted.port()), "{slices:?}");
    assert_eq!(sum(&slices, "read_bytes"), 50_000);
}

#[test]
fn a_control_group_is_traced_with_its_descendants() {
    let lab = Lab::new();
    let parent = Cgroup::new("traced");
    let child = parent.child("child");
    let inside = Traffic::reader(lab.receiver()).comm("inside").spawn();
    let outside = Traffic::reader(lab.receiver()).comm("outside").spawn();
    child.take(inside.pid());
    let trace = Trace::start(&["--cgroup", parent.path().to_str().unwrap()]);
    for reader in [&inside, &outside] {
        sender(&lab, reader).bytes(50_000).spawn().wait();
        reader.wait();
    }
    let traced = trace.stop();
    let slices = slices(&traced);
    assert!(slices.iter().all(|slice| slice["tgid"] == inside.pid()), "{slices:?}");
    assert_eq!(sum(&slices, "read_bytes"), 50_000);
}

#[test]
fn no_record_of_a_trace_is_older_than_its_header() {
    let lab = Lab::new();
    // The reader already runs while the programs are attached one after the other, before the header is written.
    let reader = Traffic::reader(lab.receiver()).comm("early").spawn();
    let sender = sender(&lab, &reader).rate(500_000).message(1_000).spawn();
    eventually(DEADLINE, "the flow runs", || at_least(reader.report().bytes, 20_000));
    for _ in 0..3 {
        let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
        eventually(DEADLINE, "records", || at_least(trace.records().len(), 51));
        let traced = trace.stop();
        let start = traced.records[0]["start_monotonic_ns"].as_u64().unwrap();
        let old = slices(&traced).into_iter().find(|slice| slice["deactivated_ns"].as_u64().unwrap() < start);
        assert_eq!(old, None, "the header says {start}");
    }
    sender.finish();
}

#[test]
fn times_of_a_trace_add_up_to_those_of_schedstat() {
    if !has_two_cpus() {
        return;
    }
    let lab = Lab::new();
    let _hog = Traffic::hog(0, 0);
    let reader = Traffic::reader(lab.receiver()).comm("sums").cpu(0).between(Between::Spin(300)).spawn();
    let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
    // The sender sends as fast as it can: the reader always has something to do, and half a CPU to do it with.
    let sender = sender(&lab, &reader).cpu(1).spawn();
    eventually(DEADLINE, "the first records", || at_least(trace.records().len(), 11));
    // At a moment between two others.
    let look = || {
        let since = clock::monotonic_ns();
        (since, truth::task_times(reader.pid(), reader.pid()), clock::monotonic_ns())
    };
    let before = look();
    let after = eventually(3 * DEADLINE, "the reader has run and waited for a while", || {
        let now = look();
        // Long compared with one timeslice at each end.
        let enough = |now: Duration, before: Duration| now - before > Duration::from_nanos(slowly(1_000_000_000));
        (enough(now.1.running, before.1.running) && enough(now.1.waiting, before.1.waiting)).then_some(now)
    });
    eventually(DEADLINE, "the timeslice of the last look has ended", || {
        trace.records().last().and_then(|line| line["deactivated_ns"].as_u64()).is_some_and(|ended| ended > after.2)
    });
    sender.finish();
    reader.wait();
    let traced = trace.stop();
    let slices = slices(&traced);
    let pairs = || slices.iter().zip(&slices[1..]);
    for (key, truth) in
        [("on_cpu_ns", after.1.running - before.1.running), ("wait_ns", after.1.waiting - before.1.waiting)]
    {
        // The kernel adds what a record has after the end of the timeslice before it, and before its own end. What it
        // had added of those that lie across a look is not known.
        let (mut least, mut most) = (0, 0);
        for (previous, slice) in pairs() {
            let (since, until) = (number(previous, "deactivated_ns"), number(slice, "deactivated_ns"));
            if before.2 <= since && until <= after.0 {
                least += number(slice, key);
            }
            if before.0 <= until && since <= after.2 {
                most += number(slice, key) + unrecorded(previous, slice);
            }
        }
        let truth = truth.as_nanos() as u64;
        assert!((least..=most).contains(&truth), "{key}: tcpmon {least} to {most} ns, schedstat {truth} ns");
    }
}

/// The totals of this type at the end of a trace.
fn totals<'t>(traced: &'t Traced, kind: &str) -> Vec<&'t Value> {
    traced.records.iter().filter(|record| record["type"] == kind).collect()
}

#[test]
fn an_event_loop_has_all_bytes_of_each_of_its_sockets() {
    const FLOWS: u64 = 200;
    // Also on an emulated CPU more reads than one timeslice has.
    let bytes = fewer(200_000, 20_000);
    let lab = Lab::new();
    let looping = Traffic::reader(lab.receiver()).comm("loop").threads(Threads::Epoll).chunk(1000);
    // Its exit would end the trace, which may be before the last FINs are acknowledged.
    let reader = looping.until_exit().spawn();
    let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
    sender(&lab, &reader).flows(FLOWS).bytes(bytes).spawn().wait();
    eventually(DEADLINE, "all connections have ended", || {
        reader.report().bytes == FLOWS * bytes
            && !truth::sockets(lab.receiver()).iter().any(|socket| socket.is_connection_to(reader.port()))
    });
    // Its timeslice has ended.
    sleeps(&reader);
    let traced = trace.stop();
    reader.exit();
    let slices = slices(&traced);
    let sockets = totals(&traced, "socket");
    assert_eq!(sockets.len() as u64, FLOWS, "{:?}", traced.records.last());
    let lost = &traced.records.last().unwrap()["lost"];
    // Where programs can be preempted, a read can be missed, which is in none of the totals if it is a socket's last
    // one, and so can records of a timeslice.
    let [edges, reads] = ["timeslice_edge", "recursion_tcp_rcv_space_adjust"].map(|what| lost[what].as_u64().unwrap());
    assert!(edges + reads == 0 || truth::tracepoints_are_preemptible(), "lost {lost}");
    let mut short = 0;
    for &socket in &sockets {
        let of_socket = |key: &str| socket[key].as_u64().unwrap();
        let own: Vec<_> = slices.iter().copied().filter(|slice| slice["cookie"] == socket["cookie"]).collect();
        let (read, recorded) = (of_socket("read_bytes"), of_socket("timeslices_read_bytes"));
        assert_eq!((of_socket("received_bytes"), sum(&own, "read_bytes")), (bytes, recorded), "{socket}, lost {lost}");
        if (read, recorded) != (bytes, bytes) {
            assert!(edges + reads > 0 && recorded <= read && read <= bytes, "{socket}, lost {lost}");
            short += u64::from(read < bytes);
            continue;
        }
        assert_eq!(sum(&own, "arrived_off_cpu_bytes") + sum(&own, "arrived_on_cpu_bytes"), bytes, "{socket}");
        assert_eq!((&socket["closed"], &socket["timeslices_complete"]), (&true.into(), &true.into()));
        // What was decided after the last record is in the total only.
        for key in ["limited_upstream_ns", "limited_application_ns", "waited_application_byte_us"] {
            let (whole, part) = (of_socket(key), sum(&own, key));
            assert!(whole >= part, "{key}: {part} of {whole}");
        }
    }
    assert!(short <= reads, "{short} sockets lack bytes, lost {lost}");
    // More sockets in one timeslice than are kept from one to the next.
    let mut in_one_timeslice = HashMap::<_, usize>::new();
    for slice in &slices {
        *in_one_timeslice.entry(slice["deactivated_ns"].as_u64()).or_default() += 1;
    }
    let most = in_one_timeslice.into_values().max();
    assert!(most > Some(8), "{most:?} sockets in a timeslice");
    let thread = totals(&traced, "thread");
    assert_eq!((thread.len(), thread[0]["read_bytes"].as_u64()), (1, Some(sum(&sockets, "read_bytes"))));
}

#[test]
fn totals_are_exact_whatever_the_timeslices_lose() {
    const FLOWS: u64 = 50;
    const BYTES: u64 = 100_000;
    let lab = Lab::new();
    let looping = Traffic::reader(lab.receiver()).comm("lossy").threads(Threads::Epoll).chunk(500);
    let reader = looping.connections(FLOWS).spawn();
    let (pid, page) = (reader.pid().to_string(), truth::page_bytes().to_string());
    let trace = Trace::start(&["--pid", &pid, "--ring-bytes", &page]);
    let sending = sender(&lab, &reader).flows(FLOWS).paused().spawn();
    assert_eq!(sending.send(BYTES), FLOWS * BYTES);
    eventually(DEADLINE, "all is read", || equal(reader.report().bytes, FLOWS * BYTES));
    // The connections are open, so that no totals get lost with the timeslices.
    let traced = trace.stop();
    let trailer = traced.records.last().unwrap();
    assert!(trailer["lost"]["timeslice_record"].as_u64().unwrap() > 0, "{trailer}");
    let sockets = totals(&traced, "socket");
    assert_eq!(sum(&sockets, "read_bytes"), FLOWS * BYTES);
    assert_eq!(sum(&sockets, "received_bytes"), FLOWS * BYTES);
    let recorded = sum(&slices(&traced), "read_bytes");
    assert_eq!(sum(&sockets, "timeslices_read_bytes"), recorded);
    assert!(recorded < FLOWS * BYTES, "{recorded} of {} bytes, although records were lost", FLOWS * BYTES);
    sending.finish();
}

/// Whether this trailer counts no loss but those that the kernel forces on a trace of a socket that is read on and on:
/// a segment that comes while another one is recorded, of which no byte is lost; and where programs can be preempted,
/// a read likewise, whose bytes are in the next record, and records of timeslices that ended while a program noted a
/// read in them.
fn lost_only_what_interrupts(trailer: &Value) -> bool {
    let preempted = ["timeslice_edge", "recursion_tcp_rcv_space_adjust"];
    let may_be_lost =
        |what: &str| what == "recursion_tcp_probe" || preempted.contains(&what) && truth::tracepoints_are_preemptible();
    let lost = trailer["lost"].as_object().expect("the losses");
    lost.iter().all(|(what, count)| *count == 0 || may_be_lost(what))
        && trailer["complete"] == lost.values().all(|count| *count == 0)
}

#[test]
fn a_trace_that_ends_while_data_flow_lacks_only_the_open_timeslices() {
    const CHUNK: u64 = 1000;
    let lab = Lab::new();
    let reader =
        Traffic::reader(lab.receiver()).comm("flows-on").chunk(CHUNK as usize).log_reads().until_exit().spawn();
    let _sender = sender(&lab, &reader).message(1000).rate(fewer(2_000_000, 100_000)).spawn();
    eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, 100_000));
    for _ in 0..fewer(5, 2) {
        let traced = Trace::run(&["--pid", &reader.pid().to_string(), "--duration", "1s"], DEADLINE);
        let log = reader.report().log;
        let slices = slices(&traced);
        let trailer = traced.records.last().unwrap();
        assert!(lost_only_what_interrupts(trailer), "{trailer}");
        let [edges, missed] =
            ["timeslice_edge", "recursion_tcp_rcv_space_adjust"].map(|what| number(&trailer["lost"], what));
        let [socket] = totals(&traced, "socket")[..] else { panic!("{trailer}") };
        let (read, recorded) = (number(socket, "read_bytes"), sum(&slices, "read_bytes"));
        assert_eq!(number(socket, "timeslices_read_bytes"), recorded, "{socket}");
        // One timeslice is open at most, and no longer than the longest. Before it, some may have lost their edges.
        let longest = |key: &str| slices.iter().map(|slice| number(slice, key)).max().unwrap();
        let open = longest("read_bytes") * (1 + edges);
        assert!(recorded > 0 && read - recorded <= open, "{recorded} of {read} bytes, at most {open} in what is open");
        // The thread's totals begin with the trace, as its records do.
        let [thread] = totals(&traced, "thread")[..] else { panic!("{trailer}") };
        let (begun_ns, ended_ns) = (number(thread, "begun_ns"), number(thread, "at_ns"));
        let first = slices.iter().map(|slice| number(slice, "deactivated_ns")).min();
        assert!(first >= Some(begun_ns), "{first:?}: {thread}");
        let ended = number(thread, "preempted") + number(thread, "blocked") + edges;
        assert!(ended >= slices.len() as u64, "{} records: {thread}", slices.len());

        // The thread is looked at after its socket. A read is logged after the programs have seen it: the first that
        // is logged after a moment may have been seen before it. A missed one is counted with the next.
        let read_in = |from_ns: u64, to_ns: u64| -> u64 {
            let calls = log.iter().filter(|call| from_ns < call.at_ns && call.at_ns <= to_ns);
            calls.map(|call| call.bytes).sum()
        };
        let (looked_ns, of_thread, slack) =
            (number(socket, "at_ns"), number(thread, "read_bytes"), (2 + missed) * CHUNK);
        let most = read + read_in(looked_ns, ended_ns) + slack;
        assert!((read..=most).contains(&of_thread), "{of_thread} bytes, {most} at most by the log: {socket} {thread}");
        // What the timeslice that was open at the beginning had read before that is part of the trace.
        let (least, most) = (read_in(begun_ns, looked_ns), read_in(begun_ns, ended_ns) + open + slack);
        assert!(least <= of_thread + slack && of_thread <= most, "{of_thread} bytes, {least} to {most} by the log");
        // Each timeslice with a record is in the totals with the same times, except one that may end while the thread
        // is looked at at the beginning. Those without a record, in which nothing arrived or was read, and those that
        // ended after the look at the socket are no longer than the longest.
        for key in ["on_cpu_ns", "wait_ns"] {
            let (total, recorded, open) = (number(thread, key), sum(&slices, key), longest(key));
            assert!(recorded <= total + open, "{key}: {recorded} of {total} in records, {open} in one at most");
        }
        let unrecorded = ended + 1 - slices.len() as u64;
        let (total, most) =
            (number(thread, "on_cpu_ns"), sum(&slices, "on_cpu_ns") + unrecorded * longest("on_cpu_ns"));
        assert!(
            total <= most,
            "{total} ns on CPUs, {most} by the records, with {unrecorded} timeslices that have none"
        );
    }
}

#[test]
fn in_a_time_namespace_a_trace_has_the_times_of_the_host() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("elsewhen").until_exit().spawn();
    let _sender = sender(&lab, &reader).message(1000).rate(100_000).spawn();
    eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, 1));
    let begun = clock::monotonic_ns();
    let pid = reader.pid().to_string();
    let traced = Trace::run_under(&common::A_DAY_AHEAD, &["--pid", &pid, "--duration", "1s"], DEADLINE);
    let ended = clock::monotonic_ns();
    let slices = slices(&traced);
    assert!(!slices.is_empty(), "{} {}", traced.status, traced.stderr);
    for slice in slices {
        assert!((begun..=ended).contains(&slice["deactivated_ns"].as_u64().unwrap()), "{slice}");
    }
    let start = traced.records[0]["start_monotonic_ns"].as_u64().unwrap();
    assert!((begun..=ended).contains(&start), "{start} in {begun}..{ended}");
}

#[test]
fn a_preempted_thread_names_who_got_its_cpu() {
    let lab = Lab::new();
    let hog = Traffic::hog(0, 0);
    // Each read is followed by more work than a timeslice has room for.
    let reader = Traffic::reader(lab.receiver()).comm("victim").cpu(0).between(Between::Spin(20_000)).spawn();
    let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
    let sender = sender(&lab, &reader).spawn();
    eventually(DEADLINE, "the hog gets the CPU", || {
        let records = trace.records();
        let by_hog = |slice: &&Value| {
            let tid = slice["preempted_by_tid"].as_u64().unwrap_or(0);
            let name = std::fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
            (tid == u64::from(hog.pid()) || emulated::others_preempt() && tid != 0)
                && slice["preempted_by"] == name.trim()
        };
        if records.iter().filter(by_hog).count() >= 3 {
            return Ok(());
        }
        let ends = records.iter().rev().map(|slice| format!("{} by {}", slice["end"], slice["preempted_by"]));
        Err(format!("{} lines, {}", records.len(), ends.take(5).collect::<Vec<_>>().join(", ")))
    });
    sender.finish();
    reader.wait();
    let traced = trace.stop();
    for slice in slices(&traced) {
        let preempted = slice["end"] == "preempted";
        assert_eq!(slice["preempted_by_tid"] != 0, preempted, "{slice}");
    }
}

#[test]
fn a_summary_has_exact_totals_of_many_threads_and_what_limited_their_connections() {
    const FLOWS: u64 = 300;
    const BYTES: u64 = 200_000;
    let lab = Lab::new();
    // Each takes its time for what it has read.
    let slow = Traffic::reader(lab.receiver()).comm("many").threads(Threads::PerFlow).between(Between::Sleep(20_000));
    let reader = slow.chunk(5000).receive_buffer(20_000).connections(FLOWS).until_exit().spawn();
    let trace = Trace::start(&["--pid", &reader.pid().to_string(), "--summary-only"]);
    sender(&lab, &reader).flows(FLOWS).bytes(BYTES).spawn().wait();
    eventually(DEADLINE, "all is read", || equal(reader.report().bytes, FLOWS * BYTES));
    let traced = trace.stop();
    reader.exit();
    let (header, trailer) = (&traced.records[0], traced.records.last().unwrap());
    assert_eq!((&header["filter"]["summary_only"], &trailer["records"]), (&true.into(), &0.into()));
    assert_eq!(slices(&traced).len(), 0);
    let lost = trailer["lost"].as_object().unwrap();
    // A segment that comes while another one is recorded is missed, but not its bytes. Where programs can be preempted,
    // so can a read be; if it was the last, its bytes are missing.
    let reads = "recursion_tcp_rcv_space_adjust";
    let missed = |what: &str| what == "recursion_tcp_probe" || what == reads && truth::tracepoints_are_preemptible();
    assert!(lost.iter().all(|(what, count)| *count == 0 || missed(what)), "{trailer}");
    let sockets = totals(&traced, "socket");
    assert_eq!(sockets.len() as u64, FLOWS, "{trailer}");
    let short = sockets.iter().filter(|socket| socket["read_bytes"] != BYTES);
    assert!(short.count() as u64 <= lost[reads].as_u64().unwrap(), "{trailer}");
    for socket in &sockets {
        assert_eq!(socket["received_bytes"], BYTES, "{socket}");
        assert_eq!((&socket["timeslices_read_bytes"], &socket["timeslices_complete"]), (&0.into(), &false.into()));
    }
    let threads = totals(&traced, "thread");
    assert_eq!((threads.len() as u64, sum(&threads, "read_bytes")), (FLOWS, sum(&sockets, "read_bytes")));
    if emulated::rounds_are_slow() {
        return;
    }
    let causes = ["upstream", "application", "scheduler", "window", "memory"];
    let limited = causes.map(|cause| sum(&sockets, &format!("limited_{cause}_ns")));
    // While a reader sleeps, data waits; of the last of it, which fits into its buffer, nobody knows.
    let asleep = FLOWS * 20_000_000 * (BYTES - 40_000) / 5000;
    assert!(limited[1] >= asleep, "{asleep} ns asleep: {limited:?}");
    let others: u64 = limited[2..].iter().sum();
    assert!(others < asleep / 20, "{limited:?}");
}

#[test]
fn a_trace_that_starts_later_leaves_out_what_was_before() {
    starts_later(&[]);
}

#[test]
fn a_summary_that_starts_later_leaves_out_what_was_before() {
    starts_later(&["--summary-only"]);
}

fn starts_later(arguments: &[&str]) {
    const BYTES: u64 = 50_000;
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("later").spawn();
    let sending = sender(&lab, &reader).paused().spawn();
    let pid = reader.pid().to_string();
    let trace = Trace::spawn(&[], &[&["--pid", &pid, "--start-at", "+3s"], arguments].concat());
    // From before the programs are loaded until the trace has started.
    let mut before = 0;
    eventually(DEADLINE, "the header", || {
        before += sending.send(1000);
        !trace.records().is_empty()
    });
    eventually(DEADLINE, "all of it is read", || equal(reader.report().bytes, before));
    // In timeslices that end with the reader's sleep.
    sleeps(&reader);
    let known = trace.records().len();
    assert_eq!(sending.send(BYTES), BYTES);
    eventually(DEADLINE, "the rest is read", || equal(reader.report().bytes, before + BYTES));
    sleeps(&reader);
    let traced = trace.stop();
    let socket = totals(&traced, "socket");
    let recorded = sum(&slices(&traced), "read_bytes");
    let read = if arguments.is_empty() { recorded } else { sum(&socket, "read_bytes") };
    assert!((BYTES..BYTES + before).contains(&read), "{read} of {before} and {BYTES}, {known} records at the start");
    assert_eq!((sum(&socket, "read_bytes"), sum(&socket, "timeslices_read_bytes")), (read, recorded));
    assert_eq!(sum(&totals(&traced, "thread"), "read_bytes"), read);
    sending.finish();
}
