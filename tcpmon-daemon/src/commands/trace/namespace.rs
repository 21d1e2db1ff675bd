//! Whether a process id or control group that a user gives here means the same to the programs in the kernel.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Inode of the first PID namespace (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// A process or control group was given as a container sees it, and the programs know only the host's view.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum Contained {
    /// A process.
    #[error(
        "--pid {0}: tcpmon runs in a PID namespace of its own, where processes have other numbers than the kernel's: \
         run it in the host's (docker run --pid=host, hostPID: true), or choose by --comm, --cgroup or --port"
    )]
    Pid(u32),
    /// A control group: the programs find it by its depth from the host's root.
    #[error(
        "--cgroup {}: {} is not the host's root of control groups, from which the kernel counts: run tcpmon in the \
         host's control-group namespace (docker run --cgroupns=host), or choose by --comm or --port",
        .path.display(),
        .root.display()
    )]
    Cgroup {
        /// As given.
        path: PathBuf,
        /// Where cgroup v2 is mounted.
        root: PathBuf,
    },
}

/// Refuses process ids that would match other processes. If the namespace cannot be determined, nothing is refused.
pub(super) fn check_pids(pids: &[u32]) -> Result<(), Contained> {
    let is_first = |namespace: fs::Metadata| namespace.ino() == FIRST_PID_NAMESPACE;
    match pids.first() {
        Some(pid) if !fs::metadata("/proc/self/ns/pid").map_or(true, is_first) => Err(Contained::Pid(*pid)),
        _ => Ok(()),
    }
}

/// Refuses a control group whose depth from the host's root is not known.
pub(super) fn check_cgroup(path: &Path, root: &Path) -> Result<(), Contained> {
    // Every control group except the root has this file (`CFTYPE_NOT_ON_ROOT` in `kernel/cgroup/cgroup.c`).
    if root.join("cgroup.events").exists() {
        return Err(Contained::Cgroup { path: path.to_owned(), root: root.to_owned() });
    }
    Ok(())
}
