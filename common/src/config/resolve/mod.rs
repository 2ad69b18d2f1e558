//! `resolve`: what was typed becomes what it means. Pure: text and facts in, the configuration or all mistakes out.

mod data;
mod kernels;
mod model;
mod tasks;
mod train;

use super::{
    RunConfig, error::ConfigError, facts::Facts, model::ModelConfig, raw::RawConfig, section::Section,
    train::TrainConfig,
};

/// Version of run.json that this code writes.
pub const RUN_VERSION: u32 = 1;

/// Gives the raw configuration its meaning, fills in defaults and checks every range. Returns all mistakes, in the order
/// of the sections.
///
/// `nproc_per_node` and `device` come out definite (a count; CPU or CUDA), so that run.json says what ran.
pub fn resolve(raw: &RawConfig, facts: &Facts) -> Result<RunConfig, Vec<ConfigError>> {
    let mut errors = Vec::new();
    let mut root = Section::root(&raw.root);
    let name = root.text("name").unwrap_or_else(|| "run".into());
    let seed = root.integer("seed", 0..=i64::MAX, 0).unsigned_abs();
    let mut inner = Vec::new();
    let data = root.section("data").map(|section| data::resolve(section, seed, facts, &mut inner));
    let model = model_of(&mut root, true, &mut inner);
    let train = root.section("train").map_or_else(TrainConfig::default, |section| train::resolve(section, &mut inner));
    let cluster = train::resolve_cluster(root.section("cluster"), facts, &mut inner);
    let kernels = kernels::resolve(&mut root);
    root.finish(&mut errors);
    errors.append(&mut inner);
    if errors.is_empty() {
        Ok(RunConfig { version: RUN_VERSION, name, seed, data: data.flatten(), model, train, cluster, kernels })
    } else {
        Err(errors)
    }
}

/// The model alone, whose tasks may still lack some: for who edits them.
///
/// # Errors
/// All mistakes of the section.
pub fn resolve_model(raw: &RawConfig) -> Result<ModelConfig, Vec<ConfigError>> {
    let mut errors = Vec::new();
    let model = model_of(&mut Section::root(&raw.root), false, &mut errors);
    if errors.is_empty() { Ok(model) } else { Err(errors) }
}

fn model_of(root: &mut Section<'_>, whole: bool, errors: &mut Vec<ConfigError>) -> ModelConfig {
    let unsaid = || ModelConfig { by_rows: true, ..ModelConfig::default() };
    root.section("model").map_or_else(unsaid, |section| model::resolve(section, whole, errors))
}

#[cfg(test)]
mod tests;
