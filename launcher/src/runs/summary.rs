//! One run at a glance: what it is, how it stands, what went wrong, whether it has a model.

use crate::{
    run_dir,
    ui::{RunView, journal, standing::Standing},
};
use enn_common::{
    artifact::cv::{self, CvRecord, FoldState},
    checkpoint::name,
    event::{Event, What},
    exit::ExitCode,
    failure::Failure,
};
use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// How much of the end of a journal is read of a run that is over: more than is told in the seconds between a request to stop and the end.
const END_BYTES: u64 = 256 << 10;

/// What made a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `enn train` or `enn model load`.
    Train,
    /// `enn run`.
    Program,
    /// `enn cv`: its folds are runs below it.
    CrossValidation,
}

impl Kind {
    /// What made the run in `dir`; `None` where there is no run.
    pub fn of(dir: &Path) -> Option<Self> {
        if dir.join(cv::FILE).is_file() {
            Some(Self::CrossValidation)
        } else if run_dir::is_launch(dir) {
            Some(Self::Program)
        } else {
            run_dir::is_run(dir).then_some(Self::Train)
        }
    }

    /// One word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Program => "run",
            Self::CrossValidation => "cv",
        }
    }
}

/// How a run stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// As its journal and its lock say.
    Told(Standing),
    /// It was never worked on, and holds a model that was loaded.
    Loaded,
    /// It was never worked on, and holds nothing.
    Empty,
}

impl RunState {
    /// One word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Told(standing) => standing.word(),
            Self::Loaded => "loaded",
            Self::Empty => "empty",
        }
    }

    /// Whether somebody works on the run.
    pub fn is_under_way(&self) -> bool {
        matches!(self, Self::Told(standing) if !standing.over())
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(Standing::Failed(code)) => write!(f, "failed ({code})"),
            Self::Told(Standing::Stopped(signal)) if !signal.is_empty() => write!(f, "stopped ({signal})"),
            _ => f.write_str(self.word()),
        }
    }
}

/// A run at a glance.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSummary {
    /// Name of its directory.
    pub name: String,
    pub path: PathBuf,
    /// What made it.
    pub kind: Kind,
    /// How it stands.
    pub state: RunState,
    /// What went wrong, in a line.
    pub error: Option<String>,
    /// When it began, seconds since the Unix epoch, where its journal tells.
    pub started: Option<f64>,
    /// When it was last written to.
    pub written: SystemTime,
    /// Step of its newest checkpoint that is whole, as far as its name tells.
    pub step: Option<u64>,
    /// The checkpoint of another run that its training began with.
    pub parent: Option<PathBuf>,
}

impl RunSummary {
    /// Looks at the run in `path`; `None` where there is none.
    pub fn read(path: &Path) -> Option<Self> {
        let kind = Kind::of(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let written = crate::logs::last_written(path).unwrap_or(SystemTime::UNIX_EPOCH);
        let step = newest_step(path);
        let parent = run_dir::read_config(path).ok().and_then(|config| config.parent).map(|parent| parent.checkpoint);
        let run = Self {
            name,
            path: path.to_owned(),
            kind,
            state: RunState::Empty,
            error: None,
            started: None,
            written,
            step,
            parent,
        };
        Some(if kind == Kind::CrossValidation { run.of_folds() } else { run.of_journal() })
    }

    /// With what its journal and its lock tell.
    fn of_journal(mut self) -> Self {
        let living = run_dir::is_living(&self.path);
        let mut view = RunView::default();
        let mut cause = None;
        let mut hear = |event: Event| {
            note_cause(&mut cause, &event.what);
            view.apply(&event);
        };
        // Where a run that is under way stands follows from all that happened.
        let bytes = if living { u64::MAX } else { END_BYTES };
        let _missing = journal::read_ends(&self.path, bytes, &mut hear);
        self.started = view.sessions.first().map(|session| session.started);
        self.state = match Standing::of(&view, living) {
            Standing::Gone if view.sessions.is_empty() && self.step.is_some() => RunState::Loaded,
            Standing::Gone if view.sessions.is_empty() => RunState::Empty,
            Standing::Failed(code) if is_stop(code) => RunState::Told(Standing::Stopped(String::new())),
            standing => RunState::Told(standing),
        };
        self.error = match self.state {
            RunState::Told(Standing::Failed(code)) => Some(cause.unwrap_or_else(|| meaning(code).to_owned())),
            RunState::Told(Standing::Gone) => Some("its launcher ended without a word".to_owned()),
            _ => None,
        };
        self
    }

    /// With what the record of a cross-validation and its lock tell.
    fn of_folds(mut self) -> Self {
        let record = CvRecord::read(&self.path).ok();
        let folds = record.map(|record| record.folds).unwrap_or_default();
        let failed = folds.iter().enumerate().find_map(|(fold, record)| match &record.state {
            FoldState::Failed { cause } => Some(format!("fold {fold}: {}", first_line(cause))),
            FoldState::Pending | FoldState::Done => None,
        });
        let newest =
            folds.iter().filter_map(|fold| crate::logs::last_written(&fold.run.locate(&self.path).ok()?)).max();
        self.written = newest.map_or(self.written, |newest| newest.max(self.written));
        let is_done = !folds.is_empty() && folds.iter().all(|fold| fold.state == FoldState::Done);
        self.state = RunState::Told(match &failed {
            _ if run_dir::is_living(&self.path) => Standing::Running,
            Some(_) => Standing::Failed(ExitCode::WorkerFailed as u8),
            None if is_done => Standing::Finished,
            None => Standing::Gone,
        });
        self.error = failed.filter(|_| !self.state.is_under_way());
        self
    }

    /// Its name and its state, with what went wrong.
    pub fn brief(&self) -> String {
        let error = self.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        format!("{} ({}{error})", self.name, self.state)
    }
}

/// The runs in several directories, newest first.
pub fn list(runs: &[PathBuf]) -> Vec<RunSummary> {
    run_dir::list_where(runs, |path| Kind::of(path).is_some())
        .iter()
        .filter_map(|(_, path)| RunSummary::read(path))
        .collect()
}

/// Step of the newest checkpoint that counts.
pub(super) fn newest_step(run: &Path) -> Option<u64> {
    let listed = name::list(&run_dir::checkpoints(run)).into_iter();
    listed.filter(|(_, path)| path.join(name::MANIFEST).is_file()).map(|(step, _)| step).next()
}

/// Bytes of all files below a directory. Links are not followed.
pub fn size(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => size(&entry.path()),
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    };
    entries.map(of).sum()
}

/// Whether a run ends with this code when it is asked to.
fn is_stop(code: u8) -> bool {
    [ExitCode::Interrupted, ExitCode::Terminated].iter().any(|known| *known as u8 == code)
}

/// What an exit code means.
fn meaning(code: u8) -> &'static str {
    ExitCode::ALL.iter().find(|(known, _)| *known as u8 == code).map_or("", |(_, sentence)| sentence)
}

/// Keeps what went wrong last. What a launch says of its own end is kept before what it said of a worker.
fn note_cause(cause: &mut Option<String>, what: &What) {
    let told = match what {
        What::RunStarted { .. } => {
            *cause = None;
            return;
        }
        What::RunEnded { cause: Some(text), .. } | What::GaveUp { reason: text } => text.clone(),
        What::RoundFailed { cause: text, restarting: false, .. } | What::WorkerFailed { error: text, .. } => {
            text.clone()
        }
        What::FailureReported { failure } => told_failure(failure),
        _ => return,
    };
    let line = first_line(&told);
    if !line.is_empty() {
        *cause = Some(line);
    }
}

/// A failure of a worker in a line.
fn told_failure(failure: &Failure) -> String {
    let how = match (failure.signal, failure.code) {
        (Some(signal), _) => format!("was killed by {}", crate::ui::signal::name(signal)),
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
    use crate::run_dir::RunDir;
    use enn_common::config::{
        RunConfig,
        model::ModelConfig,
        train::{ClusterConfig, TrainConfig},
    };
    use time::macros::datetime;

    /// A run of this name and day with these events in its journal, and with checkpoints of these steps.
    pub(in crate::runs) fn run(runs: &Path, name: &str, day: u8, events: &[What], steps: &[u64]) -> RunDir {
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
            let mut writer = journal::Writer::open(run.path()).unwrap();
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

    pub(in crate::runs) fn started() -> What {
        What::RunStarted {
            run: "x".into(),
            mode: "train".into(),
            dir: "/x".into(),
            host: "h".into(),
            nproc: 1,
            argv: Vec::new(),
        }
    }

    pub(in crate::runs) fn ended(code: u8, cause: Option<&str>) -> What {
        What::RunEnded { code, seconds: 1.0, restarts: 0, rounds: 1, cause: cause.map(str::to_owned) }
    }

    fn look(run: &Path) -> (String, Option<String>) {
        let found = RunSummary::read(run).unwrap();
        (found.state.to_string(), found.error)
    }

    #[test]
    fn a_run_stands_as_its_journal_and_its_lock_say() {
        let dir = tempfile::tempdir().unwrap();
        let stop = What::StopRequested { signal: "SIGINT".into(), second: false };
        let give_up = What::GaveUp { reason: "nobody came\nhint: x".into() };
        for (number, (events, state, error)) in [
            (vec![started(), ended(0, None)], "finished", None),
            (vec![started(), ended(3, Some("a.csv: no\n  hint: x"))], "failed (3)", Some("a.csv: no")),
            (vec![started(), give_up, ended(6, None)], "failed (6)", Some("nobody came")),
            (vec![started(), stop, ended(130, None)], "stopped (SIGINT)", None),
            (vec![started(), ended(143, None)], "stopped", None),
            (vec![started(), ended(3, Some("x")), started(), ended(0, None)], "finished", None),
            (vec![started()], "gone", Some("its launcher ended without a word")),
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
        let noise = What::Warned { message: "x".repeat(1000) };
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
