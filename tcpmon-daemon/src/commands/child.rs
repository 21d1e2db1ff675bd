//! Child processes that end with their parent.

use std::io;

use rustix::{
    io::Errno,
    process::{Pid, Signal, getppid, set_parent_process_death_signal},
};

/// Makes the kernel send this process a signal when the thread that started it ends. For `pre_exec`: it makes system
/// calls only.
///
/// # Errors
/// `BrokenPipe`: `parent` has already ended, so that the signal would never come.
pub(super) fn die_with_parent(parent: Pid, signal: Signal) -> io::Result<()> {
    set_parent_process_death_signal(Some(signal))?;
    // An error number, because the new process can pass nothing else to the process that waits for it.
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::PIPE.into()) }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "what a new process does before it becomes the program")]
mod tests {
    use std::{
        os::unix::process::{CommandExt as _, ExitStatusExt as _},
        process::{Child, Command},
    };

    use rustix::process::getpid;

    use super::*;

    /// Starts a child process that takes `parent` for its parent.
    fn spawn(parent: Pid) -> io::Result<Child> {
        let mut command = Command::new("sleep");
        command.arg("60");
        // SAFETY: system calls only.
        unsafe { command.pre_exec(move || die_with_parent(parent, Signal::KILL)) };
        command.spawn()
    }

    #[test]
    fn a_process_ends_with_the_thread_that_started_it() {
        let start = || spawn(getpid()).expect("it starts");
        let mut child = std::thread::spawn(start).join().expect("no panic");
        let status = child.wait().expect("it was started");
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
    }

    #[test]
    fn a_process_whose_parent_has_gone_does_not_start() {
        // The first process of the system is not the parent of this test's child.
        let error = spawn(Pid::INIT).expect_err("another parent");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{error}");
    }
}
