//! What the claims share.
#![allow(dead_code, reason = "each claim uses a part of it")]

use std::time::Duration;

use tcpmon_tests::traffic::{Reader, SenderBuilder};
use tcpmon_tests::truth::{self, Socket};
use tcpmon_tests::{Daemon, Lab, Page, Traffic, eventually, is_emulated, report};

/// Time for something that takes milliseconds to show.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A sender towards a reader.
pub fn sender(lab: &Lab, reader: &Reader) -> SenderBuilder {
    Traffic::sender(lab.sender()).to(reader.address())
}

/// Whether this probe is attached; says so where the kernel does not support it. Nothing else may keep it off.
pub fn is_attached(daemon: &Daemon, probe: &str) -> bool {
    let status = daemon.get("/status", "").body;
    let status: serde_json::Value = serde_json::from_slice(&status).expect("the status is JSON");
    let probes = status["probes"].as_array().expect("the status has probes");
    let found = probes.iter().find(|found| found["name"] == probe).unwrap_or_else(|| panic!("no {probe} in {status}"));
    match (found["verdict"].as_str(), found["reason"].as_str()) {
        (Some("attached"), _) => return true,
        (Some("unsupported"), Some(reason)) => report::not_supported(reason),
        _ => panic!("{found}"),
    }
    false
}

/// Whether reader and sender, or reader and interrupts, can run at one time; says so if not.
pub fn has_two_cpus() -> bool {
    let enough = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2);
    if !enough {
        report::not_supported("it needs two CPUs");
    }
    enough
}

/// All that was lost. On an emulated CPU a program runs long enough to be interrupted by its own tracepoint, which
/// costs an entry in a histogram and is counted: that is left out there.
pub fn lost(page: &Page) -> f64 {
    let samples = page.samples("tcpmon_lost_total").into_iter();
    let counts = samples.filter(|sample| !(is_emulated() && sample.labels["what"].starts_with("recursion_")));
    counts.map(|sample| sample.value).sum()
}

/// Waits until the reader sleeps. One that has obeyed an order answers first, and rests then.
pub fn sleeps(reader: &Reader) {
    eventually(DEADLINE, "the reader sleeps", || truth::is_asleep(reader.pid()).then_some(()));
}

/// Labels of the group of a reader by its name and port.
pub fn group(comm: &str, port: u16) -> [(&'static str, &'static str); 2] {
    // Leaked: a few bytes a test, for labels that can be written in place.
    let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    [("process", leak(comm.to_owned())), ("service", leak(format!("local:{port}")))]
}

/// The receiver's side of the reader's only connection, as inet_diag has it.
pub fn connection(lab: &Lab, reader: &Reader) -> Result<Socket, String> {
    let mut sockets = truth::sockets(lab.receiver());
    sockets.retain(|socket| socket.is_connection_to(reader.port()));
    if sockets.len() == 1 { Ok(sockets.remove(0)) } else { Err(format!("{sockets:?}")) }
}

/// Whether exactly `bytes` wait in the reader's only connection.
pub fn queued(lab: &Lab, reader: &Reader, bytes: u32) -> Result<Socket, String> {
    let socket = connection(lab, reader)?;
    if socket.recv_q == bytes { Ok(socket) } else { Err(format!("{socket:?}")) }
}
