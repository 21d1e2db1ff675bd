//! The store of the sockets' states ([`tcpmon_common::store`]): the only place that knows how a state is found, begun
//! and ended.
//!
//! The functions that programs share are real functions, which the verifier walks once, whoever calls them: they take
//! and return numbers only. Programs of one socket exclude each other by the socket's lock, so nobody else looks up or
//! changes a socket's entry meanwhile; programs of other sockets may change all others.
#![expect(unsafe_code, reason = "map memory that other CPUs access meanwhile, and functions by name")]

use core::ptr::{read_volatile, write_volatile};

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::{self, ArrayOfMaps},
    macros::{btf_map, map},
    maps::Array,
};
use tcpmon_common::{
    header::KIND_FEW_STATES,
    loss::Loss,
    reader::SLOT_NONE,
    socket::{SOCKET_FINAL, SOCKET_UNLISTED, SocketState},
    store::{self, BLOCK, BUCKET, Bucket, CROWDED, NO_STATE, StoreControl, TRIES},
};

use crate::{
    kernel::{self, setting},
    maps::{count_loss, wake},
};

type Block = btf_maps::Array<SocketState, { BLOCK as usize }, { BPF_F_MMAPABLE as usize }>;

/// index / BLOCK -> states. Filled by user space, which maps them; the states are written by segment, read, lifecycle
/// and growth. The loader sets the size.
#[btf_map]
static STATES: ArrayOfMaps<Block, 1> = ArrayOfMaps::new();

/// Number of a bucket -> entries. The loader sets the size.
#[map]
static TABLE: Array<Bucket> = Array::with_max_entries(1, 0);

/// 0 -> the lists of states. Mapped by user space; written by both sides.
#[map]
static STORE: Array<StoreControl> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// The state with this index. The caller must know that its socket is the one that is being handled.
#[inline(always)]
pub fn at(index: u32) -> Option<&'static mut SocketState> {
    let state = STATES.get_value_ptr_mut(index / BLOCK, &(index % BLOCK))?;
    // SAFETY: array memory lives as long as the program; the socket's lock keeps writers apart.
    unsafe { state.as_mut() }
}

/// The state of the socket with this cookie.
#[inline(always)]
pub fn state_of(cookie: u64) -> Option<&'static mut SocketState> {
    if cookie == 0 {
        return None;
    }
    at(store_find(cookie)).filter(|state| state.cookie == cookie)
}

/// The same as [`state_of`], without a call: a return from a function costs 10 ns and more where the CPU must not
/// predict it, which segments and reads should not pay.
#[inline(always)]
pub fn state_of_inline(cookie: u64) -> Option<&'static mut SocketState> {
    if cookie == 0 {
        return None;
    }
    at(find(cookie)).filter(|state| state.cookie == cookie)
}

/// A new state for the socket with this cookie, which must have none: all zeros except for the sequence number and the
/// index. `None` if no state is free, which is counted.
#[inline(always)]
pub fn begin(cookie: u64) -> Option<&'static mut SocketState> {
    let state = at(store_begin(cookie))?;
    state.cookie = cookie;
    state.reader_slot = SLOT_NONE;
    Some(state)
}

/// Ends a state that has been marked as final: the socket no longer has a state.
#[inline(always)]
pub fn end(state: &mut SocketState) {
    if store_remove(state.cookie, state.index) == 0 {
        // Cannot happen: the state was found through this entry.
        count_loss(Loss::SocketTable);
    }
    list_as_ended(state.index);
}

/// Gives the socket a new state instead of this one, which the caller must then mark as final and [list as
/// ended](list_as_ended). `None` if no state is free; then nothing has changed.
#[inline(always)]
pub fn replace(state: &SocketState) -> Option<&'static mut SocketState> {
    let new = at(store_take())?;
    new.cookie = state.cookie;
    new.sock = state.sock;
    new.reader_slot = SLOT_NONE;
    store_replace(state.cookie, state.index, new.index);
    Some(new)
}

/// Adds a state that has been marked as final to the list of those that have ended.
#[inline(always)]
pub fn list_as_ended(index: u32) {
    store_list(index);
}

/// Forgets the socket of a state whose end no program has seen. User space takes the state back.
#[inline(always)]
pub fn forget(state: &SocketState) {
    store_remove(state.cookie, state.index);
}

#[inline(always)]
fn bucket(cookie: u64, second: bool) -> Option<*mut u64> {
    let number = store::bucket(cookie, second, setting!(table_shift));
    TABLE.get_ptr_mut(number).map(|bucket: *mut Bucket| bucket.cast())
}

#[inline(always)]
fn load<T: Copy>(word: *const T) -> T {
    // SAFETY: the callers pass words of map memory.
    unsafe { read_volatile(word) }
}

/// Stores `new` if the word is still `old`; a full barrier.
#[inline(always)]
fn replace_word(word: *mut u64, old: u64, new: u64) -> bool {
    let mut found = old;
    // SAFETY: the callers pass words of map memory. Rust has no such operation for eBPF.
    unsafe {
        core::arch::asm!(
            "r0 = cmpxchg_64({0} + 0, r0, {1})",
            in(reg) word, in(reg) new, inout("r0") found, options(nostack)
        );
    }
    found == old
}

/// The index of the state of the socket with this cookie; [`NO_STATE`] if it has none.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn store_find(cookie: u64) -> u32 {
    find(cookie)
}

#[inline(always)]
fn find(cookie: u64) -> u32 {
    let index = find_in(bucket(cookie, false), cookie);
    if index != NO_STATE { index } else { find_in(bucket(cookie, true), cookie) }
}

#[inline(always)]
fn find_in(bucket: Option<*mut u64>, cookie: u64) -> u32 {
    let Some(entries) = bucket else { return NO_STATE };
    let mut i = 0;
    while i < BUCKET {
        // SAFETY: inside the bucket.
        if let Some(index) = store::index_in(load(unsafe { entries.add(i) }), cookie) {
            return index;
        }
        i += 1;
    }
    NO_STATE
}

/// Takes a state and enters it for the socket with this cookie; returns its index or [`NO_STATE`], which is counted.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn store_begin(cookie: u64) -> u32 {
    let Some(mut entries) = bucket(cookie, false) else { return NO_STATE };
    let in_first = used(entries);
    if in_first > CROWDED {
        let Some(second) = bucket(cookie, true) else { return NO_STATE };
        let in_second = used(second);
        // Check for room before a state is taken: a state that is not used comes back only through user space.
        if in_first + in_second == 2 * BUCKET as u32 {
            count_loss(Loss::SocketTable);
            return NO_STATE;
        }
        if in_second < in_first {
            entries = second;
        }
    }
    let index = take_free();
    if index == NO_STATE {
        count_loss(Loss::SocketState);
        return NO_STATE;
    }
    let entry = store::entry(cookie, index);
    let mut i = 0;
    while i < BUCKET {
        // SAFETY: inside the bucket.
        let place = unsafe { entries.add(i) };
        if load(place) == 0 && replace_word(place, 0, entry) {
            return index;
        }
        i += 1;
    }
    // Other CPUs have filled the bucket meanwhile.
    count_loss(Loss::SocketTable);
    list(index);
    NO_STATE
}

/// Number of entries in use.
#[inline(always)]
fn used(entries: *mut u64) -> u32 {
    let mut used = 0;
    let mut i = 0;
    while i < BUCKET {
        // SAFETY: inside the bucket.
        let entry = load(unsafe { entries.add(i) });
        // Branch-free, because the verifier would walk the rest once more for each branch.
        used += ((entry | kernel::negative(entry)) >> 63) as u32;
        i += 1;
    }
    used
}

/// Takes a state from the free ones; [`NO_STATE`] if there is none, which the caller counts.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn store_take() -> u32 {
    take_free()
}

#[inline(always)]
fn take_free() -> u32 {
    let Some(control) = STORE.get_ptr_mut(0) else { return NO_STATE };
    // SAFETY: fields of map memory.
    let (free, wake_at) = unsafe { (&raw mut (*control).free, &raw const (*control).wake_at) };
    let mut tries = 0;
    while tries < TRIES {
        let head = load(free);
        let index = head as u32;
        // Another CPU may take the state meanwhile: the head is then a different one, even if the state is back in the
        // list.
        let Some(state) = at(index) else { return NO_STATE };
        let after = store::head_after(head, load(&raw const state.next));
        if replace_word(free, head, after) {
            if (after >> 32) as u32 == load(wake_at) {
                wake(KIND_FEW_STATES);
            }
            return index;
        }
        tries += 1;
    }
    NO_STATE
}

/// Removes the entry of a socket; returns 0 if there is none.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn store_remove(cookie: u64, index: u32) -> u32 {
    change(cookie, index, 0)
}

/// Replaces the index in the entry of a socket; returns 0 if there is none.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn store_replace(cookie: u64, index: u32, new: u32) -> u32 {
    change(cookie, index, store::entry(cookie, new))
}

#[inline(always)]
fn change(cookie: u64, index: u32, new: u64) -> u32 {
    let old = store::entry(cookie, index);
    let mut second = false;
    loop {
        let Some(entries) = bucket(cookie, second) else { return 0 };
        let mut i = 0;
        while i < BUCKET {
            // SAFETY: inside the bucket.
            let place = unsafe { entries.add(i) };
            if load(place) == old {
                // SAFETY: as before. Nobody else changes this entry.
                unsafe { write_volatile(place, new) };
                return 1;
            }
            i += 1;
        }
        if second {
            return 0;
        }
        second = true;
    }
}

/// Adds the state with this index to the list of those that have ended.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn store_list(index: u32) -> u32 {
    list(index);
    0
}

#[inline(always)]
fn list(index: u32) {
    let (Some(control), Some(state)) = (STORE.get_ptr_mut(0), at(index)) else { return };
    // SAFETY: a field of map memory.
    let ended = unsafe { &raw mut (*control).ended };
    let mut tries = 0;
    while tries < TRIES {
        let head = load(ended);
        // SAFETY: a reference is valid for writes.
        unsafe { write_volatile(&mut state.next, head as u32) };
        if replace_word(ended, head, index as u64) {
            return;
        }
        tries += 1;
    }
    kernel::shared_barrier();
    // SAFETY: as before.
    unsafe { write_volatile(&mut state.flags, state.flags | SOCKET_FINAL | SOCKET_UNLISTED) };
}
