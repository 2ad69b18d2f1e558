//! The task forest of a configuration's text: read, edited, written back. Comments and everything else stay as they are.

mod error;

pub use error::TaskError;

use crate::names::names;
use enn_common::config::{
    Forest, RawConfig,
    forest::{Mixer, Mode, Part, Reduction, Task},
    model::ModelConfig,
    resolve_model,
};
use std::path::Path;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value};

/// Values given for a task, as flags of `enn model`. Others keep their value, or take the default.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct TaskKeys {
    /// Template whose tokens attend to all others (spatial) or to earlier ones (temporal)
    #[arg(long, value_parser = names(&Mode::NAMES, &[]))]
    pub mode: Option<Mode>,
    /// Blocks of a template
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// Tokens of a template
    #[arg(long, value_name = "N")]
    pub tokens: Option<usize>,
    /// How the tokens of a template are mixed
    #[arg(long, value_parser = names(&Mixer::NAMES, &Mixer::OLD_NAMES))]
    pub mixer: Option<Mixer>,
    /// Module of a worker of your own behind a template's blocks; empty for none
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Sub-fuser that joins its children's tokens in one list (mean), or reads each by itself (linear)
    #[arg(long, value_parser = names(&Reduction::NAMES, &[]))]
    pub reduction: Option<Reduction>,
    /// Share of the attention, relative to the tasks with the same parent; above 0 [default: 1]
    #[arg(long, value_name = "WEIGHT")]
    pub weight: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum TaskEdit {
    /// Appends a task to the forest.
    Add {
        name: String,
        /// Sub-fuser that joins it.
        parent: Option<String>,
        /// Tasks without a parent that it joins.
        children: Vec<String>,
        keys: TaskKeys,
    },
    /// Changes values of a task.
    Update {
        name: String,
        keys: TaskKeys,
    },
    /// Makes `parent` join the task `child`.
    Attach {
        /// Task without a parent.
        child: String,
        parent: String,
    },
    /// Makes the model's own fuser join the task `child`.
    Detach {
        /// Task with a parent.
        child: String,
    },
    Remove {
        name: String,
    },
}

/// Parses the forest of a configuration's text; `path` is for errors.
///
/// # Errors
/// All mistakes of the model section.
pub fn read(text: &str, path: &Path) -> Result<Forest, TaskError> {
    forest(&parse(text, path)?, path)
}

/// Returns the forest of a model of the configuration at `path`.
///
/// # Errors
/// A task with the name of one of the preset's.
pub fn forest(model: &ModelConfig, path: &Path) -> Result<Forest, TaskError> {
    model.forest().map_err(|source| TaskError::Forest { path: path.to_owned(), source })
}

fn parse(text: &str, path: &Path) -> Result<ModelConfig, TaskError> {
    RawConfig::parse(text, path).and_then(|raw| resolve_model(&raw)).map_err(TaskError::Config)
}

/// Returns the text after the edit, and its forest.
///
/// # Errors
/// Mistakes in the model section before the edit or after it, or an edit that would leave no forest.
pub fn edited(text: &str, path: &Path, edit: &TaskEdit) -> Result<(String, Forest), TaskError> {
    let model = parse(text, path)?;
    let before = forest(&model, path)?;
    let mut after = before.clone();
    apply(&mut after, edit, &model, path)?;
    // toml_edit accepts whatever the parser of the configuration accepted.
    let mut document: DocumentMut = text.parse().map_err(|_| TaskError::Differs { path: path.to_owned() })?;
    write(&mut document, &model, &before, &after, path)?;
    let text = document.to_string();
    let sorted = |forest: &Forest| {
        let mut tasks = forest.tasks().to_vec();
        tasks.sort_by(|a, b| a.name.cmp(&b.name));
        tasks
    };
    let made = read(&text, path)?;
    if sorted(&made) != sorted(&after) {
        return Err(TaskError::Differs { path: path.to_owned() });
    }
    Ok((text, made))
}

fn apply(forest: &mut Forest, edit: &TaskEdit, model: &ModelConfig, path: &Path) -> Result<(), TaskError> {
    let done = match edit {
        TaskEdit::Add { name, parent, children, keys } => {
            let task = Task { parent: parent.clone(), ..made(name, keys, model)? };
            forest.add(task).and_then(|()| children.iter().try_for_each(|child| forest.attach(child, name)))
        }
        TaskEdit::Update { name, keys } => match forest.get(name).cloned() {
            Ok(mut task) => {
                change(&mut task, keys)?;
                forest.update(task)
            }
            Err(error) => Err(error),
        },
        TaskEdit::Attach { child, parent } => forest.attach(child, parent),
        TaskEdit::Detach { child } => forest.detach(child),
        TaskEdit::Remove { name } => forest.remove(name).map(|_| ()),
    };
    done.map_err(|source| TaskError::Forest { path: path.to_owned(), source })
}

/// Makes a new task, with the values of the preset's template of its mode where none are given.
fn made(name: &str, keys: &TaskKeys, model: &ModelConfig) -> Result<Task, TaskError> {
    let part = match (keys.mode, keys.reduction) {
        (None, Some(reduction)) => Part::Fuser { reduction },
        (Some(mode), None) => Part::Template(model.template(mode)),
        _ => return Err(TaskError::Kind),
    };
    let mut task = Task { name: name.to_owned(), weight: 1.0, parent: None, part };
    change(&mut task, keys)?;
    Ok(task)
}

fn change(task: &mut Task, keys: &TaskKeys) -> Result<(), TaskError> {
    let foreign = |what, key| Err(TaskError::Key { name: task.name.clone(), what, key });
    match &mut task.part {
        Part::Template(_) if keys.reduction.is_some() => return foreign("template", "reduction"),
        Part::Template(template) => {
            template.mode = keys.mode.unwrap_or(template.mode);
            template.depth = keys.depth.unwrap_or(template.depth);
            template.tokens = keys.tokens.unwrap_or(template.tokens);
            template.mixer = keys.mixer.unwrap_or(template.mixer);
            if let Some(model) = &keys.model {
                template.model = Some(model.clone()).filter(|model| !model.is_empty());
            }
        }
        Part::Fuser { reduction } => {
            let given = [
                ("mode", keys.mode.is_some()),
                ("depth", keys.depth.is_some()),
                ("tokens", keys.tokens.is_some()),
                ("mixer", keys.mixer.is_some()),
                ("model", keys.model.is_some()),
            ];
            if let Some((key, _)) = given.into_iter().find(|(_, given)| *given) {
                return foreign("sub-fuser", key);
            }
            *reduction = keys.reduction.unwrap_or(*reduction);
        }
    }
    task.weight = keys.weight.unwrap_or(task.weight);
    Ok(())
}

/// Changes the document to the forest `after`. Where it differs from the preset, the preset's tasks are written out.
fn write(
    document: &mut DocumentMut,
    model: &ModelConfig,
    before: &Forest,
    after: &Forest,
    path: &Path,
) -> Result<(), TaskError> {
    let inline = |key| TaskError::Inline { path: path.to_owned(), key };
    let implicit = || {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    };
    let section = document.entry("model").or_insert_with(implicit);
    let section = section.as_table_mut().ok_or_else(|| inline("model"))?;
    let preset = model.preset_tasks();
    let kept = preset.iter().all(|task| after.get(&task.name) == Ok(task));
    if !kept {
        set(section, "preset", Some("none".into()));
        section.set_implicit(false);
    }
    let list = section.entry("tasks").or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    if list.is_array() {
        *list = std::mem::take(list).into_array_of_tables().map_or_else(|item| item, Item::ArrayOfTables);
        if let Some(mut key) = section.key_mut("tasks") {
            key.leaf_decor_mut().clear();
        }
    }
    let list = section.entry("tasks").or_insert_with(Item::default);
    let list = list.as_array_of_tables_mut().ok_or_else(|| inline("model.tasks"))?;
    let name_of = |table: &Table| table.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
    list.retain(|table| after.get(&name_of(table)).is_ok());
    let from_preset = |task: &Task| kept && preset.iter().any(|other| other.name == task.name);
    for task in after.tasks().iter().filter(|task| !from_preset(task)) {
        let at = list.iter().position(|table| name_of(table) == task.name);
        match at.and_then(|at| list.get_mut(at)) {
            Some(table) => {
                let old = before.get(&task.name).map(|task| entries(task, model)).unwrap_or_default();
                let text = |value: &Option<Value>| value.as_ref().map(ToString::to_string);
                for (key, value) in entries(task, model) {
                    if old.iter().any(|(other, old)| *other == key && text(old) == text(&value)) {
                        continue;
                    }
                    set(table, key, value);
                }
            }
            None => {
                let mut table = Table::new();
                table.decor_mut().set_prefix("\n");
                for (key, value) in entries(task, model) {
                    set(&mut table, key, value);
                }
                list.push(table);
            }
        }
    }
    if list.is_empty() {
        section.remove("tasks");
    }
    Ok(())
}

/// Sets or removes a key; a comment behind its value stays.
fn set(table: &mut Table, key: &str, value: Option<Value>) {
    let Some(mut value) = value else {
        table.remove(key);
        return;
    };
    if let Some(old) = table.get(key).and_then(Item::as_value) {
        *value.decor_mut() = old.decor().clone();
    }
    table.insert(key, Item::Value(value));
}

/// Returns the keys of a task; `None` for those that have their default.
fn entries(task: &Task, model: &ModelConfig) -> Vec<(&'static str, Option<Value>)> {
    let number = |size: usize| Some(Value::from(i64::try_from(size).unwrap_or(i64::MAX)));
    let mut entries = vec![("name", Some(task.name.as_str().into()))];
    match &task.part {
        Part::Template(template) => entries.extend([
            ("mode", Some(template.mode.name().into())),
            ("depth", number(template.depth)),
            ("tokens", number(template.tokens)),
            ("mixer", (template.mixer != model.mixer).then(|| template.mixer.name().into())),
            ("model", template.model.as_deref().map(Value::from)),
        ]),
        Part::Fuser { reduction } => entries.push(("reduction", Some(reduction.name().into()))),
    }
    let differs = task.weight.to_bits() != 1.0_f64.to_bits();
    entries.push(("weight", differs.then(|| task.weight.into())));
    entries.push(("parent", task.parent.as_deref().map(Value::from)));
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# A model.\nname = \"w\"   # its name\n\n[model]   # small\nd_model = 32\npreset = \"spatiotemporal\"  # both\n\n\
                        # Days of the week.\n[[model.tasks]]\nname = \"week\" # seven\nmode = \"temporal\"\ntokens = 7   # one a day\n\n\
                        [train]\nlr = 1e-3 # slow\n";

    fn edit(text: &str, edit: &TaskEdit) -> String {
        edited(text, Path::new("w.toml"), edit).unwrap().0
    }

    fn refuse(text: &str, edit: &TaskEdit) -> String {
        edited(text, Path::new("w.toml"), edit).unwrap_err().to_string()
    }

    fn add(name: &str, keys: TaskKeys) -> TaskEdit {
        TaskEdit::Add { name: name.into(), parent: None, children: Vec::new(), keys }
    }

    fn template() -> TaskKeys {
        TaskKeys { mode: Some(Mode::Spatial), ..TaskKeys::default() }
    }

    fn fuser() -> TaskKeys {
        TaskKeys { reduction: Some(Reduction::Mean), ..TaskKeys::default() }
    }

    #[test]
    fn only_what_was_asked_for_changes() {
        let keys = TaskKeys { tokens: Some(14), mixer: Some(Mixer::Dilated), ..TaskKeys::default() };
        let text = edit(FILE, &TaskEdit::Update { name: "week".into(), keys });
        assert_eq!(
            text,
            FILE.replace("tokens = 7 ", "tokens = 14 ").replace("# one a day\n", "# one a day\nmixer = \"dilated\"\n")
        );
        let joined = TaskEdit::Add { name: "all".into(), parent: None, children: vec!["week".into()], keys: fuser() };
        let text = edit(FILE, &joined);
        let added = "# one a day\nparent = \"all\"\n\n[[model.tasks]]\nname = \"all\"\nreduction = \"mean\"\n";
        assert_eq!(text, FILE.replace("# one a day\n", added));
        let text = edit(&text, &TaskEdit::Detach { child: "week".into() });
        let text = edit(&text, &TaskEdit::Remove { name: "all".into() });
        assert_eq!(text, FILE);
        assert!(!edit(FILE, &TaskEdit::Remove { name: "week".into() }).contains("[[model.tasks]]"));
    }

    #[test]
    fn the_presets_tasks_are_written_out_when_one_of_them_changes() {
        let keys = TaskKeys { weight: Some(2.0), ..TaskKeys::default() };
        let text = edit(FILE, &TaskEdit::Update { name: "temporal".into(), keys });
        assert!(text.contains("preset = \"none\"  # both\n"), "{text}");
        for name in ["week", "spatial", "temporal"] {
            assert_eq!(text.matches(&format!("name = \"{name}\"")).count(), 1, "{text}");
        }
        let forest = read(&text, Path::new("w.toml")).unwrap();
        assert_eq!(forest.get("temporal").unwrap().weight, 2.0);
        assert_eq!(forest.get("spatial"), read(FILE, Path::new("w.toml")).unwrap().get("spatial"));
    }

    #[test]
    fn files_without_a_section_and_with_lists_in_braces() {
        let text = edit("seed = 1\n", &add("a", template()));
        assert_eq!(text, "seed = 1\n\n[[model.tasks]]\nname = \"a\"\nmode = \"spatial\"\ndepth = 4\ntokens = 64\n");
        let text = edit("[model]\ntasks = [{ name = \"a\", mode = \"spatial\" }]\n", &add("b", template()));
        assert_eq!(text.matches("[[model.tasks]]").count(), 2, "{text}");
        let braces = refuse("model = { d_model = 32 }\n", &add("a", template()));
        assert!(braces.contains("`model` is written in braces"), "{braces}");
    }

    #[test]
    fn an_edit_that_cannot_be_says_why() {
        let attach = |child: &str, parent: &str| TaskEdit::Attach { child: child.into(), parent: parent.into() };
        assert!(refuse(FILE, &attach("week", "temporal")).starts_with("w.toml: \"temporal\" is a template"));
        assert!(refuse(FILE, &attach("weak", "temporal")).contains("did you mean \"week\"?"));
        assert!(refuse(FILE, &add("week", template())).contains("already a task"));
        assert!(refuse(FILE, &add("a", TaskKeys::default())).contains("give --mode"));
        let keys = TaskKeys { depth: Some(2), ..fuser() };
        assert_eq!(refuse(FILE, &add("a", keys)), "\"a\" is a sub-fuser, which has no depth");
        let keys = TaskKeys { weight: Some(-1.0), ..template() };
        assert!(refuse(FILE, &add("a", keys)).contains("expected a number above 0"));
        let keys = TaskKeys { tokens: Some(100_000), ..template() };
        assert!(refuse(FILE, &add("a", keys)).contains("from 1 to 8192"), "the configuration's own limits hold");
        assert!(refuse("[model]\nd_model = 32\nheads = 3\n", &add("a", template())).contains("not divisible"));
    }
}
