//! How many records per second a trace takes in without losing any, at the default ring size.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_timerslack;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tcpmon_tests::{eventually, tcpmon_binary};
use tempfile::TempDir;

use crate::child::cpu_of;
use tcpmon_tests::figures::{Section, Table};
use tcpmon_tests::interrupt;

/// Sockets per thread. Whenever the thread leaves the CPU, it causes a record for each socket in which data wait.
const SOCKETS: usize = 8;

/// Bytes sent to each socket.
const WAITING: usize = 4096;

/// How long a thread sleeps at a time.
const NAP: Duration = Duration::from_micros(20);

/// The trailer is within this many bytes of the end of a file.
const END: u64 = 64 << 10;

const DEADLINE: Duration = Duration::from_secs(30);

/// Traces two threads for a minute in each format; for 5 s if `quick`.
pub fn measure(quick: bool) -> Section {
    let time = Duration::from_secs(if quick { 5 } else { 60 });
    let heading = ["output", "records/s", "lost", "CPU of the trace", "bytes a record"];
    let mut table = Table::new(&heading);
    for name in ["run.parquet", "run.jsonl"] {
        interrupt::check();
        table.row(measure_format(name, time));
        eprintln!("trace: {name}");
    }
    let what = format!(
        "Records that a trace takes in. Two threads with {SOCKETS} sockets each, in all of which data wait, sleep for \
         {} us again and again, for {} s.",
        NAP.as_micros(),
        time.as_secs()
    );
    Section { name: "trace", what, table, notes: Vec::new() }
}

/// A row of the table.
fn measure_format(name: &str, time: Duration) -> Vec<String> {
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join(name);
    let mut command = Command::new(tcpmon_binary());
    command.args(["trace", "--pid", &std::process::id().to_string(), "--output"]).arg(&file);
    let mut trace = Trace(command.spawn().expect("tcpmon can be started"));
    eventually(DEADLINE, "the trace has begun", || file.metadata().is_ok_and(|file| file.len() > 0));
    let pid = trace.0.id();
    let (before, start, over) = (cpu_of(pid), Instant::now(), AtomicBool::new(false));
    let taken = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| nap(&over));
        }
        while start.elapsed() < time {
            interrupt::sleep(Duration::from_millis(100));
        }
        over.store(true, Ordering::Relaxed);
        (cpu_of(pid) - before).as_secs_f64() / start.elapsed().as_secs_f64()
    });
    kill(Pid::from_raw(pid as i32), Signal::SIGINT).expect("it runs");
    assert!(trace.0.wait().expect("it ends").success(), "the trace failed");
    let trailer = trailer(&file);
    let number = |value: &Value| value.as_u64().expect("a number");
    let records = number(&trailer["records"]);
    let lost: u64 = trailer["lost"].as_object().expect("an object").values().map(number).sum();
    let bytes = file.metadata().expect("it is there").len();
    vec![
        name.rsplit('.').next().unwrap_or_default().to_owned(),
        format!("{:.0}", records as f64 / time.as_secs_f64()),
        lost.to_string(),
        format!("{:.0} % of a core", 100.0 * taken),
        format!("{:.1}", bytes as f64 / records as f64),
    ]
}

/// The running trace. Killed when dropped.
struct Trace(Child);

impl Drop for Trace {
    fn drop(&mut self) {
        // An error means that it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads one byte of each socket, and then only sleeps.
fn nap(over: &AtomicBool) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    let mut sockets: Vec<(TcpStream, TcpStream)> = Vec::new();
    for _ in 0..SOCKETS {
        let mut sender = TcpStream::connect(address).expect("it listens");
        let (mut reader, _) = listener.accept().expect("somebody has connected");
        sender.write_all(&[0; WAITING]).expect("there is room");
        reader.read_exact(&mut [0]).expect("data wait");
        sockets.push((sender, reader));
    }
    // Otherwise a sleep takes 50 us longer.
    set_timerslack(1).expect("any thread may");
    while !over.load(Ordering::Relaxed) {
        thread::sleep(NAP);
    }
}

/// The trailer of a trace, which is text in both formats, near the end of the file.
fn trailer(file: &Path) -> Value {
    const BEGIN: &[u8] = br#"{"type":"trailer""#;
    let mut file = File::open(file).expect("it is there");
    let length = file.metadata().expect("it is there").len();
    file.seek(SeekFrom::Start(length.saturating_sub(END))).expect("it is a file");
    let mut end = Vec::new();
    file.read_to_end(&mut end).expect("it can be read");
    let at = end.windows(BEGIN.len()).rposition(|window| window == BEGIN).expect("a trace ends in a trailer");
    let mut values = serde_json::Deserializer::from_slice(&end[at..]).into_iter();
    values.next().expect("an object").expect("JSON")
}
