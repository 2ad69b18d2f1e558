//! Kernels called directly: cross entropy, attention, and norms with a residual branch.

use crate::cuda::operands::{KINDS, LAYOUTS, Layout, between, device, lay, near, normal, same};
use crate::draws::uniform;
use enn_worker::backend::cuda::attention::{AttentionInputs, AttentionMask, attention, attention_backward};
use enn_worker::backend::cuda::cross_entropy::{CrossEntropyBackward, cross_entropy, cross_entropy_backward};
use enn_worker::backend::cuda::norm::{Norm, NormBackward, norm, norm_backward};
use enn_worker::op::attr::Score;
use tch::{Device, Kind, Tensor};

const IGNORED: i64 = -100;

#[test]
fn cross_entropy_of_few_and_many_classes() {
    let Some(device) = device() else { return };
    for kind in KINDS {
        for (rows, classes) in [(5, 7), (3, 64), (6, 1003), (9, 2048), (3, 50_257), (2, 200_000), (3, 1), (0, 5)] {
            let logits = normal(&[rows, classes], kind) * 3.0;
            let targets = (uniform(&[rows]) * classes).to_kind(Kind::Int64);
            if rows > 0 {
                let _ = targets.get(rows - 1).fill_(IGNORED);
            }
            let g = normal(&[rows], Kind::Float);
            let wide = logits.to_kind(Kind::Double);
            let ignored = targets.eq(IGNORED);
            let safe = targets.clamp_min(0);
            let lse = wide.logsumexp(1i64, false);
            let hit = wide.gather(1, &safe.unsqueeze(1), false).squeeze_dim(1);
            let loss = (&lse - hit).masked_fill(&ignored, 0.0);
            let one = wide.zeros_like().scatter_value(1, &safe.unsqueeze(1), 1.0);
            let dlogits = ((&wide - lse.unsqueeze(1)).exp() - one) * g.to_kind(Kind::Double).unsqueeze(1);
            let dlogits = dlogits.masked_fill(&ignored.unsqueeze(1), 0.0);
            for layout in LAYOUTS {
                let x = lay(&logits, layout, device);
                let t = targets.to_device(device);
                let [found, found_lse] = cross_entropy(&x, &t, IGNORED).unwrap();
                near("loss", &found, &loss, Kind::Float);
                near("lse", &found_lse, &lse, Kind::Float);
                same("repeat", &found, &cross_entropy(&x, &t, IGNORED).unwrap()[0]);
                let g = g.to_device(device);
                let in_place = layout != Layout::Strided;
                let back = CrossEntropyBackward {
                    g: &g,
                    logits: &x,
                    targets: &t,
                    lse: &found_lse,
                    ignored: IGNORED,
                    in_place,
                };
                near("dlogits", &cross_entropy_backward(&back).unwrap(), &dlogits, kind);
            }
        }
    }
}

#[test]
fn a_target_outside_the_classes_shows() {
    let Some(device) = device() else { return };
    let x = normal(&[3, 5], Kind::Float).to_device(device);
    let targets = Tensor::from_slice(&[5i64, -1, 2]).to_device(device);
    let [loss, _] = cross_entropy(&x, &targets, IGNORED).unwrap();
    let shows: Vec<bool> = (0..3).map(|i| loss.double_value(&[i]).is_nan()).collect();
    assert_eq!(shows, [true, true, false]);
}

struct Case {
    sizes: [i64; 5],
    mask: AttentionMask,
    bias_axes: usize,
    cap: Option<f64>,
    alibi: bool,
}

fn cases() -> [Case; 13] {
    let case = |sizes, mask, bias_axes| Case { sizes, mask, bias_axes, cap: None, alibi: false };
    let scored = |sizes, mask, bias_axes, cap, alibi| Case { sizes, mask, bias_axes, cap, alibi };
    let causal = AttentionMask { causal: true, ..AttentionMask::NONE };
    let window = AttentionMask { window: Some(9), ..AttentionMask::NONE };
    let dilated = AttentionMask { causal: true, window: Some(20), dilation: 3 };
    [
        case([1, 2, 5, 7, 64], AttentionMask::NONE, 0),
        case([2, 1, 70, 33, 64], AttentionMask::NONE, 1),
        case([2, 2, 3, 130, 20], AttentionMask::NONE, 2),
        case([1, 3, 300, 300, 64], causal, 2),
        case([1, 2, 150, 150, 64], window, 1),
        case([1, 1, 140, 140, 20], dilated, 0),
        case([1, 1, 65, 65, 128], causal, 1),
        scored([2, 1, 70, 33, 64], AttentionMask::NONE, 1, Some(0.7), false),
        scored([2, 2, 130, 130, 20], causal, 2, Some(50.0), false),
        scored([1, 8, 300, 300, 64], causal, 0, None, true),
        scored([2, 3, 150, 150, 64], AttentionMask::NONE, 2, None, true),
        scored([1, 6, 140, 140, 20], dilated, 1, Some(0.9), true),
        scored([1, 1, 65, 65, 128], window, 1, Some(1.3), true),
    ]
}

/// Scores in f64 on the CPU.
fn scores(q: &Tensor, k: &Tensor, bias: Option<&Tensor>, case: &Case, scale: f64) -> Tensor {
    let heads = q.size()[1];
    let n = q.size()[2];
    let m = k.size()[2];
    let mask = case.mask;
    let mut scores = q.matmul(&k.transpose(-2, -1)) * scale;
    if let Some(cap) = case.cap {
        scores = (scores / cap).tanh() * cap;
    }
    if let Some(bias) = bias {
        scores += if bias.dim() == 2 { bias.unsqueeze(1).unsqueeze(1) } else { bias.shallow_clone() };
    }
    let long = (Kind::Int64, Device::Cpu);
    let distance = Tensor::arange(n, long).unsqueeze(1) - Tensor::arange(m, long);
    if case.alibi {
        let slopes: Vec<f64> = (0..heads).map(|head| Score::slope(head, heads)).collect();
        scores -= Tensor::from_slice(&slopes).view([-1, 1, 1]) * distance.abs();
    }
    let mut hidden = distance.remainder(mask.dilation).not_equal(0);
    if mask.causal {
        hidden = hidden.logical_or(&distance.lt(0));
    }
    if let Some(window) = mask.window {
        hidden = hidden.logical_or(&distance.abs().gt(window));
    }
    scores.masked_fill(&hidden, f64::NEG_INFINITY)
}

#[test]
fn attention_in_every_mask() {
    let Some(device) = device() else { return };
    for kind in KINDS {
        for case in cases() {
            attention_case(&case, kind, device);
        }
    }
}

fn attention_case(case: &Case, kind: Kind, device: Device) {
    let [b, h, n, m, d] = case.sizes;
    let scale = 1.0 / (d as f64).sqrt();
    let [q, k, v, g] = [n, m, m, n].map(|rows| normal(&[b, h, rows, d], kind));
    let bias = match case.bias_axes {
        0 => None,
        1 => Some(normal(&[m], kind)),
        _ => Some(normal(&[b, m], kind)),
    };
    let leaf = |x: &Tensor| x.to_kind(Kind::Double).set_requires_grad(true);
    let qw = leaf(&q);
    let kw = leaf(&k);
    let vw = leaf(&v);
    let bw = bias.as_ref().map(leaf);
    let wide = scores(&qw, &kw, bw.as_ref(), case, scale);
    let expected = wide.softmax(-1, Kind::Double).matmul(&vw);
    (&expected * g.to_kind(Kind::Double)).sum(Kind::Double).backward();
    for layout in LAYOUTS {
        let cap = case.cap;
        let alibi = case.alibi;
        let what = format!("attention {:?} {:?} {cap:?} {alibi} {layout:?}", case.sizes, case.mask);
        // Tokens outside heads in memory, as a projection leaves them.
        let put = |x: &Tensor| lay(&x.transpose(1, 2).contiguous(), layout, device).transpose(1, 2);
        let [q, k, v, g] = [&q, &k, &v, &g].map(put);
        let bias = bias.as_ref().map(|x| lay(x, layout, device));
        let a = AttentionInputs { q: &q, k: &k, v: &v, bias: bias.as_ref(), mask: case.mask, scale, cap, alibi };
        let (out, lse) = attention(&a).unwrap();
        near(&what, &out, &expected.detach(), kind);
        near(&what, &lse, &wide.logsumexp(-1i64, false).detach(), kind);
        same(&what, &out, &attention(&a).unwrap().0);
        let grads = attention_backward(&a, &g, &out, &lse, true).unwrap();
        let again = attention_backward(&a, &g, &out, &lse, true).unwrap();
        for (found, again, leaf) in
            [(&grads.dq, &again.dq, &qw), (&grads.dk, &again.dk, &kw), (&grads.dv, &again.dv, &vw)]
        {
            near(&what, found, &leaf.grad(), kind);
            same(&what, found, again);
        }
        if let (Some(found), Some(leaf)) = (grads.dbias, bw.as_ref()) {
            near(&what, &found, &leaf.grad(), kind);
        }
    }
}

#[test]
fn norms_take_a_residual_along() {
    let Some(device) = device() else { return };
    for kind in KINDS {
        let [x, r, g, gs] = [0; 4].map(|_| normal(&[9, 96], kind));
        let w = between(&[96], 0.5, 1.5, kind);
        let [x, r, g, gs, w] = [&x, &r, &g, &gs, &w].map(|t| t.to_device(device));
        let with =
            Norm { x: &x, residual: Some(&r), weight: Some(&w), bias: None, centred: false, eps: 1e-6, low: None };
        let sum = &x + &r;
        let joined = norm(&with).unwrap();
        let apart = norm(&Norm { x: &sum, residual: None, ..with }).unwrap();
        same("sum", joined.sum.as_ref().unwrap(), &sum);
        same("norm of the sum", &joined.y, &apart.y);
        let back = NormBackward {
            g: &g,
            gsum: Some(&gs),
            x: &sum,
            mean: None,
            rstd: &joined.rstd,
            weight: Some(&w),
            bias: false,
            low: None,
        };
        let joined = norm_backward(&back).unwrap();
        let apart = norm_backward(&NormBackward { gsum: None, ..back }).unwrap();
        near("dx", &joined.dx, &(apart.dx + gs).to_device(Device::Cpu), kind);
        same("dw", &joined.dw.unwrap(), &apart.dw.unwrap());
    }
}
