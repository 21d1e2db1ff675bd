//! The Python package that reads traces, `python/`: its tests, with the tcpmon that was built. One of them traces a
//! real transfer, and runs the notebook on that.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::{process, setup, workspace};

/// Installs the package in an environment of its own, and runs its tests and its notebook.
pub fn test(tcpmon: &Path) -> Result<()> {
    let folder = workspace::root().join("python");
    let python = setup::python(&folder.join("tests/requirements.txt"), &workspace::target().join("python"))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps"];
    process::run(Command::new(&python).args(pip).arg(&folder))?;
    let pytest = ["-B", "-m", "pytest", "--quiet", "-p", "no:cacheprovider"];
    process::run_tests(Command::new(&python).args(pytest).arg(&folder).env("TCPMON_BIN", tcpmon))
}
