//! Compares the graphs of models of many configurations with the models themselves.

use super::{ExportedModel, Extras, Screen, graph};
use enn_common::{
    artifact::bounds::Bounds,
    config::{
        forest::{Forest, Mixer, Mode, Reduction, Task, TemplateConfig},
        model::{Gate, ModelConfig, Norm, Preset},
    },
    graph::{Binary, Graph, Id, Node, Op, eval},
    staged::{
        Histories, StagedMeta,
        meta::{CleaningReport, FeatureMeta, Stats},
    },
};
use enn_core::params::{ParamBuilder, Params};
use enn_model::model::{Head, Model, ModelSpec};
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor as Raw};

/// Describes three numbers, of which the second has gaps and the third an offset, two categories, and a grid.
fn spec(out_shape: &[usize], head: Head) -> ModelSpec {
    let feature = |name: &str, has_missing, categories: usize| FeatureMeta {
        name: name.to_owned(),
        categories: (0..categories).map(|i| i.to_string()).collect(),
        has_missing,
        ..FeatureMeta::default()
    };
    let stats = |mean: f64, std: f64| Stats { n: 32, mean, std, min: mean - 3.0 * std, max: mean + 3.0 * std };
    let cells = out_shape.iter().product();
    ModelSpec {
        features: vec![
            feature("u", false, 0),
            feature("v", true, 0),
            feature("w", false, 0),
            feature("kind", false, 4),
            feature("town", false, 3),
        ],
        out_shape: out_shape.to_vec(),
        train_rows: 32,
        x_stats: vec![stats(10.0, 2.0), stats(0.0, 1.0), stats(1e6 + 0.123, 0.5), stats(0.0, 1.0), stats(0.0, 1.0)],
        y_stats: vec![stats(50.0, 10.0); cells],
        head,
    }
}

fn config() -> ModelConfig {
    ModelConfig {
        d_model: 16,
        heads: 2,
        spatial_depth: 1,
        temporal_depth: 1,
        spatial_latents: 3,
        temporal_latents: 4,
        mlp_ratio: 2.0,
        fuser_rounds: 1,
        fuser_latents: 3,
        collector_depth: 1,
        patch: vec![1, 2],
        segments: vec![2, 4],
        dilations: vec![1, 2],
        ..ModelConfig::default()
    }
}

/// Returns rows with every kind of invalid value.
fn rows() -> Raw {
    let nan = f32::NAN;
    let values = [
        [10.5, 0.3, 1e6 + 0.5, 2.0, 1.0],
        [7.0, nan, 1e6 - 0.25, 0.0, 2.0],
        [nan, nan, nan, nan, nan],
        [12.0, -1.0, f32::INFINITY, 3.0, 0.0],
        [9.0, 2.0, 1e6, 9.0, -1.0],
    ];
    Raw::from_slice2(&values)
}

/// Builds a model in which every weight has an effect: some are zero initially.
fn model(config: &ModelConfig, spec: &ModelSpec) -> (Model, Params) {
    let mut pb = ParamBuilder::new();
    let model = Model::build(config, spec, &mut pb).unwrap();
    let params = pb.build(3, Device::Cpu).unwrap();
    tch::manual_seed(4);
    tch::no_grad(|| {
        for (_, _, weight) in params.iter() {
            let _ = weight.shallow_clone().g_add_(&(weight.randn_like() * 0.1));
        }
    });
    (model, params)
}

fn array(raw: &Raw) -> eval::Array {
    let shape: Vec<usize> = raw.size().iter().map(|size| *size as usize).collect();
    eval::Array::new(&shape, Vec::<f64>::try_from(raw.to_kind(Kind::Double).contiguous().view([-1])).unwrap())
}

/// Returns the largest distance between the graph's outputs and the model's, in units of 1 + the output.
fn distance(graph: &Graph, given: &BTreeMap<String, Raw>, own: &BTreeMap<String, Raw>) -> f64 {
    let inputs: Vec<eval::Array> = graph.inputs().iter().map(|id| array(&given[&graph.value(*id).name])).collect();
    let found = eval::run(graph, &inputs, given["x"].size()[0] as usize);
    let mut most = 0.0_f64;
    for (id, found) in graph.outputs().iter().zip(&found) {
        let expected = array(&own[&graph.value(*id).name]);
        assert_eq!(found.shape, expected.shape);
        for (a, b) in found.values.iter().zip(&expected.values) {
            assert_eq!(a.is_nan(), b.is_nan(), "{}: {a}, the model says {b}", graph.value(*id).name);
            if !b.is_nan() {
                most = most.max((a - b).abs() / (1.0 + b.abs()));
            }
        }
    }
    most
}

fn check(name: &str, config: &ModelConfig, spec: &ModelSpec, (extras, blind): (Extras, Option<Raw>)) {
    let (model, params) = model(config, spec);
    let answered = ExportedModel {
        model: &model,
        params: &params,
        out_shape: &spec.out_shape,
        blind,
        extras,
        screen: None,
        histories: None,
    };
    let graph = graph(&answered).unwrap_or_else(|error| panic!("{name}: {error}"));
    let given = answered.inputs(&rows()).unwrap();
    let own = answered.run(&given).unwrap();
    assert_eq!(graph.outputs().len(), own.len(), "{name}");
    let off = distance(&graph, &given, &own);
    assert!(off < 1e-5, "{name}: off by {off}");
    if extras.stream {
        // The second call continues from the state of the first.
        let next = given.keys().map(|key| {
            let value = own.get(&format!("next_{key}")).unwrap_or(&given[key]);
            (key.clone(), value.shallow_clone())
        });
        let next: BTreeMap<String, Raw> = next.collect();
        assert!(next.len() > 1, "{name} has a state");
        let off = distance(&graph, &next, &answered.run(&next).unwrap());
        assert!(off < 1e-5, "{name}, second call: off by {off}");
    }
}

#[test]
fn models_of_every_configuration_are_their_graphs() {
    let mut done = 0;
    let point = || spec(&[2, 3], Head::Point);
    let mut one = |name: &str, config: &ModelConfig, spec: &ModelSpec| {
        check(name, config, spec, (Extras::default(), None));
        done += 1;
    };
    for mixer in [Mixer::GatedEma, Mixer::Retention, Mixer::Dilated] {
        for preset in [Preset::Spatial, Preset::Temporal, Preset::SpatioTemporal] {
            for norm in [Norm::LayerNorm, Norm::RmsNorm] {
                let config = ModelConfig { mixer, preset, norm, ..config() };
                one(&format!("{mixer:?} {preset:?} {norm:?}"), &config, &point());
            }
        }
    }
    for gate in [Gate::Off, Gate::Scalar, Gate::Tile] {
        for linear_branch in [false, true] {
            one(&format!("{gate:?} {linear_branch}"), &ModelConfig { gate, linear_branch, ..config() }, &point());
        }
    }
    for tokens in [64, 65, 130, 200] {
        for mixer in [Mixer::GatedEma, Mixer::Retention] {
            let config = ModelConfig { spatial_latents: tokens, temporal_latents: tokens, mixer, ..config() };
            one(&format!("{tokens} tokens {mixer:?}"), &config, &point());
        }
    }
    for (shape, patch) in
        [(vec![1], vec![1]), (vec![5], vec![2]), (vec![4, 6], vec![3, 4]), (vec![2, 3, 4], vec![1, 2, 3])]
    {
        for fuser_reduction in [Reduction::Mean, Reduction::Linear] {
            let config = ModelConfig { patch: patch.clone(), fuser_reduction, ..config() };
            one(&format!("{shape:?} {fuser_reduction:?}"), &config, &spec(&shape, Head::Point));
        }
    }
    for (segments, dilations) in [(vec![4], vec![1]), (vec![2, 4, 8], vec![1, 2, 4])] {
        for tokens in [3, 33] {
            let segments = segments.clone();
            let dilations = dilations.clone();
            let config =
                ModelConfig { mixer: Mixer::Dilated, segments, dilations, temporal_latents: tokens, ..config() };
            one(&format!("dilated, {tokens} tokens {:?}", config.segments), &config, &point());
        }
    }
    for mixer in [Mixer::GatedEma, Mixer::Retention, Mixer::Dilated] {
        for (shape, patch) in [(vec![4, 4, 6], vec![2, 2, 3]), (vec![2, 4, 3, 4], vec![2, 2, 3, 2])] {
            let config = ModelConfig { mixer, patch, ..config() };
            one(&format!("{shape:?} {mixer:?}"), &config, &spec(&shape, Head::Point));
        }
    }
    let mut wide = point();
    // The table is too wide for one-hot rows, and every number has a flag.
    wide.features[3].categories = (0..40).map(|i| i.to_string()).collect();
    wide.features.iter_mut().for_each(|feature| feature.has_missing = true);
    one("flags and a wide table", &config(), &wide);
    wide.features[3].one_hot = true;
    wide.features[4].one_hot = true;
    one("one-hot rows", &config(), &wide);
    one("clamped", &ModelConfig { output_range: Some((40.0, 60.0)), ..config() }, &point());
    one("classes", &config(), &spec(&[3], Head::Classes));
    one("no self-attention", &ModelConfig { fuser_self_layers: 0, collector_depth: 0, ..config() }, &point());
    assert!(done >= 55, "{done} configurations");
}

#[test]
fn quantiles_states_and_blind_cells_are_in_the_graph() {
    let quantiles = Extras { quantiles: true, stream: false };
    let levels = Head::Quantiles { levels: vec![0.1, 0.5, 0.9] };
    let scale = Head::Scale { offsets: vec![-1.28, 0.0, 1.28] };
    for head in [levels, scale] {
        let blind = Raw::from_slice(&[false, true, false, false, false, true]);
        check(&format!("{head:?}"), &config(), &spec(&[2, 3], head), (quantiles, Some(blind)));
    }
    // Levels precede a grid of three axes, and a state is input and output besides both outputs.
    let grid = spec(&[2, 4, 6], Head::Quantiles { levels: vec![0.1, 0.5, 0.9] });
    let patched = ModelConfig { patch: vec![1, 2, 3], preset: Preset::SpatioTemporal, ..config() };
    check("a grid of three axes", &patched, &grid, (quantiles, None));
    check("everything", &patched, &grid, (Extras { quantiles: true, stream: true }, None));
    for mixer in [Mixer::GatedEma, Mixer::Retention] {
        let config = ModelConfig { mixer, preset: Preset::SpatioTemporal, temporal_depth: 2, ..config() };
        let stream = Extras { quantiles: false, stream: true };
        check(&format!("{mixer:?} stream"), &config, &spec(&[2, 3], Head::Point), (stream, None));
    }
}

#[test]
fn states_of_tasks_that_are_called_alike_stay_apart() {
    let template = |tokens| TemplateConfig { tokens, ..config().template(Mode::Temporal) };
    let task = |name: &str, tokens| Task::template(name, template(tokens));
    let tasks = vec![task("a-b", 2), task("a_b", 2), task("fr\u{fc}h", 3)];
    let config = ModelConfig { preset: Preset::None, tasks: Forest::new(tasks).unwrap(), ..config() };
    let spec = spec(&[2, 3], Head::Point);
    let (model, params) = model(&config, &spec);
    let extras = Extras { quantiles: false, stream: true };
    let answered = ExportedModel {
        model: &model,
        params: &params,
        out_shape: &spec.out_shape,
        blind: None,
        extras,
        screen: None,
        histories: None,
    };
    let inputs = answered.inputs(&rows()).unwrap();
    let names: Vec<&str> = inputs.keys().map(String::as_str).collect();
    assert_eq!(names, ["stream_a_b_0", "stream_a_b_0_2", "stream_fr_h_0", "x"]);
    check("alike", &config, &spec, (extras, None));
}

/// TensorFlow rewrites (x − a) − b to x − (a + b) where both are known, and adds them in single precision.
#[test]
fn both_parts_of_a_mean_are_subtracted_one_after_the_other() {
    let spec = spec(&[2, 3], Head::Point);
    let (model, params) = model(&config(), &spec);
    let extras = Extras::default();
    let answered = ExportedModel {
        model: &model,
        params: &params,
        out_shape: &spec.out_shape,
        blind: None,
        extras,
        screen: None,
        histories: None,
    };
    let graph = graph(&answered).unwrap();
    let is_sub = |node: &Node| node.op == Op::Binary(Binary::Sub);
    let made = |id: Id| graph.nodes().iter().find(|node| node.out == id);
    let pairs = graph.nodes().iter().filter(|node| is_sub(node)).filter_map(|node| Some((node, made(node.ins[0])?)));
    let pairs: Vec<_> = pairs.filter(|(_, first)| is_sub(first)).collect();
    let is_known = |id: Id| graph.value(id).data.is_some();
    let [(second, first)] = pairs[..] else { panic!("{pairs:?}") };
    assert!(is_known(first.ins[1]) && !is_known(second.ins[1]), "{first:?} {second:?}");
    assert_eq!(made(second.ins[1]).map(|node| &node.op), Some(&Op::Where));
}

/// Compares a graph that contains the rules of prediction with the model on rows to which the rules were applied.
#[test]
fn numbers_that_do_not_count_are_missing_inside_the_graph() {
    let spec = spec(&[2, 3], Head::Point);
    let (model, params) = model(&config(), &spec);
    let between = |low: f32, high: f32| Bounds { low: Some(low), high: Some(high), ..Bounds::default() };
    let bounds = [
        Bounds { missing: vec![0.0, -99.0], ..between(-5.0, 20.5) },
        Bounds { missing: vec![-99.0], ..Bounds::default() },
        Bounds { high: Some(2e6), ..Bounds::default() },
        Bounds { nearest: Some([0.0, 3.0]), ..Bounds::default() },
        Bounds { low: Some(0.0), ..Bounds::default() },
    ];
    let nan = f32::NAN;
    let values = [
        [10.5, 0.3, 1e6, 2.0, 1.0],
        [-9999.0, 0.3, 1e6, 2.0, 1.0],
        [1e30, 0.3, 1e6, 2.0, 1.0],
        [20.5, 0.3, 2e6, 9.0, 1.0],
        [-5.0, -99.0, 1e6, -4.0, -1.0],
        [0.0, 1e10, 3e6, nan, f32::INFINITY],
        [-0.0, -98.0, f32::NEG_INFINITY, 3.0, 2.0],
        [-99.0, nan, 3e6, nan, -1.0],
    ];
    let held = values.map(|row| std::array::from_fn::<f32, 5, _>(|column| bounds[column].held(row[column])));
    let of = |screen| {
        let extras = Extras::default();
        let out_shape = &spec.out_shape[..];
        ExportedModel { model: &model, params: &params, out_shape, blind: None, extras, screen, histories: None }
    };
    let plain = of(None);
    let whole = of(Some(Screen::of(&bounds).unwrap()));
    let given = plain.inputs(&Raw::from_slice2(&values)).unwrap();
    let expected = plain.run(&plain.inputs(&Raw::from_slice2(&held)).unwrap()).unwrap();
    let y = array(&expected["y"]).values;
    assert!(y[42..].iter().all(|value| value.is_nan()) && !y[..42].iter().any(|value| value.is_nan()), "{y:?}");
    let off = distance(&graph(&whole).unwrap(), &given, &expected);
    assert!(off < 1e-5, "off by {off}");
    let own = array(&plain.run(&given).unwrap()["y"]).values;
    assert!(
        own[6..12].iter().zip(&y[6..12]).any(|(a, b)| (a - b).abs() > 1e-3),
        "without the rules it is another answer"
    );
}

#[test]
fn series_without_history_have_no_numbers_in_the_graph() {
    let names = ["v[a,-2d,0s]", "v[b,-2d,0s]", "w[b,-1d,0s]", "v[b,-1d,0s]", "v[a,-1d,0s]", "weekday.sin"];
    let feature = |name: &&str| FeatureMeta { name: (*name).to_owned(), ..FeatureMeta::default() };
    let stats = Stats { n: 32, mean: 0.5, std: 2.0, min: -4.0, max: 4.0 };
    let meta = StagedMeta {
        version: 1,
        digest: String::new(),
        rows: 1,
        features: names.iter().map(feature).collect(),
        out_shape: vec![2, 3],
        out_labels: vec![vec!["a".to_owned(), "b".to_owned()], vec![]],
        units: String::new(),
        persistence: Some(vec![4, 4, 4, 3, 3, 3]),
        has_targets: true,
        has_classes: false,
        class_form: None,
        has_weights: false,
        split_rows: [32, 0, 0],
        sources: vec![],
        row_names: vec![],
        x_stats: vec![stats; 6],
        y_stats: vec![stats; 6],
        report: CleaningReport::default(),
    };
    let levels = Head::Quantiles { levels: vec![0.1, 0.5, 0.9] };
    let spec = ModelSpec { features: meta.features.clone(), x_stats: meta.x_stats.clone(), ..spec(&[2, 3], levels) };
    let (model, params) = model(&config(), &spec);
    let histories = Histories::of(&meta);
    let extras = Extras { quantiles: true, stream: false };
    let out_shape = &spec.out_shape[..];
    let histories = histories.as_ref();
    let whole =
        ExportedModel { model: &model, params: &params, out_shape, blind: None, extras, screen: None, histories };
    let nan = f32::NAN;
    let rows = [
        [1.0, 0.5, 2.0, 1.0, 1.0, 0.1],
        [1.0, nan, nan, nan, nan, 0.1],
        [nan, nan, 1.0, nan, nan, 0.1],
        [nan, nan, nan, nan, nan, 0.1],
        [nan, nan, nan, nan, nan, nan],
    ];
    let given = whole.inputs(&Raw::from_slice2(&rows)).unwrap();
    let own = whole.run(&given).unwrap();
    let is_told = |name: &str, row: usize| -> Vec<bool> {
        array(&own[name]).values.chunks(own[name].numel() / 5).nth(row).unwrap().iter().map(|v| !v.is_nan()).collect()
    };
    let a = [true, true, true, false, false, false];
    let b = [false, false, false, true, true, true];
    for (row, expected) in [[true; 6], a, b, [false; 6], [false; 6]].iter().enumerate() {
        assert_eq!(is_told("y", row), expected, "row {row}");
        assert_eq!(is_told("quantiles", row), expected.repeat(3), "row {row}");
    }
    assert!(distance(&graph(&whole).unwrap(), &given, &own) < 1e-5);
}
