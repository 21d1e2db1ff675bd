//! cargo-deny, which checks the dependencies by the rules of `deny.toml`.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{process, workspace};

const VERSION: &str = "0.20.2";

/// Makes sure that `target/tools/bin/cargo-deny` has the pinned version, and returns its path.
pub fn ensure() -> Result<PathBuf> {
    let tools = workspace::tools();
    let path = tools.join("bin/cargo-deny");
    let installed = process::output(Command::new(&path).arg("--version"));
    if installed.is_ok_and(|version| version.trim_end() == format!("cargo-deny {VERSION}")) {
        return Ok(path);
    }
    eprintln!("setup: cargo-deny {VERSION}: building it (takes a minute)");
    process::run(
        workspace::cargo()
            .args(["install", "cargo-deny", "--version", VERSION, "--quiet", "--force", "--root"])
            .arg(tools)
            // Compiling takes longer than checking.
            .envs([("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")])
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env_remove("CARGO_TARGET_DIR"),
    )
    .context("cannot build cargo-deny: it needs access to the crates registry")?;
    Ok(path)
}
