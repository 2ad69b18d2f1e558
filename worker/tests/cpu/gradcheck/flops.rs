//! What every operation of the table costs, against the arithmetic of its formula, written out step by step without looking at the rows.

use crate::gradcheck::calls::{calls, dispatched, must_be_defined};
use crate::gradcheck::operands::tensor;
use crate::gradcheck::ours::{Checked, Seen, ours};
use enn_worker::kernel::{FirstFit, Launcher};
use enn_worker::op::attr::{Dir, GradDest};
use enn_worker::op::row::Launch;
use enn_worker::op::sample::{Sample, SampleRng};
use enn_worker::op::value::Meta;
use enn_worker::op::{self, Binary, Op, Unary, rows};
use std::collections::BTreeSet;
use tch::{Kind, Tensor};

/// What an operation does to each element, one word a step, and whose elements these are.
enum Steps {
    /// Of each operand of a list.
    All(&'static str),
    /// Of the first operand.
    In(String),
    /// Of the first result.
    Out(&'static str),
}

/// x / (1 + e⁻ˣ) · b
const SILU_MUL: &str = "neg exp + ÷ ·";
/// σ = 1/(1 + e⁻ˣ), xσ, g·xσ, g·b, and that · (σ + xσ(1 − σ))
const SILU_MUL_BACKWARD: &str = "neg exp + ÷ · · · − · + ·";

fn unary(unary: Unary) -> &'static str {
    match unary {
        Unary::Neg => "neg",
        Unary::Exp => "exp",
        Unary::Log => "log",
        Unary::Sqrt => "sqrt",
        Unary::Square => "·",
        Unary::Abs => "abs",
        Unary::Reciprocal => "÷",
        Unary::Relu => "max",
        Unary::Silu => "neg exp + ÷",
        Unary::Gelu => "· erf + · ·",
        // k(x + cx³), then ½x(1 + tanh)
        Unary::GeluTanh => "· · · + · tanh + · ·",
        Unary::Sigmoid => "neg exp + ÷",
        Unary::Tanh => "tanh",
        Unary::Softplus => "exp + log",
    }
}

fn unary_backward(unary: Unary) -> &'static str {
    match unary {
        Unary::Neg => "neg",
        Unary::Exp => "·",
        Unary::Log => "÷",
        Unary::Sqrt => "÷ ·",
        Unary::Square => "· ·",
        Unary::Abs => "sign ·",
        Unary::Reciprocal => "· · neg",
        Unary::Relu => "> choose",
        // σ, then gσ(1 + x(1 − σ))
        Unary::Silu => "neg exp + ÷ − · + · ·",
        // g(Φ + xφ)
        Unary::Gelu => "· erf + ·  · · exp ·  · + ·",
        // u = k(x + cx³) and tanh, ½(1 + t), u' = k(1 + 3cx²), + ½x(1 − t²)u', g
        Unary::GeluTanh => "· · · + · tanh  + ·  · + ·  · − · · ·  + ·",
        Unary::Sigmoid | Unary::Tanh => "· − ·",
        Unary::Softplus => "neg exp + ÷ ·",
    }
}

/// The norm over rows, and its reverse.
fn norm(layer: bool, affine: bool) -> [&'static str; 2] {
    match (layer, affine) {
        // Mean, variance, (x − μ)/σ, weight and bias.
        (true, true) => ["+  − ² +  − ·  · +", "− ·  ·  +  · +  · − − ·  · +  +"],
        (true, false) => ["+  − ² +  − ·", "− ·  +  · +  · − − ·"],
        (false, true) => ["² +  ·  ·", "·  ·  · +  · − ·  · +"],
        (false, false) => ["² +  ·", "·  · +  · − ·"],
    }
}

/// Norms within other operations.
fn norms(op: &Op) -> Option<Steps> {
    let joined = |parts: &[&str]| Some(Steps::In(parts.join(" ")));
    match *op {
        Op::LayerNorm(op::LayerNorm { affine, .. }) => joined(&[norm(true, affine)[0]]),
        Op::LayerNormBackward(op::LayerNormBackward { affine }) => joined(&[norm(true, affine)[1]]),
        Op::RmsNorm(op::RmsNorm { affine, .. }) => joined(&[norm(false, affine)[0]]),
        Op::RmsNormBackward(op::RmsNormBackward { affine }) => joined(&[norm(false, affine)[1]]),
        Op::AddNorm(op::AddNorm { layer, .. }) => joined(&["+", norm(layer, true)[0]]),
        Op::AddNormBackward(op::AddNormBackward { layer, gsum, .. }) => {
            joined(&[norm(layer, true)[1], if gsum { "+" } else { "" }])
        }
        Op::GatedNorm(op::GatedNorm { layer, .. }) => joined(&["·", norm(layer, true)[0], SILU_MUL]),
        Op::GatedNormBackward(op::GatedNormBackward { layer, .. }) => {
            let again = if layer { "− · · +" } else { "· ·" };
            joined(&["·", again, SILU_MUL_BACKWARD, norm(layer, true)[1], "· ·"])
        }
        _ => None,
    }
}

fn elementwise(op: &Op) -> Option<Steps> {
    Some(Steps::Out(match op {
        Op::Unary(function) => unary(*function),
        Op::UnaryBackward(op::UnaryBackward(function)) => unary_backward(*function),
        Op::Binary(Binary::Add) => "+",
        Op::Binary(Binary::Sub) => "−",
        Op::Binary(Binary::Mul) | Op::Scale(_) => "·",
        Op::Binary(Binary::Div) => "÷",
        Op::AddScalar(_) => "+",
        Op::Clamp(_) => "max min",
        Op::ClampBackward(_) => "≥ ≤ and choose",
        Op::RetentionDecay(_) => "max min · exp −",
        Op::RetentionDecayBackward(_) => "max min · exp · ·  ≥ ≤ and choose",
        Op::SiluMul(_) | Op::SwiGlu(_) => SILU_MUL,
        Op::SiluMulBackward(_) => return Some(Steps::In(SILU_MUL_BACKWARD.to_owned())),
        // The gradient's: the result is twice as wide.
        Op::SwiGluBackward(_) => return Some(Steps::In(SILU_MUL_BACKWARD.to_owned())),
        Op::Where(_) | Op::Keep(_) => "choose",
        Op::Test(_) => "compare",
        Op::Dropout(_) | Op::DropPath(_) => "· choose",
        _ => return None,
    }))
}

/// What folds numbers, and its reverse.
fn folds(op: &Op) -> Option<Steps> {
    let each = |steps: &str| Some(Steps::In(steps.to_owned()));
    match op {
        Op::Sum(_) | Op::Mean(_) | Op::SumTo(_) => each("+"),
        Op::EmbeddingBackward(_) | Op::IndexSelectBackward(_) => each("+"),
        Op::MaxDim(_) => each("max"),
        Op::Softmax(_) => each("max − exp + ÷"),
        Op::LogSoftmax(_) => each("max − exp + −"),
        // y(g − Σgy), and g − eʸΣg
        Op::SoftmaxBackward(_) => each("· + − ·"),
        Op::LogSoftmaxBackward(_) => each("+ exp · −"),
        Op::MaskedHuber(_) => each("− choose abs min · − · +"),
        Op::MaskedHuberBackward(_) => Some(Steps::Out("max min ·")),
        Op::MaskedMse(_) => each("− choose ² +"),
        Op::MaskedMseBackward(_) => Some(Steps::Out("· ·")),
        Op::CrossEntropy(_) => each("max − exp +"),
        Op::CrossEntropyBackward(_) => Some(Steps::Out("− exp ·")),
        Op::Retention(op::Retention { dir: Dir::Causal, .. }) => each("· +"),
        // Two scans, joined.
        Op::Retention(_) => each("· +  · +  + −"),
        Op::RetentionBackward(op::RetentionBackward { dir: Dir::Causal, .. }) => each("· +  · +"),
        // The gradient's two scans, v's two, λ's share of each, joined.
        Op::RetentionBackward(_) => each("· + · +  · + · +  · + · +  + −"),
        Op::Quantize(_) => each("abs max  ·  max min"),
        Op::GlobalNorm(_) => Some(Steps::All("² +")),
        _ => None,
    }
}

/// Whether an operation moves, casts or fills only, or has to do with truth values.
fn moves(op: &Op) -> bool {
    let layout = matches!(op, Op::Reshape(_) | Op::Permute(_) | Op::Expand(_) | Op::Flip(_) | Op::Detach(_));
    let parts = matches!(op, Op::Narrow(_) | Op::NarrowBackward(_) | Op::Split(_) | Op::MaxDimBackward(_));
    let joins = matches!(op, Op::Cat(_) | Op::Stack(_) | Op::Dilate(_) | Op::Undilate(_));
    let taken = matches!(op, Op::Embedding(_) | Op::IndexSelect(_) | Op::And(_) | Op::Not(_));
    let filled = matches!(op, Op::Zeros(_) | Op::Ones(_) | Op::Zero(_) | Op::Cast(_) | Op::CastInto(_));
    layout || parts || joins || taken || filled || matches!(op, Op::Allocate(_) | Op::Release(_) | Op::Restore(_))
}

/// Multiplications and additions, by the sizes of matrices.
fn products(Seen { op, ins, outs }: &Seen) -> Option<i64> {
    let size = |meta: &Meta, back: usize| meta.shape[meta.rank() - back];
    let rows = |meta: &Meta| meta.shape[..meta.rank() - 1].iter().product::<i64>();
    Some(match *op {
        Op::MatMul(op::MatMul { ta, tb }) => {
            let batch: i64 = outs[0].shape[..outs[0].rank() - 2].iter().product();
            let (m, k) = if ta { (size(&ins[0], 1), size(&ins[0], 2)) } else { (size(&ins[0], 2), size(&ins[0], 1)) };
            2 * batch * m * k * size(&ins[1], if tb { 2 } else { 1 })
        }
        Op::Linear(_) | Op::Fp8Linear(_) => 2 * rows(&ins[0]) * ins[1].shape[0] * ins[1].shape[1],
        Op::LinearBackward(op::LinearBackward { dx, dw, .. }) => {
            let both = i64::from(dx) + i64::from(dw != GradDest::Skip);
            2 * both * rows(&ins[0]) * ins[2].shape[0] * ins[2].shape[1]
        }
        Op::ScaledMm(_) => 2 * ins[0].shape[0] * ins[1].shape[0] * ins[0].shape[1],
        // Each pair of query and key: once over the width of q, once over that of v.
        Op::Sdpa(_) => {
            let pairs = ins[0].shape[..3].iter().product::<i64>() * ins[1].shape[2];
            2 * pairs * (ins[0].shape[3] + ins[2].shape[3])
        }
        // Scores again, dq, dk; dweights, dv.
        Op::SdpaBackward(_) => {
            let pairs = ins[1].shape[..3].iter().product::<i64>() * ins[2].shape[2];
            2 * pairs * (3 * ins[1].shape[3] + 2 * ins[3].shape[3])
        }
        _ => return None,
    })
}

/// Updates of arrays.
fn updates(Seen { op, ins, .. }: &Seen) -> Option<i64> {
    let count = |steps: &str| steps.split_whitespace().count() as i64;
    Some(match op {
        Op::GradAdd(_) => ins.iter().step_by(2).map(Meta::numel).sum(),
        Op::Average(_) => ins[2..].iter().step_by(2).map(|array| count("− · +") * array.numel()).sum(),
        Op::AdamW(op::AdamW { decays, shadows, average, .. }) => {
            // The gradient's factor, the first moment, the second, the denominator, the weight.
            let plain = count("·  − · +  ² − · +  sqrt · +  · ÷ +");
            let (head, averaged) = if average.is_some() { (3, count("− · +")) } else { (1, 0) };
            let arrays = 4 + usize::from(*shadows) + usize::from(average.is_some());
            let segments = ins[head..].chunks(arrays).zip(decays);
            segments.map(|(segment, decays)| (plain + decays + averaged) * segment[0].numel()).sum()
        }
        // 1/count, the mean norm, whether it is finite, both counters; 1 − βᵗ twice; clipping; the rate; the six numbers.
        Op::StepScalars(_) => {
            count("max ÷ · finite + − +  pow − max pow − max  + ÷ · min ·  · neg") + count("choose · · · · + ÷ rsqrt")
        }
        Op::ScaleUpdate(_) => count("choose · + max"),
        _ => return None,
    })
}

/// Operators without a row: one for each number that is made, of a convolution the products of its window. The reverse calls them once
/// more, and is twice that itself.
fn rowless(seen: &Seen) -> Option<i64> {
    // The gradient comes before the operands.
    let (name, made, window, times) = match &seen.op {
        Op::Aten(op::Aten(call)) => (call.name(), seen.outs.first()?, seen.ins.get(1), 1),
        Op::AtenBackward(op::AtenBackward(reverse)) => (reverse.name(), seen.ins.first()?, seen.ins.get(2), 3),
        _ => return None,
    };
    let each = window
        .filter(|_| name == "aten::convolution")
        .map_or(1, |window| 2 * window.shape[1..].iter().product::<i64>());
    Some(times * each * made.numel())
}

/// The cost of a launch by its formula; `None` for an operation whose formula stands in its row alone.
fn expected(seen: &Seen) -> Option<u64> {
    let count = |steps: &str| steps.split_whitespace().count() as i64;
    let numel = |metas: &[Meta]| metas[0].numel();
    let stepwise = || {
        elementwise(&seen.op).or_else(|| norms(&seen.op)).or_else(|| folds(&seen.op)).map(|steps| match steps {
            Steps::All(steps) => count(steps) * seen.ins.iter().map(Meta::numel).sum::<i64>(),
            Steps::In(steps) => count(&steps) * numel(&seen.ins),
            Steps::Out(steps) => count(steps) * numel(&seen.outs),
        })
    };
    let still = || moves(&seen.op).then_some(0);
    let cost = products(seen).or_else(|| updates(seen)).or_else(|| rowless(seen)).or_else(stepwise).or_else(still);
    cost.map(i64::unsigned_abs)
}

fn cost(seen: &Seen) -> u64 {
    seen.op.flops(&seen.ins.iter().collect::<Vec<_>>(), &seen.outs)
}

/// Every launch of the samples, forward and backward, and of the calls besides.
fn launches() -> Vec<Seen> {
    let checked = Checked::new(&FirstFit);
    let mut draw = SampleRng::new(13);
    let samples: Vec<Sample> = rows().flat_map(|row| (row.samples)(&mut draw)).collect();
    for sample in samples {
        let ins: Vec<Tensor> = sample.ins.iter().map(|o| tensor(o, Kind::Float)).collect();
        ours(&sample, &ins, &checked);
    }
    let _no_grad = tch::no_grad_guard();
    for (op, ins) in calls() {
        let ins: Vec<&Tensor> = ins.iter().collect();
        checked.launch(&op, &Launch { ins: &ins }).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
    checked.into_seen()
}

#[test]
fn every_operation_costs_the_arithmetic_of_its_formula() {
    let launches = launches();
    for seen in &launches {
        let nothing = seen.ins.iter().chain(&seen.outs).all(|meta| meta.numel() == 0);
        let expected = expected(seen).unwrap_or_else(|| {
            assert!(!must_be_defined(&seen.op), "nobody says what {} should cost", seen.op.name());
            if nothing { 0 } else { cost(seen) }
        });
        assert_eq!(cost(seen), expected, "of {:?} on {:?}", seen.op, seen.ins);
    }
    let names: BTreeSet<&str> = launches.iter().map(|seen| seen.op.name()).collect();
    // The ranks run collectives themselves, beside what is computed.
    let beside = ["all_reduce", "all_reduce_wait", "reduce_scatter", "all_gather", "order"];
    let beside: Vec<&str> = beside.into_iter().chain(["all_reduce_shares", "all_reduce_copies"]).collect();
    let missed: Vec<&str> = rows().map(|row| row.name).filter(|name| !names.contains(name)).collect();
    assert!(missed.iter().all(|name| beside.contains(name)), "never launched: {missed:?}");
}

#[test]
fn products_of_the_dispatcher_cost_their_multiplications_and_additions() {
    let _no_grad = tch::no_grad_guard();
    for ((op, ins), expected) in dispatched() {
        let refs: Vec<&Tensor> = ins.iter().collect();
        // Past the shape rule: of convolutions this libtorch tells no shape without memory.
        let made = (op.row().launch)(&op, &Launch { ins: &refs }).unwrap_or_else(|error| panic!("{op:?}: {error}"));
        let seen = Seen { op, ins: ins.iter().map(Meta::of).collect(), outs: made.iter().map(Meta::of).collect() };
        assert_eq!(cost(&seen), expected, "of {:?} on {:?}", seen.op, seen.ins);
    }
}
