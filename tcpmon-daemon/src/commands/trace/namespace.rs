//! Checks whether a process id or control group that the user gives means the same to the eBPF programs.

use std::path::{Path, PathBuf};

use crate::host::is_host_pid_namespace;

/// A process id or path of a control group is valid only inside a container: the programs need those of the host.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum InContainer {
    /// A process.
    #[error(
        "--pid {0}: tcpmon runs in a PID namespace of its own, in which process ids differ from those of the host: run \
         it in the PID namespace of the host (docker run --pid=host, hostPID: true), or filter by --comm, --cgroup \
         or --port"
    )]
    Pid(u32),
    /// A command, which has a process id here that the programs do not know.
    #[error(
        "tcpmon runs in a PID namespace of its own, so the eBPF programs do not know the process id of a command: run \
         it in the PID namespace of the host (docker run --pid=host, hostPID: true), or start the command by itself \
         and filter by --comm, --cgroup or --port"
    )]
    Command,
    /// A control group: the programs find it by its depth from the host's root.
    #[error(
        "--cgroup {}: {} is not the root control group of the host, from which the eBPF programs determine the depth \
         of a control group: run tcpmon in the cgroup namespace of the host (docker run --cgroupns=host), or filter \
         by --comm or --port",
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

/// Rejects process ids that would match other processes. If the namespace cannot be determined, nothing is rejected.
pub(super) fn check_pids(pids: &[u32], of_command: bool) -> Result<(), InContainer> {
    match pids.first() {
        Some(_) if of_command && !is_host_pid_namespace().unwrap_or(true) => Err(InContainer::Command),
        Some(pid) if !is_host_pid_namespace().unwrap_or(true) => Err(InContainer::Pid(*pid)),
        _ => Ok(()),
    }
}

/// Rejects a control group whose depth from the host's root is not known.
pub(super) fn check_cgroup(path: &Path, root: &Path) -> Result<(), InContainer> {
    // Every control group except the root has this file (`CFTYPE_NOT_ON_ROOT` in `kernel/cgroup/cgroup.c`).
    if root.join("cgroup.events").exists() {
        return Err(InContainer::Cgroup { path: path.to_owned(), root: root.to_owned() });
    }
    Ok(())
}
