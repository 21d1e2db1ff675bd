//! Turns counters of the kernel that wrap, restart or decrease into totals that do not.

use std::{collections::HashMap, hash::Hash};

/// Number of bits of a kernel counter, after which it wraps to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CounterWidth {
    /// Wraps at 2^16: a hardware register that its driver copies.
    Bits16,
    /// Wraps at 2^32.
    Bits32,
    /// Does not wrap in practice: if it decreases, something was reset.
    Bits64,
}

/// Running totals of counters, by key.
#[derive(Debug)]
pub(super) struct MonotonicTotals<K>(HashMap<K, RunningTotal>);

#[derive(Debug)]
struct RunningTotal {
    last: u64,
    total: u64,
}

impl<K> Default for MonotonicTotals<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> MonotonicTotals<K> {
    /// Adds the change of the kernel's value since the last call, and returns the total. The first value of a key is
    /// its total.
    ///
    /// A 64-bit counter that decreases adds nothing: tcpmon cannot know whether it was reset or had a glitch, and an
    /// overrun that never happened is worse than one that is shown a sample later.
    pub(super) fn advance(&mut self, key: K, now: u64, width: CounterWidth) -> u64 {
        let counter = self.0.entry(key).or_insert(RunningTotal { last: now, total: now });
        counter.total += match width {
            CounterWidth::Bits16 => u64::from((now as u16).wrapping_sub(counter.last as u16)),
            CounterWidth::Bits32 => u64::from((now as u32).wrapping_sub(counter.last as u32)),
            CounterWidth::Bits64 => now.saturating_sub(counter.last),
        };
        counter.last = now;
        counter.total
    }

    /// Forgets all other keys.
    pub(super) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.0.retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_starts_at_the_value_of_the_kernel_and_follows_it() {
        let mut totals = MonotonicTotals::default();
        let mut at = |now| totals.advance("a", now, CounterWidth::Bits64);
        assert_eq!([at(7), at(9), at(9)], [7, 9, 9]);
    }

    #[test]
    fn wraps_are_added_and_resets_add_nothing() {
        let mut totals = MonotonicTotals::default();
        // pcnet32: what a virtual machine showed when the true value was 302,917.
        let shown = [36_588, 27_727, 40_761].map(|now| totals.advance("missed", now, CounterWidth::Bits16));
        assert_eq!(shown, [36_588, 36_588 + (65_536 - 36_588) + 27_727, 65_536 + 40_761]);
        let shown = [u64::from(u32::MAX), 4].map(|now| totals.advance("processed", now, CounterWidth::Bits32));
        assert_eq!(shown, [u64::from(u32::MAX), u64::from(u32::MAX) + 5]);
        let shown = [100, 90, 95].map(|now| totals.advance("reset", now, CounterWidth::Bits64));
        assert_eq!(shown, [100, 100, 105]);
    }

    #[test]
    fn a_counter_that_was_forgotten_starts_again() {
        let mut totals = MonotonicTotals::default();
        totals.advance("stays", 5, CounterWidth::Bits64);
        totals.advance("goes", 5, CounterWidth::Bits64);
        totals.retain(|key| *key == "stays");
        assert_eq!(totals.advance("stays", 3, CounterWidth::Bits64), 5);
        assert_eq!(totals.advance("goes", 3, CounterWidth::Bits64), 3);
    }
}
