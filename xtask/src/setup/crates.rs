//! Tools that are crates, each built once for this checkout.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{process, workspace};

/// A tool in a pinned version.
#[derive(Debug)]
pub struct Tool {
    name: &'static str,
    version: &'static str,
    features: &'static [&'static str],
}

/// Checks the dependencies by the rules of `deny.toml`.
pub const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", features: &[] };

/// Makes the site of the documentation. Without what watches files and serves pages, it takes half as long to build.
pub const MDBOOK: Tool =
    Tool { name: "mdbook", version: "0.5.4", features: &["--no-default-features", "--features", "search"] };

impl Tool {
    /// Makes sure that `target/tools/bin` has the tool in this version, and returns its path.
    pub fn ensure(&self) -> Result<PathBuf> {
        let Self { name, version, features } = self;
        let tools = workspace::tools();
        let path = tools.join("bin").join(name);
        // `cargo-deny 0.20.2`, `mdbook v0.5.4`.
        let said = process::output(Command::new(&path).arg("--version"));
        if said.is_ok_and(|said| said.rsplit(' ').next().is_some_and(|last| last.trim_start_matches('v') == *version)) {
            return Ok(path);
        }
        eprintln!("setup: {name} {version}: building it (takes a minute)");
        process::run(
            workspace::cargo()
                .args(["install", name, "--version", version, "--quiet", "--force"])
                .args(*features)
                .arg("--root")
                .arg(tools)
                // Compiling takes longer than what it does here.
                .envs([("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")])
                .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
                .env_remove("CARGO_TARGET_DIR"),
        )
        .with_context(|| format!("cannot build {name}: it needs access to the crates registry"))?;
        Ok(path)
    }
}
