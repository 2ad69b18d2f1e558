//! A worker with a module of one's own inside ENN's model: a task of the configuration asks for it by name.
//!
//! ```text
//! [[model.tasks]]
//! name = "calendar"
//! mode = "spatial"
//! model = "token_map"
//! ```
//! `ENN_WORKER=target/release/submodel enn train FILE`, and the same for `enn predict`: everything else is as with `enn-worker`.

use enn_worker::{
    autograd::{Cx, Tensor},
    block::{SubModel, SubModelSpec, SubModels},
    error::OpError,
    functional as f,
    layer::Normalise,
    op::aten::AtenArg,
    params::{Group, Init, ParamBuilder, ParamId},
    session::{Own, program},
};
use std::process::ExitCode;

fn main() -> ExitCode {
    let models = SubModels::new()
        .with("token_map", |pb, spec| Box::new(TokenMap::new(pb, spec)))
        .with("shrunk", |_, _| Box::new(Shrunk))
        .with("running_sum", |_, _| Box::new(RunningSum));
    program(&Own { models, ..Own::default() })
}

/// x ← x + W norm x along the tokens: each token becomes a learned sum of all. Begins as x ← x.
struct TokenMap {
    norm: Normalise,
    /// (N, N).
    weight: ParamId,
}

impl TokenMap {
    fn new(pb: &mut ParamBuilder, spec: SubModelSpec) -> Self {
        let SubModelSpec { tokens, width } = spec;
        Self {
            norm: Normalise::new(pb, "norm", width.norm, width.model),
            weight: pb.param("weight", &[tokens, tokens], Init::Zeros, Group::Decay),
        }
    }
}

impl SubModel for TokenMap {
    fn forward(&self, cx: &Cx, tokens: &Tensor) -> Result<Tensor, OpError> {
        let across = f::transpose(cx, &self.norm.forward(cx, tokens)?, 1, 2)?;
        let mapped = f::linear(cx, &across, &cx.param(self.weight), None)?;
        f::add(cx, tokens, &f::transpose(cx, &mapped, 1, 2)?)
    }
}

/// x ← relu(x³/(1 + x²)): without weights; what is small shrinks, what is below 0 goes, and what is out of all
/// bounds is no number afterwards.
struct Shrunk;

impl SubModel for Shrunk {
    fn forward(&self, cx: &Cx, tokens: &Tensor) -> Result<Tensor, OpError> {
        let square = f::square(cx, tokens)?;
        let share = f::div(cx, &f::mul(cx, &square, tokens)?, &f::add_scalar(cx, &square, 1.0)?)?;
        f::relu(cx, &share)
    }
}

/// x ← x + Σ/100 of the tokens up to each, by an operator of libtorch's own: it has no gradient, and no way out of here. What leaves is
/// made of the functions above; `enn export` says which are nearest.
struct RunningSum;

impl SubModel for RunningSum {
    fn forward(&self, cx: &Cx, tokens: &Tensor) -> Result<Tensor, OpError> {
        let along = vec![AtenArg::Operand, AtenArg::Int(1), AtenArg::None];
        let sum = f::aten(cx, "aten::cumsum", "", along, &[&f::detach(cx, tokens)?])?;
        f::add(cx, tokens, &f::scale(cx, &sum[0], 0.01)?)
    }
}
