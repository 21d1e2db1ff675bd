//! `cargo xtask build`: builds the daemon, which has its eBPF object embedded.

use std::{env, ffi::OsStr, path::PathBuf, process::Command};

use anyhow::{Error, Result};

use tcpmon_build::Toolkit;

use crate::{arch::Arch, process, process::step, workspace};

/// What cargo builds for the daemon and all other subcommands.
const DAEMON: [&str; 4] = ["--package", "tcpmon-daemon", "--bin", "tcpmon"];

/// Builds the tcpmon binary, then prints the eBPF object's path and SHA-256.
pub fn run(release: bool) -> Result<()> {
    if release {
        self::release()?;
    } else {
        process::run(Arch::default().cargo("build").args(DAEMON))?;
    }
    let object = toolkit()?.object();
    eprintln!("SHA-256 of the eBPF object:");
    process::run(Command::new("sha256sum").arg(object))
}

/// Builds the binary that is run from the checkout, the same that plain `cargo build --release` builds, and returns its
/// path. `tcpmon-daemon/build.rs` compiles the eBPF object and embeds it.
pub fn release() -> Result<PathBuf> {
    Ok(build_release(&["tcpmon-daemon"], &["tcpmon"])?.join("tcpmon"))
}

/// Builds programs of the tests as well, with the libraries of the binary that is run from the checkout; returns their
/// folder.
pub fn release_with(programs: &[&str]) -> Result<PathBuf> {
    build_release(&["tcpmon-daemon", "tcpmon-tests"], &[&["tcpmon"], programs].concat())
}

fn build_release(packages: &[&str], programs: &[&str]) -> Result<PathBuf> {
    let packages: Vec<_> = packages.iter().flat_map(|package| ["--package", package]).collect();
    let programs = programs.iter().flat_map(|program| ["--bin", program]);
    step("download of the libraries", || {
        // `cargo build` would write a line for each of two hundred.
        let tree = ["tree", "--quiet", "--edges", "normal,build"];
        process::output(workspace::cargo().args(tree).args(&packages))
    })?;
    step("build", || process::run(workspace::cargo().args(["build", "--release"]).args(&packages).args(programs)))?;
    Ok(workspace::target().join("release"))
}

/// Builds the binary that is tested, measured and packed, and returns its path. It has the same bytes wherever the
/// checkout is.
pub fn dist(arch: Arch) -> Result<PathBuf> {
    let flags = toolkit()?.remap_paths().join(OsStr::new("\x1f"));
    let mut cargo = arch.cargo("build");
    cargo.args(["--profile", "dist", "--features", "full"]).args(DAEMON).env("CARGO_ENCODED_RUSTFLAGS", flags);
    process::run(&mut cargo)?;
    Ok(arch.dist_binary())
}

/// The tools for the bpf target; an error names what is missing.
pub fn toolkit() -> Result<Toolkit> {
    Toolkit::find(&workspace::root()).map_err(Error::msg)
}

/// The host's architecture, by the name that the eBPF programs are compiled with.
pub fn host_arch() -> &'static str {
    env::consts::ARCH
}
