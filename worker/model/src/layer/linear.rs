//! Affine map of the last axis.

use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::{Group, Init, ParamBuilder, ParamId},
};

/// y = x Wᵀ + b over the last axis: (…, I) → (…, O), with W (O, I) and b (O).
#[derive(Debug, Clone)]
pub struct Linear {
    weight: ParamId,
    bias: Option<ParamId>,
}

impl Linear {
    /// Creates a map with a bias; both begin uniform in ±1/√I, as in torch.nn.Linear.
    pub fn biased(pb: &mut ParamBuilder, name: &str, inputs: i64, outputs: i64) -> Self {
        let init = || Init::Linear { fan_in: inputs };
        Self::new(pb, name, inputs, outputs, init(), Some(init()))
    }

    /// Creates a map with a bias, for inputs that the caller has divided by √I. Weights begin uniform in ±1, so that
    /// the map begins as `biased` would on the undivided inputs. Under Adam every weight moves by the learning rate
    /// whatever its size; with many inputs the undivided form would move its output I/√I times as far per step.
    pub fn wide(pb: &mut ParamBuilder, name: &str, inputs: i64, outputs: i64) -> Self {
        let bias = Init::Linear { fan_in: inputs };
        Self::new(pb, name, inputs, outputs, Init::Uniform { bound: 1.0 }, Some(bias))
    }

    /// Creates a map without a bias; weights begin uniform in ±1/√I.
    pub fn unbiased(pb: &mut ParamBuilder, name: &str, inputs: i64, outputs: i64) -> Self {
        Self::new(pb, name, inputs, outputs, Init::Linear { fan_in: inputs }, None)
    }

    /// Creates a map with a bias in which all numbers are zero, so that it begins as y = 0.
    pub fn zeroed(pb: &mut ParamBuilder, name: &str, inputs: i64, outputs: i64) -> Self {
        Self::new(pb, name, inputs, outputs, Init::Zeros, Some(Init::Zeros))
    }

    fn new(pb: &mut ParamBuilder, name: &str, inputs: i64, outputs: i64, weight: Init, bias: Option<Init>) -> Self {
        pb.scoped(name, |pb| Self {
            weight: pb.param("weight", &[outputs, inputs], weight, Group::Decay),
            bias: bias.map(|bias| pb.param("bias", &[outputs], bias, Group::NoDecay)),
        })
    }

    /// (…, I) → (…, O).
    pub fn forward(&self, cx: &Cx, x: &Tensor) -> Result<Tensor, OpError> {
        let weight = cx.param(self.weight);
        let bias = self.bias.map(|id| cx.param(id));
        functional::linear(cx, x, &weight, bias.as_ref())
    }
}
