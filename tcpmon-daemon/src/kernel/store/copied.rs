//! Copies of states that events may change meanwhile: see [`tcpmon_common::copy`].

use std::{
    mem::offset_of,
    sync::atomic::{AtomicU32, Ordering, fence},
    thread,
};

use tcpmon_common::{
    copy::{self, Shared},
    socket::SocketState,
};

use crate::kernel::mapped::Mapped;

/// How often the copy is tried while an event is being folded. An event takes 0.1 us, unless its program is interrupted
/// or preempted; then this thread yields its CPU between the tries.
const TRIES: u32 = 10_000;

/// Number of tries before the thread yields its CPU.
const QUICK: u32 = 100;

/// A whole copy of a state, and its sequence number.
pub(super) fn copy(block: &Mapped<SocketState>, place: usize) -> Option<(u32, SocketState)> {
    let mut copied = Copied { block, place, state: None, tries: 0 };
    let sequence = copy::copy(&mut copied)?;
    Some((sequence, copied.state?))
}

/// The sequence number of a state. Later reads of this thread see nothing older than it.
pub(super) fn sequence(block: &Mapped<SocketState>, place: usize) -> u32 {
    // Earlier reads are not moved behind the read of the number.
    fence(Ordering::Acquire);
    block.word::<AtomicU32>(place, offset_of!(SocketState, sequence)).load(Ordering::Acquire)
}

struct Copied<'a> {
    block: &'a Mapped<SocketState>,
    place: usize,
    state: Option<SocketState>,
    tries: u32,
}

impl Shared for Copied<'_> {
    fn sequence(&mut self) -> u32 {
        sequence(self.block, self.place)
    }

    fn state(&mut self) {
        self.state = self.block.get(self.place);
    }

    fn wait(&mut self) -> bool {
        self.tries += 1;
        if self.tries > QUICK {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        self.tries < TRIES
    }
}
