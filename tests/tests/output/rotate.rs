//! A trace in several files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tcpmon_tests::{Killed, Lab, Traffic, eventually};
use tempfile::TempDir;

use super::common::{DEADLINE, run, sender, tcpmon};

/// Somebody who is not root.
const NOBODY: u32 = 65_534;

/// The files in a folder, in the order of their names, and their lines.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<Value>)> {
    let mut found: Vec<_> = fs::read_dir(folder).expect("it is there").flatten().map(|file| file.path()).collect();
    found.sort();
    let read = |path: &PathBuf| lines(&fs::read_to_string(path).expect("it is there"));
    found.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Opens the files in a folder that are not open yet: they can be read also after they have been removed.
fn open_files(folder: &Path, open: &mut BTreeMap<PathBuf, File>) {
    for path in fs::read_dir(folder).expect("it is there").flatten().map(|file| file.path()) {
        if let Ok(file) = File::open(&path) {
            open.entry(path).or_insert(file);
        }
    }
}

#[test]
fn the_files_of_a_trace_have_all_its_bytes_and_are_one_trace_to_the_report() {
    let directory = TempDir::new().expect("a temporary directory");
    // Root creates the second file, too, although it has given up what it can.
    chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("rotated").paused().spawn();
    let path = directory.path().join("run.jsonl");
    let arguments = ["trace", "--pid", &reader.pid().to_string(), "--rotate", "200kB", "--output"];
    let mut trace = Killed(tcpmon(&arguments).arg(&path).spawn().expect("it starts"));
    let first = directory.path().join("run.0001.jsonl");
    eventually(DEADLINE, "the trace has begun", || fs::metadata(&first).is_ok_and(|file| file.len() > 0));
    reader.resume();
    // Each message wakes the reader.
    sender(&lab, &reader).message(1000).rate(3_000_000).bytes(3_000_000).spawn().wait();
    let bytes = reader.wait().bytes;
    kill(Pid::from_raw(trace.id() as i32), Signal::SIGINT).expect("it runs");
    let ended = trace.wait().expect("it ends");
    assert!(ended.success(), "{ended}");

    let files = files(directory.path());
    assert!(files.len() >= 3, "{}", files.len());
    let all: Vec<&Value> = files.iter().flat_map(|(_, lines)| lines).collect();
    let sum = |kind: &str| -> u64 {
        all.iter().filter(|line| line["type"] == kind).filter_map(|line| line["read_bytes"].as_u64()).sum()
    };
    assert_eq!((sum("timeslice"), sum("socket")), (bytes, bytes));
    let reasons: Vec<_> = files.iter().map(|(_, lines)| lines.last().expect("lines")["reason"].clone()).collect();
    let (last, others) = reasons.split_last().expect("files");
    assert!(*last != "rotated" && others.iter().all(|reason| reason == "rotated"), "{reasons:?}");
    let report = tcpmon(&["report", "--merge", "--format", "json"]).args(files.iter().map(|(path, _)| path)).output();
    let report = report.expect("it can be started");
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(report["sockets"][0]["read_bytes"], bytes, "{}", report["sockets"][0]);

    // The same name once more: nothing is overwritten.
    let (code, said) = run(tcpmon(&["trace", "--all", "--rotate", "1h", "--duration", "1s", "--output"]).arg(&path));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("run.0001.jsonl: the file exists"), "{said}");
}

#[test]
fn old_files_make_room_for_new_ones() {
    let directory = TempDir::new().expect("a temporary directory");
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("rotated").until_exit().spawn();
    let path = directory.path().join("run.jsonl");
    let arguments = ["trace", "--pid", &reader.pid().to_string(), "--rotate", "100kB", "--keep", "2", "--output"];
    let mut trace = Killed(tcpmon(&arguments).arg(&path).spawn().expect("it starts"));
    let sending = sender(&lab, &reader).message(1000).rate(3_000_000).spawn();
    let fourth = directory.path().join("run.0004.jsonl");
    eventually(DEADLINE, "the fourth file", || fourth.exists());
    kill(Pid::from_raw(trace.id() as i32), Signal::SIGINT).expect("it runs");
    let ended = trace.wait().expect("it ends");
    assert!(ended.success(), "{ended}");
    drop(sending.finish());
    reader.exit();
    let kept = files(directory.path());
    assert_eq!(kept.len(), 2, "{:?}", kept.iter().map(|(path, _)| path).collect::<Vec<_>>());
    let third = fourth.with_file_name("run.0003.jsonl");
    let lines: Vec<_> = kept.iter().map(|(path, lines)| (path, lines.len())).collect();
    assert!(lines.iter().all(|(path, lines)| **path >= third && *lines > 2), "{lines:?}");
}

#[test]
fn files_that_somebody_else_removes_take_nothing_with_them_but_their_own_records() {
    let directory = TempDir::new().expect("a temporary directory");
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("rotated").paused().spawn();
    let path = directory.path().join("run.jsonl");
    let arguments = ["trace", "--pid", &reader.pid().to_string(), "--rotate", "100kB", "--keep", "3", "--output"];
    let mut trace = Killed(tcpmon(&arguments).arg(&path).spawn().expect("it starts"));
    let file = |number: u32| directory.path().join(format!("run.{number:04}.jsonl"));
    eventually(DEADLINE, "the trace has begun", || fs::metadata(file(1)).is_ok_and(|file| file.len() > 0));
    reader.resume();
    // Each message wakes the reader, and a file has 256 records: so few at a time do not fill it before the next look.
    let sending = sender(&lab, &reader).message(1000).rate(2_000_000).paused().spawn();
    let mut open = BTreeMap::new();
    let mut send_until = |last: u32| {
        eventually(DEADLINE, "one more file", || {
            sending.send(50_000);
            open_files(directory.path(), &mut open);
            open.contains_key(&file(last))
        });
    };
    send_until(3);
    // One that is full, and the one that is being written.
    let removed = [file(2), file(3)];
    removed.iter().for_each(|path| fs::remove_file(path).expect("it is there"));
    assert!(!file(4).exists(), "the third file was full before it was removed");
    // The first of the four that are there then is removed by the trace itself.
    send_until(6);
    sending.finish();
    let bytes = reader.wait().bytes;
    kill(Pid::from_raw(trace.id() as i32), Signal::SIGINT).expect("it runs");
    let ended = trace.wait().expect("it ends");
    assert!(ended.success(), "{ended}");
    open_files(directory.path(), &mut open);

    let kept = files(directory.path());
    assert!(kept.len() == 3 && kept[0].0 >= file(4), "{:?}", kept.iter().map(|(path, _)| path).collect::<Vec<_>>());
    for (path, lines) in &kept {
        let records = lines.iter().filter(|line| line["type"] == "timeslice").count();
        let trailer = lines.last().expect("lines");
        assert!(records > 0 && trailer["records"] == records, "{path:?} has {records}: {trailer}");
    }
    // With what was in the others, nothing is missing.
    let missed: Vec<_> = removed.iter().filter(|path| !open.contains_key(*path)).collect();
    assert!(missed.is_empty(), "removed before they were opened: {missed:?}");
    let mut read_bytes = 0;
    for (path, mut file) in open {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let records = lines(&text).into_iter().filter(|line| line["type"] == "timeslice");
        read_bytes += records.filter_map(|record| record["read_bytes"].as_u64()).sum::<u64>();
    }
    assert_eq!(read_bytes, bytes);
    let report = tcpmon(&["report", "--merge", "--format", "json"]).args(kept.iter().map(|(path, _)| path)).output();
    let report = report.expect("it can be started");
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
}

#[test]
fn a_file_that_cannot_be_created_ends_the_trace_and_loses_no_other() {
    let directory = TempDir::new().expect("a temporary directory");
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("rotated").until_exit().spawn();
    let path = directory.path().join("run.jsonl");
    let arguments = ["trace", "--pid", &reader.pid().to_string(), "--rotate", "100kB", "--output"];
    let mut command = tcpmon(&arguments);
    let mut trace = Killed(command.arg(&path).stderr(Stdio::piped()).spawn().expect("it starts"));
    let first = directory.path().join("run.0001.jsonl");
    eventually(DEADLINE, "the trace has begun", || fs::metadata(&first).is_ok_and(|file| file.len() > 0));
    // Somebody else creates the third file meanwhile.
    let third = directory.path().join("run.0003.jsonl");
    fs::write(&third, "{}\n").expect("it can be written");
    let sending = sender(&lab, &reader).message(1000).rate(3_000_000).spawn();
    let said = io::read_to_string(trace.stderr.take().expect("a pipe")).expect("text");
    assert_eq!(trace.wait().expect("it ends").code(), Some(1), "{said}");
    assert!(said.contains("run.0003.jsonl: the file exists"), "{said}");
    drop(sending.finish());
    reader.exit();
    let files = files(directory.path());
    assert_eq!(files.len(), 3);
    assert_eq!(files[2].1, [serde_json::json!({})]);
    let (rotated, failed) = (&files[0].1, &files[1].1);
    let trailers = [rotated, failed].map(|lines| lines.last().expect("lines").clone());
    assert_eq!(trailers.each_ref().map(|trailer| &trailer["reason"]), ["rotated", "write_error"], "{trailers:?}");
    let slices = failed.iter().filter(|line| line["type"] == "timeslice").count();
    assert!(slices > 0 && trailers[1]["records"] == slices && trailers[1]["complete"] == false, "{trailers:?}");
}
