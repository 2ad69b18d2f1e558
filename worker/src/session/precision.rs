//! The precision of a training: decided once before the first step, the same on every rank, and applied to every step.

use super::SessionError;
use crate::{checkpoint::Named, collective::COLLECTIVE_WAIT_MAX};
use enn_comm::{ProcessGroup, Reduce};
use enn_common::config::train::Precision as Wanted;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::GradBuckets,
    precision::{
        Autocast, Cooldown, Format, FormatChoice, LossScale, Reason, ScaleSettings, Support, allow_tf32, choose, fp8,
        largest_standardised, support,
    },
};
use enn_model::{
    model::ModelSpec,
    optim::{AdamW, Ema, StepStats},
};
use std::collections::BTreeMap;
use tch::{Device, Kind, TchError, Tensor as Raw};

/// Begins the names of all that a checkpoint holds of precision. It may be there or not: a training may go on in another one.
pub const STATE: &str = "precision.";
/// A place that cools down; its path follows.
const COOLDOWN: &str = "cooldown";

/// Demands of a training's data on its precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// The largest value that goes in or is compared with: a format without room above it is refused. 0 for tokens.
    pub largest: f64,
    /// Losses that a micro-batch adds up: the more, the smaller is the loss scale at the start.
    pub cells: u64,
}

impl Demand {
    /// That of micro-batches of `rows` standardised samples.
    pub fn of(spec: &ModelSpec, rows: u64) -> Self {
        let largest = largest_standardised(&spec.x_stats).max(largest_standardised(&spec.y_stats));
        Self { largest, cells: rows.saturating_mul(spec.cells() as u64) }
    }
}

/// An optimizer with the gradients that it takes, and the average that takes in the new weights.
pub struct WeightUpdate<'a> {
    pub optimizer: &'a AdamW,
    pub grads: &'a GradBuckets,
    pub average: Option<&'a Ema>,
}

/// Formats that a training computes with.
#[derive(Debug)]
pub struct Precision {
    choice: FormatChoice,
    autocast: Option<Autocast>,
    cooldown: Cooldown,
    pub(crate) scale: Option<LossScale>,
}

impl Precision {
    /// Precision of f32 everywhere.
    pub fn full() -> Self {
        let choice = FormatChoice { format: Format::Fp32, reason: Reason::Asked };
        Self { choice, autocast: None, cooldown: Cooldown::default(), scale: None }
    }

    /// Decides from the configuration, the device and the data; one collective makes all ranks take the same.
    pub fn decide(
        wanted: Wanted,
        Demand { largest, cells }: Demand,
        device: Device,
        group: &dyn ProcessGroup,
    ) -> Result<Self, SessionError> {
        let support = support(device)?;
        let choice = tested(choose(wanted, support, largest), support, largest, device);
        let choice = common(choice, device, group)?;
        allow_tf32(choice.format == Format::Tf32)?;
        let scale = match choice.format {
            Format::Fp16 => Some(LossScale::new(ScaleSettings::for_sum_of(cells), device)?),
            _ => None,
        };
        tracing::info!(format = choice.format.name(), reason = %choice.reason, "precision");
        Ok(Self { autocast: Autocast::of(choice.format), choice, cooldown: Cooldown::default(), scale })
    }

    /// The format that was taken, and why.
    pub fn choice(&self) -> &FormatChoice {
        &self.choice
    }

    /// Kind of the weights' low-precision copies, if there are any.
    pub fn copies(&self) -> Option<Kind> {
        self.choice.format.low_kind()
    }

    /// Notes that `place` had trouble at `step`: it runs in f32 for a while. Every rank says so for the same step.
    pub fn trouble(&mut self, place: &str, step: u64) {
        self.cooldown.trouble(place, step);
    }

    /// Returns what a resumed training must know, by name: the loss scale, and each place that cools down with the first step that casts
    /// again.
    pub fn named(&self) -> Vec<Named> {
        let scale = self.scale.iter().flat_map(LossScale::named);
        let scale = scale.map(|(name, raw)| Named::of(format!("{STATE}{name}"), raw));
        let places = self.cooldown.places().iter().map(|(place, until)| {
            let dot = if place.is_empty() { "" } else { "." };
            Named::of(format!("{STATE}{COOLDOWN}{dot}{place}"), &Raw::from(until.cast_signed()))
        });
        scale.chain(places).collect()
    }

    /// Takes up what `saved` holds of it, as far as this precision has use for it.
    pub fn restore(&mut self, saved: &BTreeMap<String, Raw>) -> Result<(), TchError> {
        if let Some(scale) = &self.scale {
            scale.restore(|name| saved.get(&format!("{STATE}{name}")))?;
        }
        if self.is_low() {
            let cooling = saved.iter().filter_map(|(name, until)| {
                let place = name.strip_prefix(STATE)?.strip_prefix(COOLDOWN)?;
                Some((place.strip_prefix('.').unwrap_or(place).to_owned(), until))
            });
            let places = cooling.map(|(place, until)| Ok((place, until.f_int64_value(&[])?.cast_unsigned())));
            self.cooldown = Cooldown::of(places.collect::<Result<Vec<_>, TchError>>()?);
        }
        Ok(())
    }

    pub fn is_low(&self) -> bool {
        self.autocast.is_some()
    }

    /// 1 when nothing is to be explained of a step, else 0: a refused one is, unless its gradient was too large for the loss
    /// scale only, its loss being finite. On the device.
    pub fn sound(&self, taken: &Raw, loss: &Raw) -> Result<Raw, TchError> {
        if self.scale.is_none() {
            return Ok(taken.shallow_clone());
        }
        taken.f_maximum(&loss.f_isfinite()?.f_to_kind(taken.kind())?.f_view_as(taken)?)
    }

    /// Brings the places in f32 up to `step`; whether they changed, so that recorded programs no longer hold.
    pub fn advance(&mut self, step: u64) -> bool {
        let Some(autocast) = &mut self.autocast else { return false };
        let full = self.cooldown.at(step);
        let changed = autocast.full != full;
        autocast.full = full;
        changed
    }

    /// Tells a step's context. The weights' low-precision copies are as the weights: the optimizer writes both, and the
    /// learner refreshes them after every other change.
    pub fn enter(&self, cx: &Cx<'_>) -> Result<(), OpError> {
        cx.keep_shadows();
        cx.set_autocast(self.autocast.clone())?;
        if let Some(scale) = &self.scale {
            cx.set_loss_scale(scale.scale());
        }
        Ok(())
    }

    /// Updates the weights: the summed gradient, whose `norm` is [`AdamW::complete`]'s, is divided by `count` and by the loss scale,
    /// if there is one, which moves then. `count` and `rate`, the learning rate: f64, 0 axes. The average takes in the new weights.
    pub fn optimize(
        &self,
        cx: &Cx<'_>,
        update: &WeightUpdate<'_>,
        norm: &Tensor,
        count: &Tensor,
        rate: &Tensor,
    ) -> Result<StepStats, OpError> {
        let WeightUpdate { optimizer, grads, average } = *update;
        let Some(scale) = &self.scale else { return optimizer.step(cx, grads, average, norm, count, rate) };
        let factor = functional::cast(cx, &cx.opt_state(scale.scale().shallow_clone()), Kind::Double)?;
        let stats = optimizer.step(cx, grads, average, norm, &functional::mul(cx, count, &factor)?, rate)?;
        cx.optim(|cx| functional::update_loss_scale(cx, scale, &stats.taken))?;
        Ok(stats)
    }
}

/// Without 8-bit products where the device computes them wrongly.
fn tested(choice: FormatChoice, support: Support, range: f64, device: Device) -> FormatChoice {
    if choice.format != Format::Fp8 {
        return choice;
    }
    let found = fp8::self_test(device).unwrap_or_else(|error| {
        tracing::warn!(%error, "8-bit products do not run");
        f64::INFINITY
    });
    if found <= fp8::ERROR_MAX {
        return choice;
    }
    let reason = Reason::SelfTest { wanted: Format::Fp8, found, limit: fp8::ERROR_MAX };
    FormatChoice { format: choose(Wanted::Bf16, support, range).format, reason }
}

/// Agrees on a format that all ranks can compute in; one collective.
fn common(choice: FormatChoice, device: Device, group: &dyn ProcessGroup) -> Result<FormatChoice, SessionError> {
    if group.size() == 1 {
        return Ok(choice);
    }
    let votes = Raw::f_from_slice(&choice.vote())?.f_to_device(device)?;
    group.all_reduce(&votes, Reduce::Sum)?.wait(COLLECTIVE_WAIT_MAX)?;
    Ok(choice.agreed(&Vec::<f64>::try_from(votes.f_to_device(Device::Cpu)?)?))
}
