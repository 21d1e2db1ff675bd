//! The store of the sockets' states: what the programs and user space share.
//!
//! The states are in mapped arrays of [`BLOCK`] each, which user space adds ahead of need. A state is known by its
//! index. Free states form a list, from which programs take and to which user space gives back; states of sockets that
//! have ended form another list, to which programs add and which user space takes as a whole. Both lists are linked
//! through [`SocketState::next`](crate::socket::SocketState::next), so neither can overflow.
//!
//! Programs find a state by its socket's cookie, which no two sockets of a host ever share, in a table of [`Bucket`]s
//! of one cache line. A cookie has two buckets: see [`bucket`].

/// States in one array.
pub const BLOCK: u32 = 1024;

/// Bits of an index in an entry of the table.
const INDEX_BITS: u32 = 20;

/// Maximum number of states. The last index stands for none.
pub const MAX_STATES: u32 = (1 << INDEX_BITS) - BLOCK;

/// Maximum number of sockets that are watched unless something else is configured.
pub const DEFAULT_MAX_SOCKETS: u32 = 262_144;

/// No state.
pub const NO_STATE: u32 = u32::MAX;

/// How often a program tries to change the head of a list while other CPUs change it; each change takes a few
/// nanoseconds.
pub const TRIES: u32 = 8;

/// Entries of a bucket.
pub const BUCKET: usize = 8;

/// If the first bucket has more entries than this, a new entry goes to the emptier of the two. Most look-ups then end
/// in the first bucket.
pub const CROWDED: u32 = 5;

/// Sockets per bucket in a full store.
const PER_BUCKET: u32 = 4;

/// First buckets of one block of cookies: 16 KiB.
const BUCKETS_IN_ORDER_LOG2: u32 = 8;
/// Cookies in a block.
const COOKIES_IN_ORDER: u64 = (PER_BUCKET as u64) << BUCKETS_IN_ORDER_LOG2;

/// Entries as made by [`entry`]: the low bits of a socket's cookie above the index of its state; 0 if free.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Bucket(pub [u64; BUCKET]);

/// Binary logarithm of the number of buckets for at most `max_sockets` sockets.
pub fn buckets_log2(max_sockets: u32) -> u32 {
    (max_sockets / PER_BUCKET).max(2).next_power_of_two().ilog2()
}

/// The first or the second bucket of a cookie in a table of `1 << (64 - shift)` buckets.
///
/// A CPU takes cookies one after another, so the first buckets of sockets that it opens one after another are close
/// together. Entering a socket in a part of a large table that has not been used for long takes more than 1 us in a
/// virtual machine, where such an access walks two page tables. The order of the buckets differs from one block of
/// cookies to the next, so that if every eighth socket stays, those do not share their first buckets. The second bucket
/// is anywhere.
#[inline(always)]
pub fn bucket(cookie: u64, second: bool, shift: u32) -> u32 {
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
    if second {
        return (cookie.wrapping_mul(MIX) >> shift) as u32;
    }
    let order = (cookie / COOKIES_IN_ORDER).wrapping_mul(MIX) >> (64 - BUCKETS_IN_ORDER_LOG2);
    (((cookie / PER_BUCKET as u64) ^ order) << shift >> shift) as u32
}

/// The table's entry for a socket: the low 44 bits of its cookie, and the index of its state.
#[inline(always)]
pub fn entry(cookie: u64, index: u32) -> u64 {
    cookie << INDEX_BITS | index as u64
}

/// The index in an entry, if the entry is this cookie's.
#[inline(always)]
pub fn index_in(entry: u64, cookie: u64) -> Option<u32> {
    let index = entry ^ cookie << INDEX_BITS;
    if index >> INDEX_BITS == 0 { Some(index as u32) } else { None }
}

/// The heads of both lists, each in a cache line of its own: the only value of the array `STORE`.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C, align(64))]
pub struct StoreControl {
    /// Index of the first free state, or [`NO_STATE`]. The high 32 bits count how many states were ever taken, so that
    /// two equal numbers always stand for the same list.
    pub free: u64,
    /// The program that takes the state with this number (counted as in `free`) wakes user space.
    pub wake_at: u32,
    /// Zero.
    pub padding: [u32; 13],
    /// Index of the state that was last added to the list of ended states, or [`NO_STATE`].
    pub ended: u64,
    /// Zero.
    pub padding_of_ended: [u64; 7],
}

const _: () = assert!(size_of::<StoreControl>() == 128);

/// The head of the list after its first state was taken; `next` is the state behind it.
#[inline(always)]
pub fn head_after(head: u64, next: u32) -> u64 {
    ((head >> 32) + 1) << 32 | next as u64
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{collections::VecDeque, vec, vec::Vec};

    use super::*;

    /// Enters sockets as the programs do, and removes them when they end.
    struct Table {
        entries: Vec<u32>,
        shift: u32,
        /// Entries in a second bucket, and sockets that found both buckets full.
        second: usize,
        refused: usize,
    }

    impl Table {
        fn new(max_sockets: u32) -> Self {
            let log2 = buckets_log2(max_sockets);
            Self { entries: vec![0; 1 << log2], shift: 64 - log2, second: 0, refused: 0 }
        }

        /// Enters a socket; returns the number of its bucket, or `None` if both are full.
        fn enter(&mut self, cookie: u64) -> Option<u32> {
            let [first, second] = [false, true].map(|second| bucket(cookie, second, self.shift));
            let [in_first, in_second] = [first, second].map(|number| self.entries[number as usize]);
            let to_second = in_first > CROWDED && in_second < in_first;
            let (number, entries) = if to_second { (second, in_second) } else { (first, in_first) };
            if entries == BUCKET as u32 {
                self.refused += 1;
                return None;
            }
            self.second += usize::from(to_second);
            self.entries[number as usize] += 1;
            Some(number)
        }
    }

    /// Begins `begins` sockets, at most `max_sockets` at a time. `lives` returns for how many further begins a socket
    /// lives. Returns the share of sockets in their second bucket, and how many were refused.
    fn fill(max_sockets: u32, begins: usize, mut lives: impl FnMut(u64) -> usize) -> (f64, usize) {
        let mut table = Table::new(max_sockets);
        let mut ends: VecDeque<Vec<Option<u32>>> = VecDeque::new();
        let (mut alive, mut begun) = (0, 0);
        for cookie in 1.. {
            if begun == begins {
                break;
            }
            for bucket in ends.pop_front().unwrap_or_default().into_iter().flatten() {
                table.entries[bucket as usize] -= 1;
                alive -= 1;
            }
            if alive == max_sockets {
                continue;
            }
            let bucket = table.enter(cookie);
            (alive, begun) = (alive + u32::from(bucket.is_some()), begun + 1);
            let life = lives(cookie).max(1);
            ends.resize_with(ends.len().max(life), Vec::new);
            ends[life - 1].push(bucket);
        }
        (table.second as f64 / begins as f64, table.refused)
    }

    #[test]
    fn every_socket_has_room_however_sockets_come_and_go() {
        let mut seed = 1_u64;
        let mut random = move || {
            // An xorshift generator.
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for max_sockets in [1_000, 65_536] {
            let max = max_sockets as usize;
            let check = |name: &str, lives: &mut dyn FnMut(u64) -> usize| {
                let (second, refused) = fill(max_sockets, 8 * max, lives);
                // Where sockets of two blocks of cookies meet in a full table, half of one block is crowded.
                assert!(
                    second < 0.35 && refused == 0,
                    "{max_sockets}, {name}: {second} in the second, {refused} refused"
                );
            };
            check("each lives as long", &mut |_| max);
            check("every eighth stays", &mut |cookie| if cookie.is_multiple_of(8) { 8 * max } else { 2 });
            check("ends at random", &mut |_| random() as usize % (2 * max));
            check("many are short, few are long", &mut |_| {
                let draw = random() as usize;
                if draw.is_multiple_of(10) { draw / 10 % (20 * max) } else { draw % 100 }
            });
        }
    }
}
