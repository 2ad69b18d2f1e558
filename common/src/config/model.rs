//! The model's shape: what `[model]` means after resolving. launcher/TRAINING.md tells users of each key.

use super::forest::{Forest, ForestError, Mixer, Mode, Reduction, Task, TemplateConfig};
use serde::{Deserialize, Serialize};

/// Sizes and switches of the ENN model. Every field has a default: what `resolve` makes of an empty section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelConfig {
    /// Whether widths, depths, token counts and patches follow the number of training rows (see [`ModelConfig::sized`]): so they do
    /// where the configuration names none of them. If it is true, those below do not count.
    pub by_rows: bool,
    /// Width D of every token; divisible by `heads`.
    pub d_model: usize,
    /// Heads H of retention, gated moving averages and attention.
    pub heads: usize,
    /// RetNet blocks in the spatial template.
    pub spatial_depth: usize,
    /// RetNet blocks in the temporal template.
    pub temporal_depth: usize,
    /// Tokens of the spatial template.
    pub spatial_latents: usize,
    pub temporal_latents: usize,
    /// Feed-forward expansion; SwiGLU hidden width = ⌊D · mlp_ratio · 2/3⌋.
    pub mlp_ratio: f64,
    /// Element dropout rate, 0..1.
    pub dropout: f64,
    /// Largest stochastic-depth rate, 0..1, linear over depth.
    pub drop_path: f64,
    /// Normalisation of every block.
    pub norm: Norm,
    /// Which default templates exist.
    pub preset: Preset,
    /// Templates and sub-fusers besides those of the preset.
    pub tasks: Forest,
    /// How the tokens of the preset's templates hear of each other, and those of tasks that do not say.
    pub mixer: Mixer,
    /// Tokens per segment of the dilated mixer, one pattern each; multiples of their `dilations`.
    pub segments: Vec<usize>,
    /// Of how many tokens of a segment a pattern takes one; the first is 1, so that every token is in a pattern.
    pub dilations: Vec<usize>,
    /// How the model's own fuser joins the tasks that have no parent.
    pub fuser_reduction: Reduction,
    /// Cross-attention rounds of the Perceiver.
    pub fuser_rounds: usize,
    /// Self-attention layers after each round.
    pub fuser_self_layers: usize,
    /// Latents K of the Perceiver.
    pub fuser_latents: usize,
    /// Collector layers along the grid's axes.
    pub collector_depth: usize,
    /// Patch of the output grid per axis, padded with 1 to the grid's rank; the last axes may be larger than the grid.
    pub patch: Vec<usize>,
    /// Rank of the base head's output factors; 0 decides by rule: min(32, O, training rows / 4).
    pub head_rank: usize,
    /// Gate between base and refinement.
    pub gate: Gate,
    /// Adds a direct linear map from the embedded features to the base head.
    pub linear_branch: bool,
    /// Clamp of the output in target units.
    pub output_range: Option<(f64, f64)>,
}

/// Keys that give the model a size: with any of them the others are those of `ModelConfig::default`, without all follow the rows.
pub const SIZE_KEYS: [&str; 13] = [
    "d_model",
    "heads",
    "spatial_depth",
    "temporal_depth",
    "spatial_latents",
    "temporal_latents",
    "mlp_ratio",
    "fuser_rounds",
    "fuser_self_layers",
    "fuser_latents",
    "collector_depth",
    "patch",
    "tasks",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// Mean and variance over the width.
    LayerNorm,
    /// Root mean square over the width.
    RmsNorm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    Spatial,
    Temporal,
    SpatioTemporal,
    /// None: `tasks` says all.
    None,
}

/// How the gate mixes refinement into the base.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gate {
    /// p = 1: the refinement alone.
    Off,
    /// One p per sample.
    Scalar,
    /// One p per patch of the grid.
    Tile,
}

/// Sizes for so many training rows and more: D, depth, tokens of a template, latents, rounds, collector depth, patches.
pub(super) const SIZES: [(u64, [usize; 7]); 3] =
    [(0, [32, 1, 8, 16, 1, 1, 64]), (4096, [64, 2, 16, 32, 1, 2, 128]), (65_536, [128, 4, 64, 64, 2, 2, 256])];

impl ModelConfig {
    /// The sizes that are meant by `by_rows` for data of so many training rows and this output shape:
    ///
    /// | training rows | D | depth | tokens | latents | rounds | collector | patches at most |
    /// |---|---|---|---|---|---|---|---|
    /// | below 4,096 | 32 | 1 | 8 | 16 | 1 | 1 | 64 |
    /// | below 65,536 | 64 | 2 | 16 | 32 | 1 | 2 | 128 |
    /// | more | 128 | 4 | 64 | 64 | 2 | 2 | 256 |
    ///
    /// Patches grow along the last axis first, by doubling, until there are few enough. Without `by_rows` nothing changes.
    #[must_use]
    pub fn sized(&self, train_rows: u64, out_shape: &[usize]) -> Self {
        if !self.by_rows {
            return self.clone();
        }
        let found = SIZES.iter().rev().find(|(least, _)| train_rows >= *least).unwrap_or(&SIZES[0]);
        let [d_model, depth, tokens, latents, rounds, collector, patches] = found.1;
        Self {
            d_model,
            spatial_depth: depth,
            temporal_depth: depth,
            spatial_latents: tokens,
            temporal_latents: tokens,
            fuser_latents: latents,
            fuser_rounds: rounds,
            collector_depth: collector,
            patch: patch_of(out_shape, patches),
            ..self.clone()
        }
    }

    /// The preset's templates, each with weight 1, and then the tasks.
    ///
    /// # Errors
    /// When a task has the name of one of the preset's.
    pub fn forest(&self) -> Result<Forest, ForestError> {
        Forest::new(self.preset_tasks().into_iter().chain(self.tasks.tasks().iter().cloned()).collect())
    }

    /// The templates that the preset stands for; each has the name of its mode.
    pub fn preset_tasks(&self) -> Vec<Task> {
        let modes: &[Mode] = match self.preset {
            Preset::Spatial => &[Mode::Spatial],
            Preset::Temporal => &[Mode::Temporal],
            Preset::SpatioTemporal => &[Mode::Spatial, Mode::Temporal],
            Preset::None => &[],
        };
        modes.iter().map(|mode| Task::template(mode.name(), self.template(*mode))).collect()
    }

    /// The preset's template of a mode: what a task is that says no more.
    pub fn template(&self, mode: Mode) -> TemplateConfig {
        let (depth, tokens) = match mode {
            Mode::Spatial => (self.spatial_depth, self.spatial_latents),
            Mode::Temporal => (self.temporal_depth, self.temporal_latents),
        };
        TemplateConfig { mode, depth, tokens, mixer: self.mixer, model: None }
    }
}

/// The smallest patch, grown along the last axes, that cuts the grid into at most so many.
fn patch_of(out_shape: &[usize], patches_max: usize) -> Vec<usize> {
    let mut patch = vec![1; out_shape.len()];
    for axis in (0..patch.len()).rev() {
        let count = |patch: &[usize]| -> usize {
            out_shape.iter().zip(patch).map(|(length, size)| length.div_ceil(*size)).fold(1, usize::saturating_mul)
        };
        while count(&patch) > patches_max && patch[axis] < out_shape[axis] {
            patch[axis] = (2 * patch[axis]).min(out_shape[axis]);
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_rows_only_where_they_may() {
        let given = ModelConfig::default();
        assert_eq!(given.sized(10, &[39, 24]), given);
        let by_rows = ModelConfig { by_rows: true, ..given };
        let sizes = |rows| {
            let sized = by_rows.sized(rows, &[39, 24]);
            (sized.d_model, sized.temporal_depth, sized.fuser_latents, sized.patch)
        };
        assert_eq!(sizes(151), (32, 1, 16, vec![1, 24]));
        assert_eq!(sizes(4096), (64, 2, 32, vec![1, 8]));
        assert_eq!(sizes(100_000_000), (128, 4, 64, vec![1, 4]));
    }

    #[test]
    fn patches_grow_from_the_last_axis() {
        assert_eq!(patch_of(&[3, 24], 64), [1, 2]);
        assert_eq!(patch_of(&[10], 64), [1]);
        assert_eq!(patch_of(&[1000, 24], 64), [16, 24]);
        assert_eq!(patch_of(&[7, 5, 3], 1), [7, 5, 3]);
        assert_eq!(patch_of(&[], 64), [0; 0]);
    }
}
