//! SplitMix64: well-mixed bits of a number, the same in every process and on every machine.

/// Increment of the generator's counter.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser, a bijection: every input bit reaches every output bit. 0 stays 0.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The generator's first number from the seed `value`: spreads neighbouring numbers, 0 among them.
pub fn spread(value: u64) -> u64 {
    mix(value.wrapping_add(STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_published_ones() {
        // Rosetta Code's of the seed 1234567.
        let first: Vec<u64> = (0..3u64).map(|i| spread(1_234_567u64.wrapping_add(i.wrapping_mul(STEP)))).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        assert_eq!(mix(0), 0);
    }
}
