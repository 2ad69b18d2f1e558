//! What learns as a checkpoint has it: the names of its tensors, what of them this rank keeps and answers for, and putting them back.

use super::Learner;
use crate::checkpoint::{ExpectedTensor, Named, Placed, ShardedTensors};
use crate::session::{SessionError, precision};
use crate::sharding::StateArrays;
use enn_model::model::{Calibration, Model};
use enn_model::optim::{Boxes, FlatParams, Shard, Tail, tail};
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};

/// Names, by their beginning, of what a state has only sometimes: it depends on the precision, or comes towards the end.
pub const OPTIONAL: [&str; 4] = [precision::STATE, tail::PREFIX, CALIBRATION, REBASE];
/// Names among them that predictions need.
pub const OPTIONAL_OF_MODEL: [&str; 2] = [CALIBRATION, REBASE];
/// Beginning of the names of what a model has that began as another one's with a scaler of its own.
const REBASE: &str = "model.scaler.z_";
/// Beginning of the names of a calibration in a checkpoint.
const CALIBRATION: &str = "model.calibration.";

impl Learner {
    /// The state by name, as views: nothing is copied. What every rank has, and of what is shared between them the boxes that
    /// this rank answers for.
    pub fn checkpoint_parts(&self) -> Result<(Vec<Named>, Vec<Placed>), SessionError> {
        self.parts(Boxes::Assigned)
    }

    fn parts(&self, which: Boxes) -> Result<(Vec<Named>, Vec<Placed>), SessionError> {
        let Some(parts) = self.sharding.state_parts(&self.arrays, which)? else {
            return Ok((self.state(), Vec::new()));
        };
        let named = |(fqn, tensor)| Named { fqn, tensor };
        let mut common = prefixed("model", self.model.buffers());
        common.extend(prefixed("model", self.calibration.named()));
        common.extend(prefixed("model", parts.weights));
        common.extend(parts.counts.into_iter().map(named));
        common.extend(self.precision.named());
        common.extend(self.arrays.tail.as_ref().and_then(Tail::count).map(named));
        let placed = |Shard { name, global, offsets, tensor }| Placed { fqn: name, global, offsets, tensor };
        Ok((common, parts.shards.into_iter().map(placed).collect()))
    }

    /// The whole state by name, as views: nothing is copied. Before [`Learner::shard`] and after [`Learner::gather`].
    pub fn state(&self) -> Vec<Named> {
        let StateArrays { weights, optimizer, ema, tail, best, .. } = &self.arrays;
        let mut all = model_state(&self.model, weights);
        all.extend(prefixed("model", self.calibration.named()));
        if let Some(ema) = ema {
            all.extend(ema.named(weights).into_iter().map(|(fqn, tensor)| Named { fqn, tensor }));
        }
        let tail = tail.iter().flat_map(|tail| tail.named(weights));
        all.extend(tail.map(|(fqn, tensor)| Named { fqn, tensor }));
        all.extend(prefixed("best", weights.views(best)));
        all.extend(optimizer.named(weights).into_iter().map(|(fqn, tensor)| Named { fqn, tensor }));
        all.extend(self.precision.named());
        all
    }

    /// Returns the tensors that a saved state must have, but for what may be missing ([`OPTIONAL`]): whole ones, and, of what is shared
    /// between ranks, the boxes that this one keeps, to be read to where they are.
    pub fn expected(&self) -> Result<(Vec<ExpectedTensor>, ShardedTensors), SessionError> {
        let sometimes = |fqn: &str| OPTIONAL.iter().any(|prefix| fqn.starts_with(prefix));
        let (items, boxes) = self.parts(Boxes::Kept)?;
        let always = items.into_iter().filter(|n| !sometimes(&n.fqn));
        let whole = always.map(|n| (n.fqn, n.tensor.size(), n.tensor.kind())).collect();
        let arrays = [
            (true, "optim.state.", ".exp_avg"),
            (true, "optim.state.", ".exp_avg_sq"),
            (true, "best.", ""),
            (self.arrays.ema.is_some(), "ema.", ""),
            (self.arrays.tail.is_some(), tail::PREFIX, ""),
            (!self.sharding.keeps_weights(), "model.", ""),
        ];
        let shared = arrays.into_iter().filter(|(kept, ..)| *kept && self.arrays.is_sharded());
        let of_array = |(_, before, after)| {
            let named =
                move |(name, shape): (&str, &[i64])| (format!("{before}{name}{after}"), shape.to_vec(), Kind::Float);
            self.arrays.weights.shapes().map(named)
        };
        Ok((whole, ShardedTensors { tensors: shared.flat_map(of_array).collect(), boxes }))
    }

    /// Puts a saved state in place, but for boxes, which are. `steps` optimizer steps were done, `skipped` of them refused. Before the
    /// first step only the weights are taken: the scaler stays that of the data, moments stay zero.
    pub fn restore(&mut self, saved: &BTreeMap<String, Tensor>, counts: Counts) -> Result<(), SessionError> {
        let is_sharded = self.arrays.is_sharded();
        let StateArrays { params, weights, optimizer, ema, tail, best, .. } = &mut self.arrays;
        if self.sharding.keeps_weights() {
            for (name, view) in weights.views(weights.slabs()) {
                copy(&view, saved.get(&format!("model.{name}")))?;
            }
        }
        params.refresh_shadows()?;
        if !is_sharded {
            for (name, view) in weights.views(best) {
                copy(&view, saved.get(&format!("best.{name}")))?;
            }
        }
        let taken = counts.steps.saturating_sub(counts.skipped);
        if let Some(ema) = ema {
            ema.restore(weights, saved, taken)?;
        }
        if counts.steps == 0 {
            // Initial weights made without data: the scaler stays that of the data.
            return Ok(());
        }
        if let Some(tail) = tail {
            tail.restore(weights, saved)?;
        }
        restore_buffers(&mut self.model, saved)?;
        self.calibration = saved_calibration(&self.model, saved)?;
        self.calibration.to_device(weights.slabs().first().map_or(Device::Cpu, Tensor::device));
        self.precision.restore(saved)?;
        optimizer.restore(weights, saved, taken, counts.skipped)?;
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

fn model_state(model: &Model, weights: &FlatParams) -> Vec<Named> {
    let mut all = prefixed("model", weights.views(weights.slabs()));
    all.extend(prefixed("model", model.buffers()));
    all
}

/// Copies `model.<buffer>` of a checkpoint into the model.
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

/// The calibration that a checkpoint holds for this model.
pub fn saved_calibration(model: &Model, saved: &BTreeMap<String, Tensor>) -> Result<Calibration, SessionError> {
    Ok(Calibration::restore(saved, "model.", model.levels(), model.grid().cells())?)
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
