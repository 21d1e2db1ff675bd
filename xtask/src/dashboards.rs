//! `cargo xtask dashboards`: generates the dashboards with `dashboards/generate.py`, which uses Grafana's own SDK.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{process, setup, workspace};

/// Writes the dashboards, or with `check` reports whether they, the alerts and their tests are correct.
pub fn run(check: bool) -> Result<()> {
    setup::test_packages()?;
    let folder = workspace::root().join("dashboards");
    let python = environment(&folder.join("requirements.txt"))?;
    let mut command = Command::new(python);
    // -B: no compiled files next to the sources.
    command.arg("-B").arg(folder.join("generate.py"));
    if check {
        command.arg("--check");
    }
    process::run(&mut command)
}

/// The interpreter of a virtual environment that has the packages; the environment is recreated when the list changes.
fn environment(requirements: &Path) -> Result<PathBuf> {
    let folder = workspace::root().join("target/dashboards");
    let wanted = fs::read(requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    let stamp = folder.join("requirements.txt");
    let python = folder.join("bin/python");
    if fs::read(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(python);
    }
    process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    process::run(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
            .arg(requirements),
    )?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}
