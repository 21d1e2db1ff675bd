//! What a trace is limited to.

use std::collections::BTreeSet;

use aya::{
    Ebpf, Pod,
    maps::{HashMap, MapData},
};

use super::{
    Kernel,
    support::{CannotRun, refused_map},
};

/// What a trace is limited to: every kind of filter that is given must match, by at least one of its entries. Without
/// any filter, everything matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Thread groups (what `ps` calls pids).
    pub tgids: BTreeSet<u32>,
    /// Names of thread groups, as in `/proc/PID/comm`.
    pub comms: BTreeSet<String>,
    /// Whether to trace also the processes that these start.
    pub follow: bool,
    /// Ports, local or remote.
    pub ports: BTreeSet<u16>,
    /// Control groups: id, and depth below the root.
    pub cgroups: Vec<(u64, u32)>,
    /// Whether to record only the totals of sockets and threads, and no timeslices.
    pub totals_only: bool,
}

impl TraceFilter {
    /// Writes the filter to the maps in which the programs look it up; the control groups are in the settings.
    pub(super) fn write(&self, ebpf: &mut Ebpf) -> Result<(), CannotRun> {
        insert(ebpf, "FILTER_TGIDS", self.tgids.iter().copied())?;
        insert(ebpf, "FILTER_COMMS", self.comms.iter().map(|comm| kernel_comm(comm)))?;
        insert(ebpf, "FILTER_PORTS", self.ports.iter().copied().map(u32::from))
    }
}

/// Maximum number of processes at a time in a trace that follows processes.
pub(super) const FOLLOWED: u32 = 65_536;

impl Kernel {
    /// Also traces these processes.
    ///
    /// # Errors
    /// If they are too many.
    pub fn follow(&mut self, tgids: &[u32]) -> Result<(), CannotRun> {
        insert(&mut self.ebpf, "FILTER_TGIDS", tgids.iter().copied())
    }

    /// Forgets the followed processes that have ended, so that there is room for others.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn forget_ended(&mut self, has_ended: impl Fn(u32) -> bool) -> Result<(), CannotRun> {
        let failed = |error| refused_map("FILTER_TGIDS", &error);
        let map = self.ebpf.map_mut("FILTER_TGIDS").expect("the object of this build has all its maps");
        let mut map: HashMap<&mut MapData, u32, u8> = map.try_into().map_err(failed)?;
        let known: Vec<u32> = map.keys().filter_map(Result::ok).collect();
        for tgid in known.into_iter().filter(|tgid| has_ended(*tgid)) {
            // The program may have removed the id already, when another process started under it.
            let _ = map.remove(&tgid);
        }
        Ok(())
    }
}

/// Leaves the map in the object, because the programs that use it are not loaded yet.
fn insert<K: Pod>(ebpf: &mut Ebpf, name: &'static str, keys: impl Iterator<Item = K>) -> Result<(), CannotRun> {
    let failed = |error| refused_map(name, &error);
    let map = ebpf.map_mut(name).expect("the object of this build has all its maps");
    let mut map: HashMap<&mut MapData, K, u8> = map.try_into().map_err(failed)?;
    for key in keys {
        map.insert(key, 1, 0).map_err(failed)?;
    }
    Ok(())
}

/// The kernel keeps 15 bytes of a name, and a terminating zero.
fn kernel_comm(comm: &str) -> [u8; 16] {
    let mut key = [0; 16];
    for (to, from) in key.iter_mut().zip(comm.bytes().take(15)) {
        *to = from;
    }
    key
}
