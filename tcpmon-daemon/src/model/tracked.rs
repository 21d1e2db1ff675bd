//! The sockets that passes have shown: the totals that were added to their groups, and their parts of the groups'
//! gauges.
//!
//! There may be a hundred thousand of them, so each takes little memory: the totals are stored without the empty bins.

use std::{collections::HashMap, mem::offset_of};

use tcpmon_common::{
    counters::Cells as _,
    histogram::{FILL_BINS, FILLS, FillBins},
    socket::{SocketCounters, SocketLive},
};
use zerocopy::IntoBytes as _;

use super::{group::GroupId, snapshot::GroupGauges};

/// Entries that are allocated at once.
const PIECE: usize = 512;

/// Bytes of the counters before the bins; whole words.
const HEAD: usize = offset_of!(SocketCounters, fills);
/// Where the words after the bins begin.
const TAIL: usize = HEAD + size_of::<FillBins>();
/// Words that are not bins.
const WORDS: usize = (size_of::<SocketCounters>() - size_of::<FillBins>()) / size_of::<u64>();

/// The word that holds the time observed.
const OBSERVED: usize = (offset_of!(SocketCounters, observed_ns) - size_of::<FillBins>()) / size_of::<u64>();

/// The totals of a socket that were added to its group, without the empty bins.
#[derive(Debug, Default)]
pub(super) struct Accounted {
    /// Everything but the bins, laid out as in the counters.
    words: [u64; WORDS],
    /// Non-empty bins: the number of the cell, and the count as bytes, because these need no padding.
    bins: Box<[(u8, [u8; 4])]>,
}

impl From<&SocketCounters> for Accounted {
    fn from(counters: &SocketCounters) -> Self {
        let mut bins = Vec::with_capacity(filled(counters).count());
        bins.extend(filled(counters));
        Self { words: words(counters), bins: bins.into() }
    }
}

fn words(counters: &SocketCounters) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let (head, tail) = words.as_mut_bytes().split_at_mut(HEAD);
    head.copy_from_slice(&counters.as_bytes()[..HEAD]);
    tail.copy_from_slice(&counters.as_bytes()[TAIL..]);
    words
}

/// Non-empty bins, in the order of their cells.
fn filled(counters: &SocketCounters) -> impl Iterator<Item = (u8, [u8; 4])> {
    let cells = counters.fills.as_flattened().iter().enumerate();
    cells.filter(|(_, count)| **count != 0).map(|(cell, count)| (cell as u8, count.to_ne_bytes()))
}

impl Accounted {
    /// Restores the totals.
    pub(super) fn counters(&self) -> SocketCounters {
        let mut counters = SocketCounters::ZERO;
        let (head, tail) = self.words.as_bytes().split_at(HEAD);
        counters.as_mut_bytes()[..HEAD].copy_from_slice(head);
        counters.as_mut_bytes()[TAIL..].copy_from_slice(tail);
        for (cell, count) in &self.bins {
            counters.fills.as_flattened_mut()[usize::from(*cell)] = u32::from_ne_bytes(*count);
        }
        counters
    }

    /// Stores these totals; in place if the same bins are filled, which is the usual case.
    pub(super) fn set(&mut self, counters: &SocketCounters) {
        let mut now = filled(counters);
        let same = self.bins.iter_mut().all(|(cell, count)| match now.next() {
            Some((filled, now)) if filled == *cell => {
                *count = now;
                true
            }
            _ => false,
        });
        if same && now.next().is_none() {
            self.words = words(counters);
        } else {
            *self = Self::from(counters);
        }
    }

    /// Adds time that was counted for the socket while it was at rest.
    pub(super) fn add_observed(&mut self, ns: u64) {
        let observed = &mut self.words[OBSERVED];
        *observed = observed.wrapping_add(ns);
    }
}

const _: () = assert!(FILL_BINS * FILLS <= u8::MAX as usize + 1);
const _: () = assert!(HEAD.is_multiple_of(size_of::<u64>()) && size_of::<FillBins>().is_multiple_of(size_of::<u64>()));

/// A socket's part of its group's gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SocketGauges {
    pub(super) queue: u32,
    pub(super) used: u32,
    pub(super) limit: u32,
    pub(super) backlog: u32,
    pub(super) out_of_order: u32,
    pub(super) window: u32,
}

impl SocketGauges {
    /// The socket's current values, with `queued` bytes of data in its queue.
    pub(super) fn of(live: &SocketLive, queued: u32) -> Self {
        Self {
            queue: queued,
            used: live.rmem,
            limit: live.rcvbuf,
            backlog: live.backlog,
            out_of_order: live.out_of_order,
            window: live.window,
        }
    }
}

impl GroupGauges {
    /// Adds a socket to the group.
    pub(super) fn add(&mut self, socket: &SocketGauges) {
        self.replace(&SocketGauges::default(), socket);
        self.sockets += 1;
    }

    /// Removes a socket from the group.
    pub(super) fn remove(&mut self, socket: &SocketGauges) {
        self.replace(socket, &SocketGauges::default());
        self.sockets -= 1;
    }

    /// Replaces the values of one of the group's sockets.
    pub(super) fn replace(&mut self, before: &SocketGauges, now: &SocketGauges) {
        let change = |sum: &mut u64, before: u32, now: u32| *sum = *sum + u64::from(now) - u64::from(before);
        // Every field is named, so that one that is added cannot be forgotten.
        let SocketGauges { queue, used, limit, backlog, out_of_order, window } = *now;
        change(&mut self.queue_bytes, before.queue, queue);
        change(&mut self.used_bytes, before.used, used);
        change(&mut self.limit_bytes, before.limit, limit);
        change(&mut self.backlog_bytes, before.backlog, backlog);
        change(&mut self.out_of_order_bytes, before.out_of_order, out_of_order);
        change(&mut self.window_bytes, before.window, window);
    }
}

/// The time up to which the sockets at rest have been credited. A pass does not show a socket that is still at rest,
/// but its time passes, limited only by its sender.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credit {
    /// Number of credits so far; wraps.
    pub(super) number: u32,
    /// Start of the last pass, `CLOCK_MONOTONIC`, ns.
    pub(super) until_ns: u64,
}

/// A socket that was at rest when it was shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    /// When it was shown, `CLOCK_MONOTONIC`, ns.
    since_ns: u64,
    /// [`Credit::number`] at that time.
    credits: u32,
}

impl Rest {
    pub(super) fn new(since_ns: u64, credit: Credit) -> Self {
        Self { since_ns, credits: credit.number }
    }

    /// Time up to which this socket's time is in its group's totals.
    pub(super) fn counted_until(&self, credit: Credit) -> u64 {
        if self.credits == credit.number { self.since_ns } else { credit.until_ns }
    }

    /// The time that was credited to its group for it, ns; negative (two's complement) if it was shown after the start
    /// of the pass.
    pub(super) fn credited_ns(&self, credit: Credit) -> u64 {
        self.counted_until(credit).wrapping_sub(self.since_ns)
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) group: GroupId,
    /// See `Labels::hash_of_socket`.
    pub(super) labels: u64,
    pub(super) accounted: Accounted,
    /// Time of the last event that these totals include completely, `CLOCK_MONOTONIC`, ns. What a snapshot assumed
    /// about the time after it may be wrong.
    pub(super) accounted_ns: u64,
    pub(super) gauges: SocketGauges,
    /// Since when it is at rest.
    pub(super) rest: Option<Rest>,
}

/// What a socket is used for.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all sockets are connections")]
pub(super) enum Role {
    /// It carries data.
    Connection(Connection),
    /// It listens.
    Listener,
}

/// A socket that a pass has shown.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) cookie: u64,
    pub(super) role: Role,
}

/// Some of the tracked sockets, whose states have indexes one after another.
#[derive(Debug)]
struct TrackedPiece {
    entries: Box<[Option<Tracked>]>,
    /// Entries that are a socket.
    used: usize,
}

/// All tracked sockets, by the indexes of their states.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    /// Only pieces that have a socket: after many connections, states of any index may be in use, but few of them.
    pieces: Vec<Option<TrackedPiece>>,
    /// The last state of each socket.
    by_cookie: HashMap<u64, u32>,
}

/// The piece of an index, and the entry in it.
fn piece_and_entry(index: u32) -> (usize, usize) {
    (index as usize / PIECE, index as usize % PIECE)
}

impl Sockets {
    /// Number of sockets.
    pub(super) fn len(&self) -> usize {
        self.by_cookie.len()
    }

    pub(super) fn index_of(&self, cookie: u64) -> Option<u32> {
        self.by_cookie.get(&cookie).copied()
    }

    pub(super) fn get(&self, index: u32) -> Option<&Tracked> {
        let (piece, entry) = piece_and_entry(index);
        self.pieces.get(piece)?.as_ref()?.entries[entry].as_ref()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Tracked> {
        let (piece, entry) = piece_and_entry(index);
        self.pieces.get_mut(piece)?.as_mut()?.entries[entry].as_mut()
    }

    /// Adds a socket under this index, which no other socket has.
    pub(super) fn insert(&mut self, index: u32, socket: Tracked) {
        let (piece, entry) = piece_and_entry(index);
        if self.pieces.len() <= piece {
            self.pieces.resize_with(piece + 1, || None);
        }
        self.by_cookie.insert(socket.cookie, index);
        let empty = || TrackedPiece { entries: (0..PIECE).map(|_| None).collect(), used: 0 };
        let piece = self.pieces[piece].get_or_insert_with(empty);
        piece.used += usize::from(piece.entries[entry].replace(socket).is_none());
    }

    /// Removes a socket.
    pub(super) fn remove(&mut self, index: u32) -> Option<Tracked> {
        let (piece, entry) = piece_and_entry(index);
        let place = self.pieces.get_mut(piece)?;
        let piece = place.as_mut()?;
        let socket = piece.entries[entry].take()?;
        piece.used -= 1;
        if piece.used == 0 {
            *place = None;
        }
        // The socket may have another state by now.
        if self.by_cookie.get(&socket.cookie) == Some(&index) {
            self.by_cookie.remove(&socket.cookie);
        }
        Some(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_come_back_as_they_were() {
        let mut counters = SocketCounters::ZERO;
        assert_eq!(Accounted::from(&counters).counters(), counters);
        (counters.received_bytes, counters.timeslice_read_bytes) = (1, u64::MAX);
        counters.fill_sums = [1, 2, 3];
        for (cell, count) in counters.fills.as_flattened_mut().iter_mut().enumerate() {
            *count = cell as u32 * 77;
        }
        assert_eq!(Accounted::from(&counters).counters(), counters);
    }

    #[test]
    fn totals_are_replaced_whichever_bins_are_filled() {
        let with = |cells: &[(usize, u32)]| {
            let mut counters = SocketCounters { received_bytes: cells.len() as u64, ..SocketCounters::ZERO };
            for (cell, count) in cells {
                counters.fills.as_flattened_mut()[*cell] = *count;
            }
            counters
        };
        let mut accounted = Accounted::default();
        for cells in [&[(3, 1)][..], &[(3, 2)], &[(1, 1), (3, 2)], &[(1, 2), (3, 3)], &[(1, 2), (4, 3)], &[(1, 2)], &[]]
        {
            accounted.set(&with(cells));
            assert_eq!(accounted.counters(), with(cells));
        }
    }

    #[test]
    fn sockets_that_are_gone_leave_no_memory() {
        let socket = |cookie| Tracked { cookie, role: Role::Listener };
        let mut sockets = Sockets::default();
        let indexes = [0, 1, 262_143];
        for index in indexes {
            sockets.insert(index, socket(index.into()));
        }
        assert_eq!(sockets.pieces.iter().flatten().count(), 2);
        assert_eq!(
            indexes.map(|index| sockets.get(index).map(|socket| socket.cookie)),
            [Some(0), Some(1), Some(262_143)]
        );
        let gone = [0, 2, 512, 262_143, 262_144].map(|index| sockets.remove(index).map(|socket| socket.cookie));
        assert_eq!(gone, [Some(0), None, None, Some(262_143), None]);
        assert_eq!((sockets.len(), sockets.pieces.iter().flatten().count()), (1, 1));
        assert!(sockets.remove(1).is_some() && sockets.get(1).is_none());
        assert_eq!((sockets.len(), sockets.pieces.iter().flatten().count()), (0, 0));
    }

    /// A hundred thousand of them must fit into 25 MB.
    #[test]
    fn a_socket_takes_little_memory() {
        assert!(size_of::<Option<Tracked>>() <= 240, "{}", size_of::<Option<Tracked>>());
    }
}
