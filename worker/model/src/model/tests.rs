//! Tests of the whole model on a tiny configuration: its start, its independence of the batch, its gradients, and that it learns.

use super::*;
use crate::{
    loss::Objective,
    optim::{AdamW, AdamWSettings, FlatParams},
};
use enn_common::{
    config::{
        forest::{Forest, Reduction, Task},
        model::{Norm, Preset},
        train::{Loss, TrainConfig},
    },
    staged::meta::{FeatureMeta, Stats},
};
use enn_core::{
    params::{GradBuckets, Params},
    precision::Autocast,
};

pub(super) fn config() -> ModelConfig {
    ModelConfig {
        d_model: 16,
        heads: 2,
        spatial_depth: 1,
        temporal_depth: 1,
        spatial_latents: 3,
        temporal_latents: 4,
        mlp_ratio: 2.0,
        dropout: 0.0,
        fuser_rounds: 1,
        fuser_latents: 3,
        collector_depth: 2,
        patch: vec![1, 2],
        linear_branch: false,
        ..ModelConfig::default()
    }
}

/// Three numbers (the second with gaps), one category of 4, a grid of 2 × 3.
pub(super) fn spec() -> ModelSpec {
    let number = |name: &str, has_missing| FeatureMeta { name: name.to_owned(), has_missing, ..FeatureMeta::default() };
    let stats = |mean, std| Stats { n: 32, mean, std, min: mean - 3.0 * std, max: mean + 3.0 * std };
    let kinds = FeatureMeta {
        name: "kind".to_owned(),
        categories: ["a", "b", "c", "d"].map(String::from).into(),
        ..FeatureMeta::default()
    };
    ModelSpec {
        features: vec![number("u", false), number("v", true), number("w", false), kinds],
        out_shape: vec![2, 3],
        train_rows: 32,
        x_stats: vec![stats(10.0, 2.0), stats(0.0, 1.0), stats(-5.0, 0.5), stats(0.0, 1.0)],
        y_stats: vec![stats(50.0, 10.0); 6],
        head: Head::Point,
    }
}

pub(super) struct Bench {
    pub(super) model: Model,
    pub(super) params: Params,
}

pub(super) fn bench(config: &ModelConfig) -> Bench {
    one_thread();
    let mut pb = ParamBuilder::new();
    let model = Model::build(config, &spec(), &mut pb).unwrap();
    Bench { model, params: pb.build(7, Device::Cpu).unwrap() }
}

/// Inputs, their mask, targets that depend on the inputs, and their mask.
pub(super) fn batch(rows: i64) -> [Raw; 4] {
    tch::manual_seed(rows);
    let cpu = (Kind::Float, Device::Cpu);
    let scale = Raw::from_slice(&[2.0_f32, 1.0, 0.5]);
    let shift = Raw::from_slice(&[10.0_f32, 0.0, -5.0]);
    let z = Raw::randn([rows, 3], cpu);
    let kind = Raw::randint(5, [rows, 1], cpu);
    let x = Raw::cat(&[&z * scale + shift, kind.shallow_clone()], 1);
    let x_valid = Raw::ones([rows, 4], (Kind::Uint8, Device::Cpu));
    let _ = x_valid.select(1, 1).slice(0, 0, rows, 3).fill_(0);
    let _ = x.select(1, 1).slice(0, 0, rows, 3).fill_(f64::NAN);
    let mix = Raw::randn([3, 6], cpu);
    let y = (z.matmul(&mix).tanh() + kind.ge(2.0).to_kind(Kind::Float) * 0.5) * 10.0 + 50.0;
    let y_valid = Raw::ones([rows, 6], (Kind::Uint8, Device::Cpu));
    let _ = y.narrow(0, 0, 1).narrow(1, 0, 2).fill_(f64::NAN);
    let _ = y_valid.narrow(0, 0, 1).narrow(1, 0, 1).fill_(0);
    [x, x_valid, y, y_valid]
}

/// Zero starts hide whole branches: nudge every weight so that all of them matter.
pub(super) fn nudge(params: &Params, by: f64) {
    tch::manual_seed(11);
    for (_, _, weight) in params.iter() {
        let mut weight = weight.shallow_clone();
        let noise = Raw::randn(weight.size(), (Kind::Float, Device::Cpu)) * by;
        let _ = tch::no_grad(|| weight.f_add_(&noise)).unwrap();
    }
}

fn variants() -> Vec<ModelConfig> {
    vec![
        config(),
        ModelConfig { gate: Gate::Tile, linear_branch: true, norm: Norm::RmsNorm, ..config() },
        ModelConfig { gate: Gate::Off, preset: Preset::Temporal, patch: vec![2, 2], fuser_rounds: 2, ..config() },
        ModelConfig { preset: Preset::Spatial, patch: vec![9, 9], collector_depth: 1, ..config() },
        ModelConfig { mixer: Mixer::Retention, norm: Norm::RmsNorm, ..config() },
        ModelConfig {
            mixer: Mixer::Dilated,
            spatial_latents: 7,
            segments: vec![2, 4],
            dilations: vec![1, 2],
            ..config()
        },
        ModelConfig { tasks: tasks(), fuser_reduction: Reduction::Linear, ..config() },
        ModelConfig { tasks: tasks(), preset: Preset::None, fuser_rounds: 2, ..config() },
    ]
}

/// A template beside a sub-fuser in a sub-fuser, with both reductions and all mixers.
pub(super) fn tasks() -> Forest {
    let template = |name: &str, parent: Option<&str>, mode, mixer| Task {
        parent: parent.map(str::to_owned),
        ..Task::template(name, TemplateConfig { mode, depth: 1, tokens: 3, mixer, model: None })
    };
    let fuser = |name: &str, parent: Option<&str>, reduction| Task {
        part: Part::Fuser { reduction },
        weight: 2.0,
        ..template(name, parent, Mode::Spatial, Mixer::GatedEma)
    };
    Forest::new(vec![
        fuser("outer", None, Reduction::Mean),
        template("week", Some("outer"), Mode::Temporal, Mixer::Retention),
        fuser("inner", Some("outer"), Reduction::Linear),
        template("year", Some("inner"), Mode::Spatial, Mixer::GatedEma),
        template("day", Some("inner"), Mode::Temporal, Mixer::Dilated),
        template("alone", None, Mode::Spatial, Mixer::Retention),
    ])
    .unwrap()
}

pub(super) fn input(cx: &Cx, raw: &Raw) -> Tensor {
    cx.input(raw.shallow_clone())
}

pub(super) fn forward(model: &Model, cx: &Cx, x: &Raw, valid: &Raw) -> Output {
    model.forward(cx, &input(cx, x), &input(cx, valid)).unwrap()
}

fn objective() -> Objective {
    Objective::new(&TrainConfig::default())
}

impl Bench {
    pub(super) fn eval(&self, x: &Raw, valid: &Raw) -> Output {
        forward(&self.model, &Cx::eval(&self.params), x, valid)
    }

    fn loss(&self, cx: &Cx, [x, x_valid, y, y_valid]: &[Raw; 4]) -> Tensor {
        let output = forward(&self.model, cx, x, x_valid);
        let targets = self.model.targets(cx, &input(cx, y), &input(cx, y_valid)).unwrap();
        objective().forward(cx, &output, &targets).unwrap().sum
    }

    /// Standardised targets, 0 where missing.
    fn targets(&self, y: &Raw, valid: &Raw) -> Raw {
        let cx = Cx::eval(&self.params);
        let targets = self.model.targets(&cx, &input(&cx, y), &input(&cx, valid)).unwrap();
        let z = targets.z.raw();
        z.where_self(targets.valid.raw(), &z.zeros_like())
    }

    fn denorm(&self, z: &Raw) -> Raw {
        let cx = Cx::eval(&self.params);
        self.model.denorm(&cx, &input(&cx, z)).unwrap().raw().shallow_clone()
    }

    pub(super) fn gradients(&self, data: &[Raw; 4]) -> GradBuckets {
        let grads = GradBuckets::new(&self.params).unwrap();
        let cx = Cx::train(&self.params, 1, 0);
        let loss = self.loss(&cx, data);
        cx.backward(&loss, &grads, &mut |_, _| Ok(())).unwrap();
        grads
    }
}

pub(super) fn distance(a: &Raw, b: &Raw) -> f64 {
    (a - b).abs().max().double_value(&[])
}

#[test]
fn shapes_and_the_refinement_that_begins_at_nothing() {
    for config in variants() {
        let bench = bench(&config);
        let [x, valid, ..] = batch(5);
        let out = bench.eval(&x, &valid);
        assert_eq!(out.z.raw().size(), [5, 6]);
        assert_eq!(out.base.raw().size(), [5, 6]);
        assert_eq!(distance(out.refined.raw(), out.base.raw()), 0.0);
        assert_eq!(distance(out.z.raw(), out.base.raw()), 0.0);
        let (width, start) = match config.gate {
            Gate::Off => (1, 1.0),
            Gate::Scalar => (1, 0.5),
            Gate::Tile => (bench.model.grid().tokens(), 0.5),
        };
        assert_eq!(out.gate.raw().size(), [5, width]);
        assert_eq!(distance(out.gate.raw(), &out.gate.raw().full_like(start)), 0.0);
    }
}

#[test]
fn prediction_lies_between_base_and_refinement() {
    for config in variants() {
        let bench = bench(&config);
        nudge(&bench.params, 0.1);
        let [x, valid, ..] = batch(5);
        let out = bench.eval(&x, &valid);
        let base = out.base.raw();
        let refined = out.refined.raw();
        let z = out.z.raw();
        assert!(distance(base, refined) > 1e-3);
        assert!(bool::try_from(z.ge_tensor(&base.minimum(refined)).all()).unwrap());
        assert!(bool::try_from(z.le_tensor(&base.maximum(refined)).all()).unwrap());
    }
}

#[test]
fn rows_do_not_depend_on_each_other() {
    for config in variants() {
        let bench = bench(&config);
        nudge(&bench.params, 0.1);
        let [x, valid, ..] = batch(6);
        let whole = bench.eval(&x, &valid);
        let order = Raw::from_slice(&[4_i64, 0, 5, 2, 1, 3]);
        let shuffled = bench.eval(&x.index_select(0, &order), &valid.index_select(0, &order));
        assert!(distance(&whole.z.raw().index_select(0, &order), shuffled.z.raw()) < 2e-5);
        let alone = bench.eval(&x.narrow(0, 2, 1), &valid.narrow(0, 2, 1));
        assert!(distance(&whole.z.raw().narrow(0, 2, 1), alone.z.raw()) < 2e-5);
        assert!(distance(&whole.gate.raw().narrow(0, 2, 1), alone.gate.raw()) < 2e-5);
    }
}

#[test]
fn missing_and_masked_inputs_are_the_same_and_finite() {
    let bench = bench(&config());
    nudge(&bench.params, 0.1);
    let [x, valid, ..] = batch(4);
    let marked = bench.eval(&x, &valid);
    assert!(bool::try_from(marked.z.raw().isfinite().all()).unwrap());
    // A NaN that the mask forgot, and a number that the mask hides.
    let forgotten = bench.eval(&x, &valid.ones_like());
    assert_eq!(distance(marked.z.raw(), forgotten.z.raw()), 0.0);
    let filled = x.nan_to_num(123.0, None, None);
    assert_eq!(distance(marked.z.raw(), bench.eval(&filled, &valid).z.raw()), 0.0);
    // Unseen, negative and absent categories are all the unknown one; a known one is not.
    let with_kind = |kind: f64| {
        let other = x.copy();
        let _ = other.select(1, 3).fill_(kind);
        bench.eval(&other, &valid).z.raw().shallow_clone()
    };
    assert_eq!(distance(&with_kind(4.0), &with_kind(-1.0)), 0.0);
    assert_eq!(distance(&with_kind(4.0), &with_kind(f64::NAN)), 0.0);
    assert!(distance(&with_kind(4.0), &with_kind(1.0)) > 1e-4);
}

#[test]
fn gradient_reaches_every_parameter() {
    for config in variants() {
        let bench = bench(&config);
        nudge(&bench.params, 0.1);
        let grads = bench.gradients(&batch(16));
        for (id, name, _) in bench.params.iter() {
            let largest = grads.view(id).abs().max().double_value(&[]);
            assert!(largest > 1e-7 && largest.is_finite(), "{name} has gradient {largest}");
        }
    }
}

#[test]
fn gradient_equals_the_slope_of_the_loss() {
    for config in variants() {
        let bench = bench(&config);
        nudge(&bench.params, 0.1);
        let data = batch(16);
        let grads = bench.gradients(&data);
        for (id, name, weight) in bench.params.iter() {
            // Along its own gradient a parameter's slope is the gradient's norm: large enough to be measured in f32.
            let grad = grads.view(id);
            let norm = grad.norm().double_value(&[]);
            let mut weight = weight.shallow_clone();
            let reach = 4e-3;
            let mut loss_at = |by: f64| {
                let _ = tch::no_grad(|| weight.f_add_(&(grad * (by / norm)))).unwrap();
                let loss = bench.loss(&Cx::eval(&bench.params), &data).raw().double_value(&[]);
                let _ = tch::no_grad(|| weight.f_sub_(&(grad * (by / norm)))).unwrap();
                loss
            };
            let slope = (loss_at(reach) - loss_at(-reach)) / (2.0 * reach);
            assert!((slope - norm).abs() < 0.02 * norm + 5e-3, "{name}: slope {slope}, gradient {norm}");
        }
    }
}

/// Small tensors: more threads than one only wait for each other.
fn one_thread() {
    tch::set_num_threads(1);
}

/// Trains on 32 rows and gives the mean loss before and after.
fn overfit(config: &ModelConfig, steps: i64) -> (f64, f64) {
    let bench = bench(config);
    let data = batch(32);
    let mut grads = GradBuckets::new(&bench.params).unwrap();
    let weights = FlatParams::of(&bench.params);
    let settings = AdamWSettings { betas: (0.9, 0.99), weight_decay: 0.0, clip: 1.0 };
    let optimizer = AdamW::new(&weights, settings).unwrap();
    let mean = |bench: &Bench| bench.loss(&Cx::eval(&bench.params), &data).raw().double_value(&[]) / 190.0;
    let first = mean(&bench);
    for step in 0..steps {
        grads.zero().unwrap();
        let cx = Cx::train(&bench.params, 1, step as u64);
        let loss = bench.loss(&cx, &data);
        cx.backward(&loss, &grads, &mut |_, _| Ok(())).unwrap();
        let scalar = |value: f64| cx.input(Raw::from(value));
        let norm = optimizer.complete(&cx, &grads).unwrap();
        optimizer.step(&cx, &grads, None, &norm, &scalar(190.0), &scalar(5e-3)).unwrap();
    }
    (first, mean(&bench))
}

#[test]
fn learns_thirty_two_rows() {
    for config in [config(), ModelConfig { gate: Gate::Tile, linear_branch: true, ..config() }] {
        let (first, last) = overfit(&config, 120);
        assert!(last < first / 10.0, "from {first} to {last}");
    }
}

#[test]
fn dropout_acts_in_training_only() {
    let bench = bench(&ModelConfig { dropout: 0.5, drop_path: 0.5, ..config() });
    nudge(&bench.params, 0.1);
    let [x, valid, ..] = batch(8);
    let train = |step| forward(&bench.model, &Cx::train(&bench.params, 1, step), &x, &valid).z;
    assert!(distance(train(0).raw(), train(1).raw()) > 1e-4);
    assert_eq!(distance(train(3).raw(), train(3).raw()), 0.0);
    assert_eq!(distance(bench.eval(&x, &valid).z.raw(), bench.eval(&x, &valid).z.raw()), 0.0);
}

#[test]
fn start_from_data_is_ridge_regression() {
    let mut bench = bench(&ModelConfig { linear_branch: true, ..config() });
    let [x, x_valid, y, y_valid] = batch(32);
    let report = bench
        .model
        .initialise_from_data(&mut bench.params, RowTensors { x: &x, x_valid: &x_valid, y: &y, y_valid: &y_valid })
        .unwrap();
    assert!(report.ridge.is_some_and(|(lambda, freedom)| lambda > 0.0 && freedom > 1.0));
    assert_eq!(report.rows, 32);
    let cx = Cx::eval(&bench.params);
    let (features, _) = bench.model.read(&cx, &input(&cx, &x), &input(&cx, &x_valid)).unwrap();
    let features = features.raw().to_kind(Kind::Double);
    let z = bench.targets(&y, &y_valid).to_kind(Kind::Double);
    let expected = ridge::Ridge::fit(&features, &z, 0).unwrap().predict(&features).unwrap();
    let out = bench.eval(&x, &x_valid);
    assert!(distance(&out.z.raw().to_kind(Kind::Double), &expected) < 1e-4);
    assert!(distance(&expected, &z.zeros_like()) > 0.5);
    assert!(report.explained > 0.5, "explained {}", report.explained);
}

#[test]
fn factors_start_as_principal_components() {
    let mut bench = bench(&ModelConfig { head_rank: 6, ..config() });
    let [x, x_valid, y, y_valid] = batch(32);
    let report = bench
        .model
        .initialise_from_data(&mut bench.params, RowTensors { x: &x, x_valid: &x_valid, y: &y, y_valid: &y_valid })
        .unwrap();
    assert_eq!(report.ridge, None);
    assert!((report.explained - 1.0).abs() < 1e-9);
    let z = bench.targets(&y, &y_valid);
    let centred = &z - z.mean_dim([0].as_slice(), true, Kind::Float);
    let covariance = centred.tr().matmul(&centred) / 32.0;
    let factors = bench.params.get(bench.params.by_name("base.factors").unwrap());
    assert!(distance(&factors.matmul(&factors.tr()), &covariance) < 1e-4);
}

#[test]
fn too_few_rows_leave_the_start_as_it_is() {
    let mut bench = bench(&ModelConfig { linear_branch: true, ..config() });
    let [x, x_valid, y, y_valid] = batch(2);
    let report = bench
        .model
        .initialise_from_data(&mut bench.params, RowTensors { x: &x, x_valid: &x_valid, y: &y, y_valid: &y_valid })
        .unwrap();
    assert_eq!((report.rows, report.ridge), (2, None));
    assert_eq!(bench.eval(&x, &x_valid).z.raw().abs().max().double_value(&[]), 0.0);
}

#[test]
fn predictions_return_to_the_users_units_within_the_declared_range() {
    let bench = bench(&ModelConfig { output_range: Some((45.0, 60.0)), ..config() });
    let z = Raw::from_slice(&[-3.0_f32, 0.0, 0.5, 3.0, 0.1, -0.1]).reshape([1, 6]);
    let y = bench.denorm(&z);
    assert_eq!(y.kind(), Kind::Float);
    let expected = Raw::from_slice(&[45.0_f32, 50.0, 55.0, 60.0, 51.0, 49.0]).reshape([1, 6]);
    assert!(distance(&y, &expected) < 1e-5);
}

#[test]
fn buffers_leave_and_return_by_name() {
    let mut bench = bench(&config());
    let names: Vec<String> = bench.model.buffers().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 6);
    let value = Raw::full([6], 42.0, (Kind::Double, Device::Cpu));
    bench.model.load_buffer("scaler.y_mean", &value).unwrap();
    assert_eq!(bench.denorm(&Raw::zeros([1, 6], (Kind::Float, Device::Cpu))).double_value(&[0, 5]), 42.0);
    assert!(bench.model.load_buffer("scaler.x_mean", &value).unwrap_err().to_string().contains("[6], expected [4]"));
    assert!(bench.model.load_buffer("scaler.other", &value).unwrap_err().to_string().contains("scaler.other"));
}

#[test]
fn grids_of_one_to_three_axes() {
    for (out_shape, patch) in [(vec![7], vec![1, 4]), (vec![2, 3], vec![1]), (vec![2, 3, 2], vec![2, 2, 1])] {
        let cells: usize = out_shape.iter().product();
        let spec = ModelSpec { out_shape, y_stats: vec![spec().y_stats[0]; cells], ..spec() };
        let mut pb = ParamBuilder::new();
        let model = Model::build(&ModelConfig { patch, gate: Gate::Tile, ..config() }, &spec, &mut pb).unwrap();
        let params = pb.build(1, Device::Cpu).unwrap();
        let [x, valid, ..] = batch(3);
        let out = forward(&model, &Cx::eval(&params), &x, &valid);
        assert_eq!(out.z.raw().size(), [3, cells as i64]);
    }
}

#[test]
fn names_are_unique_and_as_documented() {
    let bench = bench(&ModelConfig { linear_branch: true, ..config() });
    let shapes: std::collections::BTreeMap<String, Vec<i64>> =
        bench.params.named().map(|(name, raw)| (name.to_owned(), raw.size())).collect();
    assert_eq!(shapes.len(), bench.params.iter().count());
    for (name, shape) in [
        ("embedding.category_3.weight", vec![5, 4]),
        ("fuser.spatial.tokeniser.weight", vec![3 * 16, 8]),
        ("fuser.temporal.block_0.retention.qvg.weight", vec![48, 16]),
        ("fuser.temporal.block_0.retention.beta", vec![2]),
        ("fuser.perceiver.round_0.cross.attention.kv.weight", vec![32, 16]),
        ("fuser.perceiver.round_0.self_0.feed.in.weight", vec![42, 16]),
        ("collector.axis_1", vec![2, 16]),
        ("collector.block_1.feed.out.weight", vec![16, 21]),
        ("base.factors", vec![6, 6]),
        ("base.linear", vec![6, 8]),
        ("refine.out.weight", vec![2, 16]),
        ("gate.norm.weight", vec![34]),
    ] {
        assert_eq!(shapes.get(name), Some(&shape), "{name}");
    }
}

/// A model with the head of a loss, begun from 64 rows.
fn begun(loss: Loss) -> (Bench, Objective, [Raw; 4]) {
    one_thread();
    let train = TrainConfig { loss, ..TrainConfig::default() };
    let spec = ModelSpec { head: Head::new(&train), ..spec() };
    let mut pb = ParamBuilder::new();
    let model = Model::build(&ModelConfig { linear_branch: true, ..config() }, &spec, &mut pb).unwrap();
    let mut bench = Bench { model, params: pb.build(7, Device::Cpu).unwrap() };
    let data = batch(64);
    let [x, x_valid, y, y_valid] = &data;
    bench.model.initialise_from_data(&mut bench.params, RowTensors { x, x_valid, y, y_valid }).unwrap();
    (bench, Objective::new(&train), data)
}

#[test]
fn distributions_begin_with_the_spread_of_the_residuals() {
    for loss in [Loss::Quantile, Loss::Gaussian, Loss::Crps, Loss::StudentT] {
        let (bench, _, [x, x_valid, y, y_valid]) = begun(loss);
        let cx = Cx::eval(&bench.params);
        let output = forward(&bench.model, &cx, &x, &x_valid);
        let answer = bench.model.answer(&cx, &output).unwrap();
        let [low, middle, high] = answer.quantiles.as_slice() else { panic!("{loss:?}") };
        assert_eq!(distance(middle.raw(), answer.point.raw()), 0.0);
        let held = y.ge_tensor(low.raw()).logical_and(&y.le_tensor(high.raw())).logical_and(&y_valid);
        let share = held.to_kind(Kind::Double).sum(Kind::Double) / y_valid.to_kind(Kind::Double).sum(Kind::Double);
        let share = share.double_value(&[]);
        assert!((0.7..0.99).contains(&share), "{loss:?}: 80 % intervals hold {share}");
    }
}

#[test]
fn gradient_reaches_every_parameter_of_every_head() {
    for loss in [Loss::Quantile, Loss::Gaussian] {
        let (bench, objective, [x, x_valid, y, y_valid]) = begun(loss);
        nudge(&bench.params, 0.1);
        let grads = GradBuckets::new(&bench.params).unwrap();
        let cx = Cx::train(&bench.params, 1, 0);
        let output = forward(&bench.model, &cx, &x, &x_valid);
        let targets = bench.model.targets(&cx, &input(&cx, &y), &input(&cx, &y_valid)).unwrap();
        let sum = objective.forward(&cx, &output, &targets).unwrap().sum;
        cx.backward(&sum, &grads, &mut |_, _| Ok(())).unwrap();
        for (id, name, _) in bench.params.iter() {
            let largest = grads.view(id).abs().max().double_value(&[]);
            assert!(largest > 1e-7 && largest.is_finite(), "{loss:?}: {name} has gradient {largest}");
        }
        let shape = |name: &str| bench.params.get(bench.params.by_name(name).unwrap()).size();
        let channels = objective.head().channels();
        assert_eq!(shape("base.channels.weight"), [channels * 6, 6]);
        assert_eq!(shape("base.channels.bias"), [channels, 6]);
        assert_eq!(shape("refine.channel_0.weight"), [2, 16]);
    }
}

#[test]
fn classes_begin_at_their_share_of_the_rows() {
    let train = TrainConfig { loss: Loss::CrossEntropy, ..TrainConfig::default() };
    let rates = [0.5, 0.3, 0.2];
    let stats = rates.map(|mean: f64| Stats { n: 32, mean, std: (mean * (1.0 - mean)).sqrt(), min: 0.0, max: 1.0 });
    let out_shape = vec![3];
    let y_stats = stats.to_vec();
    let spec = ModelSpec { head: Head::new(&train), out_shape, y_stats, ..spec() };
    let mut pb = ParamBuilder::new();
    let model = Model::build(&ModelConfig { linear_branch: true, ..config() }, &spec, &mut pb).unwrap();
    let mut params = pb.build(7, Device::Cpu).unwrap();
    // Classes that have nothing to do with the inputs.
    let [x, x_valid, ..] = batch(200);
    let class = Raw::arange(200, (Kind::Int64, Device::Cpu)).remainder(10).view([200, 1]);
    let cut = |low: f64, high: f64| class.ge(low).logical_and(&class.lt(high)).to_kind(Kind::Float);
    let y = Raw::cat(&[cut(0.0, 5.0), cut(5.0, 8.0), cut(8.0, 10.0)], 1);
    let y_valid = y.isfinite();
    model.initialise_from_data(&mut params, RowTensors { x: &x, x_valid: &x_valid, y: &y, y_valid: &y_valid }).unwrap();
    let cx = Cx::eval(&params);
    let answer = model.answer(&cx, &forward(&model, &cx, &x, &x_valid)).unwrap();
    assert!(answer.quantiles.is_empty());
    let sums = answer.point.raw().sum_dim_intlist(1i64, false, Kind::Double);
    assert!(distance(&sums, &sums.ones_like()) < 1e-6);
    let mean = Vec::<f64>::try_from(answer.point.raw().mean_dim(0i64, false, Kind::Double)).unwrap();
    assert!(mean.iter().zip(rates).all(|(found, rate)| (found - rate).abs() < 0.05), "{mean:?}");
    let targets = model.targets(&cx, &input(&cx, &y), &input(&cx, &y_valid)).unwrap();
    assert_eq!(distance(targets.z.raw(), &y), 0.0, "classes are not standardised");
}

#[test]
fn the_tail_is_f32_in_low_precision() {
    let data = batch(6);
    for config in variants() {
        let bench = bench(&config);
        let cx = Cx::train(&bench.params, 0, 0);
        cx.set_autocast(Some(Autocast::bf16())).unwrap();
        let output = forward(&bench.model, &cx, &data[0], &data[1]);
        assert_eq!([&output.z, &output.base, &output.refined].map(Tensor::kind), [Kind::Float; 3]);
        cx.with_program(|program| {
            // A result of 16 bits, and whether it is the tail's.
            let low: Vec<bool> = program
                .recs()
                .iter()
                .filter(|rec| rec.outs().any(|val| program.val(val).meta.kind == Kind::BFloat16))
                .map(|rec| program.place(rec.scope))
                .map(|place| ["base", "refine", "gate"].iter().any(|tail| place.split('.').next() == Some(tail)))
                .collect();
            assert!(!low.is_empty() && !low.contains(&true), "{low:?} in {config:?}");
        });
    }
}
