//! `cargo xtask run`: runs tcpmon from this checkout.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{build, setup, workspace};

/// Builds the release binary and then execs it, so that signals and the exit status are tcpmon's own.
pub fn run(arguments: &[OsString]) -> Result<()> {
    setup::run()?;
    build::binary(true)?;
    let tcpmon = workspace::release_binary();
    let error = Command::new(&tcpmon).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", tcpmon.display()))
}
