//! Calls of operations that no sample leads to: the optimizer's, those that write to storage or take operands of several kinds, those
//! of 8 bits, and libtorch's own.

use enn_worker::op::aten::{AtenArg, AtenCall};
use enn_worker::op::attr::GradDest;
use enn_worker::op::row::Launch;
use enn_worker::op::{self, Op, rows};
use smallvec::smallvec;
use tch::{Device, Kind, Tensor};

/// Rows of the table, from the first, whose operations `oracle` and `flops` define. A later operation may have no second definition.
const DEFINED: usize = 121;

/// Whether `oracle` and `flops` must define the operation.
pub(crate) fn must_be_defined(op: &Op) -> bool {
    rows().take(DEFINED).any(|row| row.name == op.row().name)
}

/// An operation and its operands.
pub(crate) type Call = (Op, Vec<Tensor>);

fn normal(shape: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Double, Device::Cpu)).to_kind(kind)
}

fn float(shape: &[i64]) -> Tensor {
    normal(shape, Kind::Float)
}

fn launched(op: &Op, ins: &[Tensor]) -> Vec<Tensor> {
    let refs: Vec<&Tensor> = ins.iter().collect();
    tch::no_grad(|| (op.row().launch)(op, &Launch { ins: &refs })).unwrap().into_vec()
}

/// All of them but libtorch's own.
pub(crate) fn calls() -> Vec<Call> {
    storage().into_iter().chain(optimizer()).chain(mixed()).chain(eight_bits()).collect()
}

fn storage() -> Vec<Call> {
    let flat = float(&[8]);
    let products = || vec![float(&[2, 4, 5]), float(&[2, 4, 3]), float(&[5, 3])];
    let storages = |arrays: &[&[i64]]| products().into_iter().chain(arrays.iter().map(|shape| float(shape))).collect();
    let backward = |dx, dw, db| Op::LinearBackward(op::LinearBackward { dx, dw, db });
    vec![
        (Op::GradAdd(op::GradAdd), vec![float(&[3, 5]), float(&[3, 5])]),
        (Op::GradAdd(op::GradAdd), vec![float(&[3, 5]), float(&[3, 5]), float(&[7]), float(&[7])]),
        (backward(true, GradDest::Add, GradDest::Write), storages(&[&[5, 3], &[5]])),
        (backward(false, GradDest::Write, GradDest::Skip), storages(&[&[5, 3]])),
        (backward(true, GradDest::Skip, GradDest::New), products()),
        (Op::Restore(op::Restore), vec![float(&[6]), float(&[6])]),
        (Op::Release(op::Release), vec![flat.shallow_clone()]),
        (Op::Allocate(op::Allocate), vec![flat]),
        (Op::CastInto(op::CastInto), vec![normal(&[9], Kind::BFloat16), float(&[9])]),
        (Op::Zero(op::Zero), vec![float(&[3, 5]), float(&[0])]),
    ]
}

fn optimizer() -> Vec<Call> {
    let number = |x: f64| Tensor::from(x);
    let scalars = |clip: f64| {
        Op::StepScalars(op::StepScalars { beta1: 0.9.into(), beta2: 0.99.into(), decay: 0.1.into(), clip: clip.into() })
    };
    let state = || [3.0, 8.0, 1e-2, 4.0, 0.0].map(number).into_iter().collect::<Vec<_>>();
    let numbers = || Tensor::from_slice(&[0.5_f32, 0.1, 0.01, 0.999, -1e-2, 3.0]);
    let segment = |n: i64, more: Vec<Tensor>| {
        let arrays = [float(&[n]), float(&[n]), float(&[n]), Tensor::rand([n], (Kind::Float, Device::Cpu))];
        arrays.into_iter().chain(more).collect::<Vec<_>>()
    };
    let adamw = |shadows, average: Option<f64>| {
        Op::AdamW(op::AdamW {
            eps: 1e-8.into(),
            decays: smallvec![1, 0],
            shadows,
            average: average.map(std::convert::Into::into),
        })
    };
    let plain = [vec![numbers()], segment(7, vec![]), segment(5, vec![])];
    let more = |n: i64| vec![normal(&[n], Kind::BFloat16), float(&[n])];
    let whole = [vec![numbers(), number(6.0), number(1.0)], segment(7, more(7)), segment(5, more(5))];
    vec![
        (Op::GlobalNorm(op::GlobalNorm), vec![float(&[7]), float(&[3, 5]), float(&[0])]),
        (scalars(1.0), state()),
        (adamw(false, None), plain.into_iter().flatten().collect()),
        (adamw(true, Some(0.99)), whole.into_iter().flatten().collect()),
        (
            Op::Average(op::Average { decay: 0.99.into() }),
            vec![number(6.0), number(1.0), float(&[7]), float(&[7]), float(&[4]), float(&[4])],
        ),
        (
            Op::ScaleUpdate(op::ScaleUpdate { growth: 2.0.into(), backoff: 0.5.into(), interval: 4 }),
            vec![Tensor::from(8.0_f32), Tensor::from(1_i32), Tensor::from(0.0_f32)],
        ),
    ]
}

/// Norms whose stream is f32 and whose branches are of 16 bits.
fn mixed() -> Vec<Call> {
    let low = Some(Kind::BFloat16);
    let eps = 1e-5.into();
    let branch = || normal(&[4, 6], Kind::BFloat16);
    let both = |layer: bool| {
        let weights = || (0..if layer { 2 } else { 1 }).map(|_| float(&[6]));
        let add = Op::AddNorm(op::AddNorm { layer, eps, low });
        let ins: Vec<Tensor> = [float(&[4, 6]), branch()].into_iter().chain(weights()).collect();
        let mut made = launched(&add, &ins);
        drop(made.remove(1));
        let back: Vec<Tensor> = std::iter::once(branch()).chain(made).chain([float(&[6]), float(&[4, 6])]).collect();
        let gated = Op::GatedNorm(op::GatedNorm { layer, eps, low });
        let gated_ins: Vec<Tensor> = [float(&[4, 6]), branch(), branch()].into_iter().chain(weights()).collect();
        let stats = launched(&gated, &gated_ins).split_off(1);
        let arrays = gated_ins.iter().map(Tensor::shallow_clone);
        let gated_back: Vec<Tensor> =
            std::iter::once(branch()).chain(arrays.take(3)).chain(stats).chain(weights()).collect();
        [
            (add, ins),
            (Op::AddNormBackward(op::AddNormBackward { layer, gsum: true, low }), back),
            (gated, gated_ins),
            (Op::GatedNormBackward(op::GatedNormBackward { layer, low }), gated_back),
        ]
    };
    both(true).into_iter().chain(both(false)).collect()
}

fn eight_bits() -> Vec<Call> {
    let quantize = Op::Quantize(op::Quantize { to: Kind::Float8e4m3fn });
    let x = float(&[2, 16, 32]);
    let w = float(&[48, 32]);
    let [x_parts, w_parts] = [&x, &w].map(|whole| launched(&quantize, &[whole.shallow_clone()]));
    let part = |parts: &[Tensor], i: usize| parts[i].shallow_clone();
    let linear = vec![
        x.shallow_clone(),
        w,
        part(&x_parts, 0),
        part(&x_parts, 2),
        part(&w_parts, 0),
        part(&w_parts, 2),
        part(&x_parts, 1),
        part(&w_parts, 1),
        float(&[48]),
    ];
    let product = vec![part(&x_parts, 0), part(&w_parts, 0), part(&x_parts, 2), part(&w_parts, 2)];
    vec![
        (quantize, vec![x]),
        (Op::ScaledMm(op::ScaledMm { out: Kind::BFloat16, bias: false, fast: true }), product),
        (Op::Fp8Linear(op::Fp8Linear { bias: true, out: Kind::BFloat16 }), linear),
    ]
}

/// Calls of the dispatcher and what they cost.
pub(crate) fn dispatched() -> Vec<(Call, u64)> {
    let of = |name: &str, args: Vec<AtenArg>, shapes: &[&[i64]]| -> Call {
        let call = AtenCall::new(name, "", args).unwrap();
        (Op::Aten(op::Aten(Box::new(call))), shapes.iter().map(|shape| float(shape)).collect())
    };
    let x = || AtenArg::Operand;
    let one = || [AtenArg::Int(1), AtenArg::Int(1)];
    let conv = |spreads: bool| {
        let pairs = || AtenArg::Ints(vec![1, 1]);
        let none = || AtenArg::Ints(vec![0, 0]);
        vec![x(), x(), AtenArg::None, pairs(), none(), pairs(), AtenArg::Bool(spreads), none(), AtenArg::Int(1)]
    };
    let added = || [x(), x(), x()].into_iter().chain(one()).collect::<Vec<_>>();
    vec![
        (of("aten::mm", vec![x(), x()], &[&[3, 4], &[4, 5]]), 2 * 3 * 4 * 5),
        (of("aten::bmm", vec![x(), x()], &[&[2, 3, 4], &[2, 4, 5]]), 2 * 2 * 3 * 4 * 5),
        (of("aten::mv", vec![x(), x()], &[&[3, 4], &[4]]), 2 * 3 * 4),
        (of("aten::matmul", vec![x(), x()], &[&[6, 3, 4], &[4, 5]]), 2 * 6 * 3 * 4 * 5),
        (of("aten::matmul", vec![x(), x()], &[&[3, 0], &[0, 5]]), 0),
        (of("aten::addmm", added(), &[&[5], &[3, 4], &[4, 5]]), 2 * 3 * 4 * 5),
        (of("aten::addmm_", added(), &[&[3, 5], &[3, 4], &[4, 5]]), 2 * 3 * 4 * 5),
        (of("aten::baddbmm", added(), &[&[2, 3, 5], &[2, 3, 4], &[2, 4, 5]]), 2 * 2 * 3 * 4 * 5),
        (of("aten::linear", vec![x(), x(), x()], &[&[6, 3, 4], &[5, 4], &[5]]), 2 * 6 * 3 * 4 * 5),
        // 2 images of 3 channels of 7 × 6, 5 kernels of 3 × 2: 5 × 5 places each.
        (of("aten::convolution", conv(false), &[&[2, 3, 7, 6], &[5, 3, 3, 2]]), 2 * (2 * 5 * 5 * 5) * (3 * 3 * 2)),
        (of("aten::convolution", conv(true), &[&[2, 3, 7, 6], &[3, 5, 3, 2]]), 2 * (2 * 3 * 7 * 6) * (5 * 3 * 2)),
        (of("aten::cumsum", vec![x(), AtenArg::Int(1), AtenArg::None], &[&[3, 4]]), 3 * 4),
    ]
}
