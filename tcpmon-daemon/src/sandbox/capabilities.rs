//! Capabilities: root's rights, one by one.

use std::io;

use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
        set_capabilities, set_no_new_privs,
    },
};

use super::ThreadRole;
use crate::kernel;

/// The capabilities for loading, attaching and reading; see the table in `docs/operating.md`.
const NEEDED: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::NET_ADMIN)
    .union(ENTERS_NAMESPACES)
    .union(CapabilitySet::SYSLOG);

/// The capabilities for looking up and entering the network namespaces of other processes.
const ENTERS_NAMESPACES: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_PTRACE);

/// Gives up what tcpmon never needs. Called before anything else, so that whatever fails without it fails at once: a
/// file that root can read only by overriding permissions could otherwise be read at the start but not on a reload.
///
/// # Errors
/// If the kernel refuses, which it does not.
pub fn begin() -> io::Result<()> {
    // A port below 1024 is opened before the programs are loaded.
    keep(NEEDED.union(CapabilitySet::NET_BIND_SERVICE).union(CapabilitySet::SYS_NICE))
}

/// Gives up all capabilities of the calling thread, except what this kernel requires to read maps and, if the thread
/// `creates_files`, root's right to create them in the directories of other users.
///
/// # Errors
/// If the kernel refuses, which it does not.
pub fn give_up_all(creates_files: bool) -> io::Result<()> {
    let files = if creates_files { CapabilitySet::DAC_OVERRIDE } else { CapabilitySet::empty() };
    keep(reads_maps().union(files))
}

/// Gives up what a thread with this role does not need.
pub(super) fn keep_for(role: ThreadRole) -> io::Result<()> {
    keep(match role {
        ThreadRole::Endpoint => CapabilitySet::empty(),
        // It runs at the highest priority, except during passes.
        ThreadRole::Collector => reads_maps().union(CapabilitySet::SYS_NICE),
        ThreadRole::Host => ENTERS_NAMESPACES,
        // CAP_SYS_ADMIN allows the same where CAP_BPF was not given.
        ThreadRole::Grower if capabilities(None)?.effective.contains(CapabilitySet::BPF) => CapabilitySet::BPF,
        ThreadRole::Grower => CapabilitySet::SYS_ADMIN,
    })
}

/// Before Linux 5.19, `kernel.unprivileged_bpf_disabled` forbids every call of bpf(2), even for maps that are open.
fn reads_maps() -> CapabilitySet {
    if kernel::maps_need_capability() { CapabilitySet::BPF } else { CapabilitySet::empty() }
}

/// Gives up all but these capabilities in every set of the calling thread.
fn keep(kept: CapabilitySet) -> io::Result<()> {
    set_no_new_privs(true)?;
    let now = capabilities(None)?;
    // This needs SETPCAP. Without it, nothing can be regained either: no program that is started gains any capability.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
            match remove_capability_from_bounding_set(capability) {
                // The kernel does not know this one.
                Err(Errno::INVAL) => break,
                result => result?,
            }
        }
    }
    match clear_ambient_capability_set() {
        Err(Errno::INVAL) | Ok(()) => {}
        Err(error) => return Err(error.into()),
    }
    let permitted = now.permitted.intersection(kept);
    let effective = now.effective.intersection(kept);
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })?;
    Ok(())
}
