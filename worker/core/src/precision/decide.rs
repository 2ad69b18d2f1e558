//! Chooses the numeric format of a training, with the reason. Pure functions only.

use enn_common::config::train::Precision;
use enn_common::staged::meta::Stats;
use std::fmt;
use tch::Kind;

/// Factor by which the largest standardised value must stay below the largest finite number, since activations grow beyond it.
pub const MARGIN: f64 = 8.0;
/// Largest finite number of IEEE half.
const HALF_MAX: f64 = 65504.0;
/// First architecture with products of 10-bit mantissas and of bfloat16.
const TENSOR_FLOAT: (u32, u32) = (8, 0);
/// First architecture with products of halves.
const HALF_PRODUCTS: (u32, u32) = (7, 0);
/// First architecture with 8-bit products.
const EIGHT_BITS: (u32, u32) = (8, 9);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE single precision everywhere.
    Fp32,
    /// IEEE single, products of 10-bit mantissas.
    Tf32,
    Bf16,
    /// IEEE half products and a loss scale.
    Fp16,
    /// 8-bit products of large matrices, bfloat16 elsewhere.
    Fp8,
}

/// All formats, in the order of votes.
const FORMATS: [Format; 5] = [Format::Fp32, Format::Tf32, Format::Bf16, Format::Fp16, Format::Fp8];

impl Format {
    /// The kind products are cast to; `None` when nothing is cast.
    pub fn low_kind(self) -> Option<Kind> {
        match self {
            Self::Fp32 | Self::Tf32 => None,
            Self::Bf16 | Self::Fp8 => Some(Kind::BFloat16),
            Self::Fp16 => Some(Kind::Half),
        }
    }

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8 => "fp8",
        }
    }

    /// Formats to try instead, the best first.
    fn instead(self) -> &'static [Self] {
        match self {
            Self::Fp8 => &[Self::Bf16, Self::Fp16, Self::Tf32, Self::Fp32],
            Self::Bf16 => &[Self::Fp16, Self::Tf32, Self::Fp32],
            Self::Fp16 => &[Self::Bf16, Self::Tf32, Self::Fp32],
            Self::Tf32 | Self::Fp32 => &[Self::Fp32],
        }
    }
}

/// Capability of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// All formats in software. Low precision is slower than f32 and taken only when asked for.
    Cpu,
    /// A GPU of this compute capability (major, minor).
    Cuda(u32, u32),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// The configuration names it.
    Asked,
    /// The configuration leaves the format open, and this one is the best of the device.
    Best(Support),
    /// The wanted format needs another device.
    Device { wanted: Format, found: Support, needed: &'static str },
    /// The standardised data exceed the range of the wanted format.
    Range {
        wanted: Format,
        /// Largest standardised value of the data.
        found: f64,
        /// Limit of the format, including the margin.
        limit: f64,
    },
    /// Other ranks have other devices, and all of them have this format.
    Ranks,
    SelfTest {
        wanted: Format,
        /// Relative error against the reference; infinite when it did not run.
        found: f64,
        limit: f64,
    },
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "the CPU"),
            Self::Cuda(major, minor) => write!(f, "a GPU of compute capability {major}.{minor}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => write!(f, "train.precision asks for it"),
            Self::Best(support) => write!(f, "the best for {support}"),
            Self::Ranks => write!(f, "the workers' devices differ, and all of them have it"),
            Self::Device { wanted, found, needed } => write!(f, "{} needs {needed}, found {found}", wanted.name()),
            Self::Range { wanted, found, limit } => write!(
                f,
                "{} is refused: the largest standardised value is {found:.4e}, expected at most {limit:.4e}",
                wanted.name()
            ),
            Self::SelfTest { wanted, found, limit } => {
                write!(f, "{} failed its test here: relative error {found:.3}, expected at most {limit}", wanted.name())
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct FormatChoice {
    pub format: Format,
    /// The reason. A reason against the wanted format takes precedence.
    pub reason: Reason,
}

impl FormatChoice {
    /// Returns this rank's vote, one-hot over [`FORMATS`], which the ranks sum.
    pub fn vote(&self) -> [f64; FORMATS.len()] {
        FORMATS.map(|format| if format == self.format { 1.0 } else { 0.0 })
    }

    /// Returns the common choice for the sum of all votes: the format that all ranks chose; bf16 where some ranks only lack 8-bit
    /// products; otherwise f32.
    pub fn agreed(self, votes: &[f64]) -> Self {
        let taken: Vec<Format> = FORMATS.into_iter().zip(votes).filter(|(_, n)| **n > 0.0).map(|(f, _)| f).collect();
        match taken.as_slice() {
            [_] => self,
            [Format::Bf16, Format::Fp8] => Self { format: Format::Bf16, reason: Reason::Ranks },
            _ => Self { format: Format::Fp32, reason: Reason::Ranks },
        }
    }
}

/// Chooses a format from the wanted precision, the device and the largest standardised value of the data.
pub fn choose(wanted: Precision, support: Support, range: f64) -> FormatChoice {
    let (first, reason) = match (wanted, support) {
        (Precision::Auto, Support::Cpu) => (Format::Fp32, Reason::Best(support)),
        (Precision::Auto, Support::Cuda(..)) => (Format::Bf16, Reason::Best(support)),
        (Precision::Fp32, _) => (Format::Fp32, Reason::Asked),
        (Precision::Tf32, _) => (Format::Tf32, Reason::Asked),
        (Precision::Bf16, _) => (Format::Bf16, Reason::Asked),
        (Precision::Fp16, _) => (Format::Fp16, Reason::Asked),
        (Precision::Fp8, _) => (Format::Fp8, Reason::Asked),
    };
    let Some(refusal) = refusal(first, support, range) else { return FormatChoice { format: first, reason } };
    let reason = if wanted == Precision::Auto && matches!(refusal, Reason::Device { .. }) { reason } else { refusal };
    let next = first.instead().iter().find(|format| self::refusal(**format, support, range).is_none());
    FormatChoice { format: next.copied().unwrap_or(Format::Fp32), reason }
}

/// Returns the reason against a format, if there is one.
fn refusal(format: Format, support: Support, range: f64) -> Option<Reason> {
    let (lowest, needed) = match format {
        Format::Fp32 => return None,
        Format::Tf32 => (TENSOR_FLOAT, "a GPU of compute capability 8.0"),
        Format::Bf16 => (TENSOR_FLOAT, "a GPU of compute capability 8.0, or the CPU"),
        Format::Fp16 => (HALF_PRODUCTS, "a GPU of compute capability 7.0, or the CPU"),
        Format::Fp8 => (EIGHT_BITS, "a GPU of compute capability 8.9"),
    };
    let able = match support {
        Support::Cpu => matches!(format, Format::Bf16 | Format::Fp16),
        Support::Cuda(major, minor) => (major, minor) >= lowest,
    };
    if !able {
        return Some(Reason::Device { wanted: format, found: support, needed });
    }
    let largest = match format {
        Format::Fp16 => HALF_MAX,
        _ => f64::from(f32::MAX),
    };
    let limit = largest / MARGIN;
    // This form refuses a range that is NaN.
    let fits = range <= limit;
    (!fits).then_some(Reason::Range { wanted: format, found: range, limit })
}

/// Returns the largest distance of a value from its column's mean, in standard deviations; a column without spread has a deviation of 1.
pub fn largest_standardised(stats: &[Stats]) -> f64 {
    let of = |s: &Stats| {
        let spread = if s.std > 0.0 { s.std } else { 1.0 };
        (s.max - s.mean).abs().max((s.mean - s.min).abs()) / spread
    };
    // This comparison keeps NaN.
    stats.iter().filter(|s| s.n > 0).map(of).fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Support = Support::Cuda(9, 0);

    fn format(wanted: Precision, support: Support, range: f64) -> Format {
        choose(wanted, support, range).format
    }

    #[test]
    fn auto_takes_the_best_of_the_device() {
        assert_eq!(format(Precision::Auto, Support::Cpu, 10.0), Format::Fp32);
        assert_eq!(format(Precision::Auto, H200, 10.0), Format::Bf16);
        let old = choose(Precision::Auto, Support::Cuda(7, 5), 10.0);
        assert_eq!((old.format, &old.reason), (Format::Fp16, &Reason::Best(Support::Cuda(7, 5))));
        assert_eq!(format(Precision::Auto, Support::Cuda(7, 5), 1e5), Format::Fp32);
        assert_eq!(format(Precision::Auto, Support::Cuda(6, 1), 10.0), Format::Fp32);
    }

    #[test]
    fn what_is_asked_for_is_taken_where_it_can_be() {
        for (wanted, expected) in [
            (Precision::Fp32, Format::Fp32),
            (Precision::Tf32, Format::Tf32),
            (Precision::Bf16, Format::Bf16),
            (Precision::Fp16, Format::Fp16),
            (Precision::Fp8, Format::Fp8),
        ] {
            assert_eq!(choose(wanted, H200, 30.0), FormatChoice { format: expected, reason: Reason::Asked });
        }
        assert_eq!(format(Precision::Bf16, Support::Cpu, 30.0), Format::Bf16);
        assert_eq!(format(Precision::Fp16, Support::Cpu, 30.0), Format::Fp16);
    }

    #[test]
    fn the_range_of_the_data_refuses_half_with_a_margin() {
        let limit = HALF_MAX / 8.0;
        assert_eq!(format(Precision::Fp16, H200, limit), Format::Fp16);
        let choice = choose(Precision::Fp16, H200, limit * 1.01);
        assert_eq!(choice.format, Format::Bf16);
        let sentence = choice.reason.to_string();
        assert!(sentence.contains("fp16 is refused") && sentence.contains("8.1880e3"), "{sentence}");
        assert_eq!(format(Precision::Fp16, Support::Cuda(7, 0), 1e6), Format::Fp32, "neither bf16 nor tf32 there");
        assert_eq!(
            format(Precision::Bf16, H200, f64::NAN),
            Format::Fp32,
            "a range that is not a number proves nothing"
        );
    }

    #[test]
    fn what_the_device_lacks_gives_way_with_the_reason() {
        let choice = choose(Precision::Fp8, Support::Cuda(8, 0), 1.0);
        assert_eq!(choice.format, Format::Bf16);
        assert_eq!(
            choice.reason.to_string(),
            "fp8 needs a GPU of compute capability 8.9, found a GPU of compute capability 8.0"
        );
        assert_eq!(format(Precision::Fp8, Support::Cpu, 1.0), Format::Bf16);
        assert_eq!(format(Precision::Tf32, Support::Cpu, 1.0), Format::Fp32);
        assert_eq!(format(Precision::Bf16, Support::Cuda(7, 0), 1.0), Format::Fp16);
        assert_eq!(format(Precision::Bf16, Support::Cuda(6, 0), 1.0), Format::Fp32);
    }

    #[test]
    fn ranks_take_what_all_of_them_can() {
        let agree = |formats: &[Format]| {
            let choices = || formats.iter().map(|format| FormatChoice { format: *format, reason: Reason::Asked });
            let votes: Vec<f64> = (0..FORMATS.len()).map(|i| choices().map(|choice| choice.vote()[i]).sum()).collect();
            let agreed: Vec<FormatChoice> = choices().map(|choice| choice.agreed(&votes)).collect();
            assert!(agreed.iter().all(|choice| *choice == agreed[0]), "{agreed:?}");
            agreed[0].clone()
        };
        assert_eq!(agree(&[Format::Bf16; 3]), FormatChoice { format: Format::Bf16, reason: Reason::Asked });
        assert_eq!(agree(&[Format::Fp8, Format::Bf16]), FormatChoice { format: Format::Bf16, reason: Reason::Ranks });
        assert_eq!(agree(&[Format::Fp16, Format::Bf16]).format, Format::Fp32);
    }

    #[test]
    fn the_range_is_in_standard_deviations() {
        let column = |mean, std, min, max| Stats { n: 5, mean, std, min, max };
        assert_eq!(largest_standardised(&[column(1.0, 2.0, -9.0, 3.0), column(0.0, 1.0, -1.0, 2.0)]), 5.0);
        assert_eq!(largest_standardised(&[column(7.0, 0.0, 7.0, 7.0)]), 0.0);
        assert_eq!(largest_standardised(&[Stats { n: 0, ..column(0.0, 0.0, 9.0, -9.0) }]), 0.0);
        assert!(largest_standardised(&[column(0.0, 1.0, f64::NAN, f64::NAN), column(0.0, 1.0, -1.0, 2.0)]).is_nan());
    }
}
