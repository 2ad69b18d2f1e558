//! Operations: a closed enum whose fields are its attributes, and one table row per operation.
//!
//! Each family file tells the whole story of its operations: shape rule, launch, reverse rule, cost, export, samples.
//!
//! **Invariant:** the enum is exhaustive and hashable; an attribute that changes a result is a field of its variant.

pub mod add_norm;
pub mod aten;
pub mod attention;
mod attention_aten;
mod attention_cpu;
pub mod attr;
pub mod collective;
pub mod cross_entropy;
mod cuda;
mod cuda_optim;
pub mod decay;
pub mod dilate;
pub mod elementwise;
pub mod flip;
pub mod fp8;
pub mod gated_norm;
pub mod index;
pub mod infer;
pub mod layout;
mod linear_cpu;
mod linear_cuda;
pub mod loss;
pub mod lower;
pub mod matmul;
pub mod mixed;
pub mod norm;
pub mod optim;
pub mod pairwise;
pub mod predicate;
pub mod random;
pub mod reduce;
pub mod retention;
mod retention_lower;
pub mod row;
mod rows_cpu;
pub mod sample;
pub mod softmax;
mod storage;
pub mod value;
pub mod vjp;

use aten::{AtenCall, AtenReverse};
use attr::{Axes, Binary, Dir, F64Bits, Into, Score, Structural, Test, Unary};
use row::OpRow;
use tch::{Device, Kind};

/// Every operation of the worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is described by its row and by the function that emits it")]
pub enum Op {
    // Elementwise.
    Unary(Unary),
    UnaryBackward(Unary),
    Scale { by: F64Bits },
    AddScalar { by: F64Bits },
    Clamp { lo: F64Bits, hi: F64Bits },
    ClampBackward { lo: F64Bits, hi: F64Bits },
    Cast { to: Kind },
    RetentionDecay { lo: F64Bits, hi: F64Bits },
    RetentionDecayBackward { lo: F64Bits, hi: F64Bits },
    // Two operands.
    Binary(Binary),
    SiluMul,
    SiluMulBackward,
    SwiGlu,
    SwiGluBackward,
    Where,
    Keep { when: bool },
    // Truth values.
    Test(Test),
    And,
    Not,
    // Reductions.
    Sum { axes: Axes, keepdim: bool },
    Mean { axes: Axes, keepdim: bool },
    SumTo { shape: Axes },
    MaxDim { axis: i64, keepdim: bool },
    MaxDimBackward { axis: i64, keepdim: bool, size: i64 },
    // Products.
    MatMul { ta: bool, tb: bool },
    Linear { bias: bool },
    LinearBackward { dx: bool, dw: Into, db: Into },
    // Layout.
    Reshape { shape: Axes },
    Permute { axes: Axes },
    Expand { shape: Axes },
    Narrow { axis: i64, start: i64, len: i64 },
    NarrowBackward { axis: i64, start: i64, size: i64 },
    Cat { axis: i64 },
    Stack { axis: i64 },
    Split { axis: i64, sizes: Axes },
    Zeros { shape: Axes, kind: Kind, device: Device },
    Ones { shape: Axes, kind: Kind, device: Device },
    GradAdd,
    Detach,
    Flip { axis: i64 },
    // Normalisation.
    LayerNorm { affine: bool, eps: F64Bits },
    LayerNormBackward { affine: bool },
    RmsNorm { affine: bool, eps: F64Bits },
    RmsNormBackward { affine: bool },
    AddNorm { layer: bool, eps: F64Bits, low: Option<Kind> },
    AddNormBackward { layer: bool, gsum: bool, low: Option<Kind> },
    GatedNorm { layer: bool, eps: F64Bits, low: Option<Kind> },
    GatedNormBackward { layer: bool, low: Option<Kind> },
    Softmax { axis: i64 },
    SoftmaxBackward { axis: i64 },
    LogSoftmax { axis: i64 },
    LogSoftmaxBackward { axis: i64 },
    // Index.
    Embedding,
    EmbeddingBackward { classes: i64 },
    IndexSelect { axis: i64 },
    IndexSelectBackward { axis: i64, size: i64 },
    // Random.
    Dropout { p: F64Bits, site: u32 },
    DropPath { p: F64Bits, site: u32 },
    // Sequence.
    Retention { dir: Dir, state: bool },
    RetentionBackward { dir: Dir, state: bool, gstate: bool },
    Sdpa { mask: Structural, bias: bool, score: Score },
    SdpaBackward { mask: Structural, bias: bool, dbias: bool, score: Score },
    Dilate { segment: i64, dilation: i64 },
    Undilate { segment: i64, dilation: i64, tokens: i64 },
    // Losses.
    MaskedHuber { delta: F64Bits },
    MaskedHuberBackward { delta: F64Bits },
    MaskedMse,
    MaskedMseBackward,
    CrossEntropy { ignore: i64 },
    CrossEntropyBackward { ignore: i64 },
    // Optimizer.
    GlobalNorm,
    StepScalars { beta1: F64Bits, beta2: F64Bits, decay: F64Bits, clip: F64Bits },
    AdamW { eps: F64Bits, decays: Axes, shadows: bool, average: Option<F64Bits> },
    Average { decay: F64Bits },
    Zero,
    // Anything else libtorch has.
    Aten(Box<AtenCall>),
    AtenBackward(Box<AtenReverse>),
    // Collectives.
    AllReduce,
    AllReduceWait,
    ReduceScatter,
    AllGather,
    Order,
    AllReduceShares,
    AllReduceCopies,
    // Storage.
    Allocate,
    Release,
    Place,
    // Low precision.
    CastInto,
    ScaleUpdate { growth: F64Bits, backoff: F64Bits, interval: i64 },
    Quantize { to: Kind },
    ScaledMm { out: Kind, bias: bool, fast: bool },
    Fp8Linear { bias: bool, out: Kind },
}

/// The table: all rows, by family.
pub static OPS: &[&[OpRow]] = &[
    &elementwise::UNARY,
    &elementwise::UNARY_BACKWARD,
    &elementwise::ROWS,
    &pairwise::BINARY,
    &pairwise::ROWS,
    &predicate::ROWS,
    &reduce::ROWS,
    &matmul::ROWS,
    &layout::ROWS,
    &norm::ROWS,
    &add_norm::ROWS,
    &gated_norm::ROWS,
    &softmax::ROWS,
    &index::ROWS,
    &random::ROWS,
    &retention::ROWS,
    &decay::ROWS,
    &attention::ROWS,
    &flip::ROWS,
    &dilate::ROWS,
    &loss::ROWS,
    &cross_entropy::ROWS,
    &optim::ROWS,
    &aten::ROWS,
    &collective::ROWS,
    &storage::ROWS,
    &mixed::ROWS,
    &fp8::ROWS,
];

/// Returns all rows of the table.
pub fn rows() -> impl Iterator<Item = &'static OpRow> {
    OPS.iter().flat_map(|family| family.iter())
}

impl Op {
    /// Returns the operation's row.
    pub fn row(&self) -> &'static OpRow {
        match self {
            Self::Unary(u) => &elementwise::UNARY[*u as usize],
            Self::UnaryBackward(u) => &elementwise::UNARY_BACKWARD[*u as usize],
            Self::Scale { .. } => &elementwise::ROWS[0],
            Self::AddScalar { .. } => &elementwise::ROWS[1],
            Self::Clamp { .. } => &elementwise::ROWS[2],
            Self::ClampBackward { .. } => &elementwise::ROWS[3],
            Self::Cast { .. } => &elementwise::ROWS[4],
            Self::Binary(b) => &pairwise::BINARY[*b as usize],
            Self::SiluMul => &pairwise::ROWS[0],
            Self::SiluMulBackward => &pairwise::ROWS[1],
            Self::SwiGlu => &pairwise::ROWS[2],
            Self::SwiGluBackward => &pairwise::ROWS[3],
            Self::Where => &pairwise::ROWS[4],
            Self::Keep { .. } => &pairwise::ROWS[5],
            Self::Test(_) | Self::And | Self::Not => predicate::row(self),
            Self::Sum { .. } => &reduce::ROWS[0],
            Self::Mean { .. } => &reduce::ROWS[1],
            Self::SumTo { .. } => &reduce::ROWS[2],
            Self::MaxDim { .. } => &reduce::ROWS[3],
            Self::MaxDimBackward { .. } => &reduce::ROWS[4],
            Self::MatMul { .. } => &matmul::ROWS[0],
            Self::Linear { .. } => &matmul::ROWS[1],
            Self::LinearBackward { .. } => &matmul::ROWS[2],
            Self::Reshape { .. } => &layout::ROWS[0],
            Self::Permute { .. } => &layout::ROWS[1],
            Self::Expand { .. } => &layout::ROWS[2],
            Self::Narrow { .. } => &layout::ROWS[3],
            Self::NarrowBackward { .. } => &layout::ROWS[4],
            Self::Cat { .. } => &layout::ROWS[5],
            Self::Stack { .. } => &layout::ROWS[6],
            Self::Split { .. } => &layout::ROWS[7],
            Self::Zeros { .. } => &layout::ROWS[8],
            Self::Ones { .. } => &layout::ROWS[9],
            Self::GradAdd => &layout::ROWS[10],
            Self::Detach => &layout::ROWS[11],
            Self::LayerNorm { .. } => &norm::ROWS[0],
            Self::LayerNormBackward { .. } => &norm::ROWS[1],
            Self::RmsNorm { .. } => &norm::ROWS[2],
            Self::RmsNormBackward { .. } => &norm::ROWS[3],
            Self::AddNorm { .. } | Self::AddNormBackward { .. } => add_norm::row(self),
            Self::GatedNorm { .. } | Self::GatedNormBackward { .. } => gated_norm::row(self),
            Self::Softmax { .. } | Self::SoftmaxBackward { .. } => softmax::row(self),
            Self::LogSoftmax { .. } | Self::LogSoftmaxBackward { .. } => softmax::row(self),
            Self::Embedding | Self::EmbeddingBackward { .. } => index::row(self),
            Self::IndexSelect { .. } | Self::IndexSelectBackward { .. } => index::row(self),
            Self::Dropout { .. } => &random::ROWS[0],
            Self::DropPath { .. } => &random::ROWS[1],
            Self::Retention { .. } | Self::RetentionBackward { .. } => retention::row(self),
            Self::RetentionDecay { .. } | Self::RetentionDecayBackward { .. } => decay::row(self),
            Self::Sdpa { .. } | Self::SdpaBackward { .. } => attention::row(self),
            Self::Flip { .. } => &flip::ROWS[0],
            Self::Dilate { .. } | Self::Undilate { .. } => dilate::row(self),
            Self::MaskedHuber { .. } => &loss::ROWS[0],
            Self::MaskedHuberBackward { .. } => &loss::ROWS[1],
            Self::MaskedMse => &loss::ROWS[2],
            Self::MaskedMseBackward => &loss::ROWS[3],
            Self::CrossEntropy { .. } | Self::CrossEntropyBackward { .. } => cross_entropy::row(self),
            Self::GlobalNorm | Self::StepScalars { .. } | Self::AdamW { .. } => optim::row(self),
            Self::Average { .. } | Self::Zero => optim::row(self),
            Self::Aten(_) | Self::AtenBackward(_) => aten::row(self),
            Self::AllReduce | Self::AllReduceWait | Self::Order => collective::row(self),
            Self::ReduceScatter | Self::AllGather => collective::row(self),
            Self::AllReduceShares | Self::AllReduceCopies => collective::row(self),
            Self::Allocate | Self::Release | Self::Place => storage::row(self),
            Self::CastInto | Self::ScaleUpdate { .. } => mixed::row(self),
            Self::Quantize { .. } | Self::ScaledMm { .. } | Self::Fp8Linear { .. } => fp8::row(self),
        }
    }

    /// Returns the operation's name.
    pub fn name(&self) -> &'static str {
        self.row().name
    }

    /// Whether operand `i` is written in place.
    pub fn writes(&self, i: usize) -> bool {
        match self {
            Self::CastInto | Self::Allocate | Self::Release | Self::Place => i == 0,
            Self::GradAdd => i.is_multiple_of(2),
            Self::ScaleUpdate { .. } => i <= 1,
            Self::LinearBackward { dw, db, .. } => {
                i >= 3 && i < 3 + usize::from(dw.is_storage()) + usize::from(db.is_storage())
            }
            Self::StepScalars { .. } => i >= 3,
            Self::Aten(call) => call.writes(i),
            Self::AdamW { .. } | Self::Average { .. } => optim::writes(self, i),
            Self::Zero | Self::AllReduce | Self::ReduceScatter | Self::AllGather => true,
            Self::AllReduceShares | Self::AllReduceCopies => true,
            _ => false,
        }
    }

    /// Whether the ranks run it together.
    pub fn is_collective(&self) -> bool {
        matches!(
            self,
            Self::AllReduce
                | Self::AllReduceWait
                | Self::ReduceScatter
                | Self::AllGather
                | Self::Order
                | Self::AllReduceShares
                | Self::AllReduceCopies
        )
    }

    /// Results a reverse rule may receive gradients for, as far as they are floating-point numbers; the rest are saved intermediates.
    pub fn differentiable_outs(&self) -> usize {
        match self {
            Self::Split { sizes, .. } => sizes.len(),
            Self::Retention { dir: Dir::Causal, .. } | Self::AddNorm { .. } => 2,
            Self::Aten(_) => usize::MAX,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is not in the table can neither be named by a configuration nor be left out by the ranks, and no test sees it.
    #[test]
    fn every_family_that_an_operation_has_its_row_in_is_in_the_table() {
        let source = include_str!("mod.rs");
        let (_, rest) = source.split_once("pub fn row(&self)").unwrap();
        let (body, _) = rest.split_once("    }\n\n").unwrap();
        let table = source.split_once("pub static OPS").and_then(|(_, rest)| rest.split_once("];")).unwrap().0;
        let mut families = 0;
        for line in body.lines().filter_map(|line| line.split_once(" => ")) {
            let family = line.1.trim_start_matches('&').split("::").next().unwrap();
            assert!(table.contains(&format!("    &{family}::")), "{family}");
            families += 1;
        }
        assert!(families > 50 && rows().count() > families, "{families} lines");
    }
}
