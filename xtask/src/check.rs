//! `cargo xtask check`: checks format, lints and documentation, without running anything.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{
    architecture, build, docs, figures, process,
    process::step,
    release, setup, text,
    workspace::{self, HOST_PACKAGES},
};

/// The release of Rust whose lints and format the checks are written for: `rust-version` in `Cargo.toml`.
const RUST: &str = env!("CARGO_PKG_RUST_VERSION");

/// Checks everything that needs no kernel; any warning is an error.
pub fn run() -> Result<()> {
    text_only()?;
    compiled()?;
    dependencies()
}

/// The checks that compile nothing.
pub fn text_only() -> Result<()> {
    let release = setup::release()?;
    ensure!(
        release.strip_prefix(RUST).is_some_and(|patch| patch.starts_with('.')),
        "the checks are pinned to Rust {RUST} and rustc here is {release}, whose lints differ: \
         run `rustup toolchain install {RUST}` and `cargo +{RUST} xtask check`"
    );
    step("format", || {
        process::run(workspace::cargo().args(["fmt", "--all", "--check"]))?;
        text::check()
    })?;
    step("architecture", architecture::check)?;
    step("figures", figures::check)?;
    step("versions", release::versions)?;
    step("links", docs::check)
}

/// The checks that compile the workspace, for minutes.
pub fn compiled() -> Result<()> {
    step("clippy", || {
        process::run(workspace::cargo().arg("clippy").args(HOST_PACKAGES).args([
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    step("clippy of tcpmon without its features", || {
        // Without the workspace's other crates, which enable all features.
        let parts = ["--package", "tcpmon-daemon", "--package", "tcpmon-trace", "--lib", "--bins"];
        process::run(workspace::cargo().arg("clippy").args(parts).args(["--", "-D", "warnings"]))
    })?;
    step("clippy of the eBPF programs", || {
        process::run(build::toolkit()?.cargo("clippy", build::host_arch()).args(["--", "-D", "warnings"]))
    })?;
    step("rustdoc", || {
        process::run(
            workspace::cargo()
                .arg("doc")
                .args(HOST_PACKAGES)
                .args(["--no-deps", "--document-private-items"])
                .env("RUSTDOCFLAGS", "-D warnings"),
        )
    })
}

/// The licences and sources of the libraries, and versions that must not be there twice.
pub fn dependencies() -> Result<()> {
    step("dependencies", || {
        let mut deny = Command::new(setup::CARGO_DENY.ensure()?);
        let rules = ["--workspace", "--locked", "check", "bans", "licenses", "sources"];
        process::run(deny.current_dir(workspace::root()).args(rules))
    })
}
