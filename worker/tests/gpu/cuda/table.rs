//! Entries of the table of operations against the plain reference in f64 on the CPU.

use crate::cuda::operands::{KINDS, LAYOUTS, Layout, between, device, lay, near, normal, same};
use enn_worker::backend::Outs;
use enn_worker::op::attr::{Dir, Score, Structural};
use enn_worker::op::row::{Kernel, Launch};
use enn_worker::op::{self, Op};
use tch::{Device, Kind, Tensor};

fn kernel(op: &Op) -> &'static Kernel {
    let own = |kernel: &&Kernel| kernel.id.starts_with("cuda.");
    op.row().kernels.iter().find(own).unwrap_or_else(|| panic!("{} has no own kernel", op.name()))
}

fn plain(op: &Op, ins: &[Tensor]) -> Outs {
    let wide: Vec<Tensor> =
        ins.iter().map(|x| if x.is_floating_point() { x.to_kind(Kind::Double) } else { x.shallow_clone() }).collect();
    (op.row().launch)(op, &Launch { ins: &wide.iter().collect::<Vec<_>>() }).unwrap()
}

fn own(op: &Op, ins: &[Tensor]) -> Outs {
    let kernel = kernel(op);
    let refs = ins.iter().collect::<Vec<_>>();
    let launch = Launch { ins: &refs };
    (kernel.fits)(op, &launch).unwrap_or_else(|why| panic!("{} does not fit: {why}", kernel.id));
    (kernel.launch)(op, &launch).unwrap_or_else(|error| panic!("{}: {error}", kernel.id))
}

/// Runs the own kernel in every layout, twice, and compares.
fn check(op: &Op, ins: &[Tensor], kind: Kind, device: Device) {
    let expected = plain(op, ins);
    for layout in LAYOUTS {
        let laid: Vec<Tensor> = ins.iter().map(|x| lay(x, layout, device)).collect();
        let found = own(op, &laid);
        let again = own(op, &laid);
        assert_eq!(found.len(), expected.len(), "{op:?}");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let shapes: Vec<Vec<i64>> = ins.iter().map(Tensor::size).collect();
            let what = format!("result {i} of {op:?} on {shapes:?} {layout:?}");
            near(&what, found, expected, kind);
            same(&what, found, &again[i]);
        }
    }
}

#[test]
fn dropout_has_the_bits_of_the_cpu() {
    let Some(device) = device() else { return };
    for kind in KINDS {
        for (shape, rows, first_row) in [
            (vec![5, 7], 5, 0),
            (vec![64, 128], 64, 3),
            (vec![3, 4, 9], 3, 1 << 31),
            (vec![0, 4], 0, 0),
            (vec![1], 1, 7),
        ] {
            let x = normal(&shape, kind);
            let key = Tensor::from_slice(&[0x0123_4567_89ab_cdef_i64, (3 << 32) + 7, first_row, rows]);
            for op in [
                Op::Dropout(op::Dropout { p: 0.3.into(), site: 11 }),
                Op::DropPath(op::DropPath { p: 0.5.into(), site: u32::MAX }),
            ] {
                let ins = [&x, &key];
                let expected = (op.row().launch)(&op, &Launch { ins: &ins }).unwrap();
                for layout in LAYOUTS {
                    let found = own(&op, &[lay(&x, layout, device), key.to_device(device)]);
                    same(&format!("{op:?} {shape:?} {layout:?}"), &found[0], &expected[0]);
                }
            }
        }
    }
}

#[test]
fn gates() {
    let Some(device) = device() else { return };
    for kind in KINDS {
        for (rows, width) in [(5, 7), (3, 64), (1, 1), (0, 8), (1000, 24)] {
            let n = |w| normal(&[rows, w], kind);
            check(&Op::SiluMul(op::SiluMul), &[n(width), n(width)], kind, device);
            check(&Op::SiluMulBackward(op::SiluMulBackward), &[n(width), n(width), n(width)], kind, device);
            check(&Op::SwiGlu(op::SwiGlu), &[n(2 * width)], kind, device);
            check(&Op::SwiGluBackward(op::SwiGluBackward), &[n(width), n(2 * width)], kind, device);
        }
    }
}

#[test]
fn retention_decays() {
    let Some(device) = device() else { return };
    let lo = 1.0.into();
    let hi = 16.0.into();
    for (kind, heads) in KINDS.into_iter().flat_map(|kind| [0, 1, 16, 1000].map(|heads| (kind, heads))) {
        let beta = between(&[heads], 0.0, 17.0, kind);
        check(&Op::RetentionDecay(op::RetentionDecay { lo, hi }), &[beta.shallow_clone()], kind, device);
        check(
            &Op::RetentionDecayBackward(op::RetentionDecayBackward { lo, hi }),
            &[normal(&[heads], kind), beta],
            kind,
            device,
        );
    }
}

#[test]
fn norms() {
    let Some(device) = device() else { return };
    for kind in KINDS {
        for (rows, width) in [(5, 1), (3, 33), (700, 64), (7, 1000), (2, 4096), (3, 16384), (0, 8)] {
            let x = normal(&[rows, width], kind);
            let g = normal(&[rows, width], kind);
            let w = between(&[width], 0.5, 1.5, kind);
            let b = normal(&[width], kind);
            for centred in [true, false] {
                let (op, back) = if centred {
                    (
                        Op::LayerNorm(op::LayerNorm { affine: true, eps: 1e-5.into() }),
                        Op::LayerNormBackward(op::LayerNormBackward { affine: true }),
                    )
                } else {
                    (
                        Op::RmsNorm(op::RmsNorm { affine: true, eps: 1e-5.into() }),
                        Op::RmsNormBackward(op::RmsNormBackward { affine: true }),
                    )
                };
                let mut ins = vec![x.shallow_clone(), w.shallow_clone()];
                ins.extend(centred.then(|| b.shallow_clone()));
                check(&op, &ins, kind, device);
                let stats = plain(&op, &ins).into_iter().skip(1).map(|stats| stats.to_kind(Kind::Float));
                let mut ins = vec![g.shallow_clone(), x.shallow_clone()];
                ins.extend(stats);
                ins.push(w.shallow_clone());
                check(&back, &ins, kind, device);
            }
        }
        let x = normal(&[6, 40], kind);
        check(&Op::LayerNorm(op::LayerNorm { affine: false, eps: 1e-5.into() }), &[x.shallow_clone()], kind, device);
        check(&Op::RmsNorm(op::RmsNorm { affine: false, eps: 1e-5.into() }), &[x], kind, device);
    }
}

#[test]
fn a_16_bit_branch_beside_a_stream() {
    let Some(device) = device() else { return };
    for kind in [Kind::BFloat16, Kind::Half] {
        for (rows, width) in [(5, 1), (3, 33), (700, 64), (7, 1000), (2, 4096), (0, 8)] {
            let f32s = |shape: &[i64]| normal(shape, Kind::Float);
            let x = f32s(&[rows, width]);
            let branch = normal(&[rows, width], kind);
            let g = normal(&[rows, width], kind);
            let w = between(&[width], 0.5, 1.5, Kind::Float);
            let b = f32s(&[width]);
            for layer in [true, false] {
                let op = Op::AddNorm(op::AddNorm { layer, eps: 1e-5.into(), low: Some(kind) });
                let mut ins = vec![x.shallow_clone(), branch.shallow_clone(), w.shallow_clone()];
                ins.extend(layer.then(|| b.shallow_clone()));
                check(&op, &ins, kind, device);
                let made = plain(&op, &ins).into_iter().enumerate().filter(|(i, _)| *i != 1);
                let mut ins = vec![g.shallow_clone()];
                ins.extend(made.map(|(_, saved)| saved.to_kind(Kind::Float)));
                ins.extend([w.shallow_clone(), f32s(&[rows, width])]);
                check(
                    &Op::AddNormBackward(op::AddNormBackward { layer, gsum: true, low: Some(kind) }),
                    &ins,
                    kind,
                    device,
                );
            }
        }
    }
}

#[test]
fn gated_norms() {
    let Some(device) = device() else { return };
    let f32 = Kind::Float;
    let bf16 = Kind::BFloat16;
    let f16 = Kind::Half;
    for (kind, low) in [(f32, None), (bf16, None), (f32, Some(bf16)), (f32, Some(f16))] {
        for (rows, width) in [(5, 1), (700, 64), (7, 1000), (3, 4096), (0, 8)] {
            let beside = low.unwrap_or(kind);
            let s = normal(&[rows, width], kind);
            let g = normal(&[rows, width], beside);
            let q = normal(&[rows, width], beside);
            let gate = normal(&[rows, width], beside);
            let w = between(&[width], 0.5, 1.5, kind);
            let b = normal(&[width], kind);
            for layer in [true, false] {
                let op = Op::GatedNorm(op::GatedNorm { layer, eps: 1e-5.into(), low });
                let weights = || [w.shallow_clone()].into_iter().chain(layer.then(|| b.shallow_clone()));
                let ins: Vec<_> = [&s, &q, &gate].map(Tensor::shallow_clone).into_iter().chain(weights()).collect();
                check(&op, &ins, beside, device);
                let stats = plain(&op, &ins).into_iter().skip(1).map(|stats| stats.to_kind(Kind::Float));
                let ins = [&g, &s, &q, &gate].map(Tensor::shallow_clone).into_iter().chain(stats).chain(weights());
                check(
                    &Op::GatedNormBackward(op::GatedNormBackward { layer, low }),
                    &ins.collect::<Vec<_>>(),
                    beside,
                    device,
                );
            }
        }
    }
}

#[test]
fn scans() {
    let Some(device) = device() else { return };
    let sizes =
        [[2, 1, 2, 3], [1, 5, 1, 4], [2, 37, 3, 5], [1, 1000, 2, 33], [3, 64, 2, 2], [1, 4099, 4, 16], [2, 0, 2, 3]];
    for kind in KINDS {
        for [b, n, h, d] in sizes {
            let v = normal(&[b, n, h, d], kind);
            let g = normal(&[b, n, h, d], kind);
            let lambda = between(&[h], 0.6, 0.98, kind);
            let state = normal(&[b, h, d], kind);
            let gstate = normal(&[b, h, d], kind);
            for (dir, with) in [(Dir::Causal, true), (Dir::Causal, false), (Dir::Bidirectional, false)] {
                let mut ins = vec![v.shallow_clone(), lambda.shallow_clone()];
                ins.extend(with.then(|| state.shallow_clone()));
                let op = Op::Retention(op::Retention { dir, state: with });
                check(&op, &ins, kind, device);
                let y = plain(&op, &ins)[0].to_kind(kind);
                let mut ins = vec![v.shallow_clone(), lambda.shallow_clone(), y, g.shallow_clone()];
                ins.extend(with.then(|| state.shallow_clone()));
                ins.extend(with.then(|| gstate.shallow_clone()));
                check(
                    &Op::RetentionBackward(op::RetentionBackward { dir, state: with, gstate: with }),
                    &ins,
                    kind,
                    device,
                );
            }
        }
    }
}

#[test]
fn a_long_scan_of_few_columns() {
    let Some(device) = device() else { return };
    let v = normal(&[1, 65_537, 1, 2], Kind::Float);
    let lambda = between(&[1], 0.9, 0.99, Kind::Float);
    for dir in [Dir::Causal, Dir::Bidirectional] {
        let op = Op::Retention(op::Retention { dir, state: false });
        let found = own(&op, &[lay(&v, Layout::Dense, device), lay(&lambda, Layout::Dense, device)]);
        near("long scan", &found[0], &plain(&op, &[v.shallow_clone(), lambda.shallow_clone()])[0], Kind::Float);
    }
}

#[test]
fn attention_and_cross_entropy_as_operations() {
    let Some(device) = device() else { return };
    for kind in KINDS {
        let dilated = |causal| Structural::Dilated { window: 20, dilation: 3, causal };
        let capped = Score { cap: Some(0.9.into()), alibi: false };
        let alibi = Score { cap: None, alibi: true };
        for (mask, bias, axes, score) in [
            (Structural::Window(9), true, 2, Score::PLAIN),
            (Structural::Causal, true, 1, Score::PLAIN),
            (Structural::None, false, 0, Score::PLAIN),
            (dilated(true), true, 1, Score::PLAIN),
            (dilated(false), false, 0, alibi),
            (Structural::Causal, true, 2, capped),
            (Structural::None, true, 1, Score { alibi: true, ..capped }),
        ] {
            let b = 2;
            let h = 3;
            let n = 77;
            let d = 20;
            let tokens = || normal(&[b, h, n, d], kind);
            let shape = if axes == 2 { vec![b, n] } else { vec![n] };
            let bias_of = bias.then(|| normal(&shape, kind));
            let mut ins = vec![tokens(), tokens(), tokens()];
            ins.extend(bias_of.as_ref().map(Tensor::shallow_clone));
            let op = Op::Sdpa(op::Sdpa { mask, bias, score });
            check(&op, &ins, kind, device);
            let made = plain(&op, &ins);
            let mut back = vec![tokens()];
            back.extend(ins.drain(..3));
            back.extend([made[0].to_kind(kind), made[1].to_kind(Kind::Float)]);
            back.extend(bias_of);
            check(&Op::SdpaBackward(op::SdpaBackward { mask, bias, dbias: bias, score }), &back, kind, device);
        }
        let logits = normal(&[7, 33], kind);
        let targets = Tensor::from_slice(&[0i64, 32, 5, 1, 1, 9, 2]);
        let ins = vec![logits.shallow_clone(), targets.shallow_clone()];
        check(&Op::CrossEntropy(op::CrossEntropy { ignore: 1 }), &ins, kind, device);
        let lse = plain(&Op::CrossEntropy(op::CrossEntropy { ignore: 1 }), &ins)[1].to_kind(Kind::Float);
        let g = Tensor::from(0.7f32);
        check(
            &Op::CrossEntropyBackward(op::CrossEntropyBackward { ignore: 1 }),
            &[g, logits, targets, lse],
            kind,
            device,
        );
    }
}

#[test]
fn eight_bit_matrices_have_the_bits_of_the_plain_reference() {
    let Some(device) = device() else { return };
    for kind in KINDS {
        for to in [Kind::Float8e4m3fn, Kind::Float8e5m2] {
            let op = Op::Quantize(op::Quantize { to });
            for (rows, columns) in [(16, 16), (32, 144), (128, 128), (1040, 2064), (8192, 16), (16, 8192)] {
                // Over many sizes, so that numbers below the normal ones and 0 are met.
                let sizes = between(&[rows, columns], -14.0, 3.0, Kind::Double).exp2();
                let x = (normal(&[rows, columns], Kind::Double) * sizes).to_kind(kind);
                eights(&op, &x, device);
            }
            eights(&op, &Tensor::zeros([16, 32], (kind, Device::Cpu)), device);
            for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let x = normal(&[3, 32, 16], kind);
                let _ = x.get(2).get(7).get(3).fill_(odd);
                eights(&op, &x, device);
            }
        }
    }
}

/// Against the reference on the CPU and on the device, in every layout.
#[track_caller]
fn eights(op: &Op, x: &Tensor, device: Device) {
    let readable = |t: &Tensor| t.to_device(Device::Cpu).to_kind(Kind::Float).nan_to_num(7e7, 8e7, 9e7);
    for on in [Device::Cpu, device] {
        let launched = (op.row().launch)(op, &Launch { ins: &[&x.to_device(on)] });
        let expected = launched.unwrap_or_else(|error| panic!("plain: {error}"));
        for layout in LAYOUTS {
            let found = own(op, &[lay(x, layout, device)]);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.kind(), expected.kind());
                let what =
                    format!("result {i} of {op:?} on {:?} {:?} {layout:?}, reference on {on:?}", x.size(), x.kind());
                same(&what, &readable(found), &readable(expected));
            }
        }
    }
}

#[test]
fn libtorchs_attention_comes_first_where_it_fits() {
    let Some(device) = device() else { return };
    let first = |op: &Op, ins: &[Tensor]| {
        let refs: Vec<&Tensor> = ins.iter().collect();
        let launch = Launch { ins: &refs };
        op.row().kernels.iter().find(|kernel| (kernel.fits)(op, &launch).is_ok()).map(|kernel| kernel.id)
    };
    let own = ["cuda.attention", "cuda.attention_backward"];
    for (kind, mask, alibi, expected) in [
        (Kind::Float, Structural::Causal, false, ["aten.efficient"; 2]),
        (Kind::BFloat16, Structural::Causal, false, ["aten.flash"; 2]),
        (Kind::Float, Structural::Window(9), false, own),
        (Kind::BFloat16, Structural::Dilated { window: 9, dilation: 2, causal: true }, false, own),
        (Kind::BFloat16, Structural::Causal, true, own),
    ] {
        let score = Score { alibi, ..Score::PLAIN };
        let tokens = || normal(&[2, 64, 4, 32], kind).to_device(device).transpose(1, 2);
        let op = Op::Sdpa(op::Sdpa { mask, bias: false, score });
        let back = Op::SdpaBackward(op::SdpaBackward { mask, bias: false, dbias: false, score });
        let lse = normal(&[2, 4, 64], Kind::Float).to_device(device);
        let found = first(&op, &[tokens(), tokens(), tokens()]);
        let found = [found, first(&back, &[tokens(), tokens(), tokens(), tokens(), tokens(), lse])];
        assert_eq!(found, expected.map(Some), "{kind:?} {mask:?}");
    }
}

/// A measurement, not a test: `cuda --ignored --nocapture --test-threads 1 bytes_per_second`.
#[test]
#[ignore = "measures; run it alone on an idle GPU"]
fn bytes_per_second_of_quantising() {
    let Some(device) = device() else { return };
    for kind in [Kind::Float, Kind::BFloat16] {
        for side in [1024, 4096, 8192] {
            let op = Op::Quantize(op::Quantize { to: Kind::Float8e4m3fn });
            let x = normal(&[side, side], kind).to_device(device);
            let time = |run: &dyn Fn() -> Outs| {
                (0..3).for_each(|_| assert_eq!(run().len(), 3));
                tch::Cuda::synchronize(0);
                let start = std::time::Instant::now();
                (0..20).for_each(|_| assert_eq!(run().len(), 3));
                tch::Cuda::synchronize(0);
                start.elapsed().as_secs_f64() / 20.0
            };
            let fast = time(&|| own(&op, &[x.shallow_clone()]));
            let slow = time(&|| (op.row().launch)(&op, &Launch { ins: &[&x] }).unwrap());
            // Read twice, written twice in 8 bits.
            let bytes = (side * side) as f64 * (2.0 * kind.elt_size_in_bytes() as f64 + 2.0);
            let rate = bytes / fast / 1e12;
            println!("quantize {side}² {kind:?}: {:.1} µs, {rate:.2} TB/s; plain {:.1} µs", fast * 1e6, slow * 1e6);
            assert!(fast.is_finite());
        }
    }
}
