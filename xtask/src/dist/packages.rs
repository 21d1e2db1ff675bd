//! The formats of package managers, built by their own tools.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::Release;
use crate::{process, workspace};

/// Builds `NAME.tar.gz`: the tree in a folder of that name.
pub fn tarball(release: &Release, tree: &Path, name: &str) -> Result<()> {
    let folder = release.scratch.join("tarball");
    fs::create_dir(&folder)?;
    copy_tree(tree, &folder.join(name))?;
    release.tar(&folder, &release.output.join(format!("{name}.tar.gz")))
}

/// Builds a Debian package with this version, and returns its path.
pub fn deb(release: &Release, tree: &Path, version: &str) -> Result<PathBuf> {
    let folder = release.scratch.join(format!("deb-{version}"));
    copy_tree(tree, &folder)?;
    let control = folder.join("DEBIAN");
    fs::create_dir(&control)?;
    fs::set_permissions(&control, fs::Permissions::from_mode(0o755))?;
    let size: u64 = workspace::files(tree)?.iter().map(|file| fs::metadata(file).map_or(0, |found| found.len())).sum();
    let fields = format!(
        "Package: tcpmon\nVersion: {version}\nArchitecture: {}\nSection: net\nPriority: optional\n\
         Maintainer: the tcpmon developers <tcpmon@localhost>\nInstalled-Size: {}\n\
         Depends: libc6 (>= 2.34), libgcc-s1, init-system-helpers, passwd, systemd | systemd-standalone-sysusers\n\
         Description: where received TCP bytes wait on this host, and why\n \
         tcpmon watches all TCP sockets of a host with eBPF programs and exports receive\n \
         queues, what limits each receiver, NIC ring overruns, drops and memory pressure\n \
         as Prometheus metrics. It records timeslices of chosen processes.\n",
        release.arch.debian(),
        size / 1024
    );
    fs::write(control.join("control"), fields)?;
    fs::write(control.join("conffiles"), "/etc/tcpmon/tcpmon.toml\n")?;
    for script in ["postinst", "prerm", "postrm"] {
        let to = control.join(script);
        fs::copy(workspace::root().join("packaging/deb").join(script), &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    for file in ["control", "conffiles"] {
        fs::set_permissions(control.join(file), fs::Permissions::from_mode(0o644))?;
    }
    let package = release.output.join(format!("tcpmon_{version}_{}.deb", release.arch.debian()));
    process::run(
        release
            .command("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", "--build"])
            .arg(&folder)
            .arg(&package)
            .stdout(std::process::Stdio::null()),
    )?;
    Ok(package)
}

/// Builds an RPM package.
pub fn rpm(release: &Release, tree: &Path) -> Result<()> {
    let top = release.scratch.join("rpm");
    fs::create_dir(&top)?;
    let define = |name: &str, value: &str| ["--define".to_owned(), format!("{name} {value}")];
    process::output(
        release
            .command("rpmbuild")
            .args(["-bb", "--quiet", "--target", &format!("{}-linux", release.arch.gnu())])
            .args(define("_topdir", &top.to_string_lossy()))
            .args(define("_rpmdir", &release.output.to_string_lossy()))
            .args(define("_rpmfilename", "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm"))
            .args(define("_buildhost", "localhost"))
            .args(define("use_source_date_epoch_as_buildtime", "1"))
            .args(define("clamp_mtime_to_source_date_epoch", "1"))
            .args(define("_binary_payload", "w9.gzdio"))
            .args(define("tcpmon_version", &release.version))
            .args(define("tcpmon_tree", &tree.to_string_lossy()))
            .arg(workspace::root().join("packaging/tcpmon.spec")),
    )?;
    let package = release.output.join(format!("tcpmon-{}-1.{}.rpm", release.version, release.arch.gnu()));
    fs::metadata(&package).with_context(|| format!("rpmbuild has not written {}", package.display()))?;
    Ok(())
}

/// Copies a folder with the times of its files.
pub fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    process::run(Command::new("cp").arg("--archive").arg(from).arg(to))
}
