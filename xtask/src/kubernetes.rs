//! `cargo xtask kubernetes`: checks `deploy/kubernetes/` without a cluster.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{build, process, setup, workspace};

/// Builds the manifests, as `kubectl apply --kustomize` does.
const KUSTOMIZE: &str = "sigs.k8s.io/kustomize/kustomize/v5@v5.8.2";

/// Has the schemas of PodMonitor and PrometheusRule.
const OPERATOR: &str = "github.com/prometheus-operator/prometheus-operator@v0.93.0";

/// Installs what is needed, and checks.
pub fn run() -> Result<()> {
    setup::run()?;
    setup::test_packages()?;
    check(&build::release()?)
}

/// Checks the manifests with this tcpmon binary, and the join with kube-state-metrics.
pub fn check(tcpmon: &Path) -> Result<()> {
    let folder = workspace::root().join("deploy/kubernetes");
    let tools = workspace::root().join("target/kubernetes");
    let python = setup::python(&folder.join("requirements.txt"), &tools.join("python"))?;
    let kustomize = kustomize(&tools.join("bin"))?;
    process::run(
        Command::new(python).arg("-B").arg(folder.join("check.py")).arg(kustomize).arg(schemas()?).arg(tcpmon),
    )?;
    process::output(Command::new("promtool").args(["test", "rules"]).arg(folder.join("join_test.yaml")))?;
    println!("the manifests for Kubernetes are valid");
    Ok(())
}

fn kustomize(folder: &Path) -> Result<PathBuf> {
    let program = folder.join("kustomize");
    let version = KUSTOMIZE.split('@').next_back().unwrap_or_default();
    let installed = Command::new(&program).arg("version").output();
    if !installed.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(version)) {
        eprintln!("setup: installing {KUSTOMIZE}");
        process::output(Command::new("go").args(["install", KUSTOMIZE]).env("GOBIN", folder))
            .context("cannot install kustomize: it needs Go 1.24 or newer, and access to a module proxy")?;
    }
    Ok(program)
}

/// The folder with the definitions of the operator's kinds.
fn schemas() -> Result<PathBuf> {
    let module = process::output(Command::new("go").args(["mod", "download", "-json", OPERATOR]))
        .context("cannot download the definitions of the Prometheus operator")?;
    let module: Value = serde_json::from_str(&module)?;
    let folder = module["Dir"].as_str().context("go names no folder")?;
    Ok(Path::new(folder).join("example/prometheus-operator-crd"))
}
