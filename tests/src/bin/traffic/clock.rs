//! Steps the wall clock, and steps it back when it is told to exit or when the harness is gone.

use std::io::{self, Error};

use tcpmon_tests::traffic::plan::{Answer, ClockPlan, ProcessPlan};

use crate::session::{Session, reply};

pub fn run(plan: &ClockPlan) -> io::Result<()> {
    let session = Session::start(&ProcessPlan { comm: Some("clock".to_owned()), ..ProcessPlan::default() })?;
    step(plan.seconds)?;
    reply(&Answer::Ready(0));
    // Any order ends it, and so does the end of the harness.
    io::stdin().read_line(&mut String::new())?;
    step(-plan.seconds)?;
    session.finish()
}

/// Adds seconds to `CLOCK_REALTIME`, without losing the time that passes meanwhile.
#[expect(unsafe_code, reason = "clock_adjtime has no safe wrapper in the crates used here")]
fn step(seconds: i64) -> io::Result<()> {
    // SAFETY: a structure of integers, for which zero is a valid value.
    let mut change: libc::timex = unsafe { std::mem::zeroed() };
    change.modes = libc::ADJ_SETOFFSET | libc::ADJ_NANO;
    change.time.tv_sec = seconds;
    // SAFETY: the call reads and writes one timex, which outlives it.
    let outcome = unsafe { libc::clock_adjtime(libc::CLOCK_REALTIME, &raw mut change) };
    if outcome >= 0 { Ok(()) } else { Err(Error::last_os_error()) }
}
