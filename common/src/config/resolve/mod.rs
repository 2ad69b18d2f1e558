//! `resolve`: what was typed becomes what it means. Pure: text and facts in, the configuration or all mistakes out.

mod data;
mod kernels;
mod model;
mod tasks;
mod train;

pub use data::{ALL_COLUMNS, MISSING_DEFAULT};

use super::{
    RunConfig,
    data::{DataConfig, Layout},
    error::{ConfigError, ConfigErrorKind},
    facts::Facts,
    model::ModelConfig,
    names,
    raw::RawConfig,
    section::Section,
    train::{Loss, TrainConfig},
};

/// Version of run.json that this code writes.
pub const RUN_VERSION: u32 = 1;

/// Gives the raw configuration its meaning, fills in defaults and checks every range. Returns all mistakes, in the order
/// of the sections.
///
/// `nproc_per_node` and `device` come out definite (a count; CPU or CUDA), so that run.json says what ran.
pub fn resolve(raw: &RawConfig, facts: &Facts) -> Result<RunConfig, Vec<ConfigError>> {
    let mut errors = Vec::new();
    let mut root = Section::root(&raw.root, raw.notes.clone());
    let name = root.text("name").unwrap_or_else(|| "run".into());
    let seed = root.integer("seed", 0..=i64::MAX, 0).unsigned_abs();
    let mut inner = Vec::new();
    let mut data = root.section("data").map(|section| data::resolve(section, seed, facts, &mut inner));
    let model = model_of(&mut root, true, &mut inner);
    let sayings = Sayings::of(&mut root);
    if let Some(Some(data)) = &mut data {
        sayings.to_data(data);
    }
    let loss = sayings.loss(data.as_ref().and_then(Option::as_ref));
    let train = train::resolve(root.section("train").unwrap_or_else(Section::empty), loss, &mut inner);
    if let Some(Some(data)) = &data {
        check_classes(&root, data, &model, &train, &mut inner);
    }
    let cluster = root.section("cluster").unwrap_or_else(Section::empty);
    let cluster = train::resolve_cluster(cluster, facts, &mut inner);
    let kernels = kernels::resolve(&mut root);
    root.finish(&mut errors);
    errors.append(&mut inner);
    if !errors.is_empty() {
        return Err(errors);
    }
    let data = data.flatten();
    Ok(RunConfig { version: RUN_VERSION, name, seed, data, model, train, cluster, kernels, parent: None })
}

/// Checks the loss against the kind of the target: the one that is not said follows the other.
struct Sayings {
    loss: Option<Loss>,
    says_kind: bool,
}

impl Sayings {
    fn of(root: &mut Section<'_>) -> Self {
        // What is wrong with the values is told where the sections are read.
        let loss = root.section("train").and_then(|mut train| train.name("loss", &names::all()));
        let rows = root.section("data").and_then(|mut data| data.section("rows"));
        Self { loss, says_kind: rows.is_some_and(|rows| rows.has("target_kind")) }
    }

    /// A single target is a category where the loss is that of classes.
    fn to_data(&self, data: &mut DataConfig) {
        if let Layout::Rows(rows) = &mut data.layout
            && self.loss == Some(Loss::CrossEntropy)
            && !self.says_kind
        {
            rows.classes = rows.targets.len() == 1 && rows.out_shape.len() == 1;
        }
    }

    /// The loss where none is said.
    fn loss(&self, data: Option<&DataConfig>) -> Loss {
        match data.map(|data| &data.layout) {
            Some(Layout::Rows(rows)) if rows.classes => Loss::CrossEntropy,
            _ => Loss::Huber,
        }
    }
}

/// The model alone, whose tasks may still lack some: for who edits them.
pub fn resolve_model(raw: &RawConfig) -> Result<ModelConfig, Vec<ConfigError>> {
    let mut errors = Vec::new();
    let model = model_of(&mut Section::root(&raw.root, None), false, &mut errors);
    if errors.is_empty() { Ok(model) } else { Err(errors) }
}

fn model_of(root: &mut Section<'_>, whole: bool, errors: &mut Vec<ConfigError>) -> ModelConfig {
    model::resolve(root.section("model").unwrap_or_else(Section::empty), whole, errors)
}

/// Classes and their loss need each other, and probabilities have no other range.
fn check_classes(
    root: &Section<'_>,
    data: &DataConfig,
    model: &ModelConfig,
    train: &TrainConfig,
    errors: &mut Vec<ConfigError>,
) {
    let classes = matches!(&data.layout, Layout::Rows(rows) if rows.classes);
    let is_class_loss = train.loss == Loss::CrossEntropy;
    let place = root.place_of("train");
    let loss = train.loss.name();
    if classes != is_class_loss {
        let kind = ConfigErrorKind::ClassLoss { loss, found: if classes { "category" } else { "number" } };
        errors.push(ConfigError { place: place.clone(), key: "train.loss".into(), kind });
    }
    if is_class_loss && model.output_range.is_some() {
        let place = root.place_of("model");
        let kind = ConfigErrorKind::IdleForLoss { loss };
        errors.push(ConfigError { place, key: "model.output_range".into(), kind });
    }
}

#[cfg(test)]
mod tests;
