//! Kernels: tcpmon runs on this one, or reports in one sentence why it does not.

use tcpmon_tests::{Daemon, report};

/// Set to `refused` if tcpmon does not support this kernel.
const EXPECTED: &str = "TCPMON_KERNEL";

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
