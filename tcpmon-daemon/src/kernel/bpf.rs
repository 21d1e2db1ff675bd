//! The system call bpf(2), for commands that no crate wraps.
#![expect(unsafe_code, reason = "a system call")]

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use libc::c_long;

/// Commands: constants of `enum bpf_cmd`.
pub(super) const BPF_MAP_CREATE: c_long = 0;
pub(super) const BPF_MAP_LOOKUP_ELEM: c_long = 1;
pub(super) const BPF_MAP_UPDATE_ELEM: c_long = 2;
const BPF_MAP_DELETE_ELEM: c_long = 3;
const BPF_MAP_GET_NEXT_KEY: c_long = 4;
pub(super) const BPF_PROG_TEST_RUN: c_long = 10;
pub(super) const BPF_BTF_LOAD: c_long = 18;
pub(super) const BPF_MAP_LOOKUP_AND_DELETE_ELEM: c_long = 21;
pub(super) const BPF_MAP_UPDATE_BATCH: c_long = 26;
pub(super) const BPF_LINK_CREATE: c_long = 28;
pub(super) const BPF_ITER_CREATE: c_long = 33;

/// The commands that are needed once everything is attached: to read and write maps, to run the program that looks at
/// sockets, and to look up which processes have sockets open.
pub const READING_COMMANDS: [c_long; 7] = [
    BPF_MAP_LOOKUP_ELEM,
    BPF_MAP_UPDATE_ELEM,
    BPF_MAP_DELETE_ELEM,
    BPF_MAP_GET_NEXT_KEY,
    BPF_MAP_LOOKUP_AND_DELETE_ELEM,
    BPF_PROG_TEST_RUN,
    BPF_ITER_CREATE,
];

/// The commands that add room for more sockets.
pub const GROWING_COMMANDS: [c_long; 4] =
    [BPF_MAP_CREATE, BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_UPDATE_BATCH];

/// The part of `union bpf_attr` that commands for one element of a map read.
#[repr(C)]
pub(super) struct MapElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl MapElement {
    /// The command's attributes for the element with this key; `value` is where the value is read from or written to.
    pub(super) fn new<K, V>(map: BorrowedFd<'_>, key: *const K, value: *const V) -> Self {
        Self { map_fd: map.as_raw_fd() as u32, padding: 0, key: key as u64, value: value as u64, flags: 0 }
    }
}

/// Calls bpf(2); a returned value is at least 0.
///
/// # Safety
/// `attributes` must be the part of `union bpf_attr` that the command reads and writes, and what it points to must be
/// as the command requires.
pub(super) unsafe fn bpf<T>(command: c_long, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: as the caller promises.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes as *mut T, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
