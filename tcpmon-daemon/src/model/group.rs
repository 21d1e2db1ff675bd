//! Groups: limited in number, with totals that never decrease.
//!
//! If there are more groups than may be shown, the most active ones are shown, each with its own series. The others are
//! hidden: what happens in them is counted and shown under `other`. Sockets and readers remain members of their groups
//! either way, so nothing has to be moved when two groups change places.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use tcpmon_common::{reader::ReaderTotals, socket::SocketTotals};

use super::{
    snapshot::{Group, GroupCounters, GroupGauges, GroupKey},
    tally::Tally,
};

/// Index of a group; stable while the group exists.
pub type GroupId = usize;

/// The group for everything that has no group of its own.
pub const OTHER: GroupId = 0;

/// Maximum number of hidden groups, some 400 bytes each. Members of further groups become members of `other`, and stay
/// there.
const HIDDEN: usize = 4096;

/// Half-life of a group's activity (the bytes that were received and read in it). A group is shown for at least this
/// long while anything happens in it. A group in which nothing has happened for this long gives its place to any other.
const RECENT: Duration = Duration::from_secs(60);

/// A hidden group must be this many times as active as a shown one to take its place: two similar groups must not
/// alternate.
const TIMES_AS_ACTIVE: f64 = 2.0;

/// Maximum length of a process name in the kernel, bytes.
const NAME: usize = 15;

#[derive(Debug, Default)]
struct Totals {
    sockets: Tally<SocketTotals>,
    readers: Tally<ReaderTotals>,
    drops: BTreeMap<String, u64>,
}

/// The group's sockets that are at rest.
#[derive(Clone, Copy, Debug, Default)]
struct Resting {
    sockets: u64,
    /// Sum of the times up to which each of these sockets is counted in the totals, `CLOCK_MONOTONIC`, ns; wraps.
    counted_until_ns: u64,
}

#[derive(Debug)]
struct Entry {
    key: Arc<GroupKey>,
    /// The totals that are shown; `None` for a hidden group, which counts under `other`.
    totals: Option<Box<Totals>>,
    gauges: GroupGauges,
    resting: Resting,
    /// Number of sockets and readers in this group.
    members: usize,
    /// Whether the operator wants this group shown.
    pinned: bool,
    /// Bytes received and read; halved every [`RECENT`].
    moved: f64,
    /// The group counts nothing that happened before this time.
    born: Instant,
    /// When it was last shown or hidden.
    placed: Instant,
    last_change: Instant,
}

/// Numbers of groups, and their limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Shown groups, including `other`.
    pub shown: usize,
    /// Maximum of `shown`.
    pub max: usize,
    /// Hidden groups: counted under `other`, because there is no room for more series.
    pub hidden: usize,
    /// Maximum of `hidden`.
    pub max_hidden: usize,
}

/// All groups.
#[derive(Debug)]
pub struct Groups {
    entries: Vec<Option<Entry>>,
    free: Vec<GroupId>,
    by_key: HashMap<Arc<GroupKey>, GroupId>,
    shown: usize,
    max: usize,
    ttl: Duration,
    pins: HashSet<String>,
    suppressed: u64,
    /// Whether a search for a new group's place has found no idle group since the last pass.
    none_idle: bool,
    /// Time of the last pass. A group that did not exist then has counted nothing before it.
    last_pass: Instant,
    pass_before: Instant,
}

impl Groups {
    /// Groups with these limits; at first, `other` is the only one.
    ///
    /// At most `max` groups are shown, including `other`. Groups of processes whose names are in `pins` come before all
    /// others. A group without members in which nothing has changed for `ttl` is removed.
    pub fn new(max: usize, ttl: Duration, pins: &[String], with_cgroup: bool, now: Instant) -> Self {
        let mut groups = Self {
            entries: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            shown: 0,
            max: max.max(1),
            ttl,
            pins: pins.iter().map(|name| as_kept(name)).collect(),
            suppressed: 0,
            none_idle: false,
            last_pass: now,
            pass_before: now,
        };
        let other = groups.insert(GroupKey::other(with_cgroup), false, now);
        groups.show(other, now);
        groups
    }

    /// Changes the limits, see [`Groups::new`].
    pub fn set_limits(&mut self, max: usize, ttl: Duration, pins: &[String]) {
        (self.max, self.ttl) = (max.max(1), ttl);
        self.pins = pins.iter().map(|name| as_kept(name)).collect();
        for entry in self.entries.iter_mut().flatten() {
            entry.pinned = self.pins.contains(&entry.key.process);
        }
    }

    /// Creates a group, hidden at first.
    fn insert(&mut self, key: GroupKey, pinned: bool, now: Instant) -> GroupId {
        let key = Arc::new(key);
        let entry = Entry {
            key: Arc::clone(&key),
            totals: None,
            gauges: GroupGauges::default(),
            resting: Resting::default(),
            members: 0,
            pinned,
            moved: 0.0,
            born: self.last_pass,
            placed: now,
            last_change: now,
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[id] = Some(entry);
        self.by_key.insert(key, id);
        id
    }

    /// Adds a member to the group with these labels, or to `other` if there is no room for a new group.
    pub fn join(&mut self, key: GroupKey, now: Instant) -> GroupId {
        let id = match self.by_key.get(&key) {
            Some(id) => *id,
            None => self.admit(key, now),
        };
        let entry = self.entry(id);
        entry.members += 1;
        if entry.totals.is_none() {
            self.suppressed += 1;
        }
        id
    }

    /// Creates a group, and shows it if there is a place for it; `other` if there is no room.
    fn admit(&mut self, key: GroupKey, now: Instant) -> GroupId {
        let pinned = self.pins.contains(&key.process);
        let is_full = self.shown >= self.max;
        let place = if is_full { self.place_for_newcomer(pinned, now) } else { None };
        let is_shown = !is_full || place.is_some();
        if !is_shown && self.hidden() >= HIDDEN {
            self.suppressed += 1;
            return OTHER;
        }
        if let Some(place) = place {
            self.hide(place, now);
        }
        let id = self.insert(key, pinned, now);
        if is_shown {
            self.show(id, now);
        }
        id
    }

    /// The shown group that gives up its place for a new one: the least active of the unpinned groups that have been
    /// idle for [`RECENT`]. A pinned new group takes the place of any unpinned group, or else that of an idle pinned
    /// one. A group that has only been idle for a moment may have values that no scraper has seen yet.
    fn place_for_newcomer(&mut self, pinned: bool, now: Instant) -> Option<GroupId> {
        if self.none_idle && !pinned {
            return None;
        }
        let idle = |entry: &Entry| entry.is_idle(now, RECENT);
        let gives_way = |entry: &Entry| if entry.pinned { pinned && idle(entry) } else { pinned || idle(entry) };
        let place = self.rivals(|entry| entry.totals.is_some() && gives_way(entry)).into_iter().next();
        self.none_idle |= place.is_none();
        place
    }

    /// All groups except `other` for which `which` holds: unpinned ones first, and the least active of them first.
    fn rivals(&self, which: impl Fn(&Entry) -> bool) -> Vec<GroupId> {
        let entries = self.entries.iter().enumerate().skip(OTHER + 1);
        let rivals = entries.filter_map(|(id, entry)| Some((id, entry.as_ref()?)));
        let mut rivals: Vec<_> = rivals.filter(|(_, entry)| which(entry)).collect();
        rivals.sort_by(|(_, a), (_, b)| a.compare(b));
        rivals.into_iter().map(|(id, _)| id).collect()
    }

    /// Shows a group: it counts under its own labels from now on, from zero.
    fn show(&mut self, id: GroupId, now: Instant) {
        let entry = self.entry(id);
        entry.totals = Some(Box::default());
        entry.placed = now;
        self.shown += 1;
    }

    /// Hides a group: its series and totals end, and it counts under `other` from now on.
    fn hide(&mut self, id: GroupId, now: Instant) {
        let entry = self.entry(id);
        entry.totals = None;
        entry.placed = now;
        self.suppressed += entry.members as u64;
        self.shown -= 1;
    }

    /// Removes a member.
    pub fn leave(&mut self, id: GroupId) {
        let entry = self.entry(id);
        entry.members = entry.members.saturating_sub(1);
    }

    fn entry(&mut self, id: GroupId) -> &mut Entry {
        self.entries[id].as_mut().expect("a group stays while it has members")
    }

    /// The totals in which a group's members count. Also notes that something has changed in the group.
    fn totals(&mut self, id: GroupId, now: Instant) -> &mut Totals {
        let entry = self.entry(id);
        entry.last_change = now;
        let shown = if entry.totals.is_some() { id } else { OTHER };
        self.entry(shown).totals.as_mut().expect("`other` is always shown")
    }

    /// Adds the differences of a socket.
    pub fn add_socket(&mut self, id: GroupId, added: &SocketTotals, now: Instant) {
        if *added != SocketTotals::default() {
            self.totals(id, now).sockets.add(added);
            let bytes = |cell: u64| cell.cast_signed().max(0) as f64;
            self.entry(id).moved += bytes(added.received_bytes) + bytes(added.read_bytes);
        }
    }

    /// Adds a socket that is at rest; its time up to `until_ns` is already in the totals.
    pub fn add_resting(&mut self, id: GroupId, until_ns: u64) {
        let resting = &mut self.entry(id).resting;
        resting.sockets += 1;
        resting.counted_until_ns = resting.counted_until_ns.wrapping_add(until_ns);
    }

    /// Removes a socket that is no longer at rest, or is gone.
    pub fn remove_resting(&mut self, id: GroupId, until_ns: u64) {
        let resting = &mut self.entry(id).resting;
        resting.sockets -= 1;
        resting.counted_until_ns = resting.counted_until_ns.wrapping_sub(until_ns);
    }

    /// Adds the time up to `now_ns` of all sockets that are at rest.
    pub fn credit_resting(&mut self, now_ns: u64, now: Instant) {
        for id in 0..self.entries.len() {
            let Some(Entry { resting, .. }) = &mut self.entries[id] else { continue };
            if resting.sockets == 0 {
                continue;
            }
            let until = resting.sockets.wrapping_mul(now_ns);
            let time = until.wrapping_sub(resting.counted_until_ns);
            resting.counted_until_ns = until;
            self.totals(id, now).sockets.add(&SocketTotals::at_rest(time));
        }
    }

    /// Adds the differences of a reader.
    pub fn add_reader(&mut self, id: GroupId, added: &ReaderTotals, now: Instant) {
        if *added != ReaderTotals::default() {
            self.totals(id, now).readers.add(added);
        }
    }

    /// Adds dropped segments.
    pub fn add_drops(&mut self, id: GroupId, reason: &str, count: u64, now: Instant) {
        *self.totals(id, now).drops.entry(reason.to_owned()).or_default() += count;
    }

    /// The group's gauges, to be modified.
    pub fn gauges(&mut self, id: GroupId) -> &mut GroupGauges {
        &mut self.entry(id).gauges
    }

    /// Ends a pass. Removes idle groups together with their totals: if these were added to another group, every rate
    /// would count them a second time.
    pub fn expire(&mut self, now: Instant) {
        let forgotten = 0.5_f64.powf(now.duration_since(self.last_pass).as_secs_f64() / RECENT.as_secs_f64());
        for id in OTHER + 1..self.entries.len() {
            let Some(entry) = &mut self.entries[id] else { continue };
            entry.moved *= forgotten;
            let stays = if entry.totals.is_some() { self.ttl } else { self.ttl.min(RECENT) };
            if entry.is_idle(now, stays) {
                self.remove(id);
            }
        }
        self.none_idle = false;
        self.pass_before = self.last_pass;
        self.last_pass = now;
    }

    fn remove(&mut self, id: GroupId) {
        if let Some(gone) = self.entries[id].take() {
            self.by_key.remove(&gone.key);
            self.shown -= usize::from(gone.totals.is_some());
            self.free.push(id);
        }
    }

    /// The most active hidden groups take free places, then the places of much less active groups. Call this after the
    /// pass that has just ended was shown, so that no group is hidden with values that nobody has seen.
    pub fn change_places(&mut self, now: Instant) {
        if self.hidden() == 0 {
            return;
        }
        let pass_before = self.pass_before;
        let is_quiet = |entry: &Entry| entry.members == 0 && entry.last_change <= pass_before;
        let hidden = self.rivals(|entry| entry.totals.is_none() && !is_quiet(entry));
        let replaceable = |entry: &Entry| is_quiet(entry) || now.duration_since(entry.placed) >= RECENT;
        let mut places = self.rivals(|entry| entry.totals.is_some() && replaceable(entry)).into_iter();
        for newcomer in hidden.into_iter().rev() {
            if self.shown >= self.max {
                let Some(place) = places.next().filter(|place| self.gives_way(*place, newcomer)) else { break };
                self.hide(place, now);
            }
            self.show(newcomer, now);
            self.entry(newcomer).born = now;
        }
    }

    fn gives_way(&self, place: GroupId, newcomer: GroupId) -> bool {
        let (Some(place), Some(newcomer)) = (&self.entries[place], &self.entries[newcomer]) else { return false };
        let is_busier = newcomer.activity() > TIMES_AS_ACTIVE * place.activity();
        if newcomer.pinned == place.pinned { is_busier } else { newcomer.pinned }
    }

    fn hidden(&self) -> usize {
        self.by_key.len() - self.shown
    }

    /// Times that a socket or reader started to be counted under `other` because there was no room for its group.
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// Numbers of groups, and their limits.
    pub fn usage(&self) -> Use {
        Use { shown: self.shown, max: self.max, hidden: self.hidden(), max_hidden: HIDDEN }
    }

    /// All groups that are shown, sorted by key.
    pub fn all(&self) -> Vec<Group> {
        let mut hidden = GroupGauges::default();
        for entry in self.entries.iter().flatten().filter(|entry| entry.totals.is_none()) {
            hidden.add_all(&entry.gauges);
        }
        let shown = self.entries.iter().enumerate().filter_map(|(id, entry)| {
            let entry = entry.as_ref()?;
            let totals = entry.totals.as_ref()?;
            let counters = GroupCounters {
                sockets: *totals.sockets.shown(),
                readers: *totals.readers.shown(),
                drops: totals.drops.iter().map(|(reason, count)| (reason.clone(), *count)).collect(),
            };
            let mut gauges = entry.gauges;
            if id == OTHER {
                gauges.add_all(&hidden);
            }
            let histograms = counters.has_fills();
            Some(Group { key: Arc::clone(&entry.key), born: entry.born, counters, gauges, histograms })
        });
        let mut groups: Vec<Group> = shown.collect();
        groups.sort_by(|a, b| a.key.cmp(&b.key));
        groups
    }
}

impl Entry {
    /// Activity in bytes: what was received and read recently, and what is queued now.
    fn activity(&self) -> f64 {
        self.moved + self.gauges.queue_bytes as f64
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.pinned.cmp(&other.pinned).then(self.activity().total_cmp(&other.activity()))
    }

    fn is_idle(&self, now: Instant, time: Duration) -> bool {
        self.members == 0 && now.duration_since(self.last_change) >= time
    }
}

/// A process name as the kernel and the labels have it: cut to [`NAME`] bytes.
fn as_kept(name: &str) -> String {
    String::from_utf8_lossy(&name.as_bytes()[..name.len().min(NAME)]).into_owned()
}

#[cfg(test)]
mod tests;
