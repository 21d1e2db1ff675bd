//! The cross compiler and the emulator for arm64.

use std::process::Command;

use anyhow::{Context as _, Result};

use super::{packages, toolchain::Toolchain};
use crate::{arch::Arch, process};

/// Installs Debian's cross compiler and QEMU, and Rust's standard library for arm64.
pub fn ensure() -> Result<()> {
    packages::arm64_packages()?;
    let target = Arch::Arm64.target();
    let library = Toolchain::detect()?.sysroot.join("lib/rustlib").join(&target).join("lib");
    if library.is_dir() {
        return Ok(());
    }
    process::run(Command::new("rustup").args(["target", "add", &target])).with_context(|| {
        format!("there is no {}, and only rustup or the distribution's package can install it", library.display())
    })
}
