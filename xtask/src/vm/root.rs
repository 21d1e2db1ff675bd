//! Where the tools and libraries of a virtual machine come from: the host itself, or Debian's packages for another
//! architecture, unpacked below `target/vm/roots`.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::folder;
use crate::{
    apt::{self, PrivateApt},
    arch::Arch,
    process,
};

/// Packages with the tools that the tests run. They are installed with all that they depend on.
const PACKAGES: [&str; 12] = [
    "coreutils",
    "dash",
    "ethtool",
    "iperf3",
    "iproute2",
    "libc-bin",
    "libgcc-s1",
    "mount",
    "nftables",
    "procps",
    "strace",
    "util-linux",
];

/// A package of which only a static program is needed: promtool.
const ALONE: &str = "prometheus";

/// Written last, with the names of the packages.
const COMPLETE: &str = "packages";

/// A tree of files with the paths that they have in a virtual machine.
#[derive(Debug)]
pub struct Root {
    arch: Arch,
    folder: PathBuf,
}

impl Root {
    /// The tree for an architecture, fetched if it is not there yet.
    pub fn of(arch: Arch) -> Result<Self> {
        match arch {
            Arch::X86_64 => Ok(Self { arch, folder: "/".into() }),
            Arch::Arm64 => Ok(Self { arch, folder: fetched(arch.debian())? }),
        }
    }

    /// The path in a virtual machine.
    pub fn inside(&self, file: &Path) -> PathBuf {
        Path::new("/").join(file.strip_prefix(&self.folder).unwrap_or(file))
    }

    /// A tool's path here. Some shells do not have the administrator's folders in `PATH`.
    pub fn tool(&self, tool: &str) -> Result<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
        folders
            .map(|folder| self.folder.join(folder.strip_prefix("/").unwrap_or(&folder)).join(tool))
            .find(|file| file.is_file() && self.is_inside(file))
            .with_context(|| format!("no {tool} below {}: `cargo xtask test` installs it", self.folder.display()))
    }

    /// Whether this is a file of the tree: an absolute link of another root leads to a file of the host.
    fn is_inside(&self, file: &Path) -> bool {
        self.folder == Path::new("/")
            || fs::read_link(file).is_ok_and(|target| target.is_relative())
            || !file.is_symlink()
    }

    /// The shared libraries of a program and its loader; none for a static program.
    pub fn libraries(&self, program: &Path) -> Result<BTreeSet<PathBuf>> {
        match self.arch {
            Arch::X86_64 => by_ldd(program),
            Arch::Arm64 => {
                let mut found = BTreeSet::new();
                self.add_libraries(program, &mut found)?;
                Ok(found)
            }
        }
    }

    fn add_libraries(&self, file: &Path, found: &mut BTreeSet<PathBuf>) -> Result<()> {
        let text = process::output(Command::new("readelf").args(["--wide", "-l", "-d"]).arg(file))?;
        for name in needed(&text) {
            let places = ["lib", "lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"];
            let library = places
                .iter()
                .map(|place| self.folder.join(place).join(name))
                .find(|library| library.is_file())
                .with_context(|| format!("{} needs the missing library {name}", file.display()))?;
            if found.insert(library.clone()) {
                self.add_libraries(&library, found)?;
            }
        }
        Ok(())
    }
}

/// The shared libraries of a program and its loader, as listed by `ldd`; none for a static program.
fn by_ldd(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let text = process::output(Command::new("ldd").arg(program))?;
    let missing: Vec<&str> = text.lines().filter(|line| line.contains("not found")).collect();
    ensure!(missing.is_empty(), "{} needs missing libraries: {}", program.display(), missing.join(", "));
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// The file names of the libraries and of the loader that readelf shows.
fn needed(readelf: &str) -> impl Iterator<Item = &str> {
    let libraries = readelf.lines().filter_map(|line| line.split_once("Shared library: [")?.1.strip_suffix(']'));
    let loaders = readelf
        .lines()
        .filter_map(|line| line.split_once("program interpreter: ")?.1.strip_suffix(']')?.rsplit('/').next());
    libraries.chain(loaders)
}

/// A tree of the host's own release, for another architecture.
fn fetched(architecture: &str) -> Result<PathBuf> {
    let folder = folder().join("roots").join(architecture);
    let packages = [&PACKAGES[..], &[ALONE]].concat().join(" ");
    if fs::read_to_string(folder.join(COMPLETE)).is_ok_and(|complete| complete == packages) {
        return Ok(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let apt = PrivateApt::for_architecture(&folder.join("apt"), &apt::release()?, architecture)?;
    eprintln!("vm: fetching {packages} for {architecture}");
    process::run(apt.command("apt-get").args(["-qq", "update"]))?;
    process::run(
        apt.command("apt-get")
            .args(["-qq", "-y", "--no-install-recommends", "--download-only", "-o", "Debug::NoLocking=1", "install"])
            .args(PACKAGES),
    )?;
    process::run(apt.command("apt-get").args(["-qq", "download", ALONE]))?;
    for place in [apt.folder().to_owned(), apt.folder().join("cache/archives")] {
        for entry in fs::read_dir(place)? {
            let package = entry?.path();
            if package.extension().is_some_and(|extension| extension == "deb") {
                let said = apt::unpack(&package, &folder, None::<&str>)?;
                ensure!(said.is_none(), "cannot unpack {}: {}", package.display(), said.unwrap_or_default());
            }
        }
    }
    fs::remove_dir_all(apt.folder())?;
    fs::write(folder.join(COMPLETE), packages)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_loader_are_read_from_readelf() {
        let text = "      [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]\n \
                    0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n \
                    0x000000000000000e (SONAME)             Library soname: [libx.so]\n";
        assert_eq!(needed(text).collect::<Vec<_>>(), ["libc.so.6", "ld-linux-aarch64.so.1"]);
        assert_eq!(needed("There is no dynamic section in this file.").count(), 0);
    }
}
