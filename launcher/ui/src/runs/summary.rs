//! The summary of one run: kind, state, failure, and whether it has a model.

use crate::{RunView, format, journal, run_status::RunStatus};
use enn_common::{
    artifact::cv::{self, CvRecord, FoldState},
    checkpoint::name,
    event::{Event, EventKind},
    exit::ExitCode,
    failure::Failure,
};
use enn_process::run_dir;
use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Bytes read from the end of the journal of a run that is over: more than the events between a request to stop and the
/// end.
const END_BYTES: u64 = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunKind {
    /// Made by `enn train` or `enn model load`.
    Train,
    /// Made by `enn run`.
    Program,
    /// Made by `enn cv`. The folds are runs below it.
    CrossValidation,
}

impl RunKind {
    /// Returns the kind of the run in `dir`; `None` where there is no run.
    pub fn of(dir: &Path) -> Option<Self> {
        if dir.join(cv::FILE).is_file() {
            Some(Self::CrossValidation)
        } else if run_dir::is_launch(dir) {
            Some(Self::Program)
        } else {
            run_dir::is_run(dir).then_some(Self::Train)
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Program => "run",
            Self::CrossValidation => "cv",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// The status that the journal and the lock imply.
    Recorded(RunStatus),
    /// The run was never started and holds a loaded model.
    Loaded,
    /// The run was never started and holds nothing.
    Empty,
}

impl RunState {
    pub fn word(&self) -> &'static str {
        match self {
            Self::Recorded(status) => status.word(),
            Self::Loaded => "loaded",
            Self::Empty => "empty",
        }
    }

    pub fn is_under_way(&self) -> bool {
        matches!(self, Self::Recorded(status) if !status.over())
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recorded(RunStatus::Failed(code)) => write!(f, "failed ({code})"),
            Self::Recorded(RunStatus::Stopped(signal)) if !signal.is_empty() => write!(f, "stopped ({signal})"),
            _ => f.write_str(self.word()),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct RunSummary {
    pub name: String,
    pub path: PathBuf,
    pub kind: RunKind,
    pub state: RunState,
    pub error: Option<String>,
    /// Start, seconds since the Unix epoch; `None` where the journal has none.
    pub started: Option<f64>,
    pub written: SystemTime,
    /// Step in the name of the newest complete checkpoint.
    pub step: Option<u64>,
    /// The checkpoint of another run that its training began with.
    pub parent: Option<PathBuf>,
}

impl RunSummary {
    /// Reads the run in `path`; `None` where there is none.
    pub fn read(path: &Path) -> Option<Self> {
        let kind = RunKind::of(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let written = enn_process::logs::last_written(path).unwrap_or(SystemTime::UNIX_EPOCH);
        let step = newest_step(path);
        let parent = run_dir::read_config(path).ok().and_then(|config| config.parent).map(|parent| parent.checkpoint);
        let path = path.to_owned();
        let run = Self { name, path, kind, state: RunState::Empty, error: None, started: None, written, step, parent };
        Some(if kind == RunKind::CrossValidation { run.of_folds() } else { run.of_journal() })
    }

    /// Adds what follows from the journal and the lock.
    fn of_journal(mut self) -> Self {
        let living = run_dir::is_living(&self.path);
        let mut view = RunView::default();
        let mut cause = None;
        let mut on_event = |event: Event| {
            note_cause(&mut cause, &event.what);
            view.apply(&event);
        };
        // The status of a run under way depends on all of its events.
        let bytes = if living { u64::MAX } else { END_BYTES };
        let _missing = journal::read_ends(&self.path, bytes, &mut on_event);
        self.started = view.sessions.first().map(|session| session.started);
        self.state = match RunStatus::of(&view, living) {
            RunStatus::Gone if view.sessions.is_empty() && self.step.is_some() => RunState::Loaded,
            RunStatus::Gone if view.sessions.is_empty() => RunState::Empty,
            RunStatus::Failed(code) if is_stop(code) => RunState::Recorded(RunStatus::Stopped(String::new())),
            status => RunState::Recorded(status),
        };
        self.error = match self.state {
            RunState::Recorded(RunStatus::Failed(code)) => {
                Some(cause.unwrap_or_else(|| format::exit_code(code).to_owned()))
            }
            RunState::Recorded(RunStatus::Gone) => Some("its launcher ended and recorded no end".to_owned()),
            _ => None,
        };
        self
    }

    /// Adds what follows from the record and the lock of a cross-validation.
    fn of_folds(mut self) -> Self {
        let record = CvRecord::read(&self.path).ok();
        let folds = record.map(|record| record.folds).unwrap_or_default();
        let failed = folds.iter().enumerate().find_map(|(fold, record)| match &record.state {
            FoldState::Failed { cause } => Some(format!("fold {fold}: {}", first_line(cause))),
            FoldState::Pending | FoldState::Done => None,
        });
        let newest =
            folds.iter().filter_map(|fold| enn_process::logs::last_written(&fold.run.locate(&self.path).ok()?)).max();
        self.written = newest.map_or(self.written, |newest| newest.max(self.written));
        let is_done = !folds.is_empty() && folds.iter().all(|fold| fold.state == FoldState::Done);
        self.state = RunState::Recorded(match &failed {
            _ if run_dir::is_living(&self.path) => RunStatus::Running,
            Some(_) => RunStatus::Failed(ExitCode::WorkerFailed as u8),
            None if is_done => RunStatus::Finished,
            None => RunStatus::Gone,
        });
        self.error = failed.filter(|_| !self.state.is_under_way());
        self
    }

    /// Returns name and state, with the failure.
    pub fn brief(&self) -> String {
        let error = self.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        format!("{} ({}{error})", self.name, self.state)
    }
}

/// Lists the runs in several directories, newest first.
pub fn list(runs: &[PathBuf]) -> Vec<RunSummary> {
    run_dir::list_where(runs, |path| RunKind::of(path).is_some())
        .iter()
        .filter_map(|(_, path)| RunSummary::read(path))
        .collect()
}

pub(super) fn newest_step(run: &Path) -> Option<u64> {
    let listed = name::list(&run_dir::checkpoints(run)).into_iter();
    listed.filter(|(_, path)| path.join(name::MANIFEST).is_file()).map(|(step, _)| step).next()
}

/// Returns the bytes of all files below a directory. Links are not followed.
pub fn size(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => size(&entry.path()),
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    };
    entries.map(of).sum()
}

/// Returns whether a run ends with this code after a request to stop.
fn is_stop(code: u8) -> bool {
    [ExitCode::Interrupted, ExitCode::Terminated].iter().any(|known| *known as u8 == code)
}

/// Updates the last failure: the launch's own cause of its end replaces what was reported of a worker.
fn note_cause(cause: &mut Option<String>, what: &EventKind) {
    let text = match what {
        EventKind::RunStarted { .. } => {
            *cause = None;
            return;
        }
        EventKind::RunEnded { cause: Some(text), .. } | EventKind::GaveUp { reason: text } => text.clone(),
        EventKind::RoundFailed { cause: text, restarting: false, .. } | EventKind::WorkerFailed { error: text, .. } => {
            text.clone()
        }
        EventKind::FailureReported { failure } => failure_line(failure),
        _ => return,
    };
    let line = first_line(&text);
    if !line.is_empty() {
        *cause = Some(line);
    }
}

fn failure_line(failure: &Failure) -> String {
    let how = match (failure.signal, failure.code) {
        (Some(signal), _) => format!("was killed by {}", enn_process::signal::name(signal)),
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "failed".to_owned(),
    };
    let message = failure.message.as_deref().map_or_else(String::new, |message| format!(": {}", first_line(message)));
    format!("rank {} {how}{message}", failure.rank)
}

fn first_line(text: &str) -> String {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use enn_common::config::{
        RunConfig,
        model::ModelConfig,
        train::{ClusterConfig, TrainConfig},
    };
    use enn_process::run_dir::RunDir;
    use time::macros::datetime;

    /// A run of this name and day with these events in its journal, and with checkpoints of these steps.
    pub(crate) fn run(runs: &Path, name: &str, day: u8, events: &[EventKind], steps: &[u64]) -> RunDir {
        let time = datetime!(2026-01-01 00:00 UTC) + time::Duration::days(i64::from(day));
        let run = RunDir::create(runs, name, time).unwrap();
        let config = RunConfig {
            version: 1,
            name: name.into(),
            seed: 0,
            data: None,
            train: TrainConfig::default(),
            model: ModelConfig::default(),
            cluster: ClusterConfig::default(),
            kernels: std::collections::BTreeMap::new(),
            parent: None,
        };
        run.write_config(&config).unwrap();
        if !events.is_empty() {
            let mut writer = journal::JournalWriter::open(run.path()).unwrap();
            events.iter().zip(0..).for_each(|(what, number)| {
                let time = f64::from(day) + f64::from(number);
                writer.write(&Event { time, what: what.clone() }).unwrap();
            });
        }
        for step in steps {
            let dir = run.checkpoints().join(name::committed(*step));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(name::MANIFEST), "{}").unwrap();
        }
        run
    }

    pub(in crate::runs) fn started() -> EventKind {
        EventKind::RunStarted {
            run: "x".into(),
            mode: "train".into(),
            dir: "/x".into(),
            host: "h".into(),
            nproc: 1,
            argv: Vec::new(),
        }
    }

    pub(in crate::runs) fn ended(code: u8, cause: Option<&str>) -> EventKind {
        EventKind::RunEnded { code, seconds: 1.0, restarts: 0, rounds: 1, cause: cause.map(str::to_owned) }
    }

    fn look(run: &Path) -> (String, Option<String>) {
        let found = RunSummary::read(run).unwrap();
        (found.state.to_string(), found.error)
    }

    #[test]
    fn a_run_stands_as_its_journal_and_its_lock_say() {
        let dir = tempfile::tempdir().unwrap();
        let stop = EventKind::StopRequested { signal: "SIGINT".into(), second: false };
        let give_up = EventKind::GaveUp { reason: "nobody came\nhint: x".into() };
        for (number, (events, state, error)) in [
            (vec![started(), ended(0, None)], "finished", None),
            (vec![started(), ended(3, Some("a.csv: no\n  hint: x"))], "failed (3)", Some("a.csv: no")),
            (vec![started(), give_up, ended(6, None)], "failed (6)", Some("nobody came")),
            (vec![started(), stop, ended(130, None)], "stopped (SIGINT)", None),
            (vec![started(), ended(143, None)], "stopped", None),
            (vec![started(), ended(3, Some("x")), started(), ended(0, None)], "finished", None),
            (vec![started()], "gone", Some("its launcher ended and recorded no end")),
            (vec![], "empty", None),
        ]
        .into_iter()
        .enumerate()
        {
            let held = run(dir.path(), &format!("a{number}"), 1, &events, &[]);
            let path = held.path().to_owned();
            assert_eq!(
                RunSummary::read(&path).unwrap().state.is_under_way(),
                !matches!(state, "finished" | "stopped (SIGINT)" | "stopped") && !state.starts_with("failed")
            );
            drop(held);
            assert_eq!(look(&path), (state.to_owned(), error.map(str::to_owned)));
        }
        let loaded = run(dir.path(), "loaded", 1, &[], &[0, 7]);
        let path = loaded.path().to_owned();
        drop(loaded);
        assert_eq!(look(&path).0, "loaded");
        assert_eq!(RunSummary::read(&path).unwrap().step, Some(7));
    }

    #[test]
    fn the_end_of_a_long_journal_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        let noise = EventKind::Warned { message: "x".repeat(1000) };
        let mut events = vec![started()];
        events.extend(std::iter::repeat_n(noise, 600));
        events.push(ended(1, Some("rank 0 ended with code 1")));
        let path = run(dir.path(), "a", 1, &events, &[]).path().to_owned();
        assert_eq!(look(&path), ("failed (1)".into(), Some("rank 0 ended with code 1".into())));
        assert_eq!(RunSummary::read(&path).unwrap().started, Some(1.0));
    }

    #[test]
    fn links_have_no_size() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/c"), [0; 100]).unwrap();
        std::os::unix::fs::symlink(dir.path().join("a"), dir.path().join("a/loop")).unwrap();
        assert_eq!(size(dir.path()), 100);
    }
}
