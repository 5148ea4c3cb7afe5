//! Reproducible random numbers for seeded tests.

/// SplitMix64: the same seed always gives the same numbers. Campaigns have lists of seeds that cover every case,
/// so this sequence must not change.
pub struct SeededRandom(u64);

impl SeededRandom {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    /// True with a probability of one in `bound`.
    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}
