//! A current Prometheus, in addition to the one in the host's distribution: how Prometheus treats counters changes
//! between versions. It is extracted from Debian's newest package into `target/tools/prometheus/`, and not installed.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, anyhow};

use crate::{
    apt::{self, PrivateApt},
    process, workspace,
};

/// The suite that has the newest version.
const SUITE: &str = "sid";

/// After this time, the mirror is asked for a newer version.
const ASK_AGAIN: Duration = Duration::from_secs(7 * 24 * 3600);

/// Fetches it if it is missing or was fetched more than a week ago. The tests find it at
/// `target/tools/prometheus/prometheus`.
pub fn todays_prometheus() -> Result<()> {
    let folder = workspace::tools().join("prometheus");
    let program = folder.join("prometheus");
    let age = fs::metadata(&program).and_then(|file| file.modified()).ok();
    let age = age.and_then(|time| SystemTime::now().duration_since(time).ok());
    if age.is_some_and(|age| age < ASK_AGAIN) {
        eprintln!("setup: the latest Prometheus is installed: {}", version(&program)?);
        return Ok(());
    }
    match fetch(&folder, &program) {
        Ok(()) => eprintln!("setup: installed the latest Prometheus: {}", version(&program)?),
        Err(error) if program.is_file() => {
            eprintln!("setup: {error:#}; keeping {}", version(&program)?);
        }
        Err(error) => {
            return Err(error).context("cannot get the latest Prometheus, which the tests need, from Debian's mirror");
        }
    }
    Ok(())
}

fn fetch(folder: &Path, program: &Path) -> Result<()> {
    eprintln!("setup: looking for the latest Prometheus on the mirror");
    let apt = PrivateApt::new(&folder.join("apt"), SUITE)?;
    process::run(apt.command("apt-get").args(["-qq", "update"]))?;
    process::run(apt.command("apt-get").args(["-qq", "download", "prometheus"]))?;
    let packages = fs::read_dir(apt.folder())?.flatten().map(|entry| entry.path());
    let packages: Vec<_> =
        packages.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect();
    let [package] = packages.as_slice() else {
        anyhow::bail!("apt-get downloaded {} packages to {} instead of one", packages.len(), apt.folder().display());
    };
    let unpacked = folder.join("usr/bin/prometheus");
    let taken = apt::unpack(package, folder, ["./usr/bin/prometheus"])
        .and_then(|complaint| complaint.map_or(Ok(()), |said| Err(anyhow!(said))))
        .and_then(|()| version(&unpacked));
    fs::remove_file(package)?;
    taken.with_context(|| format!("Debian's Prometheus of {SUITE} does not run here"))?;
    // The file's time is that of the last query of the mirror, not that of the package.
    fs::File::open(&unpacked)?.set_modified(SystemTime::now())?;
    Ok(fs::rename(unpacked, program)?)
}

/// The first line of its version output.
fn version(program: &Path) -> Result<String> {
    let text = process::output(Command::new(program).arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
