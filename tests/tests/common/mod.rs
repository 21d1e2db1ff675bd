//! Helpers that the tests share.
#![allow(dead_code, reason = "each claim uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::Duration;

use tcpmon_tests::traffic::{Reader, SenderBuilder};
use tcpmon_tests::truth::{self, Socket};
use tcpmon_tests::{Daemon, Lab, Page, Traffic, emulated, eventually, report, tcpmon_binary, within};

/// Time limit for something that normally shows within milliseconds.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A tcpmon command.
pub fn tcpmon(arguments: &[&str]) -> Command {
    let mut command = Command::new(tcpmon_binary());
    command.args(arguments);
    command
}

/// A command that runs another one in a time namespace in which `CLOCK_MONOTONIC` is a day ahead, and ends it if it is
/// killed itself.
pub const A_DAY_AHEAD: [&str; 6] = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", "86400"];

/// tcpmon in such a namespace; its arguments are still to be added.
pub fn a_day_ahead() -> Command {
    let mut command = Command::new(A_DAY_AHEAD[0]);
    command.args(&A_DAY_AHEAD[1..]).arg(tcpmon_binary());
    command
}

/// Runs tcpmon to its end and returns its exit code and stderr.
pub fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().expect("tcpmon can be started");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A sender that connects to this reader.
pub fn sender(lab: &Lab, reader: &Reader) -> SenderBuilder {
    Traffic::sender(lab.sender()).to(reader.address())
}

/// Whether this probe is attached; reports it if the kernel does not support it. No other reason is accepted.
pub fn is_attached(daemon: &Daemon, probe: &str) -> bool {
    let status = daemon.status();
    let probes = status["probes"].as_array().expect("the status has probes");
    let found = probes.iter().find(|found| found["name"] == probe).unwrap_or_else(|| panic!("no {probe} in {status}"));
    match (found["verdict"].as_str(), found["reason"].as_str()) {
        (Some("attached"), _) => return true,
        (Some("unsupported"), Some(reason)) => report::not_supported(reason),
        _ => panic!("{found}"),
    }
    false
}

/// Whether reader and sender, or reader and interrupts, can run at the same time; reports it if not.
pub fn has_two_cpus() -> bool {
    let enough = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2);
    if !enough {
        report::not_supported("it needs two CPUs");
    }
    enough
}

/// For each source and probe in `/status`, by name: whether it is on, and the reason.
pub fn sources_and_probes(daemon: &Daemon) -> BTreeMap<String, (bool, String)> {
    // There is one source, `all`, if the thread that reads them takes longer than 2 s.
    let status = eventually(DEADLINE, "a status with the sources", || {
        let status = daemon.status();
        let has_sources = status["sources"].as_array()?.iter().all(|source| source["name"] != "all");
        has_sources.then_some(status)
    });
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let list = |name: &str| status[name].as_array().expect(name).iter();
    let sources = list("sources").map(|source| {
        let available = source["available"].as_bool().expect("yes or no");
        (text(&source["name"]), (available, text(&source["reason"])))
    });
    let probes =
        list("probes").map(|probe| (text(&probe["name"]), (probe["verdict"] == "attached", text(&probe["reason"]))));
    sources.chain(probes).collect()
}

/// The sum of everything that was lost, without what is usual on this machine.
pub fn lost(page: &Page) -> f64 {
    let is_usual = |what: &str| {
        emulated::recursion_is_usual() && what.starts_with("recursion_")
            || emulated::clocks_may_stand_still() && what == "impossible_reader"
    };
    let samples = page.samples("tcpmon_lost_total").into_iter();
    samples.filter(|sample| !is_usual(&sample.labels["what"])).map(|sample| sample.value).sum()
}

/// Ids of all programs and of all maps in the kernel. What is removed while this looks is left out.
pub fn loaded() -> [BTreeSet<u32>; 2] {
    [
        aya::programs::loaded_programs().flatten().map(|program| program.id()).collect(),
        aya::maps::loaded_maps().flatten().map(|map| map.id()).collect(),
    ]
}

/// Waits until the reader sleeps. A reader answers an order first and goes to sleep after that.
pub fn sleeps(reader: &Reader) {
    eventually(DEADLINE, "the reader sleeps", || truth::is_asleep(reader.pid()).then_some(()));
}

/// Does `round` until it leaves no more entries in these maps than there were before it, at most three times; returns
/// how often it did. Other processes of the host may begin to read during a round, but not during each of three.
#[track_caller]
pub fn leaves_no_entries(daemon: &Daemon, maps: &[&str], mut round: impl FnMut()) -> u64 {
    let entries = || {
        let page = daemon.scrape();
        let of_map = |map: &&str| page.value("tcpmon_map_entries", &[("map", map)]).expect("the map is there");
        maps.iter().map(of_map).collect::<Vec<_>>()
    };
    let mut seen = Vec::new();
    for rounds in 1..=3 {
        let before = entries();
        round();
        let left = within(DEADLINE, || {
            let now = entries();
            let came_back = now.iter().zip(&before).all(|(now, before)| now <= before);
            if came_back { Ok(()) } else { Err(format!("{now:?} entries instead of {before:?}")) }
        });
        match left {
            Ok(()) => return rounds,
            Err(left) => seen.push(left),
        }
    }
    panic!("{maps:?}: {}", seen.join("; "))
}

/// Labels of a reader's group, from its name and port.
pub fn group(comm: &str, port: u16) -> [(&'static str, &'static str); 2] {
    // Leaks a few bytes per test, so that labels can be written inline.
    let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    [("process", leak(comm.to_owned())), ("service", leak(format!("local:{port}")))]
}

/// The receiver's side of the reader's only connection, by inet_diag.
pub fn connection(lab: &Lab, reader: &Reader) -> Result<Socket, String> {
    let mut sockets = truth::sockets(lab.receiver());
    sockets.retain(|socket| socket.is_connection_to(reader.port()));
    if sockets.len() == 1 { Ok(sockets.remove(0)) } else { Err(format!("{sockets:?}")) }
}

/// The reader's only connection, if exactly `bytes` wait in it.
pub fn queued(lab: &Lab, reader: &Reader, bytes: u32) -> Result<Socket, String> {
    let socket = connection(lab, reader)?;
    if socket.recv_q == bytes { Ok(socket) } else { Err(format!("{socket:?}")) }
}
