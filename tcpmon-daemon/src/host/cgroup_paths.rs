//! Paths of control groups: by id, which a walk through cgroup v2 finds, or by process from `/proc`.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::{DirEntryExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::cgroup::root;
use crate::model::cgroups::Process;

/// A walk ends after so many control groups. Those that it has not found are looked up by process.
const MAX_FOUND: usize = 20_000;

/// At most one walk in this time, and in this many times what the last one took.
const WALK_INTERVAL: Duration = Duration::from_secs(1);
const WALK_SHARE: u32 = 50;

/// Hierarchies of cgroup v1 in which systemd or a container runtime places processes, best first.
const V1: [&str; 2] = ["memory", "name=systemd"];

/// See the module documentation.
#[derive(Debug)]
pub struct CgroupPaths {
    /// Where cgroup v2 is mounted; `None` if processes are placed in cgroup v1.
    root: Option<PathBuf>,
    /// Path below the root by id, as the last walk found it. The kernel gives no id to a second group.
    found: HashMap<u64, String>,
    next_walk: Instant,
}

impl CgroupPaths {
    /// Of the running host.
    pub fn new() -> Self {
        let is_v1 = fs::read_to_string("/proc/self/cgroup").is_ok_and(|text| v1(&text).is_some());
        Self { root: root().ok().filter(|_| !is_v1), found: HashMap::new(), next_walk: Instant::now() }
    }

    /// The path of the control group in which the process was when the programs saw it; with cgroup v1, or if no group
    /// with that id is found (as in a container that sees only its own), of the one in which it is now. `None` if the
    /// process has ended, too.
    pub fn path(&mut self, process: &Process) -> Option<String> {
        if let Some(root) = &self.root
            && process.cgroup != 0
        {
            if !self.found.contains_key(&process.cgroup) && Instant::now() >= self.next_walk {
                let start = Instant::now();
                self.found = walk(root);
                self.next_walk = Instant::now() + WALK_INTERVAL.max(start.elapsed() * WALK_SHARE);
            }
            if let Some(path) = self.found.get(&process.cgroup) {
                return Some(path.clone());
            }
        }
        path_now(&fs::read_to_string(format!("/proc/{}/cgroup", process.tgid)).ok()?)
    }
}

/// The paths of all control groups below this directory, by id. What vanishes meanwhile is left out.
fn walk(root: &Path) -> HashMap<u64, String> {
    let id = fs::metadata(root).map(|root| root.ino());
    let mut found: HashMap<u64, String> = id.into_iter().map(|id| (id, "/".to_owned())).collect();
    let mut waiting = vec![String::new()];
    while let Some(path) = waiting.pop()
        && found.len() < MAX_FOUND
    {
        for (id, name) in children(&root.join(path.trim_start_matches('/'))).unwrap_or_default() {
            let path = format!("{path}/{name}");
            found.insert(id, path.clone());
            waiting.push(path);
        }
    }
    found
}

/// Ids and names of the directories in a directory. The id is the inode number.
fn children(directory: &Path) -> io::Result<Vec<(u64, String)>> {
    let mut children = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            children.push((entry.ino(), entry.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(children)
}

/// The path in the text of `/proc/PID/cgroup`.
fn path_now(text: &str) -> Option<String> {
    v1(text).or_else(|| text.lines().find_map(|line| line.strip_prefix("0::"))).map(str::to_owned)
}

/// The path in cgroup v1, if processes are placed there.
fn v1(text: &str) -> Option<&str> {
    V1.iter().find_map(|wanted| {
        text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|controller| controller == *wanted).then_some(path)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_that_of_the_hierarchy_in_which_processes_are_placed() {
        for (text, path) in [
            ("0::/system.slice/nginx.service\n", Some("/system.slice/nginx.service")),
            // Docker with the cgroupfs driver under cgroup v1, and beside an unused cgroup v2.
            ("12:cpu,cpuacct:/docker/ab\n11:memory:/docker/ab\n1:name=systemd:/docker/ab\n", Some("/docker/ab")),
            (
                "11:memory:/docker/ab\n1:name=systemd:/docker/ab\n0::/system.slice/containerd.service\n",
                Some("/docker/ab"),
            ),
            ("4:memory:/user.slice\n1:name=systemd:/user.slice/session-1.scope\n0::/\n", Some("/user.slice")),
            // Only systemd's own hierarchy, as with cgroup_disable=memory.
            ("2:cpuset:/\n1:name=systemd:/system.slice/a.service\n", Some("/system.slice/a.service")),
            // One hierarchy of cgroup v1 for a special purpose does not place processes.
            ("1:net_cls:/excluded\n0::/system.slice/b:c.service\n", Some("/system.slice/b:c.service")),
            ("3:cpuset:/\n", None),
            ("", None),
            ("nonsense", None),
        ] {
            assert_eq!(path_now(text).as_deref(), path, "{text:?}");
        }
    }

    #[test]
    fn a_walk_finds_every_directory_by_its_inode_number() {
        let root = tempfile::tempdir().unwrap();
        for path in ["a/b/c", "a/d", "e"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        fs::write(root.path().join("a/cgroup.procs"), "").unwrap();
        let found = walk(root.path());
        assert_eq!(found.len(), 6);
        for path in ["/", "/a", "/a/b", "/a/b/c", "/a/d", "/e"] {
            let id = fs::metadata(root.path().join(&path[1..])).unwrap().ino();
            assert_eq!(found.get(&id).map(String::as_str), Some(path));
        }
    }
}
