//! Initial values from a seed and the parameter's path, independent of the device, the order of declaration and
//! libtorch.

use enn_common::mix::{STEP, mix};

/// Distribution of a parameter's initial values.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    Zeros,
    Ones,
    /// Normal with mean 0 and standard deviation `std`.
    Normal {
        std: f64,
    },
    /// Uniform in ±`bound`.
    Uniform {
        bound: f64,
    },
    /// Uniform in ±1/√fan_in, as torch.nn.Linear initialises weight and bias.
    Linear {
        /// Number of inputs of the layer.
        fan_in: i64,
    },
    /// Given numbers, row-major; their count must be the parameter's.
    Value(Vec<f32>),
}

/// SplitMix64: a counter that passes through a mixing function.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number in [0, 1) with 53 random bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / 9_007_199_254_740_992.0
    }
}

impl Init {
    pub(super) fn values(&self, count: usize, seed: u64, path: &str) -> Vec<f32> {
        let digest = blake3::hash(path.as_bytes());
        let mut stream = [0; 8];
        stream.copy_from_slice(&digest.as_bytes()[..8]);
        let mut random = SplitMix(seed ^ u64::from_le_bytes(stream));
        match self {
            Self::Zeros => vec![0.0; count],
            Self::Ones => vec![1.0; count],
            Self::Value(values) => values.clone(),
            Self::Uniform { bound } => uniform(&mut random, *bound, count),
            Self::Linear { fan_in } => uniform(&mut random, 1.0 / (*fan_in.max(&1) as f64).sqrt(), count),
            Self::Normal { std } => (0..count).map(|_| (std * gaussian(&mut random)) as f32).collect(),
        }
    }
}

fn uniform(random: &mut SplitMix, bound: f64, count: usize) -> Vec<f32> {
    (0..count).map(|_| (bound * (2.0 * random.unit() - 1.0)) as f32).collect()
}

/// Returns one of the pair of a Box–Muller transform.
fn gaussian(random: &mut SplitMix) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.unit()).cos()
}
