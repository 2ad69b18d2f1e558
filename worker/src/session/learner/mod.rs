//! The model that learns with its state, how a checkpoint names it, and how it begins as another one.
//!
//! Imports `agree`, `checkpointing`, `memory` and `precision` of the session, and of the crate `sharding`.

pub(crate) mod pretrained;
mod state_dict;

pub use state_dict::{Counts, OPTIONAL, OPTIONAL_OF_MODEL, restore_buffers, saved_calibration};

use super::{SessionError, agree::agree, memory::room, precision::Precision};
use crate::collective::COLLECTIVE_WAIT_MAX;
use crate::sharding::{REPLICATED, Sharding, StateArrays, StateSettings};
use enn_comm::{ProcessGroup, sharing};
use enn_common::config::train::{Averaging, Execution};
use enn_common::{config::RunConfig, config::parent::ScalerChoice, staged::meta::FeatureMeta};
use enn_core::autograd::{Executor, Mode};
use enn_core::params::ParamBuilder;
use enn_model::model::{Calibration, Model, ModelSpec, PretrainedModel, PretrainedReport, RowTensors, StartReport};
use enn_model::optim::{AdamWSettings, Ema, Schedule, Tail};
use enn_model::{block::SubModels, loss::Objective};
use tch::{Device, Tensor};

pub struct Learner {
    pub model: Model,
    /// Weights and all that is kept beside them.
    pub arrays: StateArrays,
    /// How the best weights answer; the model itself answers so only where they are measured for the last time.
    pub calibration: Calibration,
    pub objective: Objective,
    pub schedule: Schedule,
    pub executor: Executor,
    pub precision: Precision,
    /// Whether blocks compute their activations again in the backward pass.
    pub recompute: bool,
    pub sharding: &'static dyn Sharding,
}

/// Everything that the code of a step reads; the rest of a [`Learner`] is the executor's.
pub struct Parts<'a> {
    pub model: &'a Model,
    pub arrays: &'a StateArrays,
    pub sharding: &'static dyn Sharding,
    /// Averages of the weights, those that have begun.
    pub averages: [Option<&'a Ema>; 2],
    pub objective: &'a Objective,
    pub precision: &'a Precision,
    pub recompute: bool,
}

impl Learner {
    /// Builds everything with seeded weights: the same on every rank and device.
    pub fn build(
        config: &RunConfig,
        spec: &ModelSpec,
        models: &SubModels,
        steps_total: u64,
        device: Device,
    ) -> Result<Self, SessionError> {
        let mut learner = Self::bare(config, spec, models, steps_total, device)?;
        learner.arrays.allocate()?;
        Ok(learner)
    }

    /// Builds a learner without gradients, moments, averages and best weights, of which a rank may keep a share only: [`Learner::shard`]
    /// makes them, or [`StateArrays::allocate`] all of them.
    pub fn bare(
        config: &RunConfig,
        spec: &ModelSpec,
        models: &SubModels,
        steps_total: u64,
        device: Device,
    ) -> Result<Self, SessionError> {
        let mut builder = ParamBuilder::new();
        builder.limit_buckets(config.train.bucket_mib);
        let mut model = Model::build_with(&config.model, spec, models, &mut builder)?;
        model.to_device(device);
        room::for_training(&builder, &config.train, device)?;
        let params = builder.build(config.seed, device)?;
        let train = &config.train;
        let optimizer = AdamWSettings { betas: train.betas, weight_decay: train.weight_decay, clip: train.clip };
        let tail_of = (train.averaging == Averaging::SwaTail).then_some(steps_total);
        let arrays = StateArrays::bare(params, StateSettings { optimizer, ema_decay: train.ema_decay(), tail_of })?;
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
            arrays,
            calibration: Calibration::default(),
            objective,
            schedule,
            executor,
            precision: Precision::full(),
            recompute: false,
            sharding: REPLICATED,
        })
    }

    pub fn take_precision(&mut self, precision: Precision) -> Result<(), SessionError> {
        if let Some(kind) = precision.copies() {
            self.arrays.params.keep_shadows(kind)?;
        }
        self.precision = precision;
        self.executor.reset();
        Ok(())
    }

    pub fn split(&mut self) -> (&mut Executor, Parts<'_>) {
        let arrays = &self.arrays;
        let parts = Parts {
            model: &self.model,
            arrays,
            sharding: self.sharding,
            averages: [arrays.ema.as_ref(), arrays.tail.as_ref().and_then(Tail::begun)],
            objective: &self.objective,
            precision: &self.precision,
            recompute: self.recompute,
        };
        (&mut self.executor, parts)
    }

    /// Sets the base head from training rows (x, x mask, y, y mask) in the user's units; see `Model::initialise_from_data`.
    pub fn start_from(&mut self, rows: &crate::data::Batch) -> Result<StartReport, SessionError> {
        let rows = RowTensors { x: &rows.x, x_valid: &rows.x_mask, y: &rows.y, y_valid: &rows.y_mask };
        let report = self.model.initialise_from_data(&mut self.arrays.params, rows)?;
        self.arrays.params.refresh_shadows()?;
        Ok(report)
    }

    /// Begins as another model, as far as it fits; see [`Model::load_pretrained`].
    pub fn load_pretrained(
        &mut self,
        inputs: &[FeatureMeta],
        pretrained: &PretrainedModel<'_>,
        choice: ScalerChoice,
    ) -> Result<PretrainedReport, SessionError> {
        Ok(self.model.load_pretrained(&mut self.arrays.params, inputs, pretrained, choice)?)
    }

    /// Lets gradients lie where the group adds them up fastest. Before the first step.
    pub fn share_gradients(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        // Copy engines cannot be captured: the ranks would not do the same in a step that one of them captures.
        if self.executor.captures_collectives() {
            return Ok(());
        }
        self.arrays.grads.move_to(&self.arrays.params, |flat| Ok::<_, SessionError>(group.shared_like(flat)?))
    }

    /// Gives every rank rank 0's weights. What is kept beside them is to be made anew.
    pub fn share_weights(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        for slab in self.arrays.weights.slabs() {
            group.broadcast(slab, 0)?.wait(COLLECTIVE_WAIT_MAX)?;
        }
        self.arrays.best.clear();
        Ok(self.arrays.params.refresh_shadows()?)
    }

    /// Divides the arrays between the ranks as `sharding` does, until [`Learner::gather`]. A bare learner is bare no more.
    pub fn shard(&mut self, group: &dyn ProcessGroup, sharding: &'static dyn Sharding) -> Result<(), SessionError> {
        // A rank that is alone has all of the state.
        let is_alone = sharing(group).size() == 1;
        let sharding = if is_alone { REPLICATED } else { sharding.among_sharing().unwrap_or(sharding) };
        sharding.shard(&mut self.arrays, group)?;
        self.sharding = sharding;
        if sharding.keeps_weights() {
            self.share_gradients(group)?;
        }
        if self.arrays.is_sharded() {
            self.executor.reset();
        }
        Ok(())
    }

    /// Makes the arrays whole again, from all ranks' shares.
    pub fn gather(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        if self.arrays.is_sharded() {
            self.sharding.gather(&mut self.arrays, group)?;
            self.sharding = REPLICATED;
            self.executor.reset();
        }
        Ok(())
    }

    /// Makes all weights available outside of a step ([`Sharding::unshard`]), until [`Learner::reshard`].
    pub fn unshard(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        Ok(self.sharding.unshard(&mut self.arrays, group)?)
    }

    /// Frees what [`Learner::unshard`] allocated ([`Sharding::reshard`]).
    pub fn reshard(&mut self) -> Result<(), SessionError> {
        Ok(self.sharding.reshard(&mut self.arrays)?)
    }

    /// Proves that all ranks have the same parameters: names, shapes and the values that all of them have.
    ///
    /// # Errors
    /// [`SessionError::Disagree`] with both sides.
    pub fn prove_equal(&self, group: &dyn ProcessGroup, device: Device) -> Result<(), SessionError> {
        if group.size() == 1 {
            return Ok(());
        }
        let mut hasher = blake3::Hasher::new();
        for (name, view) in self.arrays.params.named() {
            hasher.update(format!("{name}{:?}", view.size()).as_bytes());
        }
        agree(group, device, "parameters' names and shapes", hasher.finalize().as_bytes())?;
        for slab in self.sharding.common_weights(&self.arrays)? {
            let host = slab.f_detach()?.f_to_device(Device::Cpu)?;
            let mut bytes = vec![0; host.numel() * host.kind().elt_size_in_bytes()];
            host.f_copy_data_u8(&mut bytes, host.numel())?;
            hasher.update(&bytes);
        }
        agree(group, device, "initial weights", hasher.finalize().as_bytes())
    }

    /// Keeps the average of now as the best weights; the weights themselves where there is no average.
    pub fn keep_average_as_best(&mut self) -> Result<(), SessionError> {
        let weights = self.arrays.weights.own()?;
        copy_into(&mut self.arrays.best, self.arrays.ema.as_ref().map_or(&weights[..], Ema::kept))
    }

    /// Keeps the mean over the last steps as the best weights, once there is one.
    pub fn keep_tail_as_best(&mut self) -> Result<(), SessionError> {
        let mean = self.arrays.tail.as_ref().and_then(Tail::begun);
        mean.map_or(Ok(()), |mean| copy_into(&mut self.arrays.best, mean.kept()))
    }

    /// Exchanges weights and average, when there is one. Twice changes nothing.
    pub fn swap_average(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        let Some(ema) = &mut self.arrays.ema else { return Ok(()) };
        ema.swap(&self.arrays.weights)?;
        Ok(self.sharding.publish(&self.arrays, group)?)
    }

    /// Before step number `step` (from 0): whether another code computes it than the one before.
    pub fn advance(&mut self, step: u64) -> bool {
        let cast = self.precision.advance(step);
        self.arrays.tail.as_mut().is_some_and(|tail| tail.advance(step)) || cast
    }

    /// Whether the mean over the last steps has begun.
    pub fn has_tail(&self) -> bool {
        self.arrays.tail.as_ref().and_then(Tail::begun).is_some()
    }

    /// Exchanges the weights and their mean over the last steps, once there is one. Twice changes nothing.
    pub fn swap_tail(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        let Some(tail) = &mut self.arrays.tail else { return Ok(()) };
        tail.swap(&self.arrays.weights)?;
        Ok(self.sharding.publish(&self.arrays, group)?)
    }

    /// Exchanges the weights and the best ones. Twice changes nothing.
    pub fn swap_best(&mut self, group: &dyn ProcessGroup) -> Result<(), SessionError> {
        self.arrays.weights.exchange(&mut self.arrays.best)?;
        Ok(self.sharding.publish(&self.arrays, group)?)
    }

    /// Exchanges the model's calibration and that of the best weights.
    pub fn swap_calibration(&mut self) {
        self.calibration = self.model.calibrate(std::mem::take(&mut self.calibration));
    }
}

fn copy_into(kept: &mut [Tensor], slabs: &[Tensor]) -> Result<(), SessionError> {
    for (kept, slab) in kept.iter_mut().zip(slabs) {
        tch::no_grad(|| kept.f_copy_(slab))?;
    }
    Ok(())
}
