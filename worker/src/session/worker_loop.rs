//! The loop of a training worker: from order to order, from round to round, until training is over.
//!
//! ```text
//! Stand ─► prepare ─► Warm ─┐
//!                           ├─► Assign ─► Entered ─► meet ─► train ─┬─► finished
//! Assign ─► prepare ────────┘      ▲                                │
//!                                  └────────── Halted ◄─────────────┘ left, or broken when the launcher ended the round
//! ```
//! Workers of several nodes that were asked to stop end when their last checkpoint is committed: when the node that was to do it dies
//! first, they stand, and another one lets them save it again.
//!
//! **Invariant:** only the launcher ends a round. A collective's error is a fault of this worker unless the launcher says, within
//! [`WORD_WAIT_MAX`], that the round is over.

use super::boot::{self, read_json};
use super::link::{Link, Order};
use super::round::task::{Ended, RoundTask};
use super::train::{TrainTask, Training};
use super::{KernelTask, SessionError, report::Reporter};
use crate::collective::{ABORT_WAIT_MAX, COLLECTIVE_WAIT_MAX, SHUTDOWN_WAIT_MAX};
use enn_comm::{Forming, ProcessGroup, Store, StoreAddr};
use enn_common::{
    config::RunConfig,
    wire::{
        control::Phase,
        message::{Assignment, FromWorker, Standby, WorkerTask},
    },
};
use enn_model::block::SubModels;
use std::{path::Path, time::Duration};
use tch::Device;

/// Longest wait for the launcher's message that a round is over, after a collective failed: it notices a dead worker by itself.
const WORD_WAIT_MAX: Duration = Duration::from_secs(10);
/// Share of the time that a run has to stop in which a worker waits, at most, for its last checkpoint to be committed.
const COMMIT_GRACE: f64 = 0.5;

pub(super) struct WorkerLoop<'a> {
    link: &'a Link,
    kernels: KernelTask,
    models: SubModels,
    training: Option<Training<'a>>,
    /// One connection for all rounds: libtorch asks the name service at each.
    store: Option<Store>,
    /// The round's group, to be cut when the worker fails: left when `run` returned an error.
    pub(super) group: Option<Box<dyn ProcessGroup>>,
}

enum AfterRound {
    /// Training is over; whether it was stopped on request.
    Over(bool),
    Halted,
}

impl<'a> WorkerLoop<'a> {
    pub(super) fn new(link: &'a Link, kernels: KernelTask, models: SubModels) -> Self {
        Self { link, kernels, models, training: None, store: None, group: None }
    }

    /// Carries out orders from `first` to the end of training; whether it was stopped on request.
    pub(super) fn run(&mut self, first: Order) -> Result<bool, SessionError> {
        let mut order = first;
        loop {
            match order {
                Order::Stand(standby) => self.stand_by(&standby)?,
                Order::Work(seat) => {
                    if let AfterRound::Over(stopped) = self.run_round(&seat)? {
                        return Ok(stopped);
                    }
                }
            }
            order = self.link.order()?;
        }
    }

    /// Loads what can be loaded before there is a seat.
    fn stand_by(&mut self, standby: &Standby) -> Result<(), SessionError> {
        tch::set_num_threads(standby.threads.max(1).cast_signed());
        let device = boot::named_device(&standby.device, standby.local_rank)?;
        self.prepare(&standby.run_dir, &standby.staged, device, standby.local_rank)?;
        if let Some(training) = &mut self.training {
            training.rehearse(standby.world_size)?;
        }
        if standby.world_size > 1 {
            self.connect(&standby.store_host, standby.store_port)?;
        }
        Ok(self.link.send(FromWorker::Warm)?)
    }

    fn prepare(&mut self, run_dir: &Path, staged: &Path, device: Device, rank: u32) -> Result<(), SessionError> {
        if self.training.as_ref().is_some_and(|training| training.device() == device) {
            return Ok(());
        }
        let config: RunConfig = read_json(&run_dir.join("run.json"))?;
        let task = TrainTask {
            staged: staged.to_owned(),
            checkpoints: run_dir.join("checkpoints"),
            device,
            kernels: self.kernels.clone(),
            models: self.models.clone(),
            round: RoundTask::default(),
        };
        self.training = Some(Training::prepare(&config, &task, self.link, rank)?);
        Ok(())
    }

    fn connect(&mut self, host: &str, port: u16) -> Result<(), SessionError> {
        // It is another one when another node took over.
        if !self.store.as_ref().is_some_and(|store| store.is_at(host, port)) {
            let addr = StoreAddr { host: host.to_owned(), port, prefix: String::new() };
            self.store = Some(Store::connect(addr, COLLECTIVE_WAIT_MAX)?);
        }
        Ok(())
    }

    fn run_round(&mut self, seat: &Assignment) -> Result<AfterRound, SessionError> {
        let round = round_task(seat)?;
        self.link.send(FromWorker::Entered { round: seat.round })?;
        tch::set_num_threads(seat.threads.max(1).cast_signed());
        if let WorkerTask::Train { staged, .. } = &seat.task {
            self.prepare(&seat.run_dir, staged, boot::device(seat)?, seat.rank)?;
        }
        if seat.world_size > 1 {
            self.link.phase(Phase::Rendezvous);
            self.connect(&seat.store_host, seat.store_port)?;
        }
        let Some(training) = &mut self.training else {
            let found = "a seat to save a state that this worker does not have".to_owned();
            return Err(SessionError::Unexpected { found, expected: "a seat in a round of training" });
        };
        training.quarantine(&seat.kernels);
        let forming = Forming::within(COLLECTIVE_WAIT_MAX);
        self.link.watch(seat.round, forming.abort_handle());
        let wanted = training.collectives();
        let ended = match boot::group(self.store.as_ref(), seat, training.device(), wanted, &forming) {
            Ok(group) => training.round(self.group.insert(group).as_ref(), &round),
            Err(error) => Err(error),
        };
        // NCCL ends no communicator that a graph holds.
        training.forget_captured_sums();
        match ended {
            Ok(Ended::Finished(outcome)) => {
                self.link.phase(Phase::Done);
                self.leave();
                let alone = seat.local_world_size == seat.world_size;
                if !alone && outcome.stopped && self.is_unsaved(seat.round, outcome.step) {
                    return self.halt(seat.round);
                }
                Ok(AfterRound::Over(outcome.stopped))
            }
            Ok(Ended::Left) => {
                self.leave();
                self.halt(seat.round)
            }
            Err(error) => {
                let smaller = error.is_out_of_memory() && training.can_split(seat.world_size, seat.split);
                if smaller {
                    let step = training.step();
                    let error = error.sentence();
                    self.link.send(FromWorker::OutOfMemory { step, error })?;
                }
                let wait = if smaller || error.is_of_the_group() { WORD_WAIT_MAX } else { Duration::ZERO };
                let Some(reason) = self.link.over(seat.round, wait) else { return Err(error) };
                tracing::info!(%error, reason, round = seat.round, "left the round");
                if let Some(Err(error)) = self.group.take().map(|group| group.abort(ABORT_WAIT_MAX)) {
                    tracing::debug!(%error, "cutting the process group");
                }
                training.mend(true);
                self.halt(seat.round)
            }
        }
    }

    /// Waits until the last checkpoint is committed or not. If the agent that was to commit it is gone, the state is kept and saved again.
    fn is_unsaved(&mut self, round: u64, step: u64) -> bool {
        let Some(training) = &mut self.training else { return false };
        let left = self.link.over_unsettled(round, step, training.grace().mul_f64(COMMIT_GRACE));
        if left {
            training.mend(false);
        }
        left
    }

    /// Leaves a group in which nothing is in flight.
    fn leave(&mut self) {
        if let Some(Err(error)) = self.group.take().map(|group| group.shutdown(SHUTDOWN_WAIT_MAX)) {
            // All messages are sent: a peer that left without a message changes nothing.
            tracing::debug!(%error, "leaving the process group");
        }
    }

    fn halt(&self, round: u64) -> Result<AfterRound, SessionError> {
        self.link.phase(Phase::Rendezvous);
        let step = self.training.as_ref().map_or(0, Training::step);
        let kept = self.training.as_ref().is_some_and(Training::keeps_state);
        if let Some(share) = self.training.as_ref().and_then(Training::share) {
            self.link.send(FromWorker::ShareKept { round, share: share.rank, of: share.world })?;
        }
        self.link.send(FromWorker::Halted { round, step, kept })?;
        Ok(AfterRound::Halted)
    }
}

/// Returns what the seat asks of a round.
fn round_task(seat: &Assignment) -> Result<RoundTask, SessionError> {
    let (resume, attempt, saves_only) = match &seat.task {
        WorkerTask::Train { resume, attempt, .. } => (resume.clone(), attempt.clone(), false),
        WorkerTask::Save { attempt } => (None, attempt.clone(), true),
        WorkerTask::Predict { .. } | WorkerTask::Init { .. } | WorkerTask::Script { .. } => {
            let found = "another task than training".to_owned();
            return Err(SessionError::Unexpected { found, expected: "a seat in the next round of training" });
        }
    };
    Ok(RoundTask { round: seat.round, resume, attempt, split: seat.split, local: seat.local_world_size, saves_only })
}
