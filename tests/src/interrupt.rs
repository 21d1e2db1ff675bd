//! Ctrl-C and SIGTERM: the run unwinds, so that every guard restores what it changed.

use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Payload of the unwinding after a signal.
pub struct Interrupted;

static STOP: AtomicBool = AtomicBool::new(false);

/// Records the signals from now on. It uses a handler and not a signal mask, because children would inherit a mask and
/// never receive SIGTERM.
#[expect(unsafe_code, reason = "a signal handler can be installed in no other way")]
pub fn watch() {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic and calls _exit. Both are allowed in a signal handler.
        unsafe { sigaction(signal, &action) }.expect("these signals can be handled");
    }
}

/// The second signal ends the process at once.
#[expect(unsafe_code, reason = "std's exit must not be called in a signal handler")]
extern "C" fn note(_: libc::c_int) {
    if STOP.swap(true, Ordering::SeqCst) {
        // SAFETY: it takes a number and does not return; it is async-signal-safe.
        unsafe { libc::_exit(130) }
    }
}

/// Whether a signal has arrived.
pub fn arrived() -> bool {
    STOP.load(Ordering::SeqCst)
}

/// Unwinds if a signal has arrived.
pub fn check() {
    if arrived() {
        // Without the panic message, because this is not a bug.
        panic::resume_unwind(Box::new(Interrupted));
    }
}

/// Sleeps, and unwinds if a signal arrives.
pub fn sleep(time: Duration) {
    let end = Instant::now() + time;
    loop {
        check();
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(Duration::from_millis(500)));
    }
}
