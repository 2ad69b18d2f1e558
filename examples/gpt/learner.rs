//! The training loop's parts: weights, gradients, optimizer; one step; saving and restoring.

use crate::{
    error::GptError,
    model::{Gpt, GptSize},
    text::Text,
};
use enn_worker::{
    autograd::Cx,
    checkpoint::{self, Draft, Named, Wanted, latest, save_whole},
    comm::{ProcessGroup, Work},
    optim::{AdamW, AdamWSettings, FlatParams},
    params::{GradBuckets, ParamBuilder, Params},
    tch::{Device, Kind, Tensor},
};
use std::{path::Path, time::Duration};

/// Longest wait for the other ranks.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Checkpoints kept besides the newest.
const KEPT: usize = 1;

/// Everything that training changes.
pub(crate) struct Learner {
    /// The model.
    pub(crate) model: Gpt,
    /// Its weights.
    pub(crate) params: Params,
    grads: GradBuckets,
    weights: FlatParams,
    optimizer: AdamW,
    seed: u64,
    device: Device,
}

impl Learner {
    /// Seeded weights: the same on every rank.
    pub(crate) fn new(size: GptSize, seed: u64, device: Device) -> Result<Self, GptError> {
        let mut pb = ParamBuilder::new();
        let model = Gpt::new(&mut pb, size);
        let params = pb.build(seed, device)?;
        let grads = GradBuckets::new(&params)?;
        let weights = FlatParams::of(&params);
        let settings = AdamWSettings { betas: (0.9, 0.95), weight_decay: 0.1, clip: 1.0 };
        let optimizer = AdamW::new(&weights, settings)?;
        Ok(Self { model, params, grads, weights, optimizer, seed, device })
    }

    /// One optimizer step over all ranks. Gradients travel while backward still runs. Returns this rank's loss sum, on the
    /// device: nothing here waits for it.
    pub(crate) fn step(&mut self, group: &dyn ProcessGroup, text: &Text, step: &Step) -> Result<Tensor, GptError> {
        let mut works: Vec<Work> = Vec::new();
        let sum = Tensor::f_zeros([0i64; 0], (Kind::Double, self.device))?;
        self.grads.zero()?;
        for micro in 0..step.accumulation {
            let windows = text.windows(step.number, micro, self.device)?;
            let cx = Cx::train(&self.params, self.seed, step.number);
            // Dropout follows the rows of the global batch, so that it is the same in every world.
            cx.set_rows(text.first_row(micro), windows.ids.size()[0].cast_unsigned());
            let loss = self.model.loss(&cx, &windows.ids, &windows.next)?;
            let _ = sum.shallow_clone().f_add_(loss.raw())?;
            let last = micro + 1 == step.accumulation;
            cx.backward(&loss, &self.grads, &mut |_, gradient| {
                if last {
                    works.push(group.all_reduce_sum(gradient)?);
                }
                Ok(())
            })?;
        }
        for work in &works {
            work.order(WAIT_MAX)?;
        }
        let tokens = Tensor::f_full([0i64; 0], step.tokens as f64, (Kind::Double, self.device))?;
        self.optimizer.step(&mut self.grads, &tokens, step.rate)?;
        Ok(sum)
    }

    /// Weights and moments by name, as views.
    fn state(&self) -> Vec<Named> {
        let model = self.params.named().map(|(name, tensor)| Named::of(format!("model.{name}"), tensor));
        let optimizer = self.optimizer.named(&self.weights).into_iter();
        model.chain(optimizer.map(|(fqn, tensor)| Named { fqn, tensor })).collect()
    }

    /// Saves the state after `step` steps. One rank does: all have the same.
    pub(crate) fn save(&self, checkpoints: &Path, step: u64) -> Result<(), GptError> {
        save_whole(checkpoints, &self.state(), Draft { step, run: "gpt".to_owned(), ..Draft::default() }, KEPT)?;
        Ok(())
    }

    /// Takes up the newest complete checkpoint; the number of its steps, 0 when there is none. Fails when the ranks do not
    /// find the same one.
    pub(crate) fn resume(&mut self, checkpoints: &Path, group: &dyn ProcessGroup) -> Result<u64, GptError> {
        let found = latest(checkpoints).found;
        let step = found.as_ref().and_then(|c| c.manifest()).map_or(0, |manifest| manifest.step);
        agree(group, step, self.device)?;
        if let Some(checkpoint) = found {
            let of = |n: Named| (n.fqn, n.tensor.size(), n.tensor.kind());
            let wanted: Vec<Wanted> = self.state().into_iter().map(of).collect();
            let saved = checkpoint::load(checkpoint.dir(), &wanted)?;
            for (name, mut view) in self.weights.views(self.weights.slabs()) {
                view.f_copy_(&saved[&format!("model.{name}")])?;
            }
            self.optimizer.restore(&self.weights, &saved, step, 0)?;
        }
        Ok(step)
    }
}

/// What a step needs to know.
pub(crate) struct Step {
    /// Steps done before.
    pub(crate) number: u64,
    /// Tokens of the global batch: what the summed gradient is divided by.
    pub(crate) tokens: u64,
    /// Learning rate.
    pub(crate) rate: f64,
    /// Micro-batches.
    pub(crate) accumulation: u64,
}

/// Adds a number up over the ranks.
pub(crate) fn over_ranks(group: &dyn ProcessGroup, value: &Tensor) -> Result<f64, GptError> {
    let sum = value.f_add_scalar(0.0)?.f_view([1])?;
    group.all_reduce_sum(&sum)?.wait(WAIT_MAX)?;
    Ok(sum.f_double_value(&[0])?)
}

fn agree(group: &dyn ProcessGroup, step: u64, device: Device) -> Result<(), GptError> {
    let first = Tensor::from_slice(&[step as i64]).f_to_device(device)?;
    group.broadcast(&first, 0)?.wait(WAIT_MAX)?;
    let expected = first.f_int64_value(&[0])? as u64;
    if expected == step { Ok(()) } else { Err(GptError::Resume { rank: group.rank(), found: step, expected }) }
}
