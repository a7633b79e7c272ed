//! Randomness that repeats.

use std::sync::atomic::{AtomicU64, Ordering};

use mainspring_core::seam::Rng;

/// SplitMix64: the same seed gives the same numbers, on any thread.
#[derive(Debug)]
pub struct SeededRng {
    state: AtomicU64,
}

/// What SplitMix64 adds at each step: 2^64 divided by the golden ratio, made odd.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl SeededRng {
    /// A source that begins at a seed.
    pub fn new(seed: u64) -> Self {
        SeededRng { state: AtomicU64::new(seed) }
    }
}

impl Rng for SeededRng {
    fn next_u64(&self) -> u64 {
        let mut mixed = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_algorithm() {
        let rng = SeededRng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }
}
