//! Converts the kernel's bins into a classic and a native Prometheus histogram.
//!
//! Every bucket of both forms is a sum of whole bins, so no count is interpolated. The native form has schema 0: bucket
//! `i` holds values above `2^(i-1)` and up to `2^i`. The bins below its first bucket form the zero bucket, whose
//! threshold is the lower bound of that first bucket. Values above the last bound are counted in the next bucket
//! (`4..8` for a fill ratio, `128 s..256 s` for a duration), although they have no upper limit. The only alternative is
//! +Inf, from which no quantile can be computed.

use tcpmon_common::histogram::{FILL_BINS, FILL_BOUNDS, FILL_ONE, TIME_BINS, TIME_FIRST_EXPONENT};

use super::units::seconds;
use crate::model::snapshot::{Distribution, Quantity};

/// How bins are combined into buckets. Each bucket is defined by the number of bins that it and all buckets before it
/// cover.
struct Scheme {
    /// Classic buckets, with their upper bounds.
    classic: &'static [(f64, usize)],
    /// Bins in the native zero bucket.
    zero: usize,
    /// Index of the first native bucket; the zero bucket ends at its lower bound.
    first: i32,
    /// Native buckets.
    native: &'static [usize],
}

static FILL: Scheme =
    Scheme { classic: &FILL_CLASSIC, zero: fill_bins(FILL_ONE >> 7), first: -6, native: &FILL_NATIVE };

const FILL_CLASSIC: [(f64, usize); 11] = {
    let mut buckets = [(f64::INFINITY, FILL_BINS); 11];
    let mut i = 0;
    while i < 10 {
        let tenths = i as u32 + 1;
        buckets[i] = (tenths as f64 / 10.0, fill_bins(FILL_ONE / 10 * tenths));
        i += 1;
    }
    buckets
};

const FILL_NATIVE: [usize; 10] = {
    let mut buckets = [FILL_BINS; 10];
    let mut i = 0;
    while i < 9 {
        buckets[i] = fill_bins((FILL_ONE >> 6) << i);
        i += 1;
    }
    buckets
};

/// Number of bins up to and including the one with this bound, in 1/[`FILL_ONE`].
const fn fill_bins(bound: u32) -> usize {
    let mut i = 0;
    while FILL_BOUNDS[i] != bound {
        i += 1;
    }
    i + 1
}

static DURATIONS: Scheme =
    Scheme { classic: &TIME_CLASSIC, zero: 1, first: TIME_FIRST_EXPONENT + 1, native: &TIME_NATIVE };

/// From about 1 us to 16 s, by factors of four.
const TIME_CLASSIC: [(f64, usize); 14] = {
    let mut buckets = [(f64::INFINITY, TIME_BINS); 14];
    let mut i = 0;
    while i < 13 {
        let exponent = 2 * i as i32 - 20;
        let bound = if exponent < 0 { 1.0 / (1u64 << -exponent) as f64 } else { (1u64 << exponent) as f64 };
        buckets[i] = (bound, (exponent - TIME_FIRST_EXPONENT) as usize + 1);
        i += 1;
    }
    buckets
};

const TIME_NATIVE: [usize; TIME_BINS - 1] = {
    let mut buckets = [0; TIME_BINS - 1];
    let mut i = 0;
    while i < TIME_BINS - 1 {
        buckets[i] = i + 2;
        i += 1;
    }
    buckets
};

/// A distribution that is ready to be encoded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Histogram {
    pub(super) sum: f64,
    pub(super) count: u64,
    /// Upper bounds and counts (not cumulative).
    classic: Vec<(f64, u64)>,
    pub(super) zero_threshold: f64,
    pub(super) zero_count: u64,
    /// Index of the first native bucket that is not empty.
    pub(super) first: i32,
    /// Counts of the native buckets from that one to the last that is not empty.
    pub(super) native: Vec<u64>,
}

impl From<Distribution<'_>> for Histogram {
    fn from(distribution: Distribution<'_>) -> Self {
        let bins = distribution.bins();
        match distribution.of {
            Quantity::Fill => Self::new(&FILL, &bins, distribution.sum as f64 / f64::from(FILL_ONE)),
            Quantity::Duration => Self::new(&DURATIONS, &bins, seconds(distribution.sum)),
        }
    }
}

impl Histogram {
    fn new(scheme: &Scheme, bins: &[u64], sum: f64) -> Self {
        let mut before = 0;
        let classic = scheme.classic.iter().map(|(bound, covered)| {
            let count = bins[before..*covered].iter().sum();
            before = *covered;
            (*bound, count)
        });
        let classic = classic.collect();

        let mut before = scheme.zero;
        let native = scheme.native.iter().map(|covered| {
            let count = bins[before..*covered].iter().sum();
            before = *covered;
            count
        });
        let mut native: Vec<u64> = native.collect();
        let full = native.iter().rposition(|count| *count != 0);
        native.truncate(full.map_or(0, |last| last + 1));
        let empty = native.iter().take_while(|count| **count == 0).count();
        native.drain(..empty);

        Self {
            sum,
            count: bins.iter().sum(),
            classic,
            zero_threshold: 2f64.powi(scheme.first - 1),
            zero_count: bins[..scheme.zero].iter().sum(),
            first: scheme.first + empty as i32,
            native,
        }
    }

    /// Upper bounds of the classic buckets, and the observations up to each.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        self.classic.iter().scan(0, |below, (bound, count)| {
            *below += count;
            Some((*bound, *below))
        })
    }
}

#[cfg(test)]
mod tests {
    use tcpmon_common::{histogram::FILL_ACTIVATION, socket::SocketTotals};

    use super::*;

    fn of_fills(sum: u64, bins: &[(usize, u64)]) -> Histogram {
        let mut totals = SocketTotals::default();
        totals.fill_sums[FILL_ACTIVATION] = sum;
        for (bin, count) in bins {
            totals.fills[*bin][FILL_ACTIVATION] = *count;
        }
        Histogram::from(Distribution::of_fills(&totals, FILL_ACTIVATION))
    }

    #[test]
    fn the_classic_bounds_are_the_tenths_and_every_second_power_of_two() {
        let tenths = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, f64::INFINITY];
        assert_eq!(FILL_CLASSIC.map(|(bound, _)| bound), tenths);
        let times: Vec<f64> = (0..13).map(|i| 2f64.powi(2 * i - 20)).collect();
        assert_eq!(TIME_CLASSIC[..13].iter().map(|b| b.0).collect::<Vec<_>>(), times);
    }

    #[test]
    fn buckets_of_both_forms_end_where_bins_end() {
        for (bound, covered) in &FILL_CLASSIC[..10] {
            assert_eq!(f64::from(FILL_BOUNDS[covered - 1]), bound * f64::from(FILL_ONE));
        }
        for (covered, index) in FILL_NATIVE[..9].iter().zip(FILL.first..) {
            assert_eq!(FILL_BOUNDS[covered - 1], (2f64.powi(index) * f64::from(FILL_ONE)) as u32);
        }
        assert_eq!(f64::from(FILL_BOUNDS[FILL.zero - 1]), 2f64.powi(FILL.first - 1) * f64::from(FILL_ONE));
        let time_bound = |covered: usize| 2f64.powi(TIME_FIRST_EXPONENT + covered as i32 - 1);
        for (bound, covered) in &TIME_CLASSIC[..13] {
            assert_eq!(time_bound(*covered), *bound);
        }
        for (covered, index) in TIME_NATIVE.iter().zip(DURATIONS.first..) {
            assert_eq!(time_bound(*covered), 2f64.powi(index));
        }
        assert_eq!(TIME_NATIVE[TIME_BINS - 2], TIME_BINS);
    }

    #[test]
    fn an_observation_is_counted_once_in_each_form() {
        for bin in 0..FILL_BINS {
            let histogram = of_fills(320, &[(bin, 3)]);
            assert_eq!(histogram.count, 3);
            assert_eq!(histogram.sum, 0.5);
            assert_eq!(histogram.classic.iter().map(|bucket| bucket.1).sum::<u64>(), 3);
            assert_eq!(histogram.zero_count + histogram.native.iter().sum::<u64>(), 3, "bin {bin}");
            assert!(histogram.native.len() <= 1);
        }
    }

    #[test]
    fn ratios_up_to_a_128th_are_in_the_zero_bucket_and_those_above_4_in_the_bucket_after() {
        let histogram = of_fills(0, &[(0, 5), (1, 7), (FILL_BINS - 1, 11)]);
        assert_eq!((histogram.zero_threshold, histogram.zero_count), (0.0078125, 12));
        assert_eq!((histogram.first, histogram.native), (3, vec![11]));
    }

    #[test]
    fn an_empty_histogram_is_still_a_native_one() {
        let histogram = Histogram::from(Distribution::of_durations(&[0; TIME_BINS], 0));
        assert!(histogram.zero_threshold > 0.0, "else Prometheus takes it for a classic one");
        assert!(histogram.native.is_empty());
    }
}
