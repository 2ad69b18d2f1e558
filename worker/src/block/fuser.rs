//! The fuser: every task's tokens, weighed, read by one Perceiver.

use super::{
    Perceiver, Regularise, Template,
    perceiver::Rounds,
};
use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::{self, Direction},
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
    pub direction: Direction,
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
        direction: Direction::Bidirectional,
        depth: config.spatial_depth,
        tokens: config.spatial_latents as i64,
        weight: 1.0,
    };
    let temporal = || Task {
        name: "temporal".to_owned(),
        direction: Direction::Causal,
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

/// Features (B, F') → latents (B, K, D).
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

    /// Features (B, F') → latents (B, K, D).
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
