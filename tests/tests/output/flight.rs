//! A flight recorder: a trace that writes only around what a trigger finds.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use socket2::SockRef;
use tcpmon_tests::traffic::{Between, Reader};
use tcpmon_tests::{Daemon, Killed, Lab, LabOptions, Traffic, clock, eventually, free_port, truth};
use tempfile::TempDir;

use super::common::{DEADLINE, run, sender, sleeps, tcpmon};

/// Nice value of what must not wait for the tests that run beside this one.
const PREFERRED: i32 = -10;

/// A running recorder. Killed when dropped.
struct Recorder {
    child: Killed,
    directory: TempDir,
}

impl Recorder {
    /// Starts one that keeps two seconds, and waits until it records.
    fn start(reader: &Reader, triggers: &[&str]) -> Self {
        Self::of(reader.pid(), triggers)
    }

    /// The same for any process.
    fn of(pid: u32, triggers: &[&str]) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let mut command = tcpmon(&["trace", "--pid", &pid.to_string(), "--ring", "2s", "--output"]);
        command.arg(directory.path().join("flight.jsonl"));
        for trigger in triggers {
            command.args(["--trigger", trigger]);
        }
        let child = Killed(command.stderr(Stdio::null()).spawn().expect("it starts"));
        let recorder = Self { child, directory };
        eventually(DEADLINE, "the programs are attached", || {
            // Its last thread is the one that writes.
            let threads = fs::read_dir(format!("/proc/{}/task", recorder.child.id())).into_iter().flatten().flatten();
            let mut names = threads.map(|thread| fs::read_to_string(thread.path().join("comm")));
            names.any(|name| name.is_ok_and(|name| name == "writer\n"))
        });
        recorder
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it runs");
    }

    fn file(&self, number: u32) -> PathBuf {
        self.directory.path().join(format!("flight.{number:04}.jsonl"))
    }

    /// The lines of a file that has its trailer.
    fn whole(&self, number: u32) -> Vec<Value> {
        let file = self.file(number);
        eventually(DEADLINE, "a file with its trailer", || {
            fs::read_to_string(&file).is_ok_and(|text| text.contains("\n{\"type\":\"trailer\""))
        });
        lines(&file)
    }
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).expect("it is there");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn read_bytes(lines: &[Value]) -> u64 {
    let slices = lines.iter().filter(|line| line["type"] == "timeslice");
    slices.filter_map(|slice| slice["read_bytes"].as_u64()).sum()
}

#[test]
fn a_file_has_what_was_shortly_before_the_signal_and_what_followed_and_nothing_else() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("flown").paused().spawn();
    let recorder = Recorder::start(&reader, &[]);
    let sender = sender(&lab, &reader).paused().spawn();
    let transfer = |bytes: u64| {
        sleeps(&reader);
        assert_eq!((sender.send(bytes), reader.read(bytes)), (bytes, bytes));
        // Its timeslice has ended.
        sleeps(&reader);
    };
    transfer(1_000);
    // The recorder forgets it.
    let forgotten = clock::monotonic_ns() + 2_500_000_000;
    eventually(DEADLINE, "two seconds are over", || clock::monotonic_ns() >= forgotten);
    transfer(20_000);
    let before = clock::monotonic_ns();
    recorder.signal(Signal::SIGUSR1);
    eventually(DEADLINE, "the file", || recorder.file(1).exists());
    transfer(300_000);
    let lines = recorder.whole(1);
    let after = clock::monotonic_ns();
    assert_eq!(read_bytes(&lines), 320_000);
    let (header, trailer) = (&lines[0], lines.last().expect("lines"));
    assert_eq!((&header["trigger"], &trailer["reason"]), (&"SIGUSR1".into(), &"duration".into()));
    let time = |line: &Value, key: &str| line[key].as_u64().expect("a time");
    let (start, end) = (time(header, "start_monotonic_ns"), time(trailer, "end_monotonic_ns"));
    assert!(start + 2_000_000_000 >= before && end <= after && end - start >= 4_000_000_000, "{start} {end} {before}");
    for line in lines.iter().filter(|line| line["type"] == "timeslice") {
        assert!(time(line, "deactivated_ns") >= start, "{line}");
    }

    // Armed again: the next file has nothing of the first.
    transfer(4_000);
    recorder.signal(Signal::SIGUSR1);
    eventually(DEADLINE, "the second file", || recorder.file(2).exists());
    recorder.signal(Signal::SIGINT);
    let lines = recorder.whole(2);
    assert_eq!((read_bytes(&lines), &lines.last().expect("lines")["reason"]), (4_000, &"interrupt".into()));
    reader.resume();
}

#[test]
fn a_shut_window_a_long_wait_and_a_reader_that_computes_are_found() {
    let lab = Lab::new();
    // It does not read, so its buffer fills.
    let stuck = Traffic::reader(lab.receiver()).comm("stuck").receive_buffer(8 << 10).paused().spawn();
    let recorder = Recorder::start(&stuck, &["wait>1h", "zero-window>1s"]);
    let sending = sender(&lab, &stuck).spawn();
    assert_eq!(stuck.read(100), 100);
    let lines = recorder.whole(1);
    let trigger = lines[0]["trigger"].as_str().expect("a text");
    assert!(trigger.starts_with("zero-window>1s: socket "), "{trigger}");
    drop((recorder, sending));
    stuck.exit();

    let slow = Traffic::reader(lab.receiver()).comm("slow").cpu(0).chunk(4096).between(Between::Spin(1000));
    // Other tests run beside this one, and must not take its CPU.
    let slow = slow.nice(PREFERRED).until_exit().spawn();
    let recorder = Recorder::start(&slow, &["cause=application>60% for 1s"]);
    let sending = sender(&lab, &slow).spawn();
    let lines = recorder.whole(1);
    let trigger = lines[0]["trigger"].as_str().expect("a text");
    assert!(trigger.starts_with("cause=application>60% for 1s: "), "{trigger}");
    drop(recorder);

    let recorder = Recorder::start(&slow, &["wait>1ms"]);
    let hogs = [0, 0].map(|cpu| Traffic::hog(cpu, PREFERRED));
    let lines = recorder.whole(1);
    let trigger = lines[0]["trigger"].as_str().expect("a text");
    assert!(trigger.starts_with("wait>1ms: thread "), "{trigger}");
    drop((recorder, hogs, sending));
    slow.exit();
}

#[test]
fn a_dropped_segment_is_found() {
    let lab = Lab::with(LabOptions { napi: true, ..LabOptions::default() });
    let recorder = Recorder::of(std::process::id(), &["drop"]);
    let any = (Ipv4Addr::UNSPECIFIED, free_port().expect("there is one"));
    let listener = lab.receiver().run(|| TcpListener::bind(any).expect("it is free"));
    let mut sender = lab.sender().run(|| TcpStream::connect((lab.receiver().v4, any.1)).expect("it listens"));
    let (mut reader, _) = listener.accept().expect("somebody has connected");
    sender.write_all(&[1]).expect("there is room");
    reader.read_exact(&mut [0]).expect("it has been sent");
    // The buffer shrinks while the window is open, so that segments find it full.
    SockRef::from(&reader).set_recv_buffer_size(4096).expect("it may be set");
    sender.set_nodelay(true).expect("it may be set");
    sender.set_nonblocking(true).expect("it may be set");
    let file = recorder.file(1);
    eventually(DEADLINE, "a file because of a drop", || {
        // Fails with WouldBlock once the send queue is full; the kernel goes on to retransmit.
        let _ = sender.write(&[0; 200]);
        file.exists()
    });
    assert!(truth::tcp_counters(lab.receiver())["TCPRcvQDrop"] > 0, "the kernel counts it, too");
    let lines = recorder.whole(1);
    let trigger = lines[0]["trigger"].as_str().expect("a text");
    // Because memory is short, or beyond a window that shrank with the buffer.
    let sockets = truth::sockets(lab.receiver());
    let mine = sockets.iter().find(|socket| socket.is_connection_to(any.1)).expect("it is open");
    let reasons = ["proto_mem", "tcp_invalid_end_sequence"];
    assert!(trigger.starts_with("drop: ") && trigger.contains(&format!(" of socket {:x}, ", mine.cookie)), "{trigger}");
    assert!(reasons.iter().any(|reason| trigger.ends_with(reason)), "{trigger}");
}

#[test]
fn a_recorder_without_a_trigger_writes_nothing_and_says_so() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = directory.path().join("flight.jsonl");
    let (code, said) = run(tcpmon(&["trace", "--all", "--ring", "1s", "--duration", "1s", "--output"]).arg(&path));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no trigger fired: nothing was written"), "{said}");
    assert_eq!(fs::read_dir(directory.path()).expect("it is there").count(), 0);
    let (code, said) = run(&mut tcpmon(&["trace", "--all", "--ring", "1s", "--output", "/nowhere/flight.jsonl"]));
    assert!(code == Some(1) && said.contains("/nowhere/flight.jsonl"), "{code:?} {said}");
}

/// The processes that this one has started and that still run.
fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("it is mounted").flatten() {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // After the name in parentheses: the state and the parent.
        let mut words = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
        if words.next().is_some_and(|state| state != "Z") && words.next() == Some(&pid.to_string()) {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
    }
    found
}

#[test]
fn a_daemon_s_recorder_writes_what_a_trigger_finds_and_ends_with_the_daemon() {
    let directory = TempDir::new().expect("a temporary directory");
    let flights = directory.path().join("flights");
    let config = directory.path().join("tcpmon.toml");
    let text =
        format!("[flight]\ndirectory = {flights:?}\nring = \"2s\"\ntrigger = [\"zero-window>1s\"]\nkeep = \"1MB\"\n");
    fs::write(&config, text).expect("there is room");
    let start = ["daemon", "--web.listen-address", "127.0.0.1:0", "--config"];
    let (code, said) = run(tcpmon(&start).arg(&config));
    assert!(code == Some(1) && said.contains("flight.directory") && said.contains("create it"), "{code:?} {said}");

    fs::create_dir(&flights).expect("there is room");
    let lab = Lab::new();
    let stuck = Traffic::reader(lab.receiver()).comm("stuck").receive_buffer(8 << 10).paused().spawn();
    let daemon = Daemon::start(&["--config", config.to_str().expect("a path")]);
    let recorder = children(daemon.pid());
    assert_eq!(recorder.len(), 1, "{recorder:?}");
    let sending = sender(&lab, &stuck).spawn();
    assert_eq!(stuck.read(100), 100);
    let file = flights.join("flight.0001.parquet");
    eventually(DEADLINE, "a file with its footer", || {
        fs::read(&file).is_ok_and(|bytes| bytes.len() > 4 && bytes.ends_with(b"PAR1"))
    });
    let lines = tcpmon(&["convert", "--format", "jsonl"]).arg(&file).arg("-").output().expect("it can be started");
    let header: Value =
        serde_json::from_slice(lines.stdout.split(|byte| *byte == b'\n').next().expect("a line")).expect("JSON");
    let trigger = header["trigger"].as_str().expect("a text");
    assert!(trigger.starts_with("zero-window>1s: socket "), "{header}");
    let ended = daemon.stop();
    assert!(ended.success(), "{ended}");
    let gone = || !Path::new(&format!("/proc/{}", recorder[0])).exists();
    eventually(DEADLINE, "the recorder ends with the daemon", gone);

    // Also with one that is killed.
    let daemon = Daemon::start(&["--config", config.to_str().expect("a path")]);
    let recorder = children(daemon.pid());
    let status = || daemon.status()["flight"].clone();
    let running = |running: bool| serde_json::json!({ "directory": flights, "running": running });
    assert_eq!(status(), running(true));
    kill(Pid::from_raw(recorder[0] as i32), Signal::SIGTERM).expect("it runs");
    eventually(DEADLINE, "the status says that it has ended", || status() == running(false));
    let gone = || !Path::new(&format!("/proc/{}", recorder[0])).exists();
    eventually(DEADLINE, "no zombie is left of it", gone);
    drop(daemon);

    let daemon = Daemon::start(&["--config", config.to_str().expect("a path")]);
    let recorder = children(daemon.pid());
    kill(Pid::from_raw(daemon.pid() as i32), Signal::SIGKILL).expect("it runs");
    let gone = || !Path::new(&format!("/proc/{}", recorder[0])).exists();
    eventually(DEADLINE, "the recorder ends with the daemon", gone);
    drop((daemon, sending));
    stuck.exit();
}
