//! Random choices that can be repeated.

use std::env;

use fastrand::Rng;

use crate::must;

/// A random number generator with the seed in `TCPMON_SEED`, or with a new one. Prints the seed, so that the output of
/// a failed run has it.
pub fn seeded() -> Rng {
    let seed = match env::var("TCPMON_SEED") {
        Ok(seed) => must(seed.parse::<u64>(), "reading TCPMON_SEED"),
        Err(_) => fastrand::u64(..),
    };
    println!("TCPMON_SEED={seed}");
    Rng::with_seed(seed)
}
