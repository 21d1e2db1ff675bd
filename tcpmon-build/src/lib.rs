//! How the eBPF object is compiled: the only list of flags, for `tcpmon-daemon/build.rs` and
//! `cargo xtask check`. It depends only on std, so that a build script compiles it quickly.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The package with the eBPF programs.
pub const PACKAGE: &str = "tcpmon-ebpf";
const TARGET: &str = "bpfel-unknown-none";
const PROFILE: &str = "ebpf";

/// What is needed to compile for the bpf target, in addition to a stable toolchain.
#[derive(Debug)]
pub struct Toolkit {
    workspace: PathBuf,
    sysroot: PathBuf,
    /// The linker that is used.
    pub linker: PathBuf,
}

impl Toolkit {
    /// Looks for rust-src and bpf-linker; an error names what is missing and the remedy.
    pub fn find(workspace: &Path) -> Result<Self, String> {
        let workspace =
            fs::canonicalize(workspace).map_err(|error| format!("cannot find {}: {error}", workspace.display()))?;
        let sysroot = sysroot(&workspace)?;
        // Cargo needs the lock file, too.
        let library = sysroot.join("lib/rustlib/src/rust/library");
        if !library.join("Cargo.lock").is_file() || !library.join("core/src/lib.rs").is_file() {
            return Err(format!("rust-src is not in {}: run `cargo xtask setup`", sysroot.display()));
        }
        let linker =
            find_linker(&workspace).ok_or("bpf-linker is not in target/tools, nor on PATH: run `cargo xtask setup`")?;
        Ok(Self { workspace, sysroot, linker })
    }

    /// `cargo <subcommand>` for the eBPF package, such as `build` or `clippy`; `arch` is the architecture of the host
    /// that will run it.
    pub fn cargo(&self, subcommand: &str, arch: &str) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Environment variables that an outer cargo or clippy set for its own build must not affect this one.
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(belongs_to_outer_build) {
                cargo.env_remove(name);
            }
        }
        cargo
            .current_dir(&self.workspace)
            .args(["--locked", subcommand, "--package", PACKAGE, "--profile", PROFILE])
            .args(["--target", TARGET, "-Z", "build-std=core"])
            // The outer cargo holds a lock on its own target folder.
            .arg("--target-dir")
            .arg(self.target_dir())
            // Makes a stable compiler accept `-Z` and compile `core`.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &self.linker)
            .env("CARGO_ENCODED_RUSTFLAGS", self.rustflags(arch));
        cargo
    }

    /// Where cargo builds: one folder for all profiles of the daemon, so that all embed the same object.
    pub fn target_dir(&self) -> PathBuf {
        self.workspace.join("target/ebpf")
    }

    /// The object that `build` produces.
    pub fn object(&self) -> PathBuf {
        self.target_dir().join(TARGET).join(PROFILE).join(PACKAGE)
    }

    /// Joined as `CARGO_ENCODED_RUSTFLAGS` requires, so that paths may contain spaces.
    fn rustflags(&self, arch: &str) -> OsString {
        let mut flags = OsString::from("-Cdebuginfo=2\x1f-Clink-arg=--btf");
        // Selects the registers and types of aya-ebpf's bindings.
        flags.push(format!("\x1f--cfg=bpf_target_arch=\"{arch}\""));
        // With `.`, the linker still finds our own source lines, which it writes into BTF for the verifier's messages.
        for flag in self.remap_paths() {
            flags.push("\x1f");
            flags.push(flag);
        }
        flags
    }

    /// rustc flags that make every checkout on every host produce the same bytes.
    pub fn remap_paths(&self) -> Vec<OsString> {
        let flag = |(from, to): (PathBuf, &str)| {
            let mut flag = OsString::from("--remap-path-prefix=");
            flag.push(from);
            flag.push("=");
            flag.push(to);
            flag
        };
        self.private_paths().into_iter().map(flag).collect()
    }

    /// Paths of this machine that the compiler sees, and what it writes instead of each. The last matching prefix
    /// applies.
    pub fn private_paths(&self) -> Vec<(PathBuf, &'static str)> {
        let cargo_home =
            env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| env::home_dir().map(|home| home.join(".cargo")));
        let mut paths = vec![(self.workspace.clone(), "."), (self.sysroot.clone(), "/rust")];
        if let Some(home) = cargo_home {
            // Each folder in `src` is named after the registry that this host uses.
            let registries = fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
            let mut registries: Vec<PathBuf> = registries.map(|entry| entry.path()).collect();
            registries.sort();
            paths.push((home, "/cargo"));
            paths.extend(registries.into_iter().map(|registry| (registry, "/cargo")));
        }
        paths
    }
}

/// Variables that describe the host (home, network, registries, terminal, job slots) are kept; those of one build are
/// removed.
fn belongs_to_outer_build(name: &str) -> bool {
    const MACHINE: [&str; 7] =
        ["CARGO_HOME", "CARGO_HTTP_", "CARGO_MAKEFLAGS", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_TERM_"];
    let of_cargo = name.starts_with("CARGO_") && !MACHINE.iter().any(|m| name.starts_with(m));
    let of_rustc = name.starts_with("RUSTC") || name.starts_with("RUSTDOC") || name == "RUSTFLAGS";
    of_cargo || of_rustc || name == "CLIPPY_ARGS"
}

fn sysroot(workspace: &Path) -> Result<PathBuf, String> {
    let output = Command::new("rustc")
        .current_dir(workspace)
        .args(["--print", "sysroot"])
        .output()
        .map_err(|error| format!("cannot run rustc: {error}"))?;
    let path = String::from_utf8(output.stdout).map_err(|_| "the path of rustc's sysroot is not UTF-8".to_owned())?;
    Ok(PathBuf::from(path.trim_end()))
}

/// The linker that `cargo xtask setup` built for this compiler, otherwise any that is installed.
fn find_linker(workspace: &Path) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    [workspace.join("target/tools/bin")]
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|folder| folder.join("bpf-linker"))
        .find(|linker| linker.is_file())
}

#[cfg(test)]
mod tests {
    use super::belongs_to_outer_build;

    #[test]
    fn settings_of_the_outer_build_do_not_leak_but_those_of_the_machine_stay() {
        for leaks in [
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_BUILD_TARGET",
            "CARGO_PROFILE_RELEASE_LTO",
            "CARGO_TARGET_DIR",
            "RUSTC_WORKSPACE_WRAPPER",
            "RUSTFLAGS",
        ] {
            assert!(belongs_to_outer_build(leaks), "{leaks}");
        }
        for stays in ["CARGO_HOME", "CARGO_NET_OFFLINE", "RUSTUP_TOOLCHAIN", "PATH"] {
            assert!(!belongs_to_outer_build(stays), "{stays}");
        }
    }
}
