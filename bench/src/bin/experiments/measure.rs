//! One transfer, as its two ends, the kernel and tcpmon see it.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tcpmon_tests::traffic::Reader;
use tcpmon_tests::truth::{self, Socket, State};
use tcpmon_tests::{Lab, clock, eventually, interrupt, tcpmon_binary};
use tcpmon_trace::summary::causes;
use tempfile::TempDir;

use crate::Effort;

/// Time limit for what normally takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(20);

/// How often inet_diag is polled.
const SAMPLE_EVERY: Duration = Duration::from_millis(5);

/// The measurements of a transfer, those by tcpmon next to independent ones.
#[derive(Clone, Debug)]
pub struct Run {
    /// Throughput by the reader's own count, bit/s.
    pub throughput: f64,
    /// Throughput by tcpmon's timeslices, bit/s.
    pub traced: f64,
    /// Share of the receive buffer in use, mean of samples by inet_diag, %.
    pub fill_sampled: f64,
    /// The same, mean over deactivations of the reader, by tcpmon, %.
    pub fill_deactivated: f64,
    /// The reader's CPU use, by its CPU clock, %.
    pub cpu: f64,
    /// The same by the sum of tcpmon's timeslices, %.
    pub on_cpu: f64,
    /// Run-queue wait of the reader, by tcpmon, % of the time.
    pub run_queue: f64,
    /// Time in which the window limited the sender, by the sender's own `tcp_info`, % of the time.
    pub rwnd_limited: f64,
    /// What limited the receiver, by tcpmon, % of the decided time, in the order of [`causes`].
    pub causes: [f64; 5],
    /// The receive buffer, bytes, by inet_diag at the end.
    pub rcvbuf: f64,
    /// The advertised window, mean over deactivations, by tcpmon, bytes.
    pub window: f64,
    /// The receiver's estimate of the round trip, mean over those that are known, by tcpmon, s.
    pub round_trip: f64,
}

impl Run {
    /// Share of the time in which the receiver was the limit (any cause but upstream), by tcpmon: the sender sees a
    /// window that is too small.
    pub fn limited(&self) -> f64 {
        self.causes[1..].iter().sum()
    }

    /// Share of the advertised window that was in flight, %.
    pub fn window_used(&self) -> f64 {
        100.0 * self.traced / 8.0 * self.round_trip / self.window.max(1.0)
    }
}

/// Measures a transfer that is under way. It warms up first, because sender and reader get less CPU while tcpmon's
/// programs are being loaded.
pub fn measure(lab: &Lab, reader: &Reader, Effort { time, warm_up, .. }: Effort) -> Run {
    interrupt::check();
    eventually(DEADLINE, "data flow", || reader.report().bytes > 10_000);
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("run.jsonl");
    let mut trace = Command::new(tcpmon_binary());
    trace.args(["trace", "--pid", &reader.pid().to_string(), "--duration", &format!("{}ms", time.as_millis())]);
    if !warm_up.is_zero() {
        trace.args(["--start-at", &format!("+{}ms", warm_up.as_millis())]);
    }
    let mut trace = trace.arg("--output").arg(&file).spawn().expect("tcpmon can be started");
    eventually(DEADLINE, "the trace has begun", || file.metadata().is_ok_and(|file| file.len() > 0));

    let receivers = || connections(lab, reader);
    let limited = || sending(lab, reader).iter().map(|socket| socket.info.rwnd_limited_us).sum::<u64>();
    let (bytes, begin, cpu, limited_before) =
        (reader.report().bytes, clock::monotonic_ns(), truth::cpu_time(reader.pid()), limited());
    let (mut fill, mut samples, mut rcvbuf) = (0.0, 0.0, 0.0);
    let end = begin + time.as_nanos() as u64 * 9 / 10;
    while clock::monotonic_ns() < end {
        for socket in receivers().iter().filter(|socket| socket.rcvbuf > 0) {
            fill += 100.0 * f64::from(socket.rmem) / f64::from(socket.rcvbuf);
            samples += 1.0;
            rcvbuf = f64::from(socket.rcvbuf);
        }
        interrupt::sleep(SAMPLE_EVERY);
    }
    let seconds = (clock::monotonic_ns() - begin) as f64 / 1e9;
    let (read, limited) = (reader.report().bytes - bytes, limited() - limited_before);
    let cpu = (truth::cpu_time(reader.pid()) - cpu).as_secs_f64();
    assert!(trace.wait().expect("it ends").success(), "the trace failed");
    let seen = Seen::of(&file);
    Run {
        throughput: 8.0 * read as f64 / seconds,
        traced: 8.0 * seen.read_bytes / seen.seconds,
        fill_sampled: fill / f64::max(samples, 1.0),
        fill_deactivated: seen.fill_deactivated,
        cpu: 100.0 * cpu / seconds,
        on_cpu: 100.0 * seen.on_cpu_seconds / seen.seconds,
        run_queue: 100.0 * seen.wait_seconds / seen.seconds,
        rwnd_limited: 100.0 * limited as f64 / 1e6 / seconds,
        causes: seen.causes,
        rcvbuf,
        window: seen.window,
        round_trip: seen.round_trip,
    }
}

fn connections(lab: &Lab, reader: &Reader) -> Vec<Socket> {
    let mut sockets = truth::sockets(lab.receiver());
    sockets.retain(|socket| socket.is_connection_to(reader.port()) && socket.state == State::Established);
    sockets
}

fn sending(lab: &Lab, reader: &Reader) -> Vec<Socket> {
    let mut sockets = truth::sockets(lab.sender());
    sockets.retain(|socket| socket.remote.port() == reader.port() && socket.state == State::Established);
    sockets
}

/// What a trace says about a transfer.
struct Seen {
    seconds: f64,
    read_bytes: f64,
    fill_deactivated: f64,
    on_cpu_seconds: f64,
    wait_seconds: f64,
    causes: [f64; 5],
    window: f64,
    round_trip: f64,
}

impl Seen {
    /// Sums up the timeslices of a file.
    fn of(file: &std::path::Path) -> Self {
        let text = std::fs::read_to_string(file).expect("it is there");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let number = |line: &Value, key: &str| line[key].as_f64().unwrap_or_else(|| panic!("{key} in {line}"));
        let slices: Vec<&Value> = lines.iter().filter(|line| line["type"] == "timeslice").collect();
        let sum = |key: &str| slices.iter().map(|slice| number(slice, key)).sum::<f64>();
        let (header, trailer) = (&lines[0], lines.last().expect("lines"));
        let decided = causes().map(|cause| sum(&format!("limited_{cause}_ns")));
        let all = f64::max(decided.iter().sum(), 1.0);
        let whole = slices.iter().filter(|slice| slice["closed"] == false && slice["handed_over"] == false);
        let whole: Vec<&Value> = whole.copied().collect();
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / f64::max(values.len() as f64, 1.0);
        let fill = |slice: &&Value| {
            100.0 * number(slice, "deactivation_rmem_bytes") / number(slice, "deactivation_rcvbuf_bytes").max(1.0)
        };
        let trips = whole.iter().map(|slice| number(slice, "rcv_rtt_us") / 1e6).filter(|seconds| *seconds > 0.0);
        Self {
            seconds: (number(trailer, "end_monotonic_ns") - number(header, "start_monotonic_ns")) / 1e9,
            read_bytes: sum("read_bytes"),
            fill_deactivated: mean(whole.iter().map(fill).collect()),
            window: mean(whole.iter().map(|slice| number(slice, "deactivation_window_bytes")).collect()),
            round_trip: mean(trips.collect()),
            on_cpu_seconds: sum("on_cpu_ns") / 1e9,
            wait_seconds: sum("wait_ns") / 1e9,
            causes: decided.map(|ns| 100.0 * ns / all),
        }
    }
}
