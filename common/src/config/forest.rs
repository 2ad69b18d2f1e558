//! The task forest: named templates and the sub-fusers that join them, as a list that can be written, read and edited.
//!
//! ```text
//! spatial ─────────────┐
//! week ──┐             ├─► the model's fuser
//! year ──┴─► calendar ─┘
//! ```
//! **Invariant:** pure, and whole after every edit: names are unique, a parent is a sub-fuser of the same forest, and nobody is its own ancestor.
//! An edit that would break this changes nothing.

use super::nearest::nearest;
use serde::{Deserialize, Serialize};

/// Templates and sub-fusers, in the order of their names in the parameters' list.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Forest {
    tasks: Vec<Task>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Name: part of the names of its parameters.
    pub name: String,
    /// Share of the attention of what it is joined by, relative to its siblings; > 0.
    #[serde(default = "one")]
    pub weight: f64,
    /// The sub-fuser that it is joined by; `None` for the model's own.
    #[serde(default)]
    pub parent: Option<String>,
    #[serde(flatten)]
    pub part: Part,
}

/// A leaf or a knot of the forest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Part {
    /// Turns the features into tokens.
    Template(TemplateConfig),
    /// Joins its children's tokens.
    Fuser { reduction: Reduction },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TemplateConfig {
    /// Both directions or causal.
    pub mode: Mode,
    pub depth: usize,
    pub tokens: usize,
    /// How tokens hear of each other.
    pub mixer: Mixer,
    /// A module of the user's own behind the blocks, by the name under which the worker has it.
    #[serde(default)]
    pub model: Option<String>,
}

/// Which tokens a token hears of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Spatial,
    /// Earlier ones and itself.
    Temporal,
}

/// Layer that mixes the tokens of a template. Manifests and checkpoints keep the names of version 0.1 (see [`Mixer::OLD_NAMES`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Gated exponential moving average: a decaying sum of values, gated by queries.
    #[serde(rename = "retention", alias = "gated_ema")]
    GatedEma,
    /// Retention as in RetNet (arXiv:2307.08621): a decaying sum of outer products of keys and values, read by queries.
    #[serde(rename = "true_retention", alias = "retnet")]
    Retention,
    /// Attention within segments, thinned by dilation.
    Dilated,
}

/// How a fuser joins its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// All tokens in one list, with a key bias by weight.
    Mean,
    /// Each child is read by itself, and what was read is added with a learned factor that begins at the child's share.
    Linear,
}

impl Mode {
    pub const NAMES: [(&'static str, Self); 2] = [("spatial", Self::Spatial), ("temporal", Self::Temporal)];

    pub fn name(self) -> &'static str {
        name_in(&Self::NAMES, self)
    }
}

impl Mixer {
    pub const NAMES: [(&'static str, Self); 3] =
        [("gated_ema", Self::GatedEma), ("retnet", Self::Retention), ("dilated", Self::Dilated)];

    /// Names of version 0.1, which a configuration may still use.
    pub const OLD_NAMES: [(&'static str, Self); 2] =
        [("retention", Self::GatedEma), ("true_retention", Self::Retention)];

    pub fn name(self) -> &'static str {
        name_in(&Self::NAMES, self)
    }

    /// Name of the layer in the names of its parameters: that of version 0.1, so that checkpoints fit.
    pub fn parameter_name(self) -> &'static str {
        match self {
            Self::GatedEma => "retention",
            Self::Retention => "true_retention",
            Self::Dilated => "dilated",
        }
    }
}

impl Reduction {
    pub const NAMES: [(&'static str, Self); 2] = [("mean", Self::Mean), ("linear", Self::Linear)];

    pub fn name(self) -> &'static str {
        name_in(&Self::NAMES, self)
    }
}

fn name_in<T: PartialEq>(names: &[(&'static str, T)], wanted: T) -> &'static str {
    names.iter().find(|(_, one)| *one == wanted).map_or("", |(name, _)| name)
}

/// The name that no task may have: the parameters of the Perceiver stand under it.
pub const RESERVED: &str = "perceiver";

/// Why a forest cannot be, or not be edited so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ForestError {
    #[error("there is no task \"{name}\"{}", hint(nearest.as_deref(), known))]
    NotFound { name: String, nearest: Option<String>, known: Vec<String> },
    #[error("there is already a task \"{0}\"")]
    Duplicate(String),
    #[error("\"{0}\" is no name for a task, expected letters, digits, \"_\" and \"-\", and not \"perceiver\"")]
    Name(String),
    #[error(
        "\"{parent}\" is a template and cannot be the parent of \"{child}\"\nhint: only a task with `reduction` joins others"
    )]
    NotAFuser { parent: String, child: String },
    #[error("\"{child}\" already has the parent \"{parent}\"\nhint: detach it first")]
    TwoParents { child: String, parent: String },
    #[error("\"{0}\" has no parent: it is joined by the model's own fuser")]
    NoParent(String),
    #[error("\"{child}\" cannot be joined by \"{parent}\", which it joins itself")]
    Cycle { child: String, parent: String },
    #[error("\"{name}\" still joins {}\nhint: detach or remove them first", .children.join(", "))]
    HasChildren { name: String, children: Vec<String> },
    #[error("\"{0}\" joins nothing\nhint: give another task `parent = \"{0}\"`")]
    NoChildren(String),
    #[error("the weight of \"{name}\" is {found}, expected a number above 0")]
    Weight { name: String, found: f64 },
    #[error("\"{0}\" has 0 tokens, expected at least 1")]
    NoTokens(String),
    #[error(
        "there is no template, expected at least one\nhint: add [[model.tasks]], or choose another preset than \"none\""
    )]
    NoTemplate,
}

fn hint(nearest: Option<&str>, known: &[String]) -> String {
    match (nearest, known) {
        (Some(nearest), _) => format!(" (did you mean \"{nearest}\"?)"),
        (None, []) => ", and no other".to_owned(),
        (None, known) => format!(" (there are: {})", known.join(", ")),
    }
}

fn one() -> f64 {
    1.0
}

impl Task {
    /// A template that is joined by the model's own fuser with weight 1.
    pub fn template(name: &str, template: TemplateConfig) -> Self {
        Self { name: name.to_owned(), weight: 1.0, parent: None, part: Part::Template(template) }
    }

    fn check(&self) -> Result<(), ForestError> {
        let letters = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        if self.name.is_empty() || self.name == RESERVED || !self.name.chars().all(letters) {
            return Err(ForestError::Name(self.name.clone()));
        }
        if !(self.weight > 0.0 && self.weight.is_finite()) {
            return Err(ForestError::Weight { name: self.name.clone(), found: self.weight });
        }
        match &self.part {
            Part::Template(template) if template.tokens == 0 => Err(ForestError::NoTokens(self.name.clone())),
            _ => Ok(()),
        }
    }
}

impl Forest {
    /// The forest of a list in any order.
    ///
    /// # Errors
    /// The first thing that is wrong with it. A sub-fuser without children is not: it may get some.
    pub fn new(tasks: Vec<Task>) -> Result<Self, ForestError> {
        let forest = Self { tasks };
        for (i, task) in forest.tasks.iter().enumerate() {
            task.check()?;
            if forest.tasks[..i].iter().any(|other| other.name == task.name) {
                return Err(ForestError::Duplicate(task.name.clone()));
            }
            if let Some(parent) = &task.parent {
                forest.may_join(&task.name, parent)?;
            }
        }
        Ok(forest)
    }

    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// A node by its name.
    pub fn get(&self, name: &str) -> Result<&Task, ForestError> {
        self.at(name).map(|at| &self.tasks[at])
    }

    /// The nodes that `parent` joins; with `None` those that the model's own fuser does.
    pub fn children<'a>(&'a self, parent: Option<&'a str>) -> impl Iterator<Item = &'a Task> {
        self.tasks.iter().filter(move |task| task.parent.as_deref() == parent)
    }

    /// Every node with its depth below the model's own fuser, parents before children.
    pub fn list(&self) -> Vec<(usize, &Task)> {
        fn below<'a>(forest: &'a Forest, parent: Option<&'a str>, depth: usize, list: &mut Vec<(usize, &'a Task)>) {
            for task in forest.children(parent) {
                list.push((depth, task));
                below(forest, Some(&task.name), depth + 1, list);
            }
        }
        let mut list = Vec::with_capacity(self.tasks.len());
        below(self, None, 0, &mut list);
        list
    }

    /// Refuses a forest that no model can be built from.
    ///
    /// # Errors
    /// Without templates, or with a sub-fuser that joins nothing.
    pub fn check(&self) -> Result<(), ForestError> {
        let is_fuser = |task: &&Task| matches!(task.part, Part::Fuser { .. });
        if self.tasks.iter().all(|task| is_fuser(&task)) {
            return Err(ForestError::NoTemplate);
        }
        match self.tasks.iter().filter(is_fuser).find(|task| self.children(Some(&task.name)).next().is_none()) {
            Some(task) => Err(ForestError::NoChildren(task.name.clone())),
            None => Ok(()),
        }
    }

    /// Adds a node at the end.
    ///
    /// # Errors
    /// A name taken or impossible, a parent unknown or a template.
    pub fn add(&mut self, task: Task) -> Result<(), ForestError> {
        *self = Self::new(self.tasks.iter().cloned().chain([task]).collect())?;
        Ok(())
    }

    /// Puts `task` in the place of the one of its name.
    ///
    /// # Errors
    /// As [`Forest::add`]; and a sub-fuser that joins others stays one.
    pub fn update(&mut self, task: Task) -> Result<(), ForestError> {
        let at = self.at(&task.name)?;
        let mut tasks = self.tasks.clone();
        if matches!(task.part, Part::Template(_)) {
            self.childless(&task.name)?;
        }
        tasks[at] = task;
        *self = Self::new(tasks)?;
        Ok(())
    }

    /// Lets the sub-fuser `parent` join `child`.
    ///
    /// # Errors
    /// Unknown names, a child that has a parent, a parent that is a template or a descendant.
    pub fn attach(&mut self, child: &str, parent: &str) -> Result<(), ForestError> {
        let at = self.at(child)?;
        if let Some(before) = &self.tasks[at].parent {
            return Err(ForestError::TwoParents { child: child.to_owned(), parent: before.clone() });
        }
        self.may_join(child, parent)?;
        self.tasks[at].parent = Some(parent.to_owned());
        Ok(())
    }

    /// Lets the model's own fuser join `child`.
    ///
    /// # Errors
    /// An unknown name, or no parent.
    pub fn detach(&mut self, child: &str) -> Result<(), ForestError> {
        let at = self.at(child)?;
        match self.tasks[at].parent.take() {
            Some(_) => Ok(()),
            None => Err(ForestError::NoParent(child.to_owned())),
        }
    }

    /// Takes a node out; the one it was.
    ///
    /// # Errors
    /// An unknown name, or children.
    pub fn remove(&mut self, name: &str) -> Result<Task, ForestError> {
        let at = self.at(name)?;
        self.childless(name)?;
        Ok(self.tasks.remove(at))
    }

    fn at(&self, name: &str) -> Result<usize, ForestError> {
        let known = || self.tasks.iter().map(|task| task.name.as_str());
        known().position(|other| other == name).ok_or_else(|| ForestError::NotFound {
            name: name.to_owned(),
            nearest: nearest(name, known()),
            known: known().map(str::to_owned).collect(),
        })
    }

    fn childless(&self, name: &str) -> Result<(), ForestError> {
        let children: Vec<String> = self.children(Some(name)).map(|task| task.name.clone()).collect();
        if children.is_empty() { Ok(()) } else { Err(ForestError::HasChildren { name: name.to_owned(), children }) }
    }

    /// Whether `parent` can join `child`: it is a sub-fuser and no descendant.
    fn may_join(&self, child: &str, parent: &str) -> Result<(), ForestError> {
        if matches!(self.get(parent)?.part, Part::Template(_)) {
            return Err(ForestError::NotAFuser { parent: parent.to_owned(), child: child.to_owned() });
        }
        let mut above = Some(parent);
        // No chain of parents is longer than the forest, unless it closes.
        for _ in 0..=self.tasks.len() {
            match above {
                None => return Ok(()),
                Some(name) if name == child => break,
                Some(name) => above = self.get(name)?.parent.as_deref(),
            }
        }
        Err(ForestError::Cycle { child: child.to_owned(), parent: parent.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn template(name: &str) -> Task {
        let mixer = Mixer::GatedEma;
        Task::template(name, TemplateConfig { mode: Mode::Spatial, depth: 1, tokens: 4, mixer, model: None })
    }

    fn fuser(name: &str) -> Task {
        Task { part: Part::Fuser { reduction: Reduction::Linear }, ..template(name) }
    }

    fn forest() -> Forest {
        let under = |task: Task, parent: &str| Task { parent: Some(parent.to_owned()), ..task };
        // Parents may stand behind their children.
        let tasks = vec![template("a"), under(template("b"), "f"), under(fuser("f"), "g"), fuser("g"), template("c")];
        Forest::new(tasks).unwrap()
    }

    fn says(result: Result<impl std::fmt::Debug, ForestError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn is_listed_with_parents_before_children() {
        let forest = forest();
        let list: Vec<(usize, &str)> =
            forest.list().into_iter().map(|(depth, task)| (depth, task.name.as_str())).collect();
        assert_eq!(list, [(0, "a"), (0, "g"), (1, "f"), (2, "b"), (0, "c")]);
        assert_eq!(forest.check(), Ok(()));
    }

    #[test]
    fn is_the_same_after_writing_and_reading() {
        let text = serde_json::to_string(&forest()).unwrap();
        assert!(text.starts_with(r#"[{"name":"a","weight":1.0,"parent":null,"mode":"spatial","depth":1"#), "{text}");
        assert_eq!(serde_json::from_str::<Forest>(&text).unwrap(), forest());
    }

    #[test]
    fn edits_do_what_they_say() {
        let mut forest = forest();
        forest.attach("c", "f").unwrap();
        assert_eq!(forest.children(Some("f")).map(|task| task.name.as_str()).collect::<Vec<_>>(), ["b", "c"]);
        forest.detach("f").unwrap();
        assert_eq!(forest.get("f").unwrap().parent, None);
        assert_eq!(forest.remove("g").unwrap(), fuser("g"));
        forest.add(Task { parent: Some("f".to_owned()), ..template("d") }).unwrap();
        forest.update(Task { weight: 3.0, ..template("a") }).unwrap();
        assert_eq!(forest.get("a").unwrap().weight, 3.0);
        assert_eq!(forest.tasks().iter().map(|task| task.name.as_str()).collect::<Vec<_>>(), ["a", "b", "f", "c", "d"]);
    }

    #[test]
    fn what_would_break_it_is_refused_with_a_reason_and_changes_nothing() {
        let mut forest = forest();
        let before = forest.clone();
        assert_eq!(says(forest.attach("g", "f")), "\"g\" cannot be joined by \"f\", which it joins itself");
        assert_eq!(says(forest.attach("g", "g")), "\"g\" cannot be joined by \"g\", which it joins itself");
        assert!(says(forest.attach("b", "g")).contains("already has the parent \"f\"\nhint: detach it first"));
        assert!(says(forest.attach("c", "a")).contains("\"a\" is a template and cannot be the parent of \"c\""));
        assert!(says(forest.attach("x", "g")).contains("no task \"x\""));
        assert!(says(forest.detach("a")).contains("has no parent"));
        assert!(says(forest.remove("f")).contains("still joins b"));
        assert!(says(forest.update(template("f"))).contains("still joins b"));
        assert!(says(forest.add(template("a"))).contains("already a task \"a\""));
        assert!(says(forest.add(template("perceiver"))).contains("is no name"));
        assert!(says(forest.add(template("a.b"))).contains("is no name"));
        assert!(says(forest.add(Task { weight: 0.0, ..template("d") })).contains("expected a number above 0"));
        assert!(says(forest.update(template("nobody"))).contains("there are: a, b, f, g, c"));
        assert_eq!(forest, before);
        let alone = Forest::new(vec![template("a"), fuser("f")]).unwrap();
        assert!(says(alone.check()).contains("\"f\" joins nothing"));
        assert_eq!(Forest::default().check(), Err(ForestError::NoTemplate));
        let near = Forest::new(vec![template("calendar")]).unwrap();
        assert!(says(near.get("calender")).contains("did you mean \"calendar\"?"));
        let mut ring = vec![fuser("a"), fuser("b")];
        ring[0].parent = Some("b".to_owned());
        ring[1].parent = Some("a".to_owned());
        assert!(matches!(Forest::new(ring), Err(ForestError::Cycle { .. })));
    }

    proptest! {
        /// Whatever is asked for, the forest stays one: every node is listed once, and a refused edit changes nothing.
        #[test]
        fn stays_a_forest(edits in proptest::collection::vec((0_u8..5, 0_usize..6, 0_usize..6), 0..40)) {
            let names = ["a", "b", "c", "d", "e", "f"];
            let mut forest = Forest::default();
            for (what, one, two) in edits {
                let before = forest.clone();
                let made = if two % 2 == 0 { fuser(names[one]) } else { template(names[one]) };
                let done = match what {
                    0 => forest.add(made),
                    1 => forest.update(made),
                    2 => forest.attach(names[one], names[two]),
                    3 => forest.detach(names[one]),
                    _ => forest.remove(names[one]).map(|_| ()),
                };
                prop_assert!(done.is_ok() || forest == before);
                prop_assert_eq!(forest.list().len(), forest.tasks().len());
                prop_assert_eq!(Forest::new(forest.tasks().to_vec()), Ok(forest.clone()));
            }
        }
    }
}
