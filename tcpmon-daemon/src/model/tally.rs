//! Totals that can be corrected downwards, although the values that they show never decrease.

use tcpmon_common::counters::Summed;

/// The totals of a group, as they are and as they are shown.
#[derive(Clone, Debug)]
pub struct Tally<T> {
    actual: T,
    shown: T,
}

impl<T: Summed> Default for Tally<T> {
    fn default() -> Self {
        Self { actual: T::ZERO, shown: T::ZERO }
    }
}

impl<T: Summed> Tally<T> {
    /// Adds differences, which may be negative (two's complement).
    pub fn add(&mut self, added: &T) {
        self.actual.add(added);
        self.shown.raise_to(&self.actual);
    }

    /// The values that are shown.
    pub fn shown(&self) -> &T {
        &self.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correction_is_never_shown_as_going_backwards() {
        let mut tally = Tally::<u64>::default();
        for (by, shown) in [(10_i64, 10), (-3, 10), (2, 10), (5, 14)] {
            tally.add(&by.cast_unsigned());
            assert_eq!(tally.shown(), &shown);
        }
    }
}
