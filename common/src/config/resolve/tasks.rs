//! `[[model.tasks]]`, and what all tasks share.

use crate::config::{
    error::ConfigErrorKind,
    forest::{Forest, Mixer, Mode, Part, Task, TemplateConfig},
    model::ModelConfig,
    names,
    raw::{RawNode, RawValue},
    section::Section,
    shape::ValueShape,
};

const TASKS_MAX: usize = 256;
const TASKS: &str = "a list of sections, each written as [[model.tasks]]";
/// Keys that only a template has.
const OF_TEMPLATES: [&str; 5] = ["mode", "depth", "tokens", "mixer", "model"];

/// The tasks of `model`, whose other keys are read. With `whole` a model can be built from them; else they are under way to it.
pub(super) fn resolve(s: &mut Section<'_>, model: &ModelConfig, whole: bool) -> Forest {
    let tasks = match s.node("tasks", TASKS) {
        None => Vec::new(),
        Some(RawNode { value: RawValue::Array(items), .. }) if items.len() <= TASKS_MAX => {
            items.iter().map(|item| task(s, item, model)).collect()
        }
        Some(RawNode { value: RawValue::Array(items), .. }) => {
            s.out_of_range("tasks", format!("{} tasks", items.len()), format!("at most {TASKS_MAX}"));
            return Forest::default();
        }
        Some(other) => {
            s.wrong("tasks", other, &ValueShape::Other(TASKS));
            return Forest::default();
        }
    };
    if !s.errors.is_empty() {
        return Forest::default();
    }
    // Presets and tasks are one forest, and a parent may stand anywhere in it.
    let forest = Forest::new(tasks).and_then(|tasks| {
        let forest = ModelConfig { tasks: tasks.clone(), ..model.clone() }.forest()?;
        if whole { forest.check().map(|()| tasks) } else { Ok(tasks) }
    });
    forest.unwrap_or_else(|error| {
        s.error_at(if s.has("tasks") { "tasks" } else { "preset" }, ConfigErrorKind::Tasks(error));
        Forest::default()
    })
}

fn task(s: &mut Section<'_>, node: &RawNode, model: &ModelConfig) -> Task {
    let mut item = s.item("tasks", node);
    let t = &mut item;
    let name = t.text_required("name", "the name of the task");
    let weight = t.number("weight", f64::MIN_POSITIVE..=1e12, 1.0);
    let parent = t.text("parent");
    let part = match t.name("reduction", &names::all()) {
        Some(reduction) => {
            if let Some(key) = OF_TEMPLATES.into_iter().find(|key| t.has(key)) {
                t.error_at(key, ConfigErrorKind::OfTemplate);
            }
            OF_TEMPLATES.into_iter().for_each(|key| t.pass_over(key));
            Part::Fuser { reduction }
        }
        None => {
            if !t.has("mode") && !t.has("reduction") {
                let expected = "`mode` (a template: \"spatial\" or \"temporal\") or `reduction` (a sub-fuser: \"mean\" or \"linear\")";
                t.error_at("mode", ConfigErrorKind::Missing(expected));
            }
            template(t, model)
        }
    };
    item.finish(&mut s.errors);
    Task { name, weight, parent, part }
}

/// Keys that are absent are as in the preset's template of the same mode.
fn template(t: &mut Section<'_>, model: &ModelConfig) -> Part {
    let unsaid = model.template(t.name("mode", &names::all()).unwrap_or(Mode::Spatial));
    Part::Template(TemplateConfig {
        depth: t.integer("depth", 0..=256, unsaid.depth),
        tokens: t.integer("tokens", 1..=8192, unsaid.tokens),
        mixer: t.name_or_old("mixer", &Mixer::NAMES, &Mixer::OLD_NAMES).unwrap_or(unsaid.mixer),
        model: t.text("model"),
        ..unsaid
    })
}

/// The patterns of the dilated mixer: (segments, dilations).
pub(super) fn patterns(s: &mut Section<'_>) -> (Vec<usize>, Vec<usize>) {
    let segments = s.integers("segments", 1..=1 << 20).unwrap_or_else(|| vec![16, 64]);
    let dilations = s.integers("dilations", 1..=1 << 20).unwrap_or_else(|| vec![1, 4]);
    let fit = segments.iter().zip(&dilations).all(|(segment, dilation)| segment.is_multiple_of(*dilation));
    if segments.len() != dilations.len() || dilations.first() != Some(&1) || !fit {
        let found = format!("segments {segments:?} with dilations {dilations:?}");
        let expected = "two lists of equal length, each segment a multiple of its dilation, the first dilation 1";
        s.out_of_range(if s.has("dilations") { "dilations" } else { "segments" }, found, expected);
    }
    (segments, dilations)
}
