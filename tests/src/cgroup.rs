//! Control groups that are created for a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::must;

/// A control group (v2). Dropping it moves its processes back into the root and removes it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    root: PathBuf,
}

impl Cgroup {
    /// Creates a control group below the root, with this process's id in its name.
    #[track_caller]
    pub fn new(name: &str) -> Self {
        let mounts = must(fs::read_to_string("/proc/self/mountinfo"), "reading what is mounted");
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
        let root = PathBuf::from(mount.unwrap_or_else(|| panic!("cgroup v2 is not mounted:\n{mounts}")));
        let path = root.join(format!("tcpmon-{name}-{}", std::process::id()));
        must(fs::create_dir(&path), format!("making {}", path.display()));
        Self { path, root }
    }

    /// Creates a control group in this one.
    #[track_caller]
    pub fn child(&self, name: &str) -> Self {
        let path = self.path.join(name);
        must(fs::create_dir(&path), format!("making {}", path.display()));
        Self { path, root: self.root.clone() }
    }

    /// Moves a process into it, with its threads.
    #[track_caller]
    pub fn take(&self, pid: u32) {
        let file = self.path.join("cgroup.procs");
        must(fs::write(&file, pid.to_string()), format!("writing {pid} to {}", file.display()));
    }

    /// Its path in the file system.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for pid in fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(self.root.join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.path);
    }
}

/// A control group with a low memory limit, of the cgroup version that has the memory controller. Dropping it removes
/// it, so all of its processes must have ended.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    /// Where the controller had to be enabled for this, if it was not before.
    enabled: Option<PathBuf>,
}

impl MemoryCgroup {
    /// Creates a control group below the root with at most this much memory.
    #[track_caller]
    pub fn new(name: &str, bytes: u64) -> Self {
        let mounts = must(fs::read_to_string("/proc/self/mountinfo"), "reading what is mounted");
        let root = |is: &dyn Fn(&str) -> bool| {
            let line = mounts.lines().find(|line| is(line))?;
            Some(PathBuf::from(line.split(' ').nth(4)?))
        };
        let old = root(&|line| line.contains(" - cgroup ") && line.ends_with("memory"));
        let new = root(&|line| line.contains(" - cgroup2 "));
        let (root, limit, enabled) = match (old, new) {
            (Some(root), _) => (root, "memory.limit_in_bytes", None),
            (None, Some(root)) => {
                let control = root.join("cgroup.subtree_control");
                let before = must(fs::read_to_string(&control), format!("reading {}", control.display()));
                let is_enabled = before.split_whitespace().any(|name| name == "memory");
                must(fs::write(&control, "+memory"), format!("writing +memory to {}", control.display()));
                (root, "memory.max", (!is_enabled).then_some(control))
            }
            (None, None) => panic!("no control groups are mounted:\n{mounts}"),
        };
        let path = root.join(format!("tcpmon-{name}-{}", std::process::id()));
        must(fs::create_dir(&path), format!("making {}", path.display()));
        let group = Self { path, enabled };
        must(fs::write(group.path.join(limit), bytes.to_string()), format!("setting {limit}"));
        group
    }

    /// A command that runs a program in it.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        let script = "echo $$ >\"$1\" && shift && exec \"$@\"";
        command.args(["-c", script, "sh"]).arg(self.path.join("cgroup.procs")).arg(program);
        command
    }

    /// Its path in the file system.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let removed = fs::remove_dir(&self.path);
        let disabled = self.enabled.as_ref().map_or(Ok(()), |control| fs::write(control, "-memory"));
        if let Err(error) = removed.and(disabled) {
            eprintln!("{}: {error}", self.path.display());
        }
    }
}
