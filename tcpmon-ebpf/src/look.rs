//! The look: reads what only the sockets themselves know, for a pass. User space runs it for a few hundred states at a
//! time.
#![expect(unsafe_code, reason = "the arguments of a run, and words that events write meanwhile")]

use core::ptr::read_volatile;

use tcpmon_common::{
    look::{LOOKS, Look, LookArguments, SHOW_ALL, SHOW_LISTENERS},
    reader::SLOT_NONE,
    socket::{
        LIVE_GONE, LIVE_GROWTH, LIVE_READER, SHOWN_FIN, SHOWN_RUNNING, SOCKET_FINAL, SOCKET_UNLISTED, SocketLive,
        SocketState,
    },
    tcp_state,
};

use crate::{
    kernel::{self, Cast, MaybeFreedSock, Probed, setting, shared_barrier},
    maps, socket, store,
};

/// Looks at the sockets of a range of states, and returns how many looks it has left in the array: those of sockets
/// that have changed since they were last shown, are not at rest, are gone, or have ended and are in no list.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/look")]
pub extern "C" fn look(ctx: *const LookArguments) -> i32 {
    run(ctx, look_at)
}

/// The same for kernels whose verifier does not accept loads that may fault through a socket's address.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/look_probed")]
pub extern "C" fn look_probed(ctx: *const LookArguments) -> i32 {
    run(ctx, look_at_probed)
}

#[inline(always)]
fn run(ctx: *const LookArguments, look_at: extern "C" fn(u32, u32, u32) -> u32) -> i32 {
    // SAFETY: user space passes these arguments.
    let (first, count, show) = unsafe {
        let (first, count, show) = (&raw const (*ctx).first, &raw const (*ctx).count, &raw const (*ctx).show);
        (read_volatile(first), read_volatile(count), read_volatile(show))
    };
    let (mut made, mut i) = (0, 0);
    while i < LOOKS {
        if i as u64 >= count {
            break;
        }
        made += look_at(first as u32 + i, made, show as u32);
        i += 1;
    }
    made as i32
}

/// Looks at the socket of one state. Returns 1 if it is worth showing, and then leaves the look in the array at
/// `place`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn look_at(index: u32, place: u32, show: u32) -> u32 {
    look_at_socket(index, place, show, Cast::new) as u32
}

/// The same as [`look_at`], for [`look_probed`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn look_at_probed(index: u32, place: u32, show: u32) -> u32 {
    look_at_socket(index, place, show, Probed) as u32
}

#[inline(always)]
fn look_at_socket<S: MaybeFreedSock>(index: u32, place: u32, show: u32, socket: impl FnOnce(u64) -> S) -> bool {
    let Some(state) = store::at(index) else { return false };
    let state = &*state;
    let (cookie, flags) = (volatile(&state.cookie), volatile(&state.flags));
    if flags & SOCKET_FINAL != 0 {
        // User space takes it from the list of ended states, unless it is not in that list.
        return flags & SOCKET_UNLISTED != 0 && leave(index, place, 0, 0);
    }
    let address = volatile(&state.sock);
    if cookie == 0 || address == 0 {
        return false;
    }
    let sequence = volatile(&state.sequence);
    shared_barrier();
    let sock = socket(address);
    if sock.cookie() != cookie || sock.references() == 0 {
        // It may have ended since the flags were read.
        shared_barrier();
        if volatile(&state.flags) & SOCKET_FINAL != 0 {
            return false;
        }
        store::forget(state);
        return leave(index, place, sequence, LIVE_GONE);
    }
    let connected = volatile(&state.last_ns) != 0;
    let listens = !connected && sock.state() == tcp_state::LISTEN;
    // Neither connected nor listening, a socket has nothing to show; what was shown of it before remains valid.
    if !connected && !listens || connected && show == SHOW_LISTENERS {
        return false;
    }
    if show != SHOW_ALL && unchanged(state, sequence, sock, connected) {
        return false;
    }
    let Some(look) = maps::look(place) else { return false };
    look.index = index;
    look.sequence = sequence;
    look.time_ns = kernel::now_ns();
    shared_barrier();
    sock.live(&mut look.live);
    let slot = volatile(&state.reader_slot);
    look.live.reader_edges = 0;
    if slot != SLOT_NONE
        && let Some(edges) = socket::edges(slot, volatile(&state.reader_tid))
    {
        look.live.reader_edges = edges;
        look.live.flags |= LIVE_READER;
    }
    let growth = if setting!(grow_announced) != 0 { volatile(&state.grow_from) != 0 } else { sock.autotunes() };
    look.live.flags |= growth as u8 * LIVE_GROWTH;
    shared_barrier();
    // If not, the memory was given to another socket meanwhile, and the next look finds this one gone.
    sock.cookie() == cookie
}

/// Whether the socket is as it was last shown and was at rest then, so that neither an event nor time has added to its
/// totals.
///
/// What changes without an event is visible here: arrivals on a half-closed connection in `rcv_nxt`, out-of-order
/// arrivals in the memory, and windows and limits directly. `copied_seq` is not read, because a socket whose queue was
/// empty has nothing left to read. Each additional field would cost one more cache line of every socket in every pass.
#[inline(always)]
fn unchanged(state: &SocketState, sequence: u32, sock: impl MaybeFreedSock, connected: bool) -> bool {
    let shown = &state.shown;
    // A listening socket has no data, and its state has no limit to compare with.
    sequence == shown.sequence
        && sock.rmem() == shown.rmem
        && (sock.rcvbuf() == volatile(&state.rcvbuf) || !connected)
        && sock.backlog() == 0
        && (sock.rcv_nxt() == volatile(&state.rcv_nxt).wrapping_add(shown.flags / SHOWN_FIN) || !connected)
        && sock.window() == shown.window
        && (shown.flags & SHOWN_RUNNING == 0 || running(state))
}

/// Whether the reader is still in the timeslice of the last event, so that the end of that timeslice has yet to be
/// shown.
#[inline(always)]
fn running(state: &SocketState) -> bool {
    let edges = volatile(&state.reader_edges);
    let slot = volatile(&state.reader_slot);
    slot != SLOT_NONE && edges & 1 == 1 && socket::edges(slot, volatile(&state.reader_tid)) == Some(edges)
}

/// Leaves a look that contains only flags.
#[inline(always)]
fn leave(index: u32, place: u32, sequence: u32, flags: u8) -> bool {
    let Some(look) = maps::look(place) else { return false };
    *look = Look { index, sequence, time_ns: 0, live: SocketLive { flags, ..SocketLive::ZERO } };
    true
}

/// Reads a word that an event may be writing, without moving the read among other reads.
#[inline(always)]
fn volatile<T: Copy>(word: &T) -> T {
    // SAFETY: a reference is valid for reads.
    unsafe { read_volatile(word) }
}
