//! The table of sockets and readers: the last values by cookie and by slot; their differences add up per group.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use tcpmon_common::{
    fold::{self, Cause, Folded, Seen},
    reader::ReaderSlot,
    socket::{
        LIVE_AUTOTUNED, LIVE_FIN, LIVE_NEW, LIVE_PORT_CHOSEN, LIVE_READER, SOCKET_SERVICE, SocketCounters,
        SocketRecord, SocketState,
    },
};
use zerocopy::IntoBytes as _;

use super::{
    cgroups::Cgroups,
    group::{self, GroupId, Groups, OTHER},
    listeners::{Listener, Listeners},
    possible,
    service::{self, Ends},
    snapshot::{Group, GroupKey},
    tally::{self, SocketRow},
    tracked::{Accounted, Connection, Gauges, Kind, Sockets, Tracked},
};
use crate::decode;

/// `TCP_LISTEN`.
const LISTEN: u8 = 10;

/// Maximum number of ended sockets whose group is remembered until the next pass, for drops that have not been read
/// yet. Drops of further ones are counted under `other`.
const ENDED: usize = 4096;

/// Maximum number of sockets for which the former readers' share is remembered when they are handed over before a
/// snapshot has shown them. What further ones received counts for their last reader.
const HANDED_OVER: usize = 4096;

/// A socket that this many passes in a row have not visited is considered gone. A pass during which other sockets start
/// and end can miss sockets that exist: the kernel finds its place in the list again by counting.
const GONE_AFTER: u8 = 8;

/// Number of passes that must agree on how many connections ended unseen.
const MISSING: usize = 3;

/// Looks up the path of a thread group's control group, for the optional label.
pub type CgroupOf = Box<dyn FnMut(u32) -> Option<String> + Send>;

/// Limits of the table.
pub struct Limits {
    /// Maximum number of groups.
    pub max_groups: usize,
    /// An idle group is removed after this time.
    pub group_ttl: Duration,
    /// Names of processes whose groups come before all others.
    pub pin: Vec<String>,
    /// How to look up a control group; `None` if that label is off.
    pub cgroup_of: Option<CgroupOf>,
}

/// Counts of connections since tcpmon started, by what has become of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    /// The programs saw them being opened, whether or not that succeeded.
    pub opened: u64,
    /// Counting has started for them.
    pub begun: u64,
    /// Of these, the programs saw the end.
    pub ended: u64,
}

struct Reader {
    group: GroupId,
    /// A hash of what determines its group: while the hash stays the same, so does the group.
    identity: u64,
    accounted: ReaderSlot,
}

/// See the module documentation.
pub struct Table {
    cgroups: Option<Cgroups>,
    groups: Groups,
    sockets: Sockets,
    readers: HashMap<u32, Reader>,
    listeners: Listeners,
    fallen: Vec<SocketCounters>,
    /// What the sockets whose final record was lost since the last pass add to `other`.
    falling: SocketRow,
    /// Sockets that are gone although neither a final record nor the map `FALLEN` has their end.
    unended: u64,
    /// Connections, shown or not, that ended unseen: as the last passes found, and as is certain.
    missing: [u64; MISSING],
    missed: u64,
    /// Values that were refused because they are impossible: of sockets, of readers.
    impossible: [u64; 2],
    /// Groups for the drops of sockets that ended since the last pass; at most [`ENDED`] of them.
    ended: HashMap<u64, GroupId>,
    /// Sockets that ended since the pass started.
    ended_in_pass: HashSet<u64>,
    /// Totals that were counted for sockets that were handed over before a pass has shown them; at most [`HANDED_OVER`]
    /// of them.
    handed_over: HashMap<u64, Accounted>,
    hasher: RandomState,
    /// When counting started, `CLOCK_MONOTONIC`, ns.
    began_ns: u64,
}

impl Table {
    /// An empty table; counting started at `began_ns` of `CLOCK_MONOTONIC`.
    pub fn new(limits: Limits, now: Instant, began_ns: u64) -> Self {
        let groups = Groups::new(limits.max_groups, limits.group_ttl, &limits.pin, limits.cgroup_of.is_some(), now);
        Self {
            cgroups: limits.cgroup_of.map(Cgroups::new),
            groups,
            sockets: Sockets::default(),
            readers: HashMap::new(),
            listeners: Listeners::default(),
            fallen: Vec::new(),
            falling: [0; tally::SOCKET],
            unended: 0,
            missing: [0; MISSING],
            missed: 0,
            impossible: [0; 2],
            ended: HashMap::new(),
            ended_in_pass: HashSet::new(),
            handed_over: HashMap::new(),
            hasher: RandomState::new(),
            began_ns,
        }
    }

    /// Changes the limits, see [`Limits`]. Existing groups are not removed for lack of room.
    pub fn set_bounds(&mut self, max_groups: usize, group_ttl: Duration, pins: &[String]) {
        self.groups.set_bounds(max_groups, group_ttl, pins);
    }

    /// A pass over all sockets starts.
    pub fn begin(&mut self) {
        self.ended_in_pass.clear();
        self.listeners.begin();
    }

    /// Ends the sockets whose final record was lost. `sums` has the totals of all of them so far, one per CPU. `fell`
    /// has the indexes of those of them that a pass has shown. Read the sums before the indexes.
    pub fn fallen(&mut self, sums: &[SocketCounters], fell: &[u32]) {
        self.fallen.resize(sums.len(), SocketCounters::ZERO);
        for (sum, before) in sums.iter().zip(&mut self.fallen) {
            add(&mut self.falling, &tally::socket_row(sum, before));
            *before = *sum;
        }
        for index in fell {
            let Some(Tracked { cookie, kind, .. }) = self.sockets.remove(*index) else { continue };
            self.ended_in_pass.insert(cookie);
            if let Kind::Connection(connection) = &kind {
                // The sums include all its totals: take back what was counted before, or it would count twice.
                add(&mut self.falling, &tally::socket_row(&SocketCounters::ZERO, &connection.accounted.counters()));
            }
            self.leave(cookie, &kind);
        }
    }

    /// A socket has started to listen.
    pub fn listener(&mut self, record: &SocketRecord) {
        self.listeners.announce((record.live.netns, record.live.local_port), listener(record));
    }

    /// Takes one socket of the pass. The records that were sent before it was shown have been taken.
    pub fn socket(&mut self, record: &SocketRecord, now: Instant) {
        let (live, state) = (&record.live, &record.state);
        let Some(index) = state.shown.index() else { return };
        let is_new = live.flags & LIVE_NEW != 0;
        if self.ended_in_pass.contains(&state.cookie) {
            if is_new {
                self.sockets.give_back(index);
            }
            return;
        }
        if live.state == LISTEN {
            self.listening(index, record);
            return;
        }
        let known = self
            .sockets
            .get_mut(index)
            .is_some_and(|socket| socket.cookie == state.cookie && matches!(socket.kind, Kind::Connection(_)));
        if !known {
            self.meet(index, record, is_new, now);
        }
        let (counters, refused) = until_now(record);
        if refused {
            self.impossible[0] += 1;
        } else {
            self.account(index, record, &counters, now);
        }
        let queued = live.rcv_nxt.wrapping_sub(live.copied_seq).cast_signed().max(0).cast_unsigned();
        let gauges = Gauges::of(live, queued.saturating_sub(u32::from(live.flags & LIVE_FIN != 0)));
        if let Some(Tracked { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(index) {
            self.groups.gauges(connection.group).replace(&connection.gauges, &gauges);
            connection.gauges = gauges;
        }
    }

    /// A connection that was not shown before, or of which nothing is known any more.
    fn meet(&mut self, index: u32, record: &SocketRecord, is_new: bool, now: Instant) {
        let cookie = record.state.cookie;
        // What was counted for it under another index stays counted.
        let before = self.sockets.index_of(cookie).and_then(|index| self.sockets.remove(index));
        let before = match before {
            Some(Tracked { kind: Kind::Connection(connection), .. }) => {
                self.groups.gauges(connection.group).remove(&connection.gauges);
                self.groups.leave(connection.group);
                Some(connection.accounted)
            }
            Some(Tracked { kind: Kind::Listener { netns, port }, .. }) => {
                self.listeners.remove((netns, port));
                None
            }
            None => self.handed_over.remove(&cookie),
        };
        let accounted = match before {
            Some(accounted) => accounted,
            None if is_new => Accounted::default(),
            // It was shown before, but nothing is known about it: how much of its totals was counted is unknown.
            None => {
                self.impossible[0] += 1;
                Accounted::from(&record.state.counters)
            }
        };
        let key = self.key_of(record);
        let group = self.groups.join(key, now);
        self.groups.gauges(group).add(&Gauges::default());
        let connection = Connection {
            group,
            identity: self.identity(&record.state),
            accounted,
            accounted_ns: self.began_ns,
            gauges: Gauges::default(),
        };
        self.sockets.insert(index, Tracked { cookie, kind: Kind::Connection(connection) });
    }

    fn listening(&mut self, index: u32, record: &SocketRecord) {
        let (netns, port) = (record.live.netns, record.live.local_port);
        if let Some(Tracked { kind, cookie, .. }) = self.sockets.remove_unfreed(index) {
            self.leave(cookie, &kind);
        }
        self.listeners.insert((netns, port), listener(record));
        let kind = Kind::Listener { netns, port };
        self.sockets.insert(index, Tracked { cookie: record.state.cookie, kind });
    }

    /// Takes the last values of a socket that has ended.
    pub fn ended(&mut self, record: &SocketRecord, now: Instant) {
        let cookie = record.state.cookie;
        self.ended_in_pass.insert(cookie);
        if let Some(index) = self.sockets.index_of(cookie) {
            self.account(index, record, &record.state.counters, now);
            if let Some(socket) = self.sockets.remove(index) {
                self.leave(cookie, &socket.kind);
            }
        } else if record.state.last_ns != 0 {
            let before = self.handed_over.remove(&cookie).unwrap_or_default();
            let group = self.add_unshown(record, &before, now);
            self.remember(cookie, group);
        }
    }

    /// Takes the values of a socket until another process started to read it: they belong to the former process.
    pub fn handed_over(&mut self, record: &SocketRecord, now: Instant) {
        let cookie = record.state.cookie;
        if let Some(index) = self.sockets.index_of(cookie) {
            self.account(index, record, &record.state.counters, now);
        } else if self.handed_over.len() < HANDED_OVER {
            let before = self.handed_over.remove(&cookie).unwrap_or_default();
            self.add_unshown(record, &before, now);
            self.handed_over.insert(cookie, Accounted::from(&record.state.counters));
        }
    }

    /// Adds what a socket that no pass has shown has added since `before`.
    fn add_unshown(&mut self, record: &SocketRecord, before: &Accounted, now: Instant) -> GroupId {
        let key = self.key_of(record);
        let group = self.groups.join(key, now);
        let row = tally::socket_row(&record.state.counters, &before.counters());
        if possible::socket(&row, record.header.time_ns.saturating_sub(self.began_ns)) {
            self.groups.add_socket(group, &row, now);
        } else {
            self.impossible[0] += 1;
        }
        self.groups.leave(group);
        group
    }

    /// Compares how many connections are alive by their starts and ends with the `living` ones that a pass has visited.
    pub fn lives(&mut self, before: Lives, living: u64, after: Lives) {
        // A connection that ended during the pass may not have been visited, and may have hidden another one that is
        // alive.
        let ended_meanwhile = after.ended - before.ended;
        let expected = (before.begun - before.ended).saturating_sub(2 * ended_meanwhile);
        self.missing.rotate_left(1);
        self.missing[MISSING - 1] = expected.saturating_sub(living);
        // A connection whose end is counted only after the pass is missing here, too, but its end was not missed. So
        // several passes must agree.
        self.missed = self.missed.max(self.missing.into_iter().min().unwrap_or(0));
    }

    /// Ends the pass, which has visited the sockets with the indexes whose bits are set in `met`. Returns the free
    /// indexes.
    pub fn end(&mut self, met: &[u64], now: Instant) -> Vec<u32> {
        for (index, passes) in self.sockets.missing(met) {
            if passes == GONE_AFTER {
                self.miss(index);
            }
        }
        for index in self.sockets.lost_but(met) {
            self.find(index);
        }
        let row = std::mem::replace(&mut self.falling, [0; tally::SOCKET]);
        self.groups.add_socket(OTHER, &row, now);
        self.listeners.end();
        self.sockets.freed()
    }

    /// A socket is gone although nothing reported its end.
    fn miss(&mut self, index: u32) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        // No program saw its end, or its final record was never sent. What was counted is all that will ever be
        // counted.
        if let Kind::Connection(connection) = &socket.kind
            && !connection.accounted.is_empty()
        {
            self.unended += 1;
            self.groups.gauges(connection.group).remove(&connection.gauges);
            // If it is seen again, it must not count twice.
            let Some(oldest) = self.sockets.lose(index) else { return };
            if let Some(Tracked { cookie, kind: Kind::Connection(connection), .. }) = self.sockets.remove(oldest) {
                self.groups.leave(connection.group);
                self.remember(cookie, connection.group);
            }
        } else if let Some(socket) = self.sockets.remove(index) {
            self.leave(socket.cookie, &socket.kind);
        }
    }

    /// A socket that was considered gone is still there.
    fn find(&mut self, index: u32) {
        self.sockets.find(index);
        if let Some(Tracked { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(index) {
            self.groups.gauges(connection.group).add(&connection.gauges);
        }
    }

    /// Removes a socket that is gone from its group or from the listening sockets.
    fn leave(&mut self, cookie: u64, kind: &Kind) {
        match kind {
            Kind::Connection(connection) => {
                self.groups.gauges(connection.group).remove(&connection.gauges);
                self.groups.leave(connection.group);
                self.remember(cookie, connection.group);
            }
            Kind::Listener { netns, port } => self.listeners.remove((*netns, *port)),
        }
    }

    fn remember(&mut self, cookie: u64, group: GroupId) {
        if self.ended.len() < ENDED {
            self.ended.insert(cookie, group);
        }
    }

    /// Adds what the connection has added to its group, after determining the group.
    fn account(&mut self, index: u32, record: &SocketRecord, counters: &SocketCounters, now: Instant) {
        let identity = self.identity(&record.state);
        let Some(Tracked { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(index) else { return };
        // Each pass looks at tens of thousands of sockets, and hardly any of them changes its group.
        let key = (connection.identity != identity).then(|| self.key_of(record));
        let Some(Tracked { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(index) else { return };
        if let Some(key) = key {
            // The reader changed: what comes from now on belongs to the new one.
            self.groups.gauges(connection.group).remove(&connection.gauges);
            self.groups.leave(connection.group);
            connection.group = self.groups.join(key, now);
            self.groups.gauges(connection.group).add(&connection.gauges);
            connection.identity = identity;
        }
        let row = tally::socket_row(counters, &connection.accounted.counters());
        if row == [0; tally::SOCKET] {
            return;
        }
        if possible::socket(&row, record.header.time_ns.saturating_sub(connection.accounted_ns)) {
            self.groups.add_socket(connection.group, &row, now);
        } else {
            self.impossible[0] += 1;
        }
        connection.accounted.set(counters);
        connection.accounted_ns = record.state.last_ns;
    }

    fn identity(&self, state: &SocketState) -> u64 {
        self.hasher.hash_one((state.process, state.flags & SOCKET_SERVICE, state.reader_tgid))
    }

    fn key_of(&mut self, record: &SocketRecord) -> GroupKey {
        let live = &record.live;
        let mut process = decode::name(record.state.process.as_bytes());
        if process.is_empty() {
            // Nobody has read yet: the connection belongs to the process that listens there.
            if let Some(listener) = self.listeners.get((live.netns, live.local_port)) {
                process.push_str(&listener.process);
            }
        }
        if process.is_empty() {
            process.push_str("other");
        }
        let ends = Ends {
            flags: record.state.flags,
            netns: live.netns,
            local_port: live.local_port,
            remote_port: live.remote_port,
        };
        self.key(process, ends, record.state.reader_tgid)
    }

    fn key(&mut self, process: String, ends: Ends, tgid: u32) -> GroupKey {
        let cgroup = self.cgroups.as_mut().map(|cgroups| cgroups.label(tgid, &process));
        GroupKey { process, service: service::service(ends, &self.listeners), cgroup }
    }

    /// Takes one reader slot in use, read before `now_ns` of `CLOCK_MONOTONIC`. Its timeslices belong to one service.
    pub fn reader(&mut self, slot: u32, reader: &ReaderSlot, now: Instant, now_ns: u64) {
        let ends = Ends {
            flags: reader.socket_flags,
            netns: reader.netns,
            local_port: reader.local_port,
            remote_port: reader.remote_port,
        };
        let from =
            (reader.process, reader.socket_flags & SOCKET_SERVICE, reader.netns, reader.local_port, reader.remote_port);
        let identity = self.hasher.hash_one((from, reader.tgid));
        if self.readers.get(&slot).is_none_or(|known| known.identity != identity) {
            let key = self.key(decode::name(reader.process.as_bytes()), ends, reader.tgid);
            let group = self.groups.join(key, now);
            match self.readers.get_mut(&slot) {
                Some(known) => {
                    self.groups.leave(known.group);
                    (known.group, known.identity) = (group, identity);
                }
                None => {
                    let accounted = <ReaderSlot as zerocopy::FromZeros>::new_zeroed();
                    self.readers.insert(slot, Reader { group, identity, accounted });
                }
            }
        }
        let Some(known) = self.readers.get_mut(&slot) else { return };
        if possible::reader(reader, now_ns) {
            self.groups.add_reader(known.group, &tally::reader_row(reader, &known.accounted), now);
        } else {
            self.impossible[1] += 1;
        }
        known.accounted = *reader;
    }

    /// The reader of a slot has exited, and its slot is about to be freed. Its last values have been given to
    /// [`Table::reader`].
    pub fn reader_gone(&mut self, slot: u32) {
        if let Some(reader) = self.readers.remove(&slot) {
            self.groups.leave(reader.group);
        }
    }

    /// Takes the drops since the last pass, by cookie and reason. Ends the pass for the groups.
    pub fn drops(&mut self, counts: &[(u64, u32, u64)], name: impl Fn(u32) -> String, now: Instant) {
        for (cookie, reason, by) in counts {
            let index = self.sockets.index_of(*cookie);
            let group = match index.and_then(|index| self.sockets.get_mut(index)) {
                Some(Tracked { kind: Kind::Connection(connection), .. }) => connection.group,
                _ => self.ended.get(cookie).copied().unwrap_or(OTHER),
            };
            self.groups.add_drops(group, &name(*reason), *by, now);
        }
        self.ended.clear();
        if let Some(cgroups) = &mut self.cgroups {
            cgroups.pass_over();
        }
        // Last, because sockets that have ended refer to their groups until here.
        self.groups.expire(now);
    }

    /// The groups of the pass that has just ended were shown: the next pass may show others.
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

    /// Number of sockets whose end nobody saw: what they received after the last pass that showed them is missing.
    pub fn unended(&self) -> u64 {
        self.unended.max(self.missed)
    }

    /// Values that were refused because the wire or the clock does not allow them: of sockets, of readers.
    pub fn impossible(&self) -> [u64; 2] {
        self.impossible
    }

    /// Number of sockets known.
    pub fn sockets_known(&self) -> usize {
        self.sockets.len()
    }
}

fn listener(record: &SocketRecord) -> Listener {
    Listener {
        process: decode::name(record.state.process.as_bytes()),
        port_chosen: record.live.flags & LIVE_PORT_CHOSEN != 0,
    }
}

fn add(to: &mut SocketRow, row: &SocketRow) {
    for (cell, by) in to.iter_mut().zip(row) {
        *cell = cell.wrapping_add(*by);
    }
}

/// The record's totals brought up to the time of the snapshot, by the same function that the programs use, and whether
/// that function refused anything.
fn until_now(record: &SocketRecord) -> (SocketCounters, bool) {
    let live = &record.live;
    let mut state = record.state;
    let seen = Seen {
        now_ns: record.header.time_ns,
        rcv_nxt: live.rcv_nxt,
        copied_seq: live.copied_seq,
        rmem: live.rmem,
        rcvbuf: live.rcvbuf,
        window: live.window,
        mss: live.mss,
        state: u32::from(live.state),
        fin: live.flags & LIVE_FIN != 0,
        autotuned: live.flags & LIVE_AUTOTUNED != 0,
    };
    let switches = |_, _| (live.flags & LIVE_READER != 0).then_some(live.reader_switches);
    let Folded { refused, .. } = fold::fold(&mut state, &seen, Cause::Snapshot, switches);
    (state.counters, refused != 0)
}

#[cfg(test)]
#[path = "table/tests.rs"]
mod tests;
