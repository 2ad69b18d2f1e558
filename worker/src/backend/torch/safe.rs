//! Typed access to the shim: dispatcher operators found once by name, the version counter, the CPU kernels.

use super::ShimError;
pub use super::result::Argument;
use super::result::{self, Handle, Pointers};
use super::sys::Arg as RawArg;
use crate::backend::Outs;
use smallvec::SmallVec;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::OnceLock;
use tch::{Device, Kind, Tensor};

/// One operand of a boxed call.
#[derive(Debug, Clone, Copy)]
pub enum Arg<'a> {
    /// An optional operand left out.
    None,
    Tensor(&'a Tensor),
    Int(i64),
    /// A float.
    Real(f64),
    Bool(bool),
    /// A list of integers.
    Ints(&'a [i64]),
    /// A list of booleans.
    Bools(&'a [bool]),
    /// A list of tensors.
    Tensors(&'a [&'a Tensor]),
    /// A list with gaps: a true takes the next tensor.
    TensorsWhere(&'a [&'a Tensor], &'a [bool]),
    /// A list of floats.
    Reals(&'a [f64]),
    Text(&'a str),
    /// An element kind.
    Kind(Kind),
    /// The device of a tensor.
    DeviceOf(&'a Tensor),
}

/// What has tag 0, 1, …, in words.
pub const ARGS: [&str; 13] = [
    "nothing",
    "a tensor",
    "an integer",
    "a float",
    "a boolean",
    "a list of integers",
    "a list of booleans",
    "a list of tensors",
    "a list of tensors with gaps",
    "a list of floats",
    "a string",
    "an element kind",
    "a device",
];

/// An operator of libtorch's dispatcher, looked up at its first call.
pub struct AtenOp {
    name: &'static CStr,
    overload: &'static CStr,
    handle: OnceLock<Handle>,
}

impl AtenOp {
    /// Names an operator, e.g. `aten::native_layer_norm_backward` with an empty overload.
    pub const fn new(name: &'static CStr, overload: &'static CStr) -> Self {
        Self { name, overload, handle: OnceLock::new() }
    }

    /// Calls it with all operands of its schema, in order. Results that are not tensors are left out.
    ///
    /// # Errors
    /// libtorch's sentence: no such operator, or operands it refuses.
    pub fn call(&self, args: &[Arg<'_>]) -> Result<Outs, ShimError> {
        let handle = match self.handle.get() {
            Some(handle) => *handle,
            None => *self.handle.get_or_init({
                let found = result::find(self.name, self.overload)?;
                move || found
            }),
        };
        call(handle, args)
    }
}

/// An operator found by a name that is known at run time only.
#[derive(Debug)]
pub struct AnyOp {
    name: String,
    handle: Handle,
    arguments: Vec<Argument>,
}

impl AnyOp {
    /// Finds an operator.
    ///
    /// # Errors
    /// libtorch's sentence when there is none, and the overloads that there are.
    pub fn find(name: &str, overload: &str) -> Result<Self, ShimError> {
        let found = result::find(&nul(name)?, &nul(overload)?);
        let handle = found.map_err(|error| with_overloads(error, name))?;
        let full = if overload.is_empty() { name.to_owned() } else { format!("{name}.{overload}") };
        Ok(Self { name: full, arguments: result::arguments(handle)?, handle })
    }

    /// Name and overload of every operator that the dispatcher has, in no order.
    ///
    /// # Errors
    /// libtorch's sentence.
    pub fn all() -> Result<Vec<(String, String)>, ShimError> {
        result::operators()
    }

    /// Its name with the overload.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The arguments of its schema, in order.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Calls it with all arguments of its schema, in order.
    ///
    /// # Errors
    /// libtorch's sentence.
    pub fn call(&self, args: &[Arg<'_>]) -> Result<Outs, ShimError> {
        self.named(call(self.handle, args))
    }

    /// The gradients of the operands that are `wanted`, in order, from those of its results: libtorch's own, which calls it once more.
    ///
    /// # Errors
    /// libtorch's sentence.
    pub fn gradients(&self, args: &[Arg<'_>], given: &[Option<&Tensor>], wanted: &[bool]) -> Result<Outs, ShimError> {
        self.named(with_raw(args, |raw| result::gradients(self.handle, raw, given, wanted)))
    }

    /// An error says whose it is.
    fn named<T>(&self, made: Result<T, ShimError>) -> Result<T, ShimError> {
        made.map_err(|error| ShimError { message: format!("{}: {}", self.name, error.message) })
    }

    /// Whether a second call gives other results, as it draws random numbers.
    ///
    /// # Errors
    /// libtorch's sentence.
    pub fn draws(&self) -> Result<bool, ShimError> {
        result::draws(self.handle)
    }

    /// A tensor without memory, on which an operator computes shapes only.
    ///
    /// # Errors
    /// libtorch's sentence.
    pub fn hollow(shape: &[i64], kind: Kind) -> Result<Tensor, ShimError> {
        let like = Tensor::f_empty(0, (kind, Device::Cpu)).map_err(|e| ShimError { message: e.to_string() })?;
        result::hollow(shape, &like)
    }
}

/// What is wrong with an operator's overload, and those that it has.
fn with_overloads(mut error: ShimError, name: &str) -> ShimError {
    let known = result::operators().unwrap_or_default().into_iter().filter(|(other, _)| other == name);
    let mut overloads: Vec<String> = known.map(|(_, overload)| format!("{overload:?}")).collect();
    overloads.sort_unstable();
    if !overloads.is_empty() {
        error.message = format!("{}\nhint: the overloads of {name} are {}", error.message, overloads.join(", "));
    }
    error
}

fn nul(text: &str) -> Result<std::ffi::CString, ShimError> {
    std::ffi::CString::new(text).map_err(|_| ShimError { message: format!("{text:?} holds a zero byte") })
}

fn call(handle: Handle, args: &[Arg<'_>]) -> Result<Outs, ShimError> {
    with_raw(args, |raw| result::call(handle, raw))
}

/// The arguments as the shim takes them, while they and their lists are alive.
fn with_raw<T>(args: &[Arg<'_>], use_them: impl FnOnce(&[RawArg]) -> T) -> T {
    let lists = args.iter().filter_map(|arg| match arg {
        Arg::Tensors(tensors) => Some(result::pointers(tensors)),
        Arg::TensorsWhere(tensors, there) => Some(result::pointers_where(tensors, there)),
        _ => None,
    });
    let lists: SmallVec<[Pointers; 1]> = lists.collect();
    let mut next_list = lists.iter();
    let raw: SmallVec<[RawArg; 12]> = args.iter().map(|arg| raw_arg(arg, &mut next_list)).collect();
    use_them(&raw)
}

fn raw_arg<'l>(arg: &Arg<'_>, lists: &mut impl Iterator<Item = &'l Pointers>) -> RawArg {
    let mut raw = RawArg { tag: 0, integer: 0, real: 0.0, data: ptr::null(), count: 0 };
    match arg {
        Arg::None => {}
        Arg::Tensor(t) => (raw.tag, raw.data) = (1, t.as_ptr().cast::<c_void>()),
        Arg::Int(i) => (raw.tag, raw.integer) = (2, *i),
        Arg::Real(x) => (raw.tag, raw.real) = (3, *x),
        Arg::Bool(b) => (raw.tag, raw.integer) = (4, i64::from(*b)),
        Arg::Ints(list) => (raw.tag, raw.data, raw.count) = (5, list.as_ptr().cast(), list.len()),
        Arg::Bools(list) => (raw.tag, raw.data, raw.count) = (6, list.as_ptr().cast(), list.len()),
        Arg::Tensors(_) | Arg::TensorsWhere(..) => {
            if let Some(list) = lists.next() {
                raw.data = list.as_ptr().cast();
                raw.count = list.len();
            }
            raw.tag = if matches!(arg, Arg::Tensors(_)) { 7 } else { 8 };
        }
        Arg::Reals(list) => (raw.tag, raw.data, raw.count) = (9, list.as_ptr().cast(), list.len()),
        Arg::Text(text) => (raw.tag, raw.data, raw.count) = (10, text.as_ptr().cast(), text.len()),
        Arg::Kind(kind) => (raw.tag, raw.integer) = (11, kind_code(*kind)),
        Arg::DeviceOf(t) => (raw.tag, raw.data) = (12, t.as_ptr().cast::<c_void>()),
    }
    raw
}

/// libtorch's number of an element kind, as operators take it.
pub fn kind_code(kind: Kind) -> i64 {
    match kind {
        Kind::Uint8 => 0,
        Kind::Int8 => 1,
        Kind::Int16 => 2,
        Kind::Int => 3,
        Kind::Int64 => 4,
        Kind::Half => 5,
        Kind::Float => 6,
        Kind::Double => 7,
        Kind::ComplexHalf => 8,
        Kind::ComplexFloat => 9,
        Kind::ComplexDouble => 10,
        Kind::Bool => 11,
        Kind::QInt8 => 12,
        Kind::QUInt8 => 13,
        Kind::QInt32 => 14,
        Kind::BFloat16 => 15,
        Kind::Float8e5m2 => 23,
        Kind::Float8e4m3fn => 24,
        Kind::Float8e5m2fnuz => 25,
        Kind::Float8e4m3fnuz => 26,
    }
}

/// Lets products of f32 matrices on CUDA drop to 10-bit mantissas, or not; for the whole process.
///
/// # Errors
/// libtorch's sentence.
pub fn allow_tf32(on: bool) -> Result<(), ShimError> {
    result::allow_tf32(on)
}

/// Makes libtorch's operators take the form that gives the same bits each time, where they have one; for the whole process.
///
/// # Errors
/// libtorch's sentence.
pub fn deterministic(on: bool) -> Result<(), ShimError> {
    result::deterministic(on)
}

/// (major, minor) of a CUDA device.
///
/// # Errors
/// The driver's words: no driver, or no such device.
pub fn compute_capability(index: usize) -> Result<(u32, u32), ShimError> {
    let told = cudarc::driver::CudaContext::new(index).and_then(|context| context.compute_capability());
    let (major, minor) = told.map_err(|error| ShimError { message: format!("compute capability: {error}") })?;
    Ok((major.unsigned_abs(), minor.unsigned_abs()))
}

/// Gives a flat tensor that owns its storage fresh memory of its length, or none. What it held is lost; views of it see the new
/// memory. While there is none, neither the tensor nor a view of it may be read or written: libtorch does not look.
///
/// # Errors
/// When there is no memory.
pub fn renew_storage(tensor: &Tensor, there: bool) -> Result<(), ShimError> {
    let bytes = if there { tensor.numel() * tensor.kind().elt_size_in_bytes() } else { 0 };
    result::renew_storage(tensor, bytes as i64)
}

/// Number of in-place writes to the tensor's storage so far, through any view; −1 where libtorch keeps none.
pub fn version(tensor: &Tensor) -> i64 {
    result::version(tensor).unwrap_or(-1)
}

/// Takes into `hash` what a kernel may ask about operands before it runs: kind, shape, strides where they are not dense,
/// alignment up to `alignment_max` bytes (a power of two) and device class. What libtorch cannot describe counts as nothing.
pub fn layouts(tensors: &[&Tensor], alignment_max: u64, hash: u64) -> u64 {
    result::layouts(tensors, alignment_max, hash).unwrap_or(hash)
}

/// Whether the CPU kernels take this tensor.
pub fn has_cpu_kernel(tensor: &Tensor) -> bool {
    tensor.device() == Device::Cpu && matches!(tensor.kind(), Kind::Float | Kind::Double)
}

/// The retention scan on the CPU: v (B,N,H,Dh), λ (H), state (B,H,Dh); `both` adds the reversed scan.
///
/// # Errors
/// Not on the CPU, or neither f32 nor f64.
pub fn retention(v: &Tensor, lambda: &Tensor, state: Option<&Tensor>, both: bool) -> Result<Tensor, ShimError> {
    result::retention(v, lambda, state, both)
}

/// Operands of the reverse scan.
#[derive(Debug, Clone, Copy)]
pub struct RetentionBackward<'a> {
    /// v (B,N,H,Dh).
    pub v: &'a Tensor,
    /// λ (H).
    pub lambda: &'a Tensor,
    /// The scan's result.
    pub y: &'a Tensor,
    /// Its gradient.
    pub g: &'a Tensor,
    /// Incoming state.
    pub state: Option<&'a Tensor>,
    /// Gradient of the outgoing state.
    pub gstate: Option<&'a Tensor>,
    /// Both directions.
    pub both: bool,
}

/// Gradients of v, λ and the incoming state on the CPU.
///
/// # Errors
/// As [`retention`].
pub fn retention_backward(r: &RetentionBackward<'_>) -> Result<[Tensor; 3], ShimError> {
    let ins = [Some(r.v), Some(r.lambda), Some(r.y), Some(r.g), r.state, r.gstate];
    result::retention_backward(ins, r.both)
}

/// One pass of AdamW on the CPU over weight, gradient, first and second moment, all but the gradient written: dense, f32, of one length.
/// `numbers` are the six that the optimizer's operation names.
///
/// # Errors
/// Arrays that are not so.
pub fn adamw(
    arrays: [&Tensor; 4],
    average: Option<(&Tensor, f32)>,
    numbers: &Tensor,
    decays: bool,
    eps: f64,
) -> Result<(), ShimError> {
    result::adamw(arrays, average, numbers, decays, eps as f32)
}

/// Counts an update on the CPU (`counts`: updates so far, written, and 1, or 0 where nothing is to change; f64); the share that
/// averages move by.
///
/// # Errors
/// Counts that are not so.
pub fn average_share(counts: [&Tensor; 2], decay: f64) -> Result<f32, ShimError> {
    result::average_share(counts, decay)
}

/// Moves averages on the CPU, written, by a share, each to its weights behind it: dense, f32, of one length.
///
/// # Errors
/// Arrays that are not so.
pub fn average(arrays: &[&Tensor], share: f32) -> Result<(), ShimError> {
    result::average(arrays, share)
}

/// Sets dense f32 arrays on the CPU to 0.
///
/// # Errors
/// Arrays that are not so.
pub fn zero(arrays: &[&Tensor]) -> Result<(), ShimError> {
    result::zero(arrays)
}

/// √Σx² over dense f32 arrays on the CPU: added up in f32 within rows of 4,096 numbers, in f64 beyond.
///
/// # Errors
/// Arrays that are not so.
pub fn global_norm(arrays: &[&Tensor]) -> Result<f64, ShimError> {
    result::global_norm(arrays)
}

/// While it lives, what this thread launches on the CPU runs on no other.
#[derive(Debug)]
pub struct Alone {
    before: i32,
}

impl Alone {
    /// From now on.
    pub fn begin() -> Self {
        Self { before: result::threads(1) }
    }
}

impl std::ops::Drop for Alone {
    fn drop(&mut self) {
        if self.before > 1 {
            result::threads(self.before);
        }
    }
}

/// Whether the CPU kernels of products, attention, norms and gates take these tensors, on this processor.
pub fn has_wide_kernel(tensors: &[&Tensor]) -> bool {
    static WIDE: OnceLock<bool> = OnceLock::new();
    let fits = |t: &&Tensor| t.device() == Device::Cpu && t.kind() == Kind::Float;
    *WIDE.get_or_init(result::has_wide) && tensors.iter().all(fits)
}

/// x Wᵀ + b on the CPU: x (…, in), W (out, in), which does not fit the caches where it is `far`, b (out), all f32.
///
/// # Errors
/// Operands of another device or kind.
pub fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, far: bool) -> Result<Tensor, ShimError> {
    result::linear(x, w, bias, far)
}

/// The reverse of [`linear`] for the gradient of its result, x and W: with `dx` the gradient of x; those of W and b are added to
/// their dense storage.
///
/// # Errors
/// As [`linear`]; storage of another length.
pub fn linear_backward(
    ins: [&Tensor; 3],
    dx: bool,
    storage: [Option<&Tensor>; 2],
) -> Result<Option<Tensor>, ShimError> {
    result::linear_backward(ins, dx, storage)
}

/// Attention on the CPU: q, k, v (B,H,tokens,width) of one width, a dense bias (keys) or (B,keys), all f32; the result, and log Σ exp.
///
/// # Errors
/// Operands of another device or kind.
pub fn attention(ins: [&Tensor; 3], bias: Option<&Tensor>, causal: bool) -> Result<[Tensor; 2], ShimError> {
    result::attention(ins, bias, causal)
}

/// The gradients of q, k, v for gradient, q, k, v, result, log Σ exp.
///
/// # Errors
/// As [`attention`].
pub fn attention_backward(ins: [&Tensor; 6], bias: Option<&Tensor>, causal: bool) -> Result<[Tensor; 3], ShimError> {
    result::attention_backward(ins, bias, causal)
}

/// A norm over the last axis on the CPU.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// Operand (…, width), width at least 1.
    pub x: &'a Tensor,
    /// Added to it before.
    pub branch: Option<&'a Tensor>,
    /// Factors (width).
    pub weight: Option<&'a Tensor>,
    /// Terms (width).
    pub bias: Option<&'a Tensor>,
    /// Layer norm, else RMS norm.
    pub centred: bool,
    /// Keeps the root from 0.
    pub eps: f64,
}

/// What there is of the sum with the branch, the norm, the mean and 1/σ (or 1/rms), in this order.
///
/// # Errors
/// Operands of another device or kind.
pub fn norm(n: &Norm<'_>) -> Result<impl Iterator<Item = Tensor> + use<>, ShimError> {
    Ok(result::norm([Some(n.x), n.branch, n.weight, n.bias], n.centred, n.eps as f32)?.into_iter().flatten())
}

/// The reverse of a [`Norm`].
#[derive(Debug, Clone, Copy)]
pub struct NormBackward<'a> {
    /// Gradient of the norm.
    pub g: &'a Tensor,
    /// What was normed.
    pub x: &'a Tensor,
    /// Its mean, where it was centred.
    pub mean: Option<&'a Tensor>,
    pub rstd: &'a Tensor,
    /// Factors.
    pub weight: Option<&'a Tensor>,
    /// Gradient of the sum, which is added.
    pub gsum: Option<&'a Tensor>,
}

/// The gradient of x, and where there is a weight its own and, where it was centred, that of the bias.
///
/// # Errors
/// As [`norm`].
pub fn norm_backward(n: &NormBackward<'_>) -> Result<impl Iterator<Item = Tensor> + use<>, ShimError> {
    let ins = [Some(n.g), Some(n.x), n.mean, Some(n.rstd), n.weight, n.gsum];
    Ok(result::norm_backward(ins)?.into_iter().flatten())
}

/// a · sigmoid(a) · b on the CPU; without `b`, of the halves of the last axis.
///
/// # Errors
/// Operands of another device or kind.
pub fn gate(a: &Tensor, b: Option<&Tensor>) -> Result<Tensor, ShimError> {
    result::gate([Some(a), b])
}

/// The gradients of a and b, or of both halves, for the gradient of [`gate`].
///
/// # Errors
/// As [`gate`].
pub fn gate_backward(
    g: &Tensor,
    a: &Tensor,
    b: Option<&Tensor>,
) -> Result<impl Iterator<Item = Tensor> + use<>, ShimError> {
    Ok(result::gate_backward([Some(g), Some(a), b])?.into_iter().flatten())
}

/// One dropout: where in the random stream, and how much.
#[derive(Debug, Clone, Copy)]
pub struct Drop {
    pub seed: u64,
    /// Global step.
    pub step: u64,
    /// The operation's number.
    pub site: u32,
    /// First word of the site's stream.
    pub first: u64,
    /// Words below this are kept.
    pub threshold: u32,
    /// Factor on what is kept.
    pub scale: f64,
}

/// Drops elements of `x` on the CPU; with `rows`, returns one factor per row of the first axis instead.
///
/// # Errors
/// As [`retention`].
pub fn dropout(x: &Tensor, rows: bool, drop: &Drop) -> Result<Tensor, ShimError> {
    let key = [drop.seed, drop.step, u64::from(drop.site)];
    let numbers = result::Drop { key, first: drop.first, threshold: drop.threshold, scale: drop.scale };
    result::dropout(x, rows, &numbers)
}
