//! The training loop's parts: weights, gradients, optimizer; one step; saving and restoring.

use crate::{
    error::GptError,
    model::{Gpt, GptSize},
    text::Text,
};
use enn_worker::{
    autograd::{self, Executor, Mode, Request},
    checkpoint::{self, Draft, Named, Wanted, latest, save_whole},
    comm::ProcessGroup,
    functional as f,
    kernel::FirstFit,
    optim::{AdamW, AdamWSettings, FlatParams},
    params::{GradBuckets, ParamBuilder, Params},
    session::torchrun::Place,
    tch::{Device, Tensor},
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
    executor: Executor,
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
        Ok(Self { model, params, grads, weights, optimizer, executor: Executor::new(Mode::Graph), seed, device })
    }

    /// One optimizer step over all ranks; this rank's loss sum, on the device: nothing here waits for it.
    ///
    /// The executor calls the closure and records what it computes. When two steps in a row recorded the same, it runs the
    /// record instead, and on a GPU launches it as a captured graph: so what differs between steps comes in as an input.
    pub(crate) fn step(&mut self, place: &Place, text: &Text, step: &Step) -> Result<Tensor, GptError> {
        let Self { model, params, grads, optimizer, executor, seed, .. } = self;
        let windows = text.windows(step.number, place.device)?;
        let numbers = Tensor::f_from_slice(&[step.tokens as f64, step.rate])?.f_to_device(place.device)?;
        let request = Request {
            leaves: params,
            seed: *seed,
            step: step.number,
            launcher: &FirstFit,
            collectives: Some(place),
            inputs: vec![windows.ids, windows.next, numbers],
            watch: None,
            observer: None,
        };
        let ran = executor.step(request, |cx, inputs| {
            let [ids, next, numbers] = inputs else { unreachable!("three inputs were given") };
            cx.zero(grads.buckets().map(|(_, flat)| flat))?;
            let rows = ids.dim(0) / step.accumulation.cast_signed();
            let mut sum: Option<autograd::Tensor> = None;
            for micro in 0..step.accumulation {
                let part = |t| f::narrow(cx, t, 0, micro.cast_signed() * rows, rows);
                // Dropout follows the rows of the global batch, so that it is the same in every world.
                cx.set_rows(text.first_row(micro), rows.cast_unsigned());
                let loss = model.loss(cx, &part(ids)?, &part(next)?)?;
                let last = micro + 1 == step.accumulation;
                // Called when the gradients of a bucket are complete: they travel while backward goes on.
                cx.backward(&loss, grads, &mut |_, gradient| {
                    if last {
                        cx.all_reduce(gradient)?;
                    }
                    Ok(())
                })?;
                sum = Some(match sum {
                    None => loss,
                    Some(sum) => f::add(cx, &sum, &loss)?,
                });
            }
            cx.all_reduce_wait()?;
            let number = |i| f::reshape(cx, &f::narrow(cx, numbers, 0, i, 1)?, &[]);
            optimizer.step(cx, grads, &number(0)?, &number(1)?)?;
            Ok::<_, GptError>(sum.into_iter().collect())
        })?;
        ran.outputs.into_iter().next().ok_or(GptError::NoLoss)
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
