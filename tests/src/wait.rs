//! Waits for a condition with a time limit, instead of sleeping for a fixed time.

use std::fmt::{Debug, Display};
use std::thread;
use std::time::{Duration, Instant};

use crate::emulated::patience;

const POLL_EVERY: Duration = Duration::from_millis(2);

/// Result of one check of a condition: a value once it holds, or what was seen instead.
pub trait Attempt {
    /// The value once the condition holds.
    type Output;

    /// The value, or the observation that shows why the condition does not hold yet.
    fn outcome(self) -> Result<Self::Output, String>;
}

impl<T> Attempt for Option<T> {
    type Output = T;

    fn outcome(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".to_owned())
    }
}

impl<T, E: Display> Attempt for Result<T, E> {
    type Output = T;

    fn outcome(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

impl Attempt for bool {
    type Output = ();

    fn outcome(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("false".to_owned()) }
    }
}

/// An attempt that succeeds if `seen` is `expected`, and otherwise names both.
pub fn equal<T: PartialEq + Debug>(seen: T, expected: T) -> Result<(), String> {
    if seen == expected { Ok(()) } else { Err(format!("{seen:?} instead of {expected:?}")) }
}

/// An attempt that succeeds if `seen` is `least` or more, and otherwise names both.
pub fn at_least<T: PartialOrd + Debug>(seen: T, least: T) -> Result<(), String> {
    if seen >= least { Ok(()) } else { Err(format!("{seen:?}, which is less than {least:?}")) }
}

/// Checks every 2 ms until there is a value, and panics after `deadline` (see [`patience`]) with `what` and the last
/// observation.
#[track_caller]
pub fn eventually<A: Attempt>(deadline: Duration, what: &str, look: impl FnMut() -> A) -> A::Output {
    match within(deadline, look) {
        Ok(value) => value,
        Err(seen) => panic!("{what}: {seen}"),
    }
}

/// The same, but returns the last observation instead of panicking.
pub fn within<A: Attempt>(deadline: Duration, mut look: impl FnMut() -> A) -> Result<A::Output, String> {
    let deadline = patience(deadline);
    let start = Instant::now();
    loop {
        let late = start.elapsed() >= deadline;
        match look().outcome() {
            Ok(value) => return Ok(value),
            Err(seen) if late => return Err(format!("not within {deadline:?}; last seen: {seen}")),
            Err(_) => thread::sleep(POLL_EVERY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_value_is_returned() {
        let mut looks = 0;
        let value = eventually(Duration::from_secs(5), "the third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(value, 3);
    }

    #[test]
    #[should_panic(expected = "a queue: not within 0ns; last seen: 7 bytes")]
    fn the_panic_names_the_wish_and_the_last_observation() {
        eventually(Duration::ZERO, "a queue", || Err::<(), _>("7 bytes"));
    }

    #[test]
    fn a_different_value_is_named_with_the_expected_one() {
        assert_eq!(equal(Some(7), Some(7)), Ok(()));
        assert_eq!(equal(Some(7), None), Err("Some(7) instead of None".to_owned()));
        assert_eq!(at_least(7, 7), Ok(()));
        assert_eq!(at_least(6, 7), Err("6, which is less than 7".to_owned()));
    }
}
