//! Reads the counts of drops, and removes them from their map, because the map has room for a limited number of pairs
//! of socket and reason, and a socket may live indefinitely.
#![expect(unsafe_code, reason = "a bpf(2) call that no crate wraps")]

use std::{collections::HashMap, io, mem, os::fd::AsFd as _};

use aya::maps::{Map, MapData, MapError, PerCpuHashMap};
use tcpmon_common::drops::DropKey;

use super::bpf::{BPF_MAP_LOOKUP_AND_DELETE_ELEM, MapElement, bpf};

/// The map of drop counts, and the counts that were last read from it.
pub(super) struct Drops {
    map: Map,
    /// Counts of the pairs that are in the map.
    counts: HashMap<DropKey, u64>,
    /// What has been counted but not returned yet, because the rest of the map could not be read.
    counted: Vec<(DropKey, u64)>,
}

impl Drops {
    pub(super) fn new(map: Map) -> Self {
        Self { map, counts: HashMap::new(), counted: Vec::new() }
    }

    /// Returns what has been counted since the last successful call.
    ///
    /// A pair that has counted nothing since then is removed from the map. It is not removed while it counts, because a
    /// program on another CPU might still hold an entry that is being deleted.
    pub(super) fn read(&mut self) -> Result<Vec<(DropKey, u64)>, MapError> {
        let map: PerCpuHashMap<&MapData, DropKey, u64> = PerCpuHashMap::try_from(&self.map)?;
        let entries = map.iter().collect::<Result<Vec<_>, _>>()?;
        for (key, per_cpu) in entries {
            let (count, before) = (per_cpu.iter().sum(), self.counts.get(&key).copied());
            let now = if before == Some(count) {
                let last = self.remove(&key, per_cpu.len())?;
                self.counts.remove(&key);
                last
            } else {
                self.counts.insert(key, count);
                count
            };
            let by = now.saturating_sub(before.unwrap_or(0));
            if by > 0 {
                self.counted.push((key, by));
            }
        }
        Ok(mem::take(&mut self.counted))
    }

    /// Number of pairs in the map.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Removes a pair from the map, and returns its count up to that moment.
    fn remove(&self, key: &DropKey, cpus: usize) -> io::Result<u64> {
        let Map::PerCpuHashMap(map) = &self.map else { unreachable!("`read` has looked at it as that") };
        let mut values = vec![0_u64; cpus];
        let mut element = MapElement::new(map.fd().as_fd(), key, values.as_mut_ptr());
        // SAFETY: the key and one word for each possible CPU live during the call.
        unsafe { bpf(BPF_MAP_LOOKUP_AND_DELETE_ELEM, &mut element)? };
        Ok(values.iter().sum())
    }
}
