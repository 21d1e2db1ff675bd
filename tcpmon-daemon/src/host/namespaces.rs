//! The host's network namespaces: those of its processes, and those that are mounted somewhere (`ip netns`).

use std::{
    collections::BTreeMap,
    fmt::Display,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{fs::MetadataExt, net::UnixDatagram},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::file::{read_text, unescaped};

/// The calling thread's own namespace. Not `/proc/self`: that is the main thread's.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Inode of the initial PID namespace (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// Maximum number of namespaces that a reason names.
const MAX_NAMED: usize = 8;

/// How often a thread tries to return to its namespace, and how long it waits in between.
const RETURNS: u32 = 100;
const BEFORE_RETURN: Duration = Duration::from_millis(10);

/// Whether this process is in the PID namespace of the host.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn is_host_pid_namespace() -> io::Result<bool> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino() == INITIAL_PID_NAMESPACE)
}

/// Result of a search.
#[derive(Debug, Default)]
pub(super) struct NetworkNamespaces {
    /// A path to each namespace, by inode number; without that of the calling thread.
    pub(super) others: BTreeMap<u64, PathBuf>,
    /// Processes whose namespace tcpmon is not permitted to look up.
    pub(super) hidden_processes: u64,
}

/// Searches for namespaces.
///
/// # Errors
/// If `/proc` cannot be read.
pub(super) fn find() -> io::Result<NetworkNamespaces> {
    let own = fs::metadata(OWN_NAMESPACE)?.ino();
    let mut found = NetworkNamespaces::default();
    let mounts = fs::read("/proc/thread-self/mountinfo").unwrap_or_default();
    let mounted = mounts.split(|byte| *byte == b'\n').filter_map(mounted_namespace).filter_map(|path| {
        let inode = fs::metadata(&path).ok()?.ino();
        Some((inode, path))
    });
    found.others.extend(mounted);
    for entry in fs::read_dir("/proc")?.flatten() {
        if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let path = entry.path().join("ns/net");
        match fs::metadata(&path) {
            Ok(namespace) => drop(found.others.entry(namespace.ino()).or_insert(path)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.hidden_processes += 1,
            // The process has ended, or is about to.
            Err(_) => {}
        }
    }
    found.others.remove(&own);
    Ok(found)
}

/// The mount point in a line of `mountinfo`, if a network namespace is mounted there. (The field before the mount point
/// shows this: `net:[INODE]`.)
fn mounted_namespace(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(|byte| *byte == b' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    (kind == b"nsfs" && root.starts_with(b"net:")).then(|| unescaped(point))
}

/// The cookie of the calling thread's network namespace: a number that no other namespace will have before the next
/// boot. An inode number, in contrast, is reused as soon as it is free. The cookie exists since Linux 5.14.
///
/// # Errors
/// If no socket can be created, or the kernel has no cookie.
#[expect(unsafe_code, reason = "rustix does not know this option")]
pub(super) fn cookie() -> io::Result<u64> {
    let socket = UnixDatagram::unbound()?;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to a variable of that size, and to
    // `length` itself.
    let failed = unsafe {
        let value = (&raw mut cookie).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, value, &raw mut length)
    };
    if failed == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// The namespace to which the thread returns.
#[derive(Debug)]
pub(super) struct OriginalNamespace(File);

impl OriginalNamespace {
    /// Opens the calling thread's namespace.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub(super) fn current() -> io::Result<Self> {
        File::open(OWN_NAMESPACE).map(Self)
    }

    /// Runs `job` on the calling thread inside the namespace.
    ///
    /// # Errors
    /// If the namespace is gone or may not be entered.
    ///
    /// # Panics
    /// If the thread cannot return: it must not go on in another namespace.
    pub(super) fn run_in<T>(&self, path: &Path, job: impl FnOnce() -> T) -> io::Result<T> {
        let namespace = File::open(path)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let result = job();
        let mut tries = 0;
        while let Err(error) = move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)) {
            // The kernel may be out of memory for a moment.
            tries += 1;
            assert!(tries < RETURNS, "a thread may return to the namespace that it has left: {error}");
            thread::sleep(BEFORE_RETURN);
        }
        Ok(result)
    }
}

/// What could not be read of other namespaces.
#[derive(Debug, Default)]
pub(super) struct Unread {
    /// Those that tcpmon may not enter.
    refused: Vec<String>,
    /// Those that it may.
    incomplete: Vec<String>,
}

impl Unread {
    /// Adds what [`OriginalNamespace::run_in`] has returned; a text says what is missing and is empty if nothing is.
    pub(super) fn add(&mut self, inode: u64, path: &Path, read: io::Result<String>) {
        match read {
            Ok(problems) if problems.is_empty() => {}
            Ok(problems) => self.incomplete.push(describe_namespace(inode, path, &problems)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.refused.push(describe_namespace(inode, path, &error));
            }
            Err(error) if is_no_network_namespace(&error) => {}
            Err(error) => self.incomplete.push(describe_namespace(inode, path, &error)),
        }
    }

    /// In words; empty if nothing is missing of the namespaces that were found.
    pub(super) fn of(&self, found: &NetworkNamespaces) -> String {
        let mut reasons = Vec::new();
        if !self.refused.is_empty() {
            reasons.push(format!(
                "tcpmon may not enter {} of the {} other network namespaces: {}: give it CAP_SYS_ADMIN",
                self.refused.len(),
                found.others.len(),
                some_of(&self.refused),
            ));
        }
        if !self.incomplete.is_empty() {
            reasons.push(format!(
                "tcpmon may enter {} of the {} other network namespaces but could not read all of them: {}",
                self.incomplete.len(),
                found.others.len(),
                some_of(&self.incomplete),
            ));
        }
        if found.hidden_processes > 0 {
            reasons.push(format!(
                "processes whose network namespace tcpmon may not read: {}: give it CAP_SYS_PTRACE if it does not have \
                 it",
                found.hidden_processes,
            ));
        }
        reasons.join("; ")
    }
}

/// Whether the namespace is gone, or the file is not one of a network namespace.
fn is_no_network_namespace(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::EINVAL))
}

/// As `ls -l /proc/PID/ns/net` and `ip netns` show it.
fn describe_namespace(inode: u64, path: &Path, error: &dyn Display) -> String {
    let comm = path.parent().and_then(Path::parent).map(|process| process.join("comm"));
    let comm = comm.and_then(|comm| read_text(comm).ok()).unwrap_or_default();
    format!("net:[{inode}] at {} {} ({error})", path.display(), comm.trim_end())
}

/// The first of these namespaces, and how many more there are.
fn some_of(namespaces: &[String]) -> String {
    let named = &namespaces[..namespaces.len().min(MAX_NAMED)];
    let more = namespaces.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use super::*;

    #[test]
    fn mounted_network_namespaces_are_distinguished_from_other_mounts() {
        let line = b"612 30 0:4 net:[4026532345] /run/netns/a\\040b\\011c\\134d\xfc rw shared:5 - nsfs nsfs rw";
        assert_eq!(mounted_namespace(line), Some(OsStr::from_bytes(b"/run/netns/a b\tc\\d\xfc").into()));
        assert_eq!(mounted_namespace(b"613 30 0:4 mnt:[4026532346] /run/m rw - nsfs nsfs rw"), None);
        assert_eq!(mounted_namespace(b"30 1 0:26 / /run rw,nosuid - tmpfs tmpfs rw"), None);
        assert_eq!(mounted_namespace(b"nonsense"), None);
    }

    #[test]
    fn a_namespace_has_one_cookie() {
        let own = cookie().expect("Linux 5.14");
        assert!(own > 0);
        assert_eq!(cookie().expect("Linux 5.14"), own);
    }

    #[test]
    fn this_namespace_is_not_among_the_others() {
        let own = fs::metadata(OWN_NAMESPACE).expect("/proc is mounted").ino();
        assert!(!find().expect("/proc is mounted").others.contains_key(&own));
    }

    fn found(others: u64, hidden_processes: u64) -> NetworkNamespaces {
        NetworkNamespaces { others: (1..=others).map(|inode| (inode, PathBuf::new())).collect(), hidden_processes }
    }

    fn refused() -> io::Result<String> {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }

    #[test]
    fn unreadable_namespaces_are_named_up_to_a_limit() {
        let mut unread = Unread::default();
        assert_eq!(unread.of(&found(7, 0)), "");
        (0..10).for_each(|inode| unread.add(inode, Path::new("x"), refused()));
        let text = unread.of(&found(12, 3));
        assert!(
            text.starts_with("tcpmon may not enter 10 of the 12 ")
                && text.contains("net:[7] at x  (Operation not permitted (os error 1)) and 2 more")
                && !text.contains("net:[8]"),
            "{text}"
        );
        assert!(text.contains("may not read: 3: give it CAP_SYS_PTRACE"), "{text}");
    }

    #[test]
    fn a_namespace_that_has_gone_is_no_problem_but_one_for_which_there_is_no_descriptor_is() {
        let error = io::Error::from_raw_os_error;
        assert!([libc::ENOENT, libc::ESRCH, libc::EINVAL].map(error).iter().all(is_no_network_namespace));
        assert!(![libc::EMFILE, libc::ENFILE, libc::ENOMEM].map(error).iter().any(is_no_network_namespace));
        let original = OriginalNamespace::current().expect("a namespace of this thread");
        let missing = original.run_in(Path::new("/proc/0/ns/net"), || ()).expect_err("no process has the number 0");
        let mount = original.run_in(Path::new("/proc/self/ns/mnt"), || ()).expect_err("a mount namespace");
        assert!(is_no_network_namespace(&missing) && is_no_network_namespace(&mount), "{missing} {mount}");
    }

    #[test]
    fn a_namespace_that_may_be_entered_needs_no_capability() {
        let mut unread = Unread::default();
        unread.add(1, Path::new("x"), Ok("cannot parse it: report this".into()));
        assert_eq!(
            unread.of(&found(12, 0)),
            "tcpmon may enter 1 of the 12 other network namespaces but could not read all of them: net:[1] at x  \
             (cannot parse it: report this)"
        );
        unread.add(2, Path::new("x"), refused());
        let text = unread.of(&found(12, 0));
        assert!(
            text.starts_with("tcpmon may not enter 1 of the 12 ") && text.contains("give it CAP_SYS_ADMIN; tcpmon")
        );
    }
}
