//! `cargo xtask run`: runs tcpmon from this checkout.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{build, process::step, setup};

/// Builds the release binary and then execs it, so that signals and the exit status are tcpmon's own.
pub fn run(arguments: &[OsString]) -> Result<()> {
    step("setup", setup::run)?;
    let tcpmon = if need_all_features(arguments) { build::release_with_all_features()? } else { build::release()? };
    let error = Command::new(&tcpmon).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", tcpmon.display()))
}

/// Whether tcpmon can do what these arguments ask for only with features that a plain build lacks.
fn need_all_features(arguments: &[OsString]) -> bool {
    let needs = |argument: &OsString| {
        let argument = argument.to_string_lossy();
        let ends = [".parquet", ".pftrace", ".perfetto-trace", ".csv", ".zst"];
        let format = argument.strip_prefix("--format=").unwrap_or(&argument);
        ends.iter().any(|end| argument.ends_with(end))
            || ["parquet", "perfetto", "csv"].contains(&format)
            || argument.starts_with("--web.config.file")
    };
    arguments.iter().any(needs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_and_tls_need_all_features() {
        let need = |line: &str| need_all_features(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["daemon --max-groups 7", "trace --all --output run.jsonl.gz", "report run.jsonl --format json"] {
            assert!(!need(line), "{line}");
        }
        for line in [
            "trace --all --output run.parquet",
            "trace --all --output=run.csv",
            "convert run.jsonl.zst -",
            "convert --format perfetto run.jsonl -",
            "trace --all --format=csv",
            "daemon --web.config.file web.yml",
        ] {
            assert!(need(line), "{line}");
        }
    }
}
