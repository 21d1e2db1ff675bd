//! `cargo xtask test`: everything that must hold before a change is done. Nothing is skipped: what cannot run is a failure.

use anyhow::Result;

use crate::{build, check, process, process::step, setup, workspace};

/// Brings the tools, checks, then runs every test; the integration tests drive the release binary.
pub fn run() -> Result<()> {
    step("setup", setup::run)?;
    step("test packages", setup::test_packages)?;
    check::run()?;
    step("unit tests", || {
        process::run(workspace::cargo().args(["test", "--workspace"]).args([
            "--exclude",
            "tcpmon-ebpf",
            "--exclude",
            "tcpmon-tests",
        ]))
    })?;
    step("release build", || build::run(true))?;
    // One at a time: they measure, and there may be two cores.
    step("integration tests", || {
        process::run(
            workspace::cargo()
                .args(["test", "--package", "tcpmon-tests"])
                .args(["--", "--test-threads=1"])
                .env("TCPMON_BIN", workspace::release_binary()),
        )
    })
}
