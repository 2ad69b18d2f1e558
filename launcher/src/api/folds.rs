//! Combines the folds of a cross-validation into one evaluation: the model and the baselines that predict a row were not fitted to it.

use super::{
    checkpoints::sound_checkpoint,
    cv_options::CvOptions,
    evaluation_file,
    forecast::{self, Kept},
    groups,
    importance::{self, Shuffling},
};
use crate::{Error, error::Usage, facts::Facts};
use enn_checkpoint::gather::cell_names;
use enn_common::{
    artifact::{
        cv::{CvRecord, FoldRecord, FoldState, MODEL},
        evaluation::{Evaluation, EvaluationPart, SeenPart},
    },
    config::RunConfig,
    metrics::Metrics,
    staged::{Split, Staged, StagedMeta},
};
use enn_data::{
    baselines::Scores,
    cv::{self, FoldScores},
    evaluation::{self, IntervalCoverage, ScoringContext, Seen},
};
use enn_process::run_dir::RunDir;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Forecasts of the test rows of a fold, below its run directory.
pub(super) const FORECASTS: &str = "predictions/test";
/// The directory of a fold for shuffled inputs.
const SHUFFLES: &str = "shuffles";

/// Evaluates each fold, and all of them together.
pub(super) struct Folds<'a> {
    config: &'a RunConfig,
    facts: &'a Facts,
    options: &'a CvOptions,
    /// The directory of the cross-validation.
    dir: PathBuf,
    staged: Staged,
    weights: Option<Vec<f64>>,
    /// The group of every row, and the names of the groups.
    groups: (Vec<usize>, Vec<String>),
    /// Folds that are included in `sum`.
    judged: BTreeSet<usize>,
    sum: Sum,
}

/// The accumulated scores of several folds.
#[derive(Default)]
struct Sum {
    /// Scores by contender and group, with the number of folds that the contender was evaluated on.
    scores: BTreeMap<String, (usize, Vec<Scores>)>,
    /// Coverage of the predicted quantiles.
    held: Option<IntervalCoverage>,
    /// Number of targets that are excluded for all contenders.
    untold: u64,
}

impl Sum {
    fn add(&mut self, meta: &StagedMeta, judgement: FoldScores) {
        for (name, groups) in judgement.scores {
            let none = || (0, vec![Scores::new(meta); groups.len()]);
            let (folds, sum) = self.scores.entry(name).or_insert_with(none);
            *folds += 1;
            sum.iter_mut().zip(&groups).for_each(|(sum, group)| sum.merge(group));
        }
        match (&mut self.held, judgement.coverage) {
            (Some(held), Some(more)) => held.merge(&more),
            (held, more) => *held = held.take().or(more),
        }
        self.untold += judgement.without_forecast;
    }

    /// Returns the contenders that were evaluated on all folds, the model first; the others do not cover all rows.
    fn everywhere(&self, folds: usize) -> Vec<(String, Vec<Scores>)> {
        let everywhere = self.scores.iter().filter(|(_, (own, _))| *own == folds);
        let mut all: Vec<_> = everywhere.map(|(name, (_, scores))| (name.clone(), scores.clone())).collect();
        all.sort_by_key(|(name, _)| name != MODEL);
        all
    }
}

impl<'a> Folds<'a> {
    pub(super) fn new(
        config: &'a RunConfig,
        facts: &'a Facts,
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

    /// Evaluates a trained fold; returns the errors by contender, and notes about its baselines.
    pub(super) fn evaluate_fold(
        &mut self,
        fold: usize,
        record: &FoldRecord,
    ) -> Result<(BTreeMap<String, Metrics>, Vec<String>), Error> {
        let run = record.run.locate(&self.dir)?;
        let forecasts = run.join(FORECASTS);
        if !forecasts.join("rows.npy").exists() {
            // A training run does not write them for large data.
            let checkpoint = sound_checkpoint(&run)?;
            let place = RunDir::open(&run)?;
            let staged = &record.staged;
            forecast::predict_test_rows(self.config, self.facts, &place, checkpoint.dir(), staged, Kept::Quantiles)?;
        }
        let staged = Staged::open(&record.staged)?;
        let weights = self.weights.as_deref();
        let judgement = cv::score_fold(&staged, &forecasts, &self.groups.0, self.groups.1.len(), weights)?;
        let errors = judgement.errors(staged.meta(), self.weights.as_deref());
        let mut notes = judgement.notes.clone();
        notes
            .extend((judgement.without_forecast > 0).then(|| evaluation::without_forecast(judgement.without_forecast)));
        self.judged.insert(fold);
        self.sum.add(self.staged.meta(), judgement);
        Ok((errors, notes))
    }

    /// Evaluates all finished folds, and writes the evaluation and a report; `None` when no fold is finished.
    pub(super) fn evaluation(mut self, record: &CvRecord) -> Result<Option<Evaluation>, Error> {
        let done: Vec<usize> =
            (0..record.folds.len()).filter(|fold| record.folds[*fold].state == FoldState::Done).collect();
        if done.is_empty() {
            return Ok(None);
        }
        for fold in &done {
            if !self.judged.contains(fold) {
                // The fold was trained in an earlier call.
                self.evaluate_fold(*fold, &record.folds[*fold])?;
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
        evaluation_file::write(&self.dir, &evaluation, self.staged.meta())?;
        Ok(Some(evaluation))
    }

    /// Builds the evaluation over the given folds.
    fn together(&self, record: &CvRecord, done: &[usize]) -> Evaluation {
        let meta = self.staged.meta();
        let names = cell_names(&meta.out_shape, &meta.out_labels);
        let groups = &self.groups.1;
        let field = ScoringContext { meta, names: &names, groups, weights: self.weights.as_deref() };
        let parts = field.parts(&self.sum.everywhere(done.len()));
        let held = self.sum.held.as_ref();
        let untold = self.sum.untold;
        let rows = done.iter().map(|fold| record.folds[*fold].rows[Split::Test as usize]).sum();
        let never = EvaluationPart { name: Seen::Never.name().to_owned(), ..parts.all.clone() };
        Evaluation {
            run: record.run.clone(),
            data: self.config.data.as_ref().map_or_else(Vec::new, |data| data.files.clone()),
            judged: rows,
            seen: vec![SeenPart { rows, part: never }],
            notes: (untold > 0).then(|| evaluation::without_forecast(untold)).into_iter().collect(),
            ..evaluation_file::assembled(meta, parts, held, self.options.group.as_deref())
        }
    }

    /// Returns how far the errors of a fold's model rise when each input is shuffled.
    fn rises(
        &self,
        fold: &FoldRecord,
        repeats: usize,
        notes: &mut Vec<String>,
    ) -> Result<Vec<(String, Vec<f64>)>, Error> {
        let run = fold.run.locate(&self.dir)?;
        let checkpoint = sound_checkpoint(&run)?;
        let staged = Staged::open(&fold.staged)?;
        let rows: Vec<usize> = staged.rows_of(Split::Test).collect();
        let place = RunDir::create(&run.join(SHUFFLES), SHUFFLES, time::OffsetDateTime::now_utc())?;
        let shuffling = Shuffling { config: self.config, facts: self.facts, run: &place, checkpoint: checkpoint.dir() };
        let mut fold_notes = Vec::new();
        let rises = shuffling.rises(&staged, &rows, repeats, self.config.seed, &mut fold_notes)?;
        notes.extend(fold_notes.into_iter().map(|note| format!("{}: {note}", fold.run)));
        // A failure here only leaves unused files.
        let _left = std::fs::remove_dir_all(run.join(SHUFFLES));
        Ok(rises)
    }
}
