//! `cargo xtask run`: runs tcpmon from this checkout.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{build, setup};

/// Builds the release binary and then execs it, so that signals and the exit status are tcpmon's own.
pub fn run(arguments: &[OsString]) -> Result<()> {
    setup::run()?;
    let tcpmon = build::release()?;
    let error = Command::new(&tcpmon).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", tcpmon.display()))
}
