//! The store of the sockets' states as user space sees it ([`tcpmon_common::store`]): the only place that knows how
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
    socket::{SHOWN_RUNNING, SOCKET_UNLISTED, Shown, SocketState},
    store::{BLOCK, MAX_STATES, NO_STATE, StoreControl},
};
use tracing::warn;
use zerocopy::FromZeros as _;

use self::grow::Ask;
pub use self::grow::{Grower, Placer};
use super::mapped::Mapped;

/// Free states that are kept ready when few connections begin.
const SPARE: u32 = 3 * BLOCK;

/// The programs wake user space when no more of them are left. At 25,000 connections a second, both ends of which are
/// on this host, they last for 50 ms. In this time, threads have to get a CPU, which such a rate keeps busy, and each
/// array takes 1 ms.
const WAKE_AT: u32 = SPARE - BLOCK / 2;

/// States are kept ready for the connections of this time: nothing is lost while the daemon is stopped for half a
/// minute, also if a tenth more begin meanwhile than in the time before.
const SPARE_TIME: Duration = Duration::from_secs(33);

/// In a burst, states are kept ready for the connections of this time at the rate of the last [`BURST_RATE_TIME`].
/// Where a hypervisor takes a CPU away, threads of tcpmon stand still for as long, and so does the kernel that adds an
/// array.
const BURST_TIME: Duration = Duration::from_millis(200);

/// See [`BURST_TIME`].
const BURST_RATE_TIME: Duration = Duration::from_millis(100);

/// The rate at which connections begin is taken over this time: a burst of a second is no reason to take memory for
/// ever.
const RATE_TIME: Duration = Duration::from_secs(10);

/// After the kernel has refused an array, none is asked for during this time.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// See the module documentation.
pub(super) struct Store {
    blocks: Vec<Mapped<SocketState>>,
    free: FreeStates,
    max_blocks: u32,
    ask: Arc<Ask>,
    /// The arrays that were made.
    made: Receiver<io::Result<Mapped<SocketState>>>,
    /// States that were taken up to this time.
    measured: (Instant, u32),
    /// The most states a second that were taken over [`RATE_TIME`].
    peak: u32,
    /// States that were taken up to this time, for the rate of a burst.
    measured_burst: (Instant, u32),
    /// States that are taken in [`BURST_TIME`] at the rate of the last [`BURST_RATE_TIME`].
    of_burst: u32,
    /// When the kernel last refused an array.
    refused: Option<Instant>,
}

impl Store {
    /// A store for at most `max_sockets`, with room for `now` of them, and what makes it grow.
    pub(super) fn new(states: Map, control: BorrowedFd<'_>, max_sockets: u32, now: u32) -> io::Result<(Self, Grower)> {
        let Map::ArrayOfMaps(states) = states else { unreachable!("the object of this build has STATES as that") };
        let free = FreeStates::new(control)?;
        free.control
            .set(0, StoreControl { free: NO_STATE.into(), ended: NO_STATE.into(), ..StoreControl::new_zeroed() });
        let max_blocks = max_sockets.min(MAX_STATES).div_ceil(BLOCK);
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

    /// States that there are.
    pub(super) fn len(&self) -> u32 {
        self.blocks.len() as u32 * BLOCK
    }

    /// States in use.
    pub(super) fn in_use(&self) -> u32 {
        self.len().saturating_sub(self.free.free())
    }

    fn place(&self, index: u32) -> Option<(&Mapped<SocketState>, usize)> {
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
        // Afterwards: it has the array of each state that has ended.
        self.collect();
        while let Some((block, place)) = self.place(index) {
            ended.push(index);
            index = block.peek(place, offset_of!(SocketState, next)).unwrap_or(NO_STATE);
        }
        ended.reverse();
        ended
    }

    /// A final state: no program writes to it any more.
    pub(super) fn ended(&self, index: u32) -> Option<SocketState> {
        let (block, place) = self.place(index)?;
        block.get(place)
    }

    /// Gives back states that no program uses any more: all at once, because each change of the list's head may make a
    /// program try again that takes a state meanwhile.
    pub(super) fn release(&mut self, indexes: &[u32]) {
        let Some((&last, _)) = indexes.split_last() else { return };
        for (place, &index) in indexes.iter().enumerate() {
            let Some((block, at)) = self.place(index) else { return };
            // It goes on, so that no copy of the next socket is taken for one of this one's.
            let sequence: u32 = block.peek(at, offset_of!(SocketState, sequence)).unwrap_or_default();
            let next = indexes.get(place + 1).copied().unwrap_or(NO_STATE);
            block.set(at, free_state((sequence | 1).wrapping_add(1), index, next));
        }
        if let Some((block, at)) = self.place(last) {
            self.free.give(indexes[0], block, at, indexes.len() as u32);
        }
    }

    /// Notes what was shown of a socket.
    pub(super) fn set_shown(&self, index: u32, shown: Shown) {
        if let Some((block, place)) = self.place(index) {
            block.poke(place, offset_of!(SocketState, shown), shown);
        }
    }

    /// A whole copy of a state, and its sequence number; `None` if no state has the index, or if an event never ends.
    pub(super) fn copy(&self, index: u32) -> Option<(u32, SocketState)> {
        let (block, place) = self.place(index)?;
        copied::copy(block, place)
    }

    /// Whether any socket has the state, and whether anything has been folded since it was shown at rest; also whether
    /// it has to be given back.
    pub(super) fn is_changed(&self, index: u32) -> bool {
        let Some((block, place)) = self.place(index) else { return false };
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
                            _ => "tcpmon needs CAP_BPF to watch more sockets",
                        };
                        warn!(%error, sockets = self.len(), remedy, "the kernel refuses memory for more sockets");
                    }
                    self.refused = Some(Instant::now());
                }
            }
        }
    }

    /// Asks for more arrays if there may soon be too few. Call this often.
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
            // It is asked again and again until it has made them, which costs little.
            self.ask.for_arrays(wanted);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.ask.to_end();
    }
}

/// States a second that were taken since `measured`, if that was this time ago or longer; then it is measured from now.
fn rate(measured: &mut (Instant, u32), taken: u32, time: Duration) -> Option<f64> {
    let elapsed = measured.0.elapsed();
    if elapsed < time {
        return None;
    }
    let (_, before) = std::mem::replace(measured, (Instant::now(), taken));
    Some(f64::from(taken.wrapping_sub(before)) / elapsed.as_secs_f64())
}

/// The list of free states, as user space adds to it.
struct FreeStates {
    control: Mapped<StoreControl>,
    /// States that were ever added; as many were taken as the head of the list says.
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

    /// Adds `count` states, linked from the index `first` to a place of `block`.
    fn give(&self, first: u32, block: &Mapped<SocketState>, last: usize, count: u32) {
        // Before they can be taken.
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

    /// Has programs wake user space when only [`WAKE_AT`] states are left.
    fn set_wake(&self) {
        let wake_at = self.given().wrapping_sub(WAKE_AT);
        self.control.poke(0, offset_of!(StoreControl, wake_at), wake_at);
    }
}

/// The content of a state that no socket has.
fn free_state(sequence: u32, index: u32, next: u32) -> SocketState {
    SocketState { sequence, index, next, shown: Shown::CHANGING, ..SocketState::ZERO }
}
