//! The formats of a trace, read by the programs that they are for.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{DEADLINE, run, sender, tcpmon};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tcpmon_tests::traffic::Reader;
use tcpmon_tests::{Killed, Lab, Traffic, eventually};
use tcpmon_trace::{JsonLinesWriter, TraceWriter as _, sample};
use tempfile::TempDir;

/// Where `cargo xtask test` puts the programs.
fn installed() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/formats");
    assert!(folder.is_dir(), "no programs at {}: `cargo xtask test` brings them", folder.display());
    folder
}

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("formats").join(file)
}

/// The answer of a program, which gets `input`.
fn answer(command: &mut Command, input: &str) -> Value {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it can be started");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// What DuckDB, pandas or Spark says.
fn ask(arguments: &[&str], input: &str) -> Value {
    let mut command = Command::new(installed().join("python/bin/python"));
    answer(command.arg("-B").arg(here("ask.py")).args(arguments), input)
}

/// What Perfetto's trace processor says.
fn trace_processor(trace: &Path, queries: &[&str]) -> Value {
    let mut command = Command::new("node");
    command.arg(here("trace_processor.mjs")).arg(installed().join("trace_processor")).arg(trace).args(queries);
    answer(&mut command, "")
}

/// Converts a trace; returns the exit code and stderr.
fn convert(from: &Path, to: &Path) -> (Option<i32>, String) {
    run(tcpmon(&["convert"]).arg(from).arg(to))
}

/// Converts a trace; one of the two files is JSON Lines. stderr may only name what the trace lacks: an event that comes
/// while the same program runs on that CPU is lost, which can happen.
fn converts(from: &Path, to: &Path) {
    let text = if from.extension().is_some_and(|extension| extension == "jsonl") { from } else { to };
    let (code, said) = convert(from, to);
    let trailer = lines(text).pop().expect("a trailer");
    let expected = format!("tcpmon: {}: the trace is incomplete; lost: ", from.display());
    let is_expected = if trailer["complete"] == true { said.is_empty() } else { said.starts_with(&expected) };
    assert!(code == Some(0) && is_expected, "{code:?} {said} {trailer}");
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).expect("it is there");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// A trace of a transfer to two connections, and what their reader has read.
struct Traced {
    directory: TempDir,
    file: PathBuf,
    bytes: u64,
}

impl Traced {
    fn to(name: &str) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let file = directory.path().join(name);
        let lab = Lab::new();
        let reader = Traffic::reader(lab.receiver()).comm("columns").connections(2).paused().spawn();
        let port = reader.port().to_string();
        let mut command = tcpmon(&["trace", "--comm", "columns", "--port", &port, "--output"]);
        let mut trace = Killed(command.arg(&file).spawn().expect("it starts"));
        eventually(DEADLINE, "the trace has begun", || fs::metadata(&file).is_ok_and(|file| file.len() > 0));
        reader.resume();
        sender(&lab, &reader).flows(2).bytes(20_000_000).spawn().wait();
        let bytes = reader.wait().bytes;
        kill(Pid::from_raw(trace.id() as i32), Signal::SIGINT).expect("it runs");
        let ended = trace.wait().expect("it ends");
        assert!(ended.success(), "{ended}");
        Self { directory, file, bytes }
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// The smallest and largest value of each key of a trace's timeslices in JSON Lines.
fn extremes(file: &Path) -> (usize, BTreeMap<String, [Value; 2]>) {
    let slices: Vec<Value> = lines(file).into_iter().filter(|line| line["type"] == "timeslice").collect();
    let mut columns = BTreeMap::<String, [Value; 2]>::new();
    for (key, value) in slices.iter().flat_map(|slice| slice.as_object().expect("an object")) {
        let [least, most] = columns.entry(key.clone()).or_insert_with(|| [value.clone(), value.clone()]);
        let order = |a: &Value, b: &Value| match (a.as_u64(), b.as_u64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_str().cmp(&b.as_str()).then(a.as_bool().cmp(&b.as_bool())),
        };
        if order(value, least).is_lt() {
            *least = value.clone();
        }
        if order(value, most).is_gt() {
            *most = value.clone();
        }
    }
    columns.remove("type");
    (slices.len(), columns)
}

#[test]
fn duckdb_pandas_and_spark_find_in_each_column_what_the_lines_have() {
    let traced = Traced::to("run.jsonl");
    let (rows, mut expected) = extremes(&traced.file);
    let header = lines(&traced.file).remove(0);
    let number = |key: &str| header[key].as_u64().expect("a number");
    let wall =
        |edge: &Value| edge.as_u64().expect("a number") - number("start_monotonic_ns") + number("start_realtime_ns");
    let activated = expected["activated_ns"].clone();
    expected.insert("activated_realtime_ns".into(), activated.each_ref().map(|edge| wall(edge).into()));
    expected.insert("hostname".into(), [header["hostname"].clone(), header["hostname"].clone()]);
    for (program, name) in [
        ("duckdb", "run.parquet"),
        ("pandas", "run.parquet"),
        ("spark", "run.parquet"),
        ("duckdb", "run.csv"),
        ("pandas", "run.csv"),
    ] {
        let file = traced.beside(name);
        if !file.exists() {
            converts(&traced.file, &file);
        }
        let found = ask(&["extremes", program, file.to_str().expect("a path")], "");
        assert_eq!(found["rows"], rows, "{program} {name}");
        let mut columns: BTreeMap<String, [Value; 2]> =
            serde_json::from_value(found["columns"].clone()).expect("columns");
        // The readable time has microseconds; the same time in nanoseconds is beside it.
        let times = columns.remove("activated_time").expect("it is there");
        for (time, ns) in times.iter().zip(&expected["activated_realtime_ns"]) {
            let us = ns.as_u64().expect("a number") / 1000 % 1_000_000;
            assert!(
                time.as_str().is_some_and(|time| time.ends_with(&format!(".{us:06}Z"))),
                "{program} {name}: {time}"
            );
        }
        if name.ends_with(".csv") {
            for cookie in columns.get_mut("cookie").expect("it is there") {
                let text = cookie.as_str().and_then(|text| text.strip_prefix("sk:")).expect("as `ss` shows it");
                *cookie = text.into();
            }
        }
        for (name, column) in &expected {
            assert_eq!(columns.get(name), Some(column), "{program} {name}");
        }
        assert_eq!(columns.len(), expected.len(), "{program} {name}");
    }
}

#[test]
fn a_trace_in_parquet_has_the_bytes_that_were_read_and_converts_to_the_lines_of_one_in_json() {
    let traced = Traced::to("run.parquet");
    let file = traced.file.to_str().expect("a path");
    let sum = ask(&["query", "duckdb", &format!("slices={file}")], "SELECT sum(read_bytes) FROM slices");
    assert_eq!(sum[0][0], traced.bytes);
    let metadata = "SELECT decode(value) FROM parquet_kv_metadata('FILE') WHERE decode(key) = 'tcpmon.trailer'";
    let trailer = ask(&["query", "duckdb"], &metadata.replace("FILE", file));
    let trailer: Value = serde_json::from_str(trailer[0][0].as_str().expect("a text")).expect("JSON");
    assert_eq!((&trailer["reason"], &trailer["lost"]["write"]), (&"interrupt".into(), &0.into()), "{trailer}");

    let [text, again, back] = ["run.jsonl", "again.parquet", "back.jsonl"].map(|name| traced.beside(name));
    for (from, to) in [(&traced.file, &text), (&text, &again), (&again, &back)] {
        converts(from, to);
    }
    assert_eq!(fs::read(&text).expect("it is there"), fs::read(&back).expect("it is there"));
    let (code, said) = run(tcpmon(&["convert", "--force"]).arg(&text).arg(&text));
    assert!(code == Some(2) && said.contains("are the same file"), "{code:?} {said}");
    assert_eq!(fs::read(&text).expect("it is there"), fs::read(&back).expect("it is there"));
    let lines = lines(&text);
    assert_eq!(lines.last(), Some(&trailer));
    let read: u64 =
        lines.iter().filter(|line| line["type"] == "socket").filter_map(|line| line["read_bytes"].as_u64()).sum();
    assert_eq!(read, traced.bytes);
    let report = tcpmon(&["report", "--format", "json"]).arg(&traced.file).output().expect("it can be started");
    let of_text = tcpmon(&["report", "--format", "json"]).arg(&text).output().expect("it can be started");
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON")["sockets"].clone();
    assert_eq!(json(&report.stdout), json(&of_text.stdout));
}

#[test]
fn gzip_and_zstd_read_from_a_compressed_conversion_what_a_plain_one_has() {
    let directory = TempDir::new().expect("a temporary directory");
    let [trace, plain] = ["run.jsonl", "plain.jsonl"].map(|name| directory.path().join(name));
    let file = fs::File::create(&trace).expect("a file");
    let mut writer = JsonLinesWriter::new(file, &sample::header()).expect("there is room");
    for _ in 0..1000 {
        writer.record(&sample::record()).expect("there is room");
    }
    writer.finish(&sample::ending()).expect("there is room");
    converts(&trace, &plain);
    let plain = fs::read(plain).expect("it is there");
    for (name, program, begin) in
        [("run.jsonl.gz", "gzip", &b"\x1f\x8b"[..]), ("run.jsonl.zst", "zstd", &b"\x28\xb5\x2f\xfd"[..])]
    {
        let file = directory.path().join(name);
        converts(&trace, &file);
        let compressed = fs::read(&file).expect("it is there");
        assert!(compressed.starts_with(begin) && compressed.len() < plain.len() / 10, "{name}");
        let output = Command::new(program).arg("-dc").arg(&file).output().expect(program);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout == plain, "{name}: {} {said}", output.status);
    }
}

#[test]
fn perfetto_s_trace_processor_finds_each_timeslice_and_the_queues() {
    let traced = Traced::to("run.jsonl");
    let trace = traced.beside("run.pftrace");
    converts(&traced.file, &trace);
    let all = lines(&traced.file);
    let slices: Vec<&Value> = all.iter().filter(|line| line["type"] == "timeslice").collect();
    let number = |slice: &Value, key: &str| slice[key].as_u64().unwrap_or_else(|| panic!("{key} in {slice}"));
    let most = |key: &str| slices.iter().map(|slice| number(slice, key)).max().expect("slices");
    let found = trace_processor(
        &trace,
        &[
            "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
            "SELECT count(*), sum(dur), sum(EXTRACT_ARG(arg_set_id, 'debug.read_bytes')) FROM slice \
             WHERE name IN ('reads', 'does not read')",
            "SELECT count(DISTINCT ts + dur), count(*) FROM slice WHERE name = 'on the CPU'",
            "SELECT name, max(value) FROM counter JOIN counter_track ON track_id = counter_track.id \
             GROUP BY name ORDER BY name",
            "SELECT name, sum(EXTRACT_ARG(arg_set_id, 'debug.' || name)) FROM slice \
             WHERE name IN ('application', 'memory', 'scheduler', 'upstream', 'window') GROUP BY name ORDER BY 2 DESC",
            "SELECT EXTRACT_ARG(arg_set_id, 'debug.records') FROM slice WHERE name = 'end of the trace'",
            "SELECT DISTINCT thread.name, process.pid FROM slice JOIN thread_track ON track_id = thread_track.id \
             JOIN thread USING (utid) JOIN process USING (upid) WHERE slice.name = 'on the CPU'",
        ],
    );
    assert_eq!(found[0], Value::Array(Vec::new()), "no errors");
    assert_eq!(found[1][0][0], slices.len());
    assert_eq!(found[1][0][2], traced.bytes);
    // Slices of a thread do not overlap, whatever the edges of partial ones.
    let whole: u64 = slices.iter().map(|slice| number(slice, "deactivated_ns") - number(slice, "activated_ns")).sum();
    assert!(found[1][0][1].as_u64().is_some_and(|ns| ns <= whole && ns * 10 >= whole * 9), "{} of {whole}", found[1]);
    let edges: std::collections::BTreeSet<_> = slices.iter().map(|slice| number(slice, "deactivated_ns")).collect();
    assert_eq!(found[2][0], serde_json::json!([edges.len(), edges.len()]));
    let both = |key: &str| most(&format!("activation_{key}")).max(most(&format!("deactivation_{key}"))) as f64;
    let counters: Vec<(String, f64)> = serde_json::from_value(found[3].clone()).expect("counters");
    let expected = [
        ("queue", "queued_bytes"),
        ("receive buffer limit", "rcvbuf_bytes"),
        ("receive buffer used", "rmem_bytes"),
        ("window", "window_bytes"),
    ];
    assert_eq!(counters, expected.map(|(name, key)| (name.to_owned(), both(key))));
    let causes = ["application", "memory", "scheduler", "upstream", "window"];
    let leading =
        causes.map(|cause| slices.iter().map(|slice| number(slice, &format!("limited_{cause}_ns"))).sum::<u64>());
    let greatest = causes.iter().zip(leading).max_by_key(|(_, ns)| *ns).map(|(cause, _)| *cause);
    assert_eq!(found[4][0][0].as_str(), greatest, "{} {leading:?}", found[4]);
    assert_eq!(found[5][0][0], slices.len());
    assert_eq!(found[6], serde_json::json!([["columns", slices[0]["tgid"]]]));
}

#[test]
fn perfetto_s_trace_processor_finds_renamed_threads_late_records_and_more_sockets_than_are_remembered() {
    const SOCKETS: usize = 40_000;
    let traced = Traced::to("run.jsonl");
    let (many, trace) = (traced.beside("many.jsonl"), traced.beside("many.pftrace"));
    let all = lines(&traced.file);
    let sample = all.iter().find(|line| line["type"] == "timeslice").expect("a timeslice");
    let begin = sample["activated_ns"].as_u64().expect("a time");
    let slice = |at: usize, comm: &str, [activated, deactivated]: [usize; 2]| {
        let mut slice = sample.clone();
        slice["cookie"] = format!("{at:x}").into();
        slice["comm"] = comm.into();
        slice["tid"] = sample["tgid"].clone();
        slice["activated_ns"] = (begin + activated as u64).into();
        slice["deactivated_ns"] = (begin + deactivated as u64).into();
        slice
    };
    let mut slices: Vec<Value> = (0..2 * SOCKETS)
        .map(|at| slice(at % SOCKETS + 1, ["before", "after"][at / SOCKETS], [at * 1000, at * 1000 + 500]))
        .collect();
    // A record that comes after one with a later time.
    slices.push(slice(SOCKETS, "after", [100, 200]));
    let mut file = fs::File::create(&many).expect("a file");
    for line in [&all[0]].into_iter().chain(&slices) {
        writeln!(file, "{line}").expect("there is room");
    }
    // It has no trailer.
    assert_eq!(convert(&many, &trace).0, Some(1));
    let found = trace_processor(
        &trace,
        &[
            "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
            "SELECT count(*), count(DISTINCT track_id), sum(EXTRACT_ARG(arg_set_id, 'debug.read_bytes')), sum(dur = 0) \
             FROM slice WHERE name IN ('reads', 'does not read')",
            "SELECT count(*), count(DISTINCT track_id) FROM counter JOIN counter_track ON track_id = counter_track.id \
             WHERE name = 'queue'",
            "SELECT thread.name, process.name FROM thread JOIN process USING (upid) WHERE tid > 0",
            "SELECT ts, EXTRACT_ARG(arg_set_id, 'debug.from'), EXTRACT_ARG(arg_set_id, 'debug.to') FROM slice \
             WHERE name = 'renamed'",
        ],
    );
    assert_eq!(found[0], Value::Array(Vec::new()), "no errors");
    let bytes = sample["read_bytes"].as_u64().expect("bytes") * slices.len() as u64;
    assert_eq!(found[1][0], serde_json::json!([slices.len(), SOCKETS, bytes, 1]));
    assert_eq!(found[2][0], serde_json::json!([2 * slices.len(), SOCKETS]));
    assert_eq!(found[3], serde_json::json!([["after", "after"]]));
    assert_eq!(found[4], serde_json::json!([[begin + SOCKETS as u64 * 1000, "before", "after"]]));
}

#[test]
fn a_killed_trace_in_parquet_keeps_its_whole_row_groups() {
    let directory = TempDir::new().expect("a temporary directory");
    let [file, whole] = ["cut.parquet", "whole.parquet"].map(|name| directory.path().join(name));
    let lab = Lab::new();
    let reader: Reader = Traffic::reader(lab.receiver()).comm("killed").until_exit().spawn();
    let mut command = tcpmon(&["trace", "--comm", "killed", "--output"]);
    let mut trace = Killed(command.arg(&file).spawn().expect("it starts"));
    eventually(DEADLINE, "the trace has begun", || fs::metadata(&file).is_ok_and(|file| file.len() > 0));
    // Small messages, each of which wakes the reader.
    let senders: Vec<_> = (0..2).map(|_| sender(&lab, &reader).message(64).rate(6_400_000).spawn()).collect();
    // No footer but the last one ends the file.
    eventually(4 * DEADLINE, "a row group has its footer", || {
        fs::read(&file).is_ok_and(|bytes| bytes.ends_with(b"PAR1\0\0\0\0"))
    });
    kill(Pid::from_raw(trace.id() as i32), Signal::SIGKILL).expect("it runs");
    trace.wait().expect("it ends");
    senders.iter().for_each(|sender| drop(sender.finish()));
    reader.exit();

    let (code, said) = convert(&file, &whole);
    assert!(code == Some(1) && said.contains("cut.parquet: Parquet trace cut"), "{code:?} {said}");
    let query = "SELECT count(*), count(DISTINCT comm), min(comm) FROM slices";
    let found = ask(&["query", "duckdb", &format!("slices={}", whole.display())], query);
    let rows = found[0][0].as_u64().expect("a number");
    assert!(rows > 0 && rows.is_multiple_of(65_536), "{found}");
    assert!(said.contains(&format!("has the {rows} records before that")), "{said}");
    assert_eq!(found[0][2], "killed");
    let report = tcpmon(&["report"]).arg(&file).output().expect("it can be started");
    let report = String::from_utf8_lossy(&report.stdout);
    assert!(report.contains("Parquet trace cut"), "{report}");
}

/// The first block of SQL below a heading of docs/trace-format.md.
fn documented(heading: &str) -> String {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/trace-format.md");
    let document = fs::read_to_string(document).expect("it is there");
    let section = document.split_once(&format!("\n### {heading}\n")).expect("the heading is there").1;
    let sql = section.split_once("```sql\n").and_then(|(_, rest)| rest.split_once("```")).expect("a block of SQL").0;
    sql.to_owned()
}

#[test]
fn a_connection_s_two_ends_are_joined_as_documented() {
    let directory = TempDir::new().expect("a temporary directory");
    let [client, server] = ["client.parquet", "server.parquet"].map(|name| directory.path().join(name));
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("server").paused().spawn();
    let traces = [("server", &server), ("client", &client)].map(|(comm, file)| {
        let trace = Killed(tcpmon(&["trace", "--comm", comm, "--output"]).arg(file).spawn().expect("it starts"));
        eventually(DEADLINE, "the trace has begun", || fs::metadata(file).is_ok_and(|file| file.len() > 0));
        trace
    });
    let talking = sender(&lab, &reader).comm("client").paused().spawn();
    assert_eq!(talking.send(300_000), 300_000);
    assert_eq!(reader.read(300_000), 300_000);
    assert_eq!(reader.send_byte(), 1);
    assert_eq!(talking.receive(), 1);
    for mut trace in traces {
        kill(Pid::from_raw(trace.id() as i32), Signal::SIGINT).expect("it runs");
        let ended = trace.wait().expect("it ends");
        assert!(ended.success(), "{ended}");
    }
    let views = [("client", &client), ("server", &server)].map(|(name, file)| format!("{name}={}", file.display()));
    let joined = ask(&["query", "duckdb", &views[0], &views[1]], &documented("Both ends of a connection"));
    let rows = joined.as_array().expect("rows");
    assert_eq!(rows.len(), 1, "{joined}");
    let address = reader.address();
    let expected = [address.ip().to_string().into(), address.port().into(), 300_000.into(), 1.into()];
    assert_eq!(rows[0].as_array().map(|row| &row[..4]), Some(&expected[..]), "{joined}");
}

#[test]
fn a_fleet_s_files_are_asked_as_documented_with_duckdb_and_with_spark() {
    const HOSTS: u64 = 50;
    let traced = Traced::to("run.jsonl");
    let text = fs::read_to_string(&traced.file).expect("it is there");
    let name = lines(&traced.file)[0]["hostname"].as_str().expect("a name").to_owned();
    let fleet = traced.beside("fleet");
    for host in 0..HOSTS {
        let host = format!("dtn{host:02}");
        let mine = traced.beside("mine.jsonl");
        // The hosts differ in their names only, so each has the same share.
        let renamed = text.replacen(&format!("\"hostname\":\"{name}\""), &format!("\"hostname\":\"{host}\""), 1);
        fs::write(&mine, renamed).expect("there is room");
        for day in ["2026-11-24", "2026-11-25"] {
            let folder = fleet.join(format!("host={host}/day={day}"));
            fs::create_dir_all(&folder).expect("there is room");
            converts(&mine, &folder.join("run.parquet"));
        }
    }
    let query = documented("A fleet");
    let view = format!("slices={}/*/*/*.parquet", fleet.display());
    let [duckdb, spark] = ["duckdb", "spark"].map(|program| ask(&["query", program, &view], &query));
    assert_eq!(duckdb, spark);
    let rows = duckdb.as_array().expect("rows");
    assert_eq!(rows.len() as u64, 2 * HOSTS, "{duckdb}");
    for row in rows {
        assert_eq!(row[2], traced.bytes, "{row}");
        assert!(row[0].as_str().is_some_and(|host| host.starts_with("dtn")), "{row}");
    }
}
