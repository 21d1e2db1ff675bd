//! `cargo xtask demo`: runs real traffic next to a daemon, and shows what tcpmon saw of it.

use std::process::Command;

use anyhow::Result;

use crate::{build, process, process::step, setup};

/// Builds tcpmon and the traffic generator, and runs the demo.
pub fn run() -> Result<()> {
    step("setup", setup::run)?;
    let programs = build::release_with(&["demo", "traffic"])?;
    process::run(Command::new(programs.join("demo")).env("TCPMON_BIN", programs.join("tcpmon")))
}
