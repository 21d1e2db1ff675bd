//! Dropped segments, which the programs count by socket: they are added to the socket's group, even just after the
//! socket has ended.

use std::{collections::HashMap, time::Instant};

use super::Table;
use crate::model::{
    group::{GroupId, OTHER},
    tracked::Role,
};

/// Maximum number of ended sockets whose group is remembered until the next pass, for drops that have not been read
/// yet. Drops of further ones are counted under `other`.
const ENDED: usize = 4096;

/// The groups of sockets that ended since the last pass, by cookie; at most [`ENDED`] of them.
#[derive(Default)]
pub(super) struct EndedSockets(HashMap<u64, GroupId>);

impl EndedSockets {
    pub(super) fn remember(&mut self, cookie: u64, group: GroupId) {
        if self.0.len() < ENDED {
            self.0.insert(cookie, group);
        }
    }
}

impl Table {
    /// Takes the drops since the last pass, by cookie and reason. This also ends the pass for the groups.
    pub fn drops(&mut self, counts: &[(u64, u32, u64)], name: impl Fn(u32) -> String, now: Instant) {
        for (cookie, reason, by) in counts {
            let index = self.sockets.index_of(*cookie);
            let group = match index.and_then(|index| self.sockets.get_mut(index)).map(|socket| &socket.role) {
                Some(Role::Connection(connection)) => connection.group,
                _ => self.ended.0.get(cookie).copied().unwrap_or(OTHER),
            };
            self.groups.add_drops(group, &name(*reason), *by, now);
        }
        self.ended.0.clear();
        self.labels.end_pass();
        // Last, because sockets that have ended refer to their groups until here.
        self.groups.expire(now);
    }
}
