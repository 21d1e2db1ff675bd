//! `cargo xtask build`: builds the daemon, which has its eBPF object embedded.

use std::{env, ffi::OsStr, path::PathBuf, process::Command};

use anyhow::{Error, Result};

use tcpmon_build::Toolkit;

use crate::{arch::Arch, process, workspace};

/// Builds the tcpmon binary, then prints the eBPF object's path and SHA-256.
pub fn run(release: bool) -> Result<()> {
    binary(release)?;
    let object = toolkit()?.object();
    eprintln!("SHA-256 of the eBPF object:");
    process::run(Command::new("sha256sum").arg(object))
}

/// Builds the tcpmon binary; `tcpmon-daemon/build.rs` compiles the eBPF object and embeds it.
pub fn binary(release: bool) -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--package", "tcpmon-daemon", "--bin", "tcpmon"]);
    if release {
        cargo.arg("--release");
    }
    process::run(&mut cargo)
}

/// Builds the binary that is packed, which has the same bytes wherever the checkout is, and returns its path.
pub fn packed_binary(arch: Arch) -> Result<PathBuf> {
    let flags = toolkit()?.remap_paths().join(OsStr::new("\x1f"));
    process::run(
        arch.cargo("build")
            .args(["--package", "tcpmon-daemon", "--bin", "tcpmon", "--profile", "dist"])
            .env("CARGO_ENCODED_RUSTFLAGS", flags),
    )?;
    Ok(arch.binary("dist"))
}

/// The tools for the bpf target; an error names what is missing.
pub fn toolkit() -> Result<Toolkit> {
    Toolkit::find(&workspace::root()).map_err(Error::msg)
}

/// The host's architecture, by the name that the eBPF programs are compiled with.
pub fn host_arch() -> &'static str {
    env::consts::ARCH
}
