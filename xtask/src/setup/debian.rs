//! rust-src from Debian, whose archive has it for each release: for hosts that can reach a Debian mirror but not
//! rustup's servers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{apt::PrivateApt, process};

/// The suites to search, in this order. Backports keep up with Rust's releases and have the smallest index.
const SUITES: [&str; 5] = ["stable-backports", "oldstable-backports", "stable", "testing", "unstable"];

/// Downloads rust-src of exactly this release, unpacks it below `scratch` and returns its `library` folder.
pub fn unpack_rust_src(release: &str, scratch: &Path) -> Result<PathBuf> {
    for suite in SUITES {
        let apt = PrivateApt::new(&scratch.join(suite), suite)?;
        if let Err(error) = process::run(apt.command("apt-get").args(["-qq", "update"])) {
            eprintln!("setup: suite {suite}: {error:#}");
            continue;
        }
        let table = process::output(apt.command("apt-cache").args(["madison", "rust-src"]))?;
        let Some(version) = matching_version(&table, release) else {
            eprintln!("setup: suite {suite} has no rust-src {release}");
            continue;
        };
        eprintln!("setup: rust-src {version} from suite {suite}");
        return unpack(&apt, version, release);
    }
    bail!("no suite of this machine's Debian mirror has rust-src {release}");
}

/// The versions have the form `<upstream>+dfsg1-<debian>`; because of the `+`, 1.95.0 does not match 1.95.01.
fn matching_version<'a>(madison: &'a str, release: &str) -> Option<&'a str> {
    madison
        .lines()
        .filter_map(|line| line.split('|').nth(1))
        .map(str::trim)
        .find(|version| version.strip_prefix(release).is_some_and(|rest| rest.starts_with('+')))
}

fn unpack(apt: &PrivateApt, version: &str, release: &str) -> Result<PathBuf> {
    process::run(apt.command("apt-get").args(["-qq", "download"]).arg(format!("rust-src={version}")))?;
    let package = fs::read_dir(apt.folder())?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get downloaded no package")?;
    let root = apt.folder().join("root");
    process::run(Command::new("dpkg").arg("-x").arg(package).arg(&root))?;
    let library = root.join(format!("usr/src/rustc-{release}/library"));
    if !library.is_dir() {
        bail!("Debian's rust-src {version} has no usr/src/rustc-{release}/library");
    }
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_release_matches() {
        let table = " rust-src | 1.96.0+dfsg1-1 | http://mirror.example sid/main\n\
                     rust-src | 1.95.0+dfsg1-2~bpo13+1 | http://mirror.example trixie-backports/main\n";
        assert_eq!(matching_version(table, "1.95.0"), Some("1.95.0+dfsg1-2~bpo13+1"));
        assert_eq!(matching_version(table, "1.95"), None);
        assert_eq!(matching_version(table, "1.94.0"), None);
    }
}
