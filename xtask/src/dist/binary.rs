//! The binary that is packed: stripped, checked, its debug information in a file of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::Release;
use crate::{build, process};

/// Maximum bytes of the stripped binary. 1.7 MB of them are the libraries for Parquet and zstd.
const LARGEST: u64 = 9_600_000;

/// The C library of Enterprise Linux 9, the oldest that is supported.
const NEWEST_GLIBC: (u32, u32) = (2, 34);

/// Splits the binary that was built, and returns the path of the part that is packed.
pub fn split(release: &Release, built: &Path, name: &str) -> Result<PathBuf> {
    let binary = release.scratch.join("tcpmon");
    let debug_folder = release.scratch.join("debug");
    fs::create_dir(&debug_folder)?;
    let debug = debug_folder.join("tcpmon.debug");
    process::run(
        Command::new(release.arch.binutils("objcopy"))
            .args(["--only-keep-debug", "--compress-debug-sections"])
            .arg(built)
            .arg(&debug),
    )?;
    process::run(
        Command::new(release.arch.binutils("objcopy"))
            .arg("--strip-all")
            .arg(format!("--add-gnu-debuglink={}", debug.display()))
            .arg(built)
            .arg(&binary),
    )?;
    release.tar(&debug_folder, &release.output.join(format!("{name}-debug.tar.gz")))?;

    let size = fs::metadata(&binary)?.len();
    ensure!(size <= LARGEST, "the stripped binary has {size} bytes, more than {LARGEST}: see what has grown");
    let symbols = process::output(Command::new(release.arch.binutils("objdump")).arg("--dynamic-syms").arg(&binary))?;
    let newest = newest_glibc(&symbols).context("objdump shows no version of glibc")?;
    ensure!(
        newest <= NEWEST_GLIBC,
        "the binary needs glibc {}.{}, and Enterprise Linux 9 has {}.{}: build it on an older system",
        newest.0,
        newest.1,
        NEWEST_GLIBC.0,
        NEWEST_GLIBC.1
    );
    let bytes = fs::read(&binary)?;
    for (path, _) in build::toolkit()?.private_paths() {
        let path = path.to_string_lossy().into_owned();
        let found = bytes.windows(path.len()).any(|window| window == path.as_bytes());
        ensure!(!found, "the binary contains {path}, a path of this machine: see `Toolkit::private_paths`");
    }
    eprintln!("the binary has {size} bytes and needs glibc {}.{}", newest.0, newest.1);
    Ok(binary)
}

/// The newest version of glibc that these symbols need.
fn newest_glibc(symbols: &str) -> Option<(u32, u32)> {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest.split(|c: char| c != '.' && !c.is_ascii_digit()).next()?;
        let mut parts = version.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::newest_glibc;

    #[test]
    fn the_newest_version_is_not_the_one_that_sorts_last() {
        let symbols = "0 DF *UND* 0 (GLIBC_2.34) a\n0 DF *UND* 0 (GLIBC_2.9)  b\n0 DF *UND* 0 (GLIBC_2.2.5) c\n";
        assert_eq!(newest_glibc(symbols), Some((2, 34)));
        assert_eq!(newest_glibc("nothing"), None);
    }
}
