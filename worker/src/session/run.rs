//! A worker that the launcher started, from its first message to its last.

use super::boot::{self, read_json};
use super::link::{Link, Order};
use super::{
    KernelTask, Own, PredictTask, SessionError, inference::predict::predict, init, report::Reporter,
    worker_loop::WorkerLoop,
};
use crate::collective::ABORT_WAIT_MAX;
use enn_common::{
    checkpoint::name,
    config::RunConfig,
    kernels::Quarantined,
    panics,
    staged::StagedMeta,
    wire::{
        control::Phase,
        message::{Assignment, FromWorker, WorkerTask},
    },
};

/// Runs a worker that the launcher started, from the environment to the last message.
pub fn run(environment: &boot::Environment) -> Result<(), SessionError> {
    run_with(environment, &Own::default())
}

/// Runs a worker of a user's program with kernels or models of its own.
pub fn run_with(environment: &boot::Environment, own: &Own) -> Result<(), SessionError> {
    let (link, first) = boot::meet(environment)?;
    report_panics(&link);
    let order = environment.attention.iter().map(|order| ("attention".to_owned(), order.clone())).collect();
    let kernels = KernelTask { quarantined: Quarantined::default(), order, extras: own.kernels.clone() };
    let (done, group) = match first {
        Order::Work(seat) if !matches!(seat.task, WorkerTask::Train { .. } | WorkerTask::Save { .. }) => {
            (perform(&link, &seat, kernels, own), None)
        }
        first => {
            let mut worker_loop = WorkerLoop::new(&link, kernels, own.models.clone());
            let done = worker_loop.run(first);
            (done, worker_loop.group)
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
            let sent = link.send(FromWorker::Failed { error: error.sentence() });
            if let Err(lost) = sent {
                tracing::error!(%lost, "could not tell the launcher");
            }
            // After the message to the launcher, so that it blames this worker and not one that misses it in a collective.
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
        WorkerTask::Train { .. } | WorkerTask::Save { .. } => unreachable!("the worker loop trains"),
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
        WorkerTask::Script { .. } => {
            let found = "the seat of a script".to_owned();
            Err(SessionError::Unexpected { found, expected: "a task of enn-worker" })
        }
        WorkerTask::Init { meta, attempt } => {
            let config: RunConfig = read_json(&seat.run_dir.join("run.json"))?;
            let meta: StagedMeta = read_json(meta)?;
            let dir = seat.run_dir.join("checkpoints").join(name::temporary(0, attempt));
            init::init(&config, &meta, &own.models, &dir, link)?;
            Ok(false)
        }
    }
}

/// Reports panics to the launcher, with their place.
fn report_panics(link: &Link) {
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
