//! The package under a systemd that runs as process 1, on a kernel of the matrix.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{process, vm};

/// The kernel series.
const KERNEL: &str = "6.12";

/// The first program: it reports that the machine has booted, inserts the kernel modules, and becomes systemd.
const INIT: &str = "#!/bin/sh\nmount -t devtmpfs dev /dev\necho booted >/dev/ttyS1\n\
                    for module in /modules/*; do insmod $module; done\nexec /lib/systemd/systemd\n";

/// Starts `unit.sh` once the system is up.
const SERVICE: &str = "[Unit]\nAfter=multi-user.target\n[Service]\nType=idle\nExecStart=/tmp/unit.sh\n\
                       TimeoutStartSec=infinity\n[Install]\nWantedBy=default.target\n";

/// Boots this root, in which the packages are in `/tmp`; `initramfs` is written.
pub fn run(root: &Path, initramfs: &Path) -> Result<()> {
    for (path, text) in [
        ("init", INIT),
        ("tmp/unit.sh", concat!("#!/bin/sh\n", include_str!("trial/common.sh"), include_str!("trial/unit.sh"))),
        ("etc/systemd/system/trial.service", SERVICE),
    ] {
        let path = root.join(path);
        fs::write(&path, text)?;
        let mode = if path.extension().is_some_and(|extension| extension == "service") { 0o644 } else { 0o755 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    let (kernel, modules) = vm::kernel(KERNEL)?;
    fs::create_dir(root.join("modules"))?;
    for (number, module) in modules.iter().enumerate() {
        fs::copy(module, root.join(format!("modules/{number:03}.ko")))?;
    }
    fs::write(root.join("etc/machine-id"), "")?;
    let systemctl =
        |arguments: &[&str]| process::output(Command::new("systemctl").arg("--root").arg(root).args(arguments));
    systemctl(&["enable", "trial.service"])?;
    systemctl(&["set-default", "multi-user.target"])?;
    // The first two would empty /tmp, and the third waits for a device that udev would have to announce.
    systemctl(&["mask", "systemd-tmpfiles-setup.service", "tmp.mount", "serial-getty@ttyS0.service"])?;
    process::run(
        Command::new("sh")
            .args(["-c", "cd \"$1\" && find . | cpio --quiet --create --format=newc >\"$2\"", "sh"])
            .arg(root)
            .arg(initramfs),
    )?;
    let (well, console, results) = vm::boot(kernel, initramfs.to_owned())?;
    if !well {
        bail!("under systemd:\n{results}\n--- the last lines of the console:\n{}", process::last_lines(&console));
    }
    let exposure = results.lines().find(|line| line.contains("Overall exposure level")).context("no exposure")?;
    println!("{exposure}");
    let (_, rest) = results.split_once("status\n").context("no status")?;
    let (status, _) = rest.split_once("\nend of status").context("the status does not end")?;
    everything_is_visible(&serde_json::from_str(status)?)
}

/// Checks that no probe and no source is off, and that the daemon is confined.
fn everything_is_visible(status: &Value) -> Result<()> {
    let entries = |list: &str| status[list].as_array().cloned().with_context(|| format!("no {list} in {status}"));
    for probe in entries("probes")? {
        // An older kernel has no such tracepoint.
        let attached = probe["verdict"] == "attached" || probe["name"] == "tcp_rcvbuf_grow";
        ensure!(attached, "the unit hides a probe: {probe}");
    }
    for source in entries("sources")? {
        ensure!(source["available"] == true && source["reason"] == "", "the unit hides a source: {source}");
    }
    let sandbox = &status["sandbox"];
    ensure!(sandbox["system_calls"] == true && sandbox["files"] == true, "it is not confined: {sandbox}");
    Ok(())
}
