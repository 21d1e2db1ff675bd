//! `cargo xtask setup`: installs what a stable Rust toolchain lacks to build eBPF objects.
//!
//! Every step first checks whether its result exists, and then does nothing, so running setup again costs almost
//! nothing.

mod arm64;
mod bpf_linker;
mod crates;
mod debian;
mod formats;
mod packages;
mod peers;
mod prometheus;
mod python;
mod rust_src;
mod toolchain;

use std::fs::{self, File};

use anyhow::{Context as _, Result};

pub use arm64::ensure as arm64;
pub use crates::{CARGO_DENY, MDBOOK};
pub use formats::ensure as formats;
pub use packages::{dist_packages, fuzz_packages, picture_packages, test_packages};
pub use peers::ensure as peers;
pub use prometheus::todays_prometheus;
pub use python::environment as python;

use crate::workspace;

/// The release of the Rust compiler in use, such as `1.95.0`.
pub fn release() -> Result<String> {
    Ok(toolchain::Toolchain::detect()?.release)
}

/// Installs rust-src and bpf-linker for this checkout and its toolchain.
pub fn run() -> Result<()> {
    let tools = workspace::tools();
    fs::create_dir_all(&tools).with_context(|| format!("cannot create {}", tools.display()))?;
    // Two setups at once would overwrite each other's files.
    let lock = File::create(tools.join(".lock"))?;
    lock.lock().context("cannot lock target/tools")?;

    let toolchain = toolchain::Toolchain::detect()?;
    rust_src::ensure(&toolchain, &tools)?;
    bpf_linker::ensure(&toolchain, &tools)
}
