//! Output files that already exist, and disks that are full.

use std::fs;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tcpmon_tests::{Lab, Trace, Traffic, eventually, tcpmon_binary};

use crate::common::{DEADLINE, sender};

#[test]
fn a_full_disk_is_said_and_is_exit_code_1() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("full").spawn();
    let mut command = Command::new(tcpmon_binary());
    command.args(["trace", "--pid", &reader.pid().to_string(), "--format", "jsonl", "--output", "/dev/full"]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("/dev/full"), "{stderr}");
}

#[test]
fn a_file_that_exists_is_only_overwritten_when_forced() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.jsonl");
    fs::write(&file, "mine").unwrap();
    let trace = |more: &[&str]| {
        let mut command = Command::new(tcpmon_binary());
        command.args(["trace", "--comm", "nobody", "--duration", "1ms", "--output"]).arg(&file).args(more);
        let output = command.output().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned(), text)
    };
    let (code, stderr, text) = trace(&[]);
    assert_eq!((code, text.as_str()), (Some(2), "mine"), "{stderr}");
    assert!(stderr.contains(file.to_str().unwrap()) && stderr.contains("--force"), "{stderr}");
    let (code, stderr, text) = trace(&["--force"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(text.starts_with("{\"type\":\"header\"") && !text.contains("mine"), "{text}");
}

#[test]
fn a_disk_that_fills_up_leaves_a_trailer_and_is_exit_code_1() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("fills").spawn();
    let sender = sender(&lab, &reader).rate(20_000_000).spawn();
    let directory = tempfile::tempdir().unwrap();
    // A mount in its own mount namespace, which disappears with the shell; the trailer is read before that.
    let script = "mount -t tmpfs -o size=128k none \"$1\" && \"$2\" trace --pid \"$3\" --duration 30s \
                  --output \"$1/t.jsonl\"; code=$?; tail -n 1 \"$1/t.jsonl\"; exit $code";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(directory.path())
        .arg(tcpmon_binary())
        .arg(reader.pid().to_string())
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("t.jsonl") && stderr.contains("No space left"), "{stderr}");
    let trailer: Value = serde_json::from_str(stdout.trim()).unwrap();
    assert_eq!((&trailer["type"], &trailer["reason"]), (&"trailer".into(), &"write_error".into()), "{trailer}");
    assert_eq!(trailer["complete"], false);
    sender.finish();
}

#[test]
fn a_conversion_to_a_disk_that_is_too_small_is_exit_code_1_in_every_format() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("small").spawn();
    let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
    let sender = sender(&lab, &reader).rate(20_000_000).spawn();
    let timeslices = |records: &[Value]| records.iter().filter(|record| record["type"] == "timeslice").count();
    eventually(DEADLINE, "more records than the disk holds", || timeslices(&trace.records()) > 200);
    let directory = tempfile::tempdir().unwrap();
    let whole = directory.path().join("whole.jsonl");
    trace.signal(Signal::SIGINT);
    let records = timeslices(&trace.wait_into(DEADLINE, &whole).records);
    sender.finish();
    let disk = directory.path().join("disk");
    fs::create_dir(&disk).unwrap();
    for name in ["t.jsonl", "t.csv", "t.pftrace", "t.parquet", "t.jsonl.gz", "t.csv.zst"] {
        let script = "mount -t tmpfs -o size=8k none \"$1\" && \"$2\" convert \"$3\" \"$1/$4\"; code=$?; \
                      tail -n 1 \"$1/$4\"; exit $code";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&disk).arg(tcpmon_binary()).arg(&whole).arg(name);
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {stderr}");
        assert!(stderr.contains(name) && stderr.contains("No space left"), "{name}: {stderr}");
        if name == "t.jsonl" {
            let trailer: Value = serde_json::from_slice(&output.stdout).unwrap();
            let lost = trailer["lost"]["write"].as_u64().unwrap() + trailer["records"].as_u64().unwrap();
            assert_eq!((lost, &trailer["reason"]), (records as u64, &"write_error".into()), "{trailer}");
        }
    }
}
