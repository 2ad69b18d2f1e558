//! One worker's life: it boots, takes its task from the launcher, trains, predicts or writes initial weights, and ends.
//!
//! A program that builds its own worker calls [`program()`] from its `main` (or [`run_with`] after a start of its own), or [`train::train`] with a listener of its own
//! ([`Reporter`]) and a world of one ([`enn_comm::Solo`]) when no launcher is wanted. One with a training loop of its own
//! takes its place among the other ranks from [`torchrun::join`] and makes its steps with [`steps::Steps`].
//!
//! **Invariant:** decisions come from reduced numbers (`decide`) and never from the clock, so that every rank takes the same
//! ones and a resumed run takes them again.

pub mod agree;
mod autobatch;
pub mod boot;
mod calibrate;
mod carried;
mod cause;
mod clock;
pub mod dataset;
pub mod decide;
pub mod engine;
mod error;
pub mod evaluate;
mod export;
mod guard;
mod handover;
mod heritage;
mod host_memory;
pub mod init;
pub mod kernels;
pub mod learner;
mod ledger;
mod life;
pub mod link;
pub mod measure;
mod memory;
mod mmap;
mod pace;
pub mod poisoned;
pub mod portion;
pub mod precision;
pub mod predict;
mod program;
pub mod progress;
pub mod refusal;
mod remains;
pub mod report;
mod room;
mod round;
pub mod saved;
mod saver;
pub mod serve;
pub mod step;
pub mod steps;
pub mod strategy;
pub mod torchrun;
pub mod train;
mod unix;

pub use error::SessionError;
pub use kernels::KernelTask;
pub use predict::{PredictTask, predict};
pub use program::{end, program};
pub use report::{Recorder, Reporter};
pub use train::{Ended, Outcome, RoundTask, TrainTask, Training, train};

use crate::probe::libtorch_version;
use enn_common::{
    config::RunConfig,
    kernels::Quarantined,
    panics,
    staged::StagedMeta,
    wire::{
        control::Phase,
        message::{Assignment, FromWorker, WorkerTask},
    },
};
use enn_core::kernel::Extra;
use enn_model::block::SubModels;
use life::Life;
use link::{Link, Order};
use serde::de::DeserializeOwned;
use std::{path::Path, time::Duration};
use tch::Device;

/// Longest wait for the other ranks to leave the process group.
const SHUTDOWN_WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a process group that is cut: the end of the process cuts what is left.
const ABORT_WAIT_MAX: Duration = Duration::from_millis(200);

/// Lives the life of a worker that the launcher started: from the environment to the last message.
///
/// # Errors
/// What ended it early. The launcher has been told, when there was a connection.
pub fn run(environment: &boot::Environment) -> Result<(), SessionError> {
    run_with(environment, &Own::default())
}

/// What a program of the user's adds to the worker.
#[derive(Debug, Clone, Default)]
pub struct Own {
    /// Kernels, tried before those of the table.
    pub kernels: Vec<Extra>,
    /// Modules that tasks of the model may ask for by name.
    pub models: SubModels,
}

/// The same for a program of the user's with kernels or models of its own.
///
/// # Errors
/// As [`run`].
pub fn run_with(environment: &boot::Environment, own: &Own) -> Result<(), SessionError> {
    let (link, first) = boot::meet(environment)?;
    tell_panics(&link);
    let order = environment.attention.iter().map(|order| ("attention".to_owned(), order.clone())).collect();
    let kernels = KernelTask { quarantined: Quarantined::default(), order, extras: own.kernels.clone() };
    let (done, group) = match first {
        Order::Work(seat) if !matches!(seat.task, WorkerTask::Train { .. } | WorkerTask::Save { .. }) => {
            (perform(&link, &seat, kernels, own), None)
        }
        first => {
            let mut life = Life::new(&link, kernels, own.models.clone());
            let done = life.live(first);
            (done, life.into_group())
        }
    };
    match done {
        Ok(stopped) => {
            link.phase(Phase::Done);
            link.send(FromWorker::Done { stopped })?;
            Ok(())
        }
        Err(error) => {
            // The launcher may be what failed; then the process ends all the same.
            if let SessionError::Damaged { path, file, .. } = &error {
                let _lost = link.send(FromWorker::CheckpointDamaged { path: path.clone(), file: file.clone() });
            }
            if error.is_lasting() {
                let _lost = link.send(FromWorker::Lasting);
            }
            let told = link.send(FromWorker::Failed { error: error.sentence() });
            if let Err(lost) = told {
                tracing::error!(%lost, "could not tell the launcher");
            }
            // Behind the word to the launcher, so that it blames this worker and not one that misses it in a collective.
            if let Some(Err(error)) = group.map(|group| group.abort(ABORT_WAIT_MAX)) {
                tracing::debug!(%error, "cutting the process group");
            }
            Err(error)
        }
    }
}

/// Does a task without other ranks; whether it was stopped on request.
fn perform(link: &Link, seat: &Assignment, mut kernels: KernelTask, own: &Own) -> Result<bool, SessionError> {
    link.send(FromWorker::Entered { round: seat.round })?;
    kernels.quarantined = seat.kernels.clone();
    tch::set_num_threads(seat.threads.max(1).cast_signed());
    let device = boot::device(seat)?;
    match &seat.task {
        WorkerTask::Train { .. } | WorkerTask::Save { .. } => unreachable!("training is a life of its own"),
        WorkerTask::Predict { staged, checkpoint, out, chunk_rows, done, precision } => {
            let task = PredictTask {
                staged: staged.clone(),
                checkpoint: checkpoint.clone(),
                out: out.clone(),
                chunk_rows: *chunk_rows,
                done: done.clone(),
                place: (seat.rank, seat.world_size),
                local: seat.local_world_size,
                device,
                precision: *precision,
                kernels,
                models: own.models.clone(),
            };
            predict(&task, link)
        }
        WorkerTask::Init { meta, attempt } => {
            let config: RunConfig = read_json(&seat.run_dir.join("run.json"))?;
            let meta: StagedMeta = read_json(meta)?;
            init::init(&config, (&meta, &own.models), (&seat.run_dir.join("checkpoints"), attempt), link)?;
            Ok(false)
        }
    }
}

/// Says that the first step can begin.
pub(crate) fn ready(reporter: &dyn Reporter, device: Device, backend: &str) -> Result<(), SessionError> {
    let device = match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        other => format!("{other:?}").to_lowercase(),
    };
    reporter.send(FromWorker::Ready { device, backend: backend.to_owned(), libtorch: libtorch_version() })?;
    Ok(())
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, SessionError> {
    let text = std::fs::read(path).map_err(|source| SessionError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| SessionError::Parse { path: path.to_owned(), source })
}

/// A panic is a fault of ours: the launcher hears of it too, with its place.
fn tell_panics(link: &Link) {
    let sender = link.sender();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panics::is_caught() {
            return before(panic);
        }
        let error = panics::sentence("enn-worker", panic);
        if let Err(lost) = sender.send(&FromWorker::Failed { error }) {
            tracing::error!(%lost, "could not tell the launcher");
        }
        before(panic);
    }));
}
