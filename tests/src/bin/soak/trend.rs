//! Whether a figure grows: its slope over the run, with an interval.

use std::fmt;

use tcpmon_tests::mean::median;

/// Number of parts of a run. Each part gives one value, so that neighboring samples need not be independent.
const BLOCKS: usize = 20;

/// The two-sided 95 % quantile of Student's t for the slope over that many blocks (18 degrees of freedom).
const QUANTILE: f64 = 2.101;

/// The line through the medians of the blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Median of the whole.
    pub median: f64,
    /// Growth over the time of the samples.
    pub growth: f64,
    /// Half of the growth's 95 % interval.
    pub half: f64,
}

impl Trend {
    /// The trend of samples (seconds, value) in the order of time. `None` if a block has no sample.
    pub fn of(samples: &[(f64, f64)]) -> Option<Self> {
        let (first, last) = (samples.first()?.0, samples.last()?.0);
        let time = last - first;
        let mut blocks = vec![Vec::new(); BLOCKS];
        for (at, value) in samples {
            let block = ((at - first) / time * BLOCKS as f64) as usize;
            blocks[block.min(BLOCKS - 1)].push(*value);
        }
        if blocks.iter().any(Vec::is_empty) {
            return None;
        }
        let points: Vec<(f64, f64)> = (0..)
            .zip(&blocks)
            .map(|(number, block)| ((f64::from(number) + 0.5) / BLOCKS as f64, median(block)))
            .collect();
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / BLOCKS as f64;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        let growth = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
        let rest: f64 = points.iter().map(|point| (point.1 - y - growth * (point.0 - x)).powi(2)).sum();
        let half = QUANTILE * (rest / (BLOCKS as f64 - 2.0) / spread).sqrt();
        let all: Vec<f64> = samples.iter().map(|sample| sample.1).collect();
        Some(Self { median: median(&all), growth, half })
    }

    /// Whether the whole interval of the growth is above 2 % of the median and above `least`.
    pub fn grows(&self, least: f64) -> bool {
        self.growth - self.half > least.max(self.median / 50.0)
    }
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:+.2} ({:+.2}..{:+.2})", self.growth, self.growth - self.half, self.growth + self.half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample each second for 1,000 s.
    fn samples(value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..1_000).map(f64::from).map(|second| (second, value(second))).collect()
    }

    #[test]
    fn noise_does_not_grow_and_a_leak_under_the_noise_does() {
        let noise = |second: f64| 100.0 + 10.0 * (second * 12.9898).sin();
        let flat = Trend::of(&samples(noise)).unwrap();
        assert!(!flat.grows(1.0) && flat.growth.abs() < 5.0, "{flat:?}");
        let leak = Trend::of(&samples(|second| noise(second) + second / 100.0)).unwrap();
        assert!(leak.grows(1.0) && (leak.growth - 10.0).abs() < 5.0, "{leak:?}");
    }

    #[test]
    fn a_line_is_found_exactly_and_too_few_samples_are_none() {
        let line = Trend::of(&samples(|second| 7.0 + second / 999.0)).unwrap();
        assert!((line.growth - 1.0).abs() < 0.01 && line.half < 0.01, "{line:?}");
        assert_eq!(line.to_string(), "+1.00 (+1.00..+1.00)");
        assert_eq!(Trend::of(&[(0.0, 1.0), (1.0, 1.0)]), None);
    }
}
