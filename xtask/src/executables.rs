//! The executables that cargo built, according to its messages.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use cargo_metadata::{Artifact, Message};

use crate::{
    arch::Arch,
    process,
    workspace::{self, HOST_PACKAGES},
};

/// An executable that cargo built.
#[derive(Debug)]
pub struct Executable {
    /// Whether it is an integration test, not a binary.
    pub is_test: bool,
    pub name: String,
    pub path: PathBuf,
}

/// Builds the integration tests and the programs that they run.
pub fn tests_and_programs(arch: Arch) -> Result<Vec<Executable>> {
    built(arch.cargo("test").args(HOST_PACKAGES).args(["--no-run", "--test", "*"]), "tests")
}

/// Builds with this command, and returns the executables of the package in a folder of the workspace.
pub fn built(cargo: &mut Command, folder: &str) -> Result<Vec<Executable>> {
    let messages = process::output(cargo.arg("--message-format=json-render-diagnostics"))?;
    executables(&messages, &workspace::root().join(folder).join("Cargo.toml"))
}

/// A package's executables in cargo's messages, without the unit tests of binaries.
fn executables(messages: &str, manifest: &Path) -> Result<Vec<Executable>> {
    let mut found = Vec::new();
    for message in Message::parse_stream(messages.as_bytes()) {
        let Message::CompilerArtifact(Artifact { manifest_path, target, profile, executable: Some(path), .. }) =
            message?
        else {
            continue;
        };
        if manifest_path == manifest && target.is_test() == profile.test {
            found.push(Executable { is_test: target.is_test(), name: target.name, path: path.into() });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tests_and_binaries_are_told_apart_in_cargos_messages() -> Result<()> {
        let line = |manifest: &str, kind: &str, name: &str, test: bool, executable: Option<&str>| {
            let target = json!({"kind": [kind], "crate_types": ["bin"], "name": name, "src_path": "/p/main.rs"});
            let flags = json!({"opt_level": "0", "debug_assertions": true, "overflow_checks": true, "test": test});
            json!({
                "reason": "compiler-artifact", "package_id": "p", "manifest_path": manifest, "target": target,
                "profile": flags, "features": [], "filenames": [], "executable": executable, "fresh": true,
            })
            .to_string()
        };
        let messages = [
            line("/p/Cargo.toml", "test", "bytes", true, Some("/t/bytes-1")),
            line("/p/Cargo.toml", "bin", "init", false, Some("/t/init")),
            line("/p/Cargo.toml", "bin", "init", true, Some("/t/init-2")),
            line("/p/Cargo.toml", "lib", "tcpmon_tests", false, None),
            line("/q/Cargo.toml", "test", "layout", true, Some("/t/layout")),
            "{\"reason\":\"build-finished\",\"success\":true}".to_owned(),
        ];
        let found = executables(&messages.join("\n"), Path::new("/p/Cargo.toml"))?;
        let found: Vec<_> = found.iter().map(|found| (found.name.as_str(), found.path.to_str())).collect();
        assert_eq!(found, [("bytes", Some("/t/bytes-1")), ("init", Some("/t/init"))]);
        Ok(())
    }
}
