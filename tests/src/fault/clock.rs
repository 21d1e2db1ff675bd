//! A wall clock that is wrong.

use crate::traffic::{Running, Traffic};

/// The wall clock, ahead by some seconds (or behind, if negative) for as long as this lives. A process of its own steps
/// it back, also if this one is killed.
#[derive(Debug)]
pub struct WrongClock(Running);

impl WrongClock {
    /// Steps the clock.
    #[track_caller]
    pub fn new(seconds: i64) -> Self {
        Self(Traffic::clock(seconds))
    }
}

impl Drop for WrongClock {
    fn drop(&mut self) {
        // Not killed, because it has to step the clock back.
        self.0.exit();
    }
}
