//! User-defined layers: the parts of GPT-2 that `enn_worker::layer` lacks. A layer is a struct that declares its
//! parameters in `new` and calls `functional` in `forward`; gradients, names in checkpoints and names in errors follow.

use enn_worker::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::{self as f, Structural},
    params::{Group, Init, ParamBuilder, ParamId},
};

/// Constant added to variances.
const EPS: f64 = 1e-5;
/// Standard deviation of initial weights.
pub(crate) const SPREAD: f64 = 0.02;

/// y = x Wᵀ + b with normally distributed weights.
pub(crate) struct Affine {
    weight: ParamId,
    bias: ParamId,
}

impl Affine {
    /// Declares weights (outputs, inputs) of standard deviation `std` and a zero bias.
    pub(crate) fn new(pb: &mut ParamBuilder, name: &str, inputs: i64, outputs: i64, std: f64) -> Self {
        pb.scoped(name, |pb| Self {
            weight: pb.param("weight", &[outputs, inputs], Init::Normal { std }, Group::Decay),
            bias: pb.param("bias", &[outputs], Init::Zeros, Group::NoDecay),
        })
    }

    /// Maps (…, inputs) → (…, outputs).
    pub(crate) fn forward(&self, cx: &Cx<'_>, x: &Tensor) -> Result<Tensor, OpError> {
        f::linear(cx, x, &cx.param(self.weight), Some(&cx.param(self.bias)))
    }
}

/// Normalisation over the last axis with learned scale and shift.
pub(crate) struct Norm {
    weight: ParamId,
    bias: ParamId,
}

impl Norm {
    /// Declares scale 1 and shift 0.
    pub(crate) fn new(pb: &mut ParamBuilder, name: &str, width: i64) -> Self {
        pb.scoped(name, |pb| Self {
            weight: pb.param("weight", &[width], Init::Ones, Group::NoDecay),
            bias: pb.param("bias", &[width], Init::Zeros, Group::NoDecay),
        })
    }

    /// Returns the stream with its branch added, and the norm of the sum.
    pub(crate) fn join(&self, cx: &Cx<'_>, stream: Stream) -> Result<(Tensor, Tensor), OpError> {
        let weight = cx.param(self.weight);
        let bias = cx.param(self.bias);
        match stream.branch {
            Some(branch) => f::add_norm(cx, &stream.x, &branch, &weight, Some(&bias), EPS),
            None => {
                let normed = f::layer_norm(cx, &stream.x, &weight, &bias, EPS)?;
                Ok((stream.x, normed))
            }
        }
    }
}

/// State between blocks, (B, N, D) each: the sum so far, and the branch to be added to it. The next norm adds it, which
/// is one operation instead of two.
pub(crate) struct Stream {
    pub(crate) x: Tensor,
    pub(crate) branch: Option<Tensor>,
}

/// Sizes of a block.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// Width of a token, D.
    pub(crate) width: i64,
    /// Number of attention heads.
    pub(crate) heads: i64,
    /// Standard deviation of the weights that write into the residual stream.
    pub(crate) out_std: f64,
    /// Dropout rate.
    pub(crate) dropout: f64,
}

/// Causal self-attention: a position attends to itself and to earlier ones.
pub(crate) struct CausalAttention {
    qkv: Affine,
    out: Affine,
    size: Size,
}

impl CausalAttention {
    /// Declares both linear maps.
    pub(crate) fn new(pb: &mut ParamBuilder, name: &str, size: Size) -> Self {
        let d = size.width;
        pb.scoped(name, |pb| Self {
            qkv: Affine::new(pb, "qkv", d, 3 * d, SPREAD),
            out: Affine::new(pb, "out", d, d, size.out_std),
            size,
        })
    }

    /// Maps (B, N, D) → (B, N, D).
    pub(crate) fn forward(&self, cx: &Cx<'_>, x: &Tensor) -> Result<Tensor, OpError> {
        let batch = x.dim(0);
        let tokens = x.dim(1);
        let d = self.size.width;
        let heads = self.size.heads;
        let qkv = self.qkv.forward(cx, x)?;
        let parts = f::split(cx, &qkv, &[d, d, d], 2)?;
        let head = |part: &Tensor| {
            let part = f::reshape(cx, part, &[batch, tokens, heads, d / heads])?;
            f::transpose(cx, &part, 1, 2)
        };
        let q = head(&parts[0])?;
        let k = head(&parts[1])?;
        let v = head(&parts[2])?;
        let mixed = f::sdpa(cx, &q, &k, &v, None, Structural::Causal)?;
        let mixed = f::transpose(cx, &mixed, 1, 2)?;
        self.out.forward(cx, &f::reshape(cx, &mixed, &[batch, tokens, d])?)
    }
}

/// Two linear maps with GELU between, four times as wide.
pub(crate) struct Mlp {
    up: Affine,
    down: Affine,
}

impl Mlp {
    /// Declares both linear maps.
    pub(crate) fn new(pb: &mut ParamBuilder, name: &str, size: Size) -> Self {
        let d = size.width;
        pb.scoped(name, |pb| Self {
            up: Affine::new(pb, "up", d, 4 * d, SPREAD),
            down: Affine::new(pb, "down", 4 * d, d, size.out_std),
        })
    }

    /// Maps (…, D) → (…, D).
    pub(crate) fn forward(&self, cx: &Cx<'_>, x: &Tensor) -> Result<Tensor, OpError> {
        let wide = f::gelu(cx, &self.up.forward(cx, x)?, true)?;
        self.down.forward(cx, &wide)
    }
}

/// Attention, then the feed-forward, each on a normalised copy and added to the stream.
pub(crate) struct Block {
    norm_attention: Norm,
    attention: CausalAttention,
    norm_mlp: Norm,
    mlp: Mlp,
    dropout: f64,
}

impl Block {
    pub(crate) fn new(pb: &mut ParamBuilder, name: &str, size: Size) -> Self {
        pb.scoped(name, |pb| Self {
            norm_attention: Norm::new(pb, "norm_attention", size.width),
            attention: CausalAttention::new(pb, "attention", size),
            norm_mlp: Norm::new(pb, "norm_mlp", size.width),
            mlp: Mlp::new(pb, "mlp", size),
            dropout: size.dropout,
        })
    }

    /// Returns the stream with both branches, the second one still to be added.
    pub(crate) fn forward(&self, cx: &Cx<'_>, stream: Stream) -> Result<Stream, OpError> {
        let (x, normed) = self.norm_attention.join(cx, stream)?;
        let branch = Some(f::dropout(cx, &self.attention.forward(cx, &normed)?, self.dropout)?);
        let (x, normed) = self.norm_mlp.join(cx, Stream { x, branch })?;
        let branch = Some(f::dropout(cx, &self.mlp.forward(cx, &normed)?, self.dropout)?);
        Ok(Stream { x, branch })
    }
}
