//! Operands of more than 2³¹ numbers: each is a small one over and over, and so must be what a kernel gives.

use crate::cuda::operands::{between, device, near, normal, same};
use enn_worker::op::attr::{Dir, Score, Structural};
use enn_worker::op::row::Launch;
use enn_worker::op::{self, Op, rows};
use std::collections::BTreeSet;
use tch::{Device, Kind, Tensor};

/// More than an `int` counts.
const NUMBERS: i64 = (1 << 31) + 1;
/// Of one number or a few, however large the model and the batch are.
const NEVER_LARGE: [&str; 3] = ["cuda.step_scalars", "cuda.retention_decay", "cuda.retention_decay_backward"];

struct Large {
    device: Device,
    ran: BTreeSet<&'static str>,
}

impl Large {
    /// `small` over and over along its first axis.
    fn repeat(&self, small: &Tensor, copies: i64) -> Tensor {
        let mut shape = small.size();
        shape[0] *= copies;
        small.to_device(self.device).unsqueeze(0).repeat_interleave_self_int(copies, 0, None).view(shape.as_slice())
    }

    fn own(&mut self, op: &Op, ins: &[Tensor]) -> Vec<Tensor> {
        let refs: Vec<&Tensor> = ins.iter().collect();
        let launch = Launch { ins: &refs };
        let own = op.row().kernels.iter().find(|kernel| kernel.id.starts_with("cuda.")).unwrap();
        (own.fits)(op, &launch).unwrap_or_else(|why| panic!("{}: {why}", own.id));
        self.ran.insert(own.id);
        (own.launch)(op, &launch).unwrap_or_else(|error| panic!("{}: {error}", own.id)).into_vec()
    }

    /// The operands of which `along` says so over and over: the results must be the small ones' over and over, or, of no
    /// more rows than those, their sum.
    fn check(&mut self, op: &Op, ins: &[Tensor], along: impl Fn(usize) -> bool) {
        let rows = ins.iter().enumerate().filter(|(i, _)| along(*i)).map(|(_, x)| x);
        let copies = NUMBERS / rows.map(|x| x.numel() as i64).max().unwrap() + 1;
        let once: Vec<Tensor> = ins.iter().map(|x| x.to_device(self.device)).collect();
        let often = once.iter().enumerate();
        let often: Vec<Tensor> =
            often.map(|(i, x)| if along(i) { self.repeat(x, copies) } else { x.shallow_clone() }).collect();
        let small = self.own(op, &once);
        let large = self.own(op, &often);
        for (i, (small, large)) in small.iter().zip(&large).enumerate() {
            let what = format!("result {i} of {op:?}, {copies} copies of {:?}", ins[0].size());
            if small.size() == large.size() {
                let sum = (small.to_kind(Kind::Double) * copies).to_device(Device::Cpu);
                near(&what, large, &sum, small.kind());
            } else {
                repeats(&what, small, large, copies);
            }
        }
    }
}

/// Fails unless each of the `copies` in `large` has the bits of `small`.
#[track_caller]
fn repeats(what: &str, small: &Tensor, large: &Tensor, copies: i64) {
    let mut shape = vec![copies];
    shape.extend(small.size());
    let large = large.view(shape.as_slice());
    // Not all at once: a comparison takes a byte for each number.
    for (at, copy) in [(0, copies / 2), (copies / 2, copies - copies / 2)] {
        let equal = large.narrow(0, at, copy).eq_tensor(small).all();
        assert!(equal.int64_value(&[]) == 1, "{what}: other bits");
    }
}

fn gates(l: &mut Large) {
    let n = |width| normal(&[1021, width], Kind::BFloat16);
    l.check(&Op::SiluMul(op::SiluMul), &[n(1032), n(1032)], |_| true);
    l.check(&Op::SiluMulBackward(op::SiluMulBackward), &[n(1032), n(1032), n(1032)], |_| true);
    l.check(&Op::SwiGlu(op::SwiGlu), &[n(1032)], |_| true);
    l.check(&Op::SwiGluBackward(op::SwiGluBackward), &[n(516), n(1032)], |_| true);
}

fn norms(l: &mut Large) {
    let rows = 1021;
    let width = 1032;
    let bf16 = Kind::BFloat16;
    let low = Some(bf16);
    let stats = || between(&[rows, 1], 0.5, 1.5, Kind::Float);
    let n = |kind| normal(&[rows, width], kind);
    let w = |kind| between(&[width], 0.5, 1.5, kind);
    let b = |kind| normal(&[width], kind);
    let eps = 1e-5.into();
    l.check(&Op::LayerNorm(op::LayerNorm { affine: true, eps }), &[n(bf16), w(bf16), b(bf16)], |i| i < 1);
    let ins = [n(bf16), n(bf16), stats(), stats(), w(bf16)];
    l.check(&Op::LayerNormBackward(op::LayerNormBackward { affine: true }), &ins, |i| i < 4);
    l.check(&Op::RmsNorm(op::RmsNorm { affine: true, eps }), &[n(bf16), w(bf16)], |i| i < 1);
    l.check(&Op::RmsNormBackward(op::RmsNormBackward { affine: true }), &[n(bf16), n(bf16), stats(), w(bf16)], |i| {
        i < 3
    });
    let f32 = Kind::Float;
    l.check(&Op::AddNorm(op::AddNorm { layer: false, eps, low }), &[n(f32), n(bf16), w(f32)], |i| i < 2);
    let ins = [n(bf16), n(f32), stats(), w(f32), n(f32)];
    l.check(&Op::AddNormBackward(op::AddNormBackward { layer: false, gsum: true, low }), &ins, |i| i != 3);
    l.check(&Op::GatedNorm(op::GatedNorm { layer: false, eps, low }), &[n(f32), n(bf16), n(bf16), w(f32)], |i| i < 3);
    let ins = [n(bf16), n(f32), n(bf16), n(bf16), stats(), w(f32)];
    l.check(&Op::GatedNormBackward(op::GatedNormBackward { layer: false, low }), &ins, |i| i < 5);
}

fn mixers(l: &mut Large) {
    let b = 3;
    let n = 77;
    let h = 5;
    let d = 40;
    let tokens = |shape: [i64; 4]| normal(&shape, Kind::BFloat16);
    let lambda = || between(&[h], 0.6, 0.98, Kind::BFloat16);
    let v = || tokens([b, n, h, d]);
    for dir in [Dir::Causal, Dir::Bidirectional] {
        l.check(&Op::Retention(op::Retention { dir, state: false }), &[v(), lambda()], |i| i == 0);
        let op = Op::RetentionBackward(op::RetentionBackward { dir, state: false, gstate: false });
        l.check(&op, &[v(), lambda(), v(), v()], |i| i != 1);
    }
    let mask = Structural::Window(9);
    let score = Score::PLAIN;
    let t = || tokens([b, h, n, d]);
    l.check(&Op::Sdpa(op::Sdpa { mask, bias: false, score }), &[t(), t(), t()], |_| true);
    let lse = between(&[b, h, n], 3.0, 4.0, Kind::Float);
    let op = Op::SdpaBackward(op::SdpaBackward { mask, bias: false, dbias: false, score });
    l.check(&op, &[t(), t(), t(), t(), t(), lse], |_| true);
}

fn losses(l: &mut Large) {
    let rows = 41;
    let classes = 50_257;
    let logits = || normal(&[rows, classes], Kind::BFloat16);
    let targets = || (Tensor::arange(rows, (Kind::Int64, Device::Cpu)) * 1_009).remainder(classes);
    l.check(&Op::CrossEntropy(op::CrossEntropy { ignore: 1_009 }), &[logits(), targets()], |_| true);
    let lse = between(&[rows], 11.0, 12.0, Kind::Float);
    let ins = [Tensor::from(0.7f32), logits(), targets(), lse];
    l.check(&Op::CrossEntropyBackward(op::CrossEntropyBackward { ignore: 1_009 }), &ins, |i| i > 0);
}

/// A row's mask is that of its number: the last rows alone have the bits that they have among all.
fn dropout(l: &mut Large) {
    let rows = 2_097_169;
    let width = 1_024;
    let last = 1_021;
    let small = normal(&[last, width], Kind::BFloat16).to_device(l.device);
    let x = Tensor::ones([rows, width], (Kind::BFloat16, l.device));
    x.narrow(0, rows - last, last).copy_(&small);
    let device = l.device;
    let key = |first: i64, rows: i64| Tensor::from_slice(&[77, 5, first, rows]).to_device(device);
    let op = Op::Dropout(op::Dropout { p: 0.3.into(), site: 11 });
    let all = l.own(&op, &[x, key(0, rows)]);
    let few = l.own(&op, &[small, key(rows - last, last)]);
    same("dropout", &all[0].narrow(0, rows - last, last), &few[0]);
}

fn quantize(l: &mut Large) {
    let x = normal(&[1_040, 2_064], Kind::BFloat16).to_device(l.device);
    let copies = NUMBERS / x.numel() as i64 + 1;
    let op = Op::Quantize(op::Quantize { to: Kind::Float8e4m3fn });
    let large = l.repeat(&x, copies);
    let small = l.own(&op, &[x]);
    let large = l.own(&op, &[large]);
    same("scale", &large[2], &small[2]);
    // The numbers of 8 bits cannot be compared as such.
    let [small, large] = [small, large].map(|made| [0, 1].map(|i| made[i].view_dtype(Kind::Uint8)));
    repeats("rows", &small[0], &large[0], copies);
    let transposed = large[1].view([2_064, copies, 1_040]);
    assert!(transposed.eq_tensor(&small[1].unsqueeze(1)).all().int64_value(&[]) == 1, "transposed: other bits");
}

/// One array: weights, gradient, both moments, average; and what is read of arrays alone.
fn updates(l: &mut Large) {
    let length = 1_003_001;
    let f32s = || normal(&[length], Kind::Float);
    let grad = f32s().to_kind(Kind::BFloat16);
    let arrays = [f32s(), grad, f32s(), between(&[length], 0.0, 1.0, Kind::Float), f32s()];
    let copies = NUMBERS / length + 1;
    let device = l.device;
    let scalar = |x: f64| Tensor::from(x).to_kind(Kind::Double).to_device(device);
    let numbers = Tensor::from_slice(&[0.125f32, 0.1, 0.05, 0.999, -1e-2, 1.4]).to_device(l.device);
    let before = || vec![numbers.copy(), scalar(6.0), scalar(1.0)];
    let with = |arrays: Vec<Tensor>| before().into_iter().chain(arrays).collect::<Vec<_>>();
    let small = with(arrays.iter().map(|x| x.to_device(l.device)).collect());
    let large = with(arrays.iter().map(|x| l.repeat(x, copies)).collect());
    let decays = [1].into_iter().collect();
    let op = Op::AdamW(op::AdamW { eps: 1e-8.into(), decays, shadows: false, average: Some(0.99.into()) });
    for ins in [&small, &large] {
        l.own(&op, ins);
    }
    for (i, (small, large)) in small.iter().zip(&large).enumerate().skip(3) {
        repeats(&format!("operand {i} of adamw"), small, large, copies);
    }
    let pairs = |ins: &[Tensor]| vec![scalar(6.0), scalar(1.0), ins[7].shallow_clone(), ins[3].shallow_clone()];
    for ins in [&small, &large] {
        l.own(&Op::Average(op::Average { decay: 0.99.into() }), &pairs(ins));
    }
    repeats("average", &small[7], &large[7], copies);
    let norms = [&small, &large].map(|ins| l.own(&Op::GlobalNorm(op::GlobalNorm), &ins[4..5]).remove(0));
    near("norm", &norms[1], &(&norms[0] * (copies as f64).sqrt()).to_device(Device::Cpu), Kind::Float);
    l.own(&Op::Zero(op::Zero), &large[4..5]);
    assert_eq!(large[4].count_nonzero(None::<i64>).int64_value(&[]), 0);
}

/// Takes 45 GB of the device, and time to compile.
#[test]
fn operands_of_more_numbers_than_an_int_counts() {
    let Some(device) = device() else { return };
    let mut l = Large { device, ran: BTreeSet::from(NEVER_LARGE) };
    for part in [gates, norms, mixers, losses, dropout, quantize, updates] {
        part(&mut l);
    }
    let all = rows().flat_map(|row| row.kernels).map(|kernel| kernel.id);
    let missed: Vec<_> = all.filter(|id| id.starts_with("cuda.") && !l.ran.contains(id)).collect();
    assert!(missed.is_empty(), "{missed:?} did not run");
}
