//! `tcpmon trace -- COMMAND` and `--follow`: ordinary shell commands, and the processes that they start.

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::{fs, io};

use common::{DEADLINE, tcpmon};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::Value;
use tcpmon_tests::{Killed, Trace, eventually};
use tempfile::TempDir;

const BYTES: usize = 3_000_000;

/// Serves `BYTES` bytes to each of this many connections.
fn serve(connections: usize) -> (u16, JoinHandle<io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let serving = move || (0..connections).try_for_each(|_| listener.accept()?.0.write_all(&[7; BYTES]));
    (port, thread::spawn(serving))
}

/// A shell command whose child, `cat`, reads all that comes from this port.
fn fetch(port: u16) -> String {
    format!("exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3 >/dev/null")
}

fn sum(lines: &[Value], kind: &str, key: &str) -> u64 {
    lines.iter().filter(|line| line["type"] == kind).map(|line| line[key].as_u64().expect("a number")).sum()
}

fn parse(file: &[u8]) -> Vec<Value> {
    file.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("JSON"))
        .collect()
}

#[test]
fn a_command_is_traced_with_its_children_from_its_first_instruction() {
    let (port, serving) = serve(3);
    let fetches = [fetch(port), fetch(port), fetch(port)].join("; ");
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("t.jsonl");
    let mut command = tcpmon(&["trace", "--output", file.to_str().unwrap(), "--", "bash", "-c"]);
    let output = command
        .arg(format!("{fetches}; read line; echo \"got $line, nice $(nice)\"; exit 7"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    output.stdin.as_ref().unwrap().write_all(b"input\n").unwrap();
    let output = output.wait_with_output().unwrap();
    serving.join().unwrap().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    // The command has its own input and output, and the priority that it has without tcpmon.
    assert_eq!(String::from_utf8_lossy(&output.stdout), "got input, nice 0\n");
    let lines = parse(&fs::read(file).unwrap());
    let trailer = lines.last().unwrap();
    assert_eq!((&trailer["reason"], &trailer["complete"]), (&"process_exit".into(), &true.into()), "{trailer}");
    assert_eq!(sum(&lines, "timeslice", "read_bytes"), 3 * BYTES as u64);
    assert_eq!(sum(&lines, "socket", "read_bytes"), 3 * BYTES as u64);
    let slices = lines.iter().filter(|line| line["type"] == "timeslice");
    let names: BTreeSet<_> = slices.map(|line| line["comm"].to_string()).collect();
    assert_eq!(names, BTreeSet::from(["\"cat\"".to_owned()]));
}

#[test]
fn a_signal_goes_to_the_command_and_its_end_is_the_trace_s() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("t.jsonl");
    let ready = directory.path().join("ready");
    let script = format!("trap 'exit 9' TERM; touch {}; while :; do sleep 0.1; done", ready.display());
    let mut command = tcpmon(&["trace", "--output", file.to_str().unwrap(), "--", "bash", "-c", &script]);
    let mut tracing = Killed(command.spawn().unwrap());
    eventually(DEADLINE, "the command runs", || ready.exists());
    signal::kill(Pid::from_raw(tracing.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(tracing.wait().unwrap().code(), Some(9));
    assert_eq!(parse(&fs::read(&file).unwrap()).last().unwrap()["reason"], "process_exit");

    // A command that a signal kills.
    let status = tcpmon(&["trace", "--output", "/dev/null", "--", "bash", "-c", "kill -KILL $$"]).status().unwrap();
    assert_eq!(status.code(), Some(128 + 9));
}

#[test]
fn a_command_that_does_not_exist_is_a_usage_error_and_costs_no_file() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("t.jsonl");
    fs::write(&file, "precious").unwrap();
    let output =
        tcpmon(&["trace", "--output", file.to_str().unwrap(), "--force", "--", "no-such-command"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("cannot start no-such-command: No such file"), "{stderr}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn follow_traces_children_that_are_there_and_those_that_come() {
    let (port, serving) = serve(2);
    let directory = TempDir::new().unwrap();
    let script = directory.path().join("child.sh");
    // The inner shell first reads by itself, then through a child. `true` keeps the outer shell from replacing itself
    // by the inner one.
    fs::write(
        &script,
        format!(
            "read line; exec 3<>/dev/tcp/127.0.0.1/{port}; while read -rN 65536 -u 3; do :; done; {}\n",
            fetch(port)
        ),
    )
    .unwrap();
    let mut outer = Command::new("bash")
        .args(["-c", &format!("LC_ALL=C bash {}; true", script.display())])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = outer.id();
    eventually(DEADLINE, "the inner shell runs", || {
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).is_ok_and(|children| !children.trim().is_empty())
    });
    let trace = Trace::start(&["--pid", &pid.to_string(), "--follow"]);
    outer.stdin.take().unwrap().write_all(b"go\n").unwrap();
    outer.wait().unwrap();
    serving.join().unwrap().unwrap();
    let traced = trace.wait(DEADLINE);
    assert!(traced.status.success(), "{}", traced.stderr);
    assert_eq!(sum(&traced.records, "socket", "read_bytes"), 2 * BYTES as u64);
    let mut names: Vec<_> = traced
        .records
        .iter()
        .filter(|line| line["type"] == "thread")
        .map(|line| line["comm"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["bash", "cat"]);
}

#[test]
fn a_start_that_is_over_is_a_usage_error() {
    let output = tcpmon(&["trace", "--all", "--start-at", "2020-01-01T00:00:00Z"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("this time is in the past"), "{stderr}");
}
