//! The errors of all commands, and their exit codes.

use crate::{
    chaos::ChaosError,
    libtorch::{NoWorker, NotFound},
    tasks::TaskError,
    torchrun::RunError,
};
use enn_checkpoint::{convert::ConvertError, gather::GatherError, remote::RemoteError};
use enn_cluster::{
    rendezvous::RendezvousError,
    slurm::SlurmError,
    supervise::{AgentError, AskError},
};
use enn_common::{
    artifact::{cv::CvError, seal::SealError},
    checkpoint::{ReadError, listing::FindError},
    config::{ConfigError, weights::WeightsError},
    exit::ExitCode,
    fs::{FileError, PathError},
    staged::StagedError,
};
use enn_data::{
    baselines::BaselineError,
    cv::{FoldRunnerError, FoldScoreError},
    stage::StageError,
    survey::SurveyError,
};
use enn_process::{logs::LogReadError, preload::WarmError, run_dir::RunDirError};
use enn_serve::ServeError;
use enn_ui::runs::RemoveError;
use enn_ui::{JournalError, KernelsError, MetricsError, TopError, mlflow::MlflowError, report::PredictionsError};
use std::{io, path::PathBuf, time::Duration};

/// An error of a command; `exit_code` is its exit code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}", lines(.0))]
    Config(Vec<ConfigError>),
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A path in a file of ENN leads elsewhere.
    #[error(transparent)]
    Path(PathError),
    /// The command line asks for something impossible.
    #[error("{0}")]
    Usage(Usage),
    #[error(transparent)]
    Export(#[from] enn_export::ExportError),
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A table to which no configuration can be proposed.
    #[error(transparent)]
    Survey(SurveyError),
    /// Weights of cells that are not those of the data's output grid.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error(transparent)]
    Remove(#[from] RemoveError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Kernels(#[from] KernelsError),
    #[error(transparent)]
    Mlflow(#[from] MlflowError),
    #[error(transparent)]
    Warm(#[from] WarmError),
    #[error(transparent)]
    Run(#[from] Box<RunError>),
    #[error(transparent)]
    Predictions(#[from] PredictionsError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Top(#[from] TopError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error(transparent)]
    NoWorker(#[from] NoWorker),
    #[error(transparent)]
    NoLibtorch(#[from] NotFound),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// This node cannot continue with the others.
    #[error("{0}")]
    Nodes(String),
    #[error("the program enn was found neither here nor beside enn-worker\nhint: {hint}")]
    NoEnn { hint: String },
    #[error(transparent)]
    Cv(#[from] CvError),
    #[error(transparent)]
    FoldRunner(#[from] FoldRunnerError),
    #[error(transparent)]
    FoldScores(#[from] FoldScoreError),
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    /// A worker failed, and no restart is left.
    #[error("{0}")]
    Worker(String),
    /// Training ended, but its last state is in no checkpoint.
    #[error(
        "{0}\n  hint: make room, and go on with `enn train --resume`: what was done since that checkpoint is done again"
    )]
    Unsaved(String),
    #[error(
        "the end of the run is not at {address}: {source}\n  hint: it is in {0}; `enn train --resume {0}` or `enn ckpt push {0} {address}` \
         brings it there", dir.display()
    )]
    NotKept { address: String, dir: PathBuf, source: Box<RemoteError> },
    #[error("the worker gave no answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error(transparent)]
    Find(#[from] FindError),
    /// A checkpoint does not describe its model, e.g. one that PyTorch wrote.
    #[error("{} has no manifest of ours: the model, its inputs and its scaling are not known", path.display())]
    NoManifest { path: PathBuf },
    #[error(transparent)]
    Staged(#[from] StagedError),
    #[error(transparent)]
    Gather(#[from] GatherError),
    #[error("the Arrow stream to predict: {0}")]
    Stream(#[source] arrow_schema::ArrowError),
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error(transparent)]
    Checkpoint(#[from] Box<ReadError>),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Logs(#[from] LogReadError),
    #[error(transparent)]
    Chaos(#[from] ChaosError),
    #[error(transparent)]
    Tasks(#[from] TaskError),
    #[error(transparent)]
    Profile(#[from] enn_ui::roofline::ProfileError),
    #[error("{}: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}

/// Command-line arguments that cannot be fulfilled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Usage {
    #[error("the configuration has no [data] section: nothing to train on")]
    NoData,
    #[error("artifacts cannot be called {name:?}: expected no slash, quote, backslash or control character")]
    ArtifactName { name: String },
    #[error("give a configuration, or --resume RUN to go on with a run")]
    NothingToTrain,
    #[error("{} is data, expected a configuration (TOML) that names it in data.files\n  hint: `enn new FILE --target COLUMN` writes one", path.display())]
    DataForConfig { path: PathBuf },
    #[error("{}: --target names no column to predict; its columns:\n{columns}\n  hint: name one of them, --target COLUMN", path.display())]
    NoTarget { path: PathBuf, columns: String },
    #[error("{flag} names a column of a table, and {} is read as a configuration (TOML), which names its columns itself\n  hint: leave {flag} out, or give a table: .csv, .tsv, .parquet, .arrow, .xlsx, …; --set data.format=csv says what a file with another name is", path.display())]
    ColumnsOfConfig { flag: &'static str, path: PathBuf },
    #[error("{} is read as a configuration, beside which {} cannot be given\n  hint: several files are for tables", path.display(), second.display())]
    SecondConfig { path: PathBuf, second: PathBuf },
    #[error("{flag} names a column of a table, and no table is given")]
    ColumnsOfNothing { flag: &'static str },
    #[error("{} exists already\n  hint: --force replaces it, --out FILE writes another file", path.display())]
    ConfigExists { path: PathBuf },
    #[error("{}: its name is not UTF-8, which a configuration needs\n  hint: rename the file", path.display())]
    NotUnicode { path: PathBuf },
    #[error(
        "--events {number}: there is no such descriptor that can be written\nhint: the program that starts enn opens it, a shell by {number}>events.jsonl"
    )]
    Events { number: i32 },
    #[error(
        "the data have {rows} rows, expected at most {most} in a request\nhint: `enn predict` without --requests predicts any number with all of its workers"
    )]
    LargeRequest { rows: u64, most: u64 },
    #[error("--resume auto needs the configuration, whose name says which run is meant")]
    AutoWithoutConfig,
    #[error("found --folds {folds}, expected 2 to {units}, the rows or groups that there are")]
    Folds { folds: usize, units: usize },
    #[error(
        "data.split.kind = \"column\" says which rows are tested; cross-validate with --set data.split.kind=random"
    )]
    FoldsByColumn,
    #[error("{} holds no targets: there is nothing to compare with", files(data))]
    NoTargets { data: Vec<PathBuf> },
    #[error("--group {column}: samples of these data are no rows of a table; windows can be grouped by \"month\"")]
    Group { column: String },
    #[error("--group {column}: found {found} different words, expected at most {limit}")]
    Groups { column: String, found: usize, limit: usize },
    #[error("give either a configuration, or --resume DIR to go on with a cross-validation")]
    ConfigOrResume,
    #[error(
        "the data differ from those of the model given with --from: {what}\n  hint: --scaler keep standardises by its statistics, --scaler \
         refit by those of the new training rows"
    )]
    Scaler { what: String },
    #[error(
        "{run} has done {done} epochs and is to do {wanted}: name more with --set train.epochs=N, or start a new run"
    )]
    EpochsDone { run: String, done: u64, wanted: u64 },
    #[error(
        "{run} was trained on other data: {what}\n  hint: give it the data and the configuration it began with; `enn train CONFIG --from {run}` \
         begins a new run with its weights"
    )]
    OtherData { run: String, what: String },
    #[error(
        "model.{key} cannot be changed: the sizes of this run's model follow its training rows (model.by_rows), and its weights have \
         them\n  hint: start a new run with this size"
    )]
    Sized { key: &'static str },
    #[error(
        "there is no training in {}\n  hint: `enn train CONFIG` makes one; --runs-dir names another directory of runs",
        files(dirs)
    )]
    NoRuns { dirs: Vec<PathBuf> },
    #[error("there is no help on \"{word}\"\n  hint: {}", topic_hint(meant.as_deref()))]
    NoTopic { word: String, meant: Option<String> },
    #[error("found {found} runs, expected at most {limit}")]
    TooManyRuns { found: usize, limit: usize },
    #[error("give the data to predict, --data FILE")]
    NothingToPredict,
    #[error("say which formats, e.g. --to onnx,pt2")]
    NothingToExport,
    #[error(
        "--code-of takes the code of a package that --to aoti --device cpu has made: give --to aoti, and no other device"
    )]
    CodeOfWhat,
    #[error(
        "--engine {asked}: the exported model is {found}, and runs in its own runtime\nhint: leave out --engine, or name the run"
    )]
    EngineOfArtifact { found: &'static str, asked: &'static str },
    #[error(
        "--precision {precision}: {engine} computes in what the model was exported in\nhint: --engine native computes in other formats"
    )]
    EnginePrecision { engine: &'static str, precision: &'static str },
    #[error(
        "a stream is predicted from standard input to standard output: give --data - and --out - together, and no other --data"
    )]
    OnePipe,
}

impl From<SurveyError> for Error {
    fn from(error: SurveyError) -> Self {
        match error {
            SurveyError::Stage(error) => Self::Stage(error),
            error => Self::Survey(error),
        }
    }
}

fn topic_hint(meant: Option<&str>) -> String {
    meant.map_or_else(|| "`enn help` lists the topics".to_owned(), |meant| format!("`enn help {meant}`"))
}

fn files(data: &[PathBuf]) -> String {
    data.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" and ")
}

fn of_mlflow(error: &MlflowError) -> ExitCode {
    match error {
        error if error.is_of_usage() => ExitCode::Usage,
        MlflowError::Journal(_) => ExitCode::Artifact,
        _ => ExitCode::Machine,
    }
}

fn lines(errors: &[ConfigError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Error {
    pub fn exit_code(&self) -> ExitCode {
        if let Some(code) = self.of_output() {
            return code;
        }
        match self {
            Self::Config(_)
            | Self::Survey(_)
            | Self::Usage(_)
            | Self::Tasks(_)
            | Self::Weights(_)
            | Self::Remove(RemoveError::Place { .. } | RemoveError::Busy { .. })
            | Self::Remote(RemoteError::Place { .. } | RemoteError::NoRun { .. }) => ExitCode::Usage,
            Self::RunDir(error) if error.is_of_usage() => ExitCode::Usage,
            Self::Mlflow(error) => of_mlflow(error),
            Self::Read { .. } | Self::Top(TopError::NoTerminal) => ExitCode::Usage,
            Self::Metrics(MetricsError::Address { .. }) => ExitCode::Usage,
            Self::Logs(LogReadError::None { .. }) | Self::Chaos(ChaosError::NotUnderWay { .. }) => ExitCode::Usage,
            Self::Ask(error)
                if error.is_absence() || matches!(error, AskError::Refused { .. } | AskError::Leaderless { .. }) =>
            {
                ExitCode::Usage
            }
            Self::Warm(WarmError::Unknown(_)) => ExitCode::Usage,
            Self::Serve(ServeError::Open { .. } | ServeError::Token(_)) => ExitCode::Usage,
            Self::Stage(_) | Self::Stream(_) | Self::Serve(ServeError::Stage(_)) => ExitCode::Data,
            Self::Run(error) => error.exit_code(),
            Self::Slurm(error) => error.exit_code(),
            Self::Worker(_) | Self::Late(_) | Self::Serve(ServeError::Engine(_)) => ExitCode::WorkerFailed,
            Self::Nodes(_) | Self::Rendezvous(_) => ExitCode::Rendezvous,
            Self::Agent(error) if error.is_none_whole() => ExitCode::Artifact,
            Self::RunDir(RunDirError::Foreign { .. })
            | Self::Journal(_)
            | Self::Top(TopError::Journal(_))
            | Self::Find(_)
            | Self::NoManifest { .. }
            | Self::Gather(_)
            | Self::Staged(_)
            | Self::Convert(_)
            | Self::Remote(_)
            | Self::Checkpoint(_)
            | Self::Seal(_)
            | Self::Cv(_)
            | Self::FoldScores(_)
            | Self::Predictions(_)
            | Self::Baseline(_)
            | Self::Kernels(_)
            | Self::Export(_)
            | Self::Path(_)
            | Self::Json { .. } => ExitCode::Artifact,
            Self::RunDir(_)
            | Self::Remove(_)
            | Self::Top(_)
            | Self::Metrics(_)
            | Self::Serve(ServeError::Listen { .. } | ServeError::System { .. })
            | Self::Profile(_)
            | Self::Agent(_)
            | Self::Ask(_)
            | Self::Unsaved(_)
            | Self::NotKept { .. }
            | Self::Warm(_)
            | Self::Logs(_)
            | Self::Chaos(_)
            | Self::NoWorker(_)
            | Self::NoEnn { .. }
            | Self::FoldRunner(_)
            | Self::NoLibtorch(_)
            | Self::File(_)
            | Self::Output(_) => ExitCode::Machine,
        }
    }

    /// Returns the exit code of an output that cannot be written: a usage error when the place is taken, a machine error when the disk is
    /// full.
    fn of_output(&self) -> Option<ExitCode> {
        match self {
            Self::Gather(
                GatherError::Exists { .. }
                | GatherError::Format { .. }
                | GatherError::Input { .. }
                | GatherError::Displace(_),
            )
            | Self::Convert(ConvertError::Exists { .. } | ConvertError::Displace(_))
            | Self::Remote(RemoteError::Displace(_) | RemoteError::Exists { .. }) => Some(ExitCode::Usage),
            Self::Gather(GatherError::Space(_))
            | Self::Convert(ConvertError::Space(_))
            | Self::Remote(RemoteError::Space(_)) => Some(ExitCode::Machine),
            Self::Gather(GatherError::File(error))
            | Self::Convert(ConvertError::File(error))
            | Self::Remote(RemoteError::File(error))
                if !error.is_missing() =>
            {
                Some(ExitCode::Machine)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_name_that_is_taken_or_wrong_is_the_users_and_a_full_disk_the_machines() {
        let path = || PathBuf::from("p.csv");
        assert_eq!(Error::from(RemoteError::NoRun { address: "s3://b".into() }).exit_code(), ExitCode::Usage);
        assert_eq!(Error::from(GatherError::Exists { path: path() }).exit_code(), ExitCode::Usage);
        assert_eq!(Error::from(ConvertError::Exists { path: path() }).exit_code(), ExitCode::Usage);
        let file = |kind: io::ErrorKind| FileError { action: "write", path: path(), source: kind.into() };
        assert_eq!(Error::from(GatherError::File(file(io::ErrorKind::StorageFull))).exit_code(), ExitCode::Machine);
        assert_eq!(
            Error::from(ConvertError::File(file(io::ErrorKind::PermissionDenied))).exit_code(),
            ExitCode::Machine
        );
        assert_eq!(Error::from(ConvertError::File(file(io::ErrorKind::NotFound))).exit_code(), ExitCode::Artifact);
        assert_eq!(
            Error::from(RemoteError::File(file(io::ErrorKind::NotADirectory))).exit_code(),
            ExitCode::Machine,
            "what a disk says of a directory is the machine's"
        );
    }
}
