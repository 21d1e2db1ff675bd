//! `cargo xtask check`: checks format, lints and documentation, without running anything.

use anyhow::Result;

use crate::{architecture, build, process, process::step, text, workspace};

/// The eBPF package compiles only for its own target.
const HOST_PACKAGES: [&str; 3] = ["--workspace", "--exclude", "tcpmon-ebpf"];

/// Checks everything that needs no kernel; any warning is an error.
pub fn run() -> Result<()> {
    step("format", || {
        process::run(workspace::cargo().args(["fmt", "--all", "--check"]))?;
        text::check()?;
        architecture::check()
    })?;
    step("clippy", || {
        process::run(workspace::cargo().arg("clippy").args(HOST_PACKAGES).args([
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    step("clippy of the eBPF programs", || {
        process::run(build::toolkit()?.cargo("clippy", build::host_arch()).args(["--", "-D", "warnings"]))
    })?;
    step("rustdoc", || {
        process::run(
            workspace::cargo()
                .arg("doc")
                .args(HOST_PACKAGES)
                .args(["--no-deps", "--document-private-items"])
                .env("RUSTDOCFLAGS", "-D warnings"),
        )
    })
}
