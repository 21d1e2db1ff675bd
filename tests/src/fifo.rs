//! Threads that must not wait for a CPU.

use std::io;

/// Makes the calling thread run before every normal (`SCHED_OTHER`) thread on its CPU.
///
/// # Errors
/// The caller is not root.
#[expect(unsafe_code, reason = "sched_setscheduler has no safe wrapper in the crates used here")]
pub fn become_fifo() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 50 };
    // SAFETY: the call reads one sched_param, which outlives it; 0 is the calling thread.
    let outcome = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
