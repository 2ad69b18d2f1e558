//! The errors of all commands, and their exit codes.

use crate::{chaos::ChaosError, libtorch::NotFound, tasks::TaskError, torchrun::RunError};
use enn_checkpoint::{convert::ConvertError, gather::GatherError, remote::RemoteError};
use enn_cluster::{
    agent::{AgentError, AskError},
    group::GroupError,
    rendezvous::RendezvousError,
    slurm::SlurmError,
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
};
use enn_process::{logs::LogReadError, preload::WarmError, run_dir::RunDirError};
use enn_serve::ServeError;
use enn_ui::runs::RemoveError;
use enn_ui::{JournalError, KernelsError, MetricsError, TopError, report::PredictionsError};
use std::{io, path::PathBuf, time::Duration};

/// An error of a command; `exit_code` is its exit code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Mistakes in the configuration, all of them.
    #[error("{}", lines(.0))]
    Config(Vec<ConfigError>),
    /// A file the user named cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A path in a file of ENN leads elsewhere.
    #[error(transparent)]
    Path(PathError),
    /// The command line asks for something impossible.
    #[error("{0}")]
    Usage(Usage),
    /// A model that cannot be exported.
    #[error(transparent)]
    Export(#[from] enn_export::ExportError),
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Weights of cells that are not those of the data's output grid.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Slurm, or its variables.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// A run that is not removed.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Kernels(#[from] KernelsError),
    /// Fork servers that live between runs.
    #[error(transparent)]
    Warm(#[from] WarmError),
    /// The command line of `enn run`.
    #[error(transparent)]
    Run(#[from] Box<RunError>),
    /// The group of `enn run`.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Forecasts of the test rows.
    #[error(transparent)]
    Predictions(#[from] PredictionsError),
    /// The metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The server of `enn serve`.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The screen of `enn top`.
    #[error(transparent)]
    Top(#[from] TopError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A request to a run failed.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The worker program was not found.
    #[error("the program enn-worker was found neither beside enn nor by ENN_WORKER\nhint: `make build` builds both")]
    NoWorker,
    /// libtorch was not found.
    #[error(transparent)]
    NoLibtorch(#[from] NotFound),
    /// The nodes of a run cannot meet.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// This node cannot continue with the others.
    #[error("{0}")]
    Nodes(String),
    /// The program enn, which trains folds, was not found.
    #[error("the program enn was found neither here nor beside enn-worker\nhint: `make build` builds both")]
    NoEnn,
    /// The record of a cross-validation.
    #[error(transparent)]
    Cv(#[from] CvError),
    /// The processes of a cross-validation.
    #[error(transparent)]
    Crew(#[from] FoldRunnerError),
    /// The forecasts of a cross-validation.
    #[error(transparent)]
    Judge(#[from] FoldScoreError),
    /// Baselines cannot be fitted.
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
    /// A run that is kept at an address could not upload its end.
    #[error(
        "the end of the run is not at {address}: {source}\n  hint: it is in {0}; `enn train --resume {0}` or `enn ckpt push {0} {address}` \
         brings it there", dir.display()
    )]
    NotKept { address: String, dir: PathBuf, source: Box<RemoteError> },
    /// A worker that does not answer.
    #[error("the worker gave no answer within {} s", .0.as_secs())]
    Late(Duration),
    /// A run without a usable checkpoint.
    #[error(transparent)]
    Find(#[from] FindError),
    /// A checkpoint does not describe its model, e.g. one that PyTorch wrote.
    #[error("{} has no manifest of ours: the model, its inputs and its scaling are not known", path.display())]
    NoManifest { path: PathBuf },
    /// A staged directory that cannot be read.
    #[error(transparent)]
    Staged(#[from] StagedError),
    /// Predictions or a run could not be gathered.
    #[error(transparent)]
    Gather(#[from] GatherError),
    /// The stream of rows to predict.
    #[error("the Arrow stream to predict: {0}")]
    Stream(#[source] arrow_schema::ArrowError),
    /// A model could not be saved or loaded.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// A checkpoint could not be moved to or from an object store.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A checkpoint that cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] Box<ReadError>),
    /// A manifest that cannot be read.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A file of ENN could not be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The logs of a run.
    #[error(transparent)]
    Logs(#[from] LogReadError),
    #[error(transparent)]
    Chaos(#[from] ChaosError),
    /// An edit of a configuration's tasks.
    #[error(transparent)]
    Tasks(#[from] TaskError),
    /// There is no profile to show.
    #[error(transparent)]
    Profile(#[from] enn_ui::roofline::ProfileError),
    /// A file of ENN does not parse.
    #[error("{}: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    /// Standard output is gone or full.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}

/// Command-line arguments that cannot be fulfilled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Usage {
    #[error("the configuration has no [data] section: nothing to train on")]
    NoData,
    /// A name that programs next to an artifact could not spell.
    #[error("artifacts cannot be called {name:?}: expected no slash, quote, backslash or control character")]
    ArtifactName { name: String },
    /// Neither a configuration nor a run to resume.
    #[error("give a configuration, or --resume RUN to go on with a run")]
    NothingToTrain,
    /// A file of data where its description is needed.
    #[error("{} is data, expected a configuration (TOML) that names it in data.files, as examples/weather/weather.toml does", path.display())]
    DataForConfig { path: PathBuf },
    /// `--resume auto` needs the configuration's name.
    #[error("--resume auto needs the configuration, whose name says which run is meant")]
    AutoWithoutConfig,
    /// The number of folds is too small or too large.
    #[error("found --folds {folds}, expected 2 to {units}, the rows or groups that there are")]
    Folds {
        folds: usize,
        /// The number of rows or groups.
        units: usize,
    },
    /// The split is fixed by the data.
    #[error(
        "data.split.kind = \"column\" says which rows are tested; cross-validate with --set data.split.kind=random"
    )]
    FoldsByColumn,
    /// The data to evaluate have no targets.
    #[error("{} holds no targets: there is nothing to compare with", files(data))]
    NoTargets { data: Vec<PathBuf> },
    /// A column that cannot group.
    #[error("--group {column}: samples of these data are no rows of a table; windows can be grouped by \"month\"")]
    Group { column: String },
    /// A column with too many different words.
    #[error("--group {column}: found {found} different words, expected at most {limit}")]
    Groups { column: String, found: usize, limit: usize },
    /// Neither a configuration nor a run is given, or both.
    #[error("give either a configuration, or --resume DIR to go on with a cross-validation")]
    ConfigOrResume,
    /// The statistics of the data differ from those of the pretrained model.
    #[error(
        "the data differ from those of the model given with --from: {what}\n  hint: --scaler keep standardises by its statistics, --scaler \
         refit by those of the new training rows"
    )]
    Scaler {
        /// The first statistics that differ.
        what: String,
    },
    /// A run is resumed with fewer epochs than it has done.
    #[error(
        "{run} has done {done} epochs and is to do {wanted}: name more with --set train.epochs=N, or start a new run"
    )]
    EpochsDone { run: String, done: u64, wanted: u64 },
    /// A run is resumed on data that it was not trained on.
    #[error(
        "{run} was trained on other data: {what}\n  hint: give it the data and the configuration it began with; `enn train CONFIG --from {run}` \
         begins a new run with its weights"
    )]
    OtherData { run: String, what: String },
    /// The size of a model that already has weights.
    #[error(
        "model.{key} cannot be changed: the sizes of this run's model follow its training rows (model.by_rows), and its weights have \
         them\n  hint: start a new run with this size"
    )]
    Sized { key: &'static str },
    /// No data to predict.
    #[error("give the data to predict, --data FILE")]
    NothingToPredict,
    #[error("say which formats, e.g. --to onnx,pt2")]
    NothingToExport,
    /// `--code-of` without an AOTInductor package as target.
    #[error(
        "--code-of takes the code of a package that --to aoti --device cpu has made: give --to aoti, and no other device"
    )]
    CodeOfWhat,
    /// An engine that does not fit the artifact.
    #[error(
        "--engine {asked}: the exported model is {found}, and runs in its own runtime\nhint: leave out --engine, or name the run"
    )]
    EngineOfArtifact { found: &'static str, asked: &'static str },
    /// A precision that an engine does not support.
    #[error(
        "--precision {precision}: {engine} computes in what the model was exported in\nhint: --engine native computes in other formats"
    )]
    EnginePrecision { engine: &'static str, precision: &'static str },
    /// Only one side is a stream.
    #[error(
        "a stream is predicted from standard input to standard output: give --data - and --out - together, and no other --data"
    )]
    OnePipe,
}

fn files(data: &[PathBuf]) -> String {
    data.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" and ")
}

fn lines(errors: &[ConfigError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Error {
    /// Returns the exit code of `enn`.
    pub fn exit_code(&self) -> ExitCode {
        if let Some(code) = self.of_output() {
            return code;
        }
        match self {
            Self::Config(_)
            | Self::Usage(_)
            | Self::Tasks(_)
            | Self::Weights(_)
            | Self::Remove(RemoveError::Place { .. } | RemoveError::Busy { .. })
            | Self::Remote(RemoteError::Place { .. } | RemoteError::NoRun { .. }) => ExitCode::Usage,
            Self::RunDir(error) if error.is_of_usage() => ExitCode::Usage,
            Self::Read { .. } | Self::Top(TopError::NoTerminal) => ExitCode::Usage,
            Self::Metrics(MetricsError::Address { .. }) => ExitCode::Usage,
            Self::Logs(LogReadError::None { .. }) | Self::Chaos(ChaosError::NotUnderWay { .. }) => ExitCode::Usage,
            Self::Ask(error)
                if error.is_absence() || matches!(error, AskError::Refused { .. } | AskError::Headless { .. }) =>
            {
                ExitCode::Usage
            }
            Self::Warm(WarmError::Unknown(_)) => ExitCode::Usage,
            Self::Serve(ServeError::Open { .. } | ServeError::Token(_)) => ExitCode::Usage,
            Self::Serve(ServeError::Engine(_)) => ExitCode::WorkerFailed,
            Self::Stage(_) | Self::Stream(_) | Self::Serve(ServeError::Stage(_)) => ExitCode::Data,
            Self::Run(error) => error.exit_code(),
            Self::Slurm(error) => error.exit_code(),
            Self::Worker(_) | Self::Late(_) => ExitCode::WorkerFailed,
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
            | Self::Judge(_)
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
            | Self::Group(_)
            | Self::Warm(_)
            | Self::Logs(_)
            | Self::Chaos(_)
            | Self::NoWorker
            | Self::NoEnn
            | Self::Crew(_)
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
