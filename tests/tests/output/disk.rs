//! Output files that already exist, and disks that are full.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use fastrand::Rng;
use nix::sys::signal::Signal;
use serde_json::Value;
use tcpmon_tests::{Lab, Trace, Traffic, at_least, eventually, tcpmon_binary};
use tcpmon_trace::{JsonLinesWriter, TimesliceRecord, TraceWriter as _, sample};

use crate::common::{DEADLINE, run, sender, tcpmon};

/// Traces a process to a disk of this size until that is full, which must be said and be exit code 1. Returns what this
/// program shows of the file.
#[track_caller]
fn filled(pid: u32, size: &str, format: &str, show: &str) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    // A mount in its own mount namespace, which disappears with the shell; the file is read before that.
    let script = format!(
        "mount -t tmpfs -o size={size} none \"$1\" && \"$2\" trace --pid {pid} --duration 30s --format {format} \
         --output \"$1/t.out\"; code=$?; {show} \"$1/t.out\"; exit $code"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(directory.path()).arg(tcpmon_binary());
    let output = command.output().expect("unshare can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("t.out") && stderr.contains("No space left"), "{stderr}");
    String::from_utf8(output.stdout).expect("text")
}

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
    let trailer = filled(reader.pid(), "128k", "jsonl", "tail -n 1");
    let trailer: Value = serde_json::from_str(trailer.trim()).unwrap();
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
    eventually(DEADLINE, "more records than the disk holds", || at_least(timeslices(&trace.records()), 201));
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

#[test]
fn a_table_ends_where_the_disk_is_full_and_is_exit_code_1() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("fills").spawn();
    let sender = sender(&lab, &reader).rate(20_000_000).spawn();
    let table = filled(reader.pid(), "16k", "table", "cat");
    // What there was room for: rows, and no conclusion.
    assert!(table.len() > 15_000 && table.starts_with("tcpmon ") && table.contains(" fills/"), "{table}");
    assert!(!table.contains("ended by"), "{table}");
    sender.finish();
}

/// Writes a trace of as many records, in which enough differs that a compressed one is large, too.
fn write_large_trace(path: &Path, records: u64) {
    let file = fs::File::create(path).expect("a file");
    let mut writer = JsonLinesWriter::new(file, &sample::header()).expect("there is room");
    let mut dice = Rng::with_seed(1);
    let mut number = || dice.u64(..1 << 30);
    for at in 0..records {
        let record = sample::record();
        let record = TimesliceRecord {
            activated_ns: record.activated_ns + 1_000_000 * at,
            deactivated_ns: record.deactivated_ns + 1_000_000 * at,
            sleep_ns: number(),
            wait_ns: number(),
            on_cpu_ns: number(),
            arrived_off_cpu_bytes: number(),
            arrived_on_cpu_bytes: number(),
            read_bytes: number(),
            ..record
        };
        writer.record(&record).expect("there is room");
    }
    writer.finish(&sample::ending()).expect("there is room");
}

#[test]
fn a_full_disk_leaves_a_readable_beginning_of_a_compressed_trace_or_of_a_table() {
    let directory = tempfile::tempdir().unwrap();
    let here = |name: &str| directory.path().join(name);
    let (whole, disk) = (here("whole.jsonl"), here("disk"));
    write_large_trace(&whole, 5_000);
    fs::create_dir(&disk).unwrap();
    // With enough room.
    let converted = |name: &str, format: &str| {
        let (code, said) = run(tcpmon(&["convert", "--format", format]).arg(&whole).arg(here(name)));
        assert_eq!(code, Some(0), "{name}: {said}");
        fs::read(here(name)).unwrap()
    };
    // What is on the disk in the end.
    let cut = |name: &str, format: &str| {
        let script = "mount -t tmpfs -o size=64k none \"$1\" && \"$2\" convert --format \"$5\" \"$3\" \"$1/$4\"; \
                      code=$?; cat \"$1/$4\"; exit $code";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&disk).arg(tcpmon_binary()).arg(&whole);
        let output = command.args([name, format]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {stderr}");
        assert!(stderr.contains(name) && stderr.contains("No space left"), "{name}: {stderr}");
        output.stdout
    };

    let (table, cut_table) = (converted("table", "table"), cut("table", "table"));
    assert!(cut_table.len() > 60_000 && cut_table.len() < table.len(), "{} of {}", cut_table.len(), table.len());
    let differ = table.iter().zip(&cut_table).position(|(whole, cut)| whole != cut);
    assert_eq!(differ, None, "the first byte that differs");

    let plain = converted("plain.jsonl", "jsonl");
    let lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
    for (name, program) in [("cut.jsonl.gz", "gzip"), ("cut.jsonl.zst", "zstd")] {
        let file = here(name);
        fs::write(&file, cut(name, "jsonl")).unwrap();
        let output = Command::new(program).arg("-dc").arg(&file).output().expect(program);
        let read = output.stdout;
        assert!(!output.status.success(), "{program} does not say that the file is cut");
        assert!(plain.starts_with(&read) && lines(&read) > 100 && read.len() < plain.len(), "{name}: {}", read.len());

        let (code, said) = run(tcpmon(&["report"]).arg(&file));
        assert_eq!(code, Some(0), "{name}: {said}");
        let saved = here(&format!("{name}.saved.jsonl"));
        let (code, said) = run(tcpmon(&["convert"]).arg(&file).arg(&saved));
        let saved = fs::read(&saved).unwrap();
        let counts = (lines(&saved), lines(&read));
        assert!(code == Some(1) && said.contains(&format!("{} records", counts.0 - 1)), "{code:?} {said} {counts:?}");
        assert!(plain.starts_with(&saved) && saved.ends_with(b"\n") && counts.0 + 1 >= counts.1, "{name}: {counts:?}");
    }
}
