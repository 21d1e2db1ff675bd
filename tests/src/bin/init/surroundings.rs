//! What a booted machine has and a bare kernel lacks: file systems, modules, a loopback device that is up.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Error};

use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use tcpmon_tests::device;

/// Type and mount point, in the order of mounting.
const MOUNTS: [(&str, &str); 4] =
    [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("cgroup2", "/sys/fs/cgroup")];

/// Directories that programs expect. They are in the initial file system, because the binaries under test may lie below
/// them.
const FOLDERS: [&str; 2] = ["/tmp", "/run"];

/// Mounts what tests and daemon read, and sets the loopback device up.
pub fn mount_all() -> io::Result<()> {
    for (kind, place) in MOUNTS {
        fs::create_dir_all(place)?;
        mount(Some(kind), place, Some(kind), MsFlags::empty(), None::<&str>)
            .map_err(|error| Error::other(format!("mounting {kind} on {place}: {error}")))?;
    }
    for folder in FOLDERS {
        fs::create_dir_all(folder)?;
    }
    device::set_up("lo")
}

/// Inserts a kernel module.
pub fn insert(file: &str) -> io::Result<()> {
    const NO_PARAMETERS: &CStr = c"";
    let module = File::open(file)?;
    finit_module(module, NO_PARAMETERS, ModuleInitFlags::empty())
        .map_err(|error| Error::other(format!("inserting {file}: {error}")))
}
