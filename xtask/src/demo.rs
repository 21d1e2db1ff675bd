//! `cargo xtask demo`: runs real traffic next to a daemon, and shows what tcpmon saw of it.

use anyhow::Result;

use crate::{build, process, setup, workspace};

/// Builds tcpmon and the traffic generator, and runs the demo.
pub fn run() -> Result<()> {
    setup::run()?;
    let tcpmon = build::release()?;
    process::run(workspace::cargo().args(["build", "--quiet", "--package", "tcpmon-tests", "--bin", "traffic"]))?;
    process::run(
        workspace::cargo()
            .args(["run", "--quiet", "--package", "tcpmon-tests", "--bin", "demo"])
            .env("TCPMON_BIN", tcpmon),
    )
}
