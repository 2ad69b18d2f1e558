//! `[model]`.

use super::tasks;
use crate::config::{
    error::{ConfigError, ConfigErrorKind},
    forest::{Forest, Mixer, Reduction},
    model::{Gate, ModelConfig, Norm, Preset, SIZE_KEYS},
    names,
    section::Section,
};

/// Axes of the output grid at most.
const PATCH_AXES_MAX: usize = 8;

/// Whether sizes follow the rows: as said, or where nothing else is.
fn by_rows(s: &mut Section<'_>) -> bool {
    let unsaid = !SIZE_KEYS.iter().any(|key| s.has(key));
    s.truth_if("by_rows").unwrap_or(unsaid)
}

/// Of width and heads the one that is not said fits the other: as many heads as divide the width, or the next width that they divide.
fn fit_heads(s: &Section<'_>, model: &mut ModelConfig) {
    if !s.has("heads") {
        let fitting = (1..=model.heads).rev().find(|heads| model.d_model.is_multiple_of(*heads));
        model.heads = fitting.unwrap_or(1);
    } else if !s.has("d_model") {
        model.d_model = model.d_model.next_multiple_of(model.heads.max(1));
    }
}

/// With `whole` a model can be built by it; else its tasks are under way to it.
pub(super) fn resolve(mut section: Section<'_>, whole: bool, errors: &mut Vec<ConfigError>) -> ModelConfig {
    let s = &mut section;
    let (segments, dilations) = tasks::patterns(s);
    let mut model = ModelConfig {
        by_rows: by_rows(s),
        d_model: s.integer("d_model", 4..=16_384, 128),
        heads: s.integer("heads", 1..=256, 4),
        spatial_depth: s.integer("spatial_depth", 1..=256, 4),
        temporal_depth: s.integer("temporal_depth", 1..=256, 4),
        spatial_latents: s.integer("spatial_latents", 1..=8192, 64),
        temporal_latents: s.integer("temporal_latents", 1..=8192, 64),
        mlp_ratio: s.number("mlp_ratio", 0.5..=16.0, 4.0),
        dropout: s.number("dropout", 0.0..1.0, 0.1),
        drop_path: s.number("drop_path", 0.0..1.0, 0.0),
        norm: s.name("norm", &names::all()).unwrap_or(Norm::LayerNorm),
        preset: s.name("preset", &names::all()).unwrap_or(Preset::SpatioTemporal),
        tasks: Forest::default(),
        mixer: s.name_or_old("mixer", &Mixer::NAMES, &Mixer::OLD_NAMES).unwrap_or(Mixer::GatedEma),
        segments,
        dilations,
        fuser_reduction: s.name("fuser_reduction", &names::all()).unwrap_or(Reduction::Mean),
        fuser_rounds: s.integer("fuser_rounds", 1..=64, 2),
        fuser_self_layers: s.integer("fuser_self_layers", 0..=64, 1),
        fuser_latents: s.integer("fuser_latents", 1..=8192, 64),
        collector_depth: s.integer("collector_depth", 0..=256, 2),
        patch: s.integers("patch", 1..=1 << 20).unwrap_or_else(|| vec![1, 4]),
        head_rank: s.integer("head_rank", 0..=65_536, 0),
        gate: s.name("gate", &names::all()).unwrap_or(Gate::Scalar),
        linear_branch: s.truth("linear_branch", true),
        output_range: s.pair("output_range", ..),
    };
    fit_heads(s, &mut model);
    if !model.d_model.is_multiple_of(model.heads) {
        let key = if s.has("heads") { "heads" } else { "d_model" };
        s.error_at(key, ConfigErrorKind::Heads { d_model: model.d_model, heads: model.heads });
    }
    if model.patch.is_empty() {
        s.error_at("patch", ConfigErrorKind::Empty("patch size"));
    }
    if model.patch.len() > PATCH_AXES_MAX {
        let found = format!("{} axes", model.patch.len());
        s.out_of_range("patch", found, format!("at most {PATCH_AXES_MAX} axes"));
    }
    if let Some((low, high)) = model.output_range
        && low >= high
    {
        s.out_of_range("output_range", format!("[{low}, {high}]"), "the first number below the second");
    }
    model.tasks = tasks::resolve(s, &model, whole);
    section.finish(errors);
    model
}

impl Default for ModelConfig {
    fn default() -> Self {
        let mut model = resolve(Section::empty(), false, &mut Vec::new());
        model.by_rows = false;
        model
    }
}
