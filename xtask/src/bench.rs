//! `cargo xtask bench`: measures what tcpmon costs on this host; `docs/performance.md` has method and results.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{build, process, setup, workspace};

/// Builds everything in release mode and then execs the benchmark, so that Ctrl-C and the exit status are the
/// benchmark's own.
pub fn run(arguments: &[OsString]) -> Result<()> {
    setup::run()?;
    setup::test_packages()?;
    build::binary(true)?;
    process::run(workspace::cargo().args(["build", "--release", "--package", "tcpmon-tests", "--bins"]))?;
    let bench = workspace::target().join("release/bench");
    let error = Command::new(&bench).args(arguments).env("TCPMON_BIN", workspace::release_binary()).exec();
    Err(error).with_context(|| format!("cannot run {}", bench.display()))
}
