//! The system call bpf(2), for commands that no crate wraps.
#![expect(unsafe_code, reason = "a system call")]

use std::io;

use libc::c_long;

/// Commands: constants of `enum bpf_cmd`.
const BPF_MAP_LOOKUP_ELEM: c_long = 1;
const BPF_MAP_UPDATE_ELEM: c_long = 2;
const BPF_MAP_DELETE_ELEM: c_long = 3;
const BPF_MAP_GET_NEXT_KEY: c_long = 4;
pub(super) const BPF_MAP_LOOKUP_AND_DELETE_ELEM: c_long = 21;
pub(super) const BPF_LINK_CREATE: c_long = 28;
pub(super) const BPF_ITER_CREATE: c_long = 33;

/// The commands that are needed once everything is attached: to read and write maps, and to start an iterator.
pub const READING_COMMANDS: [c_long; 6] = [
    BPF_MAP_LOOKUP_ELEM,
    BPF_MAP_UPDATE_ELEM,
    BPF_MAP_DELETE_ELEM,
    BPF_MAP_GET_NEXT_KEY,
    BPF_MAP_LOOKUP_AND_DELETE_ELEM,
    BPF_ITER_CREATE,
];

/// Calls bpf(2); a returned value is at least 0.
///
/// # Safety
/// `attributes` must be the part of `union bpf_attr` that the command reads, and what it points to must be as the
/// command requires.
pub(super) unsafe fn bpf<T>(command: c_long, attributes: &T) -> io::Result<i32> {
    // SAFETY: as the caller promises.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes as *const T, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
