//! The Rust compiler in use.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{process, workspace};

/// The Rust toolchain in use.
#[derive(Debug)]
pub struct Toolchain {
    /// The folder with the compiler's own libraries.
    pub sysroot: PathBuf,
    /// The release, such as `1.95.0`.
    pub release: String,
    /// The whole first line of `rustc -vV`: release, commit and date.
    pub description: String,
    /// The major version of the LLVM inside the compiler, such as `22`.
    pub llvm_major: String,
}

impl Toolchain {
    /// Asks `rustc` in the workspace, so that `rust-toolchain.toml` applies.
    pub fn detect() -> Result<Self> {
        let sysroot = process::output(rustc().args(["--print", "sysroot"]))?;
        let version = process::output(rustc().arg("-vV"))?;
        Self::parse(sysroot.into(), &version)
    }

    fn parse(sysroot: PathBuf, version: &str) -> Result<Self> {
        let field = |name: &str| {
            version
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
                .with_context(|| format!("no {name:?} in the output of rustc -vV"))
        };
        let llvm = field("LLVM version:")?;
        Ok(Self {
            sysroot,
            release: field("release:")?.to_owned(),
            description: version.lines().next().unwrap_or_default().to_owned(),
            llvm_major: llvm.split_once('.').map_or(llvm, |(major, _)| major).to_owned(),
        })
    }
}

fn rustc() -> Command {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(workspace::root());
    rustc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_and_llvm_major_are_read_from_the_verbose_version() -> Result<()> {
        let text = "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\nrelease: 1.95.0\nLLVM version: 22.1.2\n";
        let toolchain = Toolchain::parse("/sysroot".into(), text)?;
        assert_eq!(toolchain.release, "1.95.0");
        assert_eq!(toolchain.llvm_major, "22");
        assert_eq!(toolchain.description, "rustc 1.95.0 (59807616e 2026-04-14)");
        Ok(())
    }

    #[test]
    fn a_compiler_without_llvm_is_an_error() {
        let found = Toolchain::parse("/sysroot".into(), "rustc\nrelease: 1.95.0\n");
        assert!(found.is_err_and(|error| error.to_string().contains("LLVM version")));
    }
}
