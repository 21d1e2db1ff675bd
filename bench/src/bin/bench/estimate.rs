//! Estimates from measured runs. The noise of CPU time is one-sided (some runs fall into a slower mode), so the
//! estimates use lower quartiles.

pub use tcpmon_tests::mean::{median, quantile};

/// Number of bootstrap resamples.
const RESAMPLES: usize = 10_000;
/// Fixed seed: the same data always give the same interval.
const SEED: u64 = 0x7463_706d_6f6e;

/// A ratio with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The estimate.
    pub value: f64,
    /// Lower bound of the interval.
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
}

/// The median with its 95 % interval.
pub fn median_interval(values: &[f64]) -> (f64, f64, f64) {
    let mut random = Random::new();
    let medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn: Vec<f64> = values.iter().map(|_| *random.of(values)).collect();
            median(&drawn)
        })
        .collect();
    (median(values), quantile(&medians, 0.025), quantile(&medians, 0.975))
}

/// Lower quartile of an arm divided by that of the baseline. Each pair is a block: the runs of the arm and those of the
/// baseline. They ran close together in time, so the bootstrap draws them together.
pub fn ratio(blocks: &[(Vec<f64>, Vec<f64>)]) -> Ratio {
    let of = |drawn: &[&(Vec<f64>, Vec<f64>)]| {
        let arm: Vec<f64> = drawn.iter().flat_map(|block| block.0.iter().copied()).collect();
        let base: Vec<f64> = drawn.iter().flat_map(|block| block.1.iter().copied()).collect();
        quantile(&arm, 0.25) / quantile(&base, 0.25)
    };
    let value = of(&blocks.iter().collect::<Vec<_>>());
    let mut random = Random::new();
    let resampled: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn: Vec<_> = blocks.iter().map(|_| random.of(blocks)).collect();
            of(&drawn)
        })
        .collect();
    Ratio { value, low: quantile(&resampled, 0.025), high: quantile(&resampled, 0.975) }
}

/// SplitMix64 random numbers, always in the same sequence.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Starts at the beginning of the sequence.
    pub fn new() -> Self {
        Self(SEED)
    }

    /// A number from 0 to `limit - 1`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u64::try_from((u128::from(z ^ (z >> 31)) * u128::from(limit)) >> 64).expect("it is below a number of 64 bits")
    }

    /// An exponentially distributed time between two events, with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        const STEPS: u64 = 1 << 53;
        -mean * ((self.below(STEPS) as f64 + 0.5) / STEPS as f64).ln()
    }

    /// A random element.
    fn of<'a, T>(&mut self, values: &'a [T]) -> &'a T {
        &values[self.below(values.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_values() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&values, 0.25), 1.75);
        assert_eq!(median(&values), 2.5);
        assert_eq!(quantile(&[7.0], 0.25), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn equal_blocks_have_an_interval_of_no_width() {
        let blocks = vec![(vec![1.1, 1.1], vec![1.0, 1.0]); 5];
        assert_eq!(ratio(&blocks), Ratio { value: 1.1, low: 1.1, high: 1.1 });
    }

    #[test]
    fn the_interval_holds_the_estimate_and_is_always_the_same() {
        let blocks: Vec<_> = (0..10).map(|i| (vec![1.05 + 0.002 * f64::from(i), 1.3], vec![1.0, 1.01])).collect();
        let first = ratio(&blocks);
        assert!(first.low <= first.value && first.value <= first.high && first.low < first.high, "{first:?}");
        assert_eq!(first, ratio(&blocks));
    }
}
