//! Groups: bounded in number, expired when idle, with totals that never go backwards.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use super::{
    snapshot::{Group, GroupGauges, GroupKey},
    tally::{self, READER, ReaderRow, SOCKET, SocketRow, Tally},
};

/// Number of a group; stable while the group exists.
pub type GroupId = usize;

/// The group that takes what has no other.
pub const OTHER: GroupId = 0;

#[derive(Debug)]
struct Entry {
    key: GroupKey,
    socket: Tally<SOCKET>,
    reader: Tally<READER>,
    drops: BTreeMap<String, u64>,
    gauges: GroupGauges,
    /// Sockets and readers that point here.
    members: usize,
    /// Nothing that it counts happened before this.
    born: Instant,
    last_change: Instant,
}

/// All groups.
#[derive(Debug)]
pub struct Groups {
    entries: Vec<Option<Entry>>,
    by_key: HashMap<GroupKey, GroupId>,
    max: usize,
    ttl: Duration,
    suppressed: u64,
    /// The last pass. A group that was not there yet has counted nothing before it.
    last_pass: Instant,
}

impl Groups {
    /// At most `max` groups, `other` among them; a group without members that nothing changed for `ttl` leaves.
    pub fn new(max: usize, ttl: Duration, with_cgroup: bool, now: Instant) -> Self {
        let mut groups =
            Self { entries: Vec::new(), by_key: HashMap::new(), max: max.max(1), ttl, suppressed: 0, last_pass: now };
        groups.insert(GroupKey::other(with_cgroup), now);
        groups
    }

    fn insert(&mut self, key: GroupKey, now: Instant) -> GroupId {
        let entry = Entry {
            key: key.clone(),
            socket: Tally::default(),
            reader: Tally::default(),
            drops: BTreeMap::new(),
            gauges: GroupGauges::default(),
            members: 0,
            born: self.last_pass,
            last_change: now,
        };
        let id = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        if id == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[id] = Some(entry);
        self.by_key.insert(key, id);
        id
    }

    /// The group of these labels for one more member; `other` when there is no room for a new one.
    pub fn join(&mut self, key: GroupKey, now: Instant) -> GroupId {
        let id = match self.by_key.get(&key) {
            Some(id) => *id,
            None if self.by_key.len() < self.max => self.insert(key, now),
            None => {
                self.suppressed += 1;
                OTHER
            }
        };
        self.entry(id).members += 1;
        id
    }

    /// One member fewer.
    pub fn leave(&mut self, id: GroupId) {
        let entry = self.entry(id);
        entry.members = entry.members.saturating_sub(1);
    }

    fn entry(&mut self, id: GroupId) -> &mut Entry {
        self.entries[id].as_mut().expect("a group stays while it has members")
    }

    /// Adds what a socket has added.
    pub fn add_socket(&mut self, id: GroupId, row: &SocketRow, now: Instant) {
        if row.iter().any(|cell| *cell != 0) {
            let entry = self.entry(id);
            entry.socket.add(row);
            entry.last_change = now;
        }
    }

    /// Adds what a reader has added.
    pub fn add_reader(&mut self, id: GroupId, row: &ReaderRow, now: Instant) {
        if row.iter().any(|cell| *cell != 0) {
            let entry = self.entry(id);
            entry.reader.add(row);
            entry.last_change = now;
        }
    }

    /// Adds dropped segments.
    pub fn add_drops(&mut self, id: GroupId, reason: &str, count: u64, now: Instant) {
        let entry = self.entry(id);
        *entry.drops.entry(reason.to_owned()).or_default() += count;
        entry.last_change = now;
    }

    /// The group's present, to be changed.
    pub fn gauges(&mut self, id: GroupId) -> &mut GroupGauges {
        &mut self.entry(id).gauges
    }

    /// A pass is over. Lets idle groups go, with their totals: were these added to another group, every rate would show
    /// them a second time.
    pub fn expire(&mut self, now: Instant) {
        for id in OTHER + 1..self.entries.len() {
            let idle = self.entries[id]
                .as_ref()
                .is_some_and(|entry| entry.members == 0 && now.duration_since(entry.last_change) >= self.ttl);
            if let Some(gone) = idle.then(|| self.entries[id].take()).flatten() {
                self.by_key.remove(&gone.key);
            }
        }
        self.last_pass = now;
    }

    /// Members that found no room for a group of their own.
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// How many groups there are, and how many there may be.
    pub fn use_and_capacity(&self) -> (usize, usize) {
        (self.by_key.len(), self.max)
    }

    /// All groups in the order of their keys.
    pub fn all(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = self
            .entries
            .iter()
            .flatten()
            .map(|entry| {
                let mut counters = tally::counters(&entry.socket, &entry.reader);
                counters.drops = entry.drops.iter().map(|(reason, count)| (reason.clone(), *count)).collect();
                Group { key: entry.key.clone(), born: entry.born, counters, gauges: entry.gauges }
            })
            .collect();
        groups.sort_by(|a, b| a.key.cmp(&b.key));
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::GroupCounters;

    fn key(process: &str) -> GroupKey {
        GroupKey { process: process.into(), service: "local:1".into(), cgroup: None }
    }

    fn row(received: i64) -> SocketRow {
        let mut row = [0; SOCKET];
        row[0] = received;
        row
    }

    #[test]
    fn what_finds_no_room_goes_to_other_and_is_counted() {
        let now = Instant::now();
        let mut groups = Groups::new(3, Duration::from_secs(1), false, now);
        let (a, b, c) = (groups.join(key("a"), now), groups.join(key("b"), now), groups.join(key("c"), now));
        assert_ne!(a, b);
        assert_eq!((c, groups.suppressed(), groups.all().len()), (OTHER, 1, 3));
        assert_eq!(groups.join(key("a"), now), a, "known groups still take members");
    }

    #[test]
    fn an_idle_group_leaves_with_its_totals() {
        let start = Instant::now();
        let ttl = Duration::from_secs(600);
        let mut groups = Groups::new(10, ttl, false, start);
        let id = groups.join(key("a"), start);
        groups.add_socket(id, &row(100), start);
        groups.add_drops(id, "proto_mem", 2, start);
        groups.expire(start + ttl * 2);
        assert_eq!(groups.all().len(), 2, "a group with members stays");
        groups.leave(id);
        groups.expire(start + ttl / 2);
        assert_eq!(groups.all().len(), 2, "not idle for long enough");
        groups.expire(start + ttl);
        let left = groups.all();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].counters, GroupCounters::default(), "`other` has received nothing of its own");
        let again = groups.join(key("b"), start + ttl);
        assert_eq!(again, id, "its place is free again");
        assert_eq!(groups.all()[0].counters.received_bytes, 0, "and holds nothing of the former group");
    }

    #[test]
    fn a_group_is_born_at_the_last_pass_that_did_not_show_it_and_anew_when_it_comes_back() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut groups = Groups::new(10, Duration::from_secs(60), false, start);
        let born = |groups: &Groups| groups.all().iter().map(|group| group.born).collect::<Vec<_>>();
        groups.expire(at(10));
        let id = groups.join(key("a"), at(15));
        groups.leave(id);
        groups.expire(at(20));
        assert_eq!(born(&groups), [at(10), start], "a, and other, which is as old as the daemon");
        groups.expire(at(100));
        groups.join(key("a"), at(110));
        assert_eq!(born(&groups), [at(100), start]);
    }
}
