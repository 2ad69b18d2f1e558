//! Random numbers of tests: the same in every run, whatever runs beside.

use std::cell::Cell;
use std::f64::consts::TAU;
use tch::Tensor;

thread_local! {
    /// Numbers drawn by this thread, which is this test: libtorch's generator is shared with the tests beside it.
    static DRAWN: Cell<u64> = const { Cell::new(0) };
}

/// Numbers between 0 and 1, neither of them: Weyl's sequence, mixed as SplitMix64 mixes it (Steele, Lea and Flood 2014).
pub(crate) fn uniform(shape: &[i64]) -> Tensor {
    let next = || {
        let at = DRAWN.get() + 1;
        DRAWN.set(at);
        let mut z = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 12) as f64 + 0.5
    };
    let numbers: Vec<f64> = (0..shape.iter().product()).map(|_: i64| next() / (1_u64 << 52) as f64).collect();
    Tensor::from_slice(&numbers).view(shape)
}

/// Standard normal numbers, by Box and Muller.
pub(crate) fn normal(shape: &[i64]) -> Tensor {
    (uniform(shape).log() * -2.0).sqrt() * (uniform(shape) * TAU).cos()
}
