//! Autocast at the door, low-precision copies of the weights, 8-bit layers and the loss scale, against f32.

use crate::draws::normal;
use crate::gradcheck::operands::{SEED, STEP, distance, tensor};
use crate::gradcheck::ours::{Checked, asks};
use enn_worker::autograd::{Cx, Tensor as Traced, call};
use enn_worker::functional as f;
use enn_worker::kernel::FirstFit;
use enn_worker::op::aten::AtenArg;
use enn_worker::op::low_precision::scale_update::SCALE_MIN;
use enn_worker::op::sample::{Operand, Sample, SampleRng};
use enn_worker::op::{self, Op, rows};
use enn_worker::optim::{AdamW, AdamWSettings, FlatParams};
use enn_worker::params::{GradBuckets, Group, Init, ParamBuilder, ParamId, Params};
use enn_worker::precision::{Autocast, Class, Fp8, LossScale, ScaleSettings};
use tch::{Device, Kind, Tensor};

const F32: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Two layers with a norm between them; the first weight is used twice.
struct Net {
    params: Params,
    grads: GradBuckets,
    ids: Vec<ParamId>,
    recompute: bool,
}

fn net(width: i64) -> Net {
    let mut pb = ParamBuilder::new();
    let linear = |inputs| Init::Linear { fan_in: inputs };
    let ids = vec![
        pb.param("a.weight", &[width, width], linear(width), Group::Decay),
        pb.param("a.bias", &[width], linear(width), Group::NoDecay),
        pb.param("norm.weight", &[width], Init::Ones, Group::NoDecay),
        pb.param("b.weight", &[3, width], linear(width), Group::Decay),
    ];
    let params = pb.build(5, Device::Cpu).unwrap();
    let grads = GradBuckets::new(&params).unwrap();
    Net { params, grads, ids, recompute: false }
}

impl Net {
    fn loss(&self, cx: &Cx<'_>, x: &Tensor, y: &Tensor) -> Traced {
        let at = |i: usize| cx.param(self.ids[i]);
        let x = cx.input(x.shallow_clone());
        let layers = |cx: &Cx<'_>| {
            let _scope = cx.scope("a");
            let h = f::linear(cx, &x, &at(0), Some(&at(1)))?;
            f::linear(cx, &f::silu(cx, &h)?, &at(0), Some(&at(1)))
        };
        let h = cx.part(layers).unwrap();
        let h = f::rms_norm(cx, &f::add(cx, &x, &h).unwrap(), &at(2), 1e-5).unwrap();
        let _scope = cx.scope("b");
        let z = f::linear(cx, &h, &at(3), None).unwrap();
        let y = cx.input(y.shallow_clone());
        f::masked_mse(cx, &z, &y, &f::is_finite(cx, &y).unwrap()).unwrap()
    }

    fn gradients(
        &mut self,
        autocast: Option<Autocast>,
        x: &Tensor,
        y: &Tensor,
    ) -> (f64, Vec<Tensor>, Vec<&'static str>) {
        self.grads.zero().unwrap();
        let checked = Checked::new(&FirstFit);
        let mut cx = Cx::train(&self.params, SEED, STEP);
        cx.set_launcher(&checked);
        cx.set_recompute(self.recompute);
        cx.set_autocast(autocast).unwrap();
        let loss = self.loss(&cx, x, y);
        cx.backward(&loss, &self.grads, &mut |_, _| Ok(())).unwrap();
        let names = cx.with_program(|p| p.recs().iter().map(|rec| rec.op.name()).collect());
        let grads = self.ids.iter().map(|id| self.grads.view(*id).copy()).collect();
        (loss.raw().double_value(&[]), grads, names)
    }
}

fn data(rows: i64, width: i64) -> (Tensor, Tensor) {
    let x = normal(&[rows, width]).to_kind(Kind::Float);
    let y = x.narrow(1, 0, 3).square() - 0.5;
    (x, y)
}

fn relative(a: &Tensor, b: &Tensor) -> f64 {
    let wide = |t: &Tensor| t.to_kind(Kind::Double);
    ((wide(a) - wide(b)).norm() / wide(b).norm().clamp_min(1e-12)).double_value(&[])
}

fn count(names: &[&str], name: &str) -> usize {
    names.iter().filter(|n| **n == name).count()
}

#[test]
fn bf16_gradients_are_near_f32_and_land_in_f32_storage() {
    let mut net = net(48);
    let (x, y) = data(40, 48);
    let (loss, expected, _) = net.gradients(None, &x, &y);
    for shadows in [false, true] {
        if shadows {
            net.params.keep_shadows(Kind::BFloat16).unwrap();
        }
        let (low, found, _) = net.gradients(Some(Autocast::bf16()), &x, &y);
        assert!((low / loss - 1.0).abs() < 0.02, "loss {low} against {loss}");
        for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(a.kind(), Kind::Float);
            assert!(relative(a, b) < 0.03, "gradient {i}, shadows {shadows}: off by {}", relative(a, b));
        }
    }
    assert!(net.params.iter().all(|(_, _, master)| master.kind() == Kind::Float), "masters stay f32");
}

#[test]
fn the_program_holds_the_casts_the_policy_says_and_no_other() {
    let mut net = net(48);
    let (x, y) = data(40, 48);
    let (_, _, plain) = net.gradients(None, &x, &y);
    assert_eq!(count(&plain, "cast"), 0);
    let (_, _, cast) = net.gradients(Some(Autocast::bf16()), &x, &y);
    // Forward: x; a.weight and a.bias once for two uses; the second layer's result to f32 for the sum; the norm's result;
    // b.weight; z to f32 for the loss. Backward: the reverse of all but x, which asks for no gradient.
    assert_eq!(count(&cast, "cast"), 7 + 6);
    assert_eq!(count(&cast, "cast_into"), 0);
    net.params.keep_shadows(Kind::BFloat16).unwrap();
    let (_, _, shadowed) = net.gradients(Some(Autocast::bf16()), &x, &y);
    assert_eq!(count(&shadowed, "cast"), 4 + 3, "the weights' copies need none");
    assert_eq!(count(&shadowed, "cast_into"), 1, "one bucket");
    assert_eq!(count(&shadowed, "grad_add"), 1, "only the norm's weight: products add to the f32 storage themselves");
}

#[test]
fn copies_follow_the_masters_unless_the_caller_vouches_for_them() {
    let mut net = net(32);
    let (x, y) = data(16, 32);
    net.params.keep_shadows(Kind::BFloat16).unwrap();
    let before = net.gradients(Some(Autocast::bf16()), &x, &y).0;
    let _ = tch::no_grad(|| net.params.get(net.ids[3]).shallow_clone().fill_(0.0));
    let stale = {
        let cx = Cx::train(&net.params, SEED, STEP);
        cx.keep_shadows();
        cx.set_autocast(Some(Autocast::bf16())).unwrap();
        net.loss(&cx, &x, &y).raw().double_value(&[])
    };
    assert_eq!(stale, before, "keep_shadows keeps them");
    let zero = net.gradients(Some(Autocast::bf16()), &x, &y).0;
    let expected = y.square().sum(Kind::Double).double_value(&[]);
    assert!((zero - expected).abs() < 1e-2 * expected, "{zero} against {expected}");
}

#[test]
fn parts_computed_again_give_the_same_bits_in_low_precision() {
    let (x, y) = data(32, 32);
    let eight = Autocast { fp8: Some(Fp8 { side_min: 16 }), ..Autocast::bf16() };
    for autocast in [Autocast::bf16(), eight] {
        for copies in [false, true] {
            let mut net = net(32);
            if copies {
                net.params.keep_shadows(Kind::BFloat16).unwrap();
            }
            let (_, expected, once) = net.gradients(Some(autocast.clone()), &x, &y);
            net.recompute = true;
            let (_, found, twice) = net.gradients(Some(autocast.clone()), &x, &y);
            assert!(twice.len() > once.len(), "a part is computed again");
            assert_eq!(count(&twice, "cast_into"), count(&once, "cast_into"), "but copies are refreshed once");
            assert!(expected.iter().zip(&found).all(|(a, b)| a.equal(b)), "{autocast:?}, copies {copies}");
        }
    }
}

#[test]
fn what_was_written_since_is_cast_again() {
    let net = net(32);
    let eight = Autocast { fp8: Some(Fp8 { side_min: 16 }), ..Autocast::bf16() };
    for autocast in [Autocast::bf16(), eight] {
        let cx = Cx::train(&net.params, SEED, STEP);
        cx.set_autocast(Some(autocast.clone())).unwrap();
        let x = cx.input(data(16, 32).0);
        let layer = || f::linear(&cx, &x, &cx.param(net.ids[0]), None).unwrap();
        // The first result holds the cast that it is made of.
        let before = layer();
        f::aten(&cx, "aten::fill_", "Scalar", vec![AtenArg::Operand, AtenArg::Int(0)], &[&x]).unwrap();
        let after = layer();
        assert!(before.raw().abs().max().double_value(&[]) > 0.1);
        assert_eq!(after.raw().abs().max().double_value(&[]), 0.0, "{autocast:?}");
    }
}

#[test]
fn full_precision_and_places_in_trouble_run_in_f32() {
    let net = net(32);
    let (x, y) = data(16, 32);
    let kinds = |autocast: Autocast, guard: bool| {
        let cx = Cx::train(&net.params, SEED, STEP);
        cx.set_autocast(Some(autocast)).unwrap();
        if guard {
            cx.full_precision(|cx| net.loss(cx, &x, &y))
        } else {
            net.loss(&cx, &x, &y)
        };
        cx.with_program(|p| {
            let linear = p.recs().iter().filter(|rec| matches!(rec.op, Op::Linear(_)));
            linear.map(|rec| p.val(rec.first_out).meta.kind).collect::<Vec<_>>()
        })
    };
    let low = Kind::BFloat16;
    let full = Kind::Float;
    assert_eq!(kinds(Autocast::bf16(), false), [low, low, low]);
    assert_eq!(kinds(Autocast::bf16(), true), [full, full, full]);
    assert_eq!(kinds(Autocast { full: vec!["a".to_owned()], ..Autocast::bf16() }, false), [full, full, low]);
}

#[test]
fn heads_after_a_low_precision_encoder_get_f32_operands() {
    let net = net(32);
    let cx = Cx::train(&net.params, SEED, STEP);
    cx.set_autocast(Some(Autocast::bf16())).unwrap();
    let x = cx.input(Tensor::randn([4, 32], F32));
    let h = f::linear(&cx, &x, &cx.param(net.ids[0]), None).unwrap();
    assert_eq!(h.kind(), Kind::BFloat16);
    let z = cx.full_precision(|cx| f::linear(cx, &h, &cx.param(net.ids[3]), None).unwrap());
    assert_eq!(z.kind(), Kind::Float);
}

#[test]
fn a_cast_passes_the_gradient_in_its_operands_kind() {
    let net = net(8);
    let cx = Cx::train(&net.params, SEED, STEP);
    let raw = Tensor::randn([5, 7], (Kind::Double, Device::Cpu));
    let x = cx.variable(raw.shallow_clone());
    let single = f::cast(&cx, &x, Kind::Float).unwrap();
    let loss = f::sum_all(&cx, &f::square(&cx, &single).unwrap()).unwrap();
    let found = cx.backward_to(&loss, &net.grads, &mut |_, _| Ok(()), &[&x]).unwrap().remove(0).unwrap();
    assert_eq!(found.kind(), Kind::Double);
    assert!(distance(&found, &(raw * 2.0)) < 1e-6);
}

/// Values and gradients of a sample's results, weighted so that each matters.
fn run(sample: &Sample, ins: &[Tensor], autocast: Option<Autocast>) -> (Vec<Tensor>, Vec<Option<Tensor>>) {
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let grads = GradBuckets::new(&params).unwrap();
    let checked = Checked::new(&FirstFit);
    let mut cx = Cx::train(&params, SEED, STEP);
    cx.set_launcher(&checked);
    cx.set_autocast(autocast).unwrap();
    let enter = |(o, t): (&Operand, &Tensor)| {
        if asks(sample, o) { cx.variable(t.shallow_clone()) } else { cx.input(t.shallow_clone()) }
    };
    let traced: Vec<Traced> = sample.ins.iter().zip(ins).map(enter).collect();
    let refs: Vec<&Traced> = traced.iter().collect();
    let outs = call(&cx, sample.op.clone(), &refs).unwrap();
    let values = outs.iter().take(sample.op.differentiable_outs()).map(|o| o.raw().copy()).collect();
    let outs: Vec<Traced> = outs.into_iter().filter(Traced::requires_grad).collect();
    if outs.is_empty() {
        return (values, ins.iter().map(|_| None).collect());
    }
    let mut total = cx.constant(Tensor::zeros([0i64; 0], F32));
    for (i, out) in outs.iter().enumerate() {
        let weight = (Tensor::arange(out.raw().numel() as i64, F32) * 0.7 + 1.0 + i as f64).sin().view(out.shape());
        let wide = f::cast(&cx, out, Kind::Float).unwrap();
        let part = f::sum_all(&cx, &f::mul(&cx, &wide, &cx.constant(weight)).unwrap()).unwrap();
        total = f::add(&cx, &total, &part).unwrap();
    }
    let gradients = cx.backward_to(&total, &grads, &mut |_, _| Ok(()), &refs).unwrap();
    (values, gradients)
}

/// 16 bits hold no odd number above 256: a sum in them would stay there.
#[test]
fn what_is_taken_often_keeps_the_sum_of_its_gradients_in_16_bits() {
    let net = net(8);
    for kind in [Kind::BFloat16, Kind::Half] {
        let cx = Cx::train(&net.params, SEED, STEP);
        let x = cx.variable(Tensor::ones([3, 2], (kind, Device::Cpu)));
        let at = cx.constant(Tensor::ones([4096], (Kind::Int64, Device::Cpu)));
        let taken = f::index_select(&cx, &x, 0, &at).unwrap();
        let loss = f::sum_all(&cx, &f::cast(&cx, &taken, Kind::Float).unwrap()).unwrap();
        let found = cx.backward_to(&loss, &net.grads, &mut |_, _| Ok(()), &[&x]).unwrap().remove(0).unwrap();
        let expected = Tensor::from_slice(&[0.0f32, 0.0, 4096.0, 4096.0, 0.0, 0.0]).view([3, 2]);
        assert!(found.kind() == kind && found.to_kind(Kind::Float).equal(&expected), "{kind:?}");
    }
}

/// How far bf16 may lie from f32 on the same rounded operands, relative to the largest number: its rounding is 2^-9, in
/// products and functions once per operand and result, in arithmetic on top of that in each gradient.
fn tolerance(class: Class) -> f64 {
    match class {
        Class::Full | Class::Inside => 0.02,
        Class::Low | Class::Widest | Class::Pass | Class::Stream => 0.03,
    }
}

#[test]
fn every_operation_in_bf16_is_near_f32() {
    let mut draw = SampleRng::new(21);
    let samples: Vec<Sample> = rows().flat_map(|row| (row.samples)(&mut draw)).collect();
    let mut checked = 0;
    for sample in samples {
        let low: Vec<Tensor> = sample.ins.iter().map(|o| tensor(o, Kind::BFloat16)).collect();
        let widen = |t: &Tensor| if t.kind() == Kind::BFloat16 { t.to_kind(Kind::Float) } else { t.shallow_clone() };
        let wide: Vec<Tensor> = low.iter().map(widen).collect();
        let limit = tolerance(sample.op.row().class);
        let (expected, expected_grads) = run(&sample, &wide, None);
        let (found, grads) = run(&sample, &low, Some(Autocast::bf16()));
        let near = |a: &Tensor, b: &Tensor, what: &str| {
            if b.numel() == 0 {
                return;
            }
            let b = b.to_kind(Kind::Float);
            let largest = b.abs().max().double_value(&[]).max(1.0);
            let off = (a.to_kind(Kind::Float) - &b).abs().max().double_value(&[]) / largest;
            assert!(off < limit, "{what} of {sample:?}: off by {off}");
        };
        found.iter().zip(&expected).for_each(|(a, b)| near(a, b, "value"));
        for (i, (a, b)) in grads.iter().zip(&expected_grads).enumerate() {
            assert_eq!(a.is_some(), b.is_some(), "gradient {i} of {sample:?}");
            if let (Some(a), Some(b)) = (a, b) {
                assert_eq!(a.kind(), low[i].kind(), "gradient {i} of {sample:?} has its operand's kind");
                // A bound that bf16 does not hold, or two elements that are equal in it: the kink is elsewhere.
                if !["clamp", "max_dim"].contains(&sample.op.name()) {
                    near(a, b, "gradient");
                }
            }
        }
        checked += 1;
    }
    assert!(checked > 80, "{checked} samples");
}

#[test]
fn eight_bit_layers_learn_what_f32_layers_learn() {
    let mut net = net(64);
    let (x, y) = data(48, 64);
    let (loss, expected, _) = net.gradients(None, &x, &y);
    let autocast = Autocast { fp8: Some(Fp8 { side_min: 16 }), ..Autocast::bf16() };
    let (low, found, names) = net.gradients(Some(autocast), &x, &y);
    // The head has 3 outputs and stays in bf16.
    assert_eq!((count(&names, "fp8_linear"), count(&names, "linear")), (2, 1));
    // x, the hidden rows and the shared weight once; two gradients.
    assert_eq!(count(&names, "quantize"), 3 + 2);
    assert_eq!(count(&names, "scaled_mm"), 3, "two weight gradients; only the hidden rows ask for one");
    assert!((low / loss - 1.0).abs() < 0.05, "loss {low} against {loss}");
    for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
        assert!(relative(a, b) < 0.12, "gradient {i}: off by {}", relative(a, b));
    }
}

#[test]
fn a_zero_and_an_infinite_matrix_survive_quantising() {
    let net = net(16);
    let cx = Cx::eval(&net.params);
    let quantise = |raw: Tensor| {
        let outs = call(&cx, Op::Quantize(op::Quantize { to: Kind::Float8e4m3fn }), &[&cx.input(raw)]).unwrap();
        outs[0].raw().to_kind(Kind::Float) * outs[2].raw()
    };
    assert_eq!(quantise(Tensor::zeros([16, 32], F32)).abs().max().double_value(&[]), 0.0);
    let bad = Tensor::ones([16, 32], F32);
    let _ = bad.narrow(0, 3, 1).fill_(f64::INFINITY);
    assert!(!quantise(bad).isfinite().all().int64_value(&[]).eq(&1), "what is not finite shows");
    let x = normal(&[32, 48]).to_kind(Kind::Float);
    let off = relative(&quantise(x.shallow_clone()), &x);
    assert!(off < 0.05, "{off}");
}

#[test]
fn the_loss_scale_multiplies_every_gradient() {
    let mut net = net(32);
    let (x, y) = data(16, 32);
    let (_, expected, _) = net.gradients(None, &x, &y);
    net.grads.zero().unwrap();
    let cx = Cx::train(&net.params, SEED, STEP);
    cx.set_loss_scale(&Tensor::from(1024.0f32));
    let loss = net.loss(&cx, &x, &y);
    cx.backward(&loss, &net.grads, &mut |_, _| Ok(())).unwrap();
    for (id, expected) in net.ids.iter().zip(&expected) {
        assert!(relative(&(net.grads.view(*id) / 1024.0), expected) < 1e-6);
    }
}

/// A net with its optimizer; one step on fixed data per call.
struct Trainer {
    net: Net,
    weights: FlatParams,
    optimizer: AdamW,
    /// Whether a step trusts the optimizer to have written the weights' copies.
    trusts: bool,
}

impl Trainer {
    fn new(width: i64, copies: Option<Kind>) -> Self {
        let mut net = net(width);
        if let Some(kind) = copies {
            net.params.keep_shadows(kind).unwrap();
        }
        let weights = FlatParams::of(&net.params);
        let settings = AdamWSettings { betas: (0.9, 0.99), weight_decay: 0.01, clip: 1.0 };
        let optimizer = AdamW::new(&weights, settings).unwrap();
        Self { net, weights, optimizer, trusts: false }
    }

    /// Mean loss, and whether the step was taken.
    fn step(&mut self, autocast: Option<Autocast>, scale: Option<&LossScale>, x: &Tensor, y: &Tensor) -> (f64, bool) {
        self.net.grads.zero().unwrap();
        let checked = Checked::new(&FirstFit);
        let mut cx = Cx::train(&self.net.params, SEED, STEP);
        cx.set_launcher(&checked);
        if self.trusts {
            cx.keep_shadows();
        }
        cx.set_autocast(autocast).unwrap();
        if let Some(scale) = scale {
            cx.set_loss_scale(scale.scale());
        }
        let loss = self.net.loss(&cx, x, y);
        cx.backward(&loss, &self.net.grads, &mut |_, _| Ok(())).unwrap();
        let count = y.numel() as f64;
        let divisor = scale.map_or(Tensor::from(count), |s| s.scale().to_kind(Kind::Double) * count);
        let divisor = cx.input(divisor);
        let rate = cx.input(Tensor::from(3e-3));
        let norm = self.optimizer.complete(&cx, &self.net.grads).unwrap();
        let stats = self.optimizer.step(&cx, &self.net.grads, None, &norm, &divisor, &rate).unwrap();
        if let Some(scale) = scale {
            cx.optim(|cx| f::update_loss_scale(cx, scale, &stats.taken)).unwrap();
        }
        (loss.raw().double_value(&[]) / count, stats.taken.raw().double_value(&[]) == 1.0)
    }
}

#[test]
fn low_precision_learns_as_f32_does_over_200_steps() {
    const STEPS: usize = 200;
    let (x, y) = data(64, 32);
    let learn = |autocast: Option<Autocast>, scale: Option<LossScale>| {
        let mut trainer = Trainer::new(32, autocast.as_ref().map(|a| a.low));
        let losses: Vec<f64> = (0..STEPS).map(|_| trainer.step(autocast.clone(), scale.as_ref(), &x, &y).0).collect();
        assert!(trainer.weights.slabs().iter().all(|slab| slab.kind() == Kind::Float), "masters stay f32");
        losses
    };
    let expected = learn(None, None);
    assert!(expected[STEPS - 1] < 0.2 * expected[0], "{expected:?}");
    let scale = || LossScale::new(ScaleSettings { start: 1024.0, ..ScaleSettings::default() }, Device::Cpu).unwrap();
    let eight = Autocast { fp8: Some(Fp8 { side_min: 16 }), ..Autocast::bf16() };
    for (name, autocast, scale, limit) in [
        ("bf16", Autocast::bf16(), None, 0.05),
        ("fp16", Autocast::fp16(), Some(scale()), 0.05),
        ("fp8", eight, None, 0.15),
    ] {
        let found = learn(Some(autocast), scale);
        for (step, (a, b)) in found.iter().zip(&expected).enumerate() {
            assert!((a - b).abs() < limit * (b + 0.1 * expected[0]), "{name}, step {step}: loss {a} against {b}");
        }
    }
}

#[test]
fn the_optimizer_writes_the_copies_that_a_cast_would_make() {
    let (x, y) = data(64, 32);
    for autocast in [Autocast::bf16(), Autocast::fp16()] {
        let low = autocast.low;
        let [mut cast, mut trusting] = [false, true].map(|trusts| Trainer { trusts, ..Trainer::new(32, Some(low)) });
        for step in 0..5 {
            // The fourth gradient is not finite: a refused step leaves weights and copies as they are.
            let x = if step == 3 { &x * f64::INFINITY } else { x.shallow_clone() };
            let one = cast.step(Some(autocast.clone()), None, &x, &y);
            let other = trusting.step(Some(autocast.clone()), None, &x, &y);
            assert_eq!((one.1, other.1), (step != 3, step != 3), "step {step}");
            let one = cast.weights.slabs();
            let other = trusting.weights.slabs();
            assert!(one.iter().zip(other).all(|(a, b)| a.equal(b)), "{low:?}, step {step}");
            let params = &trusting.net.params;
            for (bucket, _) in trusting.net.grads.buckets() {
                let copy = params.shadow_flat(bucket).unwrap();
                assert!(copy.equal(&params.flat(bucket).to_kind(low)), "{low:?}, step {step}");
            }
        }
    }
}

#[test]
fn the_loss_scale_backs_off_on_overflow_and_recovers() {
    let (x, y) = data(64, 32);
    let mut trainer = Trainer::new(32, Some(Kind::Half));
    let settings = ScaleSettings { start: 2f64.powi(24), interval: 4, ..ScaleSettings::default() };
    let scale = LossScale::new(settings, Device::Cpu).unwrap();
    let mut history = Vec::new();
    for _ in 0..40 {
        let before = trainer.weights.slabs()[0].copy();
        let at = scale.scale().double_value(&[]);
        let (_, taken) = trainer.step(Some(Autocast::fp16()), Some(&scale), &x, &y);
        let moved = !trainer.weights.slabs()[0].equal(&before);
        assert_eq!(moved, taken, "a refused step changes no weight, a taken one does");
        history.push((at, taken));
    }
    assert!(!history[0].1, "half overflows at 2^24: {history:?}");
    for pair in history.windows(2) {
        let ratio = pair[1].0 / pair[0].0;
        let allowed: &[f64] = if pair[0].1 { &[1.0, 2.0] } else { &[0.5] };
        assert!(allowed.contains(&ratio), "{history:?}");
    }
    assert!(history.windows(2).any(|pair| pair[1].0 > pair[0].0), "it grows again: {history:?}");
    assert!(history.iter().filter(|(_, taken)| *taken).count() > 20, "{history:?}");
    // Endless trouble does not make it 0.
    let low = LossScale::new(ScaleSettings { start: SCALE_MIN, ..ScaleSettings::default() }, Device::Cpu).unwrap();
    let net = net(8);
    let cx = Cx::train(&net.params, SEED, STEP);
    let refused = cx.input(Tensor::from(0.0f64));
    cx.optim(|cx| f::update_loss_scale(cx, &low, &refused)).unwrap();
    assert_eq!(low.scale().double_value(&[]), SCALE_MIN);
}
