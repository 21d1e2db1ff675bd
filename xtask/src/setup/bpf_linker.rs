//! bpf-linker, built against the LLVM inside rustc: linker and compiler must agree on the bitcode that they exchange.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::toolchain::Toolchain;
use crate::{process, workspace};

const VERSION: &str = "0.13.0";

/// Makes sure that `tools/bin/bpf-linker` has the pinned version and was built for this compiler.
pub fn ensure(toolchain: &Toolchain, tools: &Path) -> Result<()> {
    let stamp_file = tools.join("bpf-linker.stamp");
    // The binary finds LLVM through `tools` and the sysroot by absolute paths.
    let stamp = format!(
        "bpf-linker {VERSION}\n{}\n{}\n{}\n",
        toolchain.description,
        toolchain.sysroot.display(),
        tools.display()
    );
    let linker = tools.join("bin/bpf-linker");
    if linker.is_file() && fs::read_to_string(&stamp_file).is_ok_and(|found| found == stamp) {
        eprintln!("setup: bpf-linker {VERSION} is installed");
        return Ok(());
    }

    eprintln!("setup: bpf-linker {VERSION}: building it with the LLVM of rustc (takes about 15 s)");
    let prefix = tools.join("llvm");
    link_llvm(toolchain, &prefix)?;
    process::run(
        workspace::cargo()
            .args(["install", "bpf-linker", "--version", VERSION])
            .args(["--quiet", "--force", "--no-default-features"])
            .args(["--features", &format!("llvm-{}", toolchain.llvm_major)])
            .arg("--root")
            .arg(tools)
            .env("LLVM_PREFIX", &prefix)
            // The linker spends its time in LLVM, which is already built, so optimizing the rest gains nothing.
            .envs([("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")])
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS"),
    )
    .context("cannot build bpf-linker: it needs a C++ compiler and access to the crates registry")?;

    let found = process::output(Command::new(&linker).arg("--version")).context("the new bpf-linker does not start")?;
    // Cargo does not notice that the linker has changed.
    let objects = workspace::root().join("target/ebpf");
    if objects.exists() {
        fs::remove_dir_all(objects)?;
    }
    fs::write(stamp_file, stamp)?;
    eprintln!("setup: installed {found}");
    Ok(())
}

/// bpf-linker's build needs `LLVM_PREFIX/lib/libLLVM.so`. The finished binary looks in the same folder for the library
/// under the library's own name.
fn link_llvm(toolchain: &Toolchain, prefix: &Path) -> Result<()> {
    let library = llvm_library(&toolchain.sysroot.join("lib"))?;
    let folder = prefix.join("lib");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let own_name = library.file_name().context("the library of LLVM has no file name")?;
    for name in [OsStr::new("libLLVM.so"), own_name] {
        symlink(&library, folder.join(name)).with_context(|| format!("cannot link {}", library.display()))?;
    }
    Ok(())
}

/// The shared library itself: in the same folder, rustc ships a small linker script with a similar name.
fn llvm_library(folder: &Path) -> Result<PathBuf> {
    let mut largest: Option<(u64, PathBuf)> = None;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let named_llvm = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("libLLVM") && name.contains(".so"));
        if !named_llvm {
            continue;
        }
        let size = fs::metadata(&path)?.len();
        if largest.as_ref().is_none_or(|(most, _)| size > *most) {
            largest = Some((size, path));
        }
    }
    largest.map(|(_, path)| path).with_context(|| {
        format!("no libLLVM in {}: this rustc keeps its LLVM elsewhere; use a toolchain from rustup", folder.display())
    })
}
