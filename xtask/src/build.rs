//! `cargo xtask build`: builds the daemon, which has its eBPF object embedded.

use std::{env, ffi::OsStr, path::PathBuf, process::Command};

use anyhow::{Error, Result};
use tcpmon_build::Toolkit;

use crate::{arch::Arch, process, process::step, workspace};

/// What cargo builds for the daemon and all other subcommands.
const DAEMON: [&str; 4] = ["--package", "tcpmon-daemon", "--bin", "tcpmon"];

/// Cargo's arguments for a build that lacks nothing.
const ALL_FEATURES: [&str; 2] = ["--features", "full"];

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
    Ok(build_release(&["tcpmon-daemon"], &["tcpmon"], &[])?.join("tcpmon"))
}

/// Builds the same binary with all features, for commands that need them.
pub fn release_with_all_features() -> Result<PathBuf> {
    Ok(build_release(&["tcpmon-daemon"], &["tcpmon"], &ALL_FEATURES)?.join("tcpmon"))
}

/// Builds programs of the tests as well, with the libraries of the binary that is run from the checkout; returns their
/// folder.
pub fn release_with(programs: &[&str]) -> Result<PathBuf> {
    build_release(&["tcpmon-daemon", "tcpmon-tests"], &[&["tcpmon"], programs].concat(), &[])
}

/// Downloads the libraries that `cargo tree` shows with these arguments, so that no build writes a line for each of two
/// hundred.
pub fn download(of: &[&str]) -> Result<()> {
    let mut tree = workspace::cargo();
    step("download of the libraries", || process::output(tree.args(["tree", "--quiet"]).args(of)).map(drop))
}

fn build_release(packages: &[&str], programs: &[&str], features: &[&str]) -> Result<PathBuf> {
    let selected = selected(packages);
    download(&[&["--edges", "normal,build"], &selected[..]].concat())?;
    let mut cargo = workspace::cargo();
    cargo.args(release_of(packages, programs)).args(features);
    step("build", || process::run(&mut cargo))?;
    Ok(workspace::target().join("release"))
}

fn selected<'n>(packages: &[&'n str]) -> Vec<&'n str> {
    packages.iter().flat_map(|package| ["--package", package]).collect()
}

/// Cargo's arguments for a release build of these programs.
fn release_of<'n>(packages: &[&'n str], programs: &[&'n str]) -> Vec<&'n str> {
    let programs = programs.iter().flat_map(|program| ["--bin", program]);
    ["build", "--release"].into_iter().chain(selected(packages)).chain(programs).collect()
}

/// Builds the binary that is measured and packed, and returns its path. It has the same bytes wherever the
/// checkout is.
pub fn dist(arch: Arch) -> Result<PathBuf> {
    let flags = toolkit()?.remap_paths().join(OsStr::new("\x1f"));
    let mut cargo = arch.cargo("build");
    cargo.args(["--profile", "dist"]).args(ALL_FEATURES).args(DAEMON).env("CARGO_ENCODED_RUSTFLAGS", flags);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// Everything that cargo would compile for these arguments, with its features and profile. Cargo compiles nothing
    /// here, and needs the variable to tell it.
    fn units(arguments: &[&str]) -> BTreeSet<String> {
        let mut cargo = workspace::cargo();
        cargo.args(arguments).args(["--unit-graph", "-Z", "unstable-options"]).env("RUSTC_BOOTSTRAP", "1");
        let graph = process::output(&mut cargo).expect("a graph");
        let mut graph: Value = serde_json::from_str(&graph).expect("JSON");
        let units = graph["units"].as_array_mut().expect("a list");
        let without_numbers = |unit: &mut Value| {
            // These are places in the list.
            unit.as_object_mut().expect("a unit").remove("dependencies");
            unit.to_string()
        };
        units.iter_mut().map(without_numbers).collect()
    }

    #[test]
    fn plain_cargo_compiles_what_run_has_compiled_and_demo_only_adds_to_it() {
        let plain = units(&["build", "--release", "-p", "tcpmon-daemon"]);
        let run = units(&release_of(&["tcpmon-daemon"], &["tcpmon"]));
        assert!(plain.iter().any(|unit| unit.contains("tcpmon-daemon")), "{plain:?}");
        assert_eq!(plain.symmetric_difference(&run).collect::<Vec<_>>(), Vec::<&String>::new());
        let plain_full = units(&[&["build", "--release", "-p", "tcpmon-daemon"], &ALL_FEATURES[..]].concat());
        let full = units(&[&release_of(&["tcpmon-daemon"], &["tcpmon"]), &ALL_FEATURES[..]].concat());
        assert!(plain_full.len() > plain.len());
        assert_eq!(plain_full.symmetric_difference(&full).collect::<Vec<_>>(), Vec::<&String>::new());
        for programs in [["demo", "traffic"], ["pictures", "traffic"]] {
            let with = units(&release_of(&["tcpmon-daemon", "tcpmon-tests"], &[&["tcpmon"], &programs[..]].concat()));
            assert_eq!(plain.difference(&with).collect::<Vec<_>>(), Vec::<&String>::new(), "{programs:?}");
        }
    }
}
