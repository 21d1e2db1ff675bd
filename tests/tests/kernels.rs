//! Kernels: tcpmon runs on this one, or reports in one sentence why it does not.

mod common;

use std::fs;
use std::net::{TcpListener, TcpStream};

use common::sender;
use tcpmon_tests::{Daemon, Lab, Traffic, eventually, report, truth};

/// Set to `refused` if tcpmon does not support this kernel.
const EXPECTED: &str = "TCPMON_KERNEL";

/// Kernels from 7.0 on have this function.
const UNSAFE: &str = "bpf_selem_unlink_nofail";

#[test]
fn this_kernel_is_supported_or_refused_in_one_sentence() {
    let refused = std::env::var(EXPECTED).is_ok_and(|expected| expected == "refused");
    match Daemon::try_start(&[]) {
        Ok(daemon) => {
            assert!(!refused, "tcpmon runs although this kernel is not supported");
            // The host's sources are read only at a scrape.
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

/// When the kernel itself removes an entry from the map, it does so in a way that is fatal to a concurrent walk over
/// the map.
#[test]
fn states_of_ended_sockets_are_deleted_before_the_kernel_does_it() {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    if !symbols.lines().any(|line| line.ends_with(&format!(" {UNSAFE}"))) {
        report::not_supported("this kernel can take a state away while somebody walks through the map");
        return;
    }
    let lab = Lab::new();
    let by_kernel = truth::Trace::calls(UNSAFE);
    let calls_from = |caller: &str| by_kernel.lines().iter().filter(|line| **line == format!(" => {caller}")).count();
    let daemon = Daemon::start(&[]);
    let connections = 200;
    let reader = Traffic::reader(lab.receiver()).comm("ended").connections(connections).spawn();
    // Connections that end with a reset or in an orderly way, and one that was never accepted, each with a listening
    // socket that ends.
    sender(&lab, &reader).connections(connections / 2).parallel(8).bytes(100).reset().spawn().wait();
    sender(&lab, &reader).connections(connections / 2).parallel(8).bytes(100).spawn().wait();
    reader.wait();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop((TcpStream::connect(address).unwrap(), listener));
    assert!(TcpStream::connect(address).is_err());
    let expected = connections as f64 * 100.0;
    eventually(common::DEADLINE, "all connections have ended", || {
        let page = daemon.scrape();
        let sum = |family| page.sum(family, &[("process", "ended")]);
        let found = (sum("tcpmon_receive_bytes_total"), sum("tcpmon_sockets"), truth::sockets(lab.receiver()).len());
        if found == (expected, 0.0, 0) { Ok(()) } else { Err(format!("{found:?}")) }
    });
    // Threads have states that the kernel removes in the same way, but nothing walks over those.
    assert_eq!(calls_from("bpf_sk_storage_free"), 0);

    // When tcpmon ends, the kernel removes what is left, and nothing walks over the map any more.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _open = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    drop(daemon);
    eventually(common::DEADLINE, "the kernel has taken away the map", || {
        // The second is left out of the stack where the first one jumps to it (arm64).
        let callers = ["bpf_sk_storage_map_free", "bpf_local_storage_map_free"];
        if callers.iter().all(|caller| calls_from(caller) == 0) {
            Err(format!("{:?}", by_kernel.lines()))
        } else {
            Ok(())
        }
    });
}
