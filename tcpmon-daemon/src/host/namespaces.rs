//! The host's network namespaces: those of its processes, and those that are mounted somewhere (`ip netns`).

use std::{
    collections::BTreeMap,
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

use super::file::unescaped;

/// The calling thread's own namespace. Not `/proc/self`: that is the main thread's.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Inode of the initial PID namespace (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

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
}
