//! The arrays of a training that ranks may divide between them: weights, gradients, moments, averages and best weights.

use crate::collective::{COLLECTIVE_WAIT_MAX, RankError};
use enn_comm::{ProcessGroup, sharing};
use enn_core::backend::duplicate;
use enn_core::params::{GradBuckets, Params, Share};
use enn_model::optim::{AdamW, AdamWSettings, Boxes, Ema, FlatParams, Shard, Tail};
use tch::{TchError, Tensor};

/// Bytes of the state of one weight: itself, its gradient, two moments, average and best.
pub(super) const WEIGHT_BYTES: f64 = 24.0;
/// Bytes of a weight and its gradient.
pub(super) const GRADIENT_BYTES: f64 = 8.0;

#[derive(Debug, Clone, Copy)]
pub struct StateSettings {
    pub optimizer: AdamWSettings,
    pub ema_decay: Option<f64>,
    /// Steps of the training, if its last ones are averaged.
    pub tail_of: Option<u64>,
}

/// All arrays of a training, as far as this rank keeps them.
pub struct StateArrays {
    /// Weights by name; their storage is `weights`.
    pub params: Params,
    /// Gradients; none before it is known what this rank keeps.
    pub grads: GradBuckets,
    pub weights: FlatParams,
    pub optimizer: AdamW,
    /// Moving average of the weights, if one is wanted.
    pub ema: Option<Ema>,
    /// Mean of the weights over the last steps, if it is wanted.
    pub tail: Option<Tail>,
    /// Best weights so far in the layout of `weights`; the average of the start before the first validation.
    pub best: Vec<Tensor>,
    settings: StateSettings,
    /// Whether all arrays are one share of one state.
    pub(super) is_one_share: bool,
}

/// Contents of a checkpoint where arrays are divided between ranks.
pub struct StateParts {
    /// Weights by name, if every rank has them.
    pub weights: Vec<(String, Tensor)>,
    /// Numbers of steps, by name.
    pub counts: Vec<(String, Tensor)>,
    /// Boxes of all other arrays.
    pub shards: Vec<Shard>,
}

impl StateArrays {
    /// Weights alone. [`StateArrays::allocate`], or a strategy, makes the other arrays.
    pub fn bare(params: Params, settings: StateSettings) -> Result<Self, RankError> {
        let weights = FlatParams::of(&params);
        let optimizer = AdamW::new(&FlatParams::none(), settings.optimizer)?;
        let grads = GradBuckets::none();
        let best = Vec::new();
        Ok(Self { params, grads, weights, optimizer, ema: None, tail: None, best, settings, is_one_share: false })
    }

    /// Makes the arrays that are missing, as far as this rank keeps them: gradients, moments of no step, and averages and best weights that
    /// are the weights of now.
    pub fn allocate(&mut self) -> Result<(), RankError> {
        self.allocate_grads()?;
        if !self.best.is_empty() {
            return Ok(());
        }
        let StateSettings { optimizer, ema_decay, tail_of } = self.settings;
        self.optimizer = AdamW::new(&self.weights, optimizer)?;
        self.ema = ema_decay.map(|decay| Ema::new(&self.weights, decay)).transpose()?;
        self.tail = tail_of.map(|steps| Tail::new(&self.weights, steps)).transpose()?;
        self.best = self.weights.own()?.iter().map(duplicate).collect::<Result<_, _>>()?;
        Ok(())
    }

    pub(super) fn allocate_grads(&mut self) -> Result<(), RankError> {
        if self.grads.is_none() {
            self.grads = GradBuckets::new(&self.params)?;
        }
        Ok(())
    }

    /// Whether this rank keeps no more than its share of the state.
    pub fn is_sharded(&self) -> bool {
        self.weights.share() != Share::WHOLE
    }

    /// Keeps this rank's share of moments, averages and best weights, or makes it; `divide_weights` does the same with weights and
    /// gradients.
    pub(super) fn divide(
        &mut self,
        group: &dyn ProcessGroup,
        divide_weights: impl FnOnce(&mut Self, Share) -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        let shared = sharing(group);
        let share = Share { rank: shared.rank(), world: shared.size() };
        self.is_one_share = false;
        self.weights.hold(share);
        let moments = if self.best.is_empty() { None } else { Some(self.cut()?) };
        divide_weights(self, share)?;
        if let Some(mesh) = group.mesh() {
            // Each of the ranks with this share saves a part of it.
            self.weights.assign_copy(mesh.across.rank(), mesh.across.size());
        }
        match moments {
            Some([exp_avg, exp_avg_sq]) => self.optimizer.keep(&self.weights, exp_avg, exp_avg_sq)?,
            None => self.allocate()?,
        }
        self.is_one_share = true;
        Ok(())
    }

    /// Keeps this rank's share of averages and best weights, and returns that of both moments.
    fn cut(&mut self) -> Result<[Vec<Tensor>; 2], RankError> {
        let [exp_avg, exp_avg_sq] = self.optimizer.kept().map(|whole| self.weights.cut(whole));
        if let Some(ema) = &mut self.ema {
            ema.keep(self.weights.cut(ema.kept())?);
        }
        if let Some(tail) = &mut self.tail {
            tail.keep(self.weights.cut(tail.kept())?);
        }
        self.best = self.weights.cut(&self.best)?;
        Ok([exp_avg?, exp_avg_sq?])
    }

    /// Makes moments, averages and best weights whole, from all ranks' shares; `gather_weights` does the same with weights and gradients.
    pub(super) fn gather(
        &mut self,
        group: &dyn ProcessGroup,
        gather_weights: impl FnOnce(&mut Self) -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        let shared = sharing(group);
        let mut gather = |whole: &Tensor| Ok::<_, RankError>(shared.all_gather(whole)?.wait(COLLECTIVE_WAIT_MAX)?);
        let mut join = |kept: &[Tensor]| self.weights.join(kept, &mut gather);
        let [exp_avg, exp_avg_sq] = self.optimizer.kept().map(&mut join);
        let average = self.ema.as_ref().map(|ema| join(ema.kept())).transpose()?;
        let mean = self.tail.as_ref().map(|tail| join(tail.kept())).transpose()?;
        let best = join(&self.best)?;
        gather_weights(self)?;
        self.weights.hold(Share::WHOLE);
        self.optimizer.keep(&self.weights, exp_avg?, exp_avg_sq?)?;
        if let (Some(ema), Some(average)) = (&mut self.ema, average) {
            ema.keep(average);
        }
        if let (Some(tail), Some(mean)) = (&mut self.tail, mean) {
            tail.keep(mean);
        }
        self.best = best;
        Ok(())
    }

    /// Brings to every rank the weights that each wrote in its share.
    pub(super) fn gather_weights(&self, group: &dyn ProcessGroup) -> Result<(), RankError> {
        for whole in self.weights.divided(self.weights.slabs())? {
            sharing(group).all_gather(&whole)?.wait(COLLECTIVE_WAIT_MAX)?;
        }
        Ok(())
    }

    /// Lists divided arrays as a checkpoint has them; `has_weights` where every rank has all weights.
    pub(super) fn parts(&self, which: Boxes, has_weights: bool) -> Result<StateParts, TchError> {
        let (mut shards, counts) = self.optimizer.shards(&self.weights, which);
        let mut weights = Vec::new();
        if has_weights {
            weights = self.weights.views(self.weights.slabs());
        } else {
            shards.extend(named("model", self.weights.shards(&self.weights.own()?, which)));
        }
        shards.extend(self.ema.iter().flat_map(|ema| named("ema", ema.shards(&self.weights, which))));
        shards.extend(self.tail.iter().flat_map(|tail| named("tail", tail.shards(&self.weights, which))));
        shards.extend(named("best", self.weights.shards(&self.best, which)));
        Ok(StateParts { weights, counts, shards })
    }
}

fn named(prefix: &'static str, shards: Vec<Shard>) -> impl Iterator<Item = Shard> {
    shards.into_iter().map(move |shard| Shard { name: format!("{prefix}.{}", shard.name), ..shard })
}
