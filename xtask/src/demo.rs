//! `cargo xtask demo`: real traffic beside a running daemon, and what tcpmon saw of it.

use anyhow::Result;

use crate::{build, process, setup, workspace};

/// Builds tcpmon and the traffic, and runs the demo.
pub fn run() -> Result<()> {
    setup::run()?;
    build::binary(true)?;
    process::run(workspace::cargo().args(["build", "--quiet", "--package", "tcpmon-tests", "--bin", "traffic"]))?;
    process::run(
        workspace::cargo()
            .args(["run", "--quiet", "--package", "tcpmon-tests", "--bin", "demo"])
            .env("TCPMON_BIN", workspace::release_binary()),
    )
}
