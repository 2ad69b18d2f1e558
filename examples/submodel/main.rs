//! A worker with a user-defined module inside ENN's model: a task of the configuration selects it by name.
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

/// Computes x ← x + W norm x along the tokens: each token becomes a learned sum of all. Initially x ← x.
struct TokenMap {
    norm: Normalise,
    /// Weights (N, N).
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

/// Computes x ← relu(x³/(1 + x²)) without weights: small values shrink, negative ones become 0, and infinite
/// ones become NaN.
struct Shrunk;

impl SubModel for Shrunk {
    fn forward(&self, cx: &Cx, tokens: &Tensor) -> Result<Tensor, OpError> {
        let square = f::square(cx, tokens)?;
        let share = f::div(cx, &f::mul(cx, &square, tokens)?, &f::add_scalar(cx, &square, 1.0)?)?;
        f::relu(cx, &share)
    }
}

/// Computes x ← x + Σ/100 of the tokens up to each, with an operator of libtorch: it has no gradient and cannot be exported. Exportable
/// modules consist of the functions above; `enn export` names the nearest ones.
struct RunningSum;

impl SubModel for RunningSum {
    fn forward(&self, cx: &Cx, tokens: &Tensor) -> Result<Tensor, OpError> {
        let along = vec![AtenArg::Operand, AtenArg::Int(1), AtenArg::None];
        let sum = f::aten(cx, "aten::cumsum", "", along, &[&f::detach(cx, tokens)?])?;
        f::add(cx, tokens, &f::scale(cx, &sum[0], 0.01)?)
    }
}
