//! `cargo xtask run`: runs tcpmon from this checkout.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{arch::Arch, build, setup};

/// Builds the release binary and then execs it, so that signals and the exit status are tcpmon's own.
pub fn run(arguments: &[OsString]) -> Result<()> {
    setup::run()?;
    build::release(Arch::default())?;
    let tcpmon = Arch::default().release_binary();
    let error = Command::new(&tcpmon).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", tcpmon.display()))
}
