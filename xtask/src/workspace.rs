//! Where things are: the workspace, its tools, and the cargo that runs xtask.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::process;

/// The root folder of the workspace.
///
/// The value that `cargo run` sets at run time takes precedence: two checkouts may share one target folder, and so one
/// xtask binary.
pub fn root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().expect("xtask is a folder of the workspace").to_owned()
}

/// The text of a file, by its path from the root folder.
pub fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {}", path.display()))
}

/// What git prints with these arguments, in the root folder.
pub fn git(arguments: &[&str]) -> Result<String> {
    process::output(Command::new("git").current_dir(root()).args(arguments))
}

/// Where cargo builds for the host.
pub fn target() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target"));
    root().join(target)
}

/// Where `cargo xtask setup` puts its tools: in the checkout, whatever `CARGO_TARGET_DIR` is, so that every build of
/// this checkout finds the same linker.
pub fn tools() -> PathBuf {
    root().join("target/tools")
}

/// The same cargo as the one that runs xtask, in the root folder of the workspace. It uses exactly the versions in
/// `Cargo.lock`, and fails if these do not fit the manifests. It does not see what cargo tells xtask of its own
/// package: the build script of `ring` asks for that, so plain cargo would compile it again.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(root()).arg("--locked");
    for (name, _) in env::vars_os() {
        let of_xtask = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(of_xtask) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// What is compiled for the host: all packages but the eBPF programs, which have a target of their own.
///
/// Checks and tests share this selection. Cargo chooses the features of a library for all selected packages
/// together, and compiles most libraries again for another selection.
pub const HOST_PACKAGES: [&str; 3] = ["--workspace", "--exclude", "tcpmon-ebpf"];

/// All files in a folder and below it, except those in `target` and in hidden folders.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let in_folder = || format!("reading {}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(in_folder)? {
        let path = entry.with_context(in_folder)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !path.is_dir() {
            found.push(path);
        } else if name != "target" && !name.starts_with('.') {
            found.extend(files(&path)?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_does_not_see_that_xtask_is_run_by_cargo() {
        let cargo = cargo();
        let removed: Vec<_> = cargo.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        // Cargo has set both for this test.
        assert!(removed.contains(&"CARGO_PKG_NAME".as_ref()) && removed.contains(&"CARGO_MANIFEST_DIR".as_ref()));
    }
}
