//! A pass over all sockets, a few hundred states at a time.

use tcpmon_common::{
    look::{LOOKS, Look, SHOW_ALL, SHOW_CHANGED, SHOW_LISTENERS},
    reader::SLOT_NONE,
    socket::{
        FIN_RECEIVED, LIVE_CURRENT, LIVE_FIN, LIVE_GONE, LIVE_READER, SOCKET_CLOSED, SOCKET_LISTENS, SocketLive,
        SocketRecord, SocketState,
    },
    tcp_state,
};

use super::{Kernel, KernelReadError, store::End};
use crate::clock::monotonic_ns;

/// Which sockets a pass shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Sockets that have changed since they were last shown, or are not at rest.
    Changed = SHOW_CHANGED as isize,
    /// All sockets.
    All = SHOW_ALL as isize,
    /// Listening sockets.
    Listeners = SHOW_LISTENERS as isize,
}

/// What has become of a socket that a pass shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It is open.
    Open,
    /// It has ended, and the record has its totals.
    Ended,
    /// It is gone, although no program has seen its end. The record has its totals up to its last event.
    Gone,
}

/// Sockets that have ended and whose states have yet to be taken.
#[derive(Debug)]
#[must_use = "their states are lost otherwise"]
pub struct Ended(Vec<u32>);

/// A pass in progress.
#[derive(Debug)]
pub struct Pass {
    /// Index of the next state.
    next: u32,
    show: Show,
}

/// What a look at the next sockets of a pass has found.
#[derive(Debug)]
#[must_use = "what has ended in them is shown by the next pass only"]
pub struct Looks {
    looks: Vec<Look>,
    /// Index of the state after those that were looked at.
    next: u32,
}

impl Kernel {
    /// Starts a pass over all watched sockets, without stopping any of them.
    pub fn begin(&self, show: Show) -> Pass {
        Pass { next: 0, show }
    }

    /// Shows the next sockets, and takes back the states of those that are gone; false if there are no more sockets.
    ///
    /// # Errors
    /// If the kernel does not run the program that looks at sockets.
    pub fn advance(&mut self, pass: &mut Pass, each: impl FnMut(&SocketRecord, Life)) -> Result<bool, KernelReadError> {
        let looks = self.look(pass)?;
        Ok(self.show(pass, looks, each))
    }

    /// The first half of [`advance`](Self::advance): looks at the next sockets, by one system call.
    ///
    /// # Errors
    /// If the kernel does not run the program that looks at sockets.
    pub fn look(&self, pass: &Pass) -> Result<Looks, KernelReadError> {
        let (first, show) = (pass.next, pass.show);
        let count = LOOKS.min(self.store.len().saturating_sub(first));
        let looks = match &self.looker {
            Some(looker) => looker.run(first, count, show as u32).map_err(KernelReadError::Look)?,
            None => (first..first + count).filter_map(|index| self.see(index, show)).collect(),
        };
        Ok(Looks { looks, next: first + count })
    }

    /// The second half of [`advance`](Self::advance): copies and shows what has been looked at.
    pub fn show(&mut self, pass: &mut Pass, looks: Looks, mut each: impl FnMut(&SocketRecord, Life)) -> bool {
        let Looks { looks, next } = looks;
        let mut over = Vec::new();
        for look in looks {
            let Some((sequence, state)) = self.store.copy(look.index) else {
                self.copies_given_up += 1;
                continue;
            };
            // The socket may have ended since the look: it is then in the list of ended states.
            let life = match End::of(&state) {
                Some(End::Unlisted) => Life::Ended,
                Some(End::Listed) => continue,
                None if look.live.flags & LIVE_GONE != 0 => Life::Gone,
                None => Life::Open,
            };
            if life != Life::Open {
                // A state without a cookie was never used.
                if state.cookie != 0 {
                    each(&at_its_end(state), life);
                }
                over.push(look.index);
                continue;
            }
            if is_of_no_connection(&look, &state) {
                continue;
            }
            let record = record(&look, sequence, state);
            each(&record, life);
            self.store.set_shown(look.index, record.shown(sequence));
        }
        self.store.release(&over);
        pass.next = next;
        pass.next < self.store.len()
    }

    /// A look made from a state, where the kernel does not let a program look at sockets: as of the last event.
    fn see(&self, index: u32, show: Show) -> Option<Look> {
        if show != Show::All && !self.store.is_changed(index) {
            return None;
        }
        let (sequence, state) = self.store.copy(index)?;
        let listens = state.flags & SOCKET_LISTENS != 0;
        let unlisted = End::of(&state) == Some(End::Unlisted);
        if !unlisted && (state.cookie == 0 || state.last_ns == 0 && !listens || !listens && show == Show::Listeners) {
            return None;
        }
        let tcp_state = match state.flags {
            _ if listens => tcp_state::LISTEN,
            flags if flags & SOCKET_CLOSED != 0 => tcp_state::CLOSE,
            _ => tcp_state::ESTABLISHED,
        };
        let mut live = SocketLive {
            rmem: state.seen_rmem,
            window: state.seen_window,
            // The smallest segment: only a window of 0 counts as shut.
            mss: 1,
            edge: state.rcv_nxt.wrapping_add(state.seen_window),
            ..as_of_last_event(&state, tcp_state)
        };
        let time_ns = monotonic_ns();
        if state.reader_slot != SLOT_NONE
            && let Some(reader) = self.reader(state.reader_slot)
            && reader.tid == state.reader_tid
        {
            live.reader_edges = reader.edges;
            live.flags |= LIVE_READER;
        }
        Some(Look { index, sequence, time_ns, live })
    }

    /// The sockets that have ended since the last call. Drain the ring before their [records](Kernel::conclude) are
    /// taken.
    pub fn take_ended(&mut self) -> Ended {
        Ended(self.store.take_ended())
    }

    /// Takes the last values of sockets that have ended, and gives back their states.
    pub fn conclude(&mut self, ended: Ended, mut each: impl FnMut(&SocketRecord)) {
        for &index in &ended.0 {
            // A state without a cookie was never used.
            if let Some(state) = self.store.ended(index).filter(|state| state.cookie != 0) {
                each(&at_its_end(state));
            }
        }
        self.store.release(&ended.0);
        self.store.grow();
    }

    /// The listening socket whose state has this index.
    pub fn listener(&self, index: u32) -> Option<SocketRecord> {
        let (_, state) = self.store.copy(index)?;
        let live = as_of_last_event(&state, tcp_state::LISTEN);
        // The state may be another socket's by now.
        (state.flags & SOCKET_LISTENS != 0).then_some(SocketRecord { time_ns: monotonic_ns(), live, state })
    }

    /// States in use.
    pub fn sockets_in_use(&self) -> u32 {
        self.store.in_use()
    }
}

fn fin(state: &SocketState) -> u8 {
    if state.flags & FIN_RECEIVED != 0 { LIVE_FIN } else { 0 }
}

/// What a socket in this TCP state shows as of its last event, as far as every event stores it.
fn as_of_last_event(state: &SocketState, tcp_state: u32) -> SocketLive {
    SocketLive {
        rcv_nxt: state.rcv_nxt,
        copied_seq: state.copied_seq,
        rcvbuf: state.rcvbuf,
        local_port: state.identity.local_port,
        state: tcp_state as u8,
        flags: fin(state),
        ..SocketLive::ZERO
    }
}

/// The last values of a socket.
fn at_its_end(state: SocketState) -> SocketRecord {
    SocketRecord { time_ns: state.last_ns, live: as_of_last_event(&state, tcp_state::CLOSE), state }
}

/// Whether the socket has the sequence numbers of a socket that has not connected, although its state is that of a
/// connection. Such a look is ignored: what was shown before stays, and the socket's end is found as usual.
///
/// Seen once, in 100 minutes of a soak test: a connection whose end the kernel had hidden from all programs still had
/// its cookie and references, and was in the state CLOSE with numbers of zero. The difference, 2^32 minus its sequence
/// number, would have been added to the bytes that it had received.
fn is_of_no_connection(look: &Look, state: &SocketState) -> bool {
    state.last_ns != 0 && state.rcv_nxt != 0 && look.live.rcv_nxt == 0 && look.live.copied_seq == 0
}

/// Combines a look with the copy of the state, which has this sequence number.
fn record(look: &Look, sequence: u32, state: SocketState) -> SocketRecord {
    let Look { mut live, mut time_ns, .. } = *look;
    if sequence == look.sequence {
        live.flags |= LIVE_CURRENT;
    } else {
        // An event has come since the look: what it has seen is newer.
        (live.rcv_nxt, live.copied_seq, live.rcvbuf) = (state.rcv_nxt, state.copied_seq, state.rcvbuf);
        live.flags = live.flags & !LIVE_FIN | fin(&state);
        time_ns = state.last_ns.max(time_ns);
    }
    SocketRecord { time_ns, live, state }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_zero_are_of_no_connection_unless_the_connection_has_them() {
        let look = |rcv_nxt, copied_seq| Look {
            index: 0,
            sequence: 0,
            time_ns: 0,
            live: SocketLive { rcv_nxt, copied_seq, ..SocketLive::ZERO },
        };
        let state = |rcv_nxt, last_ns| SocketState { rcv_nxt, last_ns, ..SocketState::ZERO };
        assert!(is_of_no_connection(&look(0, 0), &state(4_262_451_582, 1)));
        // A queue whose last byte has the largest sequence number, an empty queue, and a listening socket.
        assert!(!is_of_no_connection(&look(0, u32::MAX), &state(u32::MAX - 9, 1)));
        assert!(!is_of_no_connection(&look(0, 0), &state(0, 1)));
        assert!(!is_of_no_connection(&look(0, 0), &state(5, 0)));
    }
}
