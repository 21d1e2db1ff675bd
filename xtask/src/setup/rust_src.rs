//! rust-src of exactly the running compiler's release: `-Z build-std=core` compiles `core` for the bpf target from it.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, bail};

use super::{debian, toolchain::Toolchain};
use crate::process;

/// Path below the sysroot where cargo looks for the library, and where rustup's component puts it.
const LIBRARY: &str = "lib/rustlib/src/rust/library";
/// Written next to the library if tcpmon's setup installed it: the release to which it belongs.
const STAMP: &str = "lib/rustlib/src/rust/.tcpmon-release";
/// Time limit for rustup, which tries unreachable servers for minutes.
const RUSTUP_LIMIT: Duration = Duration::from_secs(60);

/// Makes sure that the sysroot contains the library sources of its own release.
pub fn ensure(toolchain: &Toolchain, tools: &Path) -> Result<()> {
    let release = &toolchain.release;
    let library = toolchain.sysroot.join(LIBRARY);
    if is_present(toolchain) {
        eprintln!("setup: rust-src {release} is installed");
        return Ok(());
    }

    let stamp = toolchain.sysroot.join(STAMP);
    if stamp.exists() {
        // The library was installed by this setup for a compiler that has been replaced since; rustup would not
        // overwrite it.
        remove_folder(&library)?;
        fs::remove_file(stamp)?;
    }
    eprintln!("setup: rust-src {release}: installing it with rustup");
    let by_rustup =
        process::run_for_at_most(Command::new("rustup").args(["component", "add", "rust-src"]), RUSTUP_LIMIT);
    // rustup trusts its own records: it takes files that were removed by hand for installed.
    let Err(rustup_error) = by_rustup.and_then(|()| check_complete(&library)) else {
        return Ok(());
    };

    eprintln!("setup: rust-src {release}: {rustup_error:#}; trying Debian's package");
    from_debian(toolchain, tools).with_context(|| {
        format!(
            "neither rustup ({rustup_error:#}) nor Debian's mirror gave rust-src {release}: \
             run `rustup component add rust-src` where rustup's servers can be reached, \
             or copy that release's `library` folder to {}",
            library.display()
        )
    })?;
    check_complete(&library)?;
    eprintln!("setup: installed rust-src {release}");
    Ok(())
}

/// A library that this setup installed is valid only for its own release; any other owner (rustup, a distribution)
/// keeps the library in step with the compiler.
fn is_present(toolchain: &Toolchain) -> bool {
    let stamp = fs::read_to_string(toolchain.sysroot.join(STAMP));
    check_complete(&toolchain.sysroot.join(LIBRARY)).is_ok()
        && stamp.map_or(true, |stamp| stamp.trim() == toolchain.release)
}

fn check_complete(library: &Path) -> Result<()> {
    for file in [
        "Cargo.toml",
        "Cargo.lock",
        "core/src/lib.rs",
        "alloc/src/lib.rs",
        "std/src/lib.rs",
        "compiler-builtins/compiler-builtins/src/lib.rs",
    ] {
        let file = library.join(file);
        if !file.is_file() {
            bail!("rust-src is incomplete: {} is missing", file.display());
        }
    }
    Ok(())
}

fn from_debian(toolchain: &Toolchain, tools: &Path) -> Result<()> {
    let scratch = tools.join("rust-src.tmp");
    remove_folder(&scratch)?;
    let unpacked = debian::unpack_rust_src(&toolchain.release, &scratch)?;
    install(&unpacked, toolchain)?;
    remove_folder(&scratch)
}

/// Copies to a folder next to the final one, then renames it, so that an incomplete copy is never taken for the
/// library.
fn install(unpacked: &Path, toolchain: &Toolchain) -> Result<()> {
    let library = toolchain.sysroot.join(LIBRARY);
    let partial = library.with_extension("partial");
    remove_folder(&partial)?;
    fs::create_dir_all(&partial).with_context(|| format!("cannot create {}", partial.display()))?;
    process::run(Command::new("cp").arg("--recursive").arg(unpacked.join(".")).arg(&partial))?;
    remove_folder(&library)?;
    fs::write(toolchain.sysroot.join(STAMP), &toolchain.release)?;
    fs::rename(&partial, &library).with_context(|| format!("cannot move the library to {}", library.display()))
}

fn remove_folder(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}
