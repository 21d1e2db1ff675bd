//! Histograms that are folded in the kernel and exported both as classic and as native Prometheus histograms.
//!
//! The bins are the union of the classic bounds and of the powers of two that a native histogram of schema 0 needs.
//! Both forms are therefore exact sums of bins, and neither is interpolated.

/// Denominator of the fixed-point fill ratio: one tenth and 2^-7 are both whole multiples of 1/640.
pub const FILL_ONE: u32 = 640;

/// Upper bounds (inclusive) of all fill bins but the last, in 1/[`FILL_ONE`]. Bin 0 holds exact zeros.
///
/// Tenths up to 1.0 are the classic bounds; 2^-7 to 2^2 are the native ones.
pub const FILL_BOUNDS: [u32; 19] =
    [0, 5, 10, 20, 40, 64, 80, 128, 160, 192, 256, 320, 384, 448, 512, 576, 640, 1280, 2560];

/// [`FILL_BOUNDS`], padded to 2^5.
const SEARCH: [u32; 32] = {
    let mut padded = [u32::MAX; 32];
    let mut i = 0;
    while i < FILL_BOUNDS.len() {
        padded[i] = FILL_BOUNDS[i];
        i += 1;
    }
    padded
};

/// Number of fill bins: one for each bound and one above the last bound.
pub const FILL_BINS: usize = FILL_BOUNDS.len() + 1;

/// Fill that each data segment found on arrival. Like the next two constants, an index into a bin of [`FillBins`].
pub const FILL_SEGMENT: usize = 0;
/// Fill when the reader was scheduled in.
pub const FILL_ACTIVATION: usize = 1;
/// Fill when the reader was scheduled out.
pub const FILL_DEACTIVATION: usize = 2;
/// Number of fill distributions of a socket.
pub const FILLS: usize = 3;

/// Distributions of `sk_rmem_alloc / sk_rcvbuf`: observations for each bin and distribution. Counts wrap.
///
/// The distributions are side by side in each bin, because a socket's segments and timeslices mostly see the same few
/// fills: one cache line then moves between the CPUs instead of three.
pub type FillBins = [[u32; FILLS]; FILL_BINS];

/// `rmem / rcvbuf` in 1/[`FILL_ONE`], rounded up, so that `ratio <= bound` holds exactly if the true quotient is at
/// most the bound.
#[inline(always)]
#[expect(clippy::manual_div_ceil, reason = "`div_ceil` takes a remainder too, which eBPF divides a second time for")]
pub fn fill_ratio(rmem: u32, rcvbuf: u32) -> u32 {
    if rmem == 0 {
        return 0;
    }
    if rcvbuf == 0 {
        return u32::MAX;
    }
    // A 32-bit division costs a fraction of a 64-bit one; `rmem * 640` exceeds 2^32 from 6.7 MB on.
    if rmem < 1 << 22 && rcvbuf < 1 << 30 {
        return (rmem * FILL_ONE + (rcvbuf - 1)) / rcvbuf;
    }
    let ratio = (rmem as u64 * FILL_ONE as u64 + (rcvbuf as u64 - 1)) / rcvbuf as u64;
    if ratio > u32::MAX as u64 { u32::MAX } else { ratio as u32 }
}

/// The bin that a ratio from [`fill_ratio`] belongs to; always below [`FILL_BINS`].
#[inline(always)]
pub fn fill_bin(ratio: u32) -> usize {
    // The most common case: a reader that keeps up.
    if ratio <= FILL_BOUNDS[1] {
        return (ratio > 0) as usize;
    }
    // A binary search of fixed depth. The bounds are padded to a full tree, and nothing is larger than the padding.
    let mut bin = 0;
    let mut step = 16;
    while step > 0 {
        if ratio > SEARCH[(bin + step - 1) & 31] {
            bin += step;
        }
        step >>= 1;
    }
    if bin < FILL_BINS { bin } else { FILL_BINS - 1 }
}

/// Exponent of the first time bound: 2^-23 s, about 119 ns.
pub const TIME_FIRST_EXPONENT: i32 = -23;

/// Number of time bins: one up to 2^-23 s, one for each power of two up to 2^7 s (128 s), and one above.
pub const TIME_BINS: usize = 32;

/// Distribution of durations: bin `i` counts durations up to `2^(TIME_FIRST_EXPONENT + i)` seconds. Counts wrap.
pub type TimeBins = [u32; TIME_BINS];

/// A de Bruijn sequence for values whose lower bits are all set.
const DE_BRUIJN: u32 = 0x07c4_acdd;

/// The integer logarithm of `2^(i + 1) - 1`, at the index that [`DE_BRUIJN`] gives it.
static LOGARITHMS: [u8; 32] = {
    let mut logarithms = [0; 32];
    let mut i = 0;
    while i < 32 {
        logarithms[((u32::MAX >> (31 - i)).wrapping_mul(DE_BRUIJN) >> 27) as usize] = i as u8;
        i += 1;
    }
    logarithms
};

/// The bin that a duration in ns belongs to; always below [`TIME_BINS`].
#[inline(always)]
pub fn time_bin(ns: u64) -> usize {
    // In units of 2^-30 s the bounds are powers of two: 2^30 / 10^9 = 1 + 0.073741824 = 1 + 38662 / 2^19 (to 5e-7).
    // Durations beyond the last bound are capped slightly above it, so that the result below is the last bin.
    let ns = if ns > (1 << 37) { 1 << 37 } else { ns };
    let mut units = ((ns + ((ns * 38_662) >> 19)).saturating_sub(1) >> 7) as u32;
    // The number of significant bits; eBPF has no instruction that counts them. All bits below the highest are set, and
    // the multiplication carries a different pattern to the top five for each of the 32 values (a de Bruijn sequence).
    // Comparisons instead would be predicted wrongly, because durations vary.
    let mut shift = 1;
    while shift < 32 {
        units |= units >> shift;
        shift *= 2;
    }
    let bin = LOGARITHMS[(units.wrapping_mul(DE_BRUIJN) >> 27) as usize] as usize + (units & 1) as usize;
    // A mask, not a comparison: the verifier of 6.1 continues past a comparison that can never be true, and then knows
    // no bound at all.
    bin & (TIME_BINS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_ratio_lands_in_the_bin_whose_bound_it_does_not_pass() {
        for rcvbuf in [1u32, 7, 2304, 131_072, 6_291_456, u32::MAX] {
            for step in 0..2000u64 {
                let rmem = (u64::from(rcvbuf) * step / 400).min(u64::from(u32::MAX)) as u32;
                let bin = fill_bin(fill_ratio(rmem, rcvbuf));
                let at_most =
                    |bound: u32| u128::from(rmem) * u128::from(FILL_ONE) <= u128::from(bound) * u128::from(rcvbuf);
                if bin < FILL_BOUNDS.len() {
                    assert!(at_most(FILL_BOUNDS[bin]), "{rmem}/{rcvbuf} in bin {bin}");
                }
                if bin > 0 {
                    assert!(!at_most(FILL_BOUNDS[bin - 1]), "{rmem}/{rcvbuf} in bin {bin}");
                }
            }
        }
    }

    #[test]
    fn a_duration_lands_in_the_bin_of_its_power_of_two() {
        for bin in 1..TIME_BINS - 1 {
            let bound_ns = 1e9 * 2f64.powi_exact(TIME_FIRST_EXPONENT + bin as i32);
            let below = (bound_ns * 0.999) as u64;
            let above = (bound_ns * 1.001) as u64 + 2;
            assert_eq!(time_bin(below), bin, "{below} ns");
            assert_eq!(time_bin(above), bin + 1, "{above} ns");
        }
        assert_eq!(time_bin(0), 0);
        assert_eq!(time_bin(u64::MAX), TIME_BINS - 1);
    }

    trait PowiExact {
        fn powi_exact(self, exponent: i32) -> f64;
    }
    impl PowiExact for f64 {
        // `core` has no powi.
        fn powi_exact(self, exponent: i32) -> f64 {
            let mut value = 1.0;
            for _ in 0..exponent.unsigned_abs() {
                value *= self;
            }
            if exponent < 0 { 1.0 / value } else { value }
        }
    }
}
