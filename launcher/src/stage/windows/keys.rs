//! The first pass over a long table: which entities there are and which time they span.

use super::steps::{self, Gaps};
use crate::stage::{
    Job, Progress,
    dictionary::Dictionary,
    error::StageError,
    form,
    keeper::Keeper,
    source::block::{Block, Kind, NO_TIME, NO_WORD, Want},
    table::{Ask, Sink, Table},
};
use enn_common::{
    config::data::WindowsLayout,
    staged::{
        unfinished::{Kept, Mark},
        words::Form,
    },
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
};

/// Entities, at most.
const ENTITIES_MAX: usize = 10_000;

/// Unknown entities that are named in a note.
const STRANGERS_MAX: usize = 5;

/// First and last step with a row; `None` where no row has a time.
type Steps = Option<(i64, i64)>;

/// What the first pass found.
#[derive(Debug, Default, Clone)]
pub(crate) struct Keys {
    /// Entities, sorted by name, and the first and last step of each.
    pub entities: BTreeMap<String, Steps>,
    /// First and last step with a row, in steps since 1970.
    pub steps: Steps,
    /// Rows with entity and time.
    pub rows: u64,
    /// Rows without entity or time.
    pub unkeyed: u64,
    /// Rows not at a multiple of the step.
    pub unaligned: u64,
    /// Rows of entities that the model does not know.
    pub strange: u64,
    /// Some of those entities.
    pub strangers: Vec<String>,
    /// How far apart rows of an entity are that follow each other.
    pub gaps: Gaps,
    /// Entities that no mark has as they are.
    unkept: BTreeSet<String>,
}

impl Keys {
    /// As the last mark has them.
    fn kept(marks: &[Mark]) -> Self {
        let mut keys = Self::default();
        for mark in marks {
            if let Kept::Keys { entities, spans, steps, rows, strangers, gaps } = &mark.kept {
                keys.gaps = Gaps::kept(gaps);
                // Marks of an older release have no spans.
                let spans = spans.iter().copied().chain(std::iter::repeat(*steps));
                keys.entities.extend(entities.iter().cloned().zip(spans));
                keys.steps = *steps;
                keys.strangers = strangers.clone();
                [keys.rows, keys.unkeyed, keys.unaligned, keys.strange] = *rows;
            }
        }
        keys
    }

    /// These and those of rows behind them.
    pub(crate) fn and(mut self, part: Self) -> Self {
        part.entities.into_iter().for_each(|(name, span)| widen(&mut self.entities, name, span));
        self.steps = both(self.steps, part.steps);
        self.rows += part.rows;
        self.unkeyed += part.unkeyed;
        self.unaligned += part.unaligned;
        self.strange += part.strange;
        self.gaps.merge(&part.gaps);
        for stranger in part.strangers {
            if self.strangers.len() < STRANGERS_MAX && !self.strangers.contains(&stranger) {
                self.strangers.push(stranger);
            }
        }
        self
    }

    /// Share of the steps from the first row of an entity to its last that have a row, of all entities: each has its own time.
    pub(super) fn filled(&self) -> f64 {
        let steps = |(low, high): &(i64, i64)| high.abs_diff(*low) as f64 + 1.0;
        self.rows as f64 / self.entities.values().flatten().map(steps).sum::<f64>().max(1.0)
    }

    /// With the entities in the form that all of `of` have, or as a model knows them.
    fn settled(mut self, of: &Entities) -> Self {
        let mut named = BTreeMap::new();
        self.entities.iter().for_each(|(name, span)| widen(&mut named, of.name(name).into_owned(), *span));
        self.entities = named;
        self
    }

    /// Refuses more entities than there can be.
    pub(crate) fn check(&self, layout: &WindowsLayout) -> Result<(), StageError> {
        if self.entities.len() <= ENTITIES_MAX {
            return Ok(());
        }
        Err(StageError::TooManyEntities { column: layout.entity.clone(), entities_max: ENTITIES_MAX })
    }
}

/// From the first step of two stretches to the last.
fn both(a: Steps, b: Steps) -> Steps {
    match (a, b) {
        (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
        (a, b) => a.or(b),
    }
}

/// Makes the stretch of an entity hold these steps, too.
fn widen(entities: &mut BTreeMap<String, Steps>, name: String, steps: Steps) {
    let own = entities.entry(name).or_default();
    *own = both(*own, steps);
}

/// The one name of each entity, however a file writes it.
pub(crate) struct Entities {
    form: Form,
    /// A model's own.
    own: Option<Dictionary>,
}

impl Entities {
    /// The keys of each source and of all together, with the names of all entities, and what these are.
    pub(crate) fn settle(job: &Job<'_>, keys: Vec<Keys>) -> (Vec<Keys>, Keys, Self) {
        let all = keys.iter().cloned().fold(Keys::default(), Keys::and);
        let names = Self::new(job, &all);
        let keys = keys.into_iter().map(|keys| keys.settled(&names)).collect();
        (keys, all.settled(&names), names)
    }

    /// Of all that were found, or of the model.
    fn new(job: &Job<'_>, all: &Keys) -> Self {
        let found: Vec<String> = all.entities.keys().cloned().collect();
        let own = job.training.and_then(|meta| meta.out_labels.first());
        Self { form: form::of(&found), own: own.map(|names| Dictionary::of_model(names, None)) }
    }

    /// The name of an entity.
    pub(crate) fn name<'a>(&'a self, word: &'a str) -> Cow<'a, str> {
        match &self.own {
            Some(own) => own.words().get(own.known(word) as usize).map_or(word, String::as_str).into(),
            None => form::canonical(word, self.form),
        }
    }
}

/// Reads entity and time of every row.
pub(crate) fn read(
    job: &Job<'_>,
    layout: &WindowsLayout,
    (table, keeper): (&Table, &Keeper<'_>),
    progress: &mut dyn FnMut(Progress),
) -> Result<Keys, StageError> {
    let wants = [Want::new(&layout.entity, Kind::Word), Want::new(&layout.time, Kind::Time)];
    let known = job.training.and_then(|meta| meta.out_labels.first()).map(|names| Dictionary::of_model(names, None));
    let ask = Ask { wants: &wants, hash_rows: false, threads: job.threads, keeper: Some(keeper) };
    Ok(table.pass(ask, &KeySink { layout, known }, Keys::kept(keeper.marks()), progress)?.0)
}

struct KeySink<'a> {
    layout: &'a WindowsLayout,
    /// Entities of the model, when predicting.
    known: Option<Dictionary>,
}

impl Sink for KeySink<'_> {
    type Work = Keys;
    type State = Keys;

    fn work(&self, block: Block) -> Result<Keys, StageError> {
        let mut keys = Keys::default();
        let Some(words) = block.columns[0].words() else { return Ok(keys) };
        let is_unknown = |known: &Dictionary, word: &str| known.known(word) as usize == known.len();
        let is_strange = |word: &String| self.known.as_ref().is_some_and(|known| is_unknown(known, word));
        let is_strange: Vec<bool> = words.list.iter().map(is_strange).collect();
        let mut last = HashMap::new();
        let mut spans = vec![None; words.list.len()];
        for (id, time) in words.ids.iter().zip(block.columns[1].times()) {
            if *id == NO_WORD || *time == NO_TIME {
                keys.unkeyed += 1;
                continue;
            }
            if is_strange[*id as usize] {
                keys.strange += 1;
                continue;
            }
            keys.rows += 1;
            if let Some(before) = last.insert(*id, *time) {
                keys.gaps.add(before, *time);
            }
            keys.unaligned += u64::from(!steps::begins_at(self.layout, *time));
            let step = steps::step_of(self.layout, *time);
            keys.steps = both(keys.steps, Some((step, step)));
            spans[*id as usize] = both(spans[*id as usize], Some((step, step)));
        }
        for ((word, strange), span) in words.list.iter().zip(is_strange).zip(spans) {
            if strange { keys.strangers.push(word.clone()) } else { widen(&mut keys.entities, word.clone(), span) }
        }
        Ok(keys)
    }

    fn order(&self, all: &mut Keys, _: u64, part: &mut Keys) -> Result<(), StageError> {
        for (name, span) in &part.entities {
            if all.entities.get(name).is_none_or(|own| both(*own, *span) != *own) {
                all.unkept.insert(name.clone());
            }
        }
        *all = std::mem::take(all).and(std::mem::take(part));
        all.check(self.layout)
    }

    fn after(&self, _: Keys) -> Result<(), StageError> {
        Ok(())
    }

    fn keep(&self, all: &mut Keys) -> Result<Kept, StageError> {
        let entities: Vec<String> = std::mem::take(&mut all.unkept).into_iter().collect();
        Ok(Kept::Keys {
            spans: entities.iter().filter_map(|name| all.entities.get(name).copied()).collect(),
            entities,
            steps: all.steps,
            rows: [all.rows, all.unkeyed, all.unaligned, all.strange],
            strangers: all.strangers.clone(),
            gaps: all.gaps.to_keep(),
        })
    }
}
