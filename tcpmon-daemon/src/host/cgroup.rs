//! Socket memory of control groups: `sock` in `memory.stat` of cgroup v2.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use super::file::{FileError, number, read, unescaped, unreadable};
use crate::host_state::CgroupSockets;

const MOUNTINFO: &str = "/proc/self/mountinfo";
const ABSENT_REMEDY: &str = "mount all of cgroup v2";

/// Maximum number of directories that one walk reads: the kernel computes each `memory.stat` when it is read.
const MAX_VISITED: usize = 1000;

/// Maximum number of groups that are shown separately.
const MAX_SHOWN: usize = 50;

/// Why the socket memory of control groups is not available.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No file system of type `cgroup2` is mounted.
    #[error("cgroup v2 is not mounted: mount it, or boot with systemd.unified_cgroup_hierarchy=1")]
    NotMounted,
    /// Another hierarchy has the memory controller, or the kernel was built without it.
    #[error("cgroup v2 has no memory controller: boot with systemd.unified_cgroup_hierarchy=1")]
    NoMemoryController,
    /// A file of the hierarchy cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Result of one walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupWalk {
    /// Leaf groups that hold socket memory, largest first; then `other`, if there are more.
    pub groups: Vec<CgroupSockets>,
    /// Groups that were found but not read, because there are too many. Groups below them were not found.
    pub not_visited: usize,
    /// Groups that could not be read, and why not the first of them. Groups below them were not found.
    pub unreadable: Option<(usize, String)>,
}

impl CgroupWalk {
    /// What this walk left out.
    pub fn omitted(&self) -> Option<String> {
        let not_visited = (self.not_visited > 0)
            .then(|| format!("only {MAX_VISITED} control groups were read: {} or more are missing", self.not_visited));
        let unreadable = self.unreadable.as_ref();
        let unreadable = unreadable.map(|(count, why)| format!("{count} control groups cannot be read: {why}"));
        let omitted: Vec<_> = not_visited.into_iter().chain(unreadable).collect();
        (!omitted.is_empty()).then(|| omitted.join("; "))
    }
}

/// Socket memory of the groups below the first mount of cgroup v2.
///
/// # Errors
/// cgroup v2 is not mounted, lacks the memory controller, or cannot be read or parsed.
pub fn socket_memory() -> Result<CgroupWalk, CgroupError> {
    walk(&root()?)
}

/// The mount point of cgroup v2 as this process sees it.
///
/// # Errors
/// cgroup v2 is not mounted, or the mounts cannot be read.
pub fn root() -> Result<PathBuf, CgroupError> {
    mount_point(&read(MOUNTINFO, "mount /proc")?).ok_or(CgroupError::NotMounted)
}

/// Socket memory of the groups below this root directory. Groups that vanish meanwhile are left out.
///
/// # Errors
/// There is no memory controller, or the root itself cannot be read or parsed.
pub fn walk(root: &Path) -> Result<CgroupWalk, CgroupError> {
    if !has_memory_controller(&read(root.join("cgroup.controllers"), ABSENT_REMEDY)?) {
        return Err(CgroupError::NoMemoryController);
    }
    // Depth first, so that a walk that is cut short has reached leaves. By name, so that these are always the same
    // ones.
    let mut waiting = vec![CgroupDirectory { path: String::new(), directory: root.to_owned(), capped: false }];
    let mut holders = Vec::new();
    let (mut visited, mut unreadable) = (0, None);
    while visited < MAX_VISITED
        && let Some(group) = waiting.pop()
    {
        visited += 1;
        let is_root = group.path.is_empty();
        match none_if_gone(group.read()) {
            Ok(Some(CgroupContent::Parent(children))) => waiting.extend(children),
            Ok(Some(CgroupContent::Leaf(holder))) if holder.bytes > 0 => holders.push(holder),
            Ok(Some(CgroupContent::Leaf(_)) | None) => {}
            Err(error) if is_root => return Err(error.into()),
            Err(error) => unreadable.get_or_insert_with(|| (0, error.to_string())).0 += 1,
        }
    }
    Ok(CgroupWalk { groups: largest(holders), not_visited: waiting.len(), unreadable })
}

/// A group that has the memory controller.
struct CgroupDirectory {
    /// Path below the root, without a trailing slash.
    path: String,
    directory: PathBuf,
    /// Whether an ancestor has a limit.
    capped: bool,
}

enum CgroupContent {
    Parent(Vec<CgroupDirectory>),
    Leaf(CgroupSockets),
}

impl CgroupDirectory {
    fn read(self) -> Result<CgroupContent, FileError> {
        let limit = read(self.directory.join("memory.max"), ABSENT_REMEDY);
        let capped = match limit {
            Ok(limit) => self.capped || limit.trim() != "max",
            // The host's root group has no limit.
            Err(error) if self.path.is_empty() => none_if_gone(Err(error))?.unwrap_or(false),
            Err(error) => return Err(error),
        };
        let names =
            subdirectories(&self.directory).map_err(|error| unreadable(&self.directory, error, ABSENT_REMEDY))?;
        // If the controller is not enabled for the children, what they use counts as this group's.
        if !names.is_empty()
            && has_memory_controller(&read(self.directory.join("cgroup.subtree_control"), ABSENT_REMEDY)?)
        {
            let child = |name: OsString| CgroupDirectory {
                path: format!("{}/{}", self.path, name.display()),
                directory: self.directory.join(name),
                capped,
            };
            return Ok(CgroupContent::Parent(names.into_iter().map(child).collect()));
        }
        let stat = read(self.directory.join("memory.stat"), ABSENT_REMEDY)?;
        let sock = stat.lines().find_map(|line| line.strip_prefix("sock "));
        let cgroup = if self.path.is_empty() { "/".to_owned() } else { self.path };
        let bytes = number("memory.stat", &format!("sock of {cgroup}"), sock)?;
        Ok(CgroupContent::Leaf(CgroupSockets { cgroup, capped, bytes }))
    }
}

/// `None` if a group vanished while it was being read: its files are not found, or have no device behind them (ENODEV).
fn none_if_gone<T>(result: Result<T, FileError>) -> Result<Option<T>, FileError> {
    match result {
        Err(FileError::Unreadable { source, .. })
            if source.kind() == io::ErrorKind::NotFound || source.raw_os_error() == Some(libc::ENODEV) =>
        {
            Ok(None)
        }
        result => result.map(Some),
    }
}

/// Names in reverse order, so that taking from the end takes the first name first.
fn subdirectories(directory: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name());
        }
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

/// Whether a list of controllers contains that of memory.
fn has_memory_controller(controllers: &str) -> bool {
    controllers.split_ascii_whitespace().any(|controller| controller == "memory")
}

/// The largest groups, which are shown, and one for the rest.
fn largest(mut holders: Vec<CgroupSockets>) -> Vec<CgroupSockets> {
    holders.sort_unstable_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.cgroup.cmp(&b.cgroup)));
    let rest = holders.split_off(holders.len().min(MAX_SHOWN));
    if !rest.is_empty() {
        let bytes = rest.iter().fold(0, |sum: u64, holder| sum.saturating_add(holder.bytes));
        holders.push(CgroupSockets { cgroup: "other".to_owned(), capped: false, bytes });
    }
    holders
}

/// The first mount point of cgroup v2 in the text of a `mountinfo`.
pub(crate) fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let directory = mount.split(' ').nth(4)?;
        (file_system.split(' ').next() == Some("cgroup2")).then(|| unescaped(directory.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    const STAT: &str = include_str!("captured/7.2/cgroup_child_memory.stat");

    /// A directory like the root of cgroup v2.
    fn root() -> TempDir {
        let root = tempfile::tempdir().expect("a directory");
        write(root.path().join("cgroup.controllers"), "cpuset cpu io memory pids\n").expect("written");
        write(root.path().join("cgroup.subtree_control"), "cpu memory pids\n").expect("written");
        write(root.path().join("memory.stat"), "anon 1\nsock 999\n").expect("written");
        root
    }

    fn group(root: &TempDir, path: &str, max: &str, handed_down: &str, stat: &str) {
        let directory = root.path().join(path);
        create_dir_all(&directory).expect("made");
        write(directory.join("memory.max"), format!("{max}\n")).expect("written");
        write(directory.join("cgroup.subtree_control"), format!("{handed_down}\n")).expect("written");
        write(directory.join("memory.stat"), stat).expect("written");
    }

    fn held(cgroup: &str, capped: bool, bytes: u64) -> CgroupSockets {
        CgroupSockets { cgroup: cgroup.into(), capped, bytes }
    }

    #[test]
    fn leaf_groups_with_socket_memory_are_sorted_largest_first() {
        let root = root();
        group(&root, "b.slice", "max", "memory", "sock 999\n");
        group(&root, "b.slice/captured.service", "max", "", STAT);
        group(&root, "b.slice/idle.service", "max", "", "anon 7\nsock 0\nsocks 5\n");
        group(&root, "a.scope", "max", "", "sock 300000\n");
        let walk = walk(root.path()).expect("walked");
        assert_eq!(walk.groups, [held("/a.scope", false, 300_000), held("/b.slice/captured.service", false, 266_240)]);
        assert_eq!((walk.not_visited, walk.omitted()), (0, None));
    }

    #[test]
    fn a_group_is_capped_by_its_own_limit_or_one_above() {
        let root = root();
        group(&root, "a", "max", "memory", "");
        group(&root, "a/free", "max", "", "sock 4\n");
        group(&root, "a/own", "67108864", "", "sock 3\n");
        group(&root, "b", "1000000", "memory", "");
        group(&root, "b/c", "max", "memory", "");
        group(&root, "b/c/above", "max", "", "sock 2\n");
        let groups = walk(root.path()).expect("walked").groups;
        assert_eq!(groups, [held("/a/free", false, 4), held("/a/own", true, 3), held("/b/c/above", true, 2)]);
    }

    #[test]
    fn a_group_that_does_not_enable_the_controller_for_its_children_counts_as_a_leaf() {
        let root = root();
        group(&root, "a", "max", "pids cpu", "sock 5\n");
        create_dir_all(root.path().join("a/without")).expect("made");
        assert_eq!(walk(root.path()).expect("walked").groups, [held("/a", false, 5)]);
    }

    #[test]
    fn a_root_alone_is_a_leaf_and_in_a_container_may_have_a_limit() {
        let root = root();
        assert_eq!(walk(root.path()).expect("walked").groups, [held("/", false, 999)]);
        write(root.path().join("memory.max"), "100\n").expect("written");
        assert_eq!(walk(root.path()).expect("walked").groups, [held("/", true, 999)]);
    }

    #[test]
    fn a_group_that_vanishes_is_left_out() {
        let root = root();
        group(&root, "stays", "max", "", "sock 5\n");
        create_dir_all(root.path().join("gone")).expect("made");
        assert_eq!(walk(root.path()).expect("walked").groups, [held("/stays", false, 5)]);
        let error = |errno| Err::<(), _>(unreadable(root.path(), io::Error::from_raw_os_error(errno), ABSENT_REMEDY));
        assert!(matches!(none_if_gone(error(libc::ENODEV)), Ok(None)));
        assert!(none_if_gone(error(libc::EACCES)).is_err());
    }

    #[test]
    fn groups_beyond_the_maximum_are_summed_as_other() {
        let root = root();
        for bytes in 1..=MAX_SHOWN + 3 {
            group(&root, &format!("g{bytes}"), "5", "", &format!("sock {bytes}\n"));
        }
        let groups = walk(root.path()).expect("walked").groups;
        assert_eq!(groups.len(), MAX_SHOWN + 1);
        assert_eq!(groups[MAX_SHOWN - 1..], [held("/g4", true, 4), held("other", false, 1 + 2 + 3)]);
    }

    #[test]
    fn a_walk_that_reaches_its_limit_reports_how_many_groups_are_missing() {
        let root = root();
        for number in 0..MAX_VISITED + 4 {
            group(&root, &format!("g{number:04}"), "max", "", "sock 1\n");
        }
        let walk = walk(root.path()).expect("walked");
        // The root is one of those that were looked at.
        assert_eq!(walk.not_visited, 5);
        assert_eq!(walk.groups[MAX_SHOWN], held("other", false, (MAX_VISITED - 1 - MAX_SHOWN) as u64));
        let omitted = walk.omitted().expect("something");
        assert!(omitted.contains("only 1000 control groups were read: 5 or more are missing"), "{omitted}");
    }

    #[test]
    fn a_group_that_cannot_be_read_is_counted_and_named_and_the_others_are_there() {
        let root = root();
        group(&root, "a", "max", "", "anon 1\n");
        group(&root, "b", "max", "", "sock many\n");
        group(&root, "c", "max", "", "sock 5\n");
        let walk = walk(root.path()).expect("walked");
        assert_eq!(walk.groups, [held("/c", false, 5)]);
        let omitted = walk.omitted().expect("something");
        assert!(omitted.starts_with("2 control groups cannot be read: "), "{omitted}");
        assert!(omitted.contains("memory.stat: sock of /a is missing"), "{omitted}");
    }

    #[test]
    fn errors_name_the_root_or_the_controller() {
        let root = root();
        write(root.path().join("memory.stat"), "anon 1\n").expect("written");
        write(root.path().join("cgroup.subtree_control"), "cpu\n").expect("written");
        let error = walk(root.path()).expect_err("no sock").to_string();
        assert!(error.contains("memory.stat: sock of / is missing"), "{error}");
        write(root.path().join("cgroup.controllers"), "cpu memory2\n").expect("written");
        let error = walk(root.path()).expect_err("no controller").to_string();
        assert!(error.starts_with("cgroup v2 has no memory controller: boot with "), "{error}");
    }

    #[test]
    fn the_mount_is_found_by_its_type_behind_any_options() {
        let mixed = include_str!("captured/6.18-host/proc_self_mountinfo");
        assert_eq!(mount_point(mixed), Some("/sys/fs/cgroup/unified".into()));
        let odd =
            "1 2 0:3 / /a rw - tmpfs cgroup2 rw\n4 5 0:6 / /b\\040c\\134040 rw shared:1 master:2 - cgroup2 none rw\n";
        assert_eq!(mount_point(odd).as_deref(), Some(Path::new("/b c\\040")));
        assert_eq!(mount_point("1 2 0:3 / /cgroup2 rw - tmpfs cgroup2 rw\n"), None);
    }

    #[test]
    fn this_host_has_groups_or_an_error_says_why_not() {
        let memory_in_v2 = fs::read_to_string(MOUNTINFO)
            .ok()
            .and_then(|mounts| fs::read_to_string(mount_point(&mounts)?.join("cgroup.controllers")).ok());
        match socket_memory() {
            Ok(walk) => assert!(
                memory_in_v2.is_some_and(|list| has_memory_controller(&list)) && walk.groups.len() <= MAX_SHOWN + 1
            ),
            Err(CgroupError::NoMemoryController) => {
                assert!(memory_in_v2.is_some_and(|list| !has_memory_controller(&list)))
            }
            Err(CgroupError::NotMounted) => assert!(memory_in_v2.is_none()),
            Err(CgroupError::File(error)) => panic!("{error}"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_text_can_panic_the_walk(text in "(?s).{0,100}", words in "(sock|max|memory|[0-9\\- ]){0,10}") {
            let root = root();
            group(&root, "a", &text, &words, &text);
            group(&root, "b", &words, &text, &words);
            let _ = walk(root.path());
            let _ = mount_point(&text);
            let _ = mount_point(&format!("1 2 3 4 {text} - cgroup2 {words}"));
        }
    }
}
