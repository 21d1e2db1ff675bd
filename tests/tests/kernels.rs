//! Kernels: tcpmon runs on this one, or says in one sentence why it does not.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use tcpmon_tests::{Daemon, report, tcpmon_binary};

/// Set to `refused` where the kernel is one that tcpmon does not support.
const EXPECTED: &str = "TCPMON_KERNEL";

#[test]
fn this_kernel_is_supported_or_refused_in_one_sentence() {
    let refused = std::env::var(EXPECTED).is_ok_and(|expected| expected == "refused");
    match Daemon::try_start(&[]) {
        Ok(daemon) => {
            assert!(!refused, "tcpmon runs although this kernel is not supported");
            // What the host says of itself is read at a scrape.
            daemon.scrape();
            let status = String::from_utf8(daemon.get("/status", "").body).unwrap();
            report::line("status", &status);
        }
        Err(refusal) => {
            assert!(refused, "{refusal:?}");
            assert_eq!(refusal.status.code(), Some(3), "{refusal:?}");
            assert_eq!(refusal.stderr.trim().lines().count(), 1, "{refusal:?}");
            report::line("refused", refusal.stderr.trim());
        }
    }
}

/// Its map iterator reads through a null pointer when a socket ends at the wrong moment.
#[test]
fn a_kernel_that_reading_its_sockets_may_crash_is_refused_unless_told_otherwise() {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    let may_crash = symbols.lines().any(|line| line.ends_with(" bpf_selem_unlink_nofail"));
    let too_old = std::env::var(EXPECTED).is_ok_and(|expected| expected == "refused");
    let mut command = Command::new(tcpmon_binary());
    command.args(["daemon", "--web.listen-address", "127.0.0.1:0"]).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut daemon = command.spawn().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(daemon.stderr.take().unwrap()).lines().map_while(Result::ok) {
        said.push(line);
        if said.last().is_some_and(|line| line.contains("tcpmon watches and answers")) {
            assert!(!may_crash && !too_old, "{said:?}");
            daemon.kill().unwrap();
            daemon.wait().unwrap();
            return;
        }
    }
    assert!(may_crash || too_old, "{said:?}");
    assert_eq!((daemon.wait().unwrap().code(), said.len()), (Some(3), 1), "one sentence says it: {said:?}");
    assert_eq!(said[0].contains("allow_unsafe_kernel"), may_crash, "{said:?}");
    if may_crash {
        report::line("refused-unless-allowed", &said[0]);
    }
}
