//! Sockets that a pass shows: what each has added since the last time goes to its group.

use std::{sync::Arc, time::Instant};

use tcpmon_common::{
    causes::{self, Path},
    counters::{Cells as _, Counted as _},
    fold::{self, Folded, Observation, Trigger},
    socket::{LIVE_ENDED, LIVE_FIN, LIVE_GROWTH, LIVE_NEW, LIVE_READER, SocketCounters, SocketRecord, SocketTotals},
    tcp_state,
};

use super::Table;
use crate::model::{
    labels,
    live::{LiveSocket, queue_bytes},
    possible,
    tracked::{Accounted, Connection, Rest, Role, SocketGauges, Tracked},
};

/// Where a connection's totals come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A pass.
    Pass,
    /// The ring: a pass may have counted more already. The record may have waited behind one that another CPU had not
    /// finished, or the pass may have seen a read before the program did.
    Ring,
}

impl Table {
    /// A socket has started to listen.
    pub fn listener(&mut self, record: &SocketRecord) {
        self.labels.listeners.announce((record.live.netns, record.live.local_port), labels::listener(record));
    }

    /// Takes one socket of the pass. The records that were sent before it was shown have been taken.
    pub fn socket(&mut self, record: &SocketRecord, now: Instant) {
        let (live, state) = (&record.live, &record.state);
        let Some(index) = state.shown.index() else { return };
        let is_new = live.flags & LIVE_NEW != 0;
        if live.flags & LIVE_ENDED != 0 || self.ends.in_pass.contains(&state.cookie) {
            if is_new {
                self.sockets.give_back(index);
            }
            return;
        }
        self.is_not_gone(index);
        if u32::from(live.state) == tcp_state::LISTEN {
            self.listening(index, record);
            return;
        }
        let known = self
            .sockets
            .get_mut(index)
            .is_some_and(|socket| socket.cookie == state.cookie && matches!(socket.role, Role::Connection(_)));
        if !known {
            self.track(index, record, is_new, now);
        }
        let (counters, refused) = until_now(record);
        if refused {
            self.end_rest(index);
            self.impossible.sockets += 1;
        } else {
            self.account(index, record, &counters, Origin::Pass, now);
        }
        if let Some(listed) = &mut self.listed {
            listed.push(Arc::new(LiveSocket::new(index, record, self.labels.of_socket(record), &counters)));
        }
        let gauges = SocketGauges::of(live, queue_bytes(live));
        if let Some(Tracked { role: Role::Connection(connection), .. }) = self.sockets.get_mut(index) {
            self.groups.gauges(connection.group).replace(&connection.gauges, &gauges);
            connection.gauges = gauges;
            if !refused && record.is_at_rest() {
                self.groups.add_resting(connection.group, record.header.time_ns);
                connection.rest = Some(Rest::new(record.header.time_ns, self.credit));
            }
        }
    }

    /// The socket is at rest no more, or gone: its own totals have the time that was credited to its group.
    pub(super) fn end_rest(&mut self, index: u32) {
        if let Some(Tracked { role: Role::Connection(connection), .. }) = self.sockets.get_mut(index)
            && let Some(rest) = connection.rest.take()
        {
            self.groups.remove_resting(connection.group, rest.counted_until(self.credit));
            connection.accounted.add_observed(rest.credited_ns(self.credit));
        }
    }

    /// Starts to track a connection that was not shown before, or of which nothing is known any more.
    fn track(&mut self, index: u32, record: &SocketRecord, is_new: bool, now: Instant) {
        let cookie = record.state.cookie;
        // What was counted for it under another index stays counted.
        let before = self.sockets.index_of(cookie).and_then(|index| {
            self.is_not_gone(index);
            self.end_rest(index);
            self.sockets.remove(index)
        });
        let before = match before.map(|socket| socket.role) {
            Some(Role::Connection(connection)) => {
                self.groups.gauges(connection.group).remove(&connection.gauges);
                self.groups.leave(connection.group);
                Some(connection.accounted)
            }
            Some(Role::Listener { netns, port }) => {
                self.labels.listeners.remove((netns, port));
                None
            }
            None => self.ends.handed_over.remove(&cookie),
        };
        let accounted = match before {
            Some(accounted) => accounted,
            None if is_new => Accounted::default(),
            // It was shown before, but nothing is known about it: how much of its totals was counted is unknown.
            None => {
                self.impossible.sockets += 1;
                Accounted::from(&record.state.counters)
            }
        };
        let group = self.groups.join(self.labels.of_socket(record), now);
        self.groups.gauges(group).add(&SocketGauges::default());
        let connection = Connection {
            group,
            labels: self.labels.hash_of_socket(&record.state),
            accounted,
            accounted_ns: self.started_ns,
            gauges: SocketGauges::default(),
            rest: None,
        };
        self.sockets.insert(index, Tracked { cookie, role: Role::Connection(connection) });
    }

    fn listening(&mut self, index: u32, record: &SocketRecord) {
        let (netns, port) = (record.live.netns, record.live.local_port);
        if let Some(Tracked { role, cookie }) = self.sockets.remove_unfreed(index) {
            self.leave(cookie, &role);
        }
        self.labels.listeners.insert((netns, port), labels::listener(record));
        let role = Role::Listener { netns, port };
        self.sockets.insert(index, Tracked { cookie: record.state.cookie, role });
    }

    /// Adds what the connection has added to its group, after determining the group.
    pub(super) fn account(
        &mut self,
        index: u32,
        record: &SocketRecord,
        counters: &SocketCounters,
        origin: Origin,
        now: Instant,
    ) {
        self.end_rest(index);
        let Some(Tracked { role: Role::Connection(connection), .. }) = self.sockets.get_mut(index) else { return };
        let added = counters.since(&connection.accounted.counters());
        if origin == Origin::Ring && possible::is_behind(&added) {
            return;
        }
        // Each pass looks at tens of thousands of sockets, and hardly any of them changes its group.
        let labels = self.labels.hash_of_socket(&record.state);
        if connection.labels != labels {
            // The reader changed: what comes from now on belongs to the new one.
            self.groups.gauges(connection.group).remove(&connection.gauges);
            self.groups.leave(connection.group);
            connection.group = self.groups.join(self.labels.of_socket(record), now);
            self.groups.gauges(connection.group).add(&connection.gauges);
            connection.labels = labels;
        }
        if added == SocketTotals::ZERO {
            return;
        }
        if possible::socket(&added, record.header.time_ns.saturating_sub(connection.accounted_ns)) {
            self.groups.add_socket(connection.group, &added, now);
        } else {
            self.impossible.sockets += 1;
        }
        connection.accounted.set(counters);
        connection.accounted_ns = record.state.last_ns;
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
            Role::Listener { netns, port } => self.labels.listeners.remove((*netns, *port)),
        }
    }
}

/// The record's totals brought up to the time of the snapshot, by the same function that the programs use, and whether
/// that function refused anything.
pub fn until_now(record: &SocketRecord) -> (SocketCounters, bool) {
    let live = &record.live;
    let mut state = record.state;
    let seen = Observation {
        now_ns: record.header.time_ns,
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
    causes::settle(&mut state, record.header.time_ns, false);
    (state.counters, refused != 0)
}
