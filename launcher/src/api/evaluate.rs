//! `evaluate`: predict data with targets, compare, and do the same for baselines fitted to the run's training rows.

use super::{
    forecast,
    predict::{PredictOptions, Subject, predict},
    train,
};
use crate::{
    Error,
    agent::Ended,
    baselines::{self, Effort, Forecaster, Trial},
    error::Usage,
    evaluation::{self, Judged, Quantiles, Seen, Turns},
    facts::Facts,
    gather::cell_names,
    run_dir::RunDir,
    stage as stager,
    ui::{Mode, report},
};
use enn_common::{
    artifact::{
        cv::Spread,
        evaluation::{Evaluation, FILE, FORMAT, Importance, SeenPart, VERSION},
        prediction::{PredictionManifest, manifest_path},
    },
    config::data::Layout,
    fs::atomic,
    staged::{Split, Staged, StagedError, npy::Element, reader::NpyMap},
};
use std::path::{Path, PathBuf};

/// Directory of a run's evaluations.
const EVALUATIONS: &str = "evaluations";
/// Groups at most.
const GROUPS_MAX: usize = 1_000;
/// Word that groups windows by the month they begin in.
const MONTH: &str = "month";
/// Characters of a window's name that say its month.
const MONTH_CHARS: usize = 7;

/// How to evaluate.
#[derive(Debug, Clone)]
pub struct EvaluateOptions {
    /// How prediction is shown.
    pub mode: Mode,
    /// Whether SIGINT and SIGTERM stop it.
    pub handle_signals: bool,
    /// Column that groups rows; of windows "month".
    pub group: Option<String>,
    /// Shuffles of every input; `None`: importance is not asked for.
    pub importance: Option<usize>,
    /// Seed of the shuffles.
    pub seed: u64,
}

/// What an evaluation left behind.
#[derive(Debug)]
pub struct Evaluated {
    /// Its directory: evaluation.json, report.html, predictions.
    pub dir: PathBuf,
    /// What it found; `None` when stopped.
    pub evaluation: Option<Evaluation>,
    /// Finished, or stopped by a signal.
    pub ended: Ended,
}

/// Evaluates the newest checkpoint of the run directory `model` on `data`.
///
/// # Errors
/// Data without targets or that do not fit the model, a group that is not there, or a worker that fails.
pub fn evaluate(model: &Path, data: &[PathBuf], facts: &Facts, options: &EvaluateOptions) -> Result<Evaluated, Error> {
    let predicting =
        PredictOptions { mode: options.mode, handle_signals: options.handle_signals, ..PredictOptions::default() };
    let subject = Subject::of(model, data, facts, &predicting)?;
    let run = RunDir::create(&model.join(EVALUATIONS), "evaluate", time::OffsetDateTime::now_utc())?;
    run.write_config(&subject.config)?;
    let output = run.path().join("predictions");
    let predicted = predict(model, data, &output, facts, &predicting)?;
    let dir = run.path().to_owned();
    if predicted.ended != Ended::Finished {
        return Ok(Evaluated { dir, evaluation: None, ended: predicted.ended });
    }
    let manifest = PredictionManifest::read(&manifest_path(&output))?;
    let staged = Staged::open(&subject.runs.join(train::STAGED_DIR).join(&manifest.data))?;
    if !staged.meta().has_targets {
        return Err(Error::Usage(Usage::NoTargets { data: data.to_vec() }));
    }
    let forecasts = Forecasts::read(&output, &staged)?;
    let (mut evaluation, rows) = judge(&subject, model, (&staged, &forecasts), options)?;
    evaluation.data = data.iter().map(|file| facts.cwd.join(file)).collect();
    if let Some(repeats) = options.importance {
        let work = (&subject, facts, &run);
        evaluation.importance =
            importance(work, (&staged, &rows), (repeats.max(1), options.seed), &mut evaluation.notes)?;
    }
    let path = dir.join(FILE);
    let json = |source| Error::Json { path: path.clone(), source };
    atomic::write(&path, &serde_json::to_vec_pretty(&evaluation).map_err(json)?)?;
    if let Err(error) = report::write_evaluation(&dir, &evaluation, staged.meta()) {
        tracing::warn!("no report: {error}");
    }
    Ok(Evaluated { dir, evaluation: Some(evaluation), ended: Ended::Finished })
}

/// Predictions as `enn predict` writes them.
struct Forecasts {
    points: NpyMap,
    /// Levels, and the quantiles (N, levels, O).
    quantiles: Option<(Vec<f64>, NpyMap)>,
}

impl Forecasts {
    fn read(dir: &Path, staged: &Staged) -> Result<Self, Error> {
        let cells = (staged.rows() * staged.outputs()) as u64;
        let points = numbers(&dir.join("pred.npy"), Element::F32, cells)?;
        let levels = dir.join("level.npy");
        if !levels.exists() {
            return Ok(Self { points, quantiles: None });
        }
        let levels = NpyMap::open(&levels)?;
        let levels = levels.numbers::<f64>().unwrap_or_default().to_vec();
        let quantiles = numbers(&dir.join("levels.npy"), Element::F32, cells * levels.len() as u64)?;
        Ok(Self { points, quantiles: Some((levels, quantiles)) })
    }
}

fn numbers(path: &Path, element: Element, count: u64) -> Result<NpyMap, StagedError> {
    let map = NpyMap::open(path)?;
    let found = (map.header().element, map.header().count());
    if found == (element, count) {
        return Ok(map);
    }
    Err(StagedError::Mismatch {
        path: path.to_owned(),
        what: "element type and number of elements",
        found: format!("{} × {}", found.0.descr(), found.1),
        expected: format!("{} × {count}", element.descr()),
    })
}

/// The evaluation without importance, and the rows that it is about.
fn judge(
    subject: &Subject,
    model: &Path,
    (staged, forecasts): (&Staged, &Forecasts),
    options: &EvaluateOptions,
) -> Result<(Evaluation, Vec<usize>), Error> {
    let mut notes = Vec::new();
    let (baselines, seen) = of_run(subject, model, staged, &mut notes);
    let (group_of, groups) = match &options.group {
        None => (vec![0; staged.rows()], vec![String::new()]),
        Some(column) => grouped(&words(subject, column, staged)?, column)?,
    };
    let meta = staged.meta();
    let points = forecasts.points.numbers().unwrap_or_default();
    let weights = subject.config.train.cell_weights.of_grid(&meta.out_shape)?;
    let weights = weights.as_deref();
    let (group_of, groups) = (&group_of[..], &groups[..]);
    let seen = seen.as_deref();
    let judged = Judged { staged, forecasts: points, baselines: &baselines, seen, group_of, groups, weights };
    let rows = judged.rows();
    let parts = evaluation::evaluate(&judged, &cell_names(&meta.out_shape, &meta.out_labels));
    if parts.untold > 0 {
        notes.push(evaluation::untold(parts.untold));
    }
    let quantiles = forecasts.quantiles.as_ref();
    let quantiles = quantiles.map(|(levels, map)| Quantiles {
        levels,
        values: map.numbers().unwrap_or_default(),
        rows: &rows,
        weights,
    });
    let warning = warning(&parts.seen);
    let evaluation = Evaluation {
        format: FORMAT.to_owned(),
        version: VERSION,
        run: subject.digest.run.clone(),
        step: subject.digest.step,
        data: Vec::new(),
        digest: meta.digest.clone(),
        units: meta.units.clone(),
        rows: meta.rows,
        judged: rows.len() as u64,
        seen: parts.seen,
        warning,
        all: parts.all,
        reactivity: parts.reactivity,
        horizons: parts.horizons,
        group: options.group.clone().unwrap_or_default(),
        groups: if options.group.is_some() { parts.groups } else { Vec::new() },
        cells: parts.cells,
        levels: quantiles.map_or_else(Vec::new, |quantiles| evaluation::levels(staged, quantiles)),
        intervals: quantiles.map_or_else(Vec::new, |quantiles| evaluation::intervals(staged, quantiles)),
        importance: Vec::new(),
        notes,
    };
    Ok((evaluation, rows))
}

/// Baselines fitted to the training rows of the run, and what it has done with the rows of `staged`; nothing, with a note, where its data
/// are gone.
fn of_run(
    subject: &Subject,
    model: &Path,
    staged: &Staged,
    notes: &mut Vec<String>,
) -> (Vec<Forecaster>, Option<Vec<Seen>>) {
    let found = Staged::open(&model.join("staged")).map_err(Error::from).and_then(|run| {
        let rows: Vec<usize> = run.rows_of(Split::Train).collect();
        let fitted = baselines::fit_to(&run, &rows, Effort::Full)?;
        let has_ids = subject.config.data.as_ref().is_some_and(|data| match &data.layout {
            Layout::Rows(rows) => rows.row_id.is_some(),
            Layout::Arrays(arrays) => arrays.row_id.is_some(),
            Layout::Windows(_) => false,
        });
        Ok((fitted, evaluation::seen(staged, &run, has_ids)))
    });
    match found {
        Ok(((forecasters, told), seen)) => {
            notes.extend(told);
            (forecasters, Some(seen))
        }
        Err(error) => {
            notes.push(format!(
                "no baselines, and which rows the run trained on is not known: its training rows are not at hand: {error}"
            ));
            (Vec::new(), None)
        }
    }
}

/// What people must know of errors that say nothing of new rows.
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

/// What groups the rows.
fn words(subject: &Subject, column: &str, staged: &Staged) -> Result<Vec<String>, Error> {
    let data = subject.config.data.as_ref().ok_or(Error::Usage(Usage::NoData))?;
    let names = &staged.meta().row_names;
    match data.layout {
        Layout::Windows(_) if column == MONTH && !names.is_empty() => {
            Ok(names.iter().map(|name| name.chars().take(MONTH_CHARS).collect()).collect())
        }
        Layout::Rows(_) => Ok(stager::labels(data, column, staged)?),
        _ => Err(Error::Usage(Usage::Group { column: column.to_owned() })),
    }
}

/// The group of every row, and the groups' names.
fn grouped(words: &[String], column: &str) -> Result<(Vec<usize>, Vec<String>), Error> {
    let mut groups: Vec<String> = words.to_vec();
    groups.sort_unstable();
    groups.dedup();
    if groups.len() > GROUPS_MAX {
        return Err(Error::Usage(Usage::Groups { column: column.to_owned(), found: groups.len(), limit: GROUPS_MAX }));
    }
    let place = |word: &String| groups.binary_search(word).unwrap_or(0);
    Ok((words.iter().map(place).collect(), groups))
}

/// How much worse forecasts are with each input shuffled, most important first.
fn importance(
    (subject, facts, run): (&Subject, &Facts, &RunDir),
    (staged, rows): (&Staged, &[usize]),
    (repeats, seed): (usize, u64),
    notes: &mut Vec<String>,
) -> Result<Vec<Importance>, Error> {
    let inputs = evaluation::inputs(staged.meta());
    let turns = Turns::new(inputs.len(), repeats, (rows.len(), staged.features()));
    let weights = subject.config.train.cell_weights.of_grid(&staged.meta().out_shape)?;
    let weight = |cell: usize| weights.as_ref().map_or(1.0, |weights| weights[cell]);
    let (place, outputs) = (run.path().join(".shuffled"), staged.outputs());
    let told = run.path().join("predictions/test");
    let mut all = Vec::new();
    for (turn, some) in inputs.chunks(turns.inputs).enumerate() {
        let first = turn * turns.inputs;
        let shuffled = evaluation::shuffled((staged, rows), (first, some), (repeats, seed), turns.rows, &place)?;
        forecast::predict_test_rows(&subject.config, facts, run, &subject.checkpoint, &shuffled.dir)?;
        let (kept, copies) = (shuffled.rows.len(), 1 + some.len() * repeats);
        let forecasts = numbers(&told.join("pred.npy"), Element::F32, (copies * kept * outputs) as u64)?;
        let forecasts: &[f32] = forecasts.numbers().unwrap_or_default();
        let error = |copy: usize| {
            let told = &forecasts[copy * kept * outputs..(copy + 1) * kept * outputs];
            let scores = Trial::new(staged, &shuffled.rows).beside(told).model();
            scores[0].over(weight).map_or(f64::NAN, |metrics| metrics.judged())
        };
        let whole = error(0);
        all.extend(some.iter().enumerate().filter_map(|(at, (name, _))| {
            let rises: Vec<f64> = (0..repeats).map(|repeat| error(1 + at * repeats + repeat) - whole).collect();
            Some(Importance { input: name.clone(), rise: Spread::of(&rises)? })
        }));
        for gone in [&place, &told] {
            // What is left behind takes room and harms nothing.
            let _left = std::fs::remove_dir_all(gone);
        }
    }
    all.sort_by(|a, b| b.rise.mean.total_cmp(&a.rise.mean));
    if turns.rows < rows.len() {
        notes.push(format!("importance: by a random sample of {} of {} rows", turns.rows, rows.len()));
    }
    Ok(all)
}
