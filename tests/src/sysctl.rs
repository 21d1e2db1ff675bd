//! Sysctls: those of a namespace disappear with it, those of the host are restored by a guard.

use std::fs;
use std::path::PathBuf;

use crate::must;

/// A sysctl of the host, set for as long as this guard lives.
#[derive(Debug)]
pub struct HostSysctl {
    name: String,
    before: String,
}

impl HostSysctl {
    /// Sets `name` (with dots or slashes, as for sysctl(8)) and remembers the previous value.
    pub fn set(name: &str, value: &str) -> Self {
        let before = read(name);
        write(name, value);
        Self { name: name.to_owned(), before }
    }
}

impl Drop for HostSysctl {
    fn drop(&mut self) {
        if let Err(error) = fs::write(path(&self.name), &self.before) {
            eprintln!("sysctl {} could not be put back to {:?}: {error}", self.name, self.before);
        }
    }
}

/// Reads a sysctl in the calling thread's network namespace.
pub(crate) fn read(name: &str) -> String {
    must(fs::read_to_string(path(name)), format!("reading sysctl {name}")).trim_end().to_owned()
}

/// Writes a sysctl in the calling thread's network namespace.
pub(crate) fn write(name: &str, value: &str) {
    must(fs::write(path(name), value), format!("setting sysctl {name} to {value:?}"));
}

fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name.replace('.', "/"))
}
