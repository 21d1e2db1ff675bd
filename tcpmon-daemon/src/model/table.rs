//! The table of sockets and readers: last values per cookie and per slot, whose differences add up per group.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    time::{Duration, Instant},
};

use tcpmon_common::{
    fold::{self, Seen},
    reader::ReaderSlot,
    socket::{
        LIVE_AUTOTUNED, LIVE_FIN, LIVE_READER, SOCKET_ACTIVE, SOCKET_PASSIVE, SocketCounters, SocketLive, SocketRecord,
    },
};

use super::{
    group::{GroupId, Groups, OTHER},
    service::{self, Ends, Listeners},
    snapshot::{Group, GroupGauges, GroupKey},
    tally::{self, SocketRow},
};
use crate::decode;

/// `TCP_LISTEN` and the states before a connection is one.
const LISTEN: u8 = 10;

/// The flags that decide about a socket's service.
const ENDS_FLAGS: u32 = SOCKET_ACTIVE | SOCKET_PASSIVE;

/// Sockets whose group is remembered until the next pass after their end, for drops that were not read yet. Drops of
/// further ones are counted under `other`.
const ENDED: usize = 4096;

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

struct Socket {
    group: GroupId,
    identity: Identity,
    /// What has been added to the group; apart, so that a pass over idle sockets goes through little memory.
    accounted: Box<SocketCounters>,
    /// The state's sequence number, when the socket was idle in the last pass.
    sequence: Option<u32>,
    /// The pass that saw it last.
    pass: u64,
}

/// What a socket's group follows from, as the kernel has it: while it stays, the group does.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    process: [u8; 16],
    flags: u32,
    tgid: u32,
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
    sockets: HashMap<u64, Socket>,
    readers: HashMap<u32, Reader>,
    listeners: Listeners,
    /// Collected during a pass, to replace `listeners` at its end.
    listening: Listeners,
    fallen: Vec<SocketCounters>,
    /// How many have fallen so far.
    fell: u64,
    /// How many of them fell since the last pass and are not yet known to be gone, and what they add to `other`.
    falling: u64,
    falling_row: SocketRow,
    /// Sockets that are gone although neither a record nor the fallen have their end.
    unended: u64,
    drops: HashMap<(u64, u32), Dropped>,
    /// Where the drops of sockets that ended since the last pass belong; at most [`ENDED`] of them.
    ended: HashMap<u64, GroupId>,
    pass: u64,
}

struct Dropped {
    count: u64,
    /// Passes without a change.
    idle: u32,
}

impl Table {
    /// An empty table.
    pub fn new(limits: Limits, now: Instant) -> Self {
        let groups = Groups::new(limits.max_groups, limits.group_ttl, limits.cgroup_of.is_some(), now);
        Self {
            limits,
            groups,
            sockets: HashMap::new(),
            readers: HashMap::new(),
            listeners: Listeners::new(),
            listening: Listeners::new(),
            fallen: Vec::new(),
            fell: 0,
            falling: 0,
            falling_row: [0; tally::SOCKET],
            unended: 0,
            drops: HashMap::new(),
            ended: HashMap::new(),
            pass: 0,
        }
    }

    /// Sockets whose last record was lost end here: `fell` so far, with their totals in `sums`, one per CPU. To be called
    /// before a pass: what fell before it is missing in it.
    pub fn fallen(&mut self, sums: &[SocketCounters], fell: u64) {
        self.falling += fell.saturating_sub(self.fell);
        self.fell = fell;
        self.fallen.resize(sums.len(), SocketCounters::ZERO);
        for (sum, before) in sums.iter().zip(&mut self.fallen) {
            add(&mut self.falling_row, &tally::socket_row(sum, before));
            *before = *sum;
        }
    }

    /// A pass over all sockets begins.
    pub fn begin(&mut self) {
        self.pass += 1;
        self.groups.clear_gauges();
    }

    /// Somebody listens. Said as it happens, and of those who did before tcpmon began, before the first pass.
    pub fn listener(&mut self, record: &SocketRecord) {
        let live = &record.live;
        if live.state == LISTEN {
            let process = decode::name(&record.state.process);
            self.listeners.insert((live.netns, live.local_port), process.clone());
            self.listening.insert((live.netns, live.local_port), process);
        }
    }

    /// One socket of the pass.
    pub fn socket(&mut self, record: &SocketRecord, now: Instant) {
        let live = &record.live;
        if live.state == LISTEN {
            self.listener(record);
            return;
        }
        if record.state.last_ns == 0 {
            // Not established yet, or connecting anew, with what it has counted.
            if let Some(socket) = self.sockets.get_mut(&record.header.cookie) {
                socket.pass = self.pass;
            }
            return;
        }
        let queued = live.rcv_nxt.wrapping_sub(live.copied_seq).cast_signed().max(0).cast_unsigned();
        let cookie = record.header.cookie;
        let known = self.sockets.get_mut(&cookie);
        // Nothing has happened, nothing waits and the window is open: nothing has been added since the last pass. Most
        // sockets of most hosts are so.
        let idle = queued == 0 && live.window >= live.mss;
        match known {
            Some(socket) if idle && socket.sequence == Some(live.sequence) => {
                socket.pass = self.pass;
                add_gauges(self.groups.gauges(socket.group), live, queued);
                return;
            }
            _ => {}
        }
        // An event was being folded while the state was copied: its numbers do not belong together. What was known
        // of the socket stays, and the next pass catches up.
        let torn = live.sequence & 1 == 1 || live.sequence != record.state.sequence;
        if !torn {
            let counters = until_now(record);
            self.account(record, &counters, now);
        }
        if let Some(socket) = self.sockets.get_mut(&cookie) {
            socket.pass = self.pass;
            socket.sequence = (!torn && idle).then_some(live.sequence);
            add_gauges(self.groups.gauges(socket.group), live, queued);
        }
    }

    /// The last values of a socket, which is gone.
    pub fn ended(&mut self, record: &SocketRecord, now: Instant) {
        self.account(record, &record.state.counters, now);
        if let Some(socket) = self.sockets.remove(&record.header.cookie) {
            self.leave(record.header.cookie, &socket);
        }
    }

    /// The pass is over, and the records that were sent until now have been taken: what was in neither is gone, and its
    /// last record with it.
    pub fn end(&mut self, now: Instant) {
        self.listeners = std::mem::take(&mut self.listening);
        let mut gone: Vec<(u64, u64)> = Vec::new();
        for (cookie, socket) in &self.sockets {
            if socket.pass != self.pass {
                gone.push((socket.pass, *cookie));
            }
        }
        gone.sort_unstable();
        for (seen, cookie) in gone {
            let Entry::Occupied(entry) = self.sockets.entry(cookie) else { continue };
            let accounted = &entry.get().accounted;
            if accounted.received_bytes | accounted.segments | accounted.zero_window_ns == 0 {
                // A sender: it had nothing to say at its end.
            } else if self.falling > 0 {
                self.falling -= 1;
                // Its whole totals are among the fallen: take back what was counted before, or it counts twice.
                add(&mut self.falling_row, &tally::socket_row(&SocketCounters::ZERO, accounted));
            } else if seen + 1 == self.pass {
                // It may have fallen since the sums were read, or its record may come yet: where programs can be
                // preempted, one may be held up before it sends.
                continue;
            } else {
                // No program saw its end. What was counted is all that will be.
                self.unended += 1;
            }
            let socket = entry.remove();
            self.leave(cookie, &socket);
        }
        self.falling = 0;
        let row = std::mem::replace(&mut self.falling_row, [0; tally::SOCKET]);
        self.groups.add_socket(OTHER, &row, now);
    }

    fn leave(&mut self, cookie: u64, socket: &Socket) {
        self.groups.leave(socket.group);
        if self.ended.len() < ENDED {
            self.ended.insert(cookie, socket.group);
        }
    }

    /// Adds what the socket has added to its group, after finding out which that is.
    fn account(&mut self, record: &SocketRecord, counters: &SocketCounters, now: Instant) {
        let cookie = record.header.cookie;
        let pass = self.pass;
        let state = &record.state;
        let identity = Identity { process: state.process, flags: state.flags & ENDS_FLAGS, tgid: state.reader_tgid };
        // Tens of thousands of sockets are looked at in every pass, and next to none of them changes hands.
        if let Some(socket) = self.sockets.get_mut(&cookie)
            && socket.identity == identity
        {
            if *socket.accounted != *counters {
                self.groups.add_socket(socket.group, &tally::socket_row(counters, &socket.accounted), now);
                *socket.accounted = *counters;
            }
            return;
        }
        let key = self.key_of(record);
        let groups = &mut self.groups;
        let socket = match self.sockets.entry(cookie) {
            Entry::Vacant(entry) => entry.insert(Socket {
                group: groups.join(key, now),
                identity,
                accounted: Box::new(SocketCounters::ZERO),
                sequence: None,
                pass,
            }),
            Entry::Occupied(entry) => {
                let socket = entry.into_mut();
                // The reader changed: what comes from now on is the new one's.
                groups.leave(socket.group);
                socket.group = groups.join(key, now);
                socket.identity = identity;
                socket
            }
        };
        groups.add_socket(socket.group, &tally::socket_row(counters, &socket.accounted), now);
        *socket.accounted = *counters;
    }

    fn key_of(&mut self, record: &SocketRecord) -> GroupKey {
        let live = &record.live;
        let mut process = decode::name(&record.state.process);
        if process.is_empty() {
            // Nobody has read yet: it belongs to whoever listens there.
            if let Some(listener) = self.listeners.get(&(live.netns, live.local_port)) {
                process.clone_from(listener);
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

    /// One reader slot in use. Its timeslices belong to the service that it turned to last.
    pub fn reader(&mut self, slot: u32, reader: &ReaderSlot, now: Instant) {
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
        groups.add_reader(known.group, &tally::reader_row(reader, &known.accounted), now);
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
            let group = self
                .sockets
                .get(cookie)
                .map(|socket| socket.group)
                .or_else(|| self.ended.get(cookie).copied())
                .unwrap_or(OTHER);
            let known = self.drops.entry((*cookie, *reason)).or_insert(Dropped { count: 0, idle: 0 });
            let by = count.saturating_sub(known.count);
            known.count = *count;
            known.idle = if by == 0 { known.idle + 1 } else { 0 };
            if by > 0 {
                self.groups.add_drops(group, &name(*reason), by, now);
            }
            // A socket that is gone drops nothing more; one pass without a change makes sure.
            if !self.sockets.contains_key(cookie) && known.idle > 0 {
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
        self.unended
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

/// Adds a socket's present to its group's.
fn add_gauges(gauges: &mut GroupGauges, live: &SocketLive, queued: u32) {
    let fin = u32::from(live.flags & LIVE_FIN != 0);
    gauges.sockets += 1;
    gauges.queue_bytes += u64::from(queued.saturating_sub(fin));
    gauges.used_bytes += u64::from(live.rmem);
    gauges.limit_bytes += u64::from(live.rcvbuf);
    gauges.backlog_bytes += u64::from(live.backlog);
    gauges.out_of_order_bytes += u64::from(live.out_of_order);
    gauges.window_bytes += u64::from(live.window);
}

/// The record's totals brought up to the moment of the snapshot, by the same function that the programs use.
fn until_now(record: &SocketRecord) -> SocketCounters {
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
    fold::fold(&mut state, &seen, false, |_, _| (live.flags & LIVE_READER != 0).then_some(live.reader_switches));
    state.counters
}

#[cfg(test)]
mod tests {
    use tcpmon_common::{
        header::{Header, KIND_SNAPSHOT, VERSION},
        socket::SocketState,
    };

    use super::*;

    /// What the kernel shows of an idle connection that has received `bytes`.
    fn socket(cookie: u64, bytes: u64) -> SocketRecord {
        let mut state = SocketState { cookie, last_ns: 1, ..SocketState::ZERO };
        state.process[..6].copy_from_slice(b"reader");
        (state.counters.received_bytes, state.counters.segments) = (bytes, 1);
        // Even, and another one after each event.
        state.sequence = 2 * bytes as u32;
        let live = SocketLive { state: 1, sequence: state.sequence, ..SocketLive::ZERO };
        SocketRecord {
            header: Header { kind: KIND_SNAPSHOT, version: VERSION, cpu: 0, time_ns: 1, cookie },
            live,
            state,
        }
    }

    struct Passes {
        table: Table,
        now: Instant,
    }

    impl Passes {
        fn new() -> Self {
            let now = Instant::now();
            let limits = Limits { max_groups: 8, group_ttl: Duration::from_hours(1), cgroup_of: None };
            Self { table: Table::new(limits, now), now }
        }

        /// A pass that shows `sockets`, when `fell` have fallen so far with `bytes` together.
        fn pass(&mut self, sockets: &[SocketRecord], fell: u64, bytes: u64) {
            let sums = SocketCounters { received_bytes: bytes, ..SocketCounters::ZERO };
            self.table.fallen(&[sums], fell);
            self.table.begin();
            for socket in sockets {
                self.table.socket(socket, self.now);
            }
            self.table.end(self.now);
        }

        /// Received bytes of the readers and of `other`.
        fn received(&self) -> [u64; 2] {
            ["reader", "other"].map(|process| {
                let groups = self.table.groups();
                let mine = groups.iter().filter(|group| group.key.process == process);
                mine.map(|group| group.counters.received_bytes).sum()
            })
        }
    }

    #[test]
    fn what_fell_counts_once() {
        let mut passes = Passes::new();
        passes.pass(&[socket(1, 100)], 0, 0);
        // 30 more before its end, and another connection of 1000 that no pass has seen.
        passes.pass(&[], 2, 1130);
        assert_eq!(passes.received(), [100, 1030]);
        assert_eq!((passes.table.unended(), passes.table.sockets_known()), (0, 0));
    }

    #[test]
    fn what_falls_after_the_sums_were_read_counts_once() {
        let mut passes = Passes::new();
        passes.pass(&[socket(1, 100)], 0, 0);
        passes.pass(&[], 0, 0);
        passes.pass(&[], 1, 130);
        assert_eq!(passes.received(), [100, 30]);
        assert_eq!((passes.table.unended(), passes.table.sockets_known()), (0, 0));
    }

    #[test]
    fn an_end_that_nobody_saw_takes_nothing_from_others_and_is_counted() {
        let mut passes = Passes::new();
        passes.pass(&[socket(1, 100)], 0, 0);
        passes.pass(&[], 0, 0);
        passes.pass(&[], 0, 0);
        assert_eq!((passes.table.unended(), passes.table.sockets_known()), (1, 0));
        passes.pass(&[], 1, 70);
        assert_eq!(passes.received(), [100, 70]);
    }

    #[test]
    fn a_last_record_that_comes_late_counts_once() {
        let mut passes = Passes::new();
        passes.pass(&[socket(1, 100)], 0, 0);
        passes.pass(&[], 0, 0);
        passes.table.ended(&socket(1, 130), passes.now);
        passes.pass(&[], 0, 0);
        assert_eq!((passes.received(), passes.table.unended()), ([130, 0], 0));
    }

    #[test]
    fn a_socket_that_connects_anew_keeps_what_it_counted() {
        let mut passes = Passes::new();
        passes.pass(&[socket(1, 100)], 0, 0);
        let mut connecting = socket(1, 100);
        connecting.state.last_ns = 0;
        passes.pass(&[connecting], 0, 0);
        passes.pass(&[connecting], 0, 0);
        passes.pass(&[socket(1, 150)], 0, 0);
        assert_eq!((passes.received(), passes.table.unended()), ([150, 0], 0));
    }

    #[test]
    fn a_sender_ends_without_a_word() {
        let mut passes = Passes::new();
        let mut sender = socket(1, 0);
        sender.state.counters.segments = 0;
        passes.pass(&[sender], 0, 0);
        passes.pass(&[], 0, 0);
        assert_eq!((passes.table.unended(), passes.table.sockets_known()), (0, 0));
    }
}
