//! The system call bpf(2), for commands that no crate wraps.
#![expect(unsafe_code, reason = "a system call")]

use std::io;

/// Calls bpf(2); a returned value is at least 0.
///
/// # Safety
/// `attributes` must be the part of `union bpf_attr` that the command reads, and what it points to must be as the
/// command requires.
pub(super) unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<i32> {
    // SAFETY: as the caller promises.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes as *const T, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
