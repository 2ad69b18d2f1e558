//! How this rank's share of a checkpoint leaves it: copied into memory of the launcher's, which writes it while training goes on,
//! or, where there is no such memory, written here while training waits.

use crate::checkpoint::save::{self, ShardContent};
use crate::checkpoint::staging::Staging;
use crate::checkpoint::{CheckpointError, Named, Placed};
use crate::session::clock::{Alarm, Stopwatch};
use crate::session::{error::SessionError, report::Reporter};
use enn_common::{
    checkpoint::{
        ShardLayout, name,
        plan::Plan,
        prune,
        retain::{Candidate, Rule},
        write::How,
    },
    config::train::{Busy, TrainConfig},
    fs::space::is_full,
    wire::message::{FromWorker, StagedShard},
};
use enn_core::backend::copier::Copier;
use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};
use tch::Device;

/// A failed write of a share is tried again so often: where the disk is full and old checkpoints went, and where no later checkpoint can
/// make up for this one.
const ROOM_TRIES: usize = 3;
/// The worker waits so long before it tries again.
const ROOM_REST: Duration = Duration::from_millis(100);
/// While a snapshot is waited for, a sign of life is given this often.
const ALIVE_EVERY: Duration = Duration::from_millis(100);
/// Threads that copy, at most: more do not make memory faster.
const COPY_THREADS_MAX: usize = 4;

/// A checkpoint that is due: everything about it but the state itself.
#[derive(Debug)]
pub(crate) struct DueCheckpoint {
    pub(crate) step: u64,
    pub(crate) epoch: u64,
    pub(crate) metric: Option<f64>,
    pub(crate) dir: PathBuf,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    /// Whether it is waited for, however far behind the disk is.
    pub(crate) must: bool,
}

/// The way by which this rank's shares of checkpoints leave it.
#[derive(Debug)]
pub(crate) struct Saver {
    staging: Option<Staging>,
    /// A share that the device still copies to its snapshot; it is reported when it is there.
    coming: Option<Box<StagedShard>>,
    /// Steps hold for such a share before they change the state.
    holds: bool,
    plan: Plan,
    busy: Busy,
    blake3: bool,
    keep: Rule,
    pub(crate) alarm: Alarm,
}

enum SnapshotSlot {
    Free(usize),
    /// Why there is none.
    Never(&'static str),
}

impl Saver {
    pub(crate) fn new(train: &TrainConfig, reporter: &dyn Reporter, device: Device) -> Self {
        let memory = if train.checkpoint_async { reporter.staging() } else { None };
        Self {
            staging: memory.map(|memory| Staging::new(memory, device)),
            coming: None,
            holds: holds(train, device),
            plan: Plan::default(),
            busy: train.checkpoint_busy,
            blake3: train.checkpoint_blake3,
            keep: Rule {
                last: train.checkpoint_keep,
                epochs: train.checkpoint_keep_epochs,
                hours: train.checkpoint_keep_hours,
            },
            alarm: Alarm::new(train.checkpoint_every_s),
        }
    }

    /// Moves to another state of the same training.
    pub(crate) fn take(&mut self) -> Self {
        let staging = self.staging.take();
        let coming = self.coming.take();
        Self { staging, coming, plan: std::mem::take(&mut self.plan), ..*self }
    }

    /// Makes room for this rank's share of the items, beside the training.
    pub(crate) fn prepare(
        &mut self,
        items: (&[Named], &[Placed]),
        place: (u32, u32),
        reporter: &dyn Reporter,
    ) -> Result<(), SessionError> {
        // A share that cannot be saved is reported when it is due.
        let Ok(ShardContent { layout: ShardLayout { bytes, .. }, .. }) =
            ShardContent::planned(items.0, items.1, place.0, place.1, &mut self.plan)
        else {
            return Ok(());
        };
        let prepared = self.staging.as_mut().map_or(Ok(()), |staging| staging.prepare(bytes));
        prepared.or_else(|error| self.give_up(&error, reporter))
    }

    /// The copy that a step lets the device do before it changes the state.
    pub(crate) fn copying(&self) -> Option<Copier> {
        self.staging.as_ref().and_then(Staging::copying).cloned()
    }

    /// Tells of a share that the device has copied by now; if it `must`, as soon as it has. Before anything but a step that holds for it
    /// changes the state.
    pub(crate) fn settle(&mut self, must: bool, reporter: &dyn Reporter) -> Result<(), SessionError> {
        let Some(staging) = &mut self.staging else { return Ok(()) };
        if self.coming.is_none() || !(must || staging.is_filled()) {
            return Ok(());
        }
        let done = staging.finish();
        let Some(shard) = self.coming.take() else { return Ok(()) };
        let message = match done {
            Ok(()) => FromWorker::ShardStaged(shard),
            Err(error) => {
                staging.release(shard.ticket);
                FromWorker::ShardFailed { step: shard.step, error: SessionError::from(error).sentence() }
            }
        };
        Ok(reporter.send(message)?)
    }

    /// Saves this rank's share of the items that every rank has, and the boxes that only this one has; whether it is saved, or will be.
    /// It is reported in this call, or when the device has copied it ([`Saver::settle`]).
    pub(crate) fn save(
        &mut self,
        items: (&[Named], &[Placed]),
        due: DueCheckpoint,
        reporter: &dyn Reporter,
    ) -> Result<bool, SessionError> {
        self.settle(true, reporter)?;
        let Some(message) = self.share(items, due, reporter)? else { return Ok(true) };
        let saved = !matches!(message, FromWorker::ShardFailed { .. });
        reporter.send(message)?;
        Ok(saved)
    }

    /// Saves it, and returns the message that is due now.
    fn share(
        &mut self,
        items: (&[Named], &[Placed]),
        due: DueCheckpoint,
        reporter: &dyn Reporter,
    ) -> Result<Option<FromWorker>, SessionError> {
        let mut watch = Stopwatch::start();
        self.alarm.reset();
        let step = due.step;
        let share = match ShardContent::planned(items.0, items.1, due.rank, due.world, &mut self.plan) {
            Ok(share) => share,
            Err(error) => {
                return Ok(Some(FromWorker::ShardFailed { step, error: SessionError::from(error).sentence() }));
            }
        };
        let slot = self.staging.as_ref().map(|staging| self.await_snapshot(staging, due.must, reporter));
        if let Some(SnapshotSlot::Never(why)) = slot {
            return Ok(Some(FromWorker::ShardFailed { step, error: why.to_owned() }));
        }
        if let (Some(SnapshotSlot::Free(index)), Some(staging)) = (slot, &mut self.staging) {
            let threads = tch::get_num_threads().clamp(1, COPY_THREADS_MAX as i32) as usize;
            match staging.stage(index, &share, threads) {
                Ok(left) => {
                    if let Some(why) = staging.unlocked() {
                        let message = format!(
                            "checkpoints are copied into memory that is not page-locked, which takes longer: {why}"
                        );
                        reporter.send(FromWorker::Warned { message })?;
                    }
                    let DueCheckpoint { step, epoch, metric, dir, must, .. } = due;
                    let boxes = share.layout.boxes;
                    let ticket = left.ticket;
                    let at = left.at;
                    let blake3 = self.blake3;
                    let blocked = watch.lap_ms() / 1e3;
                    let shard = StagedShard { step, epoch, dir, metric, ticket, at, boxes, blake3, blocked, must };
                    let shard = Box::new(shard);
                    if left.pending {
                        self.coming = Some(shard);
                        if !self.holds {
                            self.settle(true, reporter)?;
                        }
                        return Ok(None);
                    }
                    return Ok(Some(FromWorker::ShardStaged(shard)));
                }
                Err(error @ (CheckpointError::Copy { .. } | CheckpointError::Device(_))) => {
                    return Ok(Some(FromWorker::ShardFailed { step, error: SessionError::from(error).sentence() }));
                }
                Err(error) => self.give_up(&error, reporter)?,
            }
        }
        let how = How { blake3: self.blake3, ..How::shared_by(due.world as usize) };
        let DueCheckpoint { step, epoch, metric, dir, rank, must, .. } = due;
        let old = dir.parent().map(name::list);
        let mut written = save::write(&dir, rank, &share, how);
        for _ in 0..ROOM_TRIES {
            let Err(error) = &written else { break };
            if is_full(error) {
                self.make_room(&dir, Candidate { step, epoch, time: wall_time(), metric }, reporter)?;
            }
            // All ranks share the disk: another one may be making room.
            let has_room = is_full(error) && dir.parent().map(name::list) != old;
            if !has_room && !must {
                break;
            }
            thread::park_timeout(ROOM_REST);
            written = save::write(&dir, rank, &share, how);
        }
        Ok(Some(match written {
            Ok(table) => FromWorker::ShardWritten { step, epoch, dir, metric, table, blocked: watch.lap_ms() / 1e3 },
            Err(error) => FromWorker::ShardFailed { step, error: SessionError::from(error).sentence() },
        }))
    }

    /// Lets old checkpoints go now that need not stay when this one is there.
    fn make_room(&self, dir: &Path, coming: Candidate, reporter: &dyn Reporter) -> Result<(), SessionError> {
        let step = coming.step;
        let Some(Ok(removed)) = dir.parent().map(|checkpoints| prune::make_room(checkpoints, self.keep, coming)) else {
            // Another rank may be at it.
            return Ok(());
        };
        if !removed.is_empty() {
            let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let names = removed.iter().map(name).collect::<Vec<_>>().join(" and ");
            let message = format!("the disk is full: {names} made room for the checkpoint of step {step}");
            reporter.send(FromWorker::Warned { message })?;
        }
        Ok(())
    }

    /// Waits for a snapshot, if that is what is to be done.
    fn await_snapshot(&self, staging: &Staging, must: bool, reporter: &dyn Reporter) -> SnapshotSlot {
        loop {
            if let Some(index) = staging.free() {
                return SnapshotSlot::Free(index);
            }
            if self.busy == Busy::Skip && !must {
                return SnapshotSlot::Never(
                    "it was left out because two before it are still being written (train.checkpoint_busy)",
                );
            }
            reporter.alive();
            if reporter.await_checkpoint(ALIVE_EVERY) {
                return SnapshotSlot::Never("the round was over before the disk had written the ones before");
            }
        }
    }

    /// From now on training waits for the disk.
    fn give_up(&mut self, error: &CheckpointError, reporter: &dyn Reporter) -> Result<(), SessionError> {
        self.staging = None;
        let message = format!("checkpoints are written while training waits: {error}");
        Ok(reporter.send(FromWorker::Warned { message })?)
    }
}

fn wall_time() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Whether a step pauses between what it computes and what it changes, so that a checkpoint may be copied meanwhile: not where all of it
/// is one graph.
pub(crate) fn holds(train: &TrainConfig, device: Device) -> bool {
    device.is_cuda() && train.checkpoint_async && !train.capture_collectives
}
