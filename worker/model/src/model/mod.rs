//! The ENN model: columns in, grid out. One forward serves training, validation and prediction.
//!
//! ```text
//! x (B,F) ─ scaler ─ embedding ─► features (B,F')
//!   ─► fuser: templates ─► tokens (B,N,D) each ─┬─ perceiver ─► latents Z (B,K,D)
//!                           sub-fusers (B,K,D) ◄┘ the same perceiver
//!        ├─► mean over K ─► base head ─► a (B,O)
//!        └─► collector ─► grid tokens (B,G,D) ─► refine head ─► r (B,O)
//!   p = gate(Z, grid tokens, a, r);   z = a + p·r;   refined = a + r;   y = z·std + mean
//! ```
//! Where the loss predicts a distribution, both heads give P further numbers per cell, c = c_base + c_refine without a gate, and
//! `loss::Head` makes quantiles of z and c. Where it predicts classes, z are logits and the answer is their softmax.
//!
//! Parameters, by name (f32; D width, H heads, I feed-forward width, N tokens of a task, K latents, R head rank, V patch volume,
//! F' features, O cells, P channels). `norm` stands for `weight (D)` and, with LayerNorm, `bias (D)`; *RetNet* for the block below. A
//! task's parameters have the same names wherever it hangs in the forest; sub-fusers have none of their own.
//!
//! | name | shape |
//! |---|---|
//! | `embedding.category_{column}.weight` | (C+1, min(C,32)), last row = unknown |
//! | `fuser.{task}.tokeniser.{weight,bias}` | (N·D, F'), (N·D); reads features / √F' |
//! | `fuser.{task}.block_{i}` | RetNet, with the task's mixer |
//! | `fuser.{task}.model.…` | the user's own |
//! | `fuser.{task}.norm` | norm |
//! | `fuser.{task}.factor`, of templates and sub-fusers that are joined by `linear` | (1) |
//! | `fuser.perceiver.latents` | (K, D) |
//! | `fuser.perceiver.round_{r}.cross.{norm_query,norm_key,norm_feed}` | norm |
//! | `fuser.perceiver.round_{r}.cross.attention.{q,out}.{weight,bias}` | (D, D), (D) |
//! | `fuser.perceiver.round_{r}.cross.attention.kv.{weight,bias}` | (2D, D), (2D): k, then v |
//! | `fuser.perceiver.round_{r}.cross.feed.{in,out}.weight` | (2I, D): g, then u; (D, I) |
//! | `fuser.perceiver.round_{r}.self_{i}.{norm,attention,norm_feed,feed}` | as above, without `norm_key` |
//! | `fuser.perceiver.norm` | norm |
//! | `base.norm` | norm |
//! | `base.scores.{weight,bias}` | (R, D), (R) |
//! | `base.factors`, `base.bias` | (O, R), (O) |
//! | `base.linear` (linear branch) | (O, F' + C), C columns of crossed categories; a gets W x / F' |
//! | `base.channels.weight`, `base.channels.bias` | (P·O, R), (P, O) |
//! | `collector.axis_{i}` | (patches along axis i, D) |
//! | `collector.cross.…` | as the Perceiver's cross block |
//! | `collector.block_{i}` | RetNet |
//! | `collector.norm` | norm |
//! | `refine.out.{weight,bias}`, `refine.channel_{p}.{weight,bias}` | (V, D), (V) |
//! | `gate.norm.{weight,bias}` | (W), (W): W = 2D+2 (scalar) or D+1 (tile) |
//! | `gate.hidden.{weight,bias}`, `gate.out.{weight,bias}` | (64, W), (64); (1, 64), (1) |
//! | RetNet `….{norm_{mixer},norm_feed}` | norm |
//! | RetNet `….retention.{qvg,out}.weight` | (3D, D): q, v, g; (D, D) |
//! | RetNet `….true_retention.{qkvg,out}.weight` | (4D, D): q, k, v, g; (D, D) |
//! | RetNet `….{retention,true_retention}.norm`, `….beta` | norm, (H) |
//! | RetNet `….dilated.{qkv,out}.{weight,bias}` | (3D, D), (3D): q, k, v of one head after the other; (D, D), (D) |
//! | RetNet `….feed.{in,out}.weight` | (2I, D), (D, I) |
//!
//! Buffers (f64, not trained): `scaler.{x_mean,x_std}` (F), `scaler.{y_mean,y_std,y_min,y_max}` (O); of a model that was calibrated
//! after training `calibration.{shift,slope}` (O), `calibration.stretch` (levels − 1, O).

mod calibration;
mod columns;
mod components;
mod drift;
mod error;
mod logistic;
mod pretrained;
mod ridge;
mod spec;
mod start;

pub use crate::loss::{Channels, Head, Output, Targets};
pub use calibration::Calibration;
pub use drift::ROWS_MAX as DRIFT_ROWS_MAX;
pub use error::ModelError;
pub use pretrained::{PretrainedModel, PretrainedReport};
pub use spec::ModelSpec;
pub use start::{RowTensors, StartReport};

use crate::{
    block::{
        BaseHead, Collector, Fuser, Grid, RefineHead, Regularise, StreamState, SubModels, fuser::FuserSpec,
        heads::BaseSizes, perceiver::Rounds, stream::Stream, template::TemplateSpec,
    },
    layer::{Crosses, Embedding, FeedForward, Pattern, Scaler, SigmoidGate, Width, scaler::Rebase},
};
use enn_common::config::{
    forest::{Mixer, Mode, Part, TemplateConfig},
    model::{Gate, ModelConfig},
};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::ParamBuilder,
};
use tch::{Device, Kind, Tensor as Raw};

/// The model's structure and buffers. Weights are in `Params`; the model holds their ids only.
#[derive(Debug)]
pub struct Model {
    scaler: Scaler,
    embedding: Embedding,
    /// Crosses of categories for the linear branch.
    crosses: Crosses,
    fuser: Fuser,
    base: BaseHead,
    collector: Collector,
    refine: RefineHead,
    gate: Option<SigmoidGate>,
    gate_kind: Gate,
    grid: Grid,
    output_range: Option<(f64, f64)>,
    /// Name of a temporal task whose mixer keeps no state.
    stateless: Option<String>,
    head: Head,
    calibration: Calibration,
}

/// Predictions of the model, in the user's units.
#[derive(Debug)]
pub struct Answer {
    /// Point prediction (B, O) f32: location or median; for classes the probability of each.
    pub point: Tensor,
    /// Quantiles, one (B, O) f32 per level; empty for a head without quantiles.
    pub quantiles: Vec<Tensor>,
}

impl Model {
    /// Builds a model without user-defined modules; see [`Model::build_with`].
    pub fn build(config: &ModelConfig, spec: &ModelSpec, pb: &mut ParamBuilder) -> Result<Self, ModelError> {
        Self::build_with(config, spec, &SubModels::new(), pb)
    }

    /// Declares every parameter in `pb`. The buffers are on the CPU until [`Model::to_device`].
    ///
    /// # Errors
    /// When the configuration contradicts itself, refers to a module that is not among `models`, or the data has no
    /// inputs or outputs.
    pub fn build_with(
        config: &ModelConfig,
        spec: &ModelSpec,
        models: &SubModels,
        pb: &mut ParamBuilder,
    ) -> Result<Self, ModelError> {
        let config = &config.sized(spec.train_rows, &spec.out_shape);
        spec.check(config)?;
        let forest = config.forest()?;
        forest.check()?;
        let stateless = forest.tasks().iter().find(|task| is_stateless(&task.part)).map(|task| task.name.clone());
        let width = Width {
            model: config.d_model as i64,
            heads: config.heads as i64,
            hidden: FeedForward::hidden_width(config.d_model, config.mlp_ratio),
            norm: config.norm,
        };
        let regularise = Regularise { dropout: config.dropout, drop_path: config.drop_path };
        let grid = Grid::new(&spec.out_shape, &config.patch);
        let embedding = Embedding::new(pb, "embedding", &spec.features);
        let features = embedding.width();
        let crosses = Crosses::new(if config.linear_branch { &spec.features } else { &[] });
        let rounds = Rounds {
            latents: config.fuser_latents as i64,
            rounds: config.fuser_rounds,
            self_layers: config.fuser_self_layers,
        };
        let patterns = config.segments.iter().zip(&config.dilations);
        let patterns = patterns.map(|(&s, &d)| Pattern { segment: s as i64, dilation: d as i64 }).collect();
        let template = TemplateSpec { features, width, regularise, patterns, models: models.clone() };
        let fuser = FuserSpec { forest, reduction: config.fuser_reduction, template, rounds };
        let base = BaseSizes {
            cells: grid.cells(),
            rank: spec.head_rank(config) as i64,
            linear: config.linear_branch.then_some((features, crosses.columns())),
            channels: spec.head.channels(),
        };
        Ok(Self {
            scaler: Scaler::from_stats(&spec.x_stats, &spec.y_stats),
            embedding,
            crosses,
            fuser: Fuser::new(pb, "fuser", &fuser)?,
            base: BaseHead::new(pb, "base", width, base),
            collector: Collector::new(pb, "collector", grid.clone(), width, config.collector_depth, regularise),
            refine: RefineHead::new(pb, "refine", width, grid.patch_volume(), spec.head.channels()),
            gate: gate_features(config.gate, width.model).map(|features| SigmoidGate::new(pb, "gate", features)),
            gate_kind: config.gate,
            grid,
            output_range: config.output_range,
            stateless,
            head: spec.head.clone(),
            calibration: Calibration::default(),
        })
    }

    /// Sets the calibration of predictions and returns the previous one. A calibration belongs to the weights it was
    /// fitted for: a model in training has none.
    pub fn calibrate(&mut self, calibration: Calibration) -> Calibration {
        std::mem::replace(&mut self.calibration, calibration)
    }

    pub fn to_device(&mut self, device: Device) {
        self.scaler.to_device(device);
        self.embedding.to_device(device);
        self.crosses.to_device(device);
        self.fuser.to_device(device);
        self.calibration.to_device(device);
    }

    /// Maps inputs `x` (B, F) f32 in the user's units, with NaN or anything where missing, and `valid` (B, F) u8 or
    /// bool to [`Output`].
    pub fn forward(&self, cx: &Cx, x: &Tensor, valid: &Tensor) -> Result<Output, OpError> {
        self.forward_with(cx, x, valid, None)
    }

    fn forward_with(
        &self,
        cx: &Cx,
        x: &Tensor,
        valid: &Tensor,
        stream: Option<&mut Stream<'_>>,
    ) -> Result<Output, OpError> {
        let unit = 1.0 / (self.embedding.width() as f64).sqrt();
        let (features, crosses) = self.read(cx, x, valid)?;
        let features = functional::scale(cx, &features, unit)?;
        let wide = match crosses {
            Some(crosses) => functional::cat(cx, &[&features, &functional::scale(cx, &crosses, unit)?], 1)?,
            None => features.clone(),
        };
        let latents = self.fuser.forward(cx, &features, stream)?;
        let pooled = functional::mean(cx, &latents, &[1], false)?;
        // The last part is f32 in every precision: rounding here would show in each prediction.
        let (base, channels) = cx.full_precision(|cx| self.base.forward(cx, &pooled, &wide))?;
        let tokens = self.collector.forward(cx, &latents)?;
        cx.full_precision(|cx| {
            let output = self.tail(cx, base, &pooled, &tokens)?;
            let channels = channels.map(|base| self.channels(cx, base, &tokens)).transpose()?;
            self.rebased(cx, Output { channels, ..output })
        })
    }

    /// Adds the channels of the base head (B, P, O) and those of the refinement of grid tokens (B, G, D).
    fn channels(&self, cx: &Cx, base: Tensor, tokens: &Tensor) -> Result<Channels, OpError> {
        let patches = self.refine.channels(cx, tokens)?;
        let grids: Vec<Tensor> = patches.iter().map(|one| self.grid.unpatch(cx, one)).collect::<Result<_, _>>()?;
        let refined = functional::stack(cx, &grids.iter().collect::<Vec<_>>(), 1)?;
        let whole = self.head.channels_of(cx, &functional::add(cx, &base, &refined)?)?;
        Ok(Channels { whole, base: self.head.channels_of(cx, &base)? })
    }

    /// Converts the outputs of the heads to the standardisation of the targets.
    fn rebased(&self, cx: &Cx, output: Output) -> Result<Output, OpError> {
        let Some([scale, shift]) = self.scaler.rebased(cx)? else { return Ok(output) };
        let moved = |z: &Tensor| functional::add(cx, &functional::mul(cx, z, &scale)?, &shift);
        let wide = |channels: &Tensor| functional::mul(cx, channels, &scale);
        let channels = output.channels.as_ref();
        let channels = channels.map(|c| Ok(Channels { whole: wide(&c.whole)?, base: wide(&c.base)? })).transpose()?;
        let z = moved(&output.z)?;
        let base = moved(&output.base)?;
        let refined = moved(&output.refined)?;
        Ok(Output { z, base, refined, channels, ..output })
    }

    /// Runs [`Model::forward`] as one call of a stream: the temporal templates continue after the tokens of the
    /// previous calls, whose state is given; it is empty at first. Also returns the state after this call, which can be
    /// saved by its names ([`StreamState::named`]). No gradient flows between calls.
    ///
    /// # Errors
    /// As [`Model::forward`]; when a batch has other rows than the previous one; [`ModelError::NoStream`] when a
    /// temporal task has a mixer that keeps no state; [`ModelError::OtherStream`] when the state is another model's.
    pub fn forward_stream(
        &self,
        cx: &Cx,
        x: &Tensor,
        valid: &Tensor,
        state: &StreamState,
    ) -> Result<(Output, StreamState), ModelError> {
        let (output, after, _) = self.streamed(cx, x, valid, state)?;
        Ok((output, after))
    }

    /// Runs [`Model::forward_stream`] and also returns the states after the call as values of the step.
    pub fn streamed(
        &self,
        cx: &Cx,
        x: &Tensor,
        valid: &Tensor,
        state: &StreamState,
    ) -> Result<(Output, StreamState, Vec<Tensor>), ModelError> {
        if let Some(task) = &self.stateless {
            return Err(ModelError::NoStream { task: task.clone() });
        }
        let mut stream = Stream::after(state);
        let output = self.forward_with(cx, x, valid, Some(&mut stream))?;
        let (after, values) = stream.finish();
        let found = state.outline();
        let expected = after.outline();
        if !state.is_empty() && found != expected {
            return Err(ModelError::OtherStream { found, expected });
        }
        Ok((output, after, values))
    }

    /// Computes refinement, gate and their sum from the base (B, O), the mean latent (B, D) and grid tokens (B, G, D).
    fn tail(&self, cx: &Cx, base: Tensor, pooled: &Tensor, tokens: &Tensor) -> Result<Output, OpError> {
        let patches = self.refine.forward(cx, tokens)?;
        let delta = self.grid.unpatch(cx, &patches)?;
        let refined = functional::add(cx, &base, &delta)?;
        let Some(gate) = &self.gate else {
            let gate = functional::ones(cx, &[pooled.dim(0), 1], Kind::Float)?;
            return Ok(Output { z: refined.clone(), base, refined, gate, channels: None });
        };
        let _scope = cx.scope("gate");
        let (p, shift) = match self.gate_kind {
            Gate::Tile => {
                let energy = mean_square(cx, &patches, 2)?;
                let p = gate.forward(cx, &functional::cat(cx, &[tokens, &energy], 2)?)?;
                let shift = self.grid.unpatch(cx, &functional::mul(cx, &p, &patches)?)?;
                (functional::reshape(cx, &p, &[p.dim(0), self.grid.tokens()])?, shift)
            }
            Gate::Scalar | Gate::Off => {
                let seen = functional::mean(cx, tokens, &[1], false)?;
                let a = mean_square(cx, &base, 1)?;
                let r = mean_square(cx, &delta, 1)?;
                let p = gate.forward(cx, &functional::cat(cx, &[pooled, &seen, &a, &r], 1)?)?;
                let shift = functional::mul(cx, &p, &delta)?;
                (p, shift)
            }
        };
        Ok(Output { z: functional::add(cx, &base, &shift)?, base, refined, gate: p, channels: None })
    }

    /// Returns the inputs of templates and of the linear branch (divided by √F'): the feature vector (B, F'), and the
    /// crosses of categories (B, C), where there are any.
    pub fn read(&self, cx: &Cx, x: &Tensor, valid: &Tensor) -> Result<(Tensor, Option<Tensor>), OpError> {
        let _scope = cx.scope("embedding");
        let valid = usable(cx, x, valid)?;
        let x = self.scaler.norm_x(cx, x)?;
        Ok((self.embedding.forward(cx, &x, &valid)?, self.crosses.forward(cx, &x, &valid)?))
    }

    /// Prepares targets `y` (B, O) or (B, *out_shape) in the user's units for the loss. A mask of f32 holds the weight
    /// of each valid cell.
    pub fn targets(&self, cx: &Cx, y: &Tensor, valid: &Tensor) -> Result<Targets, OpError> {
        let mut targets = self.standardised(cx, y, valid)?;
        if self.head == Head::Classes {
            targets.z = functional::reshape(cx, y, targets.z.shape())?;
        }
        Ok(targets)
    }

    fn standardised(&self, cx: &Cx, y: &Tensor, valid: &Tensor) -> Result<Targets, OpError> {
        let _scope = cx.scope("targets");
        let flat = |t: &Tensor| functional::reshape(cx, t, &[t.dim(0), self.grid.cells()]);
        let y = flat(y)?;
        let mask = flat(valid)?;
        let valid = usable(cx, &y, &mask)?;
        let weight = (mask.kind() == Kind::Float).then_some(mask);
        Ok(Targets { z: self.scaler.norm_y(cx, &y)?, valid, weight })
    }

    /// Converts an output to the user's units.
    ///
    /// # Errors
    /// When the output is another model's.
    pub fn answer(&self, cx: &Cx, output: &Output) -> Result<Answer, OpError> {
        if self.head == Head::Classes {
            return Ok(Answer { point: functional::softmax(cx, &output.z, -1)?, quantiles: Vec::new() });
        }
        let z = self.calibration.location(cx, &output.z)?;
        let quantiles = self.quantiles(cx, &z, output)?;
        let quantiles = quantiles.iter().map(|z| self.denorm(cx, z)).collect::<Result<_, _>>()?;
        Ok(Answer { point: self.denorm(cx, &z)?, quantiles })
    }

    /// Calibrates the location of an output, for losses that evaluate it.
    ///
    /// # Errors
    /// When the output is another model's.
    pub fn calibrated(&self, cx: &Cx, output: &Output) -> Result<Output, OpError> {
        Ok(Output { z: self.calibration.location(cx, &output.z)?, ..output.clone() })
    }

    /// Returns the standardised quantiles (B, O) around a location, one per level; empty for a head without quantiles.
    ///
    /// # Errors
    /// When the output is another model's.
    pub fn quantiles(&self, cx: &Cx, z: &Tensor, output: &Output) -> Result<Vec<Tensor>, OpError> {
        let channels = output.channels.as_ref().map(|channels| &channels.whole);
        match self.calibration.stretch(cx)? {
            None => self.head.quantiles(cx, z, channels),
            Some(stretch) => self.head.stretched(cx, z, channels, &stretch),
        }
    }

    /// Converts standardised predictions (B, O) to f32 in the user's units, clamped to the declared output range.
    pub fn denorm(&self, cx: &Cx, z: &Tensor) -> Result<Tensor, OpError> {
        let _scope = cx.scope("denorm");
        let y = self.scaler.denorm(cx, z)?;
        let y = match self.output_range {
            Some((low, high)) => functional::clamp(cx, &y, low, high)?,
            None => y,
        };
        functional::cast(cx, &y, Kind::Float)
    }

    /// Returns the buffers (f64) by name, for checkpoints.
    pub fn buffers(&self) -> Vec<(String, Raw)> {
        self.scaler.named().iter().map(|(name, raw)| (format!("scaler.{name}"), raw.shallow_clone())).collect()
    }

    /// Copies a buffer of a checkpoint into the model.
    ///
    /// # Errors
    /// When the model has no buffer of this name, or of another shape.
    pub fn load_buffer(&mut self, name: &str, value: &Raw) -> Result<(), ModelError> {
        let misfit = |expected: Vec<i64>| ModelError::Buffer { name: name.to_owned(), found: value.size(), expected };
        let cells = self.grid.cells();
        if let Some((_, part)) = Rebase::NAMED.iter().find(|(own, _)| name.strip_prefix("scaler.") == Some(*own)) {
            if value.size() != [cells] {
                return Err(misfit(vec![cells]));
            }
            return Ok(self.scaler.rebase(*part, value)?);
        }
        let mut buffers = self.scaler.named_mut();
        let own = buffers.iter_mut().find(|(own, _)| name.strip_prefix("scaler.") == Some(*own));
        let Some((_, buffer)) = own else { return Err(misfit(Vec::new())) };
        if buffer.size() != value.size() {
            return Err(misfit(buffer.size()));
        }
        tch::no_grad(|| buffer.f_copy_(value))?;
        Ok(self.scaler.settle()?)
    }

    /// Returns the number of quantiles per cell; 0 for a head without quantiles.
    pub fn levels(&self) -> i64 {
        match &self.head {
            Head::Quantiles { levels } => levels.len() as i64,
            Head::Scale { offsets } => offsets.len() as i64,
            Head::Point | Head::Classes => 0,
        }
    }

    /// Returns the output grid in patches.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Returns F, the number of input columns.
    pub fn columns(&self) -> i64 {
        self.embedding.columns()
    }
}

/// Whether a task is temporal with a mixer that keeps no state.
fn is_stateless(part: &Part) -> bool {
    matches!(part, Part::Template(TemplateConfig { mode: Mode::Temporal, mixer: Mixer::Dilated, .. }))
}

/// Returns the number of inputs of the gate; `None` when there is no gate.
fn gate_features(gate: Gate, width: i64) -> Option<i64> {
    match gate {
        Gate::Off => None,
        Gate::Scalar => Some(2 * width + 2),
        Gate::Tile => Some(width + 1),
    }
}

/// Returns the mean square over `axis`, which is kept. It is smooth at zero, where the refinement begins; a root would
/// not be.
fn mean_square(cx: &Cx, x: &Tensor, axis: i64) -> Result<Tensor, OpError> {
    functional::mean(cx, &functional::square(cx, x)?, &[axis], true)
}

/// Returns the cells that are marked valid and hold a finite number.
fn usable(cx: &Cx, values: &Tensor, valid: &Tensor) -> Result<Tensor, OpError> {
    functional::and(cx, &functional::cast(cx, valid, Kind::Bool)?, &functional::is_finite(cx, values)?)
}

#[cfg(test)]
mod pretrained_tests;
#[cfg(test)]
mod task_tests;
#[cfg(test)]
mod tests;
