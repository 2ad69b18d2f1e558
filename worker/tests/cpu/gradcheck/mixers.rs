//! The mixers that are made of several operations against their definitions over all pairs of tokens, in value and gradient.

use crate::gradcheck::operands::distance;
use enn_common::config::{forest::Mixer, model::Norm};
use enn_worker::autograd::Cx;
use enn_worker::functional::{self as f, Dir};
use enn_worker::layer::{Mixing, Pattern, TokenMixer, Width};
use enn_worker::params::{GradBuckets, ParamBuilder, Params};
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};

const WIDTH: i64 = 12;
const HEADS: i64 = 3;
const DH: i64 = WIDTH / HEADS;
/// Segments of 4, 12 and 24 tokens; no head count is a multiple of both dilations.
const PATTERNS: [(i64, i64); 3] = [(4, 1), (12, 2), (24, 3)];
const DIRECTIONS: [Dir; 2] = [Dir::Causal, Dir::Bidirectional];

fn layer(mixer: Mixer, direction: Dir) -> (TokenMixer, Params) {
    let patterns = PATTERNS.map(|(segment, dilation)| Pattern { segment, dilation }).to_vec();
    let width = Width { model: WIDTH, heads: HEADS, hidden: 8, norm: Norm::LayerNorm };
    let mut pb = ParamBuilder::new();
    let layer = Mixing { mixer, direction, patterns }.layer(&mut pb, width);
    (layer, pb.build_kind(3, Device::Cpu, Kind::Double).unwrap())
}

type Weights = BTreeMap<String, Tensor>;

fn linear(x: &Tensor, weights: &Weights, name: &str) -> Tensor {
    let y = x.matmul(&weights[&format!("{name}.weight")].transpose(0, 1));
    match weights.get(&format!("{name}.bias")) {
        Some(bias) => y + bias,
        None => y,
    }
}

/// (B,N,H·W) → (B,H,N,W).
fn heads(x: &Tensor, width: i64) -> Tensor {
    x.reshape([x.size()[0], x.size()[1], HEADS, width]).transpose(1, 2)
}

/// (N,N) of t − j.
fn gaps(n: i64) -> Tensor {
    let at = Tensor::arange(n, (Kind::Double, Device::Cpu));
    at.unsqueeze(1) - at.unsqueeze(0)
}

/// y_t = Σ_j λ^|t−j| (q_t·k_j)/√Dh v_j, normalised, gated and mapped.
fn retention(x: &Tensor, weights: &Weights, direction: Dir) -> Tensor {
    let b = x.size()[0];
    let n = x.size()[1];
    let all = linear(x, weights, "true_retention.qkvg").split(WIDTH, 2);
    let q = heads(&all[0], DH);
    let k = heads(&all[1], DH);
    let v = heads(&all[2], DH);
    let lambda: Tensor = 1.0 - (-weights["true_retention.beta"].clamp(1.0, 16.0) * 2f64.ln()).exp();
    let gaps = gaps(n);
    let decay = (lambda.log().view([-1, 1, 1]) * gaps.abs()).exp();
    let decay = if direction == Dir::Causal { decay * gaps.ge(0.0).to_kind(Kind::Double) } else { decay };
    let y = (q.matmul(&k.transpose(-2, -1)) / (DH as f64).sqrt() * decay).matmul(&v);
    let y = y.transpose(1, 2).reshape([b, n, WIDTH]);
    let w = &weights["true_retention.norm.weight"];
    let bias = &weights["true_retention.norm.bias"];
    let y = y.layer_norm([WIDTH], Some(w), Some(bias), 1e-5, false);
    linear(&(y * all[3].silu()), weights, "true_retention.out")
}

/// Softmax over all keys, each counted as often as patterns hold both it and the query.
fn dilated(x: &Tensor, weights: &Weights, direction: Dir) -> Tensor {
    let b = x.size()[0];
    let n = x.size()[1];
    let all = heads(&linear(x, weights, "dilated.qkv"), 3 * DH).split(DH, 3);
    let held = |h: i64, i: i64, j: i64| {
        let both = |&(w, r): &(i64, i64)| i / w == j / w && i % r == h % r && j % r == h % r;
        let count = PATTERNS.iter().filter(|pattern| both(pattern)).count();
        if direction == Dir::Causal && j > i { f64::NEG_INFINITY } else { (count as f64).ln() }
    };
    let cells = (0..HEADS * n * n).map(|at| held(at / (n * n), at / n % n, at % n)).collect::<Vec<_>>();
    let counts = Tensor::from_slice(&cells).view([HEADS, n, n]);
    let scores = all[0].matmul(&all[1].transpose(-2, -1)) / (DH as f64).sqrt() + counts;
    let y = scores.softmax(-1, None).matmul(&all[2]);
    linear(&y.transpose(1, 2).reshape([b, n, WIDTH]), weights, "dilated.out")
}

/// Value, and gradient of x, of Σ y · pull; the parameters' go to `grads`.
fn ours(layer: &TokenMixer, params: &Params, grads: &GradBuckets, [x, pull]: [&Tensor; 2]) -> (Tensor, Tensor) {
    let cx = Cx::train(params, 1, 0);
    let input = cx.variable(x.shallow_clone());
    let (y, _) = layer.forward(&cx, &input, None).unwrap();
    let loss = f::sum_all(&cx, &f::mul(&cx, &y, &cx.constant(pull.shallow_clone())).unwrap()).unwrap();
    let mut slopes = cx.backward_to(&loss, grads, &mut |_, _| Ok(()), &[&input]).unwrap();
    (y.raw().shallow_clone(), slopes.remove(0).unwrap())
}

/// Value and gradients of x and every parameter, by ours and by the definition.
fn compare(mixer: Mixer, direction: Dir, n: i64, scale: f64) {
    tch::manual_seed(n);
    let (layer, params) = layer(mixer, direction);
    let x = Tensor::randn([2, n, WIDTH], (Kind::Double, Device::Cpu)) * scale;
    let pull = x.randn_like();

    let grads = GradBuckets::new(&params).unwrap();
    let (value, slope) = ours(&layer, &params, &grads, [&x, &pull]);
    let leaf = |t: &Tensor| t.detach().copy().set_requires_grad(true);
    let weights: Weights = params.named().map(|(name, t)| (name.to_owned(), leaf(t))).collect();
    let x = leaf(&x);
    let expected = match mixer {
        Mixer::Retention => retention(&x, &weights, direction),
        _ => dilated(&x, &weights, direction),
    };
    let place = format!("{mixer:?} {direction:?} n = {n}");
    assert!(distance(&value, &expected) < 1e-11, "{place}: off by {}", distance(&value, &expected));
    let leaves: Vec<&Tensor> = std::iter::once(&x).chain(params.iter().map(|(_, name, _)| &weights[name])).collect();
    let theirs = Tensor::run_backward(&[(expected * pull).sum(None)], &leaves, false, false);
    let off = distance(&slope, &theirs[0]);
    assert!(off < 1e-10, "{place}: gradient of x off by {off}");
    for ((id, name, _), theirs) in params.iter().zip(&theirs[1..]) {
        let off = distance(grads.view(id), theirs);
        assert!(off < 1e-9, "{place}: gradient of {name} off by {off}");
    }
}

#[test]
fn retention_equals_its_definition_in_value_and_gradient() {
    for direction in DIRECTIONS {
        for n in [1, 5, 63, 64, 65, 128, 200] {
            compare(Mixer::Retention, direction, n, 1.0);
        }
    }
}

#[test]
fn dilated_attention_equals_its_definition_in_value_and_gradient() {
    for direction in DIRECTIONS {
        for n in [1, 2, 4, 7, 12, 23, 24, 25, 61] {
            compare(Mixer::Dilated, direction, n, 1.0);
            // Scores of hundreds: what is taken off before exponents has to be right.
            compare(Mixer::Dilated, direction, n, 40.0);
        }
    }
}

/// Rows on both sides of chunk borders, against Σ_j λ^|t−j| (q_t·k_j) v_j in f64.
#[test]
fn retention_stays_exact_at_length() {
    let (layer, params) = {
        let width = Width { model: 2, heads: 1, hidden: 2, norm: Norm::RmsNorm };
        let mut pb = ParamBuilder::new();
        let mixing = Mixing { mixer: Mixer::Retention, direction: Dir::Causal, patterns: Vec::new() };
        (mixing.layer(&mut pb, width), pb.build(1, Device::Cpu).unwrap())
    };
    tch::manual_seed(4);
    let n = 16_384;
    let x = Tensor::randn([1, n, 2], (Kind::Float, Device::Cpu));
    let cx = Cx::eval(&params);
    let (whole, end) = layer.forward(&cx, &cx.input(x.shallow_clone()), None).unwrap();
    let double = |name: &str| params.get(params.by_name(name).unwrap()).to_kind(Kind::Double);
    let wide = x.to_kind(Kind::Double);
    let all = wide.matmul(&double("true_retention.qkvg.weight").transpose(0, 1)).split(2, 2);
    let lambda: Tensor = 1.0 - (-double("true_retention.beta") * 2f64.ln()).exp();
    let rows: Vec<i64> = (0..n).filter(|t| matches!(t % 2048, 0 | 1 | 63 | 64 | 1000 | 2047)).collect();
    let rows = Tensor::from_slice(&rows);
    let gap = rows.to_kind(Kind::Double).unsqueeze(1) - Tensor::arange(n, (Kind::Double, Device::Cpu)).unsqueeze(0);
    let decay = (lambda.log() * gap.clamp_min(0.0)).exp() * gap.ge(0.0).to_kind(Kind::Double);
    let pick = |t: &Tensor| t.select(0, 0).index_select(0, &rows);
    let y =
        (pick(&all[0]).matmul(&all[1].select(0, 0).transpose(0, 1)) / 2f64.sqrt() * decay).matmul(&all[2].select(0, 0));
    let y = &y / (y.square().mean_dim(-1, true, None) + 1e-5).sqrt() * double("true_retention.norm.weight");
    let expected = (y * pick(&all[3]).silu()).matmul(&double("true_retention.out.weight").transpose(0, 1));
    let off = distance(&pick(whole.raw()), &expected);
    assert!(off < 2e-4, "off by {off}");
    // Split at a place that is no chunk's border, the state goes between.
    let (first, state) = layer.forward(&cx, &cx.input(x.narrow(1, 0, 7001)), None).unwrap();
    let (second, last) = layer.forward(&cx, &cx.input(x.narrow(1, 7001, n - 7001)), state.as_ref()).unwrap();
    let joined = Tensor::cat(&[first.raw(), second.raw()], 1);
    assert!(distance(&joined, whole.raw()) < 2e-4);
    assert!(distance(last.unwrap().raw(), end.unwrap().raw()) < 1e-5);
}

/// FLOPs and the largest value of a forward pass.
fn cost(mixer: Mixer, n: i64) -> (u64, i64) {
    let (layer, params) = layer(mixer, Dir::Bidirectional);
    let cx = Cx::eval(&params);
    layer.forward(&cx, &cx.input(Tensor::randn([1, n, WIDTH], (Kind::Double, Device::Cpu))), None).unwrap();
    cx.with_program(|program| {
        let outs = program.recs().iter().flat_map(|rec| rec.outs());
        (program.flops(), outs.map(|val| program.val(val).meta.numel()).max().unwrap_or(0))
    })
}

#[test]
fn cost_and_memory_grow_with_the_tokens_and_not_with_their_square() {
    for mixer in [Mixer::Retention, Mixer::Dilated] {
        let (flops, largest) = cost(mixer, 3072);
        let (more, larger) = cost(mixer, 6144);
        assert!(more < 2 * flops + 1000, "{mixer:?}: {flops} and {more} FLOPs");
        assert!(larger <= 2 * largest && larger < 6144 * 6144 / 8, "{mixer:?}: {largest} and {larger} numbers");
    }
}
