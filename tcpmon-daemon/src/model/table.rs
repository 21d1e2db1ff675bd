//! The table of sockets and readers: the last values by cookie and by slot; their differences add up per group.

mod drops;
mod ends;
mod readers;
mod sockets;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tcpmon_common::{
    owner::Owner,
    socket::{SocketRecord, SocketTotals},
};
use tracing::warn;

use self::{drops::EndedSockets, readers::Readers};
use super::{
    cgroups::CgroupOf,
    group::{self, Groups},
    labels::Labels,
    live::LiveSocket,
    possible::Impossible,
    snapshot::Group,
    tracked::{Credit, Role, Sockets, Tracked},
};

/// Limits of the table.
pub struct TableLimits {
    /// Maximum number of groups.
    pub max_groups: usize,
    /// An idle group is removed after this time.
    pub group_ttl: Duration,
    /// Names of processes whose groups come before all others.
    pub pin: Vec<String>,
    /// How to look up a control group; `None` if that label is off.
    pub cgroup_of: Option<CgroupOf>,
}

/// Maximum number of sockets whose refused totals are logged.
const LOGGED_IMPOSSIBLE: u64 = 5;

/// See the module documentation.
pub struct Table {
    labels: Labels,
    groups: Groups,
    sockets: Sockets,
    readers: Readers,
    /// See [`Table::unseen_ends`].
    unseen_ends: u64,
    ended: EndedSockets,
    impossible: Impossible,
    /// The sockets that this pass has shown; `None` if they are not wanted.
    listed: Option<Vec<Arc<LiveSocket>>>,
    /// When counting started, `CLOCK_MONOTONIC`, ns.
    started_ns: u64,
    /// When the last pass started, `CLOCK_MONOTONIC`, ns.
    begun_ns: u64,
    /// The last time that was credited to sockets at rest.
    credit: Credit,
    /// See [`Table::has_unread`].
    has_unread: bool,
}

impl Table {
    /// An empty table; counting started at `started_ns` of `CLOCK_MONOTONIC`.
    pub fn new(limits: TableLimits, now: Instant, started_ns: u64) -> Self {
        let with_cgroup = limits.cgroup_of.is_some();
        Self {
            labels: Labels::new(limits.cgroup_of),
            groups: Groups::new(limits.max_groups, limits.group_ttl, &limits.pin, with_cgroup, now),
            sockets: Sockets::default(),
            readers: Readers::new(),
            unseen_ends: 0,
            ended: EndedSockets::default(),
            impossible: Impossible::default(),
            listed: None,
            started_ns,
            begun_ns: started_ns,
            credit: Credit::default(),
            has_unread: false,
        }
    }

    /// Changes the limits, see [`TableLimits`]. Existing groups are not removed because of a lower limit.
    pub fn set_limits(&mut self, max_groups: usize, group_ttl: Duration, pins: &[String]) {
        self.groups.set_limits(max_groups, group_ttl, pins);
    }

    /// A pass over all sockets starts, at `now_ns` of `CLOCK_MONOTONIC`.
    pub fn begin(&mut self, now_ns: u64) {
        self.begun_ns = now_ns;
        self.has_unread = false;
        // Sockets that a failed pass has listed are listed again by the next one.
        if let Some(listed) = &mut self.listed {
            listed.clear();
        }
    }

    /// Lists the sockets that the pass shows, in addition to adding them up. Call this before the pass; to list all
    /// sockets, the pass must show all of them.
    pub fn list_sockets(&mut self) {
        self.listed = Some(Vec::new());
    }

    /// The sockets that the last pass has listed. The next passes list none.
    pub fn listed_sockets(&mut self) -> Vec<Arc<LiveSocket>> {
        self.listed.take().unwrap_or_default()
    }

    /// Ends the pass.
    pub fn end(&mut self, now: Instant) {
        self.groups.credit_resting(self.begun_ns, now);
        self.credit = Credit { number: self.credit.number.wrapping_add(1), until_ns: self.begun_ns };
    }

    /// Whether the last pass found a connection in which data have waited for a second: then it matters which process
    /// has it open.
    pub fn has_unread(&self) -> bool {
        self.has_unread
    }

    /// Replaces the processes that have open a listening socket or a socket with unread data, as of this time
    /// (`CLOCK_MONOTONIC`, ns). The next pass moves connections to other groups if necessary.
    pub fn set_owners(&mut self, owners: &[Owner], at_ns: u64) {
        self.labels.set_owners(owners, at_ns);
    }

    /// Whether this connection still has this index.
    pub fn is_alive(&self, index: u32, cookie: u64) -> bool {
        let is_it = |socket: &Tracked| socket.cookie == cookie && matches!(socket.role, Role::Connection(_));
        self.sockets.get(index).is_some_and(is_it)
    }

    /// The index of the connection with this cookie that is alive.
    pub fn index_of(&self, cookie: u64) -> Option<u32> {
        self.sockets.index_of(cookie).filter(|index| self.is_alive(*index, cookie))
    }

    /// Changes which groups are shown: call this after those of the pass that has just ended were shown.
    pub fn change_groups(&mut self, now: Instant) {
        self.groups.change_places(now);
    }

    /// All groups.
    pub fn groups(&self) -> Vec<Group> {
        self.groups.all()
    }

    /// Times that a socket or reader started to be counted under `other` because there was no room for its group.
    pub fn suppressed(&self) -> u64 {
        self.groups.suppressed()
    }

    /// Numbers of groups, and their limits.
    pub fn groups_in_use(&self) -> group::Use {
        self.groups.usage()
    }

    /// Number of connections whose end no program saw: what they received after their last event is missing.
    pub fn unseen_ends(&self) -> u64 {
        self.unseen_ends
    }

    /// What is missing from the totals: the kind, and how often.
    pub fn losses(&self) -> impl Iterator<Item = (String, u64)> {
        let losses = [("socket_end", self.unseen_ends)].into_iter().chain(self.impossible.losses());
        losses.map(|(what, count)| (what.to_owned(), count))
    }

    /// Counts values that a socket cannot have added. The first ones are logged in full, because there is a fault in
    /// tcpmon or in the kernel.
    fn refuse(&mut self, record: &SocketRecord, added: &SocketTotals, elapsed_ns: u64) {
        self.impossible.sockets += 1;
        if self.impossible.sockets <= LOGGED_IMPOSSIBLE {
            warn!(elapsed_ns, ?added, ?record, "a socket's totals were refused as impossible: please report this");
        }
    }

    /// Number of sockets known.
    pub fn sockets_known(&self) -> usize {
        self.sockets.len()
    }
}

#[cfg(test)]
mod tests;
