//! The programs for `cargo xtask bench --peers`: the tools most similar to tcpmon that run on every kernel here, and
//! real servers.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use super::packages;
use crate::{process, workspace};

const REZOLUS: &str = "5.4.0";

/// Installs bpftrace, redis and nginx, and makes sure that `target/tools/rezolus/bin/rezolus`, whose path it returns,
/// has the pinned version.
pub fn ensure() -> Result<PathBuf> {
    packages::peer_packages()?;
    let root = workspace::tools().join("rezolus");
    let program = root.join("bin/rezolus");
    let installed = process::output(Command::new(&program).arg("--version"));
    if installed.is_ok_and(|version| version.trim_end() == format!("rezolus {REZOLUS}")) {
        return Ok(program);
    }
    packages::rezolus_packages()?;
    eprintln!("setup: Rezolus {REZOLUS}: building it (takes 10 minutes)");
    process::run(
        workspace::cargo()
            .args(["install", "rezolus", "--version", REZOLUS, "--quiet", "--force", "--root"])
            .arg(root)
            .env_remove("CARGO_TARGET_DIR"),
    )
    .context("cannot build Rezolus: it needs access to the crates registry")?;
    Ok(program)
}
