//! The packages, used as their users will: each in a root of its own, made from a clean Debian.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Release, names, packages, unit};
use crate::{apt::PrivateApt, arch::Arch, process, process::step, workspace};

/// The oldest Debian that the packages support.
const SUITE: &str = "bookworm";

/// What a clean system has for the trials: systemd, and a client.
const INCLUDED: &str = "curl,init-system-helpers,iproute2,kmod,libgcc-s1,passwd,systemd,systemd-sysv";

/// Installs, runs, upgrades and removes what is in the folder.
pub fn run(output: &Path) -> Result<()> {
    let folder = workspace::target().join("dist-trial");
    let trial = Trial { output: fs::canonicalize(output)?, folder };
    super::empty(&trial.folder)?;
    step("a clean Debian", || trial.debian())?;
    let (clean, newer) = (trial.folder.join("clean"), trial.newer_deb()?);
    step("unit", || unit_is_confined(&clean))?;
    step("deb", || trial.deb(&clean, &newer))?;
    step("rpm", || trial.rpm(&clean))?;
    step("image", || trial.image())?;
    step("systemd", || trial.systemd(&clean, &newer))?;
    fs::remove_dir_all(&trial.folder)?;
    Ok(())
}

/// Where the packages are, and where they are tried.
struct Trial {
    output: PathBuf,
    folder: PathBuf,
}

impl Trial {
    fn debian(&self) -> Result<()> {
        let apt = PrivateApt::new(&self.folder.join("apt"), SUITE)?;
        process::run(
            Command::new("mmdebstrap")
                .args(["--quiet", "--variant=minbase", &format!("--include={INCLUDED}")])
                // The trials boot from memory.
                .args(["--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/info/*"])
                .arg(SUITE)
                .arg(self.folder.join("clean"))
                .arg(apt.sources()?),
        )
    }

    /// A copy of the clean root.
    fn root(&self, clean: &Path, name: &str) -> Result<PathBuf> {
        let root = self.folder.join(name);
        packages::copy_tree(clean, &root)?;
        Ok(root)
    }

    fn package(&self, ending: &str) -> Result<PathBuf> {
        let names = names(&self.output)?;
        let name = names.iter().find(|name| name.ends_with(ending) && !name.contains("-debug"));
        Ok(self.output.join(name.with_context(|| format!("no package ends with {ending}: {names:?}"))?))
    }

    /// The same package with a higher version.
    fn newer_deb(&self) -> Result<PathBuf> {
        let tree = self.folder.join("newer");
        process::run(Command::new("dpkg-deb").arg("--extract").arg(self.package(".deb")?).arg(&tree))?;
        let release = Release {
            arch: Arch::default(),
            version: "99.0".into(),
            epoch: "0".into(),
            scratch: self.folder.clone(),
            output: self.folder.clone(),
        };
        packages::deb(&release, &tree, &release.version)
    }

    /// Tries the Debian package: installs it, runs it as the unit's user with the unit's capabilities, scrapes it,
    /// upgrades it meanwhile, and purges it.
    fn deb(&self, clean: &Path, newer: &Path) -> Result<()> {
        let root = self.root(clean, "deb")?;
        fs::copy(self.package(".deb")?, root.join("tmp/tcpmon.deb"))?;
        fs::copy(newer, root.join("tmp/newer.deb"))?;
        let unit = workspace::read("packaging/tcpmon.service")?;
        let capabilities = unit.lines().find_map(|line| line.strip_prefix("AmbientCapabilities="));
        let capabilities = capabilities.context("the unit has capabilities")?.to_lowercase().replace("cap_", "+");
        let before = files(&root)?;
        fs::write(root.join("tmp/trial"), concat!(include_str!("trial/common.sh"), include_str!("trial/deb.sh")))?;
        enter(&root, &["sh", "/tmp/trial", &capabilities.replace(' ', ",")])?;
        nothing_is_left(&root, &before)
    }

    /// Tries the RPM package: installs, lists, runs and erases it.
    fn rpm(&self, clean: &Path) -> Result<()> {
        let root = self.root(clean, "rpm")?;
        let package = self.package(".rpm")?;
        let requires = process::output(Command::new("rpm").args(["-qp", "--requires"]).arg(&package))?;
        ensure!(requires.contains("glibc >= 2.34"), "the package requires: {requires}");
        let rpm = |arguments: &[&str]| process::output(Command::new("rpm").arg("--root").arg(&root).args(arguments));
        rpm(&["--initdb"])?;
        let before = files(&root)?;
        rpm(&["--install", "--nodeps", &package.to_string_lossy()])?;
        // Empty if all files have the sizes, modes, owners and checksums that the package says.
        let changed = rpm(&["--verify", "--nodeps", "tcpmon"])?;
        ensure!(changed.is_empty(), "rpm --verify: {changed}");
        let users = fs::read_to_string(root.join("etc/passwd"))?;
        ensure!(users.contains("\ntcpmon:"), "the package has made no user: {users}");
        let deb = process::output(Command::new("dpkg-deb").arg("--contents").arg(self.package(".deb")?))?;
        let deb: BTreeSet<&str> = deb.lines().filter_map(|line| line.split(" ./").nth(1)).collect();
        let deb: BTreeSet<String> = deb
            .iter()
            .filter(|path| !path.is_empty() && !path.ends_with('/'))
            .map(|path| format!("/{path}").replace("vendor-completions", "site-functions"))
            .collect();
        let listed = rpm(&["-ql", "tcpmon"])?;
        let listed: BTreeSet<String> =
            listed.lines().filter(|path| root.join(&path[1..]).is_file()).map(str::to_owned).collect();
        let different: Vec<&String> = listed.symmetric_difference(&deb).collect();
        ensure!(different.is_empty(), "only one of the two packages has {different:?}");
        // So what starts from the one under systemd starts from the other.
        let unpacked = self.folder.join("unpacked");
        process::run(Command::new("dpkg-deb").arg("--extract").arg(self.package(".deb")?).arg(&unpacked))?;
        for path in &listed {
            let in_deb = unpacked.join(path[1..].replace("site-functions", "vendor-completions"));
            ensure!(fs::read(root.join(&path[1..]))? == fs::read(in_deb)?, "{path} differs between the two packages");
        }
        enter(&root, &["tcpmon", "--version"])?;
        rpm(&["--erase", "tcpmon"])?;
        // Packages of this kind keep their user, because files may belong to it.
        enter(&root, &["userdel", "tcpmon"])?;
        nothing_is_left(&root, &before)
    }

    /// Tries the image: unpacks it with umoci, and runs it with nothing but what is in it.
    fn image(&self) -> Result<()> {
        let (layout, bundle) = (self.folder.join("layout"), self.folder.join("bundle"));
        fs::create_dir(&layout)?;
        process::run(Command::new("tar").arg("-C").arg(&layout).arg("-xf").arg(self.package("-image.tar.gz")?))?;
        let image = format!("{}:{}", layout.display(), env!("CARGO_PKG_VERSION"));
        process::output(Command::new("umoci").args(["unpack", "--image", &image]).arg(&bundle))?;
        let config: serde_json::Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
        let arguments = &config["process"]["args"];
        ensure!(*arguments == serde_json::json!(["/usr/bin/tcpmon", "daemon"]), "the image runs {arguments}");
        process::run(
            isolated()
                .args(["sh", "-c", concat!(include_str!("trial/common.sh"), include_str!("trial/image.sh")), "sh"])
                .arg(bundle.join("rootfs")),
        )
    }

    /// Tries the Debian package in a virtual machine with systemd.
    fn systemd(&self, clean: &Path, newer: &Path) -> Result<()> {
        let root = self.root(clean, "systemd")?;
        fs::copy(self.package(".deb")?, root.join("tmp/tcpmon.deb"))?;
        fs::copy(newer, root.join("tmp/newer.deb"))?;
        unit::run(&root, &self.folder.join("initramfs"))
    }
}

/// Namespaces of its own for mounts, processes and the network.
fn isolated() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child"]);
    command
}

/// Runs a command inside a root.
fn enter(root: &Path, command: &[&str]) -> Result<()> {
    const MOUNT: &str = "set -e; root=$1; shift; mount -t proc proc $root/proc; mount --rbind /sys $root/sys; \
                         mount --rbind /dev $root/dev; exec chroot $root \"$@\"";
    process::run(isolated().args(["sh", "-c", MOUNT, "sh"]).arg(root).args(command))
}

/// All paths in a root, and the users.
fn files(root: &Path) -> Result<BTreeSet<String>> {
    let found = process::output(Command::new("find").arg(root).args(["-xdev", "-printf", "%P\n"]))?;
    let users = fs::read_to_string(root.join("etc/passwd"))? + &fs::read_to_string(root.join("etc/group"))?;
    // Files that package managers, the programs that manage users, and the trials themselves write.
    const OTHERS: [&str; 10] = [
        "tmp/",
        "var/lib/dpkg/",
        "var/lib/rpm",
        "var/log/",
        "var/cache/",
        "etc/.pwd.lock",
        "etc/passwd-",
        "etc/group-",
        "etc/shadow-",
        "etc/gshadow-",
    ];
    let ours = |path: &&str| !OTHERS.iter().any(|other| path.starts_with(other));
    Ok(found.lines().filter(ours).chain(users.lines()).map(str::to_owned).collect())
}

fn nothing_is_left(root: &Path, before: &BTreeSet<String>) -> Result<()> {
    let after = files(root)?;
    let different: Vec<&String> = after.symmetric_difference(before).collect();
    ensure!(different.is_empty(), "the package has left or removed files: {different:?}");
    Ok(())
}

/// Checks that the exposure that systemd computes for the unit is at most 2.5.
fn unit_is_confined(clean: &Path) -> Result<()> {
    let unit = workspace::root().join("packaging/tcpmon.service");
    fs::copy(&unit, clean.join("tmp/tcpmon.service"))?;
    let arguments = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", "/tmp/tcpmon.service"];
    let table = process::output(Command::new("chroot").arg(clean).args(arguments));
    fs::remove_file(clean.join("tmp/tcpmon.service"))?;
    match table {
        Ok(table) => {
            println!("{}", table.lines().last().unwrap_or_default());
            Ok(())
        }
        Err(error) => bail!("the unit is exposed: {error:#}"),
    }
}
