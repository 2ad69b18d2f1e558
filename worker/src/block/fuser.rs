//! The fuser: every task's tokens, weighed, read by one Perceiver.

use super::{Perceiver, Regularise, Template, perceiver::Rounds};
use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::{self, Dir},
    layer::Width,
    params::ParamBuilder,
};
use enn_common::config::model::{ModelConfig, Preset};
use tch::{Device, Tensor as Raw};

/// A template of the model, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Name, unique; part of its parameters' names.
    pub name: String,
    /// Bidirectional (spatial) or causal (temporal) retention.
    pub direction: Dir,
    /// RetNet blocks.
    pub depth: usize,
    /// Tokens N.
    pub tokens: i64,
    /// Share of the Perceiver's prior attention, relative to the other tasks; > 0.
    pub weight: f64,
}

/// The tasks that the configured preset stands for, each with weight 1.
pub fn preset_tasks(config: &ModelConfig) -> Vec<Task> {
    let spatial = || Task {
        name: "spatial".to_owned(),
        direction: Dir::Bidirectional,
        depth: config.spatial_depth,
        tokens: config.spatial_latents as i64,
        weight: 1.0,
    };
    let temporal = || Task {
        name: "temporal".to_owned(),
        direction: Dir::Causal,
        depth: config.temporal_depth,
        tokens: config.temporal_latents as i64,
        weight: 1.0,
    };
    match config.preset {
        Preset::Spatial => vec![spatial()],
        Preset::Temporal => vec![temporal()],
        Preset::SpatioTemporal => vec![spatial(), temporal()],
    }
}

/// log(wᵢ/Nᵢ) for each token of each task, (ΣN): the prior attention mass of a task is its weight, whatever its token count.
///
/// `None` when there is one task: a constant shift of all keys changes nothing.
pub fn key_bias(tasks: &[Task]) -> Option<Vec<f32>> {
    if tasks.len() < 2 {
        return None;
    }
    let bias = |task: &Task| (task.weight / task.tokens as f64).ln() as f32;
    Some(tasks.iter().flat_map(|task| std::iter::repeat_n(bias(task), task.tokens as usize)).collect())
}

/// Features (B, F') divided by √F' → latents (B, K, D).
#[derive(Debug)]
pub struct Fuser {
    templates: Vec<Template>,
    perceiver: Perceiver,
    /// (ΣN) f32.
    key_bias: Option<Raw>,
}

/// What a fuser is made of.
#[derive(Debug, Clone)]
pub struct FuserSpec {
    /// Templates, in order.
    pub tasks: Vec<Task>,
    /// Features F'.
    pub features: i64,
    /// Token sizes.
    pub width: Width,
    /// Perceiver sizes.
    pub rounds: Rounds,
    /// Largest rates.
    pub regularise: Regularise,
}

impl Fuser {
    /// Templates and Perceiver.
    pub fn new(pb: &mut ParamBuilder, name: &str, spec: &FuserSpec) -> Self {
        pb.scoped(name, |pb| Self {
            templates: spec
                .tasks
                .iter()
                .map(|task| Template::new(pb, task, spec.features, spec.width, spec.regularise))
                .collect(),
            perceiver: Perceiver::new(pb, "perceiver", spec.width, spec.rounds, spec.regularise),
            key_bias: key_bias(&spec.tasks).map(|bias| Raw::from_slice(&bias)),
        })
    }

    /// Moves the key bias.
    pub fn to_device(&mut self, device: Device) {
        self.key_bias = self.key_bias.take().map(|bias| bias.to_device(device));
    }

    /// Features (B, F') divided by √F' → latents (B, K, D).
    ///
    /// # Errors
    /// When `x` is not (B, F').
    pub fn forward(&self, cx: &Cx, x: &Tensor) -> Result<Tensor, OpError> {
        let _scope = cx.scope("fuser");
        let tokens = self.templates.iter().map(|t| t.forward(cx, x)).collect::<Result<Vec<_>, _>>()?;
        let bias = self.key_bias.as_ref().map(|raw| cx.constant(raw.shallow_clone()));
        match tokens.as_slice() {
            [only] => self.perceiver.forward(cx, only, bias.as_ref()),
            several => {
                let all = functional::cat(cx, &several.iter().collect::<Vec<_>>(), 1)?;
                self.perceiver.forward(cx, &all, bias.as_ref())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::config::model::Norm;
    use tch::Kind;

    fn task(name: &str, tokens: i64, weight: f64) -> Task {
        Task { name: name.to_owned(), direction: Dir::Causal, depth: 1, tokens, weight }
    }

    #[test]
    fn preset_names_its_tasks() {
        let names = |preset| -> Vec<String> {
            preset_tasks(&ModelConfig { preset, ..ModelConfig::default() }).into_iter().map(|t| t.name).collect()
        };
        assert_eq!(names(Preset::Spatial), ["spatial"]);
        assert_eq!(names(Preset::Temporal), ["temporal"]);
        assert_eq!(names(Preset::SpatioTemporal), ["spatial", "temporal"]);
    }

    #[test]
    fn one_task_needs_no_bias() {
        assert_eq!(key_bias(&[task("a", 5, 2.0)]), None);
        let bias = key_bias(&[task("a", 2, 1.0), task("b", 1, 3.0)]).unwrap();
        assert_eq!(bias, [0.5_f32.ln(), 0.5_f32.ln(), 3.0_f32.ln()]);
    }

    #[test]
    fn doubling_the_tokens_of_a_task_changes_nothing() {
        let mut pb = ParamBuilder::new();
        let width = Width { model: 8, heads: 2, hidden: 16, norm: Norm::LayerNorm };
        let rounds = Rounds { latents: 3, rounds: 2, self_layers: 1 };
        let perceiver =
            Perceiver::new(&mut pb, "perceiver", width, rounds, Regularise { dropout: 0.0, drop_path: 0.0 });
        let params = pb.build(1, Device::Cpu).unwrap();
        let cx = Cx::eval(&params);
        tch::manual_seed(2);
        let (a, b) =
            (Raw::randn([2, 4, 8], (Kind::Float, Device::Cpu)), Raw::randn([2, 5, 8], (Kind::Float, Device::Cpu)));
        let read = |parts: &[&Raw], tasks: &[Task]| {
            let bias = cx.constant(Raw::from_slice(&key_bias(tasks).unwrap()));
            let tokens = cx.input(Raw::cat(parts, 1));
            perceiver.forward(&cx, &tokens, Some(&bias)).unwrap().raw().shallow_clone()
        };
        let once = read(&[&a, &b], &[task("a", 4, 1.0), task("b", 5, 2.0)]);
        let twice = read(&[&a, &b, &b], &[task("a", 4, 1.0), task("b", 10, 2.0)]);
        assert!((&once - twice).abs().max().double_value(&[]) < 1e-5);
        // Without the bias of the longer task the answer does change: the test can tell.
        let unweighted = read(&[&a, &b, &b], &[task("a", 4, 1.0), task("b", 10, 4.0)]);
        assert!((once - unweighted).abs().max().double_value(&[]) > 1e-4);
    }
}
