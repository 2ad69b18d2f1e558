//! Tests of what a model is composed of: every composition learns everywhere, the preset is a short form, weights keep their
//! names, and streams carry their state.

use super::tests::{Bench, batch, bench, config, distance, forward, input, nudge, spec, tasks};
use super::*;
use crate::block::{SubModel, SubModelSpec};
use enn_common::config::{
    forest::{Forest, Reduction, Task},
    model::{Norm, Preset},
};
use enn_core::params::Params;
use std::collections::BTreeMap;

/// Every mixer with every reduction, norm and gate; sub-fusers in all.
fn compositions() -> Vec<ModelConfig> {
    let mut all = Vec::new();
    for (_, mixer) in Mixer::NAMES {
        for (_, fuser_reduction) in Reduction::NAMES {
            for norm in [Norm::LayerNorm, Norm::RmsNorm] {
                for gate in [Gate::Off, Gate::Scalar, Gate::Tile] {
                    let segments = vec![2, 4];
                    let dilations = vec![1, 2];
                    let tasks = tasks();
                    all.push(ModelConfig {
                        mixer,
                        fuser_reduction,
                        norm,
                        gate,
                        segments,
                        dilations,
                        tasks,
                        ..config()
                    });
                }
            }
        }
    }
    all
}

#[test]
fn gradient_reaches_every_parameter_of_every_composition() {
    let compositions = compositions();
    assert_eq!(compositions.len(), 36);
    let data = batch(16);
    for config in compositions {
        let bench = bench(&config);
        nudge(&bench.params, 0.1);
        let grads = bench.gradients(&data);
        for (id, name, _) in bench.params.iter() {
            let largest = grads.view(id).abs().max().double_value(&[]);
            assert!(largest > 1e-7 && largest.is_finite(), "{name} has gradient {largest} in {config:?}");
        }
    }
}

fn values(params: &Params) -> BTreeMap<String, Raw> {
    params.named().map(|(name, raw)| (name.to_owned(), raw.copy())).collect()
}

fn trained_hash(bench: &Bench, data: &[Raw; 4]) -> String {
    let cx = Cx::train(&bench.params, 1, 0);
    let _ = forward(&bench.model, &cx, &data[0], &data[1]);
    cx.program_hash()
}

#[test]
fn the_preset_is_short_for_its_tasks() {
    let short = config();
    let long = ModelConfig { preset: Preset::None, tasks: Forest::new(short.preset_tasks()).unwrap(), ..short.clone() };
    let one = bench(&short);
    let two = bench(&long);
    let data = batch(5);
    assert_eq!(trained_hash(&one, &data), trained_hash(&two, &data));
    assert!(values(&one.params).iter().eq(values(&two.params).iter()));
    assert_eq!(distance(one.eval(&data[0], &data[1]).z.raw(), two.eval(&data[0], &data[1]).z.raw()), 0.0);
}

#[test]
fn tasks_that_come_and_go_leave_the_other_weights_alone() {
    let without = values(&bench(&config()).params);
    let with = values(&bench(&ModelConfig { tasks: tasks(), ..config() }).params);
    for (name, raw) in &without {
        // By name, shape and seed.
        assert!(with.get(name).is_some_and(|other| other.equal(raw)), "{name}");
    }
    let mut moved = tasks();
    moved.detach("inner").unwrap();
    moved.attach("alone", "outer").unwrap();
    let moved = values(&bench(&ModelConfig { tasks: moved, ..config() }).params);
    assert!(moved.keys().eq(with.keys()));
    for name in
        ["fuser.week.block_0.true_retention.qkvg.weight", "fuser.year.factor", "fuser.day.block_0.dilated.qkv.bias"]
    {
        assert!(with.contains_key(name), "{name} of {:?}", with.keys());
    }
    // Sub-fusers read with the one Perceiver.
    assert!(with.keys().all(|name| !name.starts_with("fuser.outer") && !name.contains("inner.perceiver")));
    assert_eq!(with.keys().filter(|name| name.ends_with("perceiver.latents")).count(), 1);
}

#[test]
fn weights_that_several_joins_share_are_saved_once_and_give_the_same_bits() {
    let config = ModelConfig { tasks: tasks(), fuser_reduction: Reduction::Linear, ..config() };
    let one = bench(&config);
    nudge(&one.params, 0.1);
    let mut pb = ParamBuilder::new();
    let model = Model::build(&config, &spec(), &mut pb).unwrap();
    let mut params = pb.build(99, Device::Cpu).unwrap();
    let saved = values(&one.params);
    params.load(saved.iter().map(|(name, raw)| (name.as_str(), raw))).unwrap();
    let two = Bench { model, params };
    let [x, valid, ..] = batch(6);
    assert_eq!(distance(one.eval(&x, &valid).z.raw(), two.eval(&x, &valid).z.raw()), 0.0);
    let latents = two.params.get(two.params.by_name("fuser.perceiver.latents").unwrap());
    let _ = tch::no_grad(|| latents.shallow_clone().f_add_(&latents.randn_like())).unwrap();
    assert!(distance(one.eval(&x, &valid).z.raw(), two.eval(&x, &valid).z.raw()) > 1e-6);
}

#[test]
fn the_weight_of_a_task_and_not_its_tokens_says_how_much_it_counts() {
    // All tokens of a task alike: then only its share of the attention matters.
    let share = |tokens: usize, weight: f64| {
        let mut list = tasks().tasks().to_vec();
        for task in list.iter_mut().filter(|task| task.name == "alone") {
            task.weight = weight;
            if let Part::Template(template) = &mut task.part {
                template.tokens = tokens;
                template.depth = 0;
            }
        }
        let bench = bench(&ModelConfig { tasks: Forest::new(list).unwrap(), ..config() });
        for (end, value) in [("weight", 0.0), ("bias", 0.0)] {
            let id = bench.params.by_name(&format!("fuser.alone.tokeniser.{end}")).unwrap();
            let _ = tch::no_grad(|| bench.params.get(id).shallow_clone().f_fill_(value)).unwrap();
        }
        let [x, valid, ..] = batch(4);
        let cx = Cx::eval(&bench.params);
        let (features, _) = bench.model.read(&cx, &input(&cx, &x), &input(&cx, &valid)).unwrap();
        bench.model.fuser.forward(&cx, &features, None).unwrap().raw().shallow_clone()
    };
    let few = share(2, 1.0);
    // Code for AddressSanitizer rounds elsewhere.
    let near = if option_env!("ENN_ASAN").is_some() { 1e-4 } else { 1e-5 };
    assert!(distance(&few, &share(14, 1.0)) < near);
    assert!(distance(&few, &share(14, 7.0)) > 1e-3);
}

#[test]
fn a_stream_goes_on_where_the_call_before_it_ended() {
    let bench = bench(&ModelConfig { mixer: Mixer::Retention, ..config() });
    nudge(&bench.params, 0.3);
    let first = batch(5);
    let second = batch(6);
    let cx = Cx::eval(&bench.params);
    let call = |[x, valid, ..]: &[Raw; 4], state: &StreamState| {
        let x = x.narrow(0, 0, 5);
        let valid = valid.narrow(0, 0, 5);
        bench.model.forward_stream(&cx, &cx.input(x), &cx.input(valid), state).unwrap()
    };
    let (one, between) = call(&first, &StreamState::default());
    // The first call has nothing before it.
    assert_eq!(distance(one.z.raw(), bench.eval(&first[0], &first[1]).z.raw()), 0.0);
    assert_eq!(between.iter().map(|(task, states)| (task, states.len())).collect::<Vec<_>>(), [("temporal", 1)]);
    let (two, after) = call(&second, &between);
    let (fresh, _) = call(&second, &StreamState::default());
    // What was kept in a file goes on as if it had not been.
    let kept: std::collections::BTreeMap<String, Raw> =
        between.named().into_iter().map(|(name, state)| (name, state.copy())).collect();
    let (again, _) = call(&second, &StreamState::restore(&kept).unwrap());
    assert_eq!(distance(two.z.raw(), again.z.raw()), 0.0);
    let other = kept.into_iter().map(|(name, state)| (name.replace("temporal", "other"), state)).collect();
    let other = bench.model.forward_stream(
        &cx,
        &cx.input(second[0].narrow(0, 0, 5)),
        &cx.input(second[1].narrow(0, 0, 5)),
        &StreamState::restore(&other).unwrap(),
    );
    let told = other.map(|_| ()).unwrap_err().to_string();
    assert!(
        told.starts_with("the state of the stream is of other (1 blocks), expected that of temporal (1 blocks)"),
        "{told}"
    );
    assert!(distance(two.z.raw(), fresh.z.raw()) > 1e-5);
    assert!(after.iter().zip(between.iter()).all(|((_, a), (_, b))| distance(&a[0], &b[0]) > 1e-4));
    // Rows of a batch keep to themselves: the same rows in another order carry the same states.
    let order = Raw::from_slice(&[3_i64, 1, 4, 0, 2]);
    let turned = |data: &[Raw; 4]| data.each_ref().map(|raw| raw.narrow(0, 0, 5).index_select(0, &order));
    let (_, turned_state) = call(&turned(&first), &StreamState::default());
    let (turned_two, _) = call(&turned(&second), &turned_state);
    assert!(distance(&two.z.raw().index_select(0, &order), turned_two.z.raw()) < 2e-5);
    // Another number of rows has no state.
    let x = cx.input(second[0].shallow_clone());
    let valid = cx.input(second[1].shallow_clone());
    let error = bench.model.forward_stream(&cx, &x, &valid, &between).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("[5, 2, 8, 8]") || error.contains("state"), "{error}");
}

#[test]
fn what_keeps_no_state_is_no_stream_unless_it_is_spatial() {
    let call = |config: &ModelConfig| {
        let bench = bench(config);
        let [x, valid, ..] = batch(3);
        let cx = Cx::eval(&bench.params);
        bench.model.forward_stream(&cx, &input(&cx, &x), &input(&cx, &valid), &StreamState::default())
    };
    let error = call(&ModelConfig { mixer: Mixer::Dilated, ..config() }).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("task \"temporal\" is temporal and has the mixer \"dilated\""), "{error}");
    let (_, state) = call(&ModelConfig { mixer: Mixer::Dilated, preset: Preset::Spatial, ..config() }).unwrap();
    assert_eq!(state.iter().count(), 0);
}

/// Doubles its tokens, or gives fewer of them.
struct Doubling {
    short: bool,
}

impl SubModel for Doubling {
    fn forward(&self, cx: &Cx, tokens: &Tensor) -> Result<Tensor, OpError> {
        let kept = tokens.dim(1) - i64::from(self.short);
        functional::scale(cx, &functional::narrow(cx, tokens, 1, 0, kept)?, 2.0)
    }
}

#[test]
fn a_model_of_the_users_gets_tokens_and_gives_as_many() {
    let mut tasks = Forest::default();
    let template = TemplateConfig {
        mode: Mode::Spatial,
        depth: 0,
        tokens: 5,
        mixer: Mixer::GatedEma,
        model: Some("doubling".to_owned()),
    };
    tasks.add(Task::template("own", template)).unwrap();
    let config = ModelConfig { tasks, ..config() };
    let build = |models: SubModels| {
        let mut pb = ParamBuilder::new();
        Model::build_with(&config, &spec(), &models, &mut pb).map(|model| (model, pb.build(7, Device::Cpu).unwrap()))
    };
    let models = |short: bool| {
        SubModels::new().with("doubling", move |_, SubModelSpec { tokens, width }| {
            assert_eq!((tokens, width.model), (5, 16));
            Box::new(Doubling { short })
        })
    };
    let error = build(SubModels::new()).unwrap_err().to_string();
    assert!(error.contains("asks for the model \"doubling\", which this worker does not have (it has none"), "{error}");
    let [x, valid, ..] = batch(3);
    let answer = |(model, params): &(Model, Params)| {
        let cx = Cx::eval(params);
        model.forward(&cx, &input(&cx, &x), &input(&cx, &valid)).map(|output| output.z.raw().shallow_clone())
    };
    assert!(answer(&build(models(false)).unwrap()).is_ok());
    let error = answer(&build(models(true)).unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("model at fuser.own: shapes [3, 4, 16] and [3, 5, 16] do not fit"), "{error}");
}
