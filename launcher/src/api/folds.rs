//! What all folds of a cross-validation say together: an evaluation in which each row is told by the model that never saw it, beside
//! baselines that did not either.

use super::{
    cv::{CvOptions, FORECASTS},
    forecast::{self, Told},
    groups,
    importance::{self, Shuffling},
};
use crate::{
    Error,
    baselines::Scores,
    cv::{self, Judgement},
    error::Usage,
    evaluation::{self, Field, Held, Seen},
    facts::Facts,
    gather::cell_names,
    run_dir::RunDir,
    ui::report,
};
use enn_common::{
    artifact::{
        cv::{CvRecord, FoldRecord, FoldState, MODEL},
        evaluation::{Evaluation, FILE, FORMAT, Part, SeenPart, VERSION},
    },
    checkpoint::{Extent, find_sound},
    config::RunConfig,
    fs::atomic,
    metrics::Metrics,
    staged::{Split, Staged, StagedMeta},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Directory of a fold in which its inputs are shuffled.
const SHUFFLES: &str = "shuffles";

/// Judges folds one by one, and all of them together.
pub(super) struct Folds<'a> {
    config: &'a RunConfig,
    facts: &'a Facts,
    options: &'a CvOptions,
    /// The directory of the cross-validation.
    dir: PathBuf,
    staged: Staged,
    weights: Option<Vec<f64>>,
    /// Group of every row, and the groups' names.
    groups: (Vec<usize>, Vec<String>),
    /// Folds that were judged here, and what they add up to.
    judged: BTreeSet<usize>,
    sum: Sum,
}

/// What folds say together.
#[derive(Default)]
struct Sum {
    /// Scores by contender and group, and how many folds it was judged on.
    scores: BTreeMap<String, (usize, Vec<Scores>)>,
    /// What predicted quantiles held.
    held: Option<Held>,
    /// Targets that count for nobody.
    untold: u64,
}

impl Sum {
    fn add(&mut self, meta: &StagedMeta, judgement: Judgement) {
        for (name, groups) in judgement.scores {
            let none = || (0, vec![Scores::new(meta); groups.len()]);
            let (folds, sum) = self.scores.entry(name).or_insert_with(none);
            *folds += 1;
            sum.iter_mut().zip(&groups).for_each(|(sum, group)| sum.merge(group));
        }
        match (&mut self.held, judgement.held) {
            (Some(held), Some(more)) => held.merge(&more),
            (held, more) => *held = held.take().or(more),
        }
        self.untold += judgement.untold;
    }

    /// The contenders that were judged on all of so many folds, the model first: the others have nothing to say of all rows.
    fn everywhere(&self, folds: usize) -> Vec<(String, Vec<Scores>)> {
        let everywhere = self.scores.iter().filter(|(_, (own, _))| *own == folds);
        let mut all: Vec<_> = everywhere.map(|(name, (_, scores))| (name.clone(), scores.clone())).collect();
        all.sort_by_key(|(name, _)| name != MODEL);
        all
    }
}

impl<'a> Folds<'a> {
    pub(super) fn new(
        (config, facts): (&'a RunConfig, &'a Facts),
        options: &'a CvOptions,
        dir: &Path,
        staged: &Path,
    ) -> Result<Self, Error> {
        let staged = Staged::open(staged)?;
        let weights = config.train.cell_weights.of_grid(&staged.meta().out_shape)?;
        let groups = match &options.group {
            None => (vec![0; staged.rows()], vec![String::new()]),
            Some(column) => groups::of(config.data.as_ref().ok_or(Error::Usage(Usage::NoData))?, column, &staged)?,
        };
        Ok(Self {
            config,
            facts,
            options,
            dir: dir.to_owned(),
            staged,
            weights,
            groups,
            judged: BTreeSet::new(),
            sum: Sum::default(),
        })
    }

    /// Errors of a fold that has been trained, by contender, and notes of its baselines.
    pub(super) fn judge(
        &mut self,
        fold: usize,
        record: &FoldRecord,
    ) -> Result<(BTreeMap<String, Metrics>, Vec<String>), Error> {
        let run = record.run.locate(&self.dir)?;
        let forecasts = run.join(FORECASTS);
        if !forecasts.join("rows.npy").exists() {
            // A training run leaves them out where data are large.
            let checkpoint = sound(&run)?;
            let place = RunDir::open(&run)?;
            let by = (checkpoint.as_path(), record.staged.as_path());
            forecast::predict_test_rows(self.config, self.facts, &place, by, Told::Quantiles)?;
        }
        let staged = Staged::open(&record.staged)?;
        let groups = (&self.groups.0[..], self.groups.1.len());
        let judgement = cv::judge(&staged, &forecasts, groups, self.weights.as_deref())?;
        let errors = judgement.errors(staged.meta(), self.weights.as_deref());
        let mut notes = judgement.notes.clone();
        notes.extend((judgement.untold > 0).then(|| evaluation::untold(judgement.untold)));
        self.judged.insert(fold);
        self.sum.add(self.staged.meta(), judgement);
        Ok((errors, notes))
    }

    /// All folds that are done, written with a report into the directory; `None` when none is.
    pub(super) fn evaluation(mut self, record: &CvRecord) -> Result<Option<Evaluation>, Error> {
        let done: Vec<usize> =
            (0..record.folds.len()).filter(|fold| record.folds[*fold].state == FoldState::Done).collect();
        if done.is_empty() {
            return Ok(None);
        }
        for fold in &done {
            if !self.judged.contains(fold) {
                // It was done before.
                self.judge(*fold, &record.folds[*fold])?;
            }
        }
        let mut evaluation = self.together(record, &done);
        if let Some(repeats) = self.options.importance {
            let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            for fold in done {
                for (input, rises) in self.rises(&record.folds[fold], repeats, &mut evaluation.notes)? {
                    all.entry(input).or_default().extend(rises);
                }
            }
            evaluation.importance = importance::ranked(all);
        }
        let path = self.dir.join(FILE);
        let json = |source| Error::Json { path: path.clone(), source };
        atomic::write(&path, &serde_json::to_vec_pretty(&evaluation).map_err(json)?)?;
        if let Err(error) = report::write_evaluation(&self.dir, &evaluation, self.staged.meta()) {
            tracing::warn!("no report: {error}");
        }
        Ok(Some(evaluation))
    }

    /// What these folds say together.
    fn together(&self, record: &CvRecord, done: &[usize]) -> Evaluation {
        let meta = self.staged.meta();
        let names = cell_names(&meta.out_shape, &meta.out_labels);
        let groups = &self.groups.1;
        let field = Field { meta, names: &names, groups, weights: self.weights.as_deref() };
        let parts = field.parts(&self.sum.everywhere(done.len()));
        let held = self.sum.held.as_ref();
        let untold = self.sum.untold;
        let rows = done.iter().map(|fold| record.folds[*fold].rows[Split::Test as usize]).sum();
        Evaluation {
            format: FORMAT.to_owned(),
            version: VERSION,
            run: record.run.clone(),
            step: 0,
            data: self.config.data.as_ref().map_or_else(Vec::new, |data| data.files.clone()),
            digest: meta.digest.clone(),
            units: meta.units.clone(),
            rows: meta.rows,
            judged: rows,
            seen: vec![SeenPart { rows, part: Part { name: Seen::Never.name().to_owned(), ..parts.all.clone() } }],
            warning: None,
            all: parts.all,
            reactivity: parts.reactivity,
            horizons: parts.horizons,
            group: self.options.group.clone().unwrap_or_default(),
            groups: if self.options.group.is_some() { parts.groups } else { Vec::new() },
            cells: parts.cells,
            levels: held.map_or_else(Vec::new, Held::levels),
            intervals: held.map_or_else(Vec::new, Held::intervals),
            classes: None,
            importance: Vec::new(),
            notes: (untold > 0).then(|| evaluation::untold(untold)).into_iter().collect(),
        }
    }

    /// How far the errors of a fold's model rise with each input shuffled.
    fn rises(
        &self,
        fold: &FoldRecord,
        repeats: usize,
        notes: &mut Vec<String>,
    ) -> Result<Vec<(String, Vec<f64>)>, Error> {
        let run = fold.run.locate(&self.dir)?;
        let checkpoint = sound(&run)?;
        let staged = Staged::open(&fold.staged)?;
        let rows: Vec<usize> = staged.rows_of(Split::Test).collect();
        let place = RunDir::create(&run.join(SHUFFLES), SHUFFLES, time::OffsetDateTime::now_utc())?;
        let shuffling = Shuffling { config: self.config, facts: self.facts, run: &place, checkpoint: &checkpoint };
        let mut told = Vec::new();
        let rises = shuffling.rises((&staged, &rows), (repeats, self.config.seed), &mut told)?;
        notes.extend(told.into_iter().map(|note| format!("{}: {note}", fold.run)));
        // What is left behind takes room and harms nothing.
        let _left = std::fs::remove_dir_all(run.join(SHUFFLES));
        Ok(rises)
    }
}

/// The newest sound checkpoint of a fold's run.
fn sound(run: &Path) -> Result<PathBuf, Error> {
    let found = find_sound(run, Extent::Weights)?;
    found.notes().iter().for_each(|note| tracing::warn!("{note}"));
    Ok(found.checkpoint.dir().to_owned())
}
