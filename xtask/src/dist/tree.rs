//! The files of all packages, staged below one folder as they will be installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::Release;
use crate::{
    process,
    workspace::{self, HOST_PACKAGES},
};

/// Documents of the checkout that users read, and the folder that has more.
const DOCUMENTS: [&str; 14] = [
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "docs/causes.md",
    "docs/doctor.md",
    "docs/faq.md",
    "docs/kubernetes.md",
    "docs/metrics.md",
    "docs/operating.md",
    "docs/report.md",
    "docs/security.md",
    "docs/top.md",
    "docs/trace-format.md",
    "docs/transfer-nodes.md",
];
const RUNBOOKS: &str = "docs/runbooks";

/// What is loaded into Grafana and Prometheus.
const DASHBOARDS: [&str; 5] = ["alerts.yaml", "fleet.json", "host.json", "receivers.json", "rules.yaml"];

/// Stages all files, and returns the folder.
pub fn stage(release: &Release, binary: &Path) -> Result<PathBuf> {
    let tree = release.scratch.join("tree");
    let root = workspace::root();
    let file = |from: &Path, to: &str| copy(from, &tree.join(to));
    file(binary, "usr/bin/tcpmon")?;
    file(&root.join("packaging/tcpmon.service"), "usr/lib/systemd/system/tcpmon.service")?;
    file(&root.join("packaging/tcpmon.socket"), "usr/lib/systemd/system/tcpmon.socket")?;
    file(&root.join("packaging/tcpmon.sysusers"), "usr/lib/sysusers.d/tcpmon.conf")?;
    for document in DOCUMENTS {
        let name = Path::new(document).file_name().context("a document has a name")?;
        copy(&root.join(document), &tree.join("usr/share/doc/tcpmon").join(name))?;
    }
    for runbook in workspace::files(&root.join(RUNBOOKS))? {
        let name = runbook.file_name().context("a runbook has a name")?;
        copy(&runbook, &tree.join("usr/share/doc/tcpmon/runbooks").join(name))?;
    }
    for dashboard in DASHBOARDS {
        file(&root.join("dashboards").join(dashboard), &format!("usr/share/tcpmon/{dashboard}"))?;
    }
    // Debian's policy asks for a file of this name.
    let licences = "tcpmon: MIT OR Apache-2.0, see LICENSE-MIT and LICENSE-APACHE in this folder.\n\
                    Its eBPF programs: MIT OR GPL-2.0-only.\n\
                    uPlot, which draws the graphs of `tcpmon report --format html`: MIT.\n\n";
    let uplot = fs::read_to_string(root.join("tcpmon-daemon/src/report/page/uPlot.LICENSE"))?;
    let licences = format!("{licences}{uplot}");
    fs::write(tree.join("usr/share/doc/tcpmon/copyright"), licences)?;

    // Built for the host, because the packed binary may be for another architecture.
    process::run(workspace::cargo().args(["build", "--quiet"]).args(HOST_PACKAGES).args(["--example", "manuals"]))?;
    let manuals = release.scratch.join("manuals");
    process::run(Command::new(workspace::target().join("debug/examples/manuals")).arg(&manuals))?;
    for manual in workspace::files(&manuals)? {
        let name = manual.file_name().context("a manual has a name")?.to_string_lossy().into_owned();
        match name.as_str() {
            "tcpmon.bash" => file(&manual, "usr/share/bash-completion/completions/tcpmon")?,
            "tcpmon.fish" => file(&manual, "usr/share/fish/vendor_completions.d/tcpmon.fish")?,
            "tcpmon.toml" => {
                fs::create_dir_all(tree.join("etc/tcpmon"))?;
                fs::write(tree.join("etc/tcpmon/tcpmon.toml"), commented(&fs::read_to_string(&manual)?))?;
            }
            "_tcpmon" => file(&manual, "usr/share/zsh/vendor-completions/_tcpmon")?,
            page => {
                process::run(Command::new("gzip").args(["--no-name", "--best"]).arg(&manual))?;
                let packed = manuals.join(format!("{page}.gz"));
                file(&packed, &format!("usr/share/man/man1/{page}.gz"))?;
            }
        }
    }
    // rpmbuild, dpkg-deb and tar copy the modes and times of files.
    process::run(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(&tree))?;
    process::run(Command::new("find").arg(&tree).args([
        "-exec",
        "touch",
        "--no-dereference",
        "--date",
        &format!("@{}", release.epoch),
        "{}",
        "+",
    ]))?;
    Ok(tree)
}

/// The settings as a config file in which each default is a comment.
fn commented(settings: &str) -> String {
    let mut text = String::from(
        "# Configuration of `tcpmon daemon`. Each key has its default: remove the # before it to change it, then run\n\
         # `systemctl reload tcpmon`, or `restart` for what a warning in the log names.\n\n",
    );
    for line in settings.lines() {
        let is_key = !(line.is_empty() || line.starts_with(['#', '[']));
        text += if is_key { "#" } else { "" };
        text += line;
        text += "\n";
    }
    text
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::commented;

    #[test]
    fn keys_are_comments_and_sections_are_not() {
        let text = commented("# Groups\nmax_groups = 200\n\n[web]\n# Address\nlisten = []\n");
        assert!(text.ends_with("# Groups\n#max_groups = 200\n\n[web]\n# Address\n#listen = []\n"), "{text}");
    }
}
