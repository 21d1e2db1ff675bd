//! The table of sockets and readers: last values per cookie and per slot, whose differences add up per group.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use tcpmon_common::{
    fold::{self, Cause, Folded, Seen},
    reader::ReaderSlot,
    socket::{
        LIVE_AUTOTUNED, LIVE_FIN, LIVE_NEW, LIVE_READER, SOCKET_ACTIVE, SOCKET_PASSIVE, SocketCounters, SocketRecord,
        SocketState,
    },
};

use super::{
    group::{GroupId, Groups, OTHER},
    listeners::Listeners,
    possible,
    service::{self, Ends},
    snapshot::{Group, GroupKey},
    tally::{self, SocketRow},
    tracked::{Accounted, Connection, Gauges, Kind, Sockets, Tracked},
};
use crate::decode;

/// `TCP_LISTEN`.
const LISTEN: u8 = 10;

/// The flags that decide about a socket's service.
const ENDS_FLAGS: u32 = SOCKET_ACTIVE | SOCKET_PASSIVE;

/// Sockets whose group is remembered until the next pass after their end, for drops that were not read yet. Drops of
/// further ones are counted under `other`.
const ENDED: usize = 4096;

/// Sockets that were handed over before a snapshot has shown them, whose former readers' share is remembered. What further
/// ones received counts for their last reader.
const HANDED_OVER: usize = 4096;

/// After so many passes in a row that have not met it, a socket is gone. A pass that others begin and end in can miss
/// some that are there: the kernel finds its place in the list again by counting.
const GONE_AFTER: u8 = 8;

/// Passes that agree on how many connections ended unseen.
const MISSING: usize = 3;

/// Names the control group of a thread group, for the optional label.
pub type CgroupOf = Box<dyn FnMut(u32) -> Option<String> + Send>;

/// Bounds of the table.
pub struct Limits {
    /// Most groups.
    pub max_groups: usize,
    /// An idle group leaves after this.
    pub group_ttl: Duration,
    /// How to find a control group, when that label is on.
    pub cgroup_of: Option<CgroupOf>,
}

/// Connections by what has become of them, since tcpmon began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    /// Seen to be opened, whether or not that succeeded.
    pub opened: u64,
    /// Counting has begun for them.
    pub begun: u64,
    /// Of these, seen to end.
    pub ended: u64,
}

struct Reader {
    group: GroupId,
    key: GroupKey,
    accounted: ReaderSlot,
}

/// See the module.
pub struct Table {
    limits: Limits,
    groups: Groups,
    sockets: Sockets,
    readers: HashMap<u32, Reader>,
    listeners: Listeners,
    fallen: Vec<SocketCounters>,
    /// What the sockets that fell since the last pass add to `other`.
    falling: SocketRow,
    /// Sockets that are gone although neither a record nor the fallen have their end.
    unended: u64,
    /// Connections, shown or not, that ended unseen: as the last passes found, and as is certain.
    missing: [u64; MISSING],
    missed: u64,
    /// What was refused because it cannot be: of sockets, of readers.
    impossible: [u64; 2],
    drops: HashMap<(u64, u32), Dropped>,
    /// Where the drops of sockets that ended since the last pass belong; at most [`ENDED`] of them.
    ended: HashMap<u64, GroupId>,
    /// Sockets that ended since the pass began.
    ended_in_pass: HashSet<u64>,
    /// What was accounted of sockets that were handed over before they were shown; at most [`HANDED_OVER`] of them.
    handed_over: HashMap<u64, Accounted>,
    hasher: RandomState,
    /// When counting began, `CLOCK_MONOTONIC`, ns.
    began_ns: u64,
}

struct Dropped {
    count: u64,
    /// Passes without a change.
    idle: u32,
}

impl Table {
    /// An empty table; counting began at `began_ns` of `CLOCK_MONOTONIC`.
    pub fn new(limits: Limits, now: Instant, began_ns: u64) -> Self {
        let groups = Groups::new(limits.max_groups, limits.group_ttl, limits.cgroup_of.is_some(), now);
        Self {
            limits,
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
            drops: HashMap::new(),
            ended: HashMap::new(),
            ended_in_pass: HashSet::new(),
            handed_over: HashMap::new(),
            hasher: RandomState::new(),
            began_ns,
        }
    }

    /// A pass over all sockets begins.
    pub fn begin(&mut self) {
        self.ended_in_pass.clear();
        self.listeners.begin();
    }

    /// Sockets whose last record was lost end here: `sums` has the totals of all so far, one per CPU, and `fell` the
    /// indexes of those of them that were shown. Sums are to be read before indexes.
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
                // Its whole totals are among the sums: take back what was counted before, or it counts twice.
                add(&mut self.falling, &tally::socket_row(&SocketCounters::ZERO, &connection.accounted.counters()));
            }
            self.leave(cookie, &kind);
        }
    }

    /// Somebody begins to listen.
    pub fn listener(&mut self, record: &SocketRecord) {
        let live = &record.live;
        self.listeners.announce((live.netns, live.local_port), decode::name(&record.state.process));
    }

    /// One socket of the pass. The records that were sent until it was shown have been taken.
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

    /// A connection that was not shown before, or whose traces were lost.
    fn meet(&mut self, index: u32, record: &SocketRecord, is_new: bool, now: Instant) {
        let cookie = record.state.cookie;
        // What was counted of it under another index stays counted.
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
            // It was shown before, but nothing is known of it: its totals cannot be told from what was counted.
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
        self.listeners.insert((netns, port), decode::name(&record.state.process));
        let kind = Kind::Listener { netns, port };
        self.sockets.insert(index, Tracked { cookie: record.state.cookie, kind });
    }

    /// The last values of a socket, which is gone.
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

    /// The values of a socket until another process began to read it: they are the former one's.
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

    /// How many connections live by their begins and ends, beside the `living` that a pass has met.
    pub fn lives(&mut self, before: Lives, living: u64, after: Lives) {
        // One that ended meanwhile may not have been met, and may have hidden another one that lives.
        let ended_meanwhile = after.ended - before.ended;
        let expected = (before.begun - before.ended).saturating_sub(2 * ended_meanwhile);
        self.missing.rotate_left(1);
        self.missing[MISSING - 1] = expected.saturating_sub(living);
        // An end that is counted only after the pass has come by is no missed one.
        self.missed = self.missed.max(self.missing.into_iter().min().unwrap_or(0));
    }

    /// The pass is over, and met the sockets with the indexes whose bits are in `met`. Returns indexes that are free.
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

    /// A socket is gone without a word.
    fn miss(&mut self, index: u32) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        // No program saw its end, or its last record was never sent. What was counted is all that will be.
        if let Kind::Connection(connection) = &socket.kind
            && !connection.accounted.is_empty()
        {
            self.unended += 1;
            self.groups.gauges(connection.group).remove(&connection.gauges);
            // If it should come back, it must not count twice.
            let Some(oldest) = self.sockets.lose(index) else { return };
            if let Some(Tracked { cookie, kind: Kind::Connection(connection), .. }) = self.sockets.remove(oldest) {
                self.groups.leave(connection.group);
                self.remember(cookie, connection.group);
            }
        } else if let Some(socket) = self.sockets.remove(index) {
            self.leave(socket.cookie, &socket.kind);
        }
    }

    /// A socket that was taken for gone is there.
    fn find(&mut self, index: u32) {
        self.sockets.find(index);
        if let Some(Tracked { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(index) {
            self.groups.gauges(connection.group).add(&connection.gauges);
        }
    }

    /// A socket is gone.
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

    /// Adds what the connection has added to its group, after finding out which that is.
    fn account(&mut self, index: u32, record: &SocketRecord, counters: &SocketCounters, now: Instant) {
        let identity = self.identity(&record.state);
        let Some(Tracked { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(index) else { return };
        // Tens of thousands of sockets are looked at in every pass, and next to none of them changes hands.
        let key = (connection.identity != identity).then(|| self.key_of(record));
        let Some(Tracked { kind: Kind::Connection(connection), .. }) = self.sockets.get_mut(index) else { return };
        if let Some(key) = key {
            // The reader changed: what comes from now on is the new one's.
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
        self.hasher.hash_one((state.process, state.flags & ENDS_FLAGS, state.reader_tgid))
    }

    fn key_of(&mut self, record: &SocketRecord) -> GroupKey {
        let live = &record.live;
        let mut process = decode::name(&record.state.process);
        if process.is_empty() {
            // Nobody has read yet: it belongs to whoever listens there.
            if let Some(listener) = self.listeners.get((live.netns, live.local_port)) {
                process.push_str(listener);
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
        let cgroup = self.limits.cgroup_of.as_mut().map(|cgroup_of| {
            let path = (tgid != 0).then(|| cgroup_of(tgid)).flatten();
            path.unwrap_or_else(|| "other".into())
        });
        GroupKey { process, service: service::service(ends, &self.listeners), cgroup }
    }

    /// One reader slot in use, read before `now_ns` of `CLOCK_MONOTONIC`. Its timeslices belong to one service.
    pub fn reader(&mut self, slot: u32, reader: &ReaderSlot, now: Instant, now_ns: u64) {
        let ends = Ends {
            flags: reader.socket_flags,
            netns: reader.netns,
            local_port: reader.local_port,
            remote_port: reader.remote_port,
        };
        let key = self.key(decode::name(&reader.process), ends, reader.tgid);
        let groups = &mut self.groups;
        let known = self.readers.entry(slot).or_insert_with(|| Reader {
            group: groups.join(key.clone(), now),
            key: key.clone(),
            accounted: <ReaderSlot as zerocopy::FromZeros>::new_zeroed(),
        });
        if known.key != key {
            groups.leave(known.group);
            known.group = groups.join(key.clone(), now);
            known.key = key;
        }
        if possible::reader(reader, now_ns) {
            groups.add_reader(known.group, &tally::reader_row(reader, &known.accounted), now);
        } else {
            self.impossible[1] += 1;
        }
        known.accounted = *reader;
    }

    /// The reader of a slot has exited and its slot is cleared; its last values have been given to [`Table::reader`].
    pub fn reader_gone(&mut self, slot: u32) {
        if let Some(reader) = self.readers.remove(&slot) {
            self.groups.leave(reader.group);
        }
    }

    /// All drop counts. Returns the keys that can be forgotten, because their sockets are gone.
    pub fn drops(&mut self, counts: &[(u64, u32, u64)], name: impl Fn(u32) -> String, now: Instant) -> Vec<(u64, u32)> {
        let mut seen = HashSet::new();
        let mut forget = Vec::new();
        for (cookie, reason, count) in counts {
            seen.insert((*cookie, *reason));
            let index = self.sockets.index_of(*cookie);
            let group = match index.and_then(|index| self.sockets.get_mut(index)) {
                Some(Tracked { kind: Kind::Connection(connection), .. }) => connection.group,
                _ => self.ended.get(cookie).copied().unwrap_or(OTHER),
            };
            let known = self.drops.entry((*cookie, *reason)).or_insert(Dropped { count: 0, idle: 0 });
            let by = count.saturating_sub(known.count);
            known.count = *count;
            known.idle = if by == 0 { known.idle + 1 } else { 0 };
            if by > 0 {
                self.groups.add_drops(group, &name(*reason), by, now);
            }
            // A socket that is gone drops nothing more; one pass without a change makes sure.
            if index.is_none() && known.idle > 0 {
                forget.push((*cookie, *reason));
            }
        }
        self.drops.retain(|key, _| seen.contains(key));
        for key in &forget {
            self.drops.remove(key);
        }
        self.ended.clear();
        // Last, because until here sockets that have ended still point to their groups.
        self.groups.expire(now);
        forget
    }

    /// All groups.
    pub fn groups(&self) -> Vec<Group> {
        self.groups.all()
    }

    /// Members of `other` for want of room.
    pub fn suppressed(&self) -> u64 {
        self.groups.suppressed()
    }

    /// Groups there are, and may be.
    pub fn groups_in_use(&self) -> (usize, usize) {
        self.groups.use_and_capacity()
    }

    /// Sockets whose end nobody saw: what they received after the last pass that showed them is missing.
    pub fn unended(&self) -> u64 {
        self.unended.max(self.missed)
    }

    /// What was refused because it cannot be: more than the wire or the clock allows. Of sockets, of readers.
    pub fn impossible(&self) -> [u64; 2] {
        self.impossible
    }

    /// Sockets known.
    pub fn sockets_known(&self) -> usize {
        self.sockets.len()
    }
}

fn add(to: &mut SocketRow, row: &SocketRow) {
    for (cell, by) in to.iter_mut().zip(row) {
        *cell = cell.wrapping_add(*by);
    }
}

/// The record's totals brought up to the moment of the snapshot, by the same function that the programs use, and whether
/// that refused anything.
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
