//! Tiled attention with a key bias, a structural mask and modified scores. Memory is linear in the number of tokens.

use super::call::{KernelCall, grid};
use super::check::{Check, PACK_BYTES, aligned, blocks, ceil};
use super::engine;
use super::error::CudaError;
use super::result::LaunchGrid;
use super::source::{Element, Source, Variant};
use tch::{Kind, Tensor};

pub(super) static SOURCE: Source = Source {
    name: "attention",
    text: include_str!("src/attention.cu"),
    numbers: &["HEAD", "VEC", "CAPPED", "ALIBI"],
    shared_bytes_max: 128 << 10,
};

/// Largest head width in elements.
pub const HEAD_MAX: i64 = 128;
/// Rows per block; the source's ROWS.
const ROWS: i64 = 64;
const THREADS: u32 = 128;
/// Queries of a block of `attention_delta`.
const DELTA_ROWS: i64 = 4;
/// Largest window: a larger one hides nothing, and the kernel adds positions to the window.
const WINDOW_MAX: i64 = u32::MAX as i64;

/// Selects the keys that a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionMask {
    /// Keys up to the query only.
    pub causal: bool,
    /// Keys up to this distance only.
    pub window: Option<i64>,
    /// Keys at a multiple of this distance only; 1 for any.
    pub dilation: i64,
}

impl AttentionMask {
    /// The mask that hides no key.
    pub const NONE: Self = Self { causal: false, window: None, dilation: 1 };

    fn words(self) -> [u64; 3] {
        let window = self.window.map_or(-1, |window| window.min(WINDOW_MAX));
        [i64::from(self.causal), window, self.dilation].map(i64::cast_unsigned)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct AttentionInputs<'a> {
    /// Queries (B, H, Nq, D).
    pub q: &'a Tensor,
    /// Keys (B, H, Nk, D).
    pub k: &'a Tensor,
    /// Values (B, H, Nk, D).
    pub v: &'a Tensor,
    /// Added to the scores of a key: (Nk) or (B, Nk).
    pub bias: Option<&'a Tensor>,
    /// Selects the keys that a query sees.
    pub mask: AttentionMask,
    /// Factor on the scores q·k.
    pub scale: f64,
    /// Soft cap of the scaled scores, before the bias.
    pub cap: Option<f64>,
    /// Whether each head's slope times the distance is subtracted (ALiBi).
    pub alibi: bool,
}

impl AttentionInputs<'_> {
    fn finish<'a>(&self, call: KernelCall<'a>) -> KernelCall<'a> {
        call.float(self.scale).float(self.cap.unwrap_or(0.0))
    }
}

/// Operands in the layout of the kernels, and the kernel variant for them.
struct AttentionOperands {
    variant: Variant,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Option<Tensor>,
    /// Batch stride of the bias; 0 for one bias of all batch rows.
    bias_stride: i64,
    sizes: [i64; 4],
    head: i64,
}

/// Returns the tensor itself if each row is contiguous, else a copy.
fn rows_of(x: &Tensor) -> Result<Tensor, CudaError> {
    Ok(if x.stride()[3] == 1 && x.stride()[2] > 0 { x.shallow_clone() } else { x.f_contiguous()? })
}

/// Whether rows of all tensors can be loaded `vec` elements at a time.
fn packs(vec: i64, tensors: &[&Tensor]) -> bool {
    aligned(tensors) && tensors.iter().all(|x| x.stride()[..3].iter().all(|stride| stride % vec == 0))
}

fn ready(check: Check, a: &AttentionInputs<'_>, others: &[&Tensor]) -> Result<AttentionOperands, CudaError> {
    let element = check.element("q", a.q)?;
    check.device("q", a.q)?;
    let [batch, heads, queries, head] = shape(check, "q", a.q)?;
    let [_, _, keys, _] = shape(check, "k", a.k)?;
    check.that((1..=HEAD_MAX).contains(&head), "q", a.q, "heads 1 to 128 wide")?;
    for (name, other) in [("k", a.k), ("v", a.v)] {
        check.that(
            other.size() == [batch, heads, keys, head],
            name,
            other,
            "(batch, heads, keys, width) as q and k",
        )?;
        check.that(other.kind() == a.q.kind() && other.device() == a.q.device(), name, other, "as q")?;
    }
    check.that(a.mask.dilation >= 1, "mask", a.q, "a dilation of at least 1")?;
    // Other caps would be 0 or infinite in f32.
    let cap = a.cap.is_none_or(|cap| cap > 0.0 && (cap as f32).is_normal());
    check.that(cap, "cap", a.q, "a positive number that f32 holds")?;
    let bias = a.bias.map(Tensor::f_contiguous).transpose()?;
    let per_row = bias.as_ref().is_some_and(|bias| bias.dim() == 2);
    if let Some(bias) = &bias {
        check.numbers("bias", bias, a.q.kind(), if per_row { batch * keys } else { keys }, a.q)?;
    }
    let q = rows_of(a.q)?;
    let k = rows_of(a.k)?;
    let v = rows_of(a.v)?;
    let widest = PACK_BYTES / element.bytes();
    let packed = head % widest == 0 && packs(widest, &[&q, &k, &v]) && packs(widest, others);
    let vec = if packed { widest } else { 1 };
    let score = [u32::from(a.cap.is_some()), u32::from(a.alibi)];
    let variant = Variant::new(&SOURCE, element, &[head as u32, vec as u32, score[0], score[1]]);
    let sizes = [batch, heads, queries, keys];
    Ok(AttentionOperands { variant, q, k, v, bias, bias_stride: if per_row { keys } else { 0 }, sizes, head })
}

fn shape(check: Check, name: &'static str, x: &Tensor) -> Result<[i64; 4], CudaError> {
    <[i64; 4]>::try_from(x.size()).map_err(|_| check.refuse(name, x, "(batch, heads, tokens, width)"))
}

/// Words of the kernels' `View` structure: address and three strides.
fn view(x: &Tensor) -> [u64; 4] {
    let stride = x.stride();
    [x.data_ptr() as u64, stride[0].cast_unsigned(), stride[1].cast_unsigned(), stride[2].cast_unsigned()]
}

/// Returns an uninitialised result of the shape of `x` with the same order of token and head axes, in which later operations read it.
fn empty_like(x: &Tensor) -> Result<Tensor, CudaError> {
    let size = x.size();
    let stride = x.stride();
    let options = (x.kind(), x.device());
    if stride[1] < stride[2] {
        return Ok(Tensor::f_empty([size[0], size[2], size[1], size[3]], options)?.f_transpose(1, 2)?);
    }
    Ok(Tensor::f_empty(size, options)?)
}

impl AttentionOperands {
    fn problem(&self) -> [u64; 4] {
        self.sizes.map(i64::cast_unsigned)
    }

    fn is_empty(&self) -> bool {
        self.sizes.contains(&0)
    }

    /// Returns the grid with one block per ROWS of `rows` and head, with shared memory for `own` tiles of ROWS rows and two tiles of
    /// `passing` rows of the other side.
    fn grid(&self, check: Check, rows: i64, own: i64, passing: i64) -> Result<LaunchGrid, CudaError> {
        let element_bytes = if self.variant.element == Element::F32 { 4 } else { 2 };
        let pitch = ceil(self.head, 16) * 16 + 8;
        let shared = ((own * ROWS + 2 * passing) * pitch * element_bytes) as u32;
        let device = engine::facts(check.device("q", &self.q)?)?;
        let fits = shared <= device.shared_bytes_max.min(SOURCE.shared_bytes_max);
        check.that(fits, "q", &self.q, "narrow enough for this device's shared memory")?;
        let blocks = blocks(self.sizes[0] * self.sizes[1] * ceil(rows, ROWS), 1);
        Ok(LaunchGrid { blocks, threads: (THREADS, 1), shared })
    }

    fn call(&self, entry: &'static str) -> KernelCall<'_> {
        let call = KernelCall::new(&self.variant, entry).structure(&view(&self.q)).structure(&view(&self.k));
        call.structure(&view(&self.v)).maybe(self.bias.as_ref()).int(self.bias_stride)
    }

    /// Rows of a streamed tile in the forward pass, twice those in the backward pass.
    fn passing(&self) -> i64 {
        if self.variant.element == Element::F32 { 32 } else { 64 }
    }
}

/// Returns the result (B, H, Nq, D) and the log-sum-exp of each query's scores (B, H, Nq), f32.
pub fn attention(a: &AttentionInputs<'_>) -> Result<(Tensor, Tensor), CudaError> {
    let check = Check { kernel: "attention" };
    let r = ready(check, a, &[])?;
    let [batch, heads, queries, keys] = r.sizes;
    let out = empty_like(&r.q)?;
    let lse = Tensor::f_empty([batch, heads, queries], (Kind::Float, a.q.device()))?;
    if r.is_empty() {
        // The softmax of queries without keys is undefined.
        check.that(keys > 0 || lse.numel() == 0, "k", a.k, "at least one key")?;
        return Ok((out, lse));
    }
    let call = r.call("attention").structure(&view(&out)).tensor(&lse).structure(&r.problem());
    let call = a.finish(call.structure(&a.mask.words()));
    call.launch(&r.q, r.grid(check, queries, 1, r.passing())?)?;
    Ok((out, lse))
}

#[derive(Debug)]
pub struct AttentionGrads {
    pub dq: Tensor,
    pub dk: Tensor,
    pub dv: Tensor,
    /// Gradient of the bias, if it was asked for.
    pub dbias: Option<Tensor>,
}

/// Computes the gradients from `g`, the gradient of the result, the result `out` and its log-sum-exp.
pub fn attention_backward(
    a: &AttentionInputs<'_>,
    g: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    dbias: bool,
) -> Result<AttentionGrads, CudaError> {
    let check = Check { kernel: "attention_backward" };
    let g = rows_of(g)?;
    let out = rows_of(out)?;
    let r = ready(check, a, &[&g])?;
    let [batch, heads, queries, keys] = r.sizes;
    for (name, other) in [("g", &g), ("out", &out)] {
        check.that(other.size() == a.q.size() && other.kind() == a.q.kind(), name, other, "of the shape of q")?;
    }
    let lse = lse.f_contiguous()?;
    check.numbers("lse", &lse, Kind::Float, batch * heads * queries, a.q)?;
    let dq = empty_like(&r.q)?;
    let dk = empty_like(&r.k)?;
    let dv = empty_like(&r.v)?;
    let float = |size: [i64; 3]| Tensor::f_empty(size, (Kind::Float, a.q.device()));
    let wanted = dbias && a.bias.is_some();
    let shares = wanted.then(|| float([batch, heads, keys])).transpose()?;
    if r.is_empty() {
        let dbias = a.bias.filter(|_| wanted).map(Tensor::f_zeros_like).transpose()?;
        let [dq, dk, dv] = [dq.f_zeros_like()?, dk.f_zeros_like()?, dv.f_zeros_like()?];
        return Ok(AttentionGrads { dq, dk, dv, dbias });
    }
    let delta = float([batch, heads, queries])?;
    let call =
        KernelCall::new(&r.variant, "attention_delta").structure(&view(&g)).structure(&view(&out)).tensor(&delta);
    let rows = blocks(batch * heads * queries, DELTA_ROWS);
    call.structure(&r.problem()).launch(&r.q, grid(rows, THREADS))?;
    let given = |entry| r.call(entry).structure(&view(&g)).tensor(&lse).tensor(&delta);
    let finish = |call: KernelCall<'_>, rows: i64| {
        let call = a.finish(call.structure(&r.problem()).structure(&a.mask.words()));
        call.launch(&r.q, r.grid(check, rows, 2, r.passing() / 2)?)
    };
    finish(given("attention_queries").structure(&view(&dq)), queries)?;
    let keys_call = given("attention_keys").structure(&view(&dk)).structure(&view(&dv)).maybe(shares.as_ref());
    finish(keys_call, keys)?;
    let dbias = match (shares, a.bias) {
        (Some(shares), Some(bias)) => {
            let over: &[i64] = if bias.dim() == 2 { &[1] } else { &[0, 1] };
            Some(shares.f_sum_dim_intlist(over, false, None)?.f_to_kind(bias.kind())?)
        }
        _ => None,
    };
    Ok(AttentionGrads { dq, dk, dv, dbias })
}
