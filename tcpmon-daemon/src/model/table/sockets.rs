//! Sockets that a pass shows: what each has added since the last pass goes to its group.

use std::{sync::Arc, time::Instant};

use tcpmon_common::{
    causes::{self, Path},
    counters::{Cells as _, Counted as _},
    fold::{self, Folded, Observation, Trigger},
    socket::{
        LIVE_CURRENT, LIVE_FIN, LIVE_GROWTH, LIVE_READER, SOCKET_HANDED_OVER, SOCKET_LISTENS, SocketCounters,
        SocketRecord, SocketTotals,
    },
};

use super::Table;
use crate::{
    decode,
    model::{
        live::{LiveSocket, queue_bytes},
        possible,
        tracked::{Accounted, Connection, Rest, Role, SocketGauges, Tracked},
    },
};

/// Data that have waited this long, ns, will not be read for the first time any moment now.
const UNREAD_NS: u64 = 1_000_000_000;

impl Table {
    /// Takes one socket of the pass, or one that has just started to listen.
    pub fn socket(&mut self, record: &SocketRecord, now: Instant) {
        let (live, state) = (&record.live, &record.state);
        let index = state.index;
        if state.flags & SOCKET_LISTENS != 0 {
            self.listening(index, record);
            return;
        }
        if self.sockets.get(index).is_none() {
            self.track(index, record, now);
        }
        let (counters, refused) = until_now(record);
        if refused {
            self.end_rest(index);
            self.refuse(record, &SocketTotals::ZERO, 0);
        } else {
            self.account(index, record, &counters, now);
        }
        let queued = queue_bytes(live);
        let waited_ns = record.time_ns.saturating_sub(state.reads.queued_since_ns);
        self.has_unread |= queued != 0 && waited_ns >= UNREAD_NS;
        if let Some(listed) = &mut self.listed {
            let (key, tgid) = (self.labels.of_socket(record), self.labels.tgid_of(&record.state));
            listed.push(Arc::new(LiveSocket::new(record, key, tgid, &counters)));
        }
        let gauges = SocketGauges::of(live, queued);
        if let Some(Tracked { role: Role::Connection(connection), .. }) = self.sockets.get_mut(index) {
            self.groups.gauges(connection.group).replace(&connection.gauges, &gauges);
            connection.gauges = gauges;
            if !refused && record.is_at_rest() {
                self.groups.add_resting(connection.group, record.time_ns);
                connection.rest = Some(Rest::new(record.time_ns, self.credit));
            }
        }
    }

    /// The socket is no longer at rest, or is gone: its own totals include the time that was credited to its group.
    pub(super) fn end_rest(&mut self, index: u32) {
        if let Some(Tracked { role: Role::Connection(connection), .. }) = self.sockets.get_mut(index)
            && let Some(rest) = connection.rest.take()
        {
            self.groups.remove_resting(connection.group, rest.counted_until(self.credit));
            connection.accounted.add_observed(rest.credited_ns(self.credit));
        }
    }

    /// Starts to track a connection that was not shown before.
    fn track(&mut self, index: u32, record: &SocketRecord, now: Instant) {
        let group = self.groups.join(self.labels.of_socket(record), now);
        self.groups.gauges(group).add(&SocketGauges::default());
        let connection = Connection {
            group,
            labels: self.labels.hash_of_socket(&record.state),
            accounted: Accounted::default(),
            accounted_ns: self.started_ns,
            gauges: SocketGauges::default(),
            rest: None,
        };
        self.sockets.insert(index, Tracked { cookie: record.state.cookie, role: Role::Connection(connection) });
    }

    fn listening(&mut self, index: u32, record: &SocketRecord) {
        let (identity, cookie) = (&record.state.identity, record.state.cookie);
        if let Some(Tracked { role, cookie }) = self.sockets.remove(index) {
            self.leave(cookie, &role);
        }
        let address = decode::address(identity.family, identity.local_address);
        let listener = self.labels.listener(record);
        self.labels.listeners.insert((identity.netns, record.live.local_port), cookie, address, listener);
        self.sockets.insert(index, Tracked { cookie, role: Role::Listener });
    }

    /// Finds the connection's group, and adds what the connection has added to its totals.
    pub(super) fn account(&mut self, index: u32, record: &SocketRecord, counters: &SocketCounters, now: Instant) {
        self.end_rest(index);
        let Some(Tracked { role: Role::Connection(connection), .. }) = self.sockets.get_mut(index) else { return };
        let added = counters.since(&connection.accounted.counters());
        // Each pass looks at tens of thousands of sockets, and hardly any of them changes its group.
        let labels = self.labels.hash_of_socket(&record.state);
        if connection.labels != labels {
            // The reader has changed: from now on, the connection counts for the new one.
            self.groups.gauges(connection.group).remove(&connection.gauges);
            self.groups.leave(connection.group);
            connection.group = self.groups.join(self.labels.of_socket(record), now);
            self.groups.gauges(connection.group).add(&connection.gauges);
            connection.labels = labels;
        }
        if added == SocketTotals::ZERO {
            return;
        }
        // A pass may already have counted the read with which another process took the socket over.
        let mut forward = added;
        if record.state.flags & SOCKET_HANDED_OVER != 0 {
            forward.read_bytes = forward.read_bytes.cast_signed().max(0).cast_unsigned();
        }
        let elapsed_ns = record.time_ns.saturating_sub(connection.accounted_ns);
        connection.accounted.set(counters);
        connection.accounted_ns = record.state.last_ns;
        if possible::socket(&forward, elapsed_ns) {
            self.groups.add_socket(connection.group, &added, now);
        } else {
            self.refuse(record, &added, elapsed_ns);
        }
    }

    /// Removes a socket that is gone from its group or from the listening sockets.
    pub(super) fn leave(&mut self, cookie: u64, role: &Role) {
        match role {
            Role::Connection(connection) => {
                if let Some(rest) = connection.rest {
                    self.groups.remove_resting(connection.group, rest.counted_until(self.credit));
                }
                self.groups.gauges(connection.group).remove(&connection.gauges);
                self.groups.leave(connection.group);
                self.ended.remember(cookie, connection.group);
            }
            Role::Listener => self.labels.listeners.remove(cookie),
        }
    }
}

/// The record's totals brought up to the time of the look, by the same function that the programs use, and whether
/// that function refused anything.
pub fn until_now(record: &SocketRecord) -> (SocketCounters, bool) {
    let live = &record.live;
    let mut state = record.state;
    // The look at the socket came before its last event. With a busy socket this may happen in every pass: the time
    // that is held back for its open round must not add up to more than a round can last.
    if live.flags & LIVE_CURRENT == 0 {
        let last_ns = state.last_ns;
        causes::attribute_open_round(&mut state, last_ns, false);
        return (state.counters, false);
    }
    let seen = Observation {
        now_ns: record.time_ns,
        rcv_nxt: live.rcv_nxt,
        copied_seq: live.copied_seq,
        rmem: live.rmem,
        rcvbuf: live.rcvbuf,
        window: live.window,
        edge: live.edge,
        arrived: live.rcv_nxt,
        mss: live.mss,
        state: u32::from(live.state),
        fin: live.flags & LIVE_FIN != 0,
        is_growth: live.flags & LIVE_GROWTH != 0,
    };
    let edges = |_, _| (live.flags & LIVE_READER != 0).then_some(live.reader_edges);
    let Folded { refused, .. } = fold::fold(&mut state, &seen, Trigger::Snapshot, edges, || Path::NONE);
    causes::attribute_open_round(&mut state, record.time_ns, false);
    (state.counters, refused != 0)
}
