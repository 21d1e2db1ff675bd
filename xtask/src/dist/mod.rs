//! `cargo xtask dist`: packages of the release, in `target/packages`, and their trial.
//!
//! One tree is staged (`tree`), and the formats pack it. Whatever depends on time, user or folder is set, so that the
//! same commit gives the same bytes everywhere.

mod binary;
mod image;
mod packages;
mod sbom;
mod tree;
mod trial;
mod unit;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::{arch::Arch, build, process, process::step, setup, workspace};

/// Arguments of `cargo xtask dist`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// Folder for the packages [default: target/packages]
    #[arg(long)]
    output: Option<PathBuf>,
    /// Architecture of the packages
    #[arg(long, value_enum, default_value_t)]
    arch: Arch,
    /// Install, run, upgrade and purge the packages, in a Debian root and under systemd in a virtual machine (x86_64)
    #[arg(long)]
    test: bool,
    /// Build once more from a clone of HEAD in another folder, and compare
    #[arg(long)]
    verify: bool,
}

/// Where the packages go if nothing else is asked for.
pub fn folder() -> PathBuf {
    workspace::target().join("packages")
}

/// What is built from, and where to.
#[derive(Debug)]
struct Release {
    arch: Arch,
    version: String,
    /// Time of the commit, seconds since 1970: the time of every file.
    epoch: String,
    /// For files that are not packed.
    scratch: PathBuf,
    output: PathBuf,
}

impl Release {
    /// A command to which the time of the commit is the present.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SOURCE_DATE_EPOCH", &self.epoch).env("LC_ALL", "C").env("TZ", "UTC");
        command
    }

    /// Packs a folder with owner, order and time of files that do not depend on this machine.
    fn tar(&self, folder: &Path, to: &Path) -> Result<()> {
        process::run(
            self.command("tar")
                .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"])
                .arg(format!("--mtime=@{}", self.epoch))
                .args(
                    to.extension()
                        .is_some_and(|extension| extension == "gz")
                        .then_some("--use-compress-program=gzip -n"),
                )
                .arg("--file")
                .arg(to)
                .args(["--create", "--directory"])
                .arg(folder)
                .arg("."),
        )
    }
}

/// Builds the packages, and tries and verifies them if asked for.
pub fn run(args: &Args) -> Result<()> {
    ensure!(!args.test || args.arch == Arch::default(), "only packages for the host's architecture can be tried here");
    step("setup", setup::run)?;
    step("packages for packaging", setup::dist_packages)?;
    if args.arch == Arch::Arm64 {
        step("cross compiler", setup::arm64)?;
    }
    let output = args.output.clone().unwrap_or_else(folder);
    step("packages", || packages_in(args.arch, &output))?;
    if args.test {
        step("packages are tried", || trial::run(&output))?;
    }
    if args.verify {
        step("packages are built again", || verify(args.arch, &output))?;
    }
    Ok(())
}

/// Builds the host's packages.
pub fn make() -> Result<()> {
    step("packages", || packages_in(Arch::default(), &folder()))
}

/// Tries what [`make`] has built.
pub fn try_out() -> Result<()> {
    step("packages are tried", || trial::run(&folder()))
}

fn packages_in(arch: Arch, output: &Path) -> Result<()> {
    empty(output)?;
    let scratch = workspace::target().join("dist-scratch");
    empty(&scratch)?;
    let commit = workspace::git(&["log", "-1", "--format=%ct"]);
    let release = Release {
        arch,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        // Sources without a repository have no such time.
        epoch: commit.unwrap_or_else(|_| "0".to_owned()),
        scratch,
        output: fs::canonicalize(output)?,
    };
    let built = build::dist(arch)?;
    let name = format!("tcpmon-{}-{}", release.version, arch.gnu());
    let binary = binary::split(&release, &built, &name)?;
    let tree = tree::stage(&release, &binary)?;
    packages::tarball(&release, &tree, &name)?;
    packages::deb(&release, &tree, &release.version)?;
    packages::rpm(&release, &tree)?;
    image::build(&release, &binary, &name)?;
    sbom::write(&release, &release.output.join(format!("{name}.cdx.json")))?;
    checksums(&release.output)
}

/// `SHA256SUMS` of all files, in the format of sha256sum.
fn checksums(output: &Path) -> Result<()> {
    let names = names(output)?;
    let sums = process::output(Command::new("sha256sum").args(&names).current_dir(output))?;
    for line in sums.lines() {
        println!("{line}");
    }
    Ok(fs::write(output.join("SHA256SUMS"), sums + "\n")?)
}

/// Builds a clone of HEAD in another folder, and compares all files.
fn verify(arch: Arch, output: &Path) -> Result<()> {
    let dirty = workspace::git(&["status", "--porcelain"])?;
    ensure!(dirty.is_empty(), "the second build would lack what is not committed: commit it first\n{dirty}");
    let folder = tempfile::tempdir()?;
    let clone = folder.path().join("another/folder");
    process::run(Command::new("git").arg("clone").arg("--quiet").arg(workspace::root()).arg(&clone))?;
    let again = folder.path().join("packages");
    process::run(
        Command::new("cargo")
            .current_dir(&clone)
            .args(["xtask", "dist", "--arch", if arch == Arch::Arm64 { "arm64" } else { "x86_64" }, "--output"])
            .arg(&again)
            .env_remove("CARGO_MANIFEST_DIR")
            .env_remove("CARGO_TARGET_DIR"),
    )?;
    let (first, second) = (names(output)?, names(&again)?);
    ensure!(first == second, "the two builds have different files: {first:?} and {second:?}");
    for name in first {
        let same = fs::read(output.join(&name))? == fs::read(again.join(&name))?;
        ensure!(same, "{name} differs: compare {} with a build in another folder", output.join(&name).display());
        println!("the same bytes: {name}");
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Makes an empty folder.
fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}
