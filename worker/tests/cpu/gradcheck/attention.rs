//! Attention kernels against the plain reference, on every device there is, and that each forward goes with each backward.

use crate::gradcheck::operands::distance;
use enn_worker::op::attr::{Score, Structural};
use enn_worker::op::row::{Kernel, Launch};
use enn_worker::op::value::Meta;
use enn_worker::op::{self, Op};
use tch::{Device, Kind, Tensor};

const DILATED: Structural = Structural::Dilated { window: 9, dilation: 3, causal: true };

/// (batch, heads, queries, keys, width), bias rows (0 for none), mask.
const CASES: [(i64, i64, i64, i64, i64, i64, Structural); 8] = [
    (2, 3, 7, 7, 8, 0, Structural::Causal),
    (1, 2, 130, 130, 64, 0, Structural::Causal),
    (2, 1, 5, 16, 16, 1, Structural::None),
    (2, 2, 33, 48, 32, 2, Structural::None),
    (1, 4, 1, 9, 24, 0, Structural::None),
    (2, 2, 8, 8, 8, 1, Structural::Causal),
    (2, 2, 6, 6, 8, 0, Structural::Window(2)),
    (1, 3, 70, 70, 16, 1, DILATED),
];

/// Each case as it is, capped, and capped and less by distance where queries are as many as keys.
fn scores(queries: i64, keys: i64) -> Vec<Score> {
    let capped = Score { cap: Some(0.8.into()), alibi: false };
    let both = (queries == keys).then_some(Score { alibi: true, ..capped });
    [Score::PLAIN, capped].into_iter().chain(both).collect()
}

fn devices() -> Vec<(Device, Kind, f64)> {
    let mut all = vec![(Device::Cpu, Kind::Float, 1e-5), (Device::Cpu, Kind::Double, 1e-11)];
    if tch::Cuda::is_available() {
        all.extend([(Device::Cuda(0), Kind::Float, 1e-4), (Device::Cuda(0), Kind::BFloat16, 4e-2)]);
        all.push((Device::Cuda(0), Kind::Half, 6e-3));
    } else {
        eprintln!("no CUDA device: attention kernels were checked on the CPU only");
    }
    all
}

fn fitting<'k>(kernels: &'k [Kernel], op: &Op, ins: &[&Tensor]) -> Vec<&'k Kernel> {
    kernels.iter().filter(|k| (k.fits)(op, &Launch { ins }).is_ok()).collect()
}

#[test]
fn attention_kernels_equal_the_reference_and_share_what_they_save() {
    tch::manual_seed(12);
    let mut pairs = 0;
    for (device, kind, tolerance) in devices() {
        let all = CASES.into_iter().flat_map(|case| scores(case.2, case.3).into_iter().map(move |score| (case, score)));
        for ((b, h, m, n, d, bias_rows, mask), score) in all {
            // Heads as the model has them: views whose rows are interleaved.
            let heads = |len: i64| Tensor::randn([b, len, h, d], (Kind::Double, device)).to_kind(kind).transpose(1, 2);
            let q = heads(m);
            let k = heads(n);
            let v = heads(n);
            let g = heads(m);
            let bias = match bias_rows {
                1 => Some(Tensor::randn([n], (Kind::Double, device)).to_kind(kind)),
                2 => Some(Tensor::randn([b, n], (Kind::Double, device)).to_kind(kind)),
                _ => None,
            };
            let forward = Op::Sdpa(op::Sdpa { mask, bias: bias.is_some(), score });
            let backward = Op::SdpaBackward(op::SdpaBackward { mask, bias: bias.is_some(), dbias: false, score });
            let ins: Vec<&Tensor> = [&q, &k, &v].into_iter().chain(&bias).collect();
            let plain = (forward.row().launch)(&forward, &Launch { ins: &ins }).unwrap();
            let saved = |out: &Tensor, lse: &Tensor| {
                let all = [&g, &q, &k, &v, out, lse].into_iter().chain(&bias);
                all.map(Tensor::shallow_clone).collect::<Vec<_>>()
            };
            let first = saved(&plain[0], &plain[1]);
            let refs: Vec<&Tensor> = first.iter().collect();
            let expected = (backward.row().launch)(&backward, &Launch { ins: &refs }).unwrap();
            for kernel in fitting(forward.row().kernels, &forward, &ins) {
                let made = (kernel.launch)(&forward, &Launch { ins: &ins }).unwrap();
                let sizes = (b, h, m, n, d, bias_rows, mask);
                let case = format!("{} on {device:?} {kind:?} {sizes:?} {score:?}", kernel.id);
                for (a, b) in made.iter().zip(&plain) {
                    assert_eq!(a.kind(), b.kind(), "{case}");
                    assert!(distance(a, b) < tolerance, "{case}: off by {}", distance(a, b));
                }
                let second = saved(&made[0], &made[1]);
                let refs: Vec<&Tensor> = second.iter().collect();
                for reverse in fitting(backward.row().kernels, &backward, &refs) {
                    let grads = (reverse.launch)(&backward, &Launch { ins: &refs }).unwrap();
                    assert_eq!(grads.len(), expected.len());
                    for (i, (a, b)) in grads.iter().zip(&expected).enumerate() {
                        let off = distance(a, b);
                        assert!(off < 3.0 * tolerance, "{case}, back by {}: gradient {i} off by {off}", reverse.id);
                    }
                    pairs += 1;
                }
            }
        }
    }
    assert!(pairs >= 10, "{pairs} pairs of kernels were compared");
}

#[test]
fn what_a_kernel_does_not_know_it_refuses() {
    let tokens = || Tensor::randn([1, 2, 8, 8], (Kind::Float, Device::Cpu));
    let q = tokens();
    let lse = Tensor::zeros([1, 2, 8], (Kind::Float, Device::Cpu));
    let [k, v, g, out] = [(); 4].map(|()| tokens());
    let capped = Score { cap: Some(30.0.into()), alibi: false };
    let alibi = Score { cap: None, alibi: true };
    let fit = |mask, score| {
        let op = Op::Sdpa(op::Sdpa { mask, bias: false, score });
        let back = Op::SdpaBackward(op::SdpaBackward { mask, bias: false, dbias: false, score });
        let forward = fitting(op.row().kernels, &op, &[&q, &k, &v]).len();
        (forward, fitting(back.row().kernels, &back, &[&g, &q, &k, &v, &out, &lse]).len())
    };
    let (forward, backward) = fit(Structural::Causal, Score::PLAIN);
    assert!(forward > 0 && backward > 0, "{forward} and {backward} kernels on the CPU");
    for (mask, score) in [(Structural::Causal, capped), (Structural::None, alibi), (DILATED, Score::PLAIN)] {
        assert_eq!(fit(mask, score), (0, 0), "{mask:?} {score:?}");
    }
}

#[test]
fn numbers_that_mean_nothing_are_refused() {
    let meta = |tokens: i64| Meta::of(&Tensor::zeros([1, 2, tokens, 8], (Kind::Float, Device::Cpu)));
    let shape = |mask, score, keys| {
        let op = Op::Sdpa(op::Sdpa { mask, bias: false, score });
        (op.row().shape)(&op, &[&meta(8), &meta(keys), &meta(keys)]).map(|_| ()).map_err(|error| error.to_string())
    };
    let cap = |cap: f64| Score { cap: Some(cap.into()), alibi: false };
    let dilated = |window, dilation| Structural::Dilated { window, dilation, causal: false };
    assert_eq!(shape(dilated(0, 1), cap(50.0), 8), Ok(()));
    for (mask, score, keys, says) in [
        (Structural::Window(-1), Score::PLAIN, 8, "window is -1"),
        (dilated(-2, 1), Score::PLAIN, 8, "window is -2"),
        (dilated(4, 0), Score::PLAIN, 8, "dilation is 0"),
        (dilated(4, 2), Score::PLAIN, 9, "structural mask"),
        (Structural::None, cap(0.0), 8, "cap is 0"),
        (Structural::None, cap(-3.0), 8, "cap is -3"),
        (Structural::None, cap(f64::NAN), 8, "cap is NaN"),
        (Structural::None, cap(1e-60), 8, "cap is"),
        (Structural::None, Score { cap: None, alibi: true }, 9, "bias by distance"),
    ] {
        let refused = shape(mask, score, keys).unwrap_err();
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn a_window_wider_than_all_tokens_hides_nothing() {
    let tokens = || Tensor::randn([1, 2, 9, 4], (Kind::Double, Device::Cpu));
    let ins = [tokens(), tokens(), tokens()];
    let run = |mask| {
        let op = Op::Sdpa(op::Sdpa { mask, bias: false, score: Score::PLAIN });
        (op.row().launch)(&op, &Launch { ins: &[&ins[0], &ins[1], &ins[2]] }).unwrap().swap_remove(0)
    };
    let wide = |causal| Structural::Dilated { window: i64::MAX, dilation: 1, causal };
    assert_eq!(run(Structural::None), run(Structural::Window(i64::MAX)));
    assert_eq!(run(Structural::None), run(wide(false)));
    assert_eq!(run(Structural::Causal), run(wide(true)));
}

#[test]
fn slopes_are_those_of_the_paper() {
    let of = |heads: i64| (0..heads).map(|head| Score::slope(head, heads)).collect::<Vec<_>>();
    assert_eq!(of(8), (1..=8).map(|i| 0.5f64.powi(i)).collect::<Vec<_>>());
    assert_eq!(of(1), [2f64.powi(-8)]);
    // Two as with two heads, then the first of four.
    assert_eq!(of(3), [2f64.powi(-4), 2f64.powi(-8), 2f64.powi(-2)]);
    assert!(of(112).iter().all(|slope| *slope > 0.0 && *slope < 1.0));
}
