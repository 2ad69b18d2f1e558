//! What a run has for MLflow: parameters, metrics over steps, tags.

use super::{error::MlflowError, names};
use crate::{
    compare::ComparedRun,
    journal,
    run_status::RunStatus,
    runs::RunState,
    tensorboard::{self, Scalar},
};
use enn_common::event::EventKind;
use nix::unistd::{Uid, User};
use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Maximum number of values of one metric.
const VALUES_MAX: usize = 100_000;

/// MLflow's numbers of the states of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MlflowStatus {
    Running = 1,
    Finished = 3,
    Failed = 4,
    Killed = 5,
}

/// A value of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MetricPoint {
    /// Milliseconds since the Unix epoch.
    time_ms: i64,
    value: f64,
    step: u64,
}

#[derive(Debug)]
pub(super) struct MlflowRecord {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) experiment: String,
    pub(super) run_id: String,
    pub(super) user: String,
    pub(super) status: MlflowStatus,
    /// Milliseconds since the Unix epoch.
    pub(super) start_ms: i64,
    /// `None` while the run is under way.
    pub(super) end_ms: Option<i64>,
    pub(super) params: BTreeMap<String, String>,
    /// Lines of the file of each metric.
    pub(super) metrics: BTreeMap<String, String>,
    pub(super) tags: BTreeMap<String, String>,
}

impl MlflowRecord {
    /// # Errors
    /// The journal cannot be read, or MLflow accepts no experiment of this name.
    pub(super) fn of(run: &ComparedRun, experiment: Option<&str>) -> Result<Self, MlflowError> {
        let experiment = experiment.or_else(|| run.key("name")).unwrap_or("run").to_owned();
        let chars = experiment.chars().count();
        if !(1..=names::EXPERIMENT_CHARS_MAX).contains(&chars) || experiment.chars().any(char::is_control) {
            return Err(MlflowError::ExperimentName { name: experiment, chars, limit: names::EXPERIMENT_CHARS_MAX });
        }
        let summary = &run.summary;
        let started = run.view.sessions.first().map_or(0.0, |session| session.started);
        let is_under_way = summary.state.is_under_way();
        Ok(Self {
            run_id: names::run_id(&summary.name, started, &experiment),
            name: summary.name.clone(),
            path: summary.path.clone(),
            user: owner(&summary.path),
            status: status(&summary.state),
            start_ms: milliseconds(started),
            end_ms: (!is_under_way).then(|| milliseconds(run.view.now)),
            params: params(run),
            metrics: metrics(run)?,
            tags: tags(run),
            experiment,
        })
    }
}

fn status(state: &RunState) -> MlflowStatus {
    match state {
        state if state.is_under_way() => MlflowStatus::Running,
        RunState::Recorded(RunStatus::Finished) => MlflowStatus::Finished,
        RunState::Recorded(RunStatus::Stopped(_)) => MlflowStatus::Killed,
        _ => MlflowStatus::Failed,
    }
}

fn milliseconds(seconds: f64) -> i64 {
    (seconds * 1e3).round() as i64
}

fn owner(path: &Path) -> String {
    let uid = fs::metadata(path).map_or(0, |found| found.uid());
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

fn params(run: &ComparedRun) -> BTreeMap<String, String> {
    let mut params: BTreeMap<String, String> = BTreeMap::new();
    // MLflow reads no empty value.
    for (key, value) in run.config.iter().filter(|(_, value)| !value.is_empty()) {
        let name = names::key(key, |name| params.contains_key(name));
        params.insert(name, names::param(value));
    }
    params
}

/// Returns the metrics of every epoch, under the names that TensorBoard shows, then the final ones, those of the baselines, and the
/// figures of the whole run.
fn metrics(run: &ComparedRun) -> Result<BTreeMap<String, String>, MlflowError> {
    let mut points: BTreeMap<String, Vec<MetricPoint>> = BTreeMap::new();
    let mut add = |time: f64, step: u64, scalars: Vec<Scalar>| {
        for (name, value) in scalars {
            let all = points.entry(name).or_default();
            // Steps that were undone are done again.
            all.retain(|point| point.step < step);
            if all.len() < VALUES_MAX {
                all.push(MetricPoint { time_ms: milliseconds(time), value, step });
            }
        }
    };
    let _unreadable = journal::read(&run.summary.path, |event| match &event.what {
        EventKind::EpochEnded(report) => add(event.time, report.step, tensorboard::of_epoch(report)),
        EventKind::Trained { step, split, .. } => add(event.time, *step, tensorboard::of_splits(split)),
        _ => {}
    })?;
    let step = run.steps().unwrap_or(0);
    for (split, all) in &run.view.baselines {
        for (name, metrics) in all {
            add(run.view.now, step, tensorboard::of_split(&format!("{split}_baseline_{name}"), metrics));
        }
    }
    let counts = [("run/seconds", run.seconds()), ("run/parameters", run.parameters().map(|count| count as f64))];
    let counts = counts.into_iter().chain([
        ("run/workers", run.workers().map(f64::from)),
        ("run/failures", Some(run.failures() as f64)),
        ("run/recoveries", Some(run.recoveries() as f64)),
        ("run/best_epoch", run.best_epoch()),
    ]);
    let known = counts.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    add(run.view.now, step, known.collect());
    Ok(points.into_iter().map(|(name, points)| (name, lines(&points))).collect())
}

/// Writes points as MLflow does, "time value step" on a line each.
fn lines(points: &[MetricPoint]) -> String {
    let mut text = String::new();
    for point in points {
        let MetricPoint { time_ms, value, step } = point;
        // Python reads "NaN" and "inf". Writing to a String cannot fail.
        let _ = writeln!(text, "{time_ms} {value} {step}");
    }
    text
}

fn tags(run: &ComparedRun) -> BTreeMap<String, String> {
    let summary = &run.summary;
    let view = &run.view;
    let mut tags = BTreeMap::new();
    let mut tag = |name: &str, value: &str| {
        if !value.is_empty() {
            tags.insert(name.to_owned(), names::tag(value));
        }
    };
    tag("mlflow.runName", &summary.name);
    tag("mlflow.user", &owner(&summary.path));
    tag("mlflow.source.type", "LOCAL");
    tag("enn.run", &summary.name);
    tag("enn.run_dir", &summary.path.display().to_string());
    tag("enn.state", &summary.state.to_string());
    tag("enn.error", summary.error.as_deref().unwrap_or_default());
    tag("enn.exported_by", concat!("enn ", env!("CARGO_PKG_VERSION")));
    tag("enn.parent", &summary.parent.as_ref().map(|parent| parent.display().to_string()).unwrap_or_default());
    tag("enn.units", view.units());
    if let Some(session) = view.session() {
        tag("mlflow.source.name", &session.argv.join(" "));
        tag("enn.host", &session.host);
    }
    if let Some(ready) = view.workers.iter().rev().find_map(|worker| worker.ready.as_ref()) {
        tag("enn.libtorch", &ready.libtorch);
        tag("enn.process_group", &ready.backend);
    }
    tag("enn.devices", &run.devices().unwrap_or_default());
    if let Some(staged) = view.staged.as_ref().and_then(|staged| staged.dir.file_name()) {
        tag("enn.staged_data", &staged.to_string_lossy());
    }
    tag("enn.program", view.model.as_ref().map_or("", |model| &model.program_hash));
    tags
}
