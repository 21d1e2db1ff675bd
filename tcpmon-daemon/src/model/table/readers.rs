//! Readers: their timeslices, by slot.

use std::{collections::HashMap, time::Instant};

use tcpmon_common::{
    counters::{Cells as _, Counted as _},
    reader::{ReaderCounters, ReaderSlot},
};

use super::Table;
use crate::model::{group::GroupId, possible};

/// What is known of a slot in use.
pub(super) struct TrackedReader {
    group: GroupId,
    /// See `Labels::hash_of_reader`.
    labels: u64,
    /// The totals that were added to the group.
    accounted: ReaderCounters,
}

/// The slots in use.
pub(super) type Readers = HashMap<u32, TrackedReader>;

impl Table {
    /// Takes one reader slot in use, read before `now_ns` of `CLOCK_MONOTONIC`. Its timeslices belong to one service.
    pub fn reader(&mut self, slot: u32, reader: &ReaderSlot, now: Instant, now_ns: u64) {
        let labels = self.labels.hash_of_reader(reader);
        if self.readers.get(&slot).is_none_or(|known| known.labels != labels) {
            let group = self.groups.join(self.labels.of_reader(reader), now);
            match self.readers.get_mut(&slot) {
                Some(known) => {
                    self.groups.leave(known.group);
                    (known.group, known.labels) = (group, labels);
                }
                None => {
                    let reader = TrackedReader { group, labels, accounted: ReaderCounters::ZERO };
                    self.readers.insert(slot, reader);
                }
            }
        }
        let Some(known) = self.readers.get_mut(&slot) else { return };
        if possible::reader(reader, now_ns) {
            self.groups.add_reader(known.group, &reader.counters.since(&known.accounted), now);
        } else {
            self.impossible.readers += 1;
        }
        known.accounted = reader.counters;
    }

    /// The reader of a slot has exited, and its slot is about to be freed. Its last values have been given to
    /// [`Table::reader`].
    pub fn reader_gone(&mut self, slot: u32) {
        if let Some(reader) = self.readers.remove(&slot) {
            self.groups.leave(reader.group);
        }
    }
}
