//! Where things are: the workspace, its tools, and the cargo that runs xtask.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

/// The root folder of the workspace.
///
/// The value that `cargo run` sets at run time takes precedence: two checkouts may share one target folder, and so one
/// xtask binary.
pub fn root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().expect("xtask is a folder of the workspace").to_owned()
}

/// Where cargo builds for the host.
pub fn target() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target"));
    root().join(target)
}

/// The tcpmon binary of the release build.
pub fn release_binary() -> PathBuf {
    target().join("release/tcpmon")
}

/// Where `cargo xtask setup` puts its tools: in the checkout, whatever `CARGO_TARGET_DIR` is, so that every build of
/// this checkout finds the same linker.
pub fn tools() -> PathBuf {
    root().join("target/tools")
}

/// The same cargo as the one that runs xtask, in the root folder of the workspace. It uses exactly the versions in
/// `Cargo.lock`, and fails if these do not fit the manifests.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(root()).arg("--locked");
    cargo
}
