//! Multi-scale retention as in RetNet (arXiv:2307.08621): a decaying sum of outer products per head, read by queries,
//! linear in the number of tokens.
//!
//! The layer consists of existing operations: chunks of 64 tokens are matrix products, and the state between chunks is
//! computed by `retention_scan`, whose carries are at least f32. The bidirectional form is two causal passes.

use super::{Width, gated_ema::DecayingSum};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::{self, Dir},
    params::ParamBuilder,
};
use tch::Tensor as Raw;

/// Number of tokens per chunk.
const CHUNK: i64 = 64;

/// (q, k, v, g) = x W_qkvg;  S_t = λ S_{t−1} + k_t ⊗ v_t;  out = W_o (Norm(q_t S_t / √Dh) ⊙ SiLU(g)).
///
/// This is Σ_j λ^(t−j) (q_t·k_j) v_j over j ≤ t; the bidirectional form sums λ^|t−j| (q_t·k_j) v_j over all j. W_qkvg
/// is (4D, D): rows 0..D give q, then k, v, g; W_o is (D, D); β is (H). There are no biases.
#[derive(Debug, Clone)]
pub struct Retention(DecayingSum);

/// Queries, keys and values, (B,H,N,Dh) each.
struct Heads {
    q: Tensor,
    k: Tensor,
    v: Tensor,
}

impl Retention {
    /// Creates a layer for `direction`.
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width, direction: Dir) -> Self {
        Self(DecayingSum::new(pb, name, ("qkvg", 4), width, direction))
    }

    /// Maps (B, N, D) to (B, N, D). The causal direction also returns the state (B, H, D/H, D/H) after the last token.
    ///
    /// # Errors
    /// When `x` is not (B, N, D), or a state is given to the bidirectional form.
    pub fn forward(&self, cx: &Cx, x: &Tensor, state: Option<&Tensor>) -> Result<(Tensor, Option<Tensor>), OpError> {
        let d = self.0.width;
        let batch = x.dim(0);
        let tokens = x.dim(1);
        let dh = d / self.0.heads;
        let all = self.0.all.forward(cx, x)?;
        let all = functional::split(cx, &all, &[d, d, d, d], 2)?;
        let [q, k, v, g] = all.as_slice() else { unreachable!("split gives one part per size") };
        let split = |t: &Tensor| {
            functional::transpose(cx, &functional::reshape(cx, t, &[batch, tokens, self.0.heads, dh])?, 1, 2)
        };
        let k = functional::scale(cx, k, 1.0 / (dh as f64).sqrt())?;
        let heads = Heads { q: split(q)?, k: split(&k)?, v: split(v)? };
        let rate = functional::log(cx, &self.0.lambda(cx)?)?;
        let (y, state) = match self.0.direction {
            Dir::Causal => {
                let (y, state) = self.causal(cx, &heads, &rate, state)?;
                (y, Some(state))
            }
            Dir::Bidirectional => (self.both(cx, &heads, &rate)?, None),
        };
        let y = functional::reshape(cx, &functional::transpose(cx, &y, 1, 2)?, &[batch, tokens, d])?;
        let y = functional::silu_mul(cx, g, &self.0.norm.forward(cx, &y)?)?;
        Ok((self.0.out.forward(cx, &y)?, state))
    }

    /// Sums over earlier and over later tokens, with the token itself counted once.
    fn both(&self, cx: &Cx, heads: &Heads, rate: &Tensor) -> Result<Tensor, OpError> {
        let back = |t: &Tensor| functional::flip(cx, t, 2);
        let flipped = Heads { q: back(&heads.q)?, k: back(&heads.k)?, v: back(&heads.v)? };
        let (before, _) = self.causal(cx, heads, rate, None)?;
        let (after, _) = self.causal(cx, &flipped, rate, None)?;
        let own = functional::sum(cx, &functional::mul(cx, &heads.q, &heads.k)?, &[3], true)?;
        let sum = functional::add(cx, &before, &back(&after)?)?;
        functional::sub(cx, &sum, &functional::mul(cx, &own, &heads.v)?)
    }

    /// Returns y (B,H,N,Dh) and the state (B,H,Dh,Dh): first for the whole chunks, then for the remaining tokens.
    fn causal(
        &self,
        cx: &Cx,
        heads: &Heads,
        rate: &Tensor,
        state: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor), OpError> {
        let tokens = heads.q.dim(2);
        let whole = tokens / CHUNK * CHUNK;
        let part = |from: i64, len: i64, chunk: i64, state: Option<&Tensor>| {
            let cut = |t: &Tensor| functional::narrow(cx, t, 2, from, len);
            self.chunks(cx, &Heads { q: cut(&heads.q)?, k: cut(&heads.k)?, v: cut(&heads.v)? }, rate, chunk, state)
        };
        if whole == 0 || whole == tokens {
            return part(0, tokens, tokens.min(CHUNK), state);
        }
        let (first, between) = part(0, whole, CHUNK, state)?;
        let (last, end) = part(whole, tokens - whole, tokens - whole, Some(&between))?;
        Ok((functional::cat(cx, &[&first, &last], 2)?, end))
    }

    /// Computes [`Self::causal`] for a multiple of `chunk` tokens.
    fn chunks(
        &self,
        cx: &Cx,
        heads: &Heads,
        rate: &Tensor,
        chunk: i64,
        state: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor), OpError> {
        let batch = heads.q.dim(0);
        let h = self.0.heads;
        let dh = self.0.width / self.0.heads;
        let count = if chunk == 0 { 0 } else { heads.q.dim(2) / chunk };
        let cut = |t: &Tensor| functional::reshape(cx, t, &[batch, h, count, chunk, dh]);
        let q = cut(&heads.q)?;
        let k = cut(&heads.k)?;
        let v = cut(&heads.v)?;
        let powers = Powers::new(cx, rate, chunk)?;
        let scores = functional::mul(cx, &functional::matmul_t(cx, &q, &k, false, true)?, &powers.between)?;
        let within = functional::matmul(cx, &scores, &v)?;
        // Contributions of each chunk to the state: (B, chunks, H, Dh·Dh), in f32 from here on.
        let (before, end) = cx.full_precision(|cx| {
            let left = functional::matmul_t(cx, &functional::mul(cx, &k, &powers.to_end)?, &v, true, false)?;
            let left = functional::reshape(cx, &functional::transpose(cx, &left, 1, 2)?, &[batch, count, h, dh * dh])?;
            let start = match state {
                Some(state) => functional::reshape(cx, state, &[batch, h, dh * dh])?,
                None => functional::zeros(cx, &[batch, h, dh * dh], left.kind())?,
            };
            let (sums, end) = functional::retention_scan(cx, &left, &powers.whole, Dir::Causal, Some(&start))?;
            let end = end.unwrap_or_else(|| start.clone());
            let start = functional::unsqueeze(cx, &start, 1)?;
            let before = if count > 1 {
                functional::cat(cx, &[&start, &functional::narrow(cx, &sums, 1, 0, count - 1)?], 1)?
            } else {
                functional::narrow(cx, &start, 1, 0, count)?
            };
            let before = functional::reshape(cx, &before, &[batch, count, h, dh, dh])?;
            Ok((functional::transpose(cx, &before, 1, 2)?, functional::reshape(cx, &end, &[batch, h, dh, dh])?))
        })?;
        let carried = functional::matmul(cx, &functional::mul(cx, &q, &powers.from_start)?, &before)?;
        let y = functional::add(cx, &within, &carried)?;
        Ok((functional::reshape(cx, &y, &[batch, h, count * chunk, dh])?, end))
    }
}

/// Powers of λ within a chunk of C tokens.
struct Powers {
    /// λ^(i−j) for j ≤ i, else 0, of shape (H,1,C,C).
    between: Tensor,
    /// λ^(i+1) of shape (H,1,C,1).
    from_start: Tensor,
    /// λ^(C−1−i) of shape (H,1,C,1).
    to_end: Tensor,
    /// λ^C of shape (H).
    whole: Tensor,
}

impl Powers {
    /// Computes the powers from log λ (H).
    fn new(cx: &Cx, rate: &Tensor, chunk: i64) -> Result<Self, OpError> {
        let make = || -> Result<[Raw; 3], tch::TchError> {
            let at = Raw::f_arange(chunk, (rate.kind(), cx.device()))?;
            let gap = at.f_unsqueeze(1)?.f_sub(&at)?;
            let keep = gap.f_ge(0.0)?.f_to_kind(rate.kind())?;
            Ok([at.f_unsqueeze(1)?, gap.f_clamp_min(0.0)?, keep])
        };
        let [at, gap, keep] = make().map_err(|error| cx.fail("retnet", error))?.map(|raw| cx.constant(raw));
        let rates = functional::reshape(cx, rate, &[-1, 1, 1, 1])?;
        let power = |of: &Tensor| functional::exp(cx, &functional::mul(cx, &rates, of)?);
        let to_end = functional::add_scalar(cx, &functional::neg(cx, &at)?, (chunk - 1) as f64)?;
        Ok(Self {
            between: functional::mul(cx, &power(&gap)?, &keep)?,
            from_start: power(&functional::add_scalar(cx, &at, 1.0)?)?,
            to_end: power(&to_end)?,
            whole: functional::exp(cx, &functional::scale(cx, rate, chunk as f64)?)?,
        })
    }
}
