//! The last steps of every layout: splits, categories, statistics, dropped inputs, notes, metadata.

use super::{
    Job,
    error::StageError,
    f32_precision,
    input::{lift_inputs, places_in},
    outlier_limits::{self, Limits},
    output::Output,
    split,
    stats::{self, Codes, SampleStats},
};
use enn_common::{
    config::data::{Layout, SplitKind, TargetMask},
    staged::{
        self, Split, StagedMeta,
        meta::{CleaningReport, ColumnReport, FeatureMeta, IndexMeta, LabelMeta, SourceMeta, Stats},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ops::Range,
    path::PathBuf,
    sync::atomic::Ordering::Relaxed,
};

pub(crate) use super::input::{Classes, Input};

pub const ROW_NAMES_MAX: u64 = 100_000;

const NOTED_MAX: usize = 12;

/// Result of a layout, before the last steps.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The arrays. Splits are written already for the kinds random, group and column.
    pub output: Output,
    pub inputs: Vec<Input>,
    /// Source columns of the target cells: one, or as many as there are cells.
    pub targets: Vec<String>,
    /// Shape of one target.
    pub out_shape: Vec<usize>,
    /// Names along the axes of `out_shape`.
    pub out_labels: Vec<Vec<String>>,
    /// Index of the input with the persistence forecast, for every target cell.
    pub persistence: Option<Vec<u32>>,
    pub classes: Option<Classes>,
    /// Names of the samples, before any is dropped; empty for none.
    pub names: Vec<String>,
    /// Times of the samples, ascending within a source, before any is dropped; empty where samples have no time.
    pub starts: Vec<i64>,
    /// Times of the samples by which they are divided, in reading order; empty where they are not divided by a column of times.
    pub times: Vec<i64>,
    /// Number of samples of each source, in the order of the rows; empty when there is only one.
    pub sources: Vec<u64>,
    pub report: CleaningReport,
}

impl Draft {
    /// Does the last steps and renames the directory to its digest.
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
        let stats = stats::measure(&self.output, &codes, job.threads)?;
        let stats = self.remove_outliers(job, &codes, stats)?;
        for (codes, (unseen, words)) in codes.iter().zip(stats.unseen.iter().zip(&stats.words)) {
            let source = self.inputs[codes.column].source.clone();
            let column = self.report.columns.entry(source).or_default();
            column.unseen_category = *unseen;
            column.words = *words;
        }
        let sources = self.sources(job)?;
        if job.training.is_none() {
            self.check_trainable(job, &stats)?;
            check_sources(job, &sources)?;
        }
        let keep = self.kept_inputs(job, &stats)?;
        self.count_labels(&keep)?;
        self.notes(job, &stats, &keep);
        let meta = StagedMeta { has_classes, class_form, sources, ..self.meta(job, &stats, &codes, &keep) };
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

    /// Describes invalid cells of the first target columns; empty or beginning with ": ".
    fn bad_targets(&self) -> String {
        let bad = |name: &String| {
            let found = self.report.columns.get(name)?;
            let kinds = [
                (found.missing, "missing"),
                (found.non_finite, "inf or nan"),
                (found.out_of_range, "beyond its range"),
            ];
            let counts: Vec<String> = kinds
                .iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, what)| format!("{count} cells {what}"))
                .collect();
            (!counts.is_empty()).then(|| format!("{name:?} has {}", counts.join(", ")))
        };
        let columns: Vec<String> = self.targets.iter().filter_map(bad).take(NOTED_MAX).collect();
        if columns.is_empty() { String::new() } else { format!(": {}", columns.join("; ")) }
    }

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

    /// Removes the limits of columns with declared ranges, of categories, and of calendar inputs.
    fn lift(&self, job: &Job<'_>, mut limits: Limits) -> Limits {
        let declared = |column: &str| job.config.ranges.iter().any(|range| range.column == column);
        lift_inputs(&self.inputs, &job.config.ranges, &mut limits.x);
        let targets = limits.y.iter_mut().enumerate();
        targets.filter(|(cell, _)| declared(self.target(*cell))).for_each(|(_, limit)| *limit = outlier_limits::ANY);
        limits
    }

    /// Returns the outlier limits of inputs and targets, and notes columns with unusual values.
    fn limits(&mut self, job: &Job<'_>, stats: &SampleStats) -> Result<Limits, StageError> {
        let (limits, what) = match job.training {
            Some(meta) => {
                let places = places_in(meta, &self.inputs);
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
        let [limits, usual] = limits.map(|limits| self.lift(job, limits));
        let (x, y) = usual.exceeded(stats);
        let (x_far, y_far) = limits.exceeded(stats);
        let inputs = x.iter().filter(|at| !x_far.contains(at)).map(|at| self.inputs[*at].source.as_str());
        let targets = y.iter().filter(|at| !y_far.contains(at)).map(|at| self.target(*at));
        let names: BTreeSet<String> = inputs.chain(targets).map(str::to_owned).collect();
        note(&mut self.report.notes, &names.into_iter().collect::<Vec<_>>(), what);
        Ok(limits)
    }

    /// Removes outliers, and targets of cells without a training sample; recomputes the statistics if there are any.
    fn remove_outliers(
        &mut self,
        job: &Job<'_>,
        codes: &[Codes],
        stats: SampleStats,
    ) -> Result<SampleStats, StageError> {
        let mut limits = self.limits(job, &stats)?;
        let is_blind = |cell: &usize| job.training.is_none() && stats.y[*cell].n() == 0;
        let blind: Vec<usize> = (0..stats.y.len()).filter(is_blind).collect();
        blind.iter().for_each(|cell| limits.y[*cell] = outlier_limits::NONE);
        let (x, y) = limits.exceeded(&stats);
        if x.is_empty() && y.is_empty() {
            return Ok(stats);
        }
        let mut found = limits.mask(&self.output)?;
        let unjudged: u64 = blind.into_iter().map(|cell| std::mem::take(&mut found.y[cell])).sum();
        if unjudged > 0 {
            let what = "targets are excluded: no training sample has a valid target in their cells";
            self.report.notes.push(format!("{unjudged} {what}"));
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
        stats::measure(&self.output, &codes.iter().map(settled).collect::<Vec<_>>(), job.threads)
    }

    fn target(&self, cell: usize) -> &str {
        self.targets.get(cell).or(self.targets.first()).map_or("", String::as_str)
    }

    /// Returns the range of samples of each source.
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

    fn sources(&self, job: &Job<'_>) -> Result<Vec<SourceMeta>, StageError> {
        if self.sources.is_empty() {
            return Ok(Vec::new());
        }
        let split = self.output.read_split(0..self.output.rows)?;
        let named = job.config.sources.iter().map(|source| source.name.clone()).zip(self.sources.iter().copied());
        Ok(SourceMeta::count(named, &split))
    }

    fn check_trainable(&self, job: &Job<'_>, stats: &SampleStats) -> Result<(), StageError> {
        let cells = stats.split_rows[0] * stats.y.len() as u64;
        let missing = cells - stats.y.iter().map(staged::Moments::n).sum::<u64>();
        if job.config.mask == TargetMask::None && missing > 0 {
            return Err(StageError::config(
                "data.mask",
                format!("\"none\", and {missing} target cells of the training samples are missing"),
                "targets that are all there, or data.mask = \"finite\"",
            ));
        }
        if stats.split_rows[0] == 0 {
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
        if stats.y.iter().all(|moments| moments.n() == 0) {
            return Err(StageError::NoTarget { columns: self.targets.clone() });
        }
        let lost = |(cell, moments)| Some((cell, f32_precision::lost(moments, self.output.rounded.load(Relaxed))?));
        if let Some((cell, (size, step))) = stats.y.iter().enumerate().find_map(lost) {
            return Err(StageError::Target { column: self.target(cell).to_owned(), size, step });
        }
        Ok(())
    }

    /// Returns which inputs are kept: in training those with a valid training cell or a persistence forecast, in prediction the model's.
    fn kept_inputs(&self, job: &Job<'_>, stats: &SampleStats) -> Result<Vec<bool>, StageError> {
        if let Some(training) = job.training {
            if training.out_shape != self.out_shape {
                return Err(StageError::config(
                    "data",
                    format!("a target of shape {:?}", self.out_shape),
                    format!("{:?}, the shape the model was trained with", training.out_shape),
                ));
            }
            let names: Vec<&String> = training.features.iter().map(|feature| &feature.name).collect();
            let known: HashSet<&String> = names.iter().copied().collect();
            let keep: Vec<bool> = self.inputs.iter().map(|input| known.contains(&input.name)).collect();
            let found: Vec<&String> =
                self.inputs.iter().zip(&keep).filter(|(_, k)| **k).map(|(i, _)| &i.name).collect();
            if found != names {
                return Err(StageError::config(
                    "data",
                    format!("{} of the model's {} inputs, or in another order", found.len(), names.len()),
                    "the inputs the model was trained with; use the data section of its run",
                ));
            }
            return Ok(keep);
        }
        // A label is kept if a training sample has it.
        let stays = |(input, moments): (&Input, &staged::Moments)| {
            moments.n() > 0 && (input.label.is_none() || moments.stats().max > 0.0)
        };
        let mut keep: Vec<bool> = self.inputs.iter().zip(&stats.x).map(stays).collect();
        for column in self.persistence.iter().flatten() {
            keep[*column as usize] = true;
        }
        if keep.contains(&true) {
            return Ok(keep);
        }
        Err(StageError::config(
            "data",
            "no input with a valid value in the training samples",
            "at least one; check the columns, data.missing and data.ranges",
        ))
    }

    fn notes(&mut self, job: &Job<'_>, stats: &SampleStats, keep: &[bool]) {
        let mut notes = Vec::new();
        if let (Some(line), wrong) = (self.report.wrong_width_line, self.report.wrong_width) {
            notes.push(format!("{wrong} rows with a wrong number of fields were left out, first line {line}"));
        }
        if job.training.is_none() {
            note(&mut notes, &self.left_out(keep), "left out of the inputs: no valid value in the training samples");
            let constant = self.constants(stats);
            note(&mut notes, &constant, "constant over the training samples");
            let what = "an f32 keeps seven digits of each number, which leaves little or nothing of how these vary; subtract \
                        a constant offset";
            note(&mut notes, &self.imprecise_columns(stats), what);
            constant.iter().for_each(|name| self.report.columns.entry(name.clone()).or_default().constant = true);
            let blind: Vec<usize> = (0..stats.y.len()).filter(|cell| stats.y[*cell].n() == 0).collect();
            if !blind.is_empty() {
                notes.push(format!("{} target cells have no valid value in the training samples", blind.len()));
            }
            for (rows, (fraction, name)) in stats.split_rows[1..]
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

    /// Returns the source columns whose numbers are so large relative to their spread that f32 hardly resolves them.
    fn imprecise_columns(&self, stats: &SampleStats) -> Vec<String> {
        let is_number = |input: &Input| input.categories.is_none() && input.label.is_none() && !input.source.is_empty();
        let inputs = self.inputs.iter().zip(&stats.x).filter(|(input, _)| is_number(input));
        let inputs = inputs.map(|(input, moments)| (input.source.as_str(), moments));
        let targets = stats.y.iter().enumerate().map(|(cell, moments)| (self.target(cell), moments));
        let coarse = inputs.chain(targets).filter(|(_, moments)| f32_precision::is_imprecise(moments));
        coarse.map(|(name, _)| name.to_owned()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the source columns that never vary: each input made of them (sine, cosine, every step of the history) has one value.
    fn constants(&self, stats: &SampleStats) -> Vec<String> {
        let mut ranges: BTreeMap<(&str, &str), (f64, f64)> = BTreeMap::new();
        let targets = stats.y.iter().enumerate().map(|(cell, moments)| (self.target(cell), self.target(cell), moments));
        let inputs = self.inputs.iter().zip(&stats.x).map(|(input, moments)| {
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

    /// Returns the names of dropped inputs; a source column whose inputs are all dropped is named once.
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

    fn meta(&self, job: &Job<'_>, stats: &SampleStats, codes: &[Codes], keep: &[bool]) -> StagedMeta {
        let kept = || (0..keep.len()).filter(|column| keep[*column]);
        let (mut features, x_stats, y_stats) = match job.training {
            Some(meta) => (meta.features.clone(), meta.x_stats.clone(), meta.y_stats.clone()),
            None => (
                self.features(&kept().collect::<Vec<_>>(), &job.config.input_units, stats, codes),
                kept().map(|column| self.stats(column, stats)).collect(),
                stats.y.iter().map(staged::Moments::stats).collect(),
            ),
        };
        if matches!(job.config.layout, Layout::Arrays(_)) {
            // Each column of an array is a separate input.
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
            split_rows: stats.split_rows,
            sources: Vec::new(),
            row_names: names,
            x_stats,
            y_stats,
            report: CleaningReport { samples: self.output.rows, nameless, ..self.report.clone() },
        }
    }

    /// Describes the kept inputs. Of the labels of one source column only the first has the flag for missing cells.
    fn features(
        &self,
        kept: &[usize],
        units: &BTreeMap<String, String>,
        stats: &SampleStats,
        codes: &[Codes],
    ) -> Vec<FeatureMeta> {
        let label = |at: usize| self.inputs[kept[at]].label.as_ref();
        let has_flag = |at: usize| at > 0 && LabelMeta::share_column(label(at - 1), label(at));
        let of = |(at, column): (usize, &usize)| {
            let has_missing = stats.x[*column].n() < stats.split_rows[0] && !has_flag(at);
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

    fn units(&self, column: usize, units: &BTreeMap<String, String>) -> String {
        let input = &self.inputs[column];
        units.get(&input.name).or_else(|| units.get(&input.source)).cloned().unwrap_or_default()
    }

    /// Returns the statistics of an input; categories and labels are not standardised.
    fn stats(&self, column: usize, stats: &SampleStats) -> Stats {
        let stats = stats.x[column].stats();
        let input = &self.inputs[column];
        match input.categories.is_some() || input.label.is_some() {
            true => Stats { mean: 0.0, std: 1.0, ..stats },
            false => stats,
        }
    }
}

fn check_sources(job: &Job<'_>, sources: &[SourceMeta]) -> Result<(), StageError> {
    let empty =
        sources.iter().zip(&job.config.sources).find(|(meta, own)| meta.split_rows[0] == 0 && own.weight.is_some());
    match empty {
        None => Ok(()),
        Some((meta, _)) => Err(StageError::config(
            "data.sources",
            format!("a weight for source {:?}, of which no sample trains", meta.name),
            "training samples in every source that has a weight; check its files and data.split",
        )),
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
    // A column that is requested twice is counted once.
    entry.missing = entry.missing.max(counts.missing);
    entry.non_finite = entry.non_finite.max(counts.non_finite);
    entry.out_of_range = entry.out_of_range.max(counts.out_of_range);
    entry.clamped = entry.clamped.max(counts.clamped);
}
