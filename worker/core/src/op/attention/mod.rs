//! Attention, and the choice of tokens that makes it sparse.

mod aten;
mod cpu;
mod cuda;
pub mod dilate;
pub mod sdpa;

use super::attr::{Score, Structural};
use super::row::{Fit, Launch};
use tch::Tensor;

/// The attributes of an attention and of its reverse, as kernels see them.
#[derive(Debug, Clone, Copy)]
struct AttentionCall {
    mask: Structural,
    bias: bool,
    /// Whether the gradient of the bias is asked for.
    dbias: bool,
    score: Score,
    /// The operand at which q, k, v begin.
    first: usize,
}

impl AttentionCall {
    /// Whether it masks what comes later.
    fn causal(self) -> bool {
        self.mask == Structural::Causal
    }

    /// Whether kernels that know neither windows nor modified scores take the operands.
    fn fits_library(self, l: &Launch<'_>) -> Fit {
        if self.dbias {
            return Err("gives no gradient of the bias");
        }
        let q = l.at(self.first);
        let k = l.at(self.first + 1);
        let v = l.at(self.first + 2);
        if matches!(self.mask, Structural::Window(_) | Structural::Dilated { .. }) {
            return Err("knows no windows");
        }
        if self.score != Score::PLAIN {
            return Err("knows neither a soft cap nor a bias by distance");
        }
        if self.causal() && self.bias {
            return Err("takes a causal mask or a bias, not both");
        }
        if q.size()[3] != v.size()[3] {
            return Err("takes values of the keys' width only");
        }
        if q.numel() == 0 || k.numel() == 0 {
            return Err("takes no empty operands");
        }
        if [q, k, v].iter().any(|t| t.stride()[3] != 1) {
            return Err("takes operands whose last axis is dense");
        }
        Ok(())
    }
}

/// The factor of the scores: 1/√Dh.
fn scale(q: &Tensor) -> f64 {
    1.0 / (q.size()[3].max(1) as f64).sqrt()
}
