//! What can end a session: one sentence each, with place, found, expected and a hint.

use crate::{checkpoint::CheckpointError, collective::RankError, data::DataError, export::ExportError};
use enn_comm::CommError;
use enn_common::{
    artifact::{chunk::ChunkError, seal::SealError},
    config::weights::WeightsError,
    staged::StagedError,
    wire::{client::ClientError, control::ControlError},
};
use enn_core::{
    error::{OpError, OpErrorKind, tells_of_short_memory},
    kernel::KernelNameError,
    params::LoadError,
};
use enn_model::{model::ModelError, optim::OptimError};
use std::{
    io,
    path::{Path, PathBuf},
};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum SessionError {
    #[error(
        "ENN_BROKER is not set: enn-worker is started by `enn`\n  hint: run `enn train CONFIG` or `enn predict RUN`"
    )]
    NotLaunched,
    #[error("environment variable {name} is {found:?}, expected {expected}")]
    Variable { name: &'static str, found: String, expected: &'static str },
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Graph(enn_common::graph::file::GraphFileError),
    #[error("the launcher refused this worker: {error}")]
    Refused { error: String },
    #[error("the launcher sent {found}, expected {expected}\n  hint: are enn and enn-worker of one version?")]
    Unexpected { found: String, expected: &'static str },
    #[error("control page on descriptor {fd} cannot be mapped (ENN_CONTROL_FD)")]
    ControlPage {
        fd: i32,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Control(ControlError),
    #[error("failed to ignore interrupts")]
    Signals(#[source] nix::Error),
    #[error("the system refused a thread that listens to the launcher")]
    Thread(#[source] io::Error),
    #[error("assigned device {found:?}, expected {expected}")]
    Device { found: String, expected: &'static str },
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Comm(#[from] CommError),
    #[error(transparent)]
    Staged(#[from] StagedError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Op(#[from] OpError),
    #[error(transparent)]
    KernelName(#[from] KernelNameError),
    #[error(
        "{}: train.loss is {loss}, expected cross_entropy for a target that is a category and another one for numbers\n  hint: see data.rows.target_kind",
        path.display()
    )]
    Classes { path: PathBuf, loss: &'static str },
    #[error("the pipe to the launcher: {0}")]
    Pipe(#[source] io::Error),
    #[error("{}: {message}", path.display())]
    Artifact { path: PathBuf, message: String },
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(
        "weight {weight} is not finite before step {step} ({op} at {place})\n  hint: training goes on from the last \
         checkpoint; when it happens again, look at the memory of the machine or take a smaller train.lr"
    )]
    NonfiniteWeight { weight: String, op: &'static str, place: String, step: u64 },
    #[error(transparent)]
    Optim(#[from] OptimError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Manifest(SealError),
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    #[error(
        "no room for {what} without gradients: {cause}\n  hint: fewer workers on a machine or device leave more to each; else a smaller model, \
         or one machine with more memory"
    )]
    NoRoom { what: &'static str, cause: String },
    #[error(
        "training {weights} weights keeps {needed:.2} GiB ({each} bytes of each), and {free:.2} GiB of memory are free\n  hint: \
         {largest} has {share:.0} % of them; a smaller model.head_rank, model.linear_branch = false, fewer inputs or output cells \
         make the model smaller"
    )]
    NoRoomForState { weights: u64, each: u64, needed: f64, free: f64, largest: String, share: f64 },
    #[error("libtorch: {0}")]
    Torch(#[from] tch::TchError),
    #[error(transparent)]
    Shim(#[from] enn_core::backend::torch::ShimError),
    #[error("failed to read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to say that this worker is alive in {} (ENN_PROGRESS_FILE)", path.display())]
    Progress {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not what this version writes\n  hint: are enn and enn-worker of one version?", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error(
        "the workers disagree on the {what}: {sides}\n  hint: do all nodes run the same binary on the same configuration and data?"
    )]
    Disagree { what: &'static str, sides: String },
    #[error("{}: no {what}, expected at least one\n  hint: {hint}", path.display())]
    Nothing { path: PathBuf, what: &'static str, hint: &'static str },
    #[error("{}: {what} is {found}, expected {expected} as in training", path.display())]
    OtherData { path: PathBuf, what: &'static str, found: String, expected: String },
    #[error("the checkpoint {} is damaged: {error}", path.display())]
    Damaged { path: PathBuf, file: Option<PathBuf>, error: String },
    #[error(
        "{}: the checkpoint was trained with {what} {found}, expected {expected}\n  hint: resume with the same data and batch, or start a new run",
        path.display()
    )]
    OtherTraining { path: PathBuf, what: &'static str, found: i64, expected: i64 },
    #[error(
        "{}: the model to begin with does not fit: {problems}\n  hint: --partial takes what fits",
        path.display()
    )]
    OtherParent {
        path: PathBuf,
        /// All that is missing, unexpected or of another shape there.
        problems: String,
    },
    #[error(
        "{}: the checkpoint was trained with rows and draws an epoch of each source {found:?}, expected {expected:?}\n  hint:          resume with the same weights of the sources, or start a new run",
        path.display()
    )]
    OtherMix { path: PathBuf, found: Vec<i64>, expected: Vec<i64> },
    #[error("failed to write the ledger {}\n  hint: make room, or leave out train.ledger", path.display())]
    Ledger {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{found} training rows make loss or gradient not finite, expected at most {limit}: row_id {first}\n  hint: mend or \
         remove these rows, or raise train.poisoned_rows_max"
    )]
    TooManyExcludedRows { found: u64, limit: u64, first: String },
    #[error(
        "all {steps} steps of epoch {epoch} were skipped because loss or gradient was not finite\n  hint: lower train.lr, or look for extreme values in the data report"
    )]
    Diverged {
        /// Epoch, counted from 1.
        epoch: u64,
        steps: u64,
    },
}

impl From<RankError> for SessionError {
    fn from(error: RankError) -> Self {
        match error {
            RankError::Comm(error) => error.into(),
            RankError::Torch(error) => error.into(),
            RankError::Optim(error) => error.into(),
            RankError::Shim(error) => error.into(),
        }
    }
}

impl SessionError {
    /// Whether it came out of the process group: then another rank may be its cause.
    pub fn is_of_the_group(&self) -> bool {
        match self {
            Self::Comm(_) => true,
            Self::Op(error) => matches!(&*error.kind, OpErrorKind::Hook(cause) if cause.is::<CommError>()),
            _ => false,
        }
    }

    /// Of an error that came when the checkpoint in `path` was read: whether that is to blame.
    #[must_use]
    pub(super) fn of_checkpoint(error: CheckpointError, path: &Path) -> Self {
        match error {
            CheckpointError::Read(error) if error.is_damage() => {
                let file = error.path().map(Path::to_owned);
                Self::Damaged { path: path.to_owned(), file, error: error.to_string() }
            }
            error => error.into(),
        }
    }

    /// Whether starting again would end the same way: what is wrong lies in what the run was given.
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            Self::OtherData { .. }
                | Self::OtherTraining { .. }
                | Self::OtherParent { .. }
                | Self::OtherMix { .. }
                | Self::TooManyExcludedRows { .. }
                | Self::NoRoom { .. }
        )
    }

    /// Whether a computation ran out of memory, in an operation or in what libtorch was asked for beside them.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Op(error) => error.kind.is_out_of_memory(),
            Self::Torch(_) | Self::Data(_) | Self::Model(_) | Self::Optim(_) => tells_of_short_memory(&self.sentence()),
            _ => false,
        }
    }

    /// Turns a lack of memory into [`SessionError::NoRoom`] where smaller micro-batches would change nothing.
    #[must_use]
    pub(super) fn without_room(self, what: &'static str) -> Self {
        if self.is_out_of_memory() { Self::NoRoom { what, cause: self.sentence() } } else { self }
    }

    /// The error with its causes as one text for people.
    pub fn sentence(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let words = error.to_string();
            if !text.contains(&words) {
                // The hint, when there is one, stays last.
                match text.find("\n  hint:") {
                    Some(at) => text.insert_str(at, &format!(": {words}")),
                    None => text.push_str(&format!(": {words}")),
                }
            }
            cause = error.source();
        }
        // libtorch's messages end with the addresses of its callers.
        while let Some(at) = text.find("\nException raised from") {
            let end = text[at..].find("\n  hint:").map_or(text.len(), |hint| at + hint);
            text.replace_range(at..end, "");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_callers_are_left_out_and_the_hint_stays() {
        let words =
            "CUDA out of memory\nException raised from malloc at x.cpp:1 (most recent call first):\nframe #0: y";
        let told = SessionError::from(tch::TchError::Torch(words.to_owned())).sentence();
        assert!(told.ends_with("CUDA out of memory"), "{told}");
        let path = PathBuf::from("ledger");
        let told = SessionError::Ledger { path, source: io::Error::other(words) }.sentence();
        assert!(told.contains("CUDA out of memory\n  hint: make room") && !told.contains("frame"), "{told}");
    }
}
