//! Cookies of sockets that other processes have open. The kernel creates a socket's cookie when somebody first asks for
//! it.

use std::{io, os::fd::OwnedFd};

use rustix::{
    io::Errno,
    net::sockopt::socket_cookie,
    process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open},
};
use tcpmon_common::owner::Descriptor;
use tracing::warn;

use crate::host::is_host_pid_namespace;

/// Asks for the cookie of each of these sockets, on a copy of its descriptor, and logs how many it may not ask.
pub(super) fn create(sockets: &[Descriptor]) {
    let (mut refused, mut why) = (0, None);
    for of_process in sockets.chunk_by(|one, next| one.tgid == next.tgid) {
        let process = open(of_process[0].tgid);
        for socket in of_process {
            let copy = |process| pidfd_getfd(process, socket.number.cast_signed(), PidfdGetfdFlags::empty());
            let cookie = process.as_ref().map_err(|error| *error).and_then(copy).and_then(socket_cookie);
            if let Err(error) = cookie
                && !has_gone(error)
            {
                (refused, why) = (refused + 1, Some(error));
            }
        }
    }
    if let Some(why) = why {
        warn!(
            sockets = refused,
            reason = %io::Error::from(why),
            "open TCP sockets are not watched before their next segment: give tcpmon CAP_SYS_PTRACE, the PID namespace \
             of the host and the system call pidfd_getfd, if it lacks one of them"
        );
    }
}

fn open(process: u32) -> Result<OwnedFd, Errno> {
    // In another namespace, it is the number of another process.
    if !is_host_pid_namespace().unwrap_or(false) {
        return Err(Errno::PERM);
    }
    let process = Pid::from_raw(process.cast_signed()).ok_or(Errno::SRCH)?;
    pidfd_open(process, PidfdFlags::empty())
}

/// Whether the process has ended, or has closed the descriptor or opened another file by it.
fn has_gone(error: Errno) -> bool {
    [Errno::SRCH, Errno::BADF, Errno::NOTSOCK].contains(&error)
}
