//! What a booted machine has and a bare kernel has not: file systems, modules, a loopback device that is up.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Error};

use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use tcpmon_tests::device;

/// Type and place, in order.
const MOUNTS: [(&str, &str); 4] =
    [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("cgroup2", "/sys/fs/cgroup")];

/// Folders that programs expect, in the file system that the machine began with: what is tested may lie below them.
const FOLDERS: [&str; 2] = ["/tmp", "/run"];

/// Mounts what tests and daemon look into, and sets the loopback device up.
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

/// Inserts a module.
pub fn insert(file: &str) -> io::Result<()> {
    const NO_PARAMETERS: &CStr = c"";
    let module = File::open(file)?;
    finit_module(module, NO_PARAMETERS, ModuleInitFlags::empty())
        .map_err(|error| Error::other(format!("inserting {file}: {error}")))
}
