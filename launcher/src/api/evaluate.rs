//! `evaluate`: predicts data with targets, compares, and does the same for baselines fitted to the run's training and validation rows.

use super::{
    evaluation_file, groups,
    importance::{self, Shuffling},
    predict::{PredictOptions, Subject, predict},
    staging,
};
use crate::{Error, error::Usage, facts::Facts};
use enn_checkpoint::gather::cell_names;
use enn_cluster::supervise::RunEnd;
use enn_common::{
    artifact::{
        evaluation::{Evaluation, SeenPart},
        prediction::{PredictionManifest, manifest_path},
    },
    config::data::{DataConfig, Layout},
    fs::RelPath,
    staged::{Split, Staged, npy::NpyElement, reader::NpyMap},
};
use enn_data::{
    baselines::{self, Effort, Forecaster},
    evaluation::{self, EvaluationInput, IntervalCoverage, Quantiles, Seen},
};
use enn_process::run_dir::RunDir;
use enn_ui::Mode;
use std::path::{Path, PathBuf};

/// The directory of evaluations below a run directory.
const EVALUATIONS: &str = "evaluations";

#[derive(Debug, Clone)]
pub struct EvaluateOptions {
    /// How the progress of prediction is shown.
    pub mode: Mode,
    /// Whether SIGINT and SIGTERM stop the evaluation.
    pub handle_signals: bool,
    /// The column that groups rows, or "month" for windows.
    pub group: Option<String>,
    /// Number of shuffles of every input; `None`: importance is not computed.
    pub importance: Option<usize>,
    pub seed: u64,
    /// Whether a column is accepted although the model does not know most of its values.
    pub allow_unseen: bool,
}

#[derive(Debug)]
pub struct Evaluated {
    /// The directory with evaluation.json, report.html and the predictions.
    pub dir: PathBuf,
    pub evaluation: Option<Evaluation>,
    pub ended: RunEnd,
}

/// Evaluates the newest checkpoint of the run directory `model` on `data`.
///
/// # Errors
/// The data have no targets or do not fit the model, a group does not exist, or a worker fails.
pub fn evaluate(model: &Path, data: &[PathBuf], facts: &Facts, options: &EvaluateOptions) -> Result<Evaluated, Error> {
    let predicting = PredictOptions {
        mode: options.mode,
        handle_signals: options.handle_signals,
        allow_unseen: options.allow_unseen,
        is_judged: true,
        ..PredictOptions::default()
    };
    let subject = Subject::of(model, data, facts, &predicting)?;
    let run = RunDir::create(&model.join(EVALUATIONS), "evaluate", time::OffsetDateTime::now_utc())?;
    run.write_config(&subject.config)?;
    let output = run.path().join("predictions");
    let predicted = predict(model, data, &output, facts, &predicting)?;
    let dir = run.path().to_owned();
    if predicted.ended != RunEnd::Finished {
        return Ok(Evaluated { dir, evaluation: None, ended: predicted.ended });
    }
    let manifest = PredictionManifest::read(&manifest_path(&output))?;
    let data_dir = RelPath::parse(manifest.data).map_err(Error::Path)?;
    let staged = Staged::open(&data_dir.locate(&subject.runs.join(staging::STAGED_DIR))?)?;
    if !staged.meta().has_targets {
        return Err(Error::Usage(Usage::NoTargets { data: data.to_vec() }));
    }
    let forecasts = Forecasts::read(&output, &staged)?;
    let (mut evaluation, rows) = evaluate_forecasts(&subject, model, &staged, &forecasts, options)?;
    evaluation.data = data.iter().map(|file| facts.cwd.join(file)).collect();
    if let Some(repeats) = options.importance {
        let shuffling = Shuffling { config: &subject.config, facts, run: &run, checkpoint: &subject.checkpoint };
        let rises = shuffling.rises(&staged, &rows, repeats, options.seed, &mut evaluation.notes)?;
        evaluation.importance = importance::ranked(rises);
    }
    evaluation_file::write(&dir, &evaluation, staged.meta())?;
    Ok(Evaluated { dir, evaluation: Some(evaluation), ended: RunEnd::Finished })
}

/// Predictions in the files that `enn predict` writes.
struct Forecasts {
    points: NpyMap,
    /// The quantile levels, and the quantiles (N, levels, O).
    quantiles: Option<(Vec<f64>, NpyMap)>,
}

impl Forecasts {
    fn read(dir: &Path, staged: &Staged) -> Result<Self, Error> {
        let cells = (staged.rows() * staged.outputs()) as u64;
        let points = NpyMap::open_as(&dir.join("pred.npy"), NpyElement::F32, cells)?;
        let levels = dir.join("level.npy");
        if !levels.exists() {
            return Ok(Self { points, quantiles: None });
        }
        let levels = NpyMap::open(&levels)?;
        let levels = levels.numbers::<f64>().unwrap_or_default().to_vec();
        let quantiles = NpyMap::open_as(&dir.join("levels.npy"), NpyElement::F32, cells * levels.len() as u64)?;
        Ok(Self { points, quantiles: Some((levels, quantiles)) })
    }
}

/// Computes the evaluation without importance; returns it with the evaluated rows.
fn evaluate_forecasts(
    subject: &Subject,
    model: &Path,
    staged: &Staged,
    forecasts: &Forecasts,
    options: &EvaluateOptions,
) -> Result<(Evaluation, Vec<usize>), Error> {
    let mut notes = Vec::new();
    let (baselines, seen) = of_run(subject, model, staged, &mut notes);
    let (group_of, groups) = match &options.group {
        None => (vec![0; staged.rows()], vec![String::new()]),
        Some(column) => {
            let data = subject.config.data.as_ref().ok_or(Error::Usage(Usage::NoData))?;
            groups::of(data, column, staged)?
        }
    };
    let meta = staged.meta();
    let points = forecasts.points.numbers().unwrap_or_default();
    let weights = subject.config.train.cell_weights.of_grid(&meta.out_shape)?;
    let weights = weights.as_deref();
    let group_of = &group_of[..];
    let groups = &groups[..];
    let seen = seen.as_deref();
    let judged = EvaluationInput { staged, forecasts: points, baselines: &baselines, seen, group_of, groups, weights };
    let rows = judged.rows();
    let parts = evaluation::evaluate(&judged, &cell_names(&meta.out_shape, &meta.out_labels));
    if parts.without_forecast > 0 {
        notes.push(evaluation::without_forecast(parts.without_forecast));
    }
    let quantiles = forecasts.quantiles.as_ref();
    let held = quantiles.map(|(levels, map)| {
        let values = map.numbers().unwrap_or_default();
        let rows: Vec<(usize, usize)> = rows.iter().map(|row| (*row, *row)).collect();
        IntervalCoverage::new(levels).with(staged, Quantiles { levels, values, rows: &rows, weights })
    });
    let warning = warning(&parts.seen);
    let outputs = staged.outputs().max(1);
    let row_forecasts = rows.iter().filter_map(|row| Some((*row, points.get(row * outputs..(row + 1) * outputs)?)));
    let classes = evaluation::classes(staged, row_forecasts);
    let evaluation = Evaluation {
        run: subject.digest.run.clone(),
        step: subject.digest.step,
        judged: rows.len() as u64,
        warning,
        classes,
        notes,
        ..evaluation_file::assembled(meta, parts, held.as_ref(), options.group.as_deref())
    };
    Ok((evaluation, rows))
}

/// Returns baselines fitted to the training and validation rows of the run, and how the run used each row of `staged`; nothing and a note
/// when the run's data are gone.
fn of_run(
    subject: &Subject,
    model: &Path,
    staged: &Staged,
    notes: &mut Vec<String>,
) -> (Vec<Forecaster>, Option<Vec<Seen>>) {
    let found = Staged::open(&model.join("staged")).map_err(Error::from).and_then(|run| {
        // The evaluated rows are new to the run, like its test rows.
        let rows = baselines::rows_of(&run, &[Split::Train, Split::Val]);
        let fitted = baselines::fit_to(&run, &rows, Effort::Full)?;
        // The time of a window is not a name from the source.
        let is_named = |data: &DataConfig| data.layout.has_row_id() && !matches!(data.layout, Layout::Windows(_));
        let has_ids = subject.config.data.as_ref().is_some_and(is_named);
        Ok((fitted, evaluation::seen(staged, &run, has_ids)))
    });
    match found {
        Ok(((forecasters, fit_notes), seen)) => {
            notes.extend(fit_notes);
            if seen.is_none() {
                notes.push(
                    "it is not known which of the rows the run trained on: many of its own rows have the same cells, and the data \
                     have no row id; all rows are evaluated"
                        .to_owned(),
                );
            }
            (forecasters, seen)
        }
        Err(error) => {
            notes.push(format!(
                "no baselines, and it is not known which rows the run trained on: its training rows are not available: {error}"
            ));
            (Vec::new(), None)
        }
    }
}

/// Returns a warning when all evaluated rows were used in training, so that the errors say nothing about new rows.
fn warning(seen: &[SeenPart]) -> Option<String> {
    let rows = |kind: Seen| seen.iter().find(|one| one.part.name == kind.name()).map_or(0, |one| one.rows);
    (!seen.is_empty() && rows(Seen::Never) == 0).then(|| {
        format!(
            "the run has seen all of these rows ({} trained on, {} validated on): their errors say what it remembers, not what it \
             can predict\n  hint: give rows that it never had, or see `enn metrics` for its test split and `enn cv`",
            rows(Seen::Trained),
            rows(Seen::Validated),
        )
    })
}
