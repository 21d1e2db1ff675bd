//! `tcpmon report` on traces of transfers whose cause is known: the rows of the table of truth in `docs/causes.md`.

mod common;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{DEADLINE, connection, has_two_cpus, run, sender, sleeps, tcpmon};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;
use tcpmon_tests::fault::TcpMemoryPressure;
use tcpmon_tests::traffic::{Between, Reader, ReaderBuilder, SenderBuilder, Threads};
use tcpmon_tests::truth::{self, State};
use tcpmon_tests::{Browser, Delay, Lab, LabOptions, Trace, Traffic, at_least, eventually};
use tempfile::TempDir;

/// The path of the table: 40 ms there and back.
const ONE_WAY: Duration = Duration::from_millis(20);

/// How long a transfer is traced.
const TRACED: &str = "3s";

/// A trace file, in a directory of its own.
struct TraceFile {
    directory: TempDir,
    path: PathBuf,
}

impl TraceFile {
    /// Traces a reader's connections for a while.
    fn of(reader: &Reader) -> Self {
        Self::keep(Trace::spawn(&[], &["--pid", &reader.pid().to_string(), "--duration", TRACED]))
    }

    /// Traces a reader's connections while `meanwhile` runs.
    fn during(reader: &Reader, meanwhile: impl FnOnce()) -> Self {
        let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
        meanwhile();
        trace.signal(Signal::SIGINT);
        Self::keep(trace)
    }

    fn keep(trace: Trace) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let path = directory.path().join("run.jsonl");
        let traced = trace.wait_into(DEADLINE, &path);
        assert!(traced.status.success(), "{}", traced.stderr);
        Self { directory, path }
    }

    /// Its lines.
    fn records(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.path).expect("the trace");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn report(&self) -> Value {
        json(&[&self.path])
    }

    /// What it tells people.
    fn text(&self) -> String {
        text(&[&self.path])
    }
}

fn text(files: &[&Path]) -> String {
    let output = tcpmon(&["report"]).args(files).output().expect("tcpmon can be started");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn json(files: &[&Path]) -> Value {
    let output = tcpmon(&["report", "--format", "json"]).args(files).output().expect("tcpmon can be started");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A trace of the steady state of one transfer.
fn transfer(lab: &Lab, reader: ReaderBuilder, send: impl FnOnce(SenderBuilder) -> SenderBuilder) -> TraceFile {
    let reader = reader.comm("reported").until_exit().spawn();
    let sender = send(sender(lab, &reader)).spawn();
    eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, 1_000));
    let trace = TraceFile::of(&reader);
    sender.finish();
    reader.exit();
    trace
}

fn reader(lab: &Lab) -> ReaderBuilder {
    Traffic::reader(lab.receiver())
}

/// Whether the window that the sender has heard of is used up.
fn is_full(lab: &Lab, reader: &Reader) -> bool {
    let sockets = truth::sockets(lab.sender()).into_iter();
    let mut senders = sockets.filter(|socket| socket.remote == reader.address());
    senders.any(|socket| socket.state == State::Established && socket.info.snd_wnd == 0)
}

/// Whether two thirds of the window are unread, so that the reader is the limit. Kernels before 6.2 do not tell the
/// window: there, whether all of it is.
fn is_the_limit(lab: &Lab, reader: &Reader) -> bool {
    connection(lab, reader).is_ok_and(|socket| {
        socket.info.rcv_wnd.map_or_else(|| is_full(lab, reader), |window| socket.recv_q >= 2 * window)
    })
}

/// The verdict is this cause, and its sentence has these words.
#[track_caller]
fn says(trace: &TraceFile, cause: &str, words: &[&str]) {
    let report = trace.report();
    let text = trace.text();
    assert_eq!(report["verdict"]["cause"], cause, "{text}");
    let sentence = report["verdict"]["sentence"].as_str().expect("a sentence");
    assert!(words.iter().all(|words| sentence.contains(words)), "{words:?}: {sentence}");
    let in_one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(in_one_line.contains(sentence), "{text}");
}

#[test]
fn a_sender_or_a_path_that_gives_no_more_is_upstream() {
    let lab = Lab::new();
    let paced = transfer(&lab, reader(&lab), |sender| sender.rate(20_000_000).message(8192));
    says(&paced, "upstream", &["the sender did not use up the window", "look at the sender"]);
    let requests = transfer(&lab, reader(&lab).between(Between::Answer), |sender| sender.rate(100_000).message(200));
    says(&requests, "upstream", &["the sender did not use up the window"]);
    let long = Lab::long(ONE_WAY);
    let small = transfer(&long, reader(&long), |sender| sender.send_buffer(16 << 10));
    says(&small, "upstream", &["the sender did not use up the window"]);
    let delay = Some(Delay { one_way: ONE_WAY, lose_every: 500 });
    let lossy = Lab::with(LabOptions { delay, ..LabOptions::default() });
    let trace = transfer(&lossy, reader(&lossy), |sender| sender);
    assert_ne!(lossy.lost(), 0, "packets that the path has lost");
    says(&trace, "upstream", &["the sender did not use up the window"]);
}

#[test]
fn a_reader_that_computes_sleeps_or_is_stopped_is_the_application() {
    let lab = Lab::new();
    let computes = transfer(&lab, reader(&lab).between(Between::Spin(200)), |sender| sender);
    says(&computes, "application", &["the reader computed", "on a CPU for", "in more threads"]);
    let sleeps = transfer(&lab, reader(&lab).chunk(256 << 10).between(Between::Sleep(5_000)), |sender| sender);
    says(&sleeps, "application", &["the reader slept", "find out what the reader waits for"]);
    // Stopped and continued eight times: only a read shows a trace what limited the connection.
    let reader = reader(&lab).comm("reported").until_exit().receive_buffer(64 << 10).spawn();
    let _sender = sender(&lab, &reader).spawn();
    let pid = Pid::from_raw(reader.pid().cast_signed());
    let full = || is_full(&lab, &reader);
    let stopped = TraceFile::during(&reader, || {
        for _ in 0..8 {
            kill(pid, Signal::SIGSTOP).expect("a process of ours");
            eventually(DEADLINE, "the buffer is full", full);
            std::thread::sleep(Duration::from_millis(200));
            kill(pid, Signal::SIGCONT).expect("a process of ours");
            eventually(DEADLINE, "it is read", || !full());
        }
    });
    says(&stopped, "application", &["the reader slept"]);
}

#[test]
fn two_causes_have_the_time_that_each_had() {
    let lab = Lab::new();
    let reader = reader(&lab).comm("reported").until_exit().receive_buffer(64 << 10).spawn();
    let _sender = sender(&lab, &reader).rate(20_000_000).message(8192).spawn();
    eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, 1_000));
    let pid = Pid::from_raw(reader.pid().cast_signed());
    // Only while it was stopped for sure, and the limit.
    let mut stopped = Duration::ZERO;
    let trace = TraceFile::during(&reader, || {
        for _ in 0..7 {
            kill(pid, Signal::SIGSTOP).expect("a process of ours");
            assert_eq!(waitpid(pid, Some(WaitPidFlag::WUNTRACED)), Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
            eventually(DEADLINE, "the reader is the limit", || is_the_limit(&lab, &reader));
            let since = Instant::now();
            std::thread::sleep(Duration::from_millis(200));
            stopped += since.elapsed();
            kill(pid, Signal::SIGCONT).expect("a process of ours");
            eventually(DEADLINE, "it is read", || !is_the_limit(&lab, &reader));
            std::thread::sleep(Duration::from_millis(200));
        }
        // The timeslice with that read has ended.
        sleeps(&reader);
    });
    let causes = ["upstream", "application", "scheduler", "window", "memory"];
    let lines = trace.records();
    let number = |line: &Value, key: &str| line[key].as_u64().unwrap_or_else(|| panic!("{key}: {line}"));
    let has_read = |line: &&Value| line["type"] == "timeslice" && line["read_bytes"] != 0;
    let reads: Vec<&Value> = lines.iter().filter(has_read).collect();
    let [first, .., last] = reads[..] else { panic!("{} records with reads", reads.len()) };
    // What limited the connection from its last read before the trace on is in the first record.
    let earlier: u64 = causes.iter().map(|cause| number(first, &format!("limited_{cause}_ns"))).sum();
    let whole = number(last, "deactivated_ns") - number(first, "activated_ns") + earlier;
    // The reader was not the limit while it slept and no more than half of the window was unread when it woke.
    let found_little =
        |slice: &&&Value| 2 * number(slice, "activation_queued_bytes") <= number(slice, "activation_window_bytes");
    let idle: u64 = reads[1..].iter().filter(found_little).map(|slice| number(slice, "sleep_ns")).sum();
    let [whole, idle] = [whole, idle].map(|ns| ns as f64 / 1e9);

    let report = trace.report();
    let limited = &report["sockets"][0]["limited_seconds"];
    let seconds = |cause: &str| limited[cause].as_f64().unwrap_or_else(|| panic!("{cause}: {limited}"));
    let stopped = stopped.as_secs_f64();
    let told = seconds("application") + seconds("scheduler");
    assert!((stopped..=whole - idle).contains(&told), "of {whole} s, {stopped} s stopped, {idle} s idle: {limited}");
    // After a stop, the sender makes up for it as fast as the window lets it. Which of that time is the window's, no
    // moment of this test says, hence the tolerance.
    let others = whole - told - seconds("upstream");
    assert!((0.0..=0.3).contains(&others), "{others} of {whole} s: {limited}");
    let all = causes.map(seconds);
    let largest = all.into_iter().fold(0.0, f64::max) / all.iter().sum::<f64>();
    let share = report["verdict"]["share_percent"].as_f64().expect("a share");
    assert!((share - 100.0 * largest).abs() <= 1e-6, "{share} %: {limited}");
}

#[test]
fn a_connection_on_which_nothing_comes_has_no_verdict() {
    let lab = Lab::new();
    let trace = transfer(&lab, reader(&lab), |sender| sender.bytes(10_000).hold_open());
    let report = trace.report();
    assert!(report["verdict"]["cause"].is_null(), "{report}");
    assert!(trace.text().contains("not known: nothing was read"), "{}", trace.text());
}

#[test]
fn a_reader_without_a_cpu_is_the_scheduler() {
    if !has_two_cpus() {
        return;
    }
    let lab = Lab::new();
    let _hogs = [(); 4].map(|()| Traffic::hog(1, 0));
    let reader = reader(&lab).comm("reported").until_exit().cpu(1).between(Between::Spin(100)).spawn();
    let _sender = sender(&lab, &reader).cpu(0).nice(-15).spawn();
    eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, 1_000_000));
    let times = || truth::task_times(reader.pid(), reader.pid());
    let before = times().waiting;
    let mut least = Duration::ZERO;
    let trace = TraceFile::during(&reader, || {
        // The trace has the waits from the first read on that its programs see. Of two reads that are counted from now
        // on, the second begins after now.
        let calls = reader.report().calls;
        eventually(DEADLINE, "it has read twice", || at_least(reader.report().calls, calls + 2));
        let begun = times().waiting;
        let long = eventually(DEADLINE, "it has waited for long", || {
            Some(times()).filter(|times| times.waiting >= begun + Duration::from_secs(1))
        });
        // A wait is in the record of the timeslice that follows it, which ends before the next one begins.
        eventually(DEADLINE, "that timeslice has ended", || times().timeslices > long.timeslices);
        least = long.waiting - begun;
    });
    let after = times().waiting;
    let (least, most) = (least.as_secs_f64(), (after - before).as_secs_f64());
    says(
        &trace,
        "scheduler",
        &["the reader waited", "for a CPU in", "of the times to hog)", "a core, a larger weight"],
    );
    // The time that it tells is the kernel's own. The queue is never empty, so no timeslice lacks a record.
    let told = trace.report()["sockets"][0]["run_queue_wait_seconds"]["sum"].as_f64().expect("a number");
    let lost = trace.records().pop().map(|trailer| trailer["lost"].clone());
    assert!((least..=most).contains(&told), "{told} of {least} to {most}, lost {lost:?}");
}

#[test]
fn a_buffer_too_small_for_the_path_is_the_window_and_names_what_is_in_flight() {
    let lab = Lab::long(ONE_WAY);
    let trace = transfer(&lab, reader(&lab).receive_buffer(16 << 10), |sender| sender);
    says(
        &trace,
        "window",
        &["is all that a window of at most", "over a round trip of 4", "in flight", "net.ipv4.tcp_rmem"],
    );
    let report = trace.report();
    let socket = &report["sockets"][0];
    let number = |key: &str| socket[key].as_f64().unwrap_or_else(|| panic!("{key}: {socket}"));
    let product = number("bytes_per_second") * number("round_trip_seconds");
    assert!((number("bytes_in_flight") - product).abs() < 1.0, "{socket}");
    assert!(product <= 1.5 * socket["window_bytes"][1].as_f64().expect("bytes"), "{socket}");
}

#[test]
fn a_window_that_the_kernel_holds_down_is_the_memory() {
    let lab = Lab::long(ONE_WAY);
    let reader = reader(&lab).comm("reported").until_exit().spawn();
    let _pressure = TcpMemoryPressure::new();
    let _sender = sender(&lab, &reader).spawn();
    eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, 1_000));
    says(&TraceFile::of(&reader), "memory", &["because memory was short", "net.ipv4.tcp_mem"]);
}

#[test]
fn bytes_and_times_are_those_of_the_trace_and_two_traces_are_compared() {
    let lab = Lab::new();
    // Stopped before the trace ends, so that no timeslice is still open at its end.
    let slow = {
        let reader = reader(&lab).comm("reported").until_exit().between(Between::Spin(200)).spawn();
        let _sender = sender(&lab, &reader).spawn();
        let read_since = |bytes: u64| eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, bytes));
        read_since(1_000);
        TraceFile::during(&reader, || {
            let begun = Instant::now();
            let bytes = reader.report().bytes + 50_000_000;
            eventually(DEADLINE, "enough data", || {
                begun.elapsed() > Duration::from_secs(1) && reader.report().bytes >= bytes
            });
            kill(Pid::from_raw(reader.pid().cast_signed()), Signal::SIGSTOP).expect("a process of ours");
            sleeps(&reader);
        })
    };
    let fast = transfer(&lab, reader(&lab), |sender| sender.rate(20_000_000).message(8192));
    let lines = slow.records();
    let of_kind = |kind: &'static str| lines.iter().filter(move |line| line["type"] == kind);
    let sum = |key: &str| of_kind("timeslice").filter_map(|line| line[key].as_u64()).sum::<u64>();
    let report = slow.report();
    let total: u64 = of_kind("socket").filter_map(|line| line["read_bytes"].as_u64()).sum();
    assert_eq!(report["read_bytes"], total);
    assert_eq!(sum("read_bytes"), total);
    assert_eq!(report["files"][0]["records"].as_u64(), Some(of_kind("timeslice").count() as u64));
    let socket = &report["sockets"][0];
    let close = |told: &Value, expected: f64| {
        let told = told.as_f64().expect("a number");
        assert!((told - expected).abs() <= 1e-9 * expected.max(1.0), "{told} and {expected}");
    };
    close(&socket["limited_seconds"]["application"], sum("limited_application_ns") as f64 / 1e9);
    close(&socket["on_cpu_seconds"]["sum"], sum("on_cpu_ns") as f64 / 1e9);
    let waited = (sum("waited_application_byte_us") + sum("waited_scheduler_byte_us")) as f64;
    close(&socket["mean_wait_seconds"], waited / 1e6 / sum("read_bytes") as f64);

    let comparison = json(&[&slow.path, &fast.path]);
    let change = |what: &str| {
        let changes = comparison["changes"].as_array().expect("a list");
        changes.iter().find(|change| change["what"] == what).unwrap_or_else(|| panic!("{what}: {comparison}")).clone()
    };
    assert_eq!(change("application")["beyond_noise"], true);
    assert_eq!(change("upstream")["beyond_noise"], true);
    let text = text(&[&slow.path, &fast.path]);
    assert!(text.contains("application went from") || text.contains("upstream went from"), "{text}");
    assert!(text.contains("beyond noise") && text.contains("throughput"), "{text}");
}

#[test]
fn a_trace_that_was_cut_compressed_or_is_in_parts_is_read() {
    let lab = Lab::new();
    let reader = reader(&lab).comm("reported").until_exit().between(Between::Spin(200)).spawn();
    let _sender = sender(&lab, &reader).spawn();
    eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, 1_000));
    let first = TraceFile::of(&reader);
    let second = TraceFile::of(&reader);
    let whole = first.report();

    let bytes = fs::read(&first.path).expect("the trace");
    let cut = first.directory.path().join("cut.jsonl");
    fs::write(&cut, &bytes[..bytes.len() * 9 / 10]).expect("written");
    let of_cut = json(&[&cut]);
    assert!(of_cut["caveats"][0].as_str().is_some_and(|caveat| caveat.contains("cut")), "{of_cut}");
    assert_eq!(of_cut["verdict"]["cause"], "application");
    let read = |report: &Value| report["read_bytes"].as_u64().expect("bytes");
    assert!(read(&of_cut) < read(&whole), "{} of {}", read(&of_cut), read(&whole));
    assert!(text(&[&cut]).contains("! "), "{}", text(&[&cut]));

    let compressed = first.directory.path().join("run.jsonl.gz");
    let gzip = Command::new("gzip").arg("-c").arg(&first.path).output().expect("gzip is installed");
    fs::write(&compressed, gzip.stdout).expect("written");
    assert_eq!(json(&[&compressed])["read_bytes"], whole["read_bytes"]);
    let mut standard_input = tcpmon(&["report", "--format", "json", "-"]);
    standard_input.stdin(fs::File::open(&compressed).expect("the file"));
    let output = standard_input.output().expect("tcpmon can be started");
    let of_input: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(of_input["read_bytes"], whole["read_bytes"]);

    let merged = json(&[Path::new("--merge"), &second.path, &first.path]);
    assert_eq!(read(&merged), read(&whole) + read(&second.report()));
    assert_eq!(merged["sockets_total"], 1);
    let (code, error) = run(tcpmon(&["report", "--merge"]).args([&first.path, &first.path]));
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("were written at the same time"), "{error}");
}

#[test]
fn a_file_that_is_not_a_trace_is_refused_by_name_and_an_idle_trace_is_not_an_error() {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    writeln!(file, "no trace").expect("written");
    let name = file.path().display().to_string();
    let (code, error) = run(tcpmon(&["report"]).arg(file.path()));
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains(&name) && error.contains("not a trace"), "{error}");
    let (code, error) = run(&mut tcpmon(&["report", "/no/such/file"]));
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("/no/such/file") && error.contains("No such file"), "{error}");
    let (code, error) = run(tcpmon(&["report"]).args([file.path(); 3]));
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("--merge"), "{error}");
    // A trace in which nothing was read is not an error.
    let lab = Lab::new();
    let idle = Traffic::reader(lab.receiver()).comm("idle").spawn();
    let trace = Trace::start(&["--pid", &idle.pid().to_string()]);
    let file = trace.file();
    trace.signal(Signal::SIGINT);
    eventually(DEADLINE, "the trace has ended", || {
        fs::read_to_string(&file).is_ok_and(|text| text.lines().count() == 2)
    });
    assert!(text(&[&file]).contains("nothing was read"), "{}", text(&[&file]));
}

#[test]
fn the_page_is_drawn_zooms_to_a_timeslice_and_shows_each_socket() {
    let lab = Lab::new();
    let reader =
        reader(&lab).comm("reported").until_exit().threads(Threads::PerFlow).between(Between::Spin(200)).spawn();
    let _senders = [(); 2].map(|()| sender(&lab, &reader).spawn());
    eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, 1_000_000));
    let trace = TraceFile::of(&reader);
    let page = trace.directory.path().join("run.html");
    let mut command = tcpmon(&["report", "--format", "html", "run.jsonl"]);
    let output = command.current_dir(trace.directory.path()).output().expect("tcpmon can be started");
    assert!(output.status.success(), "{output:?}");
    fs::write(&page, output.stdout).expect("written");

    let browser = Browser::start(1280, 1600);
    browser.open(&page);
    assert_eq!(browser.problems(), Vec::<String>::new());
    let report = trace.report();
    let text = |selector: &str| {
        let text = browser.run(&format!("return document.querySelector({selector:?}).innerText"));
        text.as_str().expect("text").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let sentence = report["verdict"]["sentence"].as_str().expect("a sentence");
    let (_, words) = sentence.split_once(": ").expect("a cause and what to do");
    assert!(text("#answers").contains("application") && text("#answers").contains(words), "{}", text("#answers"));

    // A picture of something: more than a blank page compresses to.
    let picture = trace.directory.path().join("page.png");
    browser.picture(&picture);
    let bytes = fs::read(&picture).expect("a picture");
    assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 50_000, "{} bytes", bytes.len());
    if let Some(kept) = std::env::var_os("TCPMON_PICTURES") {
        fs::copy(&picture, Path::new(&kept).join("report.png")).expect("copied");
    }

    let view = |key: &str| browser.run(&format!("return window.tcpmon.view().{key}"));
    let seconds = || view("to_seconds").as_f64().expect("a time") - view("from_seconds").as_f64().expect("a time");
    let all = report["sockets"][0]["records"].as_u64();
    assert_eq!(view("timeslices").as_u64(), all);
    let whole = seconds();
    browser.drag("#queue-plot .u-over", 0.4, 0.6);
    eventually(DEADLINE, "it is zoomed in", || {
        let now = seconds();
        if (0.15..0.25).contains(&(now / whole)) { Ok(()) } else { Err(now) }
    });
    for _ in 0..40 {
        browser.click("[data-do=closer]", 1);
    }
    let zoomed = view("timeslices").as_u64().expect("a number");
    assert!(zoomed <= 3 && view("exact") == true, "{zoomed}");
    browser.click("#queue-plot .u-over", 2);
    eventually(DEADLINE, "it shows everything", || {
        if view("timeslices").as_u64() == all { Ok(()) } else { Err(view("timeslices").to_string()) }
    });

    // The other socket.
    let first = text("#socket-title");
    browser.run("document.querySelectorAll('#sockets tbody tr')[1].querySelector('button, td').click()");
    eventually(DEADLINE, "the other socket is shown", || {
        if text("#socket-title") == first { Err(first.clone()) } else { Ok(()) }
    });
    let second = report["sockets"][1]["records"].as_u64();
    eventually(DEADLINE, "its timeslices are shown", || {
        if view("timeslices").as_u64() == second { Ok(()) } else { Err(view("timeslices").to_string()) }
    });
    assert_eq!(browser.problems(), Vec::<String>::new());
}

#[test]
fn a_long_trace_makes_a_page_of_two_megabytes_that_opens_at_once() {
    let directory = TempDir::new().expect("a directory");
    let (trace, page) = (directory.path().join("long.jsonl"), directory.path().join("long.html"));
    let records = 100_000;
    synthetic(fs::File::create(&trace).expect("created"), records);
    let output = tcpmon(&["report", "--format", "html"]).arg(&trace).output().expect("tcpmon can be started");
    fs::write(&page, &output.stdout).expect("written");
    assert!(output.stdout.len() <= 2 << 20, "{} bytes", output.stdout.len());
    let browser = Browser::start(1280, 1000);
    browser.open(&page);
    assert_eq!(browser.problems(), Vec::<String>::new());
    assert_eq!(browser.run("return window.tcpmon.view().timeslices"), records);
    // Its first timeslice began 2 ms before it, which is nothing of a minute.
    let visible = browser.run("return document.querySelector('#visible').textContent");
    assert!(visible.as_str().is_some_and(|text| text.starts_with("0.00")), "{visible}");
    println!("opened in {} ms", browser.run("return window.tcpmon.openedMilliseconds"));
}

/// A trace of one socket with so many timeslices, whose queue and times vary; the first began just before it.
fn synthetic(file: fs::File, records: u64) {
    use tcpmon_trace::{Clocks, EndReason, Ending, JsonLinesWriter, TraceWriter as _, sample};
    let header = sample::header();
    let mut writer = JsonLinesWriter::new(file, &header).expect("written");
    let (mut now, mut dice) = (header.start.monotonic_ns - 2_000_000, 1_u64);
    let mut next = |below: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % below
    };
    for _ in 0..records {
        let mut record = sample::record();
        record.activated_ns = now + next(900_000);
        record.deactivated_ns = record.activated_ns + 20_000 + next(300_000);
        now = record.deactivated_ns;
        // Whole segments, as they arrive.
        (record.activation.queued_bytes, record.deactivation.queued_bytes) =
            (1448 * next(1800) as u32, 1448 * next(300) as u32);
        (record.activation.rcvbuf_bytes, record.deactivation.rcvbuf_bytes) = (6 << 20, 6 << 20);
        record.activation.window_bytes = (3 << 20) - record.activation.queued_bytes;
        record.deactivation.window_bytes = (3 << 20) - record.deactivation.queued_bytes;
        writer.record(&record).expect("written");
    }
    let end = Clocks { monotonic_ns: now, ..header.start };
    let _ = writer.finish(&Ending { end, reason: EndReason::Duration, ..sample::ending() });
}
