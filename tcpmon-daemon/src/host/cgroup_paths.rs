//! Paths of control groups: by id, which a walk through cgroup v2 finds, or by process from `/proc`.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::{DirEntryExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{cgroup::root, file::read_text};

/// Maximum number of control groups in one walk. Groups that a walk has not reached are looked up by process.
const MAX_FOUND: usize = 20_000;

/// Minimum time between two walks; the second constant is the minimum as a multiple of the time that the last walk
/// took.
const WALK_INTERVAL: Duration = Duration::from_secs(1);
const WALK_SHARE: u32 = 50;

/// Hierarchies of cgroup v1 in which systemd and container runtimes place processes.
const V1: [&str; 2] = ["name=systemd", "memory"];

/// See the module documentation.
#[derive(Debug)]
pub struct CgroupPaths {
    /// Where cgroup v2 is mounted.
    root: Option<PathBuf>,
    /// Whether processes are (also) placed in cgroup v1.
    has_v1: bool,
    /// Path below the root by id, as the last walk found it. The kernel gives no id to a second group.
    found: HashMap<u64, String>,
    next_walk: Instant,
}

impl CgroupPaths {
    /// The paths on the running host; nothing has been looked up yet.
    pub fn of_this_host() -> Self {
        let has_v1 = read_text("/proc/self/cgroup").is_ok_and(|text| v1(&text).next().is_some());
        Self { root: root().ok(), has_v1, found: HashMap::new(), next_walk: Instant::now() }
    }

    /// The paths of the control groups of a process, one per hierarchy. First comes cgroup v2, with the group `cgroup`,
    /// which the process was in when the programs saw it. If no group with that id is found (as in a container that
    /// sees only its own), and in cgroup v1, it is the group that the process is in now: none if it has ended.
    pub fn paths(&mut self, tgid: u32, cgroup: u64) -> Vec<String> {
        let mut paths = Vec::from_iter(self.by_id(cgroup));
        if (paths.is_empty() || self.has_v1)
            && let Ok(text) = read_text(format!("/proc/{tgid}/cgroup"))
        {
            if paths.is_empty() {
                paths.extend(v2(&text).map(str::to_owned));
            }
            paths.extend(v1(&text).map(str::to_owned));
        }
        paths
    }

    fn by_id(&mut self, id: u64) -> Option<String> {
        let root = self.root.as_ref().filter(|_| id != 0)?;
        if !self.found.contains_key(&id) && Instant::now() >= self.next_walk {
            let start = Instant::now();
            self.found = walk(root);
            self.next_walk = Instant::now() + WALK_INTERVAL.max(start.elapsed() * WALK_SHARE);
        }
        self.found.get(&id).cloned()
    }
}

/// The paths of all control groups below this directory, by id. Groups that vanish meanwhile are left out.
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

/// The path in cgroup v2, from the text of `/proc/PID/cgroup`.
fn v2(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The paths in cgroup v1, from the same text.
fn v1(text: &str) -> impl Iterator<Item = &str> {
    V1.iter().filter_map(|wanted| {
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
    fn paths_are_those_of_the_hierarchies_in_which_processes_are_placed() {
        for (text, new, old) in [
            ("0::/system.slice/nginx.service\n", Some("/system.slice/nginx.service"), vec![]),
            ("12:cpu,cpuacct:/docker/ab\n11:memory:/docker/ab\n1:name=systemd:/s\n", None, vec!["/s", "/docker/ab"]),
            (
                "11:hugetlb,memory:/docker/ab\n0::/system.slice/c.service\n",
                Some("/system.slice/c.service"),
                vec!["/docker/ab"],
            ),
            // A hierarchy for a special purpose does not place processes.
            ("1:net_cls:/excluded\n0::/system.slice/b:c.service\n", Some("/system.slice/b:c.service"), vec![]),
            ("3:cpuset:/\n", None, vec![]),
            ("nonsense", None, vec![]),
        ] {
            assert_eq!((v2(text), v1(text).collect::<Vec<_>>()), (new, old), "{text:?}");
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
