//! What a trace is limited to.

use std::collections::BTreeSet;

use aya::{
    Ebpf, Pod,
    maps::{HashMap, MapData},
};

use super::loader::LoadError;

/// What a trace is limited to: every kind of filter that is given must match, by at least one of its entries. Empty:
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Thread groups (what `ps` calls pids).
    pub tgids: BTreeSet<u32>,
    /// Names of thread groups, as in `/proc/PID/comm`.
    pub comms: BTreeSet<String>,
    /// Ports, local or remote.
    pub ports: BTreeSet<u16>,
    /// Control groups: id, and depth below the root.
    pub cgroups: Vec<(u64, u32)>,
}

impl TraceFilter {
    /// Writes the filter to the maps in which the programs look it up; the control groups are in the settings.
    pub(super) fn write(&self, ebpf: &mut Ebpf) -> Result<(), LoadError> {
        insert(ebpf, "FILTER_TGIDS", self.tgids.iter().copied())?;
        insert(ebpf, "FILTER_COMMS", self.comms.iter().map(|comm| kernel_comm(comm)))?;
        insert(ebpf, "FILTER_PORTS", self.ports.iter().copied().map(u32::from))
    }
}

/// The map stays in the object, because the programs that use it are not loaded yet.
fn insert<K: Pod>(ebpf: &mut Ebpf, name: &'static str, keys: impl Iterator<Item = K>) -> Result<(), LoadError> {
    let failed = |source| LoadError::Map { name, source };
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
