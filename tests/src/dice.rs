//! Random choices that can be made again.

use std::env;

use fastrand::Rng;

use crate::must;

/// Dice with the seed that `TCPMON_SEED` gives, or with a new one. Prints it, so that a failure names it.
pub fn seeded() -> Rng {
    let seed = match env::var("TCPMON_SEED") {
        Ok(seed) => must(seed.parse::<u64>(), "reading TCPMON_SEED"),
        Err(_) => fastrand::u64(..),
    };
    println!("TCPMON_SEED={seed}");
    Rng::with_seed(seed)
}
