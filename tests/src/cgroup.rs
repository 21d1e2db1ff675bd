//! Control groups (v2) that are created for a test.

use std::fs;
use std::path::{Path, PathBuf};

use crate::must;

/// A control group. Dropping it moves its processes back into the root and removes it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    root: PathBuf,
}

impl Cgroup {
    /// Creates a control group below the root, with a name of this process.
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
