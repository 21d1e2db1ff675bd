//! User space's side of the store of the sockets' states ([`tcpmon_common::store`]): the only place that knows how
//! states are mapped, added, taken and given back.

mod copied;
mod grow;

use std::{
    io,
    mem::offset_of,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
        mpsc::{self, Receiver},
    },
    time::{Duration, Instant},
};

use aya::maps::Map;
use tcpmon_common::{
    socket::{SHOWN_RUNNING, SOCKET_FINAL, SOCKET_UNLISTED, Shown, SocketState},
    store::{BLOCK, MAX_STATES, NO_STATE, StoreControl, buckets_log2},
};
use tracing::warn;
use zerocopy::FromZeros as _;

use self::grow::Ask;
pub use self::grow::{Grower, Placer};
use super::mapped::Mapped;

/// Number of free states that are kept ready when few connections begin.
const SPARE: u32 = 3 * BLOCK;

/// The programs wake user space when only this many are left. At 25,000 connections a second, both ends of which are on
/// this host, they last for 50 ms. In this time, threads have to get a CPU, although such a rate keeps all CPUs busy,
/// and each array takes 1 ms.
const WAKE_AT: u32 = SPARE - BLOCK / 2;

/// States are kept ready for the connections of this time: nothing is lost while the daemon is stopped for half a
/// minute, even if a tenth more connections begin meanwhile than in the time before.
const SPARE_TIME: Duration = Duration::from_secs(33);

/// In a burst, states are kept ready for the connections of this time at the rate of the last [`BURST_RATE_TIME`]. If a
/// hypervisor takes a CPU away, threads of tcpmon stand still for that long, and so does the kernel while it adds an
/// array.
const BURST_TIME: Duration = Duration::from_millis(200);

/// See [`BURST_TIME`].
const BURST_RATE_TIME: Duration = Duration::from_millis(100);

/// The rate at which connections begin is averaged over this time: a burst of a second is no reason to take memory
/// forever.
const RATE_TIME: Duration = Duration::from_secs(10);

/// After the kernel has refused an array, no more are asked for during this time.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// Arrays of states that there can be.
pub(super) fn max_arrays(max_sockets: u32) -> u32 {
    max_sockets.min(MAX_STATES).div_ceil(BLOCK)
}

/// Buckets of the table.
pub(super) fn buckets(max_sockets: u32) -> u32 {
    1 << buckets_log2(max_sockets)
}

/// Bits by which a hash is shifted to the number of a bucket.
pub(super) fn table_shift(max_sockets: u32) -> u32 {
    64 - buckets_log2(max_sockets)
}

/// Where the state of a socket that has ended is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// In the list of those that have ended.
    Listed,
    /// Nowhere but in its place: the list had no room for it in time.
    Unlisted,
}

impl End {
    /// `None` if it has not ended.
    pub(super) fn of(state: &SocketState) -> Option<Self> {
        let is_set = |flag| state.flags & flag != 0;
        is_set(SOCKET_FINAL).then_some(if is_set(SOCKET_UNLISTED) { Self::Unlisted } else { Self::Listed })
    }
}

/// See the module documentation.
pub(super) struct Store {
    blocks: Vec<Mapped<SocketState>>,
    free: FreeStates,
    max_blocks: u32,
    ask: Arc<Ask>,
    /// Receives the arrays that the grower has created.
    made: Receiver<io::Result<Mapped<SocketState>>>,
    /// When the rate was last measured, and how many states had been taken by then.
    measured: (Instant, u32),
    /// The highest rate measured over [`RATE_TIME`], states a second.
    peak: u32,
    /// The same for the rate of a burst.
    measured_burst: (Instant, u32),
    /// Number of states that are taken in [`BURST_TIME`] at the rate of the last [`BURST_RATE_TIME`].
    of_burst: u32,
    /// When the kernel last refused an array.
    refused: Option<Instant>,
}

impl Store {
    /// A store for at most `max_sockets` sockets, with room for `now` of them, and the grower that adds room.
    pub(super) fn new(states: Map, control: BorrowedFd<'_>, max_sockets: u32, now: u32) -> io::Result<(Self, Grower)> {
        let Map::ArrayOfMaps(states) = states else { unreachable!("the object of this build has STATES as that") };
        let free = FreeStates::new(control)?;
        free.control
            .set(0, StoreControl { free: NO_STATE.into(), ended: NO_STATE.into(), ..StoreControl::new_zeroed() });
        let max_blocks = max_arrays(max_sockets);
        let ask = Arc::new(Ask::new()?);
        let (send, made) = mpsc::channel();
        let free_of_grower = FreeStates { control: FreeStates::new(control)?.control, given: Arc::clone(&free.given) };
        let mut grower = Grower::new(states, free_of_grower, max_blocks, Arc::clone(&ask), send)?;
        let first = now.saturating_add(SPARE).div_ceil(BLOCK).min(max_blocks);
        grower.add(first)?;
        free.set_wake();
        let blocks = made.try_iter().collect::<io::Result<_>>()?;
        let measured = (Instant::now(), 0);
        let (peak, of_burst, measured_burst, refused) = (0, 0, measured, None);
        Ok((Self { blocks, free, max_blocks, ask, made, measured, peak, measured_burst, of_burst, refused }, grower))
    }

    /// Number of states.
    pub(super) fn len(&self) -> u32 {
        self.blocks.len() as u32 * BLOCK
    }

    /// States in use.
    pub(super) fn in_use(&self) -> u32 {
        self.len().saturating_sub(self.free.free())
    }

    fn block_and_offset(&self, index: u32) -> Option<(&Mapped<SocketState>, usize)> {
        Some((self.blocks.get((index / BLOCK) as usize)?, (index % BLOCK) as usize))
    }

    /// Takes the indexes of all states that have ended since the last call, in that order.
    pub(super) fn take_ended(&mut self) -> Vec<u32> {
        let mut ended = Vec::new();
        let head = self.free.control.word::<AtomicU64>(0, offset_of!(StoreControl, ended));
        if head.load(Ordering::Relaxed) == u64::from(NO_STATE) {
            return ended;
        }
        let mut index = head.swap(NO_STATE.into(), Ordering::AcqRel) as u32;
        // After the list was taken, so that the arrays of all states in it are here.
        self.collect();
        while let Some((block, place)) = self.block_and_offset(index) {
            ended.push(index);
            index = block.peek(place, offset_of!(SocketState, next)).unwrap_or(NO_STATE);
        }
        ended.reverse();
        ended
    }

    /// The content of a final state, which no program writes to any more.
    pub(super) fn ended(&self, index: u32) -> Option<SocketState> {
        let (block, place) = self.block_and_offset(index)?;
        block.get(place)
    }

    /// Gives back states that no program uses any more. All at once, because after each change of the list's head, a
    /// program that is taking a state may have to try again.
    pub(super) fn release(&mut self, indexes: &[u32]) {
        let Some((&last, _)) = indexes.split_last() else { return };
        for (place, &index) in indexes.iter().enumerate() {
            let Some((block, at)) = self.block_and_offset(index) else { return };
            // The number goes on, so that a copy of the next socket's state is not taken for one of this socket's.
            let sequence: u32 = block.peek(at, offset_of!(SocketState, sequence)).unwrap_or_default();
            let next = indexes.get(place + 1).copied().unwrap_or(NO_STATE);
            block.set(at, free_state((sequence | 1).wrapping_add(1), index, next));
        }
        if let Some((block, at)) = self.block_and_offset(last) {
            self.free.give(indexes[0], block, at, indexes.len() as u32);
        }
    }

    /// Stores what was shown of a socket.
    pub(super) fn set_shown(&self, index: u32, shown: Shown) {
        if let Some((block, place)) = self.block_and_offset(index) {
            block.poke(place, offset_of!(SocketState, shown), shown);
        }
    }

    /// A whole copy of a state, and its sequence number; `None` if no state has the index, or if an event never ends.
    pub(super) fn copy(&self, index: u32) -> Option<(u32, SocketState)> {
        let (block, place) = self.block_and_offset(index)?;
        copied::copy(block, place)
    }

    /// Whether a pass has to look at the state: its socket has changed since it was last shown at rest, its reader was
    /// still in a timeslice then, or the state must be given back.
    pub(super) fn is_changed(&self, index: u32) -> bool {
        let Some((block, place)) = self.block_and_offset(index) else { return false };
        let flags: Option<u32> = block.peek(place, offset_of!(SocketState, flags));
        if flags.is_some_and(|flags| flags & SOCKET_UNLISTED != 0) {
            return true;
        }
        let cookie: Option<u64> = block.peek(place, offset_of!(SocketState, cookie));
        let shown: Option<Shown> = block.peek(place, offset_of!(SocketState, shown));
        let is_running = |shown: Shown| shown.flags & SHOWN_RUNNING != 0;
        cookie.is_some_and(|cookie| cookie != 0)
            && shown.is_none_or(|shown| shown.sequence != copied::sequence(block, place) || is_running(shown))
    }

    /// Takes over the arrays that were made.
    fn collect(&mut self) {
        while let Ok(made) = self.made.try_recv() {
            match made {
                Ok(block) => self.blocks.push(block),
                Err(error) => {
                    if self.refused.is_none() {
                        let remedy = match error.kind() {
                            io::ErrorKind::OutOfMemory => "raise MemoryMax= of the unit, or lower max_sockets",
                            _ => "give tcpmon CAP_BPF",
                        };
                        warn!(%error, sockets = self.len(), remedy, "the kernel refused memory for more sockets");
                    }
                    self.refused = Some(Instant::now());
                }
            }
        }
    }

    /// Asks for more arrays if there may soon be too few states. Call this often.
    pub(super) fn grow(&mut self) {
        self.collect();
        self.free.set_wake();
        let taken = self.free.taken();
        if let Some(rate) = rate(&mut self.measured, taken, RATE_TIME) {
            self.peak = self.peak.max(rate as u32);
        }
        if let Some(rate) = rate(&mut self.measured_burst, taken, BURST_RATE_TIME) {
            self.of_burst = (rate * BURST_TIME.as_secs_f64()) as u32;
        }
        let of_peak = self.peak.saturating_mul(SPARE_TIME.as_secs() as u32);
        let wanted = SPARE
            .max(self.of_burst)
            .saturating_add(of_peak)
            .saturating_add(self.in_use())
            .div_ceil(BLOCK)
            .min(self.max_blocks);
        let refused = self.refused.is_some_and(|at| at.elapsed() < AFTER_REFUSAL);
        if self.blocks.len() < wanted as usize && !refused {
            // Repeated until the grower has created them, which costs little.
            self.ask.for_arrays(wanted);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.ask.to_end();
    }
}

/// States a second that were taken since `measured`, if that is at least `time` ago; `measured` is then set to now.
fn rate(measured: &mut (Instant, u32), taken: u32, time: Duration) -> Option<f64> {
    let elapsed = measured.0.elapsed();
    if elapsed < time {
        return None;
    }
    let (_, before) = std::mem::replace(measured, (Instant::now(), taken));
    Some(f64::from(taken.wrapping_sub(before)) / elapsed.as_secs_f64())
}

/// User space's side of the list of free states, to which it adds.
struct FreeStates {
    control: Mapped<StoreControl>,
    /// Number of states that were ever added; the head of the list has the number that were ever taken.
    given: Arc<AtomicU32>,
}

impl FreeStates {
    fn new(control: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { control: Mapped::map(control, 1)?, given: Arc::default() })
    }

    /// States that were ever added; wraps.
    fn given(&self) -> u32 {
        self.given.load(Ordering::Relaxed)
    }

    /// States that were ever taken; wraps.
    fn taken(&self) -> u32 {
        (self.control.word::<AtomicU64>(0, 0).load(Ordering::Relaxed) >> 32) as u32
    }

    /// States in the list.
    fn free(&self) -> u32 {
        let taken = self.taken();
        self.given().wrapping_sub(taken)
    }

    /// Adds `count` states to the list: a chain from the index `first` to the place `last` in `block`.
    fn give(&self, first: u32, block: &Mapped<SocketState>, last: usize, count: u32) {
        // Before the states can be taken.
        self.given.fetch_add(count, Ordering::Relaxed);
        let free = self.control.word::<AtomicU64>(0, 0);
        let mut head = free.load(Ordering::Relaxed);
        loop {
            block.poke(last, offset_of!(SocketState, next), head as u32);
            let with = head & !u64::from(u32::MAX) | u64::from(first);
            match free.compare_exchange_weak(head, with, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Makes programs wake user space when only [`WAKE_AT`] states are left.
    fn set_wake(&self) {
        let wake_at = self.given().wrapping_sub(WAKE_AT);
        self.control.poke(0, offset_of!(StoreControl, wake_at), wake_at);
    }
}

/// The content of a state that no socket has.
fn free_state(sequence: u32, index: u32, next: u32) -> SocketState {
    SocketState { sequence, index, next, shown: Shown::CHANGING, ..SocketState::ZERO }
}
