//! The ends of sockets.

use std::time::Instant;

use tcpmon_common::{
    causes,
    counters::{Cells as _, Counted as _},
    socket::{SOCKET_FULLY_FOLDED, SocketCounters, SocketRecord},
};

use super::Table;
use crate::model::possible;

impl Table {
    /// Takes the last values of a socket that has ended, or that continues in another state: for another process, or
    /// for another connection.
    pub fn ended(&mut self, record: &SocketRecord, now: Instant) {
        let (index, cookie) = (record.state.index, record.state.cookie);
        if self.sockets.get(index).is_some() {
            self.account(index, record, &record.state.counters, now);
            if let Some(socket) = self.sockets.remove(index) {
                self.leave(cookie, &socket.role);
            }
        } else if record.state.last_ns != 0 {
            self.add_unshown(record, now);
        }
    }

    /// Takes the last values of a socket that is gone although no program has seen its end: what happened after its
    /// last event is missing.
    pub fn gone(&mut self, record: &SocketRecord, now: Instant) {
        let mut record = *record;
        // In all other cases, nothing is missing.
        if record.state.last_ns != 0 && record.state.flags & SOCKET_FULLY_FOLDED == 0 {
            self.unseen_ends += 1;
            let last_ns = record.state.last_ns;
            causes::attribute_open_round(&mut record.state, last_ns, true);
        }
        self.ended(&record, now);
    }

    /// Adds the totals of a socket that no pass has shown.
    fn add_unshown(&mut self, record: &SocketRecord, now: Instant) {
        let group = self.groups.join(self.labels.of_socket(record), now);
        let added = record.state.counters.since(&SocketCounters::ZERO);
        let elapsed_ns = record.time_ns.saturating_sub(self.started_ns);
        if possible::socket(&added, elapsed_ns) {
            self.groups.add_socket(group, &added, now);
        } else {
            self.refuse(record, &added, elapsed_ns);
        }
        self.groups.leave(group);
        self.ended.remember(record.state.cookie, group);
    }
}
