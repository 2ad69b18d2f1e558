//! What each operation means, in libtorch's differentiable functions, written without looking at the launches.

use enn_worker::op::attr::{Dir, Score, Structural};
use enn_worker::op::{self, Binary, Op, Test, Unary};
use tch::{Device, Kind, Reduction, Tensor};

/// A layer norm or an RMS norm, with what there is of weight and bias.
fn norm(x: &Tensor, layer: bool, affine: &[Tensor], eps: f64) -> Tensor {
    if layer {
        let width = x.size().pop().unwrap();
        return x.layer_norm(width, affine.first(), affine.get(1), eps, false);
    }
    let normed = x / (x.square().mean_dim(-1, true, None) + eps).sqrt();
    affine.iter().fold(normed, |normed, weight| normed * weight)
}

/// Results of `op` that a gradient can flow into; `None` for an operation that is not defined here.
pub(crate) fn oracle(op: &Op, x: &[Tensor], seed: u64, step: u64) -> Option<Vec<Tensor>> {
    let one = |t: Tensor| vec![t];
    Some(match op {
        Op::Unary(u) => one(unary(*u, &x[0])),
        Op::Binary(b) => one(binary(*b, &x[0], &x[1])),
        Op::Scale(op::Scale { by }) => one(&x[0] * by.get()),
        Op::AddScalar(op::AddScalar { by }) => one(&x[0] + by.get()),
        Op::Clamp(op::Clamp { lo, hi }) => one(x[0].clamp(lo.get(), hi.get())),
        Op::RetentionDecay(op::RetentionDecay { lo, hi }) => one(1.0 - (-x[0].clamp(lo.get(), hi.get())).exp2()),
        Op::Cast(op::Cast { to }) => one(x[0].to_kind(*to)),
        Op::SiluMul(_) => one(&x[0] * x[0].sigmoid() * &x[1]),
        Op::SwiGlu(_) => {
            let halves = x[0].chunk(2, -1);
            one(halves[0].silu() * &halves[1])
        }
        Op::Sum(op::Sum { axes, keepdim }) => one(x[0].sum_dim_intlist(axes.as_slice(), *keepdim, None)),
        Op::Mean(op::Mean { axes, keepdim }) => one(x[0].mean_dim(axes.as_slice(), *keepdim, None)),
        Op::SumTo(op::SumTo { shape }) => one(x[0].sum_to_size(shape.as_slice())),
        Op::MaxDim(op::MaxDim { axis, keepdim }) => one(x[0].amax(*axis, *keepdim)),
        Op::MatMul(op::MatMul { ta, tb }) => {
            let t = |x: &Tensor, yes: bool| if yes { x.transpose(-2, -1) } else { x.shallow_clone() };
            one(t(&x[0], *ta).matmul(&t(&x[1], *tb)))
        }
        Op::Linear(op::Linear { bias }) => {
            let y = x[0].matmul(&x[1].transpose(0, 1));
            one(if *bias { y + &x[2] } else { y })
        }
        Op::LayerNorm(op::LayerNorm { affine, eps }) => {
            one(norm(&x[0], true, if *affine { &x[1..] } else { &[] }, eps.get()))
        }
        Op::RmsNorm(op::RmsNorm { affine, eps }) => {
            one(norm(&x[0], false, if *affine { &x[1..] } else { &[] }, eps.get()))
        }
        Op::GatedNorm(op::GatedNorm { layer, eps, .. }) => {
            one(x[2].sigmoid() * &x[2] * norm(&(&x[0] * &x[1]), *layer, &x[3..], eps.get()))
        }
        Op::AddNorm(op::AddNorm { layer, eps, .. }) => {
            let sum = &x[0] + &x[1];
            let normed = norm(&sum, *layer, &x[2..], eps.get());
            vec![sum, normed]
        }
        Op::Softmax(op::Softmax { axis }) => one(x[0].softmax(*axis, None)),
        Op::LogSoftmax(op::LogSoftmax { axis }) => one(x[0].log_softmax(*axis, None)),
        Op::Dropout(op::Dropout { p, site }) => {
            let keep = keep_mask(seed, step, *site, x[0].numel(), p.get()).view(x[0].size().as_slice());
            one(&x[0] * keep.to_kind(x[0].kind()) / (1.0 - p.get()))
        }
        Op::DropPath(op::DropPath { p, site }) => {
            let rows = x[0].size().first().copied().unwrap_or(1);
            let shape: Vec<i64> = (0..x[0].dim()).map(|axis| if axis == 0 { rows } else { 1 }).collect();
            let keep = keep_mask(seed, step, *site, rows as usize, p.get()).view(shape.as_slice());
            one(&x[0] * keep.to_kind(x[0].kind()) / (1.0 - p.get()))
        }
        Op::Retention(op::Retention { dir, state }) => retention(*dir, x, *state),
        Op::Sdpa(op::Sdpa { mask, bias, score }) => one(attention(*mask, *bias, *score, x)),
        Op::MaskedHuber(op::MaskedHuber { delta }) => {
            let d = &x[0] - &x[1];
            let cells = d.huber_loss(&d.zeros_like(), Reduction::None, delta.get());
            one((cells * x[2].to_kind(x[0].kind())).sum(None))
        }
        Op::MaskedMse(_) => one(((&x[0] - &x[1]).square() * x[2].to_kind(x[0].kind())).sum(None)),
        Op::CrossEntropy(op::CrossEntropy { ignore }) => one(cross_entropy(*ignore, &x[0], &x[1])),
        Op::Aten(op::Aten(call)) => one(dispatched(call.name(), x)),
        other => return arranged(other, x),
    })
}

/// Operators that the table has no row for, with the arguments of the samples.
fn dispatched(name: &str, x: &[Tensor]) -> Tensor {
    match name {
        "aten::cumsum" => {
            let width = x[0].size().pop().unwrap();
            x[0].matmul(&Tensor::ones([width, width], (x[0].kind(), Device::Cpu)).triu(0))
        }
        // By windows of three, every second, with a zero at each end.
        "aten::convolution" => {
            let windows = x[0].constant_pad_nd([1, 1]).unfold(-1, 3, 2);
            let rows = windows.permute([0, 2, 1, 3]).flatten(2, 3);
            (rows.matmul(&x[1].flatten(1, 2).transpose(0, 1)) + &x[2]).transpose(1, 2)
        }
        "aten::hstack" => Tensor::cat(x, 1),
        other => panic!("{other} has samples but no oracle"),
    }
}

/// The operations that only move or choose numbers.
fn arranged(op: &Op, x: &[Tensor]) -> Option<Vec<Tensor>> {
    let one = |t: Tensor| vec![t];
    Some(match op {
        Op::Reshape(op::Reshape { shape }) => one(x[0].reshape(shape.as_slice())),
        Op::Permute(op::Permute { axes }) => one(x[0].permute(axes.as_slice())),
        Op::Expand(op::Expand { shape }) => one(x[0].expand(shape.as_slice(), false)),
        Op::Narrow(op::Narrow { axis, start, len }) => one(x[0].narrow(*axis, *start, *len)),
        Op::Cat(op::Cat { axis }) => one(Tensor::cat(x, *axis)),
        Op::Stack(op::Stack { axis }) => one(Tensor::stack(x, *axis)),
        Op::Where(_) => one(x[1].where_self(&x[0], &x[2])),
        Op::Embedding(_) => {
            let shape: Vec<i64> = x[1].size().into_iter().chain([x[0].size()[1]]).collect();
            one(x[0].index_select(0, &x[1].reshape(-1)).reshape(shape))
        }
        Op::IndexSelect(op::IndexSelect { axis }) => {
            // A product with a row for each position taken: zeros and a one.
            let last = x[0].transpose(*axis, -1);
            let places = Tensor::arange(last.size()[last.dim() - 1], (Kind::Int64, Device::Cpu));
            let hot = x[1].unsqueeze(1).eq_tensor(&places).to_kind(last.kind());
            one(last.matmul(&hot.transpose(0, 1)).transpose(*axis, -1))
        }
        Op::Split(op::Split { axis, sizes }) => x[0].split_with_sizes(sizes.as_slice(), *axis),
        Op::Flip(op::Flip { axis }) => one(x[0].flip(*axis)),
        Op::Keep(op::Keep { when }) => {
            let kept = if *when { x[0].shallow_clone() } else { x[0].logical_not() };
            one(&x[1] * kept.to_kind(x[1].kind()))
        }
        Op::Test(Test::Finite) => one(x[0].isinf().logical_or(&x[0].isnan()).logical_not()),
        Op::Test(Test::AtLeast(bound)) => one((&x[0] - bound.get()).lt(0.0).logical_not()),
        Op::Test(Test::Below(bound)) => one((&x[0] - bound.get()).lt(0.0)),
        Op::And(_) => one(x[0].to_kind(Kind::Int).minimum(&x[1].to_kind(Kind::Int)).to_kind(Kind::Bool)),
        Op::Not(_) => one(x[0].to_kind(Kind::Int).eq(0)),
        Op::Zeros(op::Zeros { shape, kind, device }) => one(Tensor::full(shape.as_slice(), 0.0, (*kind, *device))),
        Op::Ones(op::Ones { shape, kind, device }) => one(Tensor::full(shape.as_slice(), 1.0, (*kind, *device))),
        Op::Detach(_) => one(x[0].detach()),
        Op::Dilate(op::Dilate { segment, dilation }) => one(dilated(&x[0], *segment, *dilation)),
        Op::Undilate(op::Undilate { segment, dilation, tokens }) => one(undilated(&x[0], *segment, *dilation, *tokens)),
        _ => return None,
    })
}

/// Position of token `l` that head `h` takes of segment `s`.
fn position(s: i64, h: i64, l: i64, segment: i64, dilation: i64) -> i64 {
    s * segment + l * dilation + h % dilation
}

/// Token by token.
fn dilated(x: &Tensor, segment: i64, dilation: i64) -> Tensor {
    let (b, n, heads, w) = x.size4().unwrap();
    let s = (n + segment - 1) / segment;
    let len = segment / dilation;
    // Begins with nothing of x, so that no tokens have a gradient too.
    let mut cells = vec![x.reshape([-1, b, w]).narrow(0, 0, 0)];
    for (s, h, l) in (0..s).flat_map(|s| (0..heads).flat_map(move |h| (0..len).map(move |l| (s, h, l)))) {
        let at = position(s, h, l, segment, dilation);
        let zero = || Tensor::zeros([1, b, w], (x.kind(), Device::Cpu));
        cells.push(if at < n { x.select(2, h).select(1, at).unsqueeze(0) } else { zero() });
    }
    Tensor::cat(&cells, 0).reshape([s, heads, len, b, w]).permute([3, 0, 1, 2, 4])
}

/// Token by token, each from the one place that holds it.
fn undilated(x: &Tensor, segment: i64, dilation: i64, tokens: i64) -> Tensor {
    let b = x.size()[0];
    let heads = x.size()[2];
    let w = x.size()[4];
    let mut cells = vec![x.reshape([-1, b, w]).narrow(0, 0, 0)];
    for (n, h) in (0..tokens).flat_map(|n| (0..heads).map(move |h| (n, h))) {
        let s = n / segment;
        let l = n % segment / dilation;
        let here = position(s, h, l, segment, dilation) == n;
        let cell = x.select(3, l).select(2, h).select(1, s).unsqueeze(0);
        cells.push(if here { cell } else { cell * 0.0 });
    }
    Tensor::cat(&cells, 0).reshape([tokens, heads, b, w]).permute([2, 0, 1, 3])
}

/// Minus the log-probability of each target, for the rows that count.
fn cross_entropy(ignore: i64, logits: &Tensor, targets: &Tensor) -> Tensor {
    let classes = logits.size()[1];
    let kind = logits.kind();
    let hot = targets.unsqueeze(1).eq_tensor(&Tensor::arange(classes, (Kind::Int64, Device::Cpu)));
    let counts = targets.ne(ignore).to_kind(kind);
    -(logits.log_softmax(1, None) * hot.to_kind(kind) * counts.unsqueeze(1)).sum(None)
}

fn binary(b: Binary, x: &Tensor, y: &Tensor) -> Tensor {
    match b {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
    }
}

fn unary(u: Unary, x: &Tensor) -> Tensor {
    match u {
        Unary::Neg => -x,
        Unary::Exp => x.exp(),
        Unary::Log => x.log(),
        Unary::Sqrt => x.sqrt(),
        Unary::Square => x.pow_tensor_scalar(2),
        Unary::Abs => x.abs(),
        Unary::Reciprocal => x.reciprocal(),
        Unary::Relu => x.relu(),
        Unary::Silu => x * x.sigmoid(),
        Unary::Gelu => x.gelu("none"),
        Unary::GeluTanh => x.gelu("tanh"),
        Unary::Sigmoid => x.sigmoid(),
        Unary::Tanh => x.tanh(),
        Unary::Softplus => x.softplus(),
    }
}

/// The definition: y_t = Σ_{s ≤ t} λ^(t−s) v_s + λ^(t+1) s₀, with the (N,N) matrix written out.
pub(crate) fn retention(dir: Dir, x: &[Tensor], state: bool) -> Vec<Tensor> {
    let n = x[0].size()[1];
    let y = retention_rows(dir, x, state, &Tensor::arange(n, (Kind::Int64, Device::Cpu)));
    match dir {
        Dir::Causal => {
            // What comes out where nothing went by is what came in.
            let last = match (n, state) {
                (0, true) => x[2].shallow_clone(),
                (0, false) => x[0].sum_dim_intlist(1i64, false, None),
                _ => y.narrow(1, n - 1, 1).squeeze_dim(1),
            };
            vec![y, last]
        }
        Dir::Bidirectional => vec![y],
    }
}

/// Some rows of the definition, by position.
pub(crate) fn retention_rows(dir: Dir, x: &[Tensor], state: bool, rows: &Tensor) -> Tensor {
    let v = &x[0];
    let lambda = &x[1];
    let rows = rows.to_kind(v.kind());
    let gap = rows.unsqueeze(1) - Tensor::arange(v.size()[1], (v.kind(), Device::Cpu)).unsqueeze(0);
    let log = lambda.log();
    let mixing = match dir {
        Dir::Causal => (log.view([-1, 1, 1]) * gap.clamp_min(0.0)).exp() * gap.ge(0.0).to_kind(v.kind()),
        Dir::Bidirectional => (log.view([-1, 1, 1]) * gap.abs()).exp(),
    };
    // (H,rows,N) × (B,H,N,D).
    let mut y = mixing.matmul(&v.permute([0, 2, 1, 3]));
    if state {
        let decay = (log.view([-1, 1]) * (rows + 1.0)).exp().unsqueeze(-1);
        y += decay * x[2].unsqueeze(2);
    }
    y.permute([0, 2, 1, 3])
}

/// ALiBi's slopes as its authors give them.
fn slopes(heads: usize) -> Vec<f64> {
    let whole = 1 << heads.ilog2();
    let own = (1..=whole).map(|i| (-8.0 * i as f64 / whole as f64).exp2());
    if whole == heads {
        return own.collect();
    }
    own.chain(slopes(2 * whole).into_iter().step_by(2).take(heads - whole)).collect()
}

fn attention(mask: Structural, bias: bool, score: Score, x: &[Tensor]) -> Tensor {
    let q = &x[0];
    let k = &x[1];
    let v = &x[2];
    let n = q.size()[2];
    let width = q.size()[3];
    let mut scores = q.matmul(&k.transpose(-2, -1)) / (width as f64).sqrt();
    if let Some(cap) = score.cap {
        scores = (scores / cap.get()).tanh() * cap.get();
    }
    if score.alibi {
        let at = Tensor::arange(n, (q.kind(), Device::Cpu));
        let heads = Tensor::from_slice(&slopes(q.size()[1] as usize)).to_kind(q.kind());
        scores -= heads.view([-1, 1, 1]) * (at.unsqueeze(1) - at).abs();
    }
    if bias {
        let keys = k.size()[2];
        scores += x[3].reshape([-1, 1, 1, keys]);
    }
    let seen = |i: i64, j: i64| match mask {
        Structural::None => true,
        Structural::Causal => j <= i,
        Structural::Window(w) => (i - j).abs() <= w,
        Structural::Dilated { window, dilation, causal } => {
            (-window..=if causal { 0 } else { window }).contains(&(j - i)) && (j - i) % dilation == 0
        }
    };
    if mask != Structural::None {
        let hidden: Vec<f64> = (0..n)
            .flat_map(|i| (0..n).map(move |j| (i, j)))
            .map(|(i, j)| if seen(i, j) { 0.0 } else { -1e30 })
            .collect();
        scores += Tensor::from_slice(&hidden).view([n, n]).to_kind(q.kind());
    }
    scores.softmax(-1, None).matmul(v)
}

/// One block of Philox-4x32-10 in plain integers.
pub(crate) fn philox(mut c: [u32; 4], mut k: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(c[0]) * 0xD251_1F53;
        let b = u64::from(c[2]) * 0xCD9E_8D57;
        c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

/// Which elements dropout keeps.
pub(crate) fn keep_mask(seed: u64, step: u64, site: u32, elements: usize, p: f64) -> Tensor {
    let below = ((1.0 - p) * 4294967296.0) as u64;
    let key = [seed as u32, (seed >> 32) as u32 ^ (step >> 32) as u32];
    let keep: Vec<bool> = (0..elements as u64)
        .map(|e| {
            let block = e / 4;
            let words = philox([block as u32, (block >> 32) as u32, site, step as u32], key);
            u64::from(words[(e % 4) as usize]) < below
        })
        .collect();
    Tensor::from_slice(&keep).to_kind(Kind::Bool)
}

#[test]
fn philox_matches_the_published_vectors() {
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
}
