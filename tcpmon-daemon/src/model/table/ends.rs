//! The ends of sockets: reported by a record, reported by a mark because there was no room for the record, or seen by
//! nobody.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use tcpmon_common::{
    counters::{Cells as _, Counted as _},
    socket::{SocketCounters, SocketRecord, SocketTotals},
};

use super::{Table, sockets::Origin};
use crate::model::{
    group::{GroupId, OTHER},
    possible,
    tracked::{Accounted, Credit, Role, Tracked},
};

/// Maximum number of sockets for which the former readers' share is remembered when they are handed over before a
/// snapshot has shown them. What further ones received counts for their last reader.
const HANDED_OVER: usize = 4096;

/// A socket that this many passes in a row have not visited is considered gone. A pass during which other sockets start
/// and end can miss sockets that exist: the kernel finds its place in the list again by counting.
pub(super) const GONE_AFTER: u8 = 8;

/// Number of seconds with passes that must agree on how many connections ended unseen.
const AGREEING: usize = 3;

/// Passes in less than this time count as one. The kernel frees sockets some time after their ends, and one that is
/// freed during a pass hides another one from it: scrapes that follow each other at once all see that of the same ends,
/// or of each other's own connections.
const APART: Duration = Duration::from_secs(1);

/// Counts of connections since tcpmon started, by what has become of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// The programs saw them being opened, whether or not that succeeded.
    pub opened: u64,
    /// Counting has started for them.
    pub started: u64,
    /// Of these, the programs saw the end.
    pub ended: u64,
}

/// What is known of sockets that have ended.
#[derive(Default)]
pub(super) struct Ends {
    /// The sums of the sockets whose final record was lost, at the last pass; one for each CPU.
    lost_sums: Vec<SocketCounters>,
    /// What the sockets whose final record was lost since the last pass add to `other`.
    lost: SocketTotals,
    /// Sockets that are gone although neither a final record nor those sums have their end.
    unreported: u64,
    /// Connections, shown or not, that ended unseen, as the passes of the last seconds found.
    missing: [u64; AGREEING],
    /// When the last of these seconds began.
    compared: Option<Instant>,
    /// Connections, shown or not, that certainly ended unseen.
    missed: u64,
    /// Cookies of the sockets that ended since the pass started.
    pub(super) in_pass: HashSet<u64>,
    /// Totals that were counted for sockets that were handed over before a pass has shown them, by cookie; at most
    /// [`HANDED_OVER`] of them.
    pub(super) handed_over: HashMap<u64, Accounted>,
}

impl Ends {
    /// Number of sockets whose end nobody saw.
    pub(super) fn unseen(&self) -> u64 {
        self.unreported.max(self.missed)
    }
}

impl Table {
    /// Takes the last values of a socket that has ended.
    pub fn ended(&mut self, record: &SocketRecord, now: Instant) {
        let cookie = record.state.cookie;
        self.ends.in_pass.insert(cookie);
        if let Some(index) = self.sockets.index_of(cookie) {
            self.is_not_gone(index);
            self.account(index, record, &record.state.counters, Origin::Ring, now);
            if let Some(socket) = self.sockets.remove(index) {
                self.leave(cookie, &socket.role);
            }
        } else if record.state.last_ns != 0 {
            let before = self.ends.handed_over.remove(&cookie).unwrap_or_default();
            let group = self.add_unshown(record, &before, now);
            self.ended.remember(cookie, group);
        }
    }

    /// Takes the values of a socket until another process started to read it: they belong to the former process. What a
    /// pass has counted already stays where it was counted.
    pub fn handed_over(&mut self, record: &SocketRecord, now: Instant) {
        let cookie = record.state.cookie;
        if let Some(index) = self.sockets.index_of(cookie) {
            self.is_not_gone(index);
            self.account(index, record, &record.state.counters, Origin::Ring, now);
        } else if self.ends.handed_over.len() < HANDED_OVER {
            let before = self.ends.handed_over.remove(&cookie).unwrap_or_default();
            self.add_unshown(record, &before, now);
            self.ends.handed_over.insert(cookie, Accounted::from(&record.state.counters));
        }
    }

    /// Adds what a socket that no pass has shown has added since `before`.
    fn add_unshown(&mut self, record: &SocketRecord, before: &Accounted, now: Instant) -> GroupId {
        let group = self.groups.join(self.labels.of_socket(record), now);
        let added = record.state.counters.since(&before.counters());
        if possible::socket(&added, record.header.time_ns.saturating_sub(self.started_ns)) {
            self.groups.add_socket(group, &added, now);
        } else {
            self.impossible.sockets += 1;
        }
        self.groups.leave(group);
        group
    }

    /// Ends the sockets whose final record was lost. `sums` has the totals of all of them so far, one for each CPU.
    /// `indexes` are those of them that a pass has shown. Read the sums before the indexes.
    pub fn final_records_lost(&mut self, sums: &[SocketCounters], indexes: &[u32]) {
        self.ends.lost_sums.resize(sums.len(), SocketCounters::ZERO);
        for (sum, before) in sums.iter().zip(&mut self.ends.lost_sums) {
            self.ends.lost.add(&sum.since(before));
            *before = *sum;
        }
        for index in indexes {
            self.is_not_gone(*index);
            self.end_rest(*index);
            let Some(Tracked { cookie, role }) = self.sockets.remove(*index) else { continue };
            self.ends.in_pass.insert(cookie);
            if let Role::Connection(connection) = &role {
                // The sums include all its totals: take back what was counted before, or it would count twice.
                self.ends.lost.add(&SocketCounters::ZERO.since(&connection.accounted.counters()));
            }
            self.leave(cookie, &role);
        }
    }

    /// Compares how many connections are alive by their starts and ends with the `visited` ones, which a pass between
    /// `before` and `after` has found.
    pub fn compare_counts(&mut self, before: ConnectionCounts, visited: u64, after: ConnectionCounts, now: Instant) {
        // A connection that ended during the pass may not have been visited, and may have hidden another one that is
        // alive.
        let ended_meanwhile = after.ended - before.ended;
        let expected = (before.started - before.ended).saturating_sub(2 * ended_meanwhile);
        let found = expected.saturating_sub(visited);
        let Ends { missing, missed, compared, .. } = &mut self.ends;
        let last = &mut missing[AGREEING - 1];
        if compared.is_some_and(|at| now.duration_since(at) < APART) {
            *last = (*last).min(found);
        } else {
            // A connection whose end is counted only after the pass is missing here, too, but its end was not missed.
            // So several passes must agree, and what the last second found stands only now.
            *missed = (*missed).max(missing.iter().copied().min().unwrap_or(0));
            missing.rotate_left(1);
            missing[AGREEING - 1] = found;
            *compared = Some(now);
        }
    }

    /// Ends the pass, which has visited the sockets with the indexes whose bits are set in `visited`. Returns the free
    /// indexes.
    pub fn end(&mut self, visited: &[u64], now: Instant) -> Vec<u32> {
        for (index, passes) in self.sockets.not_visited(visited) {
            if passes == GONE_AFTER {
                self.consider_gone(index);
            }
        }
        for index in self.sockets.gone_but_visited(visited) {
            self.is_not_gone(index);
        }
        self.groups.credit_resting(self.begun_ns, now);
        self.credit = Credit { number: self.credit.number.wrapping_add(1), until_ns: self.begun_ns };
        let lost = std::mem::take(&mut self.ends.lost);
        self.groups.add_socket(OTHER, &lost, now);
        self.labels.listeners.end();
        self.sockets.freed()
    }

    /// Something is known again of a socket that may have been considered gone.
    pub(super) fn is_not_gone(&mut self, index: u32) {
        if self.sockets.is_not_gone(index)
            && let Some(Tracked { role: Role::Connection(connection), .. }) = self.sockets.get_mut(index)
        {
            self.groups.gauges(connection.group).add(&connection.gauges);
        }
    }

    /// A socket is gone although nothing reported its end.
    fn consider_gone(&mut self, index: u32) {
        self.end_rest(index);
        let Some(socket) = self.sockets.get_mut(index) else { return };
        // No program saw its end, or its final record was never sent. What was counted is all that will ever be
        // counted.
        if let Role::Connection(connection) = &socket.role
            && !connection.accounted.is_empty()
        {
            self.ends.unreported += 1;
            self.groups.gauges(connection.group).remove(&connection.gauges);
            // If it is seen again, it must not count twice.
            let Some(oldest) = self.sockets.keep_gone(index) else { return };
            if let Some(Tracked { cookie, role: Role::Connection(connection) }) = self.sockets.remove(oldest) {
                self.groups.leave(connection.group);
                self.ended.remember(cookie, connection.group);
            }
        } else if let Some(socket) = self.sockets.remove(index) {
            self.leave(socket.cookie, &socket.role);
        }
    }
}
