//! `[model]`.

use super::tasks;
use crate::config::{
    error::{ConfigError, ConfigErrorKind},
    forest::{Mixer, Reduction},
    model::{Gate, ModelConfig, Norm, Preset, SIZE_KEYS},
    section::Section,
};

const NORMS: &[(&str, Norm)] = &[("layernorm", Norm::LayerNorm), ("rmsnorm", Norm::RmsNorm)];
const PRESETS: &[(&str, Preset)] = &[
    ("spatial", Preset::Spatial),
    ("temporal", Preset::Temporal),
    ("spatiotemporal", Preset::SpatioTemporal),
    ("none", Preset::None),
];
const GATES: &[(&str, Gate)] = &[("off", Gate::Off), ("scalar", Gate::Scalar), ("tile", Gate::Tile)];

/// Axes of the output grid at most.
const PATCH_AXES_MAX: usize = 8;

/// Whether sizes follow the rows: as said, or where nothing else is.
fn by_rows(s: &mut Section<'_>) -> bool {
    let unsaid = !SIZE_KEYS.iter().any(|key| s.has(key));
    s.truth("by_rows", unsaid)
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
    let default = ModelConfig::default();
    let (segments, dilations) = tasks::patterns(s, &default);
    let mut model = ModelConfig {
        by_rows: by_rows(s),
        d_model: s.integer("d_model", 4..=16_384, default.d_model),
        heads: s.integer("heads", 1..=256, default.heads),
        spatial_depth: s.integer("spatial_depth", 1..=256, default.spatial_depth),
        temporal_depth: s.integer("temporal_depth", 1..=256, default.temporal_depth),
        spatial_latents: s.integer("spatial_latents", 1..=8192, default.spatial_latents),
        temporal_latents: s.integer("temporal_latents", 1..=8192, default.temporal_latents),
        mlp_ratio: s.number("mlp_ratio", 0.5..=16.0, default.mlp_ratio),
        dropout: s.number("dropout", 0.0..1.0, default.dropout),
        drop_path: s.number("drop_path", 0.0..1.0, default.drop_path),
        norm: s.name("norm", NORMS).unwrap_or(default.norm),
        preset: s.name("preset", PRESETS).unwrap_or(default.preset),
        tasks: default.tasks,
        mixer: s.name_or_old("mixer", &Mixer::NAMES, &Mixer::OLD_NAMES).unwrap_or(default.mixer),
        segments,
        dilations,
        fuser_reduction: s.name("fuser_reduction", &Reduction::NAMES).unwrap_or(default.fuser_reduction),
        fuser_rounds: s.integer("fuser_rounds", 1..=64, default.fuser_rounds),
        fuser_self_layers: s.integer("fuser_self_layers", 0..=64, default.fuser_self_layers),
        fuser_latents: s.integer("fuser_latents", 1..=8192, default.fuser_latents),
        collector_depth: s.integer("collector_depth", 0..=256, default.collector_depth),
        patch: s.integers("patch", 1..=1 << 20).unwrap_or(default.patch),
        head_rank: s.integer("head_rank", 0..=65_536, default.head_rank),
        gate: s.name("gate", GATES).unwrap_or(default.gate),
        linear_branch: s.truth("linear_branch", default.linear_branch),
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
        let expected = format!("at most {PATCH_AXES_MAX} axes");
        s.error_at("patch", ConfigErrorKind::Range { found: format!("{} axes", model.patch.len()), expected });
    }
    if let Some((low, high)) = model.output_range
        && low >= high
    {
        let expected = "the first number below the second".into();
        s.error_at("output_range", ConfigErrorKind::Range { found: format!("[{low}, {high}]"), expected });
    }
    model.tasks = tasks::resolve(s, &model, whole);
    section.finish(errors);
    model
}
