//! The first pass over a long table: its entities and the time that they span.

use super::steps::{self, Gaps};
use crate::stage::{
    Job, Progress,
    dictionary::Dictionary,
    error::StageError,
    form,
    resume_log::ResumeLog,
    source::block::{Block, ColumnKind, ColumnSpec, NO_TIME, NO_WORD},
    table::{PassOptions, Sink, Table},
};
use enn_common::{
    config::data::WindowsLayout,
    staged::{
        unfinished::{Kept, ResumePoint},
        words::Form,
    },
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
};

const ENTITIES_MAX: usize = 10_000;

const EXAMPLES_MAX: usize = 5;

/// First and last step with a row; `None` where no row has a time.
type StepRange = Option<(i64, i64)>;

#[derive(Debug, Default, Clone)]
pub(crate) struct Keys {
    /// Entities, sorted by name, and the first and last step of each.
    pub entities: BTreeMap<String, StepRange>,
    /// First and last step with a row, in steps since 1970.
    pub steps: StepRange,
    /// Number of rows with entity and time.
    pub rows: u64,
    pub unkeyed: u64,
    /// Number of rows whose time is not a multiple of the step.
    pub unaligned: u64,
    pub unknown_rows: u64,
    pub unknown_entities: Vec<String>,
    pub gaps: Gaps,
    unkept: BTreeSet<String>,
}

impl Keys {
    fn kept(points: &[ResumePoint]) -> Self {
        let mut keys = Self::default();
        for point in points {
            if let Kept::Keys { entities, spans, steps, rows, strangers, gaps } = &point.kept {
                keys.gaps = Gaps::kept(gaps);
                // Points of an older release have no spans.
                let spans = spans.iter().copied().chain(std::iter::repeat(*steps));
                keys.entities.extend(entities.iter().cloned().zip(spans));
                keys.steps = *steps;
                keys.unknown_entities = strangers.clone();
                [keys.rows, keys.unkeyed, keys.unaligned, keys.unknown_rows] = *rows;
            }
        }
        keys
    }

    pub(crate) fn merge(mut self, part: Self) -> Self {
        part.entities.into_iter().for_each(|(name, span)| widen(&mut self.entities, name, span));
        self.steps = both(self.steps, part.steps);
        self.rows += part.rows;
        self.unkeyed += part.unkeyed;
        self.unaligned += part.unaligned;
        self.unknown_rows += part.unknown_rows;
        self.gaps.merge(&part.gaps);
        for entity in part.unknown_entities {
            if self.unknown_entities.len() < EXAMPLES_MAX && !self.unknown_entities.contains(&entity) {
                self.unknown_entities.push(entity);
            }
        }
        self
    }

    /// Returns the share of steps with a row, counted from the first to the last row of each entity.
    pub(super) fn filled(&self) -> f64 {
        let steps = |(low, high): &(i64, i64)| high.abs_diff(*low) as f64 + 1.0;
        self.rows as f64 / self.entities.values().flatten().map(steps).sum::<f64>().max(1.0)
    }

    fn renamed(mut self, names: &Entities) -> Self {
        let mut named = BTreeMap::new();
        self.entities.iter().for_each(|(name, span)| widen(&mut named, names.name(name).into_owned(), *span));
        self.entities = named;
        self
    }

    pub(crate) fn check(&self, layout: &WindowsLayout) -> Result<(), StageError> {
        if self.entities.len() <= ENTITIES_MAX {
            return Ok(());
        }
        Err(StageError::TooManyEntities { column: layout.entity.clone(), entities_max: ENTITIES_MAX })
    }
}

fn both(a: StepRange, b: StepRange) -> StepRange {
    match (a, b) {
        (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
        (a, b) => a.or(b),
    }
}

fn widen(entities: &mut BTreeMap<String, StepRange>, name: String, steps: StepRange) {
    let own = entities.entry(name).or_default();
    *own = both(*own, steps);
}

/// Keys of a table of one or more sources.
pub(crate) struct TableKeys {
    pub by_source: Vec<Keys>,
    pub all: Keys,
    pub names: Entities,
}

pub(crate) struct Entities {
    form: Form,
    own: Option<Dictionary>,
}

impl Entities {
    /// Gives every entity one name in the keys of all sources.
    pub(crate) fn resolve(job: &Job<'_>, keys: Vec<Keys>) -> TableKeys {
        let all = keys.iter().cloned().fold(Keys::default(), Keys::merge);
        let names = Self::new(job, &all);
        let by_source = keys.into_iter().map(|keys| keys.renamed(&names)).collect();
        TableKeys { by_source, all: all.renamed(&names), names }
    }

    fn new(job: &Job<'_>, all: &Keys) -> Self {
        let found: Vec<String> = all.entities.keys().cloned().collect();
        let own = job.training.and_then(|meta| meta.out_labels.first());
        Self { form: form::of(&found), own: own.map(|names| Dictionary::of_model(names, None)) }
    }

    pub(crate) fn name<'a>(&'a self, word: &'a str) -> Cow<'a, str> {
        match &self.own {
            Some(own) => own.words().get(own.known(word) as usize).map_or(word, String::as_str).into(),
            None => form::canonical(word, self.form),
        }
    }
}

pub(crate) fn read(
    job: &Job<'_>,
    layout: &WindowsLayout,
    table: &Table,
    resume_log: &ResumeLog<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Keys, StageError> {
    let specs = [ColumnSpec::new(&layout.entity, ColumnKind::Word), ColumnSpec::new(&layout.time, ColumnKind::Time)];
    let known = job.training.and_then(|meta| meta.out_labels.first()).map(|names| Dictionary::of_model(names, None));
    let options = PassOptions { specs: &specs, hash_rows: false, threads: job.threads, resume_log: Some(resume_log) };
    Ok(table.pass(options, &KeySink { layout, known }, Keys::kept(resume_log.points()), progress)?.0)
}

struct KeySink<'a> {
    layout: &'a WindowsLayout,
    known: Option<Dictionary>,
}

impl Sink for KeySink<'_> {
    type Work = Keys;
    type State = Keys;

    fn work(&self, block: Block) -> Result<Keys, StageError> {
        let mut keys = Keys::default();
        let Some(words) = block.columns[0].words() else { return Ok(keys) };
        let is_unknown = |known: &Dictionary, word: &str| known.known(word) as usize == known.len();
        let is_unknown_word = |word: &String| self.known.as_ref().is_some_and(|known| is_unknown(known, word));
        let is_unknown_word: Vec<bool> = words.list.iter().map(is_unknown_word).collect();
        let mut last = HashMap::new();
        let mut spans = vec![None; words.list.len()];
        for (id, time) in words.ids.iter().zip(block.columns[1].times()) {
            if *id == NO_WORD || *time == NO_TIME {
                keys.unkeyed += 1;
                continue;
            }
            if is_unknown_word[*id as usize] {
                keys.unknown_rows += 1;
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
        for ((word, is_unknown), span) in words.list.iter().zip(is_unknown_word).zip(spans) {
            if is_unknown {
                keys.unknown_entities.push(word.clone())
            } else {
                widen(&mut keys.entities, word.clone(), span)
            }
        }
        Ok(keys)
    }

    fn order(&self, all: &mut Keys, _: u64, part: &mut Keys) -> Result<(), StageError> {
        for (name, span) in &part.entities {
            if all.entities.get(name).is_none_or(|own| both(*own, *span) != *own) {
                all.unkept.insert(name.clone());
            }
        }
        *all = std::mem::take(all).merge(std::mem::take(part));
        all.check(self.layout)
    }

    fn keep(&self, all: &mut Keys) -> Result<Kept, StageError> {
        let entities: Vec<String> = std::mem::take(&mut all.unkept).into_iter().collect();
        Ok(Kept::Keys {
            spans: entities.iter().filter_map(|name| all.entities.get(name).copied()).collect(),
            entities,
            steps: all.steps,
            rows: [all.rows, all.unkeyed, all.unaligned, all.unknown_rows],
            strangers: all.unknown_entities.clone(),
            gaps: all.gaps.to_kept(),
        })
    }
}
