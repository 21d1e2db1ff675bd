//! Virtual environments of Python, for tools that are written in it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::process;

/// The interpreter of a virtual environment in `folder` that has the packages; the environment is recreated when the
/// list changes.
pub fn environment(requirements: &Path, folder: &Path) -> Result<PathBuf> {
    let wanted = fs::read(requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    let stamp = folder.join("requirements.txt");
    let python = folder.join("bin/python");
    if fs::read(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(python);
    }
    process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    process::run(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
            .arg(requirements),
    )?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}
