//! Sources of the kernels, and their specialisations.
//!
//! A kernel is compiled once per element type and per number that determines its loops, e.g. a row's width, so that the compiler
//! sees constants.

use std::fmt::Write as _;
use tch::Kind;

/// Common beginning of all sources: element types, conversions, reductions, Philox.
const PRELUDE: &str = include_str!("src/prelude.cu");

/// Most numbers that a source is specialised by.
pub(super) const NUMBERS_MAX: usize = 6;

#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// Name in messages, and stem of the file.
    pub name: &'static str,
    pub text: &'static str,
    /// Names of the numbers that the source is specialised by.
    pub numbers: &'static [&'static str],
    /// Most dynamic shared memory of its kernels in bytes, if that is above the default of 48 KiB; otherwise 0.
    pub shared_bytes_max: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE single precision, 32 bits.
    F32,
    /// bfloat16, 16 bits.
    Bf16,
    /// IEEE half precision, 16 bits.
    F16,
}

impl Element {
    /// Returns the element type of a tensor's kind, if kernels exist for it.
    pub fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Float => Some(Self::F32),
            Kind::BFloat16 => Some(Self::Bf16),
            Kind::Half => Some(Self::F16),
            _ => None,
        }
    }

    pub fn bytes(self) -> i64 {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// Name in the sources.
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

/// A source with a specialisation.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    pub source: &'static Source,
    /// Element type of the operands.
    pub element: Element,
    /// One number per name in the source; the rest are 0.
    pub numbers: [u32; NUMBERS_MAX],
}

impl Variant {
    /// `source` for `element` and `numbers`, in the order of the source's names.
    pub fn new(source: &'static Source, element: Element, numbers: &[u32]) -> Self {
        assert!(numbers.len() <= source.numbers.len(), "{} has no names for {numbers:?}", source.name);
        let mut all = [0; NUMBERS_MAX];
        all[..numbers.len()].copy_from_slice(numbers);
        Self { source, element, numbers: all }
    }

    /// Returns the text to compile, with the prelude.
    pub fn text(&self) -> String {
        format!("{PRELUDE}\n#line 1 \"{}.cu\"\n{}", self.source.name, self.source.text)
    }

    pub fn options(&self, arch: &str) -> Vec<String> {
        let mut options = vec![
            format!("--gpu-architecture={arch}"),
            "--std=c++17".to_owned(),
            "-lineinfo".to_owned(),
            format!("-DELEMENT={}", self.element.name()),
            format!("-DELEMENT_BYTES={}", self.element.bytes()),
        ];
        options.extend(self.source.numbers.iter().zip(self.numbers).map(|(name, number)| format!("-D{name}={number}")));
        options
    }

    pub fn name(&self) -> String {
        let mut name = format!("{}<{}", self.source.name, self.element.name());
        for (what, number) in self.source.numbers.iter().zip(self.numbers) {
            let _ = write!(name, ", {what}={number}");
        }
        name.push('>');
        name
    }

    pub fn identity(&self) -> (&'static str, Element, [u32; NUMBERS_MAX]) {
        (self.source.name, self.element, self.numbers)
    }
}
