//! Kernels from Debian's packages: finds them by series, fetches them, and unpacks the few files that a virtual machine
//! needs. Nothing is installed. `target/vm/kernels/NAME/PACKAGE/` contains `vmlinux` and `modules/`, and is reused
//! until the mirror has a newer package.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, ensure};

use super::{folder, kernels::Kernel, modules, vmlinux};
use crate::{
    apt::{self, PrivateApt},
    arch::Arch,
    process,
};

/// The mirror is queried again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(24 * 3600);

/// Written last into the folder of an unpacked kernel, and again whenever the mirror had no newer one. Contains the
/// release, such as `6.12.107+deb13-amd64`, and the names of the modules that were searched for.
const COMPLETE: &str = "release";

/// A kernel that can be booted.
#[derive(Clone, Debug)]
pub struct Unpacked {
    folder: PathBuf,
    /// As `uname -r` will report it.
    pub release: String,
}

impl Unpacked {
    /// The uncompressed kernel.
    pub fn vmlinux(&self) -> PathBuf {
        self.folder.join("vmlinux")
    }

    /// Its modules, in the order in which they can be inserted.
    pub fn modules(&self) -> Result<Vec<PathBuf>> {
        modules::in_order(&self.folder.join("modules"))
    }

    fn open(folder: PathBuf) -> Option<Self> {
        let text = fs::read_to_string(folder.join(COMPLETE)).ok()?;
        let (release, modules) = text.split_once('\n')?;
        let unpacked = Self { release: release.to_owned(), folder };
        (modules == modules::NAMES.join(" ")).then_some(unpacked)
    }

    fn complete(folder: PathBuf, release: String) -> Result<Self> {
        fs::write(folder.join(COMPLETE), format!("{release}\n{}", modules::NAMES.join(" ")))?;
        Ok(Self { folder, release })
    }
}

/// The newest kernel of the series; a cached one if the mirror does not answer or no longer has any.
pub fn unpacked(kernel: &Kernel) -> Result<Unpacked> {
    let cache = folder().join("kernels").join(kernel.label());
    if let Some(unpacked) = cached(&cache).filter(|unpacked| is_recent(&unpacked.folder.join(COMPLETE))) {
        return Ok(unpacked);
    }
    match newest(kernel, &cache) {
        Ok(unpacked) => Ok(unpacked),
        Err(error) => match cached(&cache) {
            Some(unpacked) => {
                eprintln!("vm: kernel {}: {error:#}; using {} from the cache", kernel.name, unpacked.release);
                Ok(unpacked)
            }
            None => Err(error).with_context(|| {
                let Kernel { series, suite, .. } = kernel;
                format!("cannot get kernel {series} from the suite {suite}, and none is cached below target/vm")
            }),
        },
    }
}

fn newest(kernel: &Kernel, cache: &Path) -> Result<Unpacked> {
    let apt = lists(kernel)?;
    let names = process::output(apt.command("apt-cache").args(["pkgnames", "linux-"]))?;
    let names: Vec<&str> = names.lines().collect();
    let (release, packages) = choose(&names, kernel.series, kernel.flavour)
        .with_context(|| format!("the suite {} has no kernel {}", kernel.suite, kernel.series))?;
    let uris = process::output(apt.command("apt-get").args(["-qq", "download", "--print-uris"]).args(&packages))?;
    // Each line has URI, file name, size and hash.
    let files: Vec<&str> = uris.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    ensure!(files.len() == packages.len(), "apt-get lists no file for {}: {uris}", packages.join(" and "));
    let folder = cache.join(files[0].trim_end_matches(".deb"));
    if Unpacked::open(folder.clone()).is_some() {
        return Unpacked::complete(folder, release);
    }

    eprintln!("vm: fetching {}", files.join(" and "));
    process::run(apt.command("apt-get").args(["-qq", "download"]).args(&packages))?;
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let contents = folder.join("contents");
    fs::create_dir_all(&contents)?;
    for file in files {
        let file = apt.folder().join(file);
        unpack(&file, &contents)?;
        fs::remove_file(file)?;
    }
    modules::collect(&contents, &folder.join("modules"))?;
    vmlinux::extract(&image(&contents, &release)?, &folder.join("vmlinux"))?;
    fs::remove_dir_all(&contents)?;
    remove_others(cache, &folder)?;
    Unpacked::complete(folder, release)
}

/// apt with the package lists of the kernel's suite, at most a day old.
fn lists(kernel: &Kernel) -> Result<PrivateApt> {
    let (suite, all) = (kernel.suite, folder().join("apt"));
    let apt = match kernel.arch {
        Arch::X86_64 => PrivateApt::new(&all.join(suite), suite)?,
        Arch::Arm64 => PrivateApt::for_architecture(&all.join(format!("{suite}-arm64")), suite, kernel.arch.debian())?,
    };
    let stamp = apt.folder().join("updated");
    if !is_recent(&stamp) {
        eprintln!("vm: updating the package lists of {suite}");
        process::run(apt.command("apt-get").args(["-qq", "update"]))?;
        fs::write(stamp, "")?;
    }
    Ok(apt)
}

fn is_recent(file: &Path) -> bool {
    let written = fs::metadata(file).and_then(|metadata| metadata.modified());
    written.ok().and_then(|time| SystemTime::now().duration_since(time).ok()).is_some_and(|age| age < ASK_AGAIN)
}

/// The newest release of the series and the packages that contain it.
fn choose(names: &[&str], series: &str, flavour: &str) -> Option<(String, Vec<String>)> {
    let end = format!("-{flavour}");
    let release = names
        .iter()
        .filter_map(|name| name.strip_prefix("linux-image-"))
        .filter(|release| release.strip_prefix(series).is_some_and(|rest| rest.starts_with('.')))
        .filter(|release| release.ends_with(&end) && !release.contains("-cloud-") && !release.contains("-rt-"))
        .max_by_key(|release| numbers(release))?;
    // From 6.19 on, the image is an empty package that depends on these two.
    let parts = [format!("linux-binary-{release}"), format!("linux-modules-{release}")];
    let split = parts.iter().all(|part| names.contains(&part.as_str()));
    let packages = if split { parts.to_vec() } else { vec![format!("linux-image-{release}")] };
    Some((release.to_owned(), packages))
}

/// The numbers in a release, by which releases are ordered: `6.12.107+deb13` comes after `6.12.94+deb13`.
fn numbers(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Extracts the image and the wanted modules from a package, which is seconds faster than unpacking all of it.
fn unpack(package: &Path, into: &Path) -> Result<()> {
    let wanted = modules::NAMES.map(|name| format!("*/{name}.ko*"));
    let patterns = ["--wildcards", "*/vmlinuz*"].into_iter().chain(wanted.iter().map(String::as_str));
    let said = apt::unpack(package, into, patterns)?.unwrap_or_default();
    // Each package has only some of the files, and each kernel has some of the modules built in.
    let is_absence = |line: &str| line.contains("Not found in archive") || line.contains("Exiting with failure status");
    ensure!(said.lines().all(is_absence), "cannot unpack {}: {said}", package.display());
    Ok(())
}

fn image(contents: &Path, release: &str) -> Result<PathBuf> {
    [format!("boot/vmlinuz-{release}"), format!("usr/lib/modules/{release}/vmlinuz")]
        .into_iter()
        .map(|path| contents.join(path))
        .find(|path| path.is_file())
        .with_context(|| format!("the package of {release} has no vmlinuz in any known place"))
}

fn cached(cache: &Path) -> Option<Unpacked> {
    let entries = fs::read_dir(cache).ok()?.flatten();
    entries.filter_map(|entry| Unpacked::open(entry.path())).max_by_key(|unpacked| numbers(&unpacked.release))
}

fn remove_others(cache: &Path, keep: &Path) -> Result<()> {
    for entry in fs::read_dir(cache)? {
        let path = entry?.path();
        if path != keep {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_plain_kernel_of_the_series_is_chosen() {
        let names = [
            "linux-image-6.12-amd64",
            "linux-image-6.12.94+deb13-amd64",
            "linux-image-6.12.107+deb13-amd64",
            "linux-image-6.12.200+deb13-cloud-amd64",
            "linux-image-6.12.200+deb13-rt-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-headers-6.12.300+deb13-amd64",
        ];
        let chosen = |series| choose(&names, series, "amd64").map(|(release, packages)| (release, packages.join(" ")));
        let release = "6.12.107+deb13-amd64";
        assert_eq!(chosen("6.12"), Some((release.into(), format!("linux-image-{release}"))));
        assert_eq!(chosen("6.1").map(|(release, _)| release).as_deref(), Some("6.1.0-56-amd64"));
        assert_eq!(chosen("6.18"), None);
    }

    #[test]
    fn a_kernel_in_two_packages_is_taken_from_both() {
        let names =
            ["linux-image-7.2.12+deb13-amd64", "linux-binary-7.2.12+deb13-amd64", "linux-modules-7.2.12+deb13-amd64"];
        let packages = choose(&names, "7.2", "amd64").map(|(_, packages)| packages);
        assert_eq!(packages, Some(vec![names[1].to_owned(), names[2].to_owned()]));
    }
}
