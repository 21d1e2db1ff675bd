//! `cargo xtask dashboards --pictures`: runs traffic to receivers that are limited by different causes, a daemon, and a
//! Prometheus that scrapes it. Then it runs the given command, which draws what Prometheus has; `PROMETHEUS` tells the
//! command where Prometheus is.

use std::{
    env, fs,
    os::fd::AsFd as _,
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::SignalFd,
    },
};
use tcpmon_tests::{
    Daemon, Lab, Namespace, Prometheus, Traffic,
    prometheus::PrometheusOptions,
    rules,
    traffic::{Between, Reader, ReaderBuilder, SenderBuilder},
};

/// How long the traffic runs before the pictures are made.
const TIME: Duration = Duration::from_secs(100);

/// One-way delay of the path to the receiver whose window is too small for it.
const ONE_WAY: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("no command to draw with: use `cargo xtask dashboards --pictures`");
        return ExitCode::from(2);
    };
    let interrupt = Interrupt::new().expect("signals can be blocked");
    let daemon = Daemon::start(&[]);
    let rules = ["alerts.yaml", "rules.yaml"].map(rule_file);
    let options = PrometheusOptions { rules: &rules, ..PrometheusOptions::default() };
    let prometheus = Prometheus::start(&Namespace::current(), &daemon, options);

    let near = Lab::new();
    let far = Lab::long(ONE_WAY);
    let _hog = Traffic::hog(1, -10);
    let _running = [
        start(&near, "keeps-up", |reader| reader, |sender| sender.rate(30_000_000)),
        start(&near, "sleeps", |reader| reader.chunk(65_536).between(Between::Sleep(5_000)), |sender| sender),
        start(&near, "computes", |reader| reader.between(Between::Spin(2_000)), |sender| sender),
        start(&near, "starved", |reader| reader.cpu(1).nice(10), |sender| sender.rate(20_000_000)),
        start(&far, "small-window", |reader| reader.receive_buffer(16 << 10), |sender| sender),
        start(
            &near,
            "hangs",
            |reader| reader.paused().receive_buffer(64 << 10),
            |sender| sender.bytes(20_000).hold_open(),
        ),
    ];
    println!("Traffic runs for {} s.", TIME.as_secs());
    if interrupt.comes_within(TIME) {
        eprintln!("interrupted: no pictures");
        return ExitCode::FAILURE;
    }
    let drawn = Command::new(&program)
        .args(arguments)
        .env("PROMETHEUS", format!("http://{}", prometheus.address()))
        .status()
        .is_ok_and(|status| status.success());
    if drawn { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Lets the program wait for SIGINT and SIGTERM. Otherwise they would end this process and its children at once, and
/// leave Prometheus's data behind.
struct Interrupt(SignalFd);

impl Interrupt {
    /// Blocks the signals, also in threads that start later, but not in other programs.
    fn new() -> nix::Result<Self> {
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        signals.thread_block()?;
        SignalFd::new(&signals).map(Self)
    }

    /// Whether one of them comes within this time; waits until one does.
    fn comes_within(&self, time: Duration) -> bool {
        let timeout = PollTimeout::try_from(time).expect("minutes fit");
        poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) != Ok(0)
    }
}

/// Starts a connection between two processes, which end when the returned values are dropped.
fn start(
    lab: &Lab,
    name: &str,
    reader: impl FnOnce(ReaderBuilder) -> ReaderBuilder,
    sender: impl FnOnce(SenderBuilder) -> SenderBuilder,
) -> (Reader, tcpmon_tests::traffic::Sender) {
    let reader = reader(Traffic::reader(lab.receiver()).comm(name).until_exit()).spawn();
    let sender = sender(Traffic::sender(lab.sender()).comm("sender").to(reader.address())).spawn();
    (reader, sender)
}

/// The rules of `dashboards/`, sped up for this Prometheus.
fn rule_file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    rules::rescaled(&text)
}
