//! Tests of every loss against its definition in f64, of its behaviour under a shift, and of its gradient.

use super::*;
use enn_core::params::{GradBuckets, ParamBuilder, Params};
use std::f64::consts::{PI, TAU};

/// All losses of numbers.
const REGRESSION: [Loss; 6] = [Loss::Mse, Loss::Huber, Loss::Quantile, Loss::StudentT, Loss::Gaussian, Loss::Crps];
const LEVELS: [f64; 3] = [0.1, 0.5, 0.8];
const FREEDOM: f64 = 5.0;

fn config(loss: Loss) -> TrainConfig {
    TrainConfig {
        loss,
        huber_delta: 0.5,
        base_loss_weight: 0.25,
        levels: LEVELS.to_vec(),
        degrees_of_freedom: FREEDOM,
        ..TrainConfig::default()
    }
}

fn none() -> Params {
    ParamBuilder::new().build(0, Device::Cpu).unwrap()
}

/// One batch of predictions with their base, with the same channels for all cells.
struct Case {
    z: Raw,
    base: Raw,
    channels: Vec<f64>,
    head: Head,
    target: Raw,
    weight: Option<Raw>,
}

impl Case {
    fn new(loss: Loss, z: &Raw, base: &Raw, target: &Raw) -> Self {
        let head = Head::new(&config(loss));
        let channels = [0.3, -0.4][..head.channels() as usize].to_vec();
        let copy = |raw: &Raw| raw.shallow_clone();
        Self { z: copy(z), base: copy(base), channels, head, target: copy(target), weight: None }
    }

    /// Returns output and targets, and the raw channels. Gradients can be taken of z, base and the raw channels.
    fn tensors(&self, cx: &Cx) -> (Output, Targets, Option<Tensor>) {
        let tensor = |raw: &Raw| cx.variable(raw.shallow_clone());
        let (rows, cells) = self.z.size2().unwrap();
        let raw = (!self.channels.is_empty()).then(|| {
            let one = Raw::from_slice(&self.channels).to_kind(self.z.kind()).reshape([1, -1, 1]);
            tensor(&one.expand([rows, self.channels.len() as i64, cells], false).contiguous())
        });
        let channels = raw.as_ref().map(|raw| {
            let all = self.head.channels_of(cx, raw).unwrap();
            Channels { whole: all.clone(), base: all }
        });
        let z = tensor(&self.z);
        let gate = cx.input(self.z.shallow_clone());
        let output = Output { refined: z.clone(), z, base: tensor(&self.base), gate, channels };
        let input = |raw: &Raw| cx.input(raw.shallow_clone());
        let target = input(&self.target);
        let valid = input(&self.target.isfinite());
        (output, Targets { z: target, valid, weight: self.weight.as_ref().map(input) }, raw)
    }

    fn loss(&self, objective: &Objective) -> (f64, f64) {
        let params = none();
        let cx = Cx::eval(&params);
        let (output, targets, _) = self.tensors(&cx);
        let loss = objective.forward(&cx, &output, &targets).unwrap();
        (loss.sum.raw().double_value(&[]), loss.count.raw().double_value(&[]))
    }
}

/// Computes ∫ (F(x) − 1{x ≥ t})² dx of the normal distribution, the definition of CRPS, by the rectangle rule.
fn crps_by_integral(z: f64, sigma: f64, target: f64) -> f64 {
    let width = 1e-3;
    let reach = 12.0 * sigma + (z - target).abs();
    let steps = (2.0 * reach / width) as usize;
    let density = |x: f64| (-0.5 * ((x - z) / sigma).powi(2)).exp() / (sigma * TAU.sqrt());
    let mut below = 0.0;
    let mut sum = 0.0;
    for step in 0..steps {
        let x = z - reach + (step as f64 + 0.5) * width;
        below += density(x) * width;
        sum += (below - if x >= target { 1.0 } else { 0.0 }).powi(2) * width;
    }
    sum
}

/// Computes the table in the module's documentation in f64.
fn defined(loss: Loss, z: f64, channels: &[f64], target: f64) -> f64 {
    let softplus = |x: f64| x.exp().ln_1p();
    let d = z - target;
    let sigma = || 1e-3 + softplus(channels[0]);
    match loss {
        Loss::Mse => d * d,
        Loss::Huber if d.abs() <= 0.5 => 0.5 * d * d,
        Loss::Huber => 0.5 * (d.abs() - 0.25),
        Loss::Quantile => {
            let quantiles = [z - softplus(channels[0]), z, z + softplus(channels[1])];
            let pinball = |(q, level): (f64, f64)| (level * (target - q)).max((level - 1.0) * (target - q));
            quantiles.into_iter().zip(LEVELS).map(pinball).sum::<f64>() / 3.0
        }
        Loss::Gaussian => {
            let density = (-0.5 * (d / sigma()).powi(2)).exp() / (sigma() * TAU.sqrt());
            -density.ln() - TAU.sqrt().ln()
        }
        Loss::StudentT => {
            // Γ(3)/Γ(5/2) = 2/(¾√π).
            let constant = 2.0 / (0.75 * PI.sqrt()) / (FREEDOM * PI).sqrt();
            let shape = (1.0 + (d / sigma()).powi(2) / FREEDOM).powf(-f64::midpoint(FREEDOM, 1.0));
            constant.ln() - (constant * shape / sigma()).ln()
        }
        Loss::Crps => crps_by_integral(z, sigma(), target),
        Loss::CrossEntropy => unreachable!("has a test of its own"),
    }
}

fn targets() -> Raw {
    Raw::from_slice(&[0.5_f32, -1.0, f32::NAN, 2.0, 0.0, 1.0]).reshape([2, 3])
}

#[test]
fn every_loss_is_its_definition_over_valid_cells_only() {
    for loss in REGRESSION {
        let zeros = Raw::zeros([2, 3], (Kind::Float, Device::Cpu));
        let case = Case::new(loss, &zeros, &zeros.ones_like(), &targets());
        let cell = |t: &f64| defined(loss, 0.0, &case.channels, *t) + 0.25 * defined(loss, 1.0, &case.channels, *t);
        let expected: f64 = [0.5, -1.0, 2.0, 0.0, 1.0].iter().map(cell).sum();
        let (sum, count) = case.loss(&Objective::new(&config(loss)));
        let tolerance = if loss == Loss::Crps { 2e-3 } else { 1e-5 };
        assert!((sum - expected).abs() < tolerance, "{loss:?}: {sum} against {expected}");
        assert_eq!(count, 5.0);
    }
}

#[test]
fn a_shift_of_all_predictions_raises_every_loss() {
    let targets = targets();
    let perfect = targets.nan_to_num(0.0, None, None);
    for loss in REGRESSION {
        let mut symmetric = config(loss);
        symmetric.levels = vec![0.2, 0.5, 0.8];
        let at = |z: f64, base: f64| {
            let mut case = Case::new(loss, &(&perfect + z), &(&perfect + base), &targets);
            case.channels.fill(0.3);
            case.loss(&Objective::new(&symmetric)).0
        };
        for shift in [-3.0, -0.1, 0.1, 3.0] {
            assert!(at(shift, shift) > at(shift / 2.0, shift / 2.0), "{loss:?} shift {shift}");
            assert!(at(shift, 0.0) > at(0.0, 0.0) && at(0.0, shift) > at(0.0, 0.0), "{loss:?} shift {shift}");
        }
    }
}

#[test]
fn all_missing_is_zero_of_zero_and_has_no_gradient() {
    let missing = Raw::full([2, 3], f64::NAN, (Kind::Float, Device::Cpu));
    let ones = missing.ones_like();
    for loss in REGRESSION.into_iter().chain([Loss::CrossEntropy]) {
        let case = Case::new(loss, &ones, &ones, &missing);
        let objective = Objective::new(&config(loss));
        assert_eq!(case.loss(&objective), (0.0, 0.0), "{loss:?}");
        for gradient in gradients(&case, &objective) {
            assert_eq!(gradient.abs().max().double_value(&[]), 0.0, "{loss:?}");
        }
    }
}

/// Returns the gradients of z, base and, if there are any, the channels.
fn gradients(case: &Case, objective: &Objective) -> Vec<Raw> {
    let params = none();
    let grads = GradBuckets::new(&params).unwrap();
    let cx = Cx::train(&params, 0, 0);
    let (output, targets, raw) = case.tensors(&cx);
    let loss = objective.forward(&cx, &output, &targets).unwrap();
    let operands: Vec<&Tensor> = [&output.z, &output.base].into_iter().chain(&raw).collect();
    let found = cx.backward_to(&loss.sum, &grads, &mut |_, _| Ok(()), &operands).unwrap();
    found.into_iter().map(Option::unwrap).collect()
}

#[test]
fn every_gradient_is_the_slope_of_the_loss_in_f64() {
    const REACH: f64 = 1e-6;
    let double = |values: &[f64]| Raw::from_slice(values).reshape([2, 3]);
    let target = double(&[0.5, -1.0, f64::NAN, 2.0, 0.0, 1.0]);
    let one_hot = double(&[0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    for loss in REGRESSION.into_iter().chain([Loss::CrossEntropy]) {
        let target = if loss == Loss::CrossEntropy { &one_hot } else { &target };
        let z = double(&[0.1, 0.7, 3.0, -1.3, 0.9, 0.35]);
        let base = double(&[0.2, -0.8, 1.0, 2.9, -0.7, 0.6]);
        let mut case = Case::new(loss, &z, &base, target);
        case.weight = Some(Raw::from_slice(&[0.5, 2.0]).reshape([2, 1]));
        let mut objective = Objective::new(&config(loss)).weighted(Some(&[1.0, 0.25, 3.0]), Device::Cpu).unwrap();
        objective.cells = objective.cells.map(|cells| cells.to_kind(Kind::Double));
        let found = gradients(&case, &objective);
        let slope = |case: &mut Case, change: &dyn Fn(&mut Case, f64)| {
            change(case, REACH);
            let above = case.loss(&objective).0;
            change(case, -2.0 * REACH);
            let below = case.loss(&objective).0;
            change(case, REACH);
            (above - below) / (2.0 * REACH)
        };
        for cell in 0..6_i64 {
            for (operand, gradient) in found[..2].iter().enumerate() {
                let measured = slope(&mut case, &|case, by| {
                    let operand = if operand == 0 { &case.z } else { &case.base };
                    let _ = operand.view(-1).narrow(0, cell, 1).g_add_scalar_(by);
                });
                let told = gradient.double_value(&[cell / 3, cell % 3]);
                assert!((measured - told).abs() < 1e-6, "{loss:?} operand {operand} cell {cell}: {told}, {measured}");
            }
        }
        for channel in 0..case.channels.len() {
            let measured = slope(&mut case, &|case, by| case.channels[channel] += by);
            let told = found[2].select(1, channel as i64).sum(Kind::Double).double_value(&[]);
            assert!((measured - told).abs() < 1e-6, "{loss:?} channel {channel}: {told}, {measured}");
        }
    }
}

#[test]
fn tiles_change_neither_value_nor_gradient_and_need_less_memory() {
    let rows = 4;
    let cells = 1030;
    let random = || Raw::randn([rows, cells], (Kind::Float, Device::Cpu));
    tch::manual_seed(5);
    let z = random();
    let base = random();
    let target = random();
    let target = target.masked_fill(&random().gt(1.0), f64::NAN);
    for loss in REGRESSION {
        let mut case = Case::new(loss, &z, &base, &target);
        for weighted in [false, true] {
            case.weight = weighted.then(|| Raw::from_slice(&[0.5_f32, 2.0, 1.0, 0.1]).reshape([rows, 1]));
            let whole = Objective::new(&config(loss));
            let tiled = Objective { tile: 400, ..Objective::new(&config(loss)) };
            assert_eq!((whole.tiles(rows, cells).len(), tiled.tiles(rows, cells).len()), (1, 10));
            let (sum, count) = case.loss(&tiled);
            let (expected, all) = case.loss(&whole);
            assert!((sum / expected - 1.0).abs() < 1e-5 && count == all, "{loss:?}: {sum}, at once {expected}");
            for (found, expected) in gradients(&case, &tiled).iter().zip(gradients(&case, &whole)) {
                let off = (found - &expected).abs().max();
                let most = expected.abs().max();
                assert!(off.double_value(&[]) <= 1e-6 * most.double_value(&[]), "{loss:?}");
            }
            let [small, large] = [&tiled, &whole].map(|objective| peak(&case, objective));
            // Losses that are one operation keep one difference, which the gradient overwrites.
            let share = if weighted || !matches!(loss, Loss::Mse | Loss::Huber) { 0.8 } else { 1.01 };
            assert!((small as f64) < share * large as f64, "{loss:?}: {small} bytes of {large}");
        }
    }
}

/// Returns the maximum memory in bytes that a loss and its gradient need besides their operands.
fn peak(case: &Case, objective: &Objective) -> u64 {
    let params = none();
    let grads = GradBuckets::new(&params).unwrap();
    let cx = Cx::train(&params, 0, 0);
    let (output, targets, _) = case.tensors(&cx);
    let loss = objective.forward(&cx, &output, &targets).unwrap();
    cx.backward(&loss.sum, &grads, &mut |_, _| Ok(())).unwrap();
    cx.with_program(enn_core::autograd::Program::peak_bytes)
}

#[test]
fn tiles_are_of_large_outputs_only_and_cover_every_cell() {
    let of = |loss, rows, cells| Objective::new(&config(loss)).tiles(rows, cells);
    assert_eq!(of(Loss::Quantile, 256, 936), [936]);
    assert_eq!(of(Loss::Quantile, 16, 1 << 20), vec![1 << 16; 16]);
    assert_eq!(of(Loss::CrossEntropy, 16, 1 << 20), [1 << 20]);
    for (rows, cells) in [(1, 4_194_305), (3, 10_000_019), (1 << 30, 5), (7, 1 << 40)] {
        let sizes = of(Loss::Huber, rows, cells);
        assert_eq!(sizes.iter().sum::<i64>(), cells);
        assert!(sizes.len() > 1 && sizes.len() <= 128 && sizes.iter().all(|size| *size > 0), "{rows} × {cells}");
    }
}

#[test]
fn a_weight_of_two_is_the_row_twice() {
    let twice = |raw: &Raw| Raw::cat(&[raw, &raw.narrow(0, 1, 1)], 0);
    let z = Raw::from_slice(&[0.1_f32, 0.7, 3.0, -1.3, 0.9, 0.35]).reshape([2, 3]);
    for loss in REGRESSION {
        let objective = Objective::new(&config(loss));
        let mut weighted = Case::new(loss, &z, &z, &targets());
        weighted.weight = Some(Raw::from_slice(&[1.0_f32, 2.0]).reshape([2, 1]));
        let (sum, count) = weighted.loss(&objective);
        let (expected, cells) = Case::new(loss, &twice(&z), &twice(&z), &twice(&targets())).loss(&objective);
        assert!((sum - expected).abs() < 1e-4 && count == cells, "{loss:?}: {sum} of {count}, {expected} of {cells}");
        let plain = Case::new(loss, &z, &z, &targets());
        let cells = Objective::new(&config(loss)).weighted(Some(&[1.0, 0.0, 1.0]), Device::Cpu).unwrap();
        assert_eq!(plain.loss(&cells).1, 3.0, "a weight of 0 leaves a column out");
    }
}

#[test]
fn cross_entropy_is_minus_the_log_of_the_targets_probability() {
    let logits = Raw::from_slice(&[0.0_f32, 1.0, 2.0, -1.0, 0.5, 100.0]).reshape([2, 3]);
    let target = Raw::from_slice(&[0.0_f32, 0.0, 1.0, 1.0, 0.0, 0.0]).reshape([2, 3]);
    let case = Case::new(Loss::CrossEntropy, &logits, &logits, &target);
    let (sum, count) = case.loss(&Objective::new(&config(Loss::CrossEntropy)));
    let first = -(2.0_f64.exp() / (1.0 + 1.0_f64.exp() + 2.0_f64.exp())).ln();
    assert!((sum - 1.25 * (first + 101.0)).abs() < 1e-4, "{sum}");
    assert!((count - 2.0).abs() < 1e-12, "a row counts once: {count}");
}

#[test]
fn no_loss_overflows_where_its_numbers_do_not() {
    let z = Raw::from_slice(&[1e12_f32, -1e12, 0.0, 30.0, -30.0, 1e4]).reshape([2, 3]);
    for loss in REGRESSION {
        for channel in [-1e4, -90.0, 90.0, 1e4] {
            let mut case = Case::new(loss, &z, &z, &targets());
            case.channels.fill(channel);
            let (sum, _) = case.loss(&Objective::new(&config(loss)));
            assert!(sum.is_finite(), "{loss:?} channel {channel}: {sum}");
            for gradient in gradients(&case, &Objective::new(&config(loss))) {
                assert!(bool::try_from(gradient.isfinite().all()).unwrap(), "{loss:?} channel {channel}");
            }
        }
    }
}

#[test]
fn the_default_records_one_operation_per_prediction_and_the_count() {
    let params = none();
    let cx = Cx::eval(&params);
    let ones = Raw::ones([2, 3], (Kind::Float, Device::Cpu));
    let (output, targets, _) = Case::new(Loss::Huber, &ones, &ones, &targets()).tensors(&cx);
    Objective::new(&TrainConfig::default()).forward(&cx, &output, &targets).unwrap();
    let names: Vec<&str> = cx.with_program(|program| program.recs().iter().map(|rec| rec.op.name()).collect());
    assert_eq!(names, ["masked_huber", "masked_huber", "scale", "add", "cast", "sum"]);
}
