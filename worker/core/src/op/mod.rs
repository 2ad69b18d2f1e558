//! Operations: a closed enum with one variant per operation, whose value holds the attributes, and one table row per operation.
//!
//! Each operation has a file that tells its whole story: attributes, shape rule, launch, reverse rule, cost, export, samples. The list
//! at the end of this file names them all. A new operation is a new file, and a row of that list, at its end: programs are hashed with
//! the position of a variant.
//!
//! **Invariant:** the enum is exhaustive and hashable; an attribute that changes a result is a field of its variant.

#[macro_use]
mod table;

pub mod aten;
pub mod attention;
pub mod attr;
pub mod collective;
pub mod elementwise;
pub mod index;
pub mod infer;
pub mod layout;
pub mod loss;
pub mod low_precision;
pub mod lower;
pub mod norm;
mod on_device;
pub mod optim;
mod prelude;
pub mod product;
pub mod random;
pub mod reduce;
pub mod retention;
pub mod row;
pub mod sample;
pub mod storage;
pub mod value;
pub mod vjp;

pub use value::Meta;

impl Op {
    pub fn name(&self) -> &'static str {
        self.row().name
    }

    /// Whether operand `i` is written in place.
    pub fn writes(&self, i: usize) -> bool {
        (self.row().writes)(self, i)
    }

    /// Whether the ranks run it together.
    pub fn is_collective(&self) -> bool {
        self.row().collective.is_some()
    }

    /// Returns how many results, the first ones, a reverse rule may receive gradients for, if they are floating-point numbers.
    pub fn differentiable_outs(&self) -> usize {
        (self.row().differentiable)(self)
    }

    /// Returns the number of floating-point operations of a call.
    pub fn flops(&self, ins: &[&Meta], outs: &[Meta]) -> u64 {
        self.row().flops.of(self, ins, outs)
    }
}

operations! {
    Unary, UnaryBackward => elementwise::unary;
    Scale, AddScalar => elementwise::scalar;
    Clamp, ClampBackward => elementwise::clamp;
    Cast => elementwise::cast;
    RetentionDecay, RetentionDecayBackward => retention::decay;
    Binary => elementwise::binary;
    SiluMul, SiluMulBackward => elementwise::silu_mul;
    SwiGlu, SwiGluBackward => elementwise::swiglu;
    Where, Keep => elementwise::choice;
    Test, And, Not => elementwise::logic;
    Sum, Mean => reduce::sum;
    SumTo => reduce::sum_to;
    MaxDim, MaxDimBackward => reduce::max_dim;
    MatMul => product::matmul;
    Linear, LinearBackward => product::linear;
    Reshape => layout::reshape;
    Permute => layout::permute;
    Expand => layout::expand;
    Narrow, NarrowBackward => layout::narrow;
    Cat => layout::cat;
    Stack => layout::stack;
    Split => layout::split;
    Zeros, Ones => layout::filled;
    GradAdd => layout::grad_add;
    Detach => layout::detach;
    Flip => layout::flip;
    LayerNorm, LayerNormBackward, RmsNorm, RmsNormBackward => norm::alone;
    AddNorm, AddNormBackward => norm::add_norm;
    GatedNorm, GatedNormBackward => norm::gated_norm;
    Softmax, SoftmaxBackward, LogSoftmax, LogSoftmaxBackward => norm::softmax;
    Embedding, EmbeddingBackward => index::embedding;
    IndexSelect, IndexSelectBackward => index::select;
    Dropout, DropPath => random::dropout;
    Retention, RetentionBackward => retention::scan;
    Sdpa, SdpaBackward => attention::sdpa;
    Dilate, Undilate => attention::dilate;
    MaskedHuber, MaskedHuberBackward, MaskedMse, MaskedMseBackward => loss::masked;
    CrossEntropy, CrossEntropyBackward => loss::cross_entropy;
    GlobalNorm => optim::global_norm;
    StepScalars => optim::step_scalars;
    AdamW => optim::adamw;
    Average => optim::average;
    Zero => optim::zero;
    Aten, AtenBackward => aten::dispatched;
    AllReduce, AllReduceWait, ReduceScatter, AllGather, Order, AllReduceShares, AllReduceCopies => collective::operations;
    Allocate, Release, Restore => storage::memory;
    CastInto => low_precision::cast_into;
    ScaleUpdate => low_precision::scale_update;
    Quantize => low_precision::quantize;
    ScaledMm => low_precision::scaled_mm;
    Fp8Linear => low_precision::fp8_linear;
}

#[cfg(test)]
mod tests {
    use super::aten::{AtenArg, AtenCall};
    use super::attr::{CanonicalBytes, Dir, F64Bits, GradDest, Score, Structural};
    use super::sample::SampleRng;
    use super::*;
    use crate::autograd::Cx;
    use crate::functional;
    use crate::kernel::OperandSignature;
    use crate::params::ParamBuilder;
    use smallvec::smallvec;
    use std::collections::BTreeSet;
    use tch::{Device, Kind};

    /// Hash of the lines of all operations of 0.1.
    const GOLDEN: &str = "df4c5348b3f2bae3a4ce7773715ab7936af03b091b411d85a6eecb7786bcdfc2";
    /// Rows of the table in 0.1; those of later operations stand behind them.
    const ROWS_OF_0_1: usize = 121;

    /// Operations that no row has samples of, or of which samples have not all attributes.
    fn unsampled() -> Vec<Op> {
        let eps = F64Bits::from(1e-5);
        let low = Some(Kind::BFloat16);
        let dir = Dir::Causal;
        let mask = Structural::Dilated { window: 4, dilation: 2, causal: true };
        let score = Score { cap: Some(eps), alibi: true };
        let cumsum = vec![AtenArg::Operand, AtenArg::Int(-1), AtenArg::None];
        vec![
            UnaryBackward(Unary::Gelu).into(),
            ClampBackward { lo: eps, hi: 2.0.into() }.into(),
            RetentionDecayBackward { lo: eps, hi: 2.0.into() }.into(),
            SiluMulBackward.into(),
            SwiGluBackward.into(),
            MaxDimBackward { axis: 1, keepdim: true, size: 3 }.into(),
            LinearBackward { dx: true, dw: GradDest::Add, db: GradDest::New }.into(),
            NarrowBackward { axis: 1, start: 2, size: 3 }.into(),
            GradAdd.into(),
            LayerNormBackward { affine: true }.into(),
            RmsNormBackward { affine: false }.into(),
            AddNorm { layer: true, eps, low }.into(),
            AddNormBackward { layer: true, gsum: true, low }.into(),
            GatedNorm { layer: false, eps, low }.into(),
            GatedNormBackward { layer: false, low: None }.into(),
            SoftmaxBackward { axis: -1 }.into(),
            LogSoftmaxBackward { axis: 1 }.into(),
            EmbeddingBackward { classes: 7 }.into(),
            IndexSelectBackward { axis: 1, size: 3 }.into(),
            RetentionBackward { dir, state: true, gstate: false }.into(),
            Sdpa { mask, bias: true, score }.into(),
            SdpaBackward { mask, bias: true, dbias: false, score }.into(),
            MaskedHuberBackward { delta: eps }.into(),
            MaskedMseBackward.into(),
            CrossEntropyBackward { ignore: -100 }.into(),
            GlobalNorm.into(),
            StepScalars { beta1: eps, beta2: 0.9.into(), decay: 0.1.into(), clip: 1.0.into() }.into(),
            AdamW { eps, decays: smallvec![1, 0], shadows: true, average: Some(eps) }.into(),
            Average { decay: eps }.into(),
            Zero.into(),
            Aten(Box::new(AtenCall::new("aten::cumsum", "", cumsum).unwrap())).into(),
            AllReduce.into(),
            AllReduceWait.into(),
            ReduceScatter.into(),
            AllGather.into(),
            Order.into(),
            AllReduceShares.into(),
            AllReduceCopies.into(),
            Allocate.into(),
            Release.into(),
            Restore.into(),
            CastInto.into(),
            ScaleUpdate { growth: 2.0.into(), backoff: 0.5.into(), interval: 4 }.into(),
            Quantize { to: Kind::Float8e4m3fn }.into(),
            ScaledMm { out: Kind::BFloat16, bias: false, fast: true }.into(),
            Fp8Linear { bias: true, out: Kind::BFloat16 }.into(),
        ]
    }

    /// One line: name, attributes as programs are printed, hash in a program, and hash in ledgers of kernels.
    fn line(op: &Op) -> String {
        let mut bytes = CanonicalBytes::default();
        bytes.put(op);
        let printed = if matches!(op, Op::Aten(_)) { String::new() } else { format!("{op:?}") };
        let signature = OperandSignature::of(op, &[]).0;
        format!("{} {printed} {} {signature:016x}", op.name(), blake3::hash(&bytes.0).to_hex())
    }

    #[test]
    fn every_own_kernel_has_a_name_of_its_own_kind_and_keeps_to_its_device() {
        let sampled = rows().flat_map(|row| (row.samples)(&mut SampleRng::new(7))).map(|sample| sample.op);
        let mut seen = BTreeSet::new();
        for op in sampled.chain(unsampled()) {
            for kernel in op.row().kernels.iter().filter(|kernel| kernel.id.starts_with("cuda.")) {
                seen.insert(kernel.id);
                let x = tch::Tensor::zeros([2, 2, 2, 2], (Kind::Float, Device::Cpu));
                let fit = (kernel.fits)(&op, &row::Launch { ins: &[&x; 9] });
                assert!(fit.is_err(), "{} takes operands on the CPU", kernel.id);
            }
        }
        let own = rows().flat_map(|row| row.kernels).map(|kernel| kernel.id).filter(|id| id.starts_with("cuda."));
        assert_eq!(seen, own.collect::<BTreeSet<_>>());
        assert!(seen.len() >= 15, "{seen:?}");
    }

    /// The values are those of 0.1: its checkpoints hold hashes of programs, and its runs ledgers of kernels.
    #[test]
    fn programs_hash_as_in_0_1() {
        let old = rows().take(ROWS_OF_0_1);
        let sampled = old.flat_map(|row| (row.samples)(&mut SampleRng::new(7))).map(|sample| sample.op);
        let mut lines: Vec<String> = sampled.chain(unsampled()).map(|op| line(&op)).collect();
        lines.sort();
        let all = lines.join("\n");
        assert_eq!(blake3::hash(all.as_bytes()).to_hex().as_str(), GOLDEN, "{all}");
        let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
        let cx = Cx::train(&params, 3, 5);
        let x = cx.input(tch::Tensor::ones([4, 6], (Kind::Float, Device::Cpu)));
        let _layer = cx.scope("layer");
        let y = functional::softmax(&cx, &functional::gelu(&cx, &x, true).unwrap(), -1).unwrap();
        let y = functional::dropout(&cx, &y, 0.25).unwrap();
        let y = functional::matmul_t(&cx, &y, &x, false, true).unwrap();
        functional::sum(&cx, &y, &[0, 1], false).unwrap();
        let hash = cx.with_program(crate::autograd::Program::structure_hash);
        assert_eq!(hash, "548e23c4ceeafaec4152dcf29fa67b05e8f797153182b143f78105847ea579b1");
    }
}
