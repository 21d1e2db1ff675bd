//! The container image, by umoci, which needs no daemon: the binary and the libraries that it is linked to, no shell.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};

use super::Release;
use crate::{process, vm};

/// Writes `NAME-image.tar.gz`, an OCI image layout with the tag `VERSION`.
pub fn build(release: &Release, binary: &Path, name: &str) -> Result<()> {
    let root = release.scratch.join("image-root");
    for folder in ["etc/tcpmon", "usr/bin", "proc", "sys", "dev"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::copy(binary, root.join("usr/bin/tcpmon"))?;
    let system = vm::Root::of(release.arch)?;
    for library in system.libraries(binary)? {
        let inside = system.inside(&library);
        let to = root.join(inside.strip_prefix("/").context("a library has an absolute path")?);
        fs::create_dir_all(to.parent().context("a library is in a folder")?)?;
        fs::copy(&library, to)?;
    }
    let layer = release.scratch.join("layer.tar");
    release.tar(&root, &layer)?;

    let layout = release.scratch.join("image");
    let image = format!("{}:{}", layout.display(), release.version);
    let time = process::output(
        Command::new("date").args(["--utc", "--iso-8601=seconds", "--date"]).arg(format!("@{}", release.epoch)),
    )?;
    let umoci = |arguments: &[&str]| process::output(release.command("umoci").args(arguments));
    umoci(&["init", "--layout", &layout.to_string_lossy()])?;
    umoci(&["new", "--image", &image])?;
    umoci(&["raw", "add-layer", "--image", &image, "--history.created", &time, &layer.to_string_lossy()])?;
    umoci(&[
        "config",
        "--image",
        &image,
        "--history.created",
        &time,
        "--created",
        &time,
        "--architecture",
        release.arch.debian(),
        "--os",
        "linux",
        "--config.entrypoint",
        "/usr/bin/tcpmon",
        "--config.cmd",
        "daemon",
        "--config.exposedports",
        "10793/tcp",
        "--config.label",
        &format!("org.opencontainers.image.version={}", release.version),
    ])?;
    umoci(&["gc", "--layout", &layout.to_string_lossy()])?;
    release.tar(&layout, &release.output.join(format!("{name}-image.tar.gz")))
}
