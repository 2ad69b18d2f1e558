//! Training: the loop that owns learner, progress and data, from the first step to the final metrics.

use super::{
    SessionError,
    clock::{Stopwatch, Throttle},
    dataset::Dataset,
    decide,
    evaluate::evaluate,
    kernels::{KernelTask, Kernels},
    learner::{Counts, Learner},
    memory,
    precision::{self, Demand, Precision},
    progress::{EpochSums, Progress},
    refusal::Refusals,
    report::Reporter,
    step::{self, Place, Stepped},
};
use crate::{
    checkpoint,
    comm::ProcessGroup,
    data::{
        Prefetch, Sampler,
        prefetch::{Arrays, Plan},
    },
    model::ModelSpec,
    profile::Profile,
};
use enn_common::{
    config::RunConfig,
    event::{EpochReport, StepTimes},
    metrics::Metrics,
    profile::FOLDER,
    staged::Split,
    wire::{control::Phase, message::FromWorker},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tch::Device;

/// At most ten step reports a second.
const STEP_REPORT_EVERY: Duration = Duration::from_millis(100);
/// On a device a stop wish is looked at every so many steps: looking waits for the device.
const DEVICE_STOP_EVERY: u64 = 8;

/// What to train, and where things are.
#[derive(Debug, Clone)]
pub struct TrainTask {
    /// Staged directory.
    pub staged: PathBuf,
    /// Committed checkpoint to go on from.
    pub resume: Option<PathBuf>,
    /// Folder of the run's checkpoints.
    pub checkpoints: PathBuf,
    /// Name of this start of the workers; part of the names of unfinished checkpoints.
    pub attempt: String,
    /// Device of this rank.
    pub device: Device,
    /// Kernels.
    pub kernels: KernelTask,
}

/// How training ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Whether it was stopped on request, with a checkpoint.
    pub stopped: bool,
    /// Epochs done.
    pub epoch: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Metrics of the best weights by split; empty when stopped.
    pub split: BTreeMap<String, Metrics>,
}

/// Trains to the end, or until the listener asks for a stop. Every rank calls it with the same configuration; the process
/// group may be [`crate::comm::Solo`].
///
/// Messages to `reporter`: `Ready`, `PrecisionChosen`, `ModelBuilt`, `Stepped`, `EpochEnded`, `ShardWritten` or `ShardFailed`, `Trained`.
///
/// # Errors
/// Those of data, model, libtorch, collectives and a resumed checkpoint that does not fit. A checkpoint that cannot be
/// written is reported and training goes on.
pub fn train(
    config: &RunConfig,
    task: &TrainTask,
    reporter: &dyn Reporter,
    group: &dyn ProcessGroup,
) -> Result<Outcome, SessionError> {
    reporter.mark(Phase::Load, 0);
    let data = Dataset::for_training(&task.staged)?;
    let folder = task.checkpoints.with_file_name(FOLDER);
    let profile = config.train.profile.then(|| Profile::new(folder, group.rank(), task.device));
    let mut trainer = Trainer::new(config, task, (reporter, profile.as_ref()), group, data)?;
    trainer.begin()?;
    let outcome = trainer.run();
    profile.iter().for_each(Profile::finish);
    outcome
}

struct Trainer<'a> {
    config: &'a RunConfig,
    task: &'a TrainTask,
    place: Place<'a>,
    data: Dataset,
    sampler: Sampler,
    learner: Learner,
    progress: Progress,
    sums: EpochSums,
    refusals: Refusals,
    saved_step: Option<u64>,
    pace: Pace,
}

/// Times since the epoch and the last report began; for people only.
struct Pace {
    watch: Stopwatch,
    throttle: Throttle,
    epoch: StepTimes,
    epoch_steps: u64,
    samples: u64,
    ms: f64,
    reported_samples: u64,
    reported_ms: f64,
}

impl<'a> Trainer<'a> {
    fn new(
        config: &'a RunConfig,
        task: &'a TrainTask,
        (reporter, profile): (&'a dyn Reporter, Option<&'a Profile>),
        group: &'a dyn ProcessGroup,
        data: Dataset,
    ) -> Result<Self, SessionError> {
        let rows = data.rows(Split::Train).len();
        let accumulation = config.train.accumulation.max(1) as u64;
        let sampler = Sampler {
            rows,
            batch: config.train.global_batch(rows as usize) as u64,
            seed: config.seed,
            rank: u64::from(group.rank()),
            world: u64::from(group.size()),
            accumulation,
        };
        let spec = ModelSpec::from_meta(data.staged.0.meta());
        let steps_total = config.train.epochs * sampler.steps_per_epoch();
        let mut learner = Learner::build(config, &spec, steps_total, task.device)?;
        let rows = sampler.batch.div_ceil(sampler.world).div_ceil(accumulation);
        let demand = Demand::of(&spec, rows);
        learner.take_precision(Precision::decide(config.train.precision, demand, task.device, group)?)?;
        let first_row = sampler.rank * sampler.batch.div_ceil(sampler.world);
        let kernels = Kernels::new(config, &task.kernels, reporter)?;
        let (device, seed) = (task.device, config.seed);
        let place = Place { group, reporter, kernels, device, seed, accumulation, first_row, profile };
        let sums = EpochSums::new(task.device)?;
        let progress = Progress::default();
        let pace = Pace::new();
        Ok(Self {
            config,
            task,
            place,
            data,
            sampler,
            learner,
            progress,
            sums,
            refusals: Refusals::default(),
            saved_step: None,
            pace,
        })
    }

    /// Initial or saved weights, equal on all ranks.
    fn begin(&mut self) -> Result<(), SessionError> {
        self.learner.share_gradients(self.place.group)?;
        if let Some(path) = &self.task.resume {
            self.resume(path)?;
        } else {
            if self.place.group.rank() == 0 {
                let rows = self.data.start_rows(self.task.device)?;
                let report = self.learner.start_from(&rows)?;
                tracing::info!(?report, "initial weights from data");
            }
            self.learner.share_weights(self.place.group, self.config.train.ema)?;
        }
        self.learner.prove_equal(self.place.group, self.task.device)?;
        super::ready(self.place.reporter, self.task.device, self.place.group.backend())?;
        let choice = self.learner.precision.choice();
        self.tell_from_first(FromWorker::PrecisionChosen {
            format: choice.format.name().to_owned(),
            reason: choice.reason.to_string(),
        })
    }

    fn resume(&mut self, path: &Path) -> Result<(), SessionError> {
        let mut wanted = self.learner.wanted();
        wanted.extend(Progress::wanted());
        let saved = checkpoint::load_with(path, &wanted, precision::STATE)?;
        self.progress = Progress::restore(&saved, &mut self.sums, &self.sampler, path)?;
        self.refusals = Refusals::after(self.progress.replays);
        // The progress counts completed epochs, the sums the one that is under way.
        let skipped = self.progress.skipped + self.sums.read()?.skipped as u64;
        let counts = Counts { steps: self.progress.step, skipped };
        self.learner.restore(&saved, counts)?;
        self.saved_step = Some(self.progress.step);
        Ok(())
    }

    fn run(&mut self) -> Result<Outcome, SessionError> {
        let epochs = self.config.train.epochs;
        if !self.progress.finished && self.progress.position.epoch < epochs {
            let plan = Plan {
                arrays: Arc::<super::dataset::Mapped>::clone(&self.data.staged) as Arc<dyn Arrays>,
                rows: Arc::clone(self.data.rows(Split::Train)),
                sampler: self.sampler,
                epochs,
                device: self.task.device,
            };
            let prefetch = Prefetch::start(plan, self.progress.position)?;
            let mut first = true;
            while !self.progress.finished {
                let stop = self.step(&prefetch, first)?;
                first = false;
                if self.progress.position.step == 0 {
                    self.end_epoch()?;
                }
                if stop && !self.progress.finished {
                    self.save()?;
                    return Ok(self.outcome(true, BTreeMap::new()));
                }
            }
        }
        self.end()
    }

    /// One optimizer step; whether a stop is wished.
    fn step(&mut self, prefetch: &Prefetch, first: bool) -> Result<bool, SessionError> {
        let _ = self.pace.watch.lap_ms();
        let batch = prefetch.next(self.progress.position)?.to_device(self.task.device)?;
        let waited = self.pace.watch.lap_ms();
        if first {
            let (_, parts) = self.learner.split();
            self.learner.recompute = memory::recompute(self.config.train.recompute, &parts, &self.place, &batch)?;
        }
        let mut done = step::step(&mut self.learner, &self.place, &batch, self.progress.step, first)?;
        self.sums.add(&done.control, &done.grad_norm, &done.taken)?;
        self.progress.step += 1;
        self.progress.position = self.sampler.after(self.progress.position);
        self.place.reporter.mark(Phase::Compute, self.progress.step);
        let sound = self.learner.precision.sound(&done.taken, &done.control.f_get(0)?)?;
        self.refusals.note(self.progress.step - 1, &batch, &sound);
        let look = self.task.device == Device::Cpu || self.progress.step.is_multiple_of(DEVICE_STOP_EVERY);
        let stop = look && self.look(&done)?;
        done.times.data = waited;
        let total = waited + self.pace.watch.lap_ms();
        self.pace.note(&done.times, total, self.batch_samples());
        if let Some(hash) = &done.program {
            self.tell_model(hash)?;
        }
        if self.place.group.rank() == 0 && self.pace.throttle.due() {
            self.tell_step(&done)?;
        }
        Ok(stop)
    }

    /// Reads what the device is waited for: whether a stop is wished, kernels all ranks have heard of, refused steps.
    fn look(&mut self, done: &Stepped) -> Result<bool, SessionError> {
        let control = Vec::<f64>::try_from(done.control.f_to_device(Device::Cpu)?)?;
        self.place.kernels.agree(control[3], self.place.group.size());
        self.explain()?;
        Ok(control[2] > 0.0)
    }

    /// Explains refused steps at which nobody has looked yet. Waits for the device.
    fn explain(&mut self) -> Result<(), SessionError> {
        let explained = self.refusals.explain(&mut self.learner, &self.place)?;
        self.place.kernels.tell_news()?;
        match explained {
            Some(message) => self.tell(FromWorker::Warned { message }),
            None => Ok(()),
        }
    }

    /// Samples of the global batch just done.
    fn batch_samples(&self) -> u64 {
        match self.progress.position.step {
            0 => self.sampler.rows - (self.sampler.steps_per_epoch() - 1) * self.sampler.batch,
            _ => self.sampler.batch,
        }
    }

    /// Validation, judgement, report and, when due, a checkpoint.
    fn end_epoch(&mut self) -> Result<(), SessionError> {
        let epoch = self.progress.position.epoch;
        let sums = self.sums.read()?;
        if sums.landed == 0.0 {
            return Err(SessionError::Diverged { epoch, steps: sums.skipped as u64 });
        }
        self.place.reporter.mark(Phase::Validate, self.progress.step);
        self.learner.swap_average()?;
        let measured = self.measure(Split::Val)?;
        let error = (measured.metrics.n > 0).then_some(measured.metrics.mae);
        let (standing, verdict) = decide::judge(self.progress.standing, error, self.config.train.patience);
        if verdict.best {
            self.learner.keep_as_best()?;
            self.progress.best_epoch = epoch;
        }
        self.learner.swap_average()?;
        self.progress.standing = standing;
        self.progress.stopped_early = verdict.stop;
        self.progress.finished = verdict.stop || epoch >= self.config.train.epochs;
        self.progress.skipped += sums.skipped as u64;
        let report = EpochReport {
            epoch,
            step: self.progress.step,
            train_loss: sums.loss / sums.cells,
            val: measured.metrics,
            best: verdict.best,
            lr: self.learner.schedule.rate(self.progress.step.saturating_sub(1)),
            grad_norm: sums.grad_norm / sums.landed,
            gate_mean: measured.gate_mean,
            reactivity: measured.reactivity,
            step_ms: self.pace.epoch_mean(),
            samples_per_s: self.pace.rate(),
            skipped: sums.skipped as u64,
        };
        self.sums.clear()?;
        self.pace.begin_epoch();
        self.tell_from_first(FromWorker::EpochEnded(Box::new(report)))?;
        if self.place.group.rank() == 0 {
            let plan = self.learner.executor.plan().map(|plan| plan.program());
            self.place.kernels.tell_calls(plan)?;
        }
        if decide::save_due(epoch, self.config.train.checkpoint_every, self.progress.finished) {
            self.save()?;
        }
        Ok(())
    }

    fn measure(&self, split: Split) -> Result<super::measure::Measured, SessionError> {
        let model = (&self.learner.model, &self.learner.params, &self.place.kernels.manager);
        evaluate(model, &self.data, split, self.place.group, self.task.device)
    }

    /// Writes this rank's share of the state. A failure is told, not fatal.
    fn save(&mut self) -> Result<(), SessionError> {
        let step = self.progress.step;
        if self.saved_step == Some(step) {
            return Ok(());
        }
        self.place.reporter.mark(Phase::Save, step);
        // What follows from them belongs to the state, and weights that are lost must not be saved.
        self.explain()?;
        self.progress.replays = self.refusals.replays();
        if self.progress.best_epoch == 0 {
            // Nothing validated yet: the average of now is the best guess for whoever predicts with this checkpoint.
            self.learner.swap_average()?;
            self.learner.keep_as_best()?;
            self.learner.swap_average()?;
        }
        let mut items = self.learner.state();
        items.extend(self.progress.named(&self.sums, &self.sampler));
        let dir = self.task.checkpoints.join(enn_common::checkpoint::name::temporary(step, &self.task.attempt));
        let message = match checkpoint::write_share(&dir, self.place.group.rank(), self.place.group.size(), &items) {
            Ok(table) => {
                self.saved_step = Some(step);
                let best = self.progress.standing.best;
                let metric = best.is_finite().then_some(best);
                FromWorker::ShardWritten { step, epoch: self.progress.position.epoch, dir, metric, table }
            }
            Err(error) => FromWorker::ShardFailed { step, error: SessionError::from(error).sentence() },
        };
        self.tell(message)
    }

    /// Final metrics of the best weights.
    fn end(&mut self) -> Result<Outcome, SessionError> {
        self.place.reporter.mark(Phase::Validate, self.progress.step);
        self.learner.take_best()?;
        let mut split = BTreeMap::new();
        for which in Split::ALL {
            let metrics = self.measure(which)?.metrics;
            if metrics.n > 0 {
                split.insert(which.name().to_owned(), metrics);
            }
        }
        self.tell_from_first(FromWorker::Trained {
            epoch: self.progress.position.epoch,
            step: self.progress.step,
            stopped_early: self.progress.stopped_early,
            split: split.clone(),
            samples_per_s: self.pace.rate(),
        })?;
        Ok(self.outcome(false, split))
    }

    fn outcome(&self, stopped: bool, split: BTreeMap<String, Metrics>) -> Outcome {
        Outcome { stopped, epoch: self.progress.position.epoch, step: self.progress.step, split }
    }

    fn tell(&self, message: FromWorker) -> Result<(), SessionError> {
        Ok(self.place.reporter.send(message)?)
    }

    fn tell_from_first(&self, message: FromWorker) -> Result<(), SessionError> {
        if self.place.group.rank() == 0 { self.tell(message) } else { Ok(()) }
    }

    fn tell_model(&self, hash: &str) -> Result<(), SessionError> {
        let steps_per_epoch = self.sampler.steps_per_epoch();
        self.tell_from_first(FromWorker::ModelBuilt {
            parameters: self.learner.params.numel() as u64,
            program_hash: hash.to_owned(),
            batch: self.sampler.batch,
            steps_per_epoch,
            steps_total: self.config.train.epochs * steps_per_epoch,
        })
    }

    fn tell_step(&mut self, done: &Stepped) -> Result<(), SessionError> {
        let control = Vec::<f64>::try_from(done.control.f_to_device(Device::Cpu)?)?;
        let message = FromWorker::Stepped {
            epoch: self.progress.position.epoch + u64::from(self.progress.position.step > 0),
            step: self.progress.step,
            loss: control[0] / control[1],
            lr: done.lr,
            grad_norm: done.grad_norm.f_double_value(&[])?,
            samples_per_s: self.pace.rate_since_report(),
        };
        self.tell(message)
    }
}

impl Pace {
    fn new() -> Self {
        Self {
            watch: Stopwatch::start(),
            throttle: Throttle::new(STEP_REPORT_EVERY),
            epoch: StepTimes::default(),
            epoch_steps: 0,
            samples: 0,
            ms: 0.0,
            reported_samples: 0,
            reported_ms: 0.0,
        }
    }

    fn begin_epoch(&mut self) {
        self.epoch = StepTimes::default();
        self.epoch_steps = 0;
    }

    fn note(&mut self, step: &StepTimes, total_ms: f64, samples: u64) {
        self.epoch.total += total_ms;
        self.epoch.data += step.data;
        self.epoch.forward += step.forward;
        self.epoch.backward += step.backward;
        self.epoch.comm += step.comm;
        self.epoch.optimizer += step.optimizer;
        self.epoch_steps += 1;
        self.samples += samples;
        self.ms += total_ms;
    }

    fn epoch_mean(&self) -> StepTimes {
        let n = self.epoch_steps.max(1) as f64;
        StepTimes {
            total: self.epoch.total / n,
            data: self.epoch.data / n,
            forward: self.epoch.forward / n,
            backward: self.epoch.backward / n,
            comm: self.epoch.comm / n,
            optimizer: self.epoch.optimizer / n,
        }
    }

    /// Samples per second of training time; NaN before the first step.
    fn rate(&self) -> f64 {
        self.samples as f64 / self.ms * 1e3
    }

    fn rate_since_report(&mut self) -> f64 {
        let rate = (self.samples - self.reported_samples) as f64 / (self.ms - self.reported_ms) * 1e3;
        self.reported_samples = self.samples;
        self.reported_ms = self.ms;
        rate
    }
}
