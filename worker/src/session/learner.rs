//! What learns: model, weights, gradients, optimizer, average and best weights; and their names in a checkpoint.

use super::{
    SessionError,
    agree::agree,
    boot::COLLECTIVE_WAIT_MAX,
    precision::{self, Precision},
};
use crate::{
    autograd::{Executor, Mode},
    block::SubModels,
    checkpoint::{Named, Placed, Wanted},
    comm::{ProcessGroup, sharing},
    loss::Objective,
    model::{Calibration, Heritage, Inherited, Model, ModelSpec, StartReport},
    optim::{AdamW, AdamWSettings, Ema, FlatParams, Schedule, Shard, Tail, tail},
    params::{GradBuckets, ParamBuilder, Params, Share},
};
use enn_common::{
    config::{
        RunConfig,
        parent::ScalerChoice,
        train::{Averaging, Execution, Strategy},
    },
    staged::meta::FeatureMeta,
};
use std::collections::BTreeMap;
use tch::{Device, Tensor};

/// Names, by their beginning, of what a state has only sometimes: it depends on the precision, or comes towards the end.
pub const OPTIONAL: [&str; 4] = [precision::STATE, tail::PREFIX, CALIBRATION, REBASE];
/// Those of them that predictions need.
pub const OPTIONAL_OF_MODEL: [&str; 2] = [CALIBRATION, REBASE];
/// Beginning of the names of what a model has that began as another one's with a scaler of its own.
const REBASE: &str = "model.scaler.z_";
/// Beginning of the names of a calibration in a checkpoint.
const CALIBRATION: &str = "model.calibration.";

/// Model and optimizer of one training.
pub struct Learner {
    /// Structure and buffers.
    pub model: Model,
    /// Weights by name; their storage is `weights`.
    pub params: Params,
    /// Gradients.
    pub grads: GradBuckets,
    /// Weights as flat arrays.
    pub weights: FlatParams,
    /// Moments.
    pub optimizer: AdamW,
    /// Moving average of the weights, where one is wanted.
    pub ema: Option<Ema>,
    /// Mean of the weights over the last steps, where it is wanted.
    pub tail: Option<Tail>,
    /// Best weights so far in the layout of `weights`; the average of the start before the first validation.
    pub best: Vec<Tensor>,
    /// How the best weights answer; the model itself answers so only where they are measured for the last time.
    pub calibration: Calibration,
    /// What is minimised.
    pub objective: Objective,
    /// Learning rate.
    pub schedule: Schedule,
    /// How steps are executed.
    pub executor: Executor,
    /// What is computed with.
    pub precision: Precision,
    /// Whether blocks compute their activations again in the backward pass.
    pub recompute: bool,
    /// What this rank keeps of all arrays is one share of one state.
    dealt: bool,
}

/// What the code of a step reads; the rest of a [`Learner`] is the executor's.
pub struct Parts<'a> {
    /// Structure and buffers.
    pub model: &'a Model,
    /// Weights by name.
    pub params: &'a Params,
    /// Gradients.
    pub grads: &'a GradBuckets,
    /// Weights as flat arrays.
    pub weights: &'a FlatParams,
    /// Moments.
    pub optimizer: &'a AdamW,
    /// Averages of the weights, those that have begun.
    pub averages: [Option<&'a Ema>; 2],
    /// What is minimised.
    pub objective: &'a Objective,
    /// What is computed with.
    pub precision: &'a Precision,
    /// Whether blocks compute their activations again.
    pub recompute: bool,
}

impl Learner {
    /// Builds everything with seeded weights: the same on every rank and device.
    ///
    /// # Errors
    /// When the configuration does not fit the data or memory is exhausted.
    pub fn build(
        config: &RunConfig,
        (spec, models): (&ModelSpec, &SubModels),
        steps_total: u64,
        device: Device,
    ) -> Result<Self, SessionError> {
        let mut builder = ParamBuilder::new();
        builder.limit_buckets(config.train.bucket_mib);
        let mut model = Model::build_with(&config.model, spec, models, &mut builder)?;
        model.to_device(device);
        let params = builder.build(config.seed, device)?;
        let grads = GradBuckets::new(&params)?;
        let weights = FlatParams::of(&params);
        let train = &config.train;
        let settings = AdamWSettings { betas: train.betas, weight_decay: train.weight_decay, clip: train.clip };
        let optimizer = AdamW::new(&weights, settings)?;
        let ema = train.ema_decay().map(|decay| Ema::new(&weights, decay)).transpose()?;
        let averages_tail = train.averaging == Averaging::SwaTail;
        let tail = averages_tail.then(|| Tail::new(&weights, steps_total)).transpose()?;
        let best = weights.cut(weights.slabs())?;
        let weights_of_cells = train.cell_weights.of_grid(&spec.out_shape)?;
        let objective = Objective::new(train).weighted(weights_of_cells.as_deref(), device)?;
        let schedule = Schedule::new(train, steps_total);
        let mut executor = Executor::new(match train.execution {
            Execution::Auto => Mode::Graph,
            Execution::Plan => Mode::Plan,
            Execution::Tape => Mode::Tape,
        });
        executor.capture_collectives(train.capture_collectives);
        Ok(Self {
            model,
            params,
            grads,
            weights,
            optimizer,
            ema,
            tail,
            best,
            calibration: Calibration::default(),
            objective,
            schedule,
            executor,
            precision: Precision::full(),
            recompute: false,
            dealt: false,
        })
    }

    /// Computes in `precision` from now on.
    ///
    /// # Errors
    /// When there is no memory for the weights' low-precision copies.
    pub fn take_precision(&mut self, precision: Precision) -> Result<(), SessionError> {
        if let Some(kind) = precision.copies() {
            self.params.keep_shadows(kind)?;
        }
        self.precision = precision;
        self.executor.reset();
        Ok(())
    }

    /// The executor, and what it executes.
    pub fn split(&mut self) -> (&mut Executor, Parts<'_>) {
        let parts = Parts {
            model: &self.model,
            params: &self.params,
            grads: &self.grads,
            weights: &self.weights,
            optimizer: &self.optimizer,
            averages: [self.ema.as_ref(), self.tail.as_ref().and_then(Tail::begun)],
            objective: &self.objective,
            precision: &self.precision,
            recompute: self.recompute,
        };
        (&mut self.executor, parts)
    }

    /// Sets the base head from training rows (x, x mask, y, y mask) in the user's units; see `Model::initialise_from_data`.
    ///
    /// # Errors
    /// When libtorch's eigensolver fails.
    pub fn start_from(&mut self, rows: &crate::data::Batch) -> Result<StartReport, SessionError> {
        let report =
            self.model.initialise_from_data(&mut self.params, [&rows.x, &rows.x_mask], [&rows.y, &rows.y_mask])?;
        self.params.refresh_shadows()?;
        Ok(report)
    }

    /// Begins as another model, as far as it fits; see [`Model::inherit`].
    ///
    /// # Errors
    /// What libtorch says.
    pub fn inherit(
        &mut self,
        inputs: &[FeatureMeta],
        heritage: &Heritage<'_>,
        choice: ScalerChoice,
    ) -> Result<Inherited, SessionError> {
        Ok(self.model.inherit(&mut self.params, inputs, heritage, choice)?)
    }

    /// Lets gradients lie where the group adds them up fastest. Before the first step.
    ///
    /// # Errors
    /// The collective's.
    pub fn share_gradients(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        self.grads.move_to(&self.params, |flat| Ok::<_, SessionError>(group.shared_like(flat)?))
    }

    /// Gives every rank rank 0's weights and lets average and best begin there.
    ///
    /// # Errors
    /// The collective's.
    pub fn share_weights(&mut self, group: &dyn ProcessGroup, ema: Option<f64>) -> Result<(), SessionError> {
        for slab in self.weights.slabs() {
            group.broadcast(slab, 0)?.wait(COLLECTIVE_WAIT_MAX)?;
        }
        self.ema = ema.map(|decay| Ema::new(&self.weights, decay)).transpose()?;
        self.best = self.weights.cut(self.weights.slabs())?;
        Ok(self.params.refresh_shadows()?)
    }

    /// Keeps this rank's share only, as `strategy` says; until [`Learner::join`].
    ///
    /// # Errors
    /// When there is no memory for the share.
    pub fn divide(&mut self, group: &dyn ProcessGroup, strategy: Strategy) -> Result<(), SessionError> {
        let shared = sharing(group);
        if matches!(strategy, Strategy::Auto | Strategy::Ddp) || shared.size() == 1 {
            return Ok(());
        }
        let share = Share { rank: shared.rank(), world: shared.size() };
        self.weights.hold(share);
        let [exp_avg, exp_avg_sq] = self.optimizer.kept().map(|whole| self.weights.cut(whole));
        if let Some(ema) = &mut self.ema {
            ema.keep(self.weights.cut(ema.kept())?);
        }
        if let Some(tail) = &mut self.tail {
            tail.keep(self.weights.cut(tail.kept())?);
        }
        self.best = self.weights.cut(&self.best)?;
        if matches!(strategy, Strategy::Fsdp | Strategy::Hsdp) {
            // Where they lie now, all ranks may write.
            self.grads = GradBuckets::new(&self.params)?;
            self.params.lend(share)?;
            self.grads.lend(share)?;
            self.weights.keep_masters(self.params.kept(false).into_iter().map(Tensor::shallow_clone).collect());
        }
        if let Some(mesh) = group.mesh() {
            self.weights.answer_for(mesh.across.rank(), mesh.across.size());
        }
        self.optimizer.keep(&self.weights, [exp_avg?, exp_avg_sq?])?;
        self.executor.reset();
        self.dealt = true;
        Ok(())
    }

    /// Keeps everything again, from all ranks' shares.
    ///
    /// # Errors
    /// The collective's, and when there is no memory. The state is of no use then.
    pub fn join(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        if !self.is_divided() {
            return Ok(());
        }
        let shared = sharing(group);
        let mut gather = |whole: &Tensor| Ok::<_, SessionError>(shared.all_gather(whole)?.wait(COLLECTIVE_WAIT_MAX)?);
        let mut join = |kept: &[Tensor]| self.weights.join(kept, &mut gather);
        let [exp_avg, exp_avg_sq] = self.optimizer.kept().map(&mut join);
        let average = self.ema.as_ref().map(|ema| join(ema.kept())).transpose()?;
        let mean = self.tail.as_ref().map(|tail| join(tail.kept())).transpose()?;
        let best = join(&self.best)?;
        if self.params.is_lent() {
            self.unpack(group)?;
            self.dealt = false;
            self.params.take_back();
            self.grads.take_back();
        }
        self.weights.hold(Share::WHOLE);
        self.optimizer.keep(&self.weights, [exp_avg?, exp_avg_sq?])?;
        if let (Some(ema), Some(average)) = (&mut self.ema, average) {
            ema.keep(average);
        }
        if let (Some(tail), Some(mean)) = (&mut self.tail, mean) {
            tail.keep(mean);
        }
        self.best = best;
        self.executor.reset();
        Ok(())
    }

    /// Whether this rank keeps no more than its share of the state.
    pub fn is_divided(&self) -> bool {
        self.weights.share() != Share::WHOLE
    }

    /// After a round that broke: lets this rank answer for all of its share, as if nobody had the same. False where a step may have
    /// changed some of it and not the rest, as where weights are there on every rank but written by one.
    pub fn claim_share(&mut self) -> bool {
        let sound = self.dealt && self.params.is_lent();
        if sound {
            self.weights.answer_for(0, 1);
        }
        sound
    }

    /// Gives every rank the weights that each wrote in its share.
    fn gather_weights(&self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        for whole in self.weights.divided(self.weights.slabs())? {
            sharing(group).all_gather(&whole)?.wait(COLLECTIVE_WAIT_MAX)?;
        }
        Ok(())
    }

    /// Weights and gradients get their memory, and every rank all weights, where that is there only while a step uses it: for what
    /// ranks do each for themselves. Every rank calls it; [`Learner::pack`] takes it back.
    ///
    /// # Errors
    /// The collective's, and when there is no memory.
    pub fn unpack(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        if self.params.is_lent() {
            self.params.fill()?;
            self.grads.fill()?;
            self.gather_weights(group)?;
            self.params.refresh_shadows()?;
        }
        Ok(())
    }

    /// Takes back what [`Learner::unpack`] gave.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn pack(&mut self) -> Result<(), SessionError> {
        if self.params.is_lent() {
            self.params.empty()?;
            self.grads.empty()?;
        }
        Ok(())
    }

    /// Proves that all ranks have the same parameters: names, shapes and values.
    ///
    /// # Errors
    /// [`SessionError::Disagree`] with both sides.
    pub fn prove_equal(&self, group: &dyn ProcessGroup, device: Device) -> Result<(), SessionError> {
        if group.size() == 1 {
            return Ok(());
        }
        let mut hasher = blake3::Hasher::new();
        for (name, view) in self.weights.views(self.weights.slabs()) {
            hasher.update(format!("{name}{:?}", view.size()).as_bytes());
        }
        agree(group, device, "parameters' names and shapes", hasher.finalize().as_bytes())?;
        for slab in self.weights.slabs() {
            let host = slab.f_detach()?.f_to_device(Device::Cpu)?;
            let mut bytes = vec![0; host.numel() * host.kind().elt_size_in_bytes()];
            host.f_copy_data_u8(&mut bytes, host.numel())?;
            hasher.update(&bytes);
        }
        agree(group, device, "initial weights", hasher.finalize().as_bytes())
    }

    /// Keeps the average of now as the best weights; the weights themselves where there is no average.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn keep_average_as_best(&mut self) -> Result<(), SessionError> {
        let weights = self.weights.own()?;
        copy_into(&mut self.best, self.ema.as_ref().map_or(&weights[..], Ema::kept))
    }

    /// Keeps the mean over the last steps as the best weights, once there is one.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn keep_tail_as_best(&mut self) -> Result<(), SessionError> {
        let mean = self.tail.as_ref().and_then(Tail::begun);
        mean.map_or(Ok(()), |mean| copy_into(&mut self.best, mean.kept()))
    }

    /// Exchanges weights and average, when there is one. Twice changes nothing.
    ///
    /// # Errors
    /// What libtorch says, and the collective's where the average is shared.
    pub fn swap_average(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        let Some(ema) = &mut self.ema else { return Ok(()) };
        ema.swap(&self.weights)?;
        self.show(group)
    }

    /// Before step number `step` (from 0): whether another code computes it than the one before.
    pub fn advance(&mut self, step: u64) -> bool {
        let cast = self.precision.advance(step);
        self.tail.as_mut().is_some_and(|tail| tail.advance(step)) || cast
    }

    /// Whether the mean over the last steps has begun.
    pub fn has_tail(&self) -> bool {
        self.tail.as_ref().and_then(Tail::begun).is_some()
    }

    /// Exchanges the weights and their mean over the last steps, once there is one. Twice changes nothing.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn swap_tail(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        let Some(tail) = &mut self.tail else { return Ok(()) };
        tail.swap(&self.weights)?;
        self.show(group)
    }

    /// Exchanges the weights and the best ones. Twice changes nothing.
    ///
    /// # Errors
    /// What libtorch says, and the collective's where the best weights are shared.
    pub fn swap_best(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        self.weights.exchange(&mut self.best)?;
        self.show(group)
    }

    /// Every rank gets what the others made of their weights, unless those are gathered when they are read.
    fn show(&self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        if self.params.is_lent() { Ok(()) } else { self.gather_weights(group) }
    }

    /// The state by name, as views: nothing is copied. What every rank has, and of what is shared between them the boxes that
    /// this rank answers for.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn shares(&self) -> Result<(Vec<Named>, Vec<Placed>), SessionError> {
        if !self.is_divided() {
            return Ok((self.state(), Vec::new()));
        }
        let (mut shards, counts) = self.optimizer.shards(&self.weights);
        let mut common = prefixed("model", self.model.buffers());
        common.extend(prefixed("model", self.calibration.named()));
        if self.weights.is_resident() {
            common.extend(prefixed("model", self.weights.views(self.weights.slabs())));
        } else {
            shards.extend(named("model", self.weights.shards(&self.weights.own()?)));
        }
        common.extend(counts.into_iter().map(|(fqn, tensor)| Named { fqn, tensor }));
        common.extend(self.precision.named());
        shards.extend(self.ema.iter().flat_map(|ema| named("ema", ema.shards(&self.weights))));
        if let Some(tail) = &self.tail {
            shards.extend(named("tail", tail.shards(&self.weights)));
            common.extend(tail.count().into_iter().map(|(fqn, tensor)| Named { fqn, tensor }));
        }
        shards.extend(named("best", self.weights.shards(&self.best)));
        let placed = |Shard { name, global, offsets, tensor }| Placed { fqn: name, global, offsets, tensor };
        Ok((common, shards.into_iter().map(placed).collect()))
    }

    /// Exchanges the model's calibration and that of the best weights.
    pub fn swap_calibration(&mut self) {
        self.calibration = self.model.calibrate(std::mem::take(&mut self.calibration));
    }

    /// The whole state by name, as views: nothing is copied. Before [`Learner::divide`] and after [`Learner::join`].
    pub fn state(&self) -> Vec<Named> {
        let mut all = model_state(&self.model, &self.weights);
        all.extend(prefixed("model", self.calibration.named()));
        if let Some(ema) = &self.ema {
            all.extend(ema.named(&self.weights).into_iter().map(|(fqn, tensor)| Named { fqn, tensor }));
        }
        let tail = self.tail.iter().flat_map(|tail| tail.named(&self.weights));
        all.extend(tail.map(|(fqn, tensor)| Named { fqn, tensor }));
        all.extend(prefixed("best", self.weights.views(&self.best)));
        all.extend(self.optimizer.named(&self.weights).into_iter().map(|(fqn, tensor)| Named { fqn, tensor }));
        all.extend(self.precision.named());
        all
    }

    /// What `state` gives, without the values and without what may be missing ([`OPTIONAL`]).
    pub fn wanted(&self) -> Vec<Wanted> {
        let sometimes = |fqn: &str| OPTIONAL.iter().any(|prefix| fqn.starts_with(prefix));
        let always = self.state().into_iter().filter(|n| !sometimes(&n.fqn));
        always.map(|n| (n.fqn, n.tensor.size(), n.tensor.kind())).collect()
    }

    /// Puts a saved state in place. `steps` optimizer steps were done, `skipped` of them refused. Before the first step only the
    /// weights are taken: the scaler stays that of the data, moments stay zero.
    ///
    /// # Errors
    /// When an entry is missing or has another shape.
    pub fn restore(&mut self, saved: &BTreeMap<String, Tensor>, counts: Counts) -> Result<(), SessionError> {
        for (name, view) in self.weights.views(self.weights.slabs()) {
            copy(&view, saved.get(&format!("model.{name}")))?;
        }
        self.params.refresh_shadows()?;
        for (name, view) in self.weights.views(&self.best) {
            copy(&view, saved.get(&format!("best.{name}")))?;
        }
        let taken = counts.steps.saturating_sub(counts.skipped);
        if let Some(ema) = &mut self.ema {
            ema.restore(&self.weights, saved, taken)?;
        }
        if counts.steps == 0 {
            // Initial weights made without data: the scaler stays that of the data.
            return Ok(());
        }
        if let Some(tail) = &mut self.tail {
            tail.restore(&self.weights, saved)?;
        }
        restore_buffers(&mut self.model, saved)?;
        self.calibration = saved_calibration(&self.model, saved)?;
        self.calibration.to_device(self.weights.slabs().first().map_or(Device::Cpu, Tensor::device));
        self.precision.restore(saved)?;
        self.optimizer.restore(&self.weights, saved, taken, counts.skipped)?;
        Ok(())
    }
}

/// Optimizer steps of a saved state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Steps done, refused ones included.
    pub steps: u64,
    /// Steps refused because a gradient was not finite.
    pub skipped: u64,
}

/// Weights and buffers under `model.`.
fn model_state(model: &Model, weights: &FlatParams) -> Vec<Named> {
    let mut all = prefixed("model", weights.views(weights.slabs()));
    all.extend(prefixed("model", model.buffers()));
    all
}

/// Copies `model.<buffer>` of a checkpoint into the model.
///
/// # Errors
/// When a buffer has another shape.
pub fn restore_buffers(model: &mut Model, saved: &BTreeMap<String, Tensor>) -> Result<(), SessionError> {
    let sometimes = saved.keys().filter(|name| name.starts_with(REBASE)).filter_map(|name| name.strip_prefix("model."));
    let names: Vec<String> = model.buffers().into_iter().map(|(name, _)| name).collect();
    for name in names.into_iter().chain(sometimes.map(str::to_owned)) {
        if let Some(value) = saved.get(&format!("model.{name}")) {
            model.load_buffer(&name, value)?;
        }
    }
    Ok(())
}

fn named(prefix: &'static str, shards: Vec<Shard>) -> impl Iterator<Item = Shard> {
    shards.into_iter().map(move |shard| Shard { name: format!("{prefix}.{}", shard.name), ..shard })
}

/// The calibration that a checkpoint holds for this model.
///
/// # Errors
/// When it is another model's.
pub fn saved_calibration(model: &Model, saved: &BTreeMap<String, Tensor>) -> Result<Calibration, SessionError> {
    Ok(Calibration::restore(saved, "model.", (model.levels(), model.grid().cells()))?)
}

fn prefixed(prefix: &str, tensors: Vec<(String, Tensor)>) -> Vec<Named> {
    tensors.into_iter().map(|(name, tensor)| Named { fqn: format!("{prefix}.{name}"), tensor }).collect()
}

/// The loader has proved that the entry is there and fits.
fn copy(view: &Tensor, saved: Option<&Tensor>) -> Result<(), SessionError> {
    if let Some(saved) = saved {
        tch::no_grad(|| view.shallow_clone().f_copy_(saved))?;
    }
    Ok(())
}

fn copy_into(kept: &mut [Tensor], slabs: &[Tensor]) -> Result<(), SessionError> {
    for (kept, slab) in kept.iter_mut().zip(slabs) {
        tch::no_grad(|| kept.f_copy_(slab))?;
    }
    Ok(())
}
