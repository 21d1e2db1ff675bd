//! Socket options and queries that need unsafe calls.

use std::io::{self, Error};
use std::os::fd::AsRawFd;

use socket2::Socket;

/// Sets a TCP option that has no safe wrapper.
#[expect(unsafe_code, reason = "socket2 and nix lack these TCP options")]
pub fn set_tcp_option(socket: &Socket, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer and size describe `value`, which outlives the call; the descriptor is open.
    let outcome = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, option, std::ptr::from_ref(&value).cast(), size)
    };
    if outcome == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Bytes that were written and that the other side has not acknowledged yet.
#[expect(unsafe_code, reason = "SIOCOUTQ has no safe wrapper")]
pub fn unacknowledged(socket: &Socket) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (the same number as TIOCOUTQ) writes one int, to `bytes`; the descriptor is open.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    if outcome == 0 { usize::try_from(bytes).map_err(Error::other) } else { Err(Error::last_os_error()) }
}
