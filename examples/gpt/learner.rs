//! The parts of the training loop: one step, saving and restoring.

use crate::{
    error::GptError,
    model::{Gpt, GptSize},
    settings::Settings,
    text::Text,
};
use enn_worker::{
    autograd::{self, Mode},
    checkpoint::{Draft, latest, save_whole},
    comm::ProcessGroup,
    functional as f, kernel,
    optim::AdamWSettings,
    params::ParamBuilder,
    session::{
        precision::Demand,
        steps::{Setup, Steps},
        torchrun::Member,
    },
    tch::{Device, Kind, Tensor},
};
use std::{path::Path, time::Duration};

/// Longest wait for the other ranks.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Checkpoints kept besides the newest.
const KEPT: usize = 1;
/// Limit on rejected steps in a row: each halves the loss scale of fp16, which reaches its minimum after 32.
const REFUSED_MAX: u64 = 64;

/// The state that training changes.
pub(crate) struct Learner {
    pub(crate) model: Gpt,
    /// Weights and their training.
    pub(crate) steps: Steps,
    /// Steps rejected since the last accepted one, on the device.
    refused: Tensor,
}

impl Learner {
    /// Initializes seeded weights, which are equal on every rank.
    pub(crate) fn new(size: GptSize, settings: &Settings, place: &Member) -> Result<Self, GptError> {
        let mut pb = ParamBuilder::new();
        let model = Gpt::new(&mut pb, size);
        let windows = settings.batch / (u64::from(place.world()) * settings.accumulation).max(1);
        let setup = Setup {
            seed: settings.seed,
            optimizer: AdamWSettings { betas: (0.9, 0.95), weight_decay: 0.1, clip: 1.0 },
            precision: settings.precision,
            demand: Demand { largest: 0.0, cells: windows * size.context as u64 },
            kernels: kernel::Settings::default(),
            extras: Vec::new(),
            limit: Mode::Graph,
            profile: settings.profile.clone(),
        };
        let refused = Tensor::f_zeros([0i64; 0], (Kind::Double, place.device))?;
        Ok(Self { model, steps: Steps::new(pb, place, setup)?, refused })
    }

    /// Makes one optimizer step over all ranks; returns this rank's loss sum, on the device: nothing here waits for it.
    ///
    /// When two steps in a row recorded the same program, the program runs instead of the closure, and on a GPU a captured graph of it:
    /// so values that differ between steps are inputs.
    pub(crate) fn step(&mut self, place: &Member, text: &Text, step: &Step) -> Result<Tensor, GptError> {
        let Self { model, steps, refused } = self;
        let windows = text.windows(step.number, place.device)?;
        let numbers = Tensor::f_from_slice(&[step.tokens as f64, step.rate])?.f_to_device(place.device)?;
        let inputs = vec![windows.ids, windows.next, numbers];
        let ran = steps.step(place, step.number, inputs, |cx, parts, inputs| {
            let [ids, next, numbers] = inputs else { unreachable!("three inputs were given") };
            let rows = ids.dim(0) / step.accumulation.cast_signed();
            let mut sum: Option<autograd::Tensor> = None;
            for micro in 0..step.accumulation {
                let part = |t| f::narrow(cx, t, 0, micro.cast_signed() * rows, rows);
                // Dropout is seeded by the rows of the global batch, so that it is equal for every number of ranks.
                cx.set_rows(text.first_row(micro), rows.cast_unsigned());
                let loss = model.loss(cx, &part(ids)?, &part(next)?)?;
                // Gradients are reduced while backward continues.
                parts.backward(cx, &loss, micro + 1 == step.accumulation)?;
                sum = Some(match sum {
                    None => loss,
                    Some(sum) => f::add(cx, &sum, &loss)?,
                });
            }
            let norm = parts.complete(cx)?;
            let number = |i| f::reshape(cx, &f::narrow(cx, numbers, 0, i, 1)?, &[]);
            let stats = parts.optimize(cx, &norm, &number(0)?, &number(1)?, None)?;
            Ok::<_, GptError>(sum.into_iter().chain([stats.taken]).collect())
        })?;
        let [sum, taken]: [Tensor; 2] = ran.outputs.try_into().map_err(|_| GptError::NoLoss)?;
        // The count grows by one, unless this step was accepted.
        *refused = refused.f_add_scalar(1.0)?.f_mul(&taken.f_neg()?.f_add_scalar(1.0)?)?;
        Ok(sum)
    }

    /// Fails when training cannot continue after `step` steps: a weight is not finite, or too many steps in a row were rejected. The
    /// result is equal on every rank. Waits for the device. A step whose update overflows a weight is accepted: weights are checked
    /// only before the state is `kept`.
    pub(crate) fn expect_taken(&self, step: u64, kept: bool) -> Result<(), GptError> {
        let refused = self.refused.f_double_value(&[])? as u64;
        if refused == 0 && !kept {
            return Ok(());
        }
        for (weight, values) in self.steps.weights.views(self.steps.weights.slabs()) {
            if values.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
                return Err(GptError::NotFinite { weight, step });
            }
        }
        if refused < REFUSED_MAX { Ok(()) } else { Err(GptError::Refused { refused, step, limit: REFUSED_MAX }) }
    }

    /// Saves the state after `step` steps. Only one rank calls it: all have equal state.
    pub(crate) fn save(&self, checkpoints: &Path, step: u64) -> Result<(), GptError> {
        save_whole(checkpoints, &self.steps.state(), Draft { step, run: "gpt".to_owned(), ..Draft::default() }, KEPT)?;
        Ok(())
    }

    /// Restores the newest complete checkpoint; returns its step, 0 when there is none. Fails when the ranks do not
    /// find the same one.
    pub(crate) fn resume(&mut self, checkpoints: &Path, place: &Member) -> Result<u64, GptError> {
        let found = latest(checkpoints).found;
        let step = found.as_ref().and_then(|c| c.manifest()).map_or(0, |manifest| manifest.step);
        agree(place.group.as_ref(), step, place.device)?;
        if let Some(checkpoint) = found {
            self.steps.restore(checkpoint.dir(), step)?;
        }
        Ok(step)
    }
}

/// Parameters of a step.
pub(crate) struct Step {
    /// Steps done before.
    pub(crate) number: u64,
    /// Tokens of the global batch, by which the summed gradient is divided.
    pub(crate) tokens: u64,
    /// Learning rate.
    pub(crate) rate: f64,
    /// Number of micro-batches.
    pub(crate) accumulation: u64,
}

/// Sums a number over the ranks.
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
