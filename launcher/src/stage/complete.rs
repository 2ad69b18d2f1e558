//! The last steps, the same for every layout: splits, categories, statistics, dead inputs, notes, metadata.

use super::{
    Job, coarse,
    error::StageError,
    figures::{self, Codes, Figures},
    implausible::{self, Limits},
    input::lift_inputs,
    output::Output,
    split,
};
use enn_common::{
    config::data::{Layout, SplitKind, TargetMask},
    staged::{
        self, Split, StagedMeta,
        meta::{CleaningReport, ColumnReport, FeatureMeta, IndexMeta, LabelMeta, SourceMeta, Stats},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::Range,
    path::PathBuf,
    sync::atomic::Ordering::Relaxed,
};

pub(crate) use super::input::{Classes, Input};

/// Samples that get a name in the metadata, at most.
pub(crate) const ROW_NAMES_MAX: u64 = 100_000;

/// Columns that a note lists by name.
const NOTED_MAX: usize = 12;

/// What a layout has made, before the last steps.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The arrays. Splits are written already under the rules random, group and column.
    pub output: Output,
    /// Inputs, in order.
    pub inputs: Vec<Input>,
    /// Source columns of the target cells: one, or as many as there are cells.
    pub targets: Vec<String>,
    /// Shape of one target.
    pub out_shape: Vec<usize>,
    /// Names along its axes.
    pub out_labels: Vec<Vec<String>>,
    /// Input that holds the persistence forecast of every target cell.
    pub persistence: Option<Vec<u32>>,
    /// Classes of the target by the index written, where it is a category.
    pub classes: Option<Classes>,
    /// Names of the samples, before any is dropped; empty for none.
    pub names: Vec<String>,
    /// Times of the samples, ascending within a source, before any is dropped; empty where samples have no time.
    pub starts: Vec<i64>,
    /// Times of the samples by which they are divided, in reading order; empty where they are not divided by a column of times.
    pub times: Vec<i64>,
    /// Samples of each source, one below the other; empty when there is only one.
    pub sources: Vec<u64>,
    /// What cleaning found so far.
    pub report: CleaningReport,
}

impl Draft {
    /// Does the last steps and gives the directory its name.
    pub(crate) fn complete(mut self, job: &Job<'_>) -> Result<(PathBuf, StagedMeta), StageError> {
        let samples = self.output.rows;
        if samples == 0 {
            return Err(self.nothing(job));
        }
        self.divide(job)?;
        self.note_timeless();
        self.purge(job)?;
        let has_classes = self.classes.is_some();
        let class_form = self.class_form(job);
        self.classify(job)?;
        let codes = self.categories(job)?;
        let figures = figures::measure(&self.output, &codes, job.threads)?;
        let figures = self.believe(job, &codes, figures)?;
        for (codes, (unseen, words)) in codes.iter().zip(figures.unseen.iter().zip(&figures.words)) {
            let source = self.inputs[codes.column].source.clone();
            let column = self.report.columns.entry(source).or_default();
            column.unseen_category = *unseen;
            column.words = *words;
        }
        let sources = self.sources(job)?;
        if job.training.is_none() {
            self.judge(job, &figures)?;
            judge_sources(job, &sources)?;
        }
        let keep = self.kept(job, &figures)?;
        self.count_labels(&keep)?;
        self.notes(job, &figures, &keep);
        let meta = StagedMeta { has_classes, class_form, sources, ..self.meta(job, (&figures, &codes), &keep) };
        if keep.contains(&false) {
            self.output.keep_columns(&keep)?;
        }
        let dir = self.output.finish(&meta)?;
        Ok((dir, meta))
    }

    fn nothing(&self, job: &Job<'_>) -> StageError {
        let report = &self.report;
        let mut hint = String::new();
        if let Some(line) = report.wrong_width_line {
            hint = format!("; {} rows have a wrong number of fields, first line {line}", report.wrong_width);
        } else if report.dropped_samples > 0 {
            hint = format!(
                "; {} samples were dropped because too little of their target is valid{}",
                report.dropped_samples,
                self.bad_targets()
            );
        } else if let Layout::Windows(layout) = &job.config.layout {
            hint = format!(
                "; a sample needs {} windows of {} steps of {} s in a row",
                layout.history + 1,
                layout.steps,
                layout.step_s
            );
        }
        let found = format!("no sample can be made of {} rows", report.rows_read);
        StageError::ZeroRows { path: job.config.files.first().cloned().unwrap_or_default(), found, hint }
    }

    /// What is wrong with the target columns, of the first few; empty or beginning with ": ".
    fn bad_targets(&self) -> String {
        let bad = |name: &String| {
            let found = self.report.columns.get(name)?;
            let kinds = [
                (found.missing, "missing"),
                (found.non_finite, "inf or nan"),
                (found.out_of_range, "beyond its range"),
            ];
            let told: Vec<String> = kinds
                .iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, what)| format!("{count} cells {what}"))
                .collect();
            (!told.is_empty()).then(|| format!("{name:?} has {}", told.join(", ")))
        };
        let told: Vec<String> = self.targets.iter().filter_map(bad).take(NOTED_MAX).collect();
        if told.is_empty() { String::new() } else { format!(": {}", told.join("; ")) }
    }

    /// Writes the splits that depend on the number or the times of the samples.
    fn divide(&self, job: &Job<'_>) -> Result<(), StageError> {
        let config = &job.config.split;
        if job.training.is_some() {
            return self.output.divide(&[(0..self.output.rows, Split::Test)]);
        }
        match config.kind {
            SplitKind::Random | SplitKind::Group | SplitKind::Column => Ok(()),
            // Each source has an order of its own.
            kind => self.extents().into_iter().try_for_each(|own| match kind {
                SplitKind::Blocked if !self.starts.is_empty() => {
                    let starts = &self.starts[own.start as usize..own.end as usize];
                    self.output.divide(&split::blocked_months(config, own.start, starts))
                }
                SplitKind::Chronological if !self.times.is_empty() => self.divide_by_time(job, own),
                SplitKind::Blocked => self.output.divide(&split::blocked_rows(config, own)),
                _ => self.output.divide(&split::chronological(config, own)),
            }),
        }
    }

    /// Lifts the limits of what is declared, is a category or was made by us.
    fn lift(&self, job: &Job<'_>, mut limits: Limits) -> Limits {
        let declared = |column: &str| job.config.ranges.iter().any(|range| range.column == column);
        lift_inputs(&self.inputs, &job.config.ranges, &mut limits.x);
        let targets = limits.y.iter_mut().enumerate();
        targets.filter(|(cell, _)| declared(self.target(*cell))).for_each(|(_, limit)| *limit = implausible::ANY);
        limits
    }

    /// What is believed of inputs and targets. Tells of what is odd.
    fn limits(&mut self, job: &Job<'_>, figures: &Figures) -> Result<Limits, StageError> {
        let (limits, what) = match job.training {
            Some(meta) => {
                let names: HashMap<&str, usize> =
                    (0..).zip(&meta.features).map(|(at, one)| (one.name.as_str(), at)).collect();
                let place = |input: &Input| names.get(input.name.as_str()).copied();
                let places: Vec<Option<usize>> = self.inputs.iter().map(place).collect();
                let what =
                    "values a thousand times as far away as those of the training rows reach, perhaps of another unit";
                (Limits::of_model(meta, &places, self.output.has_targets()), what)
            }
            None => {
                let what =
                    "a few values are a thousand times as far from the median as most; data.ranges can leave them out";
                (Limits::of_training(&self.output)?, what)
            }
        };
        let [believed, usual] = limits.map(|limits| self.lift(job, limits));
        let (x, y) = usual.passed(figures);
        let (x_far, y_far) = believed.passed(figures);
        let inputs = x.iter().filter(|at| !x_far.contains(at)).map(|at| self.inputs[*at].source.as_str());
        let targets = y.iter().filter(|at| !y_far.contains(at)).map(|at| self.target(*at));
        let names: BTreeSet<String> = inputs.chain(targets).map(str::to_owned).collect();
        note(&mut self.report.notes, &names.into_iter().collect::<Vec<_>>(), what);
        Ok(believed)
    }

    /// Takes out values that cannot be meant, and targets of cells without a training sample; measures again where there are any.
    fn believe(&mut self, job: &Job<'_>, codes: &[Codes], figures: Figures) -> Result<Figures, StageError> {
        let mut limits = self.limits(job, &figures)?;
        let is_blind = |cell: &usize| job.training.is_none() && figures.y[*cell].n() == 0;
        let blind: Vec<usize> = (0..figures.y.len()).filter(is_blind).collect();
        blind.iter().for_each(|cell| limits.y[*cell] = implausible::NONE);
        let (x, y) = limits.passed(&figures);
        if x.is_empty() && y.is_empty() {
            return Ok(figures);
        }
        let mut found = limits.hold(&self.output)?;
        let unjudged: u64 = blind.into_iter().map(|cell| std::mem::take(&mut found.y[cell])).sum();
        if unjudged > 0 {
            let told = "targets count for nothing: no training sample has a valid one in their cells";
            self.report.notes.push(format!("{unjudged} {told}"));
        }
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        let targets = found.y.iter().enumerate().map(|(cell, count)| (self.target(cell), count));
        let inputs = self.inputs.iter().map(|input| input.source.as_str()).zip(&found.x);
        for (source, count) in inputs.chain(targets).filter(|(_, count)| **count > 0) {
            *counts.entry(source.to_owned()).or_default() += count;
        }
        let what =
            "values a million times as far from the median as most count as missing, unless data.ranges has the column";
        note(&mut self.report.notes, &counts.keys().cloned().collect::<Vec<_>>(), what);
        for (source, count) in counts {
            self.report.columns.entry(source).or_default().implausible = count;
        }
        let settled = |codes: &Codes| Codes { map: Vec::new(), ..codes.clone() };
        figures::measure(&self.output, &codes.iter().map(settled).collect::<Vec<_>>(), job.threads)
    }

    /// The source column of a target cell.
    fn target(&self, cell: usize) -> &str {
        self.targets.get(cell).or(self.targets.first()).map_or("", String::as_str)
    }

    /// The samples of each source; all of them where there is only one.
    pub(super) fn extents(&self) -> Vec<Range<u64>> {
        if self.sources.is_empty() {
            return std::iter::once(0..self.output.rows).collect();
        }
        let end = |end: &mut u64, rows: &u64| {
            *end += rows;
            Some(*end - rows..*end)
        };
        self.sources.iter().scan(0, end).collect()
    }

    /// The sources with their samples per split.
    fn sources(&self, job: &Job<'_>) -> Result<Vec<SourceMeta>, StageError> {
        if self.sources.is_empty() {
            return Ok(Vec::new());
        }
        let split = self.output.read_split(0..self.output.rows)?;
        let named = job.config.sources.iter().map(|source| source.name.clone()).zip(self.sources.iter().copied());
        Ok(SourceMeta::count(named, &split))
    }

    /// Refuses data that nothing can be learnt from.
    fn judge(&self, job: &Job<'_>, figures: &Figures) -> Result<(), StageError> {
        let cells = figures.split_rows[0] * figures.y.len() as u64;
        let missing = cells - figures.y.iter().map(staged::Moments::n).sum::<u64>();
        if job.config.mask == TargetMask::None && missing > 0 {
            return Err(StageError::Config {
                key: "data.mask",
                found: format!("\"none\", and {missing} target cells of the training samples are missing"),
                expected: "targets that are all there, or data.mask = \"finite\"".into(),
            });
        }
        if figures.split_rows[0] == 0 {
            let samples = self.output.rows;
            let dropped = self.report.dropped_samples;
            return Err(match dropped {
                0 => StageError::NoTraining { samples },
                _ => StageError::NoTrainingLeft { samples, dropped },
            });
        }
        if !self.output.any_training_weight()? {
            return Err(StageError::NoWeight { column: job.config.weight.clone().unwrap_or_default() });
        }
        if figures.y.iter().all(|moments| moments.n() == 0) {
            return Err(StageError::NoTarget { columns: self.targets.clone() });
        }
        let lost = |(cell, moments)| Some((cell, coarse::lost(moments, self.output.rounded.load(Relaxed))?));
        if let Some((cell, (size, step))) = figures.y.iter().enumerate().find_map(lost) {
            return Err(StageError::Target { column: self.target(cell).to_owned(), size, step });
        }
        Ok(())
    }

    /// Which inputs stay: for training those with a valid training cell or a persistence forecast; for prediction the model's.
    fn kept(&self, job: &Job<'_>, figures: &Figures) -> Result<Vec<bool>, StageError> {
        if let Some(training) = job.training {
            if training.out_shape != self.out_shape {
                return Err(StageError::Config {
                    key: "data",
                    found: format!("a target of shape {:?}", self.out_shape),
                    expected: format!("{:?}, the shape the model was trained with", training.out_shape),
                });
            }
            let names: Vec<&String> = training.features.iter().map(|feature| &feature.name).collect();
            let known: HashSet<&String> = names.iter().copied().collect();
            let keep: Vec<bool> = self.inputs.iter().map(|input| known.contains(&input.name)).collect();
            let found: Vec<&String> =
                self.inputs.iter().zip(&keep).filter(|(_, k)| **k).map(|(i, _)| &i.name).collect();
            if found != names {
                return Err(StageError::Config {
                    key: "data",
                    found: format!("{} of the model's {} inputs, or in another order", found.len(), names.len()),
                    expected: "the inputs the model was trained with; use the data section of its run".into(),
                });
            }
            return Ok(keep);
        }
        // A label stays where a training sample has it.
        let stays = |(input, moments): (&Input, &staged::Moments)| {
            moments.n() > 0 && (input.label.is_none() || moments.stats().max > 0.0)
        };
        let mut keep: Vec<bool> = self.inputs.iter().zip(&figures.x).map(stays).collect();
        for column in self.persistence.iter().flatten() {
            keep[*column as usize] = true;
        }
        if keep.contains(&true) {
            return Ok(keep);
        }
        Err(StageError::Config {
            key: "data",
            found: "no input with a valid value in the training samples".into(),
            expected: "at least one; check the columns, data.missing and data.ranges".into(),
        })
    }

    fn notes(&mut self, job: &Job<'_>, figures: &Figures, keep: &[bool]) {
        let mut notes = Vec::new();
        if let (Some(line), wrong) = (self.report.wrong_width_line, self.report.wrong_width) {
            notes.push(format!("{wrong} rows with a wrong number of fields were left out, first line {line}"));
        }
        if job.training.is_none() {
            note(&mut notes, &self.left_out(keep), "left out of the inputs: no valid value in the training samples");
            let constant = self.constants(figures);
            note(&mut notes, &constant, "constant over the training samples");
            let what = "an f32 keeps seven digits of each number, which leaves little or nothing of how these vary; take off \
                        what all have in common";
            note(&mut notes, &self.coarse(figures), what);
            constant.iter().for_each(|name| self.report.columns.entry(name.clone()).or_default().constant = true);
            let blind: Vec<usize> = (0..figures.y.len()).filter(|cell| figures.y[*cell].n() == 0).collect();
            if !blind.is_empty() {
                notes.push(format!("{} target cells have no valid value in the training samples", blind.len()));
            }
            for (rows, (fraction, name)) in figures.split_rows[1..]
                .iter()
                .zip([(job.config.split.val, "validation"), (job.config.split.test, "test")])
            {
                if *rows == 0 && fraction > 0.0 {
                    notes.push(format!("no sample fell into the {name} split"));
                }
            }
        }
        self.report.notes.extend(notes);
    }

    /// Source columns whose numbers are so much larger than their spread that an f32 hardly tells them apart.
    fn coarse(&self, figures: &Figures) -> Vec<String> {
        let is_number = |input: &Input| input.categories.is_none() && input.label.is_none() && !input.source.is_empty();
        let inputs = self.inputs.iter().zip(&figures.x).filter(|(input, _)| is_number(input));
        let inputs = inputs.map(|(input, moments)| (input.source.as_str(), moments));
        let targets = figures.y.iter().enumerate().map(|(cell, moments)| (self.target(cell), moments));
        let coarse = inputs.chain(targets).filter(|(_, moments)| coarse::is_coarse(moments));
        coarse.map(|(name, _)| name.to_owned()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Source columns that never vary: whatever is made of them (sine and cosine, every step of the history) is one value each.
    fn constants(&self, figures: &Figures) -> Vec<String> {
        let mut ranges: BTreeMap<(&str, &str), (f64, f64)> = BTreeMap::new();
        let targets =
            figures.y.iter().enumerate().map(|(cell, moments)| (self.target(cell), self.target(cell), moments));
        let inputs = self.inputs.iter().zip(&figures.x).map(|(input, moments)| {
            let stem = input.name.split('[').next().unwrap_or_default();
            (input.source.as_str(), stem, moments)
        });
        for (source, stem, moments) in inputs.chain(targets).filter(|(_, _, moments)| moments.n() > 0) {
            let stats = moments.stats();
            let range = ranges.entry((source, stem)).or_insert((stats.min, stats.max));
            *range = (range.0.min(stats.min), range.1.max(stats.max));
        }
        let mut flat: BTreeMap<&str, bool> = BTreeMap::new();
        for ((source, _), (low, high)) in ranges.into_iter().filter(|((source, _), _)| !source.is_empty()) {
            *flat.entry(source).or_insert(true) &= low == high;
        }
        flat.into_iter().filter(|(_, flat)| *flat).map(|(source, _)| source.to_string()).collect()
    }

    /// Inputs that do not stay; a source column of which nothing stays is named once.
    fn left_out(&self, keep: &[bool]) -> Vec<String> {
        let of = |wanted: bool| {
            self.inputs.iter().zip(keep).filter(move |(_, keep)| **keep == wanted).map(|(input, _)| input)
        };
        let alive: BTreeSet<&str> = of(true).map(|input| input.source.as_str()).collect();
        let mut seen = BTreeSet::new();
        let is_rare_label = |input: &&Input| input.label.is_some() && alive.contains(input.source.as_str());
        of(false)
            .filter(|input| !is_rare_label(input))
            .map(|input| if alive.contains(input.source.as_str()) { &input.name } else { &input.source })
            .filter(|name| seen.insert(*name))
            .cloned()
            .collect()
    }

    fn meta(&self, job: &Job<'_>, (figures, codes): (&Figures, &[Codes]), keep: &[bool]) -> StagedMeta {
        let kept = || (0..keep.len()).filter(|column| keep[*column]);
        let (mut features, x_stats, y_stats) = match job.training {
            Some(meta) => (meta.features.clone(), meta.x_stats.clone(), meta.y_stats.clone()),
            None => (
                self.features((&kept().collect::<Vec<_>>(), &job.config.input_units), (figures, codes)),
                kept().map(|column| self.stats(column, figures)).collect(),
                figures.y.iter().map(staged::Moments::stats).collect(),
            ),
        };
        if matches!(job.config.layout, Layout::Arrays(_)) {
            // A column of an array is an input of its own.
            features.iter_mut().for_each(|feature| feature.source.clear());
        }
        let mut place = vec![0; keep.len()];
        kept().zip(0..).for_each(|(column, index)| place[column] = index);
        let persistence = self.persistence.as_ref();
        let persistence = persistence.map(|columns| columns.iter().map(|column| place[*column as usize]).collect());
        let is_named = self.names.len() as u64 <= ROW_NAMES_MAX;
        let (names, nameless) = if is_named { (self.names.clone(), 0) } else { (Vec::new(), self.output.rows) };
        StagedMeta {
            version: staged::VERSION,
            digest: job.digest.clone(),
            rows: self.output.rows,
            features,
            out_shape: self.out_shape.clone(),
            out_labels: self.out_labels.clone(),
            units: job.config.units.clone(),
            persistence,
            has_targets: self.output.has_targets(),
            has_classes: false,
            class_form: None,
            has_weights: self.output.has_weights(),
            split_rows: figures.split_rows,
            sources: Vec::new(),
            row_names: names,
            x_stats,
            y_stats,
            report: CleaningReport { samples: self.output.rows, nameless, ..self.report.clone() },
        }
    }

    /// The inputs that stay. Of labels of one source column the first has the flag that they are missing.
    fn features(
        &self,
        (kept, units): (&[usize], &BTreeMap<String, String>),
        (figures, codes): (&Figures, &[Codes]),
    ) -> Vec<FeatureMeta> {
        let label = |at: usize| self.inputs[kept[at]].label.as_ref();
        let has_flag = |at: usize| at > 0 && LabelMeta::share_column(label(at - 1), label(at));
        let of = |(at, column): (usize, &usize)| {
            let has_missing = figures.x[*column].n() < figures.split_rows[0] && !has_flag(at);
            FeatureMeta { has_missing, units: self.units(*column, units), ..self.feature(*column, codes) }
        };
        kept.iter().enumerate().map(of).collect()
    }

    fn feature(&self, column: usize, codes: &[Codes]) -> FeatureMeta {
        let Input { name, source, categories, form, offset, one_hot, label } = self.inputs[column].clone();
        let source = if label.is_some() || source == name { String::new() } else { source };
        let unseen =
            codes.iter().find(|codes| codes.column == column).map_or_else(Vec::new, |codes| codes.unseen.clone());
        let index = offset.map(|offset| IndexMeta { offset, unseen });
        let categories = categories.unwrap_or_default();
        FeatureMeta { name, source, categories, one_hot, index, label, form, ..FeatureMeta::default() }
    }

    /// The unit that is given for an input, or for the column that it comes from.
    fn units(&self, column: usize, units: &BTreeMap<String, String>) -> String {
        let input = &self.inputs[column];
        units.get(&input.name).or_else(|| units.get(&input.source)).cloned().unwrap_or_default()
    }

    /// Figures of an input; a category or label is not standardised.
    fn stats(&self, column: usize, figures: &Figures) -> Stats {
        let stats = figures.x[column].stats();
        let input = &self.inputs[column];
        match input.categories.is_some() || input.label.is_some() {
            true => Stats { mean: 0.0, std: 1.0, ..stats },
            false => stats,
        }
    }
}

/// Refuses a weight for a source that nothing is drawn of.
fn judge_sources(job: &Job<'_>, sources: &[SourceMeta]) -> Result<(), StageError> {
    let empty =
        sources.iter().zip(&job.config.sources).find(|(meta, own)| meta.split_rows[0] == 0 && own.weight.is_some());
    match empty {
        None => Ok(()),
        Some((meta, _)) => Err(StageError::Config {
            key: "data.sources",
            found: format!("a weight for source {:?}, of which no sample trains", meta.name),
            expected: "training samples in every source that has a weight; check its files and data.split".into(),
        }),
    }
}

fn note(notes: &mut Vec<String>, names: &[String], what: &str) {
    if names.is_empty() {
        return;
    }
    let mut list = names[..names.len().min(NOTED_MAX)].join(", ");
    if names.len() > NOTED_MAX {
        list.push_str(&format!(" and {} more", names.len() - NOTED_MAX));
    }
    notes.push(format!("{what}: {list}"));
}

/// Adds the counts of one source column to the report.
pub(crate) fn count(report: &mut CleaningReport, column: &str, counts: &super::source::block::CellCounts) {
    let entry: &mut ColumnReport = report.columns.entry(column.to_string()).or_default();
    // A column wanted twice is counted once.
    entry.missing = entry.missing.max(counts.missing);
    entry.non_finite = entry.non_finite.max(counts.non_finite);
    entry.out_of_range = entry.out_of_range.max(counts.out_of_range);
    entry.clamped = entry.clamped.max(counts.clamped);
}
