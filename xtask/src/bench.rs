//! Programs of the tests: `cargo xtask bench` measures what tcpmon costs on this host, `cargo xtask lab` repeats the
//! papers' experiments, and `cargo xtask soak` stress tests tcpmon. `docs/performance.md` and `docs/lab.md` have the
//! method and the results.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{arch::Arch, build, process, setup, workspace};

/// Builds the binary that is packed and the tests' programs, then execs one of these programs, so that Ctrl-C and the
/// exit status are its own.
pub fn exec(name: &str, arguments: &[OsString]) -> Result<()> {
    setup::run()?;
    setup::test_packages()?;
    let mut command = program(name)?;
    if arguments.iter().any(|argument| argument == "--peers") {
        command.env("REZOLUS_BIN", setup::peers()?);
    }
    let error = command.args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {name}"))
}

/// Builds the tests' programs, and returns the command that runs this one with the binary that is packed.
fn program(name: &str) -> Result<Command> {
    let packages = ["--package", "tcpmon-bench", "--package", "tcpmon-tests"];
    process::run(workspace::cargo().args(["build", "--release"]).args(packages).arg("--bins"))?;
    let mut command = Command::new(workspace::target().join("release").join(name));
    command.env("TCPMON_BIN", build::dist(Arch::default())?);
    Ok(command)
}
