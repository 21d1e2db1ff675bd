//! What the reader did while bytes waited: it waited for a CPU, or did something else.

use crate::socket::SocketState;

/// What is known of the last read. Separate from [`Round`](super::Round), because every segment or read writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Reads {
    /// The queue has held data since then, or since the last read if that was later; `CLOCK_MONOTONIC`, ns.
    pub queued_since_ns: u64,
    /// The last reader's `run_delay` at its last read.
    pub run_delay_ns: u64,
    /// `queue_byte_ticks` of the counters at the last read.
    pub queue_byte_ticks: u64,
}

impl Reads {
    /// Starts counting at `now_ns` for a connection; `self` is all zeros.
    #[inline(always)]
    pub fn begin(&mut self, now_ns: u64) {
        self.queued_since_ns = now_ns;
    }

    /// The content of a new state.
    pub const ZERO: Self = Self { queued_since_ns: 0, run_delay_ns: 0, queue_byte_ticks: 0 };
}

/// Divides the time since the reader's last read between the application and the scheduler, after
/// [`fold`](crate::fold::fold) has counted that time: the part in which the reader waited for a CPU is the scheduler's.
/// `run_delay_ns` is the thread's `run_delay`. Without `same_reader`, its value at the last read is unknown, and all of
/// the time stays the application's. Each read is divided separately, because the few reads that wait for a CPU find
/// most of the bytes.
#[inline(always)]
pub fn attribute_read(state: &mut SocketState, now_ns: u64, run_delay_ns: u64, same_reader: bool) {
    let SocketState { round, reads, counters, .. } = state;
    // A reader that sleeps waits for a CPU only once data have arrived.
    let with_data = now_ns.wrapping_sub(reads.queued_since_ns);
    let mut waited = if same_reader { run_delay_ns.wrapping_sub(reads.run_delay_ns) } else { 0 };
    if (waited | with_data) >> 47 != 0 {
        waited = 0;
    }
    if waited > with_data {
        waited = with_data;
    }
    let ticks = counters.queue_byte_ticks.wrapping_sub(reads.queue_byte_ticks);
    // Usually 0: the cache lines of these two fields are then not written.
    let limited = counters.reader_limited_ns.wrapping_sub(round.reader_limited_ns);
    if waited != 0 && with_data != 0 {
        let share = (waited << 16) / with_data;
        counters.scheduler_byte_ticks = counters.scheduler_byte_ticks.wrapping_add(part(ticks, share));
        if limited != 0 {
            counters.scheduler_limited_ns = counters.scheduler_limited_ns.wrapping_add(part(limited, share));
        }
    }
    if limited != 0 {
        round.reader_limited_ns = counters.reader_limited_ns;
    }
    reads.run_delay_ns = run_delay_ns;
    reads.queued_since_ns = now_ns;
    reads.queue_byte_ticks = counters.queue_byte_ticks;
}

/// `share` (of 65,536) of `whole`, without overflow.
#[inline(always)]
fn part(whole: u64, share: u64) -> u64 {
    (whole >> 16) * share + (((whole & 0xffff) * share) >> 16)
}
