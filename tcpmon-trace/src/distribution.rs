//! Distributions with bounded memory, whatever the number of values.

/// Bins per power of two of [`Durations`]: the error of a value is at most 1/32.
const STEPS: u64 = 32;

/// Counts per bin, up to the highest bin in use.
#[derive(Clone, Debug, Default)]
struct Bins {
    counts: Vec<u32>,
    total: u64,
}

impl Bins {
    fn add(&mut self, bin: usize) {
        if bin >= self.counts.len() {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] = self.counts[bin].saturating_add(1);
        self.total += 1;
    }

    /// The lowest bin such that at least this many thousandths of the values are in it or below it; `None` without
    /// values.
    fn quantile(&self, permille: u64) -> Option<usize> {
        let rank = (self.total * permille).div_ceil(1000).max(1);
        let mut below = 0;
        self.counts.iter().position(|count| {
            below += u64::from(*count);
            below >= rank
        })
    }
}

/// A distribution of fill ratios: exact to 1/1000 up to [`FILL_TOP`], in at most 8 KiB.
#[derive(Clone, Debug, Default)]
pub struct Fills(Bins);

/// The highest fill ratio that is distinguished, in thousandths. The kernel exceeds 1000 by at most one segment, or the
/// size of a small receive buffer.
pub const FILL_TOP: u64 = 2000;

impl Fills {
    /// Adds a fill ratio in thousandths.
    pub fn add(&mut self, permille: u64) {
        self.0.add(permille.min(FILL_TOP + 1) as usize);
    }

    /// The number of values in each range of `width` thousandths. The first range has exact zeros only; the last one
    /// also has all larger values.
    pub fn histogram(&self, width: u64) -> Vec<u64> {
        let mut bins = vec![0; FILL_TOP.div_ceil(width) as usize + 1];
        for (permille, count) in (0..).zip(&self.0.counts) {
            let bin = u64::div_ceil(permille, width) as usize;
            let last = bins.len() - 1;
            bins[bin.min(last)] += u64::from(*count);
        }
        bins
    }

    /// A quantile in thousandths; [`FILL_TOP`] + 1 stands for all larger values. 0 without values.
    pub fn quantile(&self, permille: u64) -> u64 {
        self.0.quantile(permille).unwrap_or(0) as u64
    }
}

/// A distribution of durations, exact to 1/32 of each value, in at most 8 KiB.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    bins: Bins,
    longest_ns: u64,
    sum_ns: u64,
}

impl Durations {
    /// Adds a duration.
    pub fn add(&mut self, ns: u64) {
        self.bins.add(duration_bin(ns));
        self.longest_ns = self.longest_ns.max(ns);
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// The sum of all durations, ns.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.bins.total
    }

    /// The number of values up to each of these bounds, ns, and above the bound before; bounds must rise. Values are
    /// exact to 1/32.
    pub fn histogram(&self, bounds: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut bin = 0;
        let mut up_to = |bound: u64| {
            let mut count = 0;
            while bin < self.bins.counts.len() && duration_bin_end(bin) <= bound {
                count += u64::from(self.bins.counts[bin]);
                bin += 1;
            }
            count
        };
        bounds.into_iter().map(&mut up_to).collect()
    }

    /// A quantile, ns: the upper bound of its bin, or the longest duration if that is shorter. 0 without values.
    pub fn quantile(&self, permille: u64) -> u64 {
        let end = self.bins.quantile(permille).map_or(0, duration_bin_end);
        end.min(self.longest_ns)
    }
}

/// The bin of a value: values below [`STEPS`] have a bin each; above that, each power of two has [`STEPS`] bins.
fn duration_bin(ns: u64) -> usize {
    let exponent = (ns / STEPS).checked_ilog2().map_or(0, |log| log + 1);
    let shift = exponent.saturating_sub(1);
    (u64::from(shift) * STEPS + (ns >> shift)) as usize
}

/// The largest value of a bin.
fn duration_bin_end(bin: usize) -> u64 {
    let bin = bin as u64;
    let shift = (bin / STEPS).saturating_sub(1);
    let first = bin - shift * STEPS;
    u64::try_from(((u128::from(first) + 1) << shift) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_of_fills_are_those_of_the_sorted_values() {
        let mut fills = Fills::default();
        assert_eq!(fills.quantile(500), 0);
        for permille in 1..=100 {
            fills.add(permille * 10);
        }
        assert_eq!(fills.quantile(500), 500);
        assert_eq!(fills.quantile(990), 990);
        assert_eq!(fills.quantile(1000), 1000);
        fills.add(u64::MAX);
        assert_eq!(fills.quantile(1000), FILL_TOP + 1);
    }

    #[test]
    fn histograms_have_each_value_once() {
        let mut fills = Fills::default();
        [0, 1, 20, 21, 1000, 5000].into_iter().for_each(|permille| fills.add(permille));
        let bins = fills.histogram(20);
        assert_eq!((bins.len(), bins[0], bins[1], bins[2], bins[50], bins[100]), (101, 1, 2, 1, 1, 1));
        let mut durations = Durations::default();
        [0, 3, 1_000, 70_000, 1 << 40].into_iter().for_each(|ns| durations.add(ns));
        assert_eq!(durations.histogram([0, 10, 1_023, 131_071, u64::MAX]), [1, 1, 1, 1, 1]);
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut fills = Fills::default();
        let mut durations = Durations::default();
        for value in [0, 1, 1 << 40, u64::MAX] {
            fills.add(value);
            durations.add(value);
        }
        assert!(fills.0.counts.len() <= 2048, "{}", fills.0.counts.len());
        assert!(durations.bins.counts.len() <= 2048, "{}", durations.bins.counts.len());
    }

    proptest! {
        #[test]
        fn a_quantile_of_durations_is_within_a_thirtysecond(
            mut values in proptest::collection::vec(
                (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift), 1..200),
            permille in 1u64..=1000,
        ) {
            let mut durations = Durations::default();
            values.iter().for_each(|ns| durations.add(*ns));
            values.sort_unstable();
            let rank = (values.len() as u64 * permille).div_ceil(1000) as usize;
            let exact = values[rank - 1];
            let told = durations.quantile(permille);
            prop_assert!(exact <= told && told - exact <= exact / STEPS, "{exact} told as {told}");
        }

        #[test]
        fn bins_follow_each_other_without_a_gap(ns in (any::<u64>(), 0u32..64).prop_map(|(v, s)| v >> s)) {
            let bin = duration_bin(ns);
            prop_assert!(duration_bin_end(bin) >= ns);
            prop_assert!(bin == 0 || duration_bin_end(bin - 1) < ns);
        }
    }
}
