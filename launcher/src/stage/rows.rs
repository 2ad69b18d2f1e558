//! The rows layout: one table row is one sample. Blocks become row-major samples in parallel and are written where the order of
//! reading puts them; categories get provisional indices in reading order.

use super::{
    Job, Progress, calendar,
    complete::{self, Classes, Draft, Input, ROW_NAMES_MAX},
    dictionary::Dictionary,
    duplicates::Hashes,
    error::StageError,
    form,
    keeper::Keeper,
    multi_hot, order,
    output::{Extras, Output, Samples},
    source::block::{Block, Key, Kind, NO_TIME, NO_WORD, Want, Words},
    split,
    table::{Ask, Passes, Sink, Table, Tally},
};
use enn_common::{
    config::data::{Calendar, DuplicatePolicy, Feature, FeatureKind, RowsLayout, SplitKind},
    fs::space,
    staged::{
        StagedMeta, StagedWriter,
        meta::{CleaningReport, LabelMeta},
        unfinished::{Kept, Mark},
    },
};
use std::{collections::HashMap, path::Path};
use twox_hash::XxHash3_128;

/// Categories of one column, at most.
const CATEGORIES_MAX: usize = 100_000;

/// Seed that keeps integer keys apart from equal bytes of text keys.
const INTEGER_SEED: u64 = 1;

/// Stages a table row by row.
pub(crate) fn draft(
    job: &Job<'_>,
    layout: &RowsLayout,
    progress: &mut dyn FnMut(Progress),
) -> Result<Draft, StageError> {
    let table = Table::open(job)?;
    let has = |column: &str| table.has(column);
    let mut plan = Plan::new(job, layout, &has, &multi_hot::Found::new())?;
    table.require(&plan.wants.iter().map(|want| want.column.clone()).collect::<Vec<String>>())?;
    std::fs::create_dir_all(job.out).map_err(enn_common::fs::FileError::of("make the directory", job.out))?;
    let found = StagedWriter::resume(job.out, &job.digest)?;
    let sets: Vec<Want> = plan.wants.iter().filter(|want| matches!(want.kind, Kind::Labels(_))).cloned().collect();
    let looks = !sets.is_empty() && job.training.is_none();
    let is_timed = job.training.is_none() && job.config.split.kind == SplitKind::Chronological;
    let mut passes = Passes::new(progress, table.bytes() * (1 + u64::from(looks) + u64::from(is_timed)));
    let times = order::times(job, layout, &table, &mut |now| passes.looks(now))?;
    if is_timed {
        passes.ended(table.bytes());
    }
    if looks {
        let labels = multi_hot::find(job, &table, &sets, (&found.0, &found.1), &mut |now| passes.looks(now))?;
        passes.ended(table.bytes());
        plan = Plan::new(job, layout, &has, &labels)?;
    }
    plan.check_inputs()?;
    // Rows are estimated; a disk that fills up in spite of this is an error of the write.
    let needed = table.rows_estimate() * (Output::sample_bytes(plan.inputs.len(), plan.targets.len()) + 16);
    space::require(job.out, needed.saturating_sub(found.0.taken_bytes()))?;
    let out_shape = match job.training.filter(|_| plan.targets.is_empty()) {
        Some(training) => training.out_shape.clone(),
        None => layout.out_shape.clone(),
    };
    let extras = Extras { targets: !plan.targets.is_empty(), weight: plan.weight.is_some() };
    let (mut output, marks) = Output::resume(found, plan.inputs.len(), &out_shape, extras)?;
    let sync = || output.sync();
    let keeper = Keeper::new(output.writer(), &sync, (0, job.marking), &marks);
    // Rows without an id are told apart by all of their cells, where that is asked for.
    let hash_rows = plan.key.is_none() && plan.counts_repeats && job.config.duplicates != DuplicatePolicy::Keep;
    let ask = Ask { wants: &plan.wants, hash_rows, threads: job.threads, keeper: Some(&keeper) };
    let state = State::resume(&plan, output.dir(), marks)?;
    let sink = RowSink { job, plan: &plan, output: &output };
    let (state, tally) = table.pass(ask, &sink, state, &mut |now| passes.reads(now))?;
    output.rows = tally.rows;
    let mut draft = finish(job, layout, plan, (output, state, tally), times)?;
    draft.report.warnings.extend(table.warnings());
    Ok(draft)
}

/// What happens once all rows are read: repeated and untaught rows go, ids are settled.
fn finish(
    job: &Job<'_>,
    layout: &RowsLayout,
    plan: Plan,
    (output, state, tally): (Output, State, Tally),
    times: Vec<i64>,
) -> Result<Draft, StageError> {
    let mut report = CleaningReport {
        rows_read: tally.rows + tally.wrong_width,
        wrong_width: tally.wrong_width,
        wrong_width_line: tally.wrong_width_line,
        ..CleaningReport::default()
    };
    plan.wants.iter().zip(&tally.counts).for_each(|(want, counts)| complete::count(&mut report, &want.column, counts));
    let mut inputs = plan.inputs;
    let mut classes = None;
    for (slot, dictionary) in plan.slots.iter().filter(|slot| slot.kind == Kind::Word).zip(state.dictionaries) {
        let source = if slot.column == TARGET { &layout.targets[0] } else { &inputs[slot.column].source };
        let strangers = dictionary.strangers().to_vec();
        if !strangers.is_empty() {
            report.columns.entry(source.clone()).or_default().strangers = strangers;
        }
        // A model's own words stay as it knows them.
        let (words, form) = match job.training {
            Some(_) => (dictionary.into_list(), None),
            None => {
                let (words, form) = form::settle(dictionary.into_list());
                (words, Some(form))
            }
        };
        match slot.column {
            TARGET => classes = Some(Classes { words, form }),
            column => {
                inputs[column].categories = Some(words);
                inputs[column].form = form;
            }
        }
    }
    let weights = plan.weight.and_then(|want| tally.counts.get(want));
    let invalid = weights.map_or(0, |counts| counts.missing + counts.non_finite + counts.out_of_range);
    if invalid > 0 {
        report.notes.push(format!("{invalid} samples have no weight of at least 0 and count for nothing"));
    }
    let names = if state.has_text_keys { state.names } else { Vec::new() };
    if state.has_text_keys {
        output.number(0..output.rows, 0)?;
        report.notes.push("row ids are not integers: samples are numbered in reading order".to_string());
    }
    let mut draft = Draft {
        output,
        inputs,
        targets: layout.targets.clone(),
        out_shape: layout.out_shape.clone(),
        out_labels: labels(layout),
        persistence: None,
        classes,
        names,
        starts: Vec::new(),
        times,
        sources: super::source_rows(job.config, &tally.file_rows),
        report,
    };
    let what = if layout.row_id.is_some() { "the row id" } else { "all cells" };
    draft.drop_repeated(job, state.hashes, what)?;
    Ok(draft)
}

/// Names along the axes: the target columns where the grid is a line, else positions.
fn labels(layout: &RowsLayout) -> Vec<Vec<String>> {
    let lines = layout.out_shape.iter().filter(|size| **size > 1).count() <= 1;
    let axis = |size: &usize| match *size == layout.targets.len() && lines {
        true => layout.targets.clone(),
        false => (0..*size).map(|index| index.to_string()).collect(),
    };
    layout.out_shape.iter().map(axis).collect()
}

/// The staged column of the target's class.
const TARGET: usize = usize::MAX;
/// The wanted column of a target that is not in the data.
const NOWHERE: usize = usize::MAX;

/// Where a wanted column goes.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Index of the wanted column.
    want: usize,
    /// First staged column.
    column: usize,
    kind: Kind,
}

/// Which columns are read and where they go.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) wants: Vec<Want>,
    pub(super) inputs: Vec<Input>,
    slots: Vec<Slot>,
    /// Wanted columns of the target cells; empty when there are none.
    targets: Vec<usize>,
    key: Option<usize>,
    split: Option<usize>,
    weight: Option<usize>,
    /// One per category slot, in order.
    dictionaries: Vec<Dictionary>,
    /// Of columns of labels, by their wanted column.
    sets: HashMap<usize, multi_hot::Set>,
    counts_repeats: bool,
}

impl Plan {
    /// `has` says whether the data have a column; `labels` are those of the training data, where they are staged.
    pub(super) fn new(
        job: &Job<'_>,
        layout: &RowsLayout,
        has: &dyn Fn(&str) -> bool,
        labels: &multi_hot::Found,
    ) -> Result<Self, StageError> {
        check(layout)?;
        let is_training = job.training.is_none();
        let has_targets = is_training || layout.targets.iter().all(|target| has(target));
        let mut plan = Self {
            wants: Vec::new(),
            inputs: Vec::new(),
            slots: Vec::new(),
            targets: Vec::new(),
            key: None,
            split: None,
            weight: None,
            dictionaries: Vec::new(),
            sets: HashMap::new(),
            counts_repeats: is_training,
        };
        for feature in &layout.features {
            plan.feature(job, feature, labels);
        }
        if has_targets {
            plan.targets = layout.targets.iter().map(|target| plan.target(job, layout, target)).collect();
        } else if let Some(training) = job.training.filter(|_| layout.classes) {
            plan.classes(None, Some(training));
        }
        // Data to be judged by have weights, too, where they have the column.
        let weighs = |column: &&String| is_training || (has_targets && has(column));
        if let Some(column) = job.config.weight.as_ref().filter(weighs) {
            let want = plan.want(job, column, Kind::Number);
            plan.wants[want].range = (0.0, Want::ANY.1);
            plan.weight = Some(want);
        }
        plan.key = layout.row_id.as_ref().map(|column| plan.want(job, column, Kind::Key));
        let kind = match job.config.split.kind {
            SplitKind::Group => Some(Kind::Word),
            SplitKind::Column => Some(Kind::Split),
            _ => None,
        };
        if let Some(kind) = kind.filter(|_| is_training) {
            let column = job.config.split.column.as_ref().ok_or_else(|| StageError::Config {
                key: "data.split.column",
                found: "nothing".into(),
                expected: "the column that the rule of the split needs".into(),
            })?;
            plan.split = Some(plan.want(job, column, kind));
        }
        Ok(plan)
    }

    /// Adds a target column.
    fn target(&mut self, job: &Job<'_>, layout: &RowsLayout, column: &str) -> usize {
        let want = self.want(job, column, if layout.classes { Kind::Word } else { Kind::Number });
        if layout.classes {
            self.classes(Some(want), job.training);
        } else {
            self.wants[want].sentinel = job.config.mask.sentinel();
        }
        want
    }

    /// Adds the classes of the target: a model's own, or those that will be found in column `want`.
    fn classes(&mut self, want: Option<usize>, training: Option<&StagedMeta>) {
        let own = |meta: &StagedMeta| {
            Dictionary::of_model(meta.out_labels.first().map_or(&[][..], Vec::as_slice), meta.class_form)
        };
        self.dictionaries.push(training.map_or_else(Dictionary::found, own));
        self.slots.push(Slot { want: want.unwrap_or(NOWHERE), column: TARGET, kind: Kind::Word });
    }

    /// Adds a wanted column.
    fn want(&mut self, job: &Job<'_>, column: &str, kind: Kind) -> usize {
        let mut want = Want::new(column, kind);
        if let Some(range) = job.config.ranges.iter().find(|range| range.column == column) {
            want.range = (range.low, range.high);
        }
        self.wants.push(want);
        self.wants.len() - 1
    }

    /// The inputs of a block (n, F), NaN where missing and where categories go; and these, by the column they go to.
    fn scatter(&self, block: &Block) -> (Vec<f32>, Vec<(usize, Words)>) {
        let width = self.inputs.len();
        let mut x = vec![f32::NAN; block.rows * width];
        let mut words = Vec::new();
        for slot in &self.slots {
            let Some(column) = block.columns.get(slot.want) else { continue };
            match slot.kind {
                Kind::Number | Kind::Index(_) => scatter(&mut x, width, slot.column, column.numbers()),
                Kind::Labels(_) => {
                    if let (Some(set), Some(words)) = (self.sets.get(&slot.want), column.words()) {
                        set.scatter(&mut x, (slot.column, width), words);
                    }
                }
                Kind::Calendar => scatter_times(&mut x, width, slot.column, column.times()),
                _ => words.extend(column.words().map(|words| (slot.column, words.clone()))),
            }
        }
        (x, words)
    }

    /// The column that an input's numbers are read from; `None` where it holds no number of the source.
    pub(super) fn source_of(&self, input: usize) -> Option<&Want> {
        let is_its = |slot: &&Slot| slot.column == input && matches!(slot.kind, Kind::Number | Kind::Index(_));
        self.wants.get(self.slots.iter().find(is_its)?.want)
    }

    /// The inputs of a block (n, F) by a model's own categories, NaN where missing.
    pub(super) fn encoded(&self, block: &Block) -> Vec<f32> {
        let (mut x, words) = self.scatter(block);
        let dictionaries = self.slots.iter().filter(|slot| slot.kind == Kind::Word).zip(&self.dictionaries);
        let dictionaries: HashMap<usize, &Dictionary> = dictionaries.map(|(slot, all)| (slot.column, all)).collect();
        for (column, words) in &words {
            let codes: Vec<u32> = words.list.iter().map(|word| dictionaries[column].known(word)).collect();
            settle(&mut x, (*column, self.inputs.len()), words, &codes);
        }
        x
    }

    fn feature(&mut self, job: &Job<'_>, Feature { column, kind, one_hot }: &Feature, labels: &multi_hot::Found) {
        let first = self.inputs.len();
        let input = |name: String| Input { name, source: column.clone(), one_hot: *one_hot, ..Input::default() };
        let mut set = None;
        let kind = match *kind {
            FeatureKind::Number => {
                self.inputs.push(input(column.clone()));
                Kind::Number
            }
            FeatureKind::Category => {
                self.inputs.push(Input { categories: Some(Vec::new()), ..input(column.clone()) });
                let own = |meta: &StagedMeta| {
                    let own = meta.features.iter().find(|feature| feature.name == *column);
                    own.map_or_else(Dictionary::found, |own| Dictionary::of_model(&own.categories, own.form))
                };
                self.dictionaries.push(job.training.map_or_else(Dictionary::found, own));
                Kind::Word
            }
            FeatureKind::Index(index) => {
                let rows = (index.offset..).take(index.rows).map(|row| row.to_string()).collect();
                let offset = Some(index.offset);
                self.inputs.push(Input { categories: Some(rows), offset, ..input(column.clone()) });
                Kind::Index(index)
            }
            FeatureKind::Labels(how) => {
                let (own, form) = match job.training {
                    Some(meta) => multi_hot::of_model(meta, column),
                    None => labels.get(column).cloned().unwrap_or_default(),
                };
                set = Some(multi_hot::Set::new(&own, form, how.separator, job.training.is_some()));
                // Labels that the model does not know are counted in an input that does not stay; no label is empty.
                let strange = job.training.map(|_| String::new());
                self.inputs.extend(own.into_iter().chain(strange).map(|name| Input {
                    label: Some(LabelMeta { column: column.clone(), name: name.clone() }),
                    form,
                    ..input(format!("{column}[{name}]"))
                }));
                Kind::Labels(how)
            }
            FeatureKind::Time => {
                let names = calendar::names(Calendar::ALL);
                self.inputs.extend(names.into_iter().map(|name| input(format!("{column}.{name}"))));
                Kind::Calendar
            }
        };
        let want = self.want(job, column, kind);
        self.sets.extend(set.map(|set| (want, set)));
        self.slots.push(Slot { want, column: first, kind });
    }

    /// Refuses inputs that cannot be told apart, and none at all.
    fn check_inputs(&self) -> Result<(), StageError> {
        let mut names: Vec<&String> = self.inputs.iter().map(|input| &input.name).collect();
        names.sort_unstable();
        let found = match names.windows(2).find(|pair| pair[0] == pair[1]) {
            _ if names.is_empty() => "no label in any cell".to_owned(),
            Some(pair) => format!("two inputs that would be called {:?}", pair[0]),
            None => return Ok(()),
        };
        let expected =
            "inputs, each with a name of its own: \"column\", or \"column[label]\" for each label".to_owned();
        Err(StageError::Config { key: "data.rows.features", found, expected })
    }
}

/// Refuses a layout that contradicts itself.
fn check(layout: &RowsLayout) -> Result<(), StageError> {
    let cells: usize = layout.out_shape.iter().product();
    if cells != layout.targets.len() || cells == 0 {
        return Err(StageError::Config {
            key: "data.rows.out_shape",
            found: format!("{:?}, {cells} cells, for {} targets", layout.out_shape, layout.targets.len()),
            expected: "a shape with as many cells as there are target columns".into(),
        });
    }
    let mut names: Vec<&String> = layout.features.iter().map(|feature| &feature.column).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let expected = "every input column once".to_string();
        return Err(StageError::Config { key: "data.rows.features", found: format!("{:?} twice", pair[0]), expected });
    }
    if names.is_empty() {
        let expected = "at least one input column".to_string();
        return Err(StageError::Config { key: "data.rows.features", found: "none".into(), expected });
    }
    Ok(())
}

struct State {
    dictionaries: Vec<Dictionary>,
    hashes: Hashes,
    names: Vec<String>,
    has_text_keys: bool,
    /// Names and categories that marks have.
    kept_names: usize,
    kept_words: Vec<usize>,
}

impl State {
    /// As the last mark has it.
    fn resume(plan: &Plan, dir: &Path, marks: Vec<Mark>) -> Result<Self, StageError> {
        let mut dictionaries = plan.dictionaries.clone();
        let mut all_names = Vec::new();
        let mut any_text = false;
        let mut hashed = 0;
        for mark in marks {
            let Kept::Rows { words, names, has_text_keys, hashes } = mark.kept else { continue };
            for (dictionary, words) in dictionaries.iter_mut().zip(words) {
                words.iter().for_each(|word| {
                    dictionary.code(word);
                });
            }
            all_names.extend(names);
            any_text = has_text_keys;
            hashed = hashes;
        }
        Ok(Self {
            hashes: Hashes::kept(dir, hashed)?,
            kept_names: all_names.len(),
            kept_words: dictionaries.iter().map(Dictionary::len).collect(),
            names: all_names,
            has_text_keys: any_text,
            dictionaries,
        })
    }

    /// What is new since the mark before.
    fn keep(&mut self) -> Result<Kept, StageError> {
        self.hashes.spill()?;
        let kept = self.kept_words.iter_mut().zip(&self.dictionaries);
        let words = kept.map(|(kept, own)| own.since(kept)).collect();
        let names = self.names[std::mem::replace(&mut self.kept_names, self.names.len())..].to_vec();
        Ok(Kept::Rows { words, names, has_text_keys: self.has_text_keys, hashes: self.hashes.rows() })
    }
}

struct RowSink<'a> {
    job: &'a Job<'a>,
    plan: &'a Plan,
    output: &'a Output,
}

/// A block as samples.
struct Work {
    samples: Samples,
    rows: usize,
    first: u64,
    /// Words of the category slots, in order, and once ordered the code of each.
    words: Vec<(usize, Words, Vec<u32>)>,
    keys: Vec<Key>,
    split: Option<Words>,
    hashes: Vec<u128>,
}

impl Sink for RowSink<'_> {
    type Work = Work;
    type State = State;

    fn work(&self, block: Block) -> Result<Work, StageError> {
        let (x, words) = self.plan.scatter(&block);
        let words = words.into_iter().map(|(column, words)| (column, words, Vec::new())).collect();
        let cells = self.plan.targets.len();
        let mut y = vec![f32::NAN; block.rows * cells];
        for (cell, want) in self.plan.targets.iter().enumerate() {
            let numbers = block.columns[*want].numbers();
            scatter(&mut y, cells, cell, numbers);
            self.output.look_for_rounding(numbers.iter().copied());
        }
        let keys = self.plan.key.map_or_else(Vec::new, |want| block.columns[want].keys().to_vec());
        let hashes = match self.plan.key {
            Some(_) if self.plan.counts_repeats => keys.iter().map(hash).collect(),
            _ => block.hashes,
        };
        let split = self.plan.split.and_then(|want| block.columns[want].words().cloned());
        let weights = self.plan.weight.map_or(&[][..], |want| block.columns[want].numbers());
        let weight = weights.iter().map(|weight| if weight.is_nan() { 0.0 } else { *weight as f32 }).collect();
        let samples = Samples { x, y, weight, ..Samples::default() };
        Ok(Work { samples, rows: block.rows, first: 0, words, keys, split, hashes })
    }

    fn order(&self, state: &mut State, first: u64, work: &mut Work) -> Result<(), StageError> {
        work.first = first;
        for ((column, words, codes), dictionary) in work.words.iter_mut().zip(&mut state.dictionaries) {
            *codes = words.list.iter().map(|word| dictionary.code(word)).collect();
            if dictionary.len() > CATEGORIES_MAX {
                let column = self.plan.inputs.get(*column).map_or("the target", |input| &input.source).to_owned();
                return Err(StageError::TooManyCategories { column, categories_max: CATEGORIES_MAX });
            }
        }
        state.hashes.push(&work.hashes)?;
        state.has_text_keys |= work.keys.iter().any(|key| matches!(key, Key::Text(_)));
        if first < ROW_NAMES_MAX + 1 {
            state.names.extend(work.keys.iter().map(|key| match key {
                Key::Integer(id) => id.to_string(),
                Key::Text(text) => text.clone(),
            }));
        }
        Ok(())
    }

    fn after(&self, mut work: Work) -> Result<(), StageError> {
        let width = self.plan.inputs.len();
        for (column, words, codes) in &work.words {
            match *column {
                TARGET => settle(&mut work.samples.y, (0, 1), words, codes),
                column => settle(&mut work.samples.x, (column, width), words, codes),
            }
        }
        let number = |row: usize| (work.first + row as u64) as i64;
        work.samples.ids = match self.plan.key {
            None => (0..work.rows).map(number).collect(),
            // Text keys are numbered when all rows are read.
            Some(_) => work.keys.iter().map(|key| if let Key::Integer(id) = key { *id } else { 0 }).collect(),
        };
        work.samples.split = self.split(&work);
        self.output.put(work.first, &work.samples)
    }

    fn keep(&self, state: &mut State) -> Result<Kept, StageError> {
        state.keep()
    }
}

impl RowSink<'_> {
    /// Splits of a block under the rules that look at one row only; empty under the others.
    fn split(&self, work: &Work) -> Vec<u8> {
        let config = &self.job.config.split;
        let is_training = self.job.training.is_none();
        match (config.kind, &work.split) {
            (SplitKind::Random, _) if is_training && self.plan.key.is_some() => {
                let name = |key: &Key| match key {
                    Key::Integer(id) => split::by_hash(config, &id.to_le_bytes()) as u8,
                    Key::Text(text) => split::by_hash(config, text.as_bytes()) as u8,
                };
                work.keys.iter().map(name).collect()
            }
            (SplitKind::Random, _) if is_training => {
                work.samples.ids.iter().map(|id| split::by_hash(config, &id.to_le_bytes()) as u8).collect()
            }
            (SplitKind::Group, Some(words)) => {
                // Rows without a group are one group together.
                let of = |word: &str| split::by_hash(config, form::alone(word).as_bytes()) as u8;
                let (known, none): (Vec<u8>, u8) = (words.list.iter().map(|word| of(word)).collect(), of(""));
                words.ids.iter().map(|id| known.get(*id as usize).copied().unwrap_or(none)).collect()
            }
            (SplitKind::Column, Some(words)) => {
                let known: Vec<u8> = words.list.iter().map(|word| split::by_name(word) as u8).collect();
                words.ids.iter().filter_map(|id| known.get(*id as usize).copied()).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Puts the codes of words into every `step`-th cell.
fn settle(to: &mut [f32], (first, step): (usize, usize), words: &Words, codes: &[u32]) {
    let cells = to.iter_mut().skip(first).step_by(step);
    for (cell, id) in cells.zip(&words.ids).filter(|(_, id)| **id != NO_WORD) {
        *cell = codes[*id as usize] as f32;
    }
}

fn scatter(to: &mut [f32], width: usize, column: usize, from: &[f64]) {
    for (cell, value) in to.iter_mut().skip(column).step_by(width.max(1)).zip(from) {
        *cell = *value as f32;
    }
}

fn scatter_times(to: &mut [f32], width: usize, column: usize, from: &[i64]) {
    let mut values = Vec::new();
    for (row, time) in to.chunks_exact_mut(width).zip(from).filter(|(_, time)| **time != NO_TIME) {
        values.clear();
        calendar::values(Calendar::ALL, *time, &mut values);
        row[column..column + values.len()].copy_from_slice(&values);
    }
}

fn hash(key: &Key) -> u128 {
    match key {
        Key::Integer(id) => XxHash3_128::oneshot_with_seed(INTEGER_SEED, &id.to_le_bytes()),
        Key::Text(text) => XxHash3_128::oneshot(text.as_bytes()),
    }
}
