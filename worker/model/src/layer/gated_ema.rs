//! Gated exponential moving average: a decaying sum of values per head, gated by queries; linear in the number of tokens.

use super::{Linear, Normalise, Width};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::{self, Dir},
    params::{Group, Init, ParamBuilder, ParamId},
};

/// Range of β: λ = 1 − 2^(−β) is within 0.5 and 1 − 1.5e-5.
const BETA_RANGE: (f64, f64) = (1.0, 16.0);
/// Initial β of head h is `BETA_START + h/H`.
const BETA_START: f64 = 5.0;

/// (q, v, g) = x W_qvg;  s = Σ_j λ_h^|t−j| v_j;  out = W_o (Norm(q ⊙ s) ⊙ SiLU(g)).
///
/// The sum runs over j ≤ t (causal) or over all j (bidirectional: forward + backward − v).
/// W_qvg is (3D, D): rows 0..D give q, D..2D give v, 2D..3D give g; W_o is (D, D); β is (H). No biases.
#[derive(Debug, Clone)]
pub struct GatedEma(DecayingSum);

impl GatedEma {
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width, direction: Dir) -> Self {
        Self(DecayingSum::new(pb, name, ("qvg", 3), width, direction))
    }

    /// Maps (B, N, D) to (B, N, D). The causal direction also returns the state (B, H, D/H) after the last token.
    ///
    /// `state` is the state returned for the preceding tokens; `None` stands for zeros.
    ///
    /// # Errors
    /// When `x` is not (B, N, D), or a state is given to the bidirectional form.
    pub fn forward(&self, cx: &Cx, x: &Tensor, state: Option<&Tensor>) -> Result<(Tensor, Option<Tensor>), OpError> {
        let d = self.0.width;
        let batch = x.dim(0);
        let tokens = x.dim(1);
        let qvg = self.0.all.forward(cx, x)?;
        let qvg = functional::split(cx, &qvg, &[d, d, d], 2)?;
        let [q, v, g] = qvg.as_slice() else { unreachable!("split gives one part per size") };
        let v = functional::reshape(cx, v, &[batch, tokens, self.0.heads, d / self.0.heads])?;
        let (sums, state) = functional::retention_scan(cx, &v, &self.0.lambda(cx)?, self.0.direction, state)?;
        let sums = functional::reshape(cx, &sums, &[batch, tokens, d])?;
        let y = self.0.norm.gated_forward(cx, &sums, q, g)?;
        Ok((self.0.out.forward(cx, &y)?, state))
    }
}

/// What the mixers that sum with a decay consist of.
#[derive(Debug, Clone)]
pub(super) struct DecayingSum {
    /// Makes queries, values and whatever else the mixer needs, one after the other.
    pub(super) all: Linear,
    pub(super) out: Linear,
    pub(super) norm: Normalise,
    /// β of each head, learned.
    beta: ParamId,
    pub(super) width: i64,
    pub(super) heads: i64,
    pub(super) direction: Dir,
}

impl DecayingSum {
    /// Makes the parameters; `all` is the name of the first projection and the number of its parts.
    pub(super) fn new(pb: &mut ParamBuilder, name: &str, all: (&str, i64), width: Width, direction: Dir) -> Self {
        let Width { model, heads, norm, .. } = width;
        pb.scoped(name, |pb| Self {
            all: Linear::unbiased(pb, all.0, model, all.1 * model),
            out: Linear::unbiased(pb, "out", model, model),
            norm: Normalise::new(pb, "norm", norm, model),
            beta: pb.param("beta", &[heads], Init::Value(beta_start(heads)), Group::NoDecay),
            width: model,
            heads,
            direction,
        })
    }

    /// Returns the decay of each head (H): λ = 1 − 2^(−clamp β).
    pub(super) fn lambda(&self, cx: &Cx) -> Result<Tensor, OpError> {
        functional::retention_decay(cx, &cx.param(self.beta), BETA_RANGE.0, BETA_RANGE.1)
    }
}

fn beta_start(heads: i64) -> Vec<f32> {
    (0..heads).map(|h| (BETA_START + h as f64 / heads as f64) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::config::model::Norm;
    use tch::{Device, Kind, Tensor as Raw};

    fn layer(direction: Dir) -> (GatedEma, enn_core::params::Params) {
        let mut pb = ParamBuilder::new();
        let width = Width { model: 8, heads: 2, hidden: 8, norm: Norm::LayerNorm };
        let layer = GatedEma::new(&mut pb, "retention", width, direction);
        (layer, pb.build(1, Device::Cpu).unwrap())
    }

    fn tokens(seed: i64, count: i64) -> Raw {
        tch::manual_seed(seed);
        Raw::randn([3, count, 8], (Kind::Float, Device::Cpu))
    }

    #[test]
    fn one_call_equals_two_with_the_state_between() {
        let (layer, params) = layer(Dir::Causal);
        let cx = Cx::eval(&params);
        let x = tokens(2, 70);
        let (whole, end) = layer.forward(&cx, &cx.input(x.shallow_clone()), None).unwrap();
        let (first, state) = layer.forward(&cx, &cx.input(x.narrow(1, 0, 45)), None).unwrap();
        let (second, last) = layer.forward(&cx, &cx.input(x.narrow(1, 45, 25)), state.as_ref()).unwrap();
        let joined = Raw::cat(&[first.raw(), second.raw()], 1);
        assert!((joined - whole.raw()).abs().max().double_value(&[]) < 1e-5);
        assert!((end.unwrap().raw() - last.unwrap().raw()).abs().max().double_value(&[]) < 1e-5);
    }

    #[test]
    fn causal_tokens_never_see_later_ones_and_bidirectional_ones_do() {
        for (direction, changes) in [(Dir::Causal, false), (Dir::Bidirectional, true)] {
            let (layer, params) = layer(direction);
            let cx = Cx::eval(&params);
            let x = tokens(3, 10);
            let other = x.copy();
            let _ = other.narrow(1, 9, 1).fill_(5.0);
            let (a, _) = layer.forward(&cx, &cx.input(x), None).unwrap();
            let (b, _) = layer.forward(&cx, &cx.input(other), None).unwrap();
            let moved = (a.raw() - b.raw()).narrow(1, 0, 9).abs().max().double_value(&[]);
            assert_eq!(moved > 1e-6, changes, "{direction:?}: {moved}");
        }
    }

    #[test]
    fn decay_per_head_is_that_of_its_beta() {
        let (layer, params) = layer(Dir::Causal);
        let cx = Cx::eval(&params);
        let lambda = Vec::<f32>::try_from(layer.0.lambda(&cx).unwrap().raw()).unwrap();
        // The initial β are 5 and 5.5.
        assert!((lambda[0] - (1.0 - 2.0_f32.powf(-5.0))).abs() < 1e-6);
        assert!((lambda[1] - (1.0 - 2.0_f32.powf(-5.5))).abs() < 1e-6);
    }
}
