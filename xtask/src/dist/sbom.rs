//! What the binary was made from, in the format of CycloneDX 1.5.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result};
use cargo_metadata::{CargoOpt, DependencyKind, MetadataCommand, PackageId};
use serde_json::{Value, json};

use super::Release;
use crate::workspace;

/// Writes the list of all crates that are compiled into the binary.
pub fn write(release: &Release, to: &Path) -> Result<()> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace::root().join("Cargo.toml"))
        .features(CargoOpt::SomeFeatures(Vec::new()))
        .other_options(vec!["--locked".into(), "--filter-platform".into(), release.arch.target()])
        .exec()?;
    let graph = metadata.resolve.as_ref().context("cargo metadata has no graph of dependencies")?;
    let daemon = metadata.packages.iter().find(|package| *package.name == "tcpmon-daemon");
    let daemon = &daemon.context("the workspace has no tcpmon-daemon")?.id;
    let mut reached: BTreeSet<&PackageId> = BTreeSet::new();
    let mut next = vec![daemon];
    while let Some(id) = next.pop() {
        if reached.insert(id) {
            let node = graph.nodes.iter().find(|node| node.id == *id).context("a dependency is in the graph")?;
            let compiled_in = |dependency: &&cargo_metadata::NodeDep| {
                dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
            };
            next.extend(node.deps.iter().filter(compiled_in).map(|dependency| &dependency.pkg));
        }
    }
    let mut components: Vec<Value> = Vec::new();
    for id in reached.iter().filter(|id| **id != daemon) {
        let package = &metadata[*id];
        let (name, version) = (package.name.to_string(), package.version.to_string());
        let mut component = json!({
            "type": "library",
            "bom-ref": format!("{name}@{version}"),
            "name": name,
            "version": version,
            "purl": format!("pkg:cargo/{name}@{version}"),
        });
        if let Some(license) = &package.license {
            // An old way to write OR, which is not SPDX.
            component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
        }
        components.push(component);
    }
    components.sort_by_key(|component| component["bom-ref"].to_string());
    let sbom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": "tcpmon",
            "name": "tcpmon",
            "version": release.version,
            "licenses": [{ "expression": "MIT OR Apache-2.0" }],
        }},
        "components": components,
    });
    Ok(fs::write(to, serde_json::to_string_pretty(&sbom)? + "\n")?)
}
