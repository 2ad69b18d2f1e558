//! The rows layout: one table row is one sample. Blocks become row-major samples in parallel and are written at their position in
//! reading order; categories get provisional indices in reading order.

use super::{
    Job, Progress, calendar,
    complete::{self, Classes, Draft, Input, ROW_NAMES_MAX},
    dictionary::Dictionary,
    duplicates::Hashes,
    error::StageError,
    form, multi_hot, order,
    output::{Extras, Output, Samples},
    resume_log::ResumeLog,
    source::block::{Block, ColumnKind, ColumnSpec, Key, NO_TIME, NO_WORD, Words},
    split,
    table::{PassOptions, PassProgress, Sink, Table, Tally},
};
use enn_common::{
    config::data::{Calendar, DuplicatePolicy, Feature, FeatureKind, RowsLayout, SplitKind},
    fs::space,
    staged::{
        StagedMeta, StagedWriter,
        meta::{CleaningReport, LabelMeta},
        unfinished::{Kept, ResumePoint},
    },
};
use std::{collections::HashMap, path::Path};
use twox_hash::XxHash3_128;

const CATEGORIES_MAX: usize = 100_000;

/// Hash seed of integer keys, which distinguishes them from text keys of equal bytes.
const INTEGER_SEED: u64 = 1;

pub(crate) fn draft(
    job: &Job<'_>,
    layout: &RowsLayout,
    progress: &mut dyn FnMut(Progress),
) -> Result<Draft, StageError> {
    let table = Table::open(job)?;
    let has = |column: &str| table.has(column);
    let mut plan = RowsPlan::new(job, layout, &has, &multi_hot::ColumnLabels::new())?;
    table.require(&plan.specs.iter().map(|spec| spec.column.clone()).collect::<Vec<String>>())?;
    std::fs::create_dir_all(job.out).map_err(enn_common::fs::FileError::of("make the directory", job.out))?;
    let (writer, points) = StagedWriter::resume(job.out, &job.digest)?;
    let sets: Vec<ColumnSpec> =
        plan.specs.iter().filter(|spec| matches!(spec.kind, ColumnKind::Labels(_))).cloned().collect();
    let scans_labels = !sets.is_empty() && job.training.is_none();
    let is_timed = job.training.is_none() && job.config.split.kind == SplitKind::Chronological;
    let mut passes = PassProgress::new(progress, table.bytes() * (1 + u64::from(scans_labels) + u64::from(is_timed)));
    let times = order::times(job, layout, &table, &mut |now| passes.show_scan(now))?;
    if is_timed {
        passes.end_read(0, table.bytes());
    }
    if scans_labels {
        let labels = multi_hot::find(job, &table, &sets, &writer, &points, &mut |now| passes.show_scan(now))?;
        passes.end_read(0, table.bytes());
        plan = RowsPlan::new(job, layout, &has, &labels)?;
    }
    plan.check_inputs()?;
    // The number of rows is an estimate: the disk may still fill up later, which is a write error.
    let needed = table.rows_estimate() * (Output::sample_bytes(plan.inputs.len(), plan.targets.len()) + 16);
    space::require(job.out, needed.saturating_sub(writer.taken_bytes()))?;
    let out_shape = match job.training.filter(|_| plan.targets.is_empty()) {
        Some(training) => training.out_shape.clone(),
        None => layout.out_shape.clone(),
    };
    let extras = Extras { targets: !plan.targets.is_empty(), weight: plan.weight.is_some() };
    let (mut output, points) = Output::resume(writer, points, plan.inputs.len(), &out_shape, extras)?;
    let sync = || output.sync();
    let resume_log = ResumeLog::new(output.writer(), &sync, 0, job.resume_policy, &points);
    // Rows without an id are identified by all of their cells, if the configuration asks for it.
    let hash_rows = plan.key.is_none() && plan.counts_repeats && job.config.duplicates != DuplicatePolicy::Keep;
    let options = PassOptions { specs: &plan.specs, hash_rows, threads: job.threads, resume_log: Some(&resume_log) };
    let state = RowsState::resume(&plan, output.dir(), points)?;
    let sink = RowSink { job, plan: &plan, output: &output };
    let (state, tally) = table.pass(options, &sink, state, &mut |now| passes.show_read(now))?;
    output.rows = tally.rows;
    let mut draft = finish(job, layout, plan, output, state, tally, times)?;
    draft.report.warnings.extend(table.warnings());
    Ok(draft)
}

/// Finishes the draft once all rows are read: settles categories and ids, and removes repeated rows and rows without targets.
fn finish(
    job: &Job<'_>,
    layout: &RowsLayout,
    plan: RowsPlan,
    output: Output,
    state: RowsState,
    tally: Tally,
    times: Vec<i64>,
) -> Result<Draft, StageError> {
    let mut report = CleaningReport {
        rows_read: tally.rows + tally.wrong_width,
        wrong_width: tally.wrong_width,
        wrong_width_line: tally.wrong_width_line,
        ..CleaningReport::default()
    };
    plan.specs.iter().zip(&tally.counts).for_each(|(spec, counts)| complete::count(&mut report, &spec.column, counts));
    let mut inputs = plan.inputs;
    let mut classes = None;
    for (slot, dictionary) in plan.slots.iter().filter(|slot| slot.kind == ColumnKind::Word).zip(state.dictionaries) {
        let source = if slot.column == TARGET { &layout.targets[0] } else { &inputs[slot.column].source };
        let examples = dictionary.unknown_words().to_vec();
        if !examples.is_empty() {
            report.columns.entry(source.clone()).or_default().strangers = examples;
        }
        // Words of a model keep their spelling.
        let (words, form) = match job.training {
            Some(_) => (dictionary.into_list(), None),
            None => {
                let (words, form) = form::canonicalize(dictionary.into_list());
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
    let weights = plan.weight.and_then(|spec| tally.counts.get(spec));
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

/// Returns the names along the output axes: the target columns along a single long axis, otherwise indices.
fn labels(layout: &RowsLayout) -> Vec<Vec<String>> {
    let lines = layout.out_shape.iter().filter(|size| **size > 1).count() <= 1;
    let axis = |size: &usize| match *size == layout.targets.len() && lines {
        true => layout.targets.clone(),
        false => (0..*size).map(|index| index.to_string()).collect(),
    };
    layout.out_shape.iter().map(axis).collect()
}

/// `Slot::column` of the target's class.
const TARGET: usize = usize::MAX;
/// `Slot::spec` of a target that is not in the data.
const NOWHERE: usize = usize::MAX;

#[derive(Debug, Clone, Copy)]
struct Slot {
    spec: usize,
    /// Index of the first staged column.
    column: usize,
    kind: ColumnKind,
}

#[derive(Debug, Default)]
pub(super) struct RowsPlan {
    pub(super) specs: Vec<ColumnSpec>,
    pub(super) inputs: Vec<Input>,
    slots: Vec<Slot>,
    /// Indices of the requested columns of the target cells; empty without targets.
    targets: Vec<usize>,
    key: Option<usize>,
    split: Option<usize>,
    weight: Option<usize>,
    dictionaries: Vec<Dictionary>,
    sets: HashMap<usize, multi_hot::LabelSet>,
    counts_repeats: bool,
}

impl RowsPlan {
    /// Creates the plan. `has` returns whether the data have a column; `labels` are the labels that were found in the training data.
    pub(super) fn new(
        job: &Job<'_>,
        layout: &RowsLayout,
        has: &dyn Fn(&str) -> bool,
        labels: &multi_hot::ColumnLabels,
    ) -> Result<Self, StageError> {
        check(layout)?;
        let is_training = job.training.is_none();
        let has_targets = is_training || layout.targets.iter().all(|target| has(target));
        let mut plan = Self { counts_repeats: is_training, ..Self::default() };
        for feature in &layout.features {
            plan.feature(job, feature, labels);
        }
        if has_targets {
            plan.targets = layout.targets.iter().map(|target| plan.target(job, layout, target)).collect();
        } else if let Some(training) = job.training.filter(|_| layout.classes) {
            plan.classes(None, Some(training));
        }
        // Data with targets have weights, too, if they have the column.
        let weighs = |column: &&String| is_training || (has_targets && has(column));
        if let Some(column) = job.config.weight.as_ref().filter(weighs) {
            let spec = plan.add_column(job, column, ColumnKind::Number);
            plan.specs[spec].range = (0.0, ColumnSpec::ANY.1);
            plan.weight = Some(spec);
        }
        plan.key = layout.row_id.as_ref().map(|column| plan.add_column(job, column, ColumnKind::Key));
        let kind = match job.config.split.kind {
            SplitKind::Group => Some(ColumnKind::Word),
            SplitKind::Column => Some(ColumnKind::Split),
            _ => None,
        };
        if let Some(kind) = kind.filter(|_| is_training) {
            let column = job.config.split.column.as_ref().ok_or_else(|| {
                StageError::config("data.split.column", "nothing", "the column that the rule of the split needs")
            })?;
            plan.split = Some(plan.add_column(job, column, kind));
        }
        Ok(plan)
    }

    fn target(&mut self, job: &Job<'_>, layout: &RowsLayout, column: &str) -> usize {
        let spec = self.add_column(job, column, if layout.classes { ColumnKind::Word } else { ColumnKind::Number });
        if layout.classes {
            self.classes(Some(spec), job.training);
        } else {
            self.specs[spec].sentinel = job.config.mask.sentinel();
        }
        spec
    }

    /// Adds the classes of the target: those of a model, or those that will be found in requested column `spec`.
    fn classes(&mut self, spec: Option<usize>, training: Option<&StagedMeta>) {
        let own = |meta: &StagedMeta| {
            Dictionary::of_model(meta.out_labels.first().map_or(&[][..], Vec::as_slice), meta.class_form)
        };
        self.dictionaries.push(training.map_or_else(Dictionary::found, own));
        self.slots.push(Slot { spec: spec.unwrap_or(NOWHERE), column: TARGET, kind: ColumnKind::Word });
    }

    fn add_column(&mut self, job: &Job<'_>, column: &str, kind: ColumnKind) -> usize {
        let mut spec = ColumnSpec::new(column, kind);
        if let Some(range) = job.config.ranges.iter().find(|range| range.column == column) {
            spec.range = (range.low, range.high);
        }
        self.specs.push(spec);
        self.specs.len() - 1
    }

    /// Returns the inputs of a block, shape (n, F), NaN where missing and for categories; and the categories' words by staged column.
    fn scatter(&self, block: &Block) -> (Vec<f32>, Vec<(usize, Words)>) {
        let width = self.inputs.len();
        let mut x = vec![f32::NAN; block.rows * width];
        let mut words = Vec::new();
        for slot in &self.slots {
            let Some(column) = block.columns.get(slot.spec) else { continue };
            match slot.kind {
                ColumnKind::Number | ColumnKind::Index(_) => scatter(&mut x, width, slot.column, column.numbers()),
                ColumnKind::Labels(_) => {
                    if let (Some(set), Some(words)) = (self.sets.get(&slot.spec), column.words()) {
                        set.scatter(&mut x, slot.column, width, words);
                    }
                }
                ColumnKind::Calendar => scatter_times(&mut x, width, slot.column, column.times()),
                _ => words.extend(column.words().map(|words| (slot.column, words.clone()))),
            }
        }
        (x, words)
    }

    /// Returns the requested column of an input's numbers; `None` if the input is not a number of the source.
    pub(super) fn source_of(&self, input: usize) -> Option<&ColumnSpec> {
        let is_its =
            |slot: &&Slot| slot.column == input && matches!(slot.kind, ColumnKind::Number | ColumnKind::Index(_));
        self.specs.get(self.slots.iter().find(is_its)?.spec)
    }

    /// Returns the inputs of a block with a model's own categories, shape (n, F), NaN where missing.
    pub(super) fn encoded(&self, block: &Block) -> Vec<f32> {
        let (mut x, words) = self.scatter(block);
        let dictionaries = self.slots.iter().filter(|slot| slot.kind == ColumnKind::Word).zip(&self.dictionaries);
        let dictionaries: HashMap<usize, &Dictionary> = dictionaries.map(|(slot, all)| (slot.column, all)).collect();
        for (column, words) in &words {
            let codes: Vec<u32> = words.list.iter().map(|word| dictionaries[column].known(word)).collect();
            put_codes(&mut x, *column, self.inputs.len(), words, &codes);
        }
        x
    }

    fn feature(
        &mut self,
        job: &Job<'_>,
        Feature { column, kind, one_hot }: &Feature,
        labels: &multi_hot::ColumnLabels,
    ) {
        let first = self.inputs.len();
        let input = |name: String| Input { name, source: column.clone(), one_hot: *one_hot, ..Input::default() };
        let mut set = None;
        let kind = match *kind {
            FeatureKind::Number => {
                self.inputs.push(input(column.clone()));
                ColumnKind::Number
            }
            FeatureKind::Category => {
                self.inputs.push(Input { categories: Some(Vec::new()), ..input(column.clone()) });
                let own = |meta: &StagedMeta| {
                    let own = meta.features.iter().find(|feature| feature.name == *column);
                    own.map_or_else(Dictionary::found, |own| Dictionary::of_model(&own.categories, own.form))
                };
                self.dictionaries.push(job.training.map_or_else(Dictionary::found, own));
                ColumnKind::Word
            }
            FeatureKind::Index(index) => {
                let rows = (index.offset..).take(index.rows).map(|row| row.to_string()).collect();
                let offset = Some(index.offset);
                self.inputs.push(Input { categories: Some(rows), offset, ..input(column.clone()) });
                ColumnKind::Index(index)
            }
            FeatureKind::Labels(how) => {
                let (own, form) = match job.training {
                    Some(meta) => multi_hot::of_model(meta, column),
                    None => labels.get(column).cloned().unwrap_or_default(),
                };
                set = Some(multi_hot::LabelSet::new(&own, form, how.separator, job.training.is_some()));
                // Unknown labels are counted in an input that is dropped later; no label is empty.
                let unknown_label = job.training.map(|_| String::new());
                self.inputs.extend(own.into_iter().chain(unknown_label).map(|name| Input {
                    label: Some(LabelMeta { column: column.clone(), name: name.clone() }),
                    form,
                    ..input(format!("{column}[{name}]"))
                }));
                ColumnKind::Labels(how)
            }
            FeatureKind::Time => {
                let names = calendar::names(Calendar::ALL);
                self.inputs.extend(names.into_iter().map(|name| input(format!("{column}.{name}"))));
                ColumnKind::Calendar
            }
        };
        let spec = self.add_column(job, column, kind);
        self.sets.extend(set.map(|set| (spec, set)));
        self.slots.push(Slot { spec, column: first, kind });
    }

    /// Refuses inputs with equal names, and a plan without inputs.
    fn check_inputs(&self) -> Result<(), StageError> {
        let mut names: Vec<&String> = self.inputs.iter().map(|input| &input.name).collect();
        names.sort_unstable();
        let found = match names.windows(2).find(|pair| pair[0] == pair[1]) {
            _ if names.is_empty() => "no label in any cell".to_owned(),
            Some(pair) => format!("two inputs that would be called {:?}", pair[0]),
            None => return Ok(()),
        };
        let expected = "inputs, each with a name of its own: \"column\", or \"column[label]\" for each label";
        Err(StageError::config("data.rows.features", found, expected))
    }
}

fn check(layout: &RowsLayout) -> Result<(), StageError> {
    let cells: usize = layout.out_shape.iter().product();
    if cells != layout.targets.len() || cells == 0 {
        return Err(StageError::config(
            "data.rows.out_shape",
            format!("{:?}, {cells} cells, for {} targets", layout.out_shape, layout.targets.len()),
            "a shape with as many cells as there are target columns",
        ));
    }
    let mut names: Vec<&String> = layout.features.iter().map(|feature| &feature.column).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let found = format!("{:?} twice", pair[0]);
        return Err(StageError::config("data.rows.features", found, "every input column once"));
    }
    if names.is_empty() {
        return Err(StageError::config("data.rows.features", "none", "at least one input column"));
    }
    Ok(())
}

struct RowsState {
    dictionaries: Vec<Dictionary>,
    hashes: Hashes,
    names: Vec<String>,
    has_text_keys: bool,
    kept_names: usize,
    kept_words: Vec<usize>,
}

impl RowsState {
    fn resume(plan: &RowsPlan, dir: &Path, points: Vec<ResumePoint>) -> Result<Self, StageError> {
        let mut dictionaries = plan.dictionaries.clone();
        let mut all_names = Vec::new();
        let mut any_text = false;
        let mut hashed = 0;
        for point in points {
            let Kept::Rows { words, names, has_text_keys, hashes } = point.kept else { continue };
            let known = dictionaries.iter_mut().zip(&words);
            known.for_each(|(own, words)| own.add_all(words.iter().map(String::as_str)));
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
    plan: &'a RowsPlan,
    output: &'a Output,
}

struct RowBatch {
    samples: Samples,
    rows: usize,
    first: u64,
    /// Staged column, words, and (once ordered) codes of each category slot.
    words: Vec<(usize, Words, Vec<u32>)>,
    keys: Vec<Key>,
    split: Option<Words>,
    hashes: Vec<u128>,
}

impl Sink for RowSink<'_> {
    type Work = RowBatch;
    type State = RowsState;

    fn work(&self, block: Block) -> Result<RowBatch, StageError> {
        let (x, words) = self.plan.scatter(&block);
        let words = words.into_iter().map(|(column, words)| (column, words, Vec::new())).collect();
        let cells = self.plan.targets.len();
        let mut y = vec![f32::NAN; block.rows * cells];
        for (cell, spec) in self.plan.targets.iter().enumerate() {
            let numbers = block.columns[*spec].numbers();
            scatter(&mut y, cells, cell, numbers);
            self.output.look_for_rounding(numbers.iter().copied());
        }
        let keys = self.plan.key.map_or_else(Vec::new, |spec| block.columns[spec].keys().to_vec());
        let hashes = match self.plan.key {
            Some(_) if self.plan.counts_repeats => keys.iter().map(hash).collect(),
            _ => block.hashes,
        };
        let split = self.plan.split.and_then(|spec| block.columns[spec].words().cloned());
        let weights = self.plan.weight.map_or(&[][..], |spec| block.columns[spec].numbers());
        let weight = weights.iter().map(|weight| if weight.is_nan() { 0.0 } else { *weight as f32 }).collect();
        let samples = Samples { x, y, weight, ..Samples::default() };
        Ok(RowBatch { samples, rows: block.rows, first: 0, words, keys, split, hashes })
    }

    fn order(&self, state: &mut RowsState, first: u64, work: &mut RowBatch) -> Result<(), StageError> {
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

    fn after(&self, mut work: RowBatch) -> Result<(), StageError> {
        let width = self.plan.inputs.len();
        for (column, words, codes) in &work.words {
            match *column {
                TARGET => put_codes(&mut work.samples.y, 0, 1, words, codes),
                column => put_codes(&mut work.samples.x, column, width, words, codes),
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

    fn keep(&self, state: &mut RowsState) -> Result<Kept, StageError> {
        state.keep()
    }
}

impl RowSink<'_> {
    /// Returns the splits of a block for kinds that depend on single rows; empty for other kinds.
    fn split(&self, work: &RowBatch) -> Vec<u8> {
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
                // Rows without a group form one group.
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

/// Writes the codes of words into every `step`-th cell from `first` on.
fn put_codes(to: &mut [f32], first: usize, step: usize, words: &Words, codes: &[u32]) {
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
