//! Safe access to the shim: dispatcher operators that are found once by name, the version counter, the CPU kernels.

use super::ShimError;
pub use super::result::Argument;
use super::result::{self, Handle, Pointers};
use super::sys::RawArg;
use crate::backend::Outs;
use smallvec::SmallVec;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::OnceLock;
use tch::{Device, Kind, Tensor};

/// One operand of a boxed call.
#[derive(Debug, Clone, Copy)]
pub enum Arg<'a> {
    /// An omitted optional operand.
    None,
    Tensor(&'a Tensor),
    Int(i64),
    /// A floating-point number.
    Real(f64),
    Bool(bool),
    /// A list of integers.
    Ints(&'a [i64]),
    /// A list of booleans.
    Bools(&'a [bool]),
    /// A list of tensors.
    Tensors(&'a [&'a Tensor]),
    /// A list of optional tensors: each `true` takes the next tensor.
    TensorsWhere(&'a [&'a Tensor], &'a [bool]),
    /// A list of floats.
    Reals(&'a [f64]),
    Text(&'a str),
    /// The element kind of a tensor.
    Kind(Kind),
    /// The device of a tensor.
    DeviceOf(&'a Tensor),
}

/// Names of the argument types, by tag.
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
    /// Returns an operator by name, e.g. `aten::native_layer_norm_backward` with an empty overload.
    pub const fn new(name: &'static CStr, overload: &'static CStr) -> Self {
        Self { name, overload, handle: OnceLock::new() }
    }

    /// Calls the operator with all operands of its schema, in order. Results that are not tensors are left out.
    ///
    /// # Errors
    /// Errors of libtorch: no such operator, or operands it refuses.
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
    /// The error of libtorch when there is none, with a hint that lists the existing overloads.
    pub fn find(name: &str, overload: &str) -> Result<Self, ShimError> {
        let found = result::find(&nul(name)?, &nul(overload)?);
        let handle = found.map_err(|error| with_overloads(error, name))?;
        let full = if overload.is_empty() { name.to_owned() } else { format!("{name}.{overload}") };
        Ok(Self { name: full, arguments: result::arguments(handle)?, handle })
    }

    /// Returns name and overload of every operator of the dispatcher, unordered.
    ///
    /// # Errors
    /// Errors of libtorch.
    pub fn all() -> Result<Vec<(String, String)>, ShimError> {
        result::operators()
    }

    /// Returns the name with the overload.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the arguments of the schema, in order.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Calls the operator with all arguments of its schema, in order.
    ///
    /// # Errors
    /// Errors of libtorch.
    pub fn call(&self, args: &[Arg<'_>]) -> Result<Outs, ShimError> {
        self.named(call(self.handle, args))
    }

    /// Returns the gradients of the `wanted` operands, in order, from the gradients of the results. libtorch's autograd computes them and
    /// calls the operator once more.
    ///
    /// # Errors
    /// Errors of libtorch.
    pub fn gradients(&self, args: &[Arg<'_>], given: &[Option<&Tensor>], wanted: &[bool]) -> Result<Outs, ShimError> {
        self.named(with_raw(args, |raw| result::gradients(self.handle, raw, given, wanted)))
    }

    /// Adds the operator's name to an error.
    fn named<T>(&self, made: Result<T, ShimError>) -> Result<T, ShimError> {
        made.map_err(|error| ShimError { message: format!("{}: {}", self.name, error.message) })
    }

    /// Whether the operator draws random numbers, so that a second call gives other results.
    ///
    /// # Errors
    /// Errors of libtorch.
    pub fn draws(&self) -> Result<bool, ShimError> {
        result::draws(self.handle)
    }

    /// Returns a tensor without memory (on the meta device), on which operators compute shapes only.
    ///
    /// # Errors
    /// Errors of libtorch.
    pub fn hollow(shape: &[i64], kind: Kind) -> Result<Tensor, ShimError> {
        let like = Tensor::f_empty(0, (kind, Device::Cpu)).map_err(|e| ShimError { message: e.to_string() })?;
        result::hollow(shape, &like)
    }
}

/// Adds a hint with the overloads of an operator to an error.
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

/// Calls `use_them` with the arguments in the shim's format, which borrow from `args`.
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

/// Returns libtorch's number of an element kind, as operators take it.
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

/// Sets, for the whole process, whether products of f32 matrices on CUDA may use 10-bit mantissas (TF32).
///
/// # Errors
/// Errors of libtorch.
pub fn allow_tf32(on: bool) -> Result<(), ShimError> {
    result::allow_tf32(on)
}

/// Sets, for the whole process, whether libtorch uses deterministic implementations where operators have one.
///
/// # Errors
/// Errors of libtorch.
pub fn deterministic(on: bool) -> Result<(), ShimError> {
    result::deterministic(on)
}

/// Returns the compute capability (major, minor) of a CUDA device.
///
/// # Errors
/// Errors of the driver: no driver, or no such device.
pub fn compute_capability(index: usize) -> Result<(u32, u32), ShimError> {
    let capability = cudarc::driver::CudaContext::new(index).and_then(|context| context.compute_capability());
    let (major, minor) = capability.map_err(|error| ShimError { message: format!("compute capability: {error}") })?;
    Ok((major.unsigned_abs(), minor.unsigned_abs()))
}

/// Replaces the storage of a flat tensor that owns it by fresh memory, or by none. The old values are lost; views see the new
/// memory. While there is none, neither the tensor nor a view of it may be read or written; libtorch does not check this.
///
/// # Errors
/// When there is no memory.
pub fn renew_storage(tensor: &Tensor, there: bool) -> Result<(), ShimError> {
    let bytes = if there { tensor.numel() * tensor.kind().elt_size_in_bytes() } else { 0 };
    result::renew_storage(tensor, bytes as i64)
}

/// Returns the number of in-place writes to the tensor's storage so far, through any view; −1 where libtorch keeps no count.
pub fn version(tensor: &Tensor) -> i64 {
    result::version(tensor).unwrap_or(-1)
}

/// Mixes the properties of operands that a kernel may depend on into `hash`: kind, shape, strides where they are not dense,
/// alignment up to `alignment_max` bytes (a power of two) and device class. On an error of libtorch the hash is unchanged.
pub fn layouts(tensors: &[&Tensor], alignment_max: u64, hash: u64) -> u64 {
    result::layouts(tensors, alignment_max, hash).unwrap_or(hash)
}

/// Whether the CPU kernels take this tensor.
pub fn has_cpu_kernel(tensor: &Tensor) -> bool {
    tensor.device() == Device::Cpu && matches!(tensor.kind(), Kind::Float | Kind::Double)
}

/// Runs the retention scan on the CPU: v (B,N,H,Dh), λ (H), state (B,H,Dh); `both` adds the reversed scan.
///
/// # Errors
/// When operands are not on the CPU, or neither f32 nor f64.
pub fn retention(v: &Tensor, lambda: &Tensor, state: Option<&Tensor>, both: bool) -> Result<Tensor, ShimError> {
    result::retention(v, lambda, state, both)
}

/// Operands of the backward pass of the scan.
#[derive(Debug, Clone, Copy)]
pub struct RetentionBackward<'a> {
    /// Summands v (B,N,H,Dh).
    pub v: &'a Tensor,
    /// Decay λ per head (H).
    pub lambda: &'a Tensor,
    /// Result of the scan.
    pub y: &'a Tensor,
    /// Gradient of the result.
    pub g: &'a Tensor,
    /// Incoming state, if any.
    pub state: Option<&'a Tensor>,
    /// Gradient of the outgoing state.
    pub gstate: Option<&'a Tensor>,
    /// Whether the scan runs in both directions.
    pub both: bool,
}

/// Computes the gradients of v, λ and the incoming state on the CPU.
///
/// # Errors
/// As [`retention`].
pub fn retention_backward(r: &RetentionBackward<'_>) -> Result<[Tensor; 3], ShimError> {
    let ins = [Some(r.v), Some(r.lambda), Some(r.y), Some(r.g), r.state, r.gstate];
    result::retention_backward(ins, r.both)
}

/// Runs AdamW on the CPU over weight, gradient, first and second moment: dense, f32, of one length, all written except the gradient.
/// `numbers` are the six scalars of the optimizer's operation.
///
/// # Errors
/// When the arrays do not have this form.
pub fn adamw(
    arrays: [&Tensor; 4],
    average: Option<(&Tensor, f32)>,
    numbers: &Tensor,
    decays: bool,
    eps: f64,
) -> Result<(), ShimError> {
    result::adamw(arrays, average, numbers, decays, eps as f32)
}

/// Counts an update on the CPU in `updates` (f64, written) if `taken` (f64) is 1 and not 0. Returns the share by which averages
/// move.
///
/// # Errors
/// When the counts do not have this form.
pub fn average_share(updates: &Tensor, taken: &Tensor, decay: f64) -> Result<f32, ShimError> {
    result::average_share(updates, taken, decay)
}

/// Moves averages on the CPU by a share. `arrays` alternates averages, which are written, and weights: dense, f32, of one length.
///
/// # Errors
/// When the arrays do not have this form.
pub fn average(arrays: &[&Tensor], share: f32) -> Result<(), ShimError> {
    result::average(arrays, share)
}

/// Sets dense f32 arrays on the CPU to 0.
///
/// # Errors
/// When the arrays do not have this form.
pub fn zero(arrays: &[&Tensor]) -> Result<(), ShimError> {
    result::zero(arrays)
}

/// Computes √Σx² over dense f32 arrays on the CPU: summed in f32 within rows of 4,096 elements, in f64 across rows.
///
/// # Errors
/// When the arrays do not have this form.
pub fn global_norm(arrays: &[&Tensor]) -> Result<f64, ShimError> {
    result::global_norm(arrays)
}

/// Guard: while it lives, CPU operations of this thread use no other threads.
#[derive(Debug)]
pub struct SingleThread {
    before: i32,
}

impl SingleThread {
    /// Begins to run operations on this thread only.
    pub fn begin() -> Self {
        Self { before: result::threads(1) }
    }
}

impl std::ops::Drop for SingleThread {
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

/// Computes x Wᵀ + b on the CPU: x (…, in), W (out, in), b (out), all f32. `far` tells that W does not fit the caches.
///
/// # Errors
/// When operands have another device or kind.
pub fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, far: bool) -> Result<Tensor, ShimError> {
    result::linear(x, w, bias, far)
}

/// Runs the backward pass of [`linear`] for the gradient of its result, x and W. With `dx` it returns the gradient of x; those of W and
/// b are added to the dense arrays `dw` and `db`.
///
/// # Errors
/// As [`linear`]; storage of another length.
pub fn linear_backward(
    ins: [&Tensor; 3],
    dx: bool,
    dw: Option<&Tensor>,
    db: Option<&Tensor>,
) -> Result<Option<Tensor>, ShimError> {
    result::linear_backward(ins, dx, dw, db)
}

/// Runs attention on the CPU: q, k, v (B,H,tokens,width) of one width, a dense bias (keys) or (B,keys), all f32. Returns the result and
/// log Σ exp.
///
/// # Errors
/// When operands have another device or kind.
pub fn attention(ins: [&Tensor; 3], bias: Option<&Tensor>, causal: bool) -> Result<[Tensor; 2], ShimError> {
    result::attention(ins, bias, causal)
}

/// Computes the gradients of q, k, v from gradient, q, k, v, result and log Σ exp.
///
/// # Errors
/// As [`attention`].
pub fn attention_backward(ins: [&Tensor; 6], bias: Option<&Tensor>, causal: bool) -> Result<[Tensor; 3], ShimError> {
    result::attention_backward(ins, bias, causal)
}

/// Operands of a norm over the last axis on the CPU.
#[derive(Debug, Clone, Copy)]
pub struct CpuNorm<'a> {
    /// Operand (…, width), width at least 1.
    pub x: &'a Tensor,
    /// Residual branch that is added to the operand first.
    pub branch: Option<&'a Tensor>,
    /// Scale per column, (width).
    pub weight: Option<&'a Tensor>,
    /// Shift per column, (width).
    pub bias: Option<&'a Tensor>,
    /// Whether it is a layer norm; otherwise an RMS norm.
    pub centred: bool,
    /// Constant under the root.
    pub eps: f64,
}

/// Runs a norm. Yields the sum with the branch, the norm, the mean and 1/σ (or 1/rms), in this order, as far as they exist.
///
/// # Errors
/// When operands have another device or kind.
pub fn norm(n: &CpuNorm<'_>) -> Result<impl Iterator<Item = Tensor> + use<>, ShimError> {
    Ok(result::norm([Some(n.x), n.branch, n.weight, n.bias], n.centred, n.eps as f32)?.into_iter().flatten())
}

/// Operands of the backward pass of a [`CpuNorm`].
#[derive(Debug, Clone, Copy)]
pub struct CpuNormBackward<'a> {
    /// Gradient of the norm.
    pub g: &'a Tensor,
    /// The tensor that was normalised.
    pub x: &'a Tensor,
    /// Means; layer norm only.
    pub mean: Option<&'a Tensor>,
    pub rstd: &'a Tensor,
    /// Scale per column, if any.
    pub weight: Option<&'a Tensor>,
    /// Gradient of the sum with the branch, which is added to the result.
    pub gsum: Option<&'a Tensor>,
}

/// Runs the backward pass of a norm. Yields the gradient of x and, with a weight, its gradient, followed by that of the bias for a layer
/// norm.
///
/// # Errors
/// As [`norm`].
pub fn norm_backward(n: &CpuNormBackward<'_>) -> Result<impl Iterator<Item = Tensor> + use<>, ShimError> {
    let ins = [Some(n.g), Some(n.x), n.mean, Some(n.rstd), n.weight, n.gsum];
    Ok(result::norm_backward(ins)?.into_iter().flatten())
}

/// Computes silu(a) · b on the CPU; without `b`, a holds both in the halves of its last axis.
///
/// # Errors
/// When operands have another device or kind.
pub fn gate(a: &Tensor, b: Option<&Tensor>) -> Result<Tensor, ShimError> {
    result::gate([Some(a), b])
}

/// Computes the gradients of a and b, or of both halves, from the gradient of [`gate`].
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

/// Parameters of a dropout: position in the random stream, threshold and scale.
#[derive(Debug, Clone, Copy)]
pub struct DropoutParams {
    pub seed: u64,
    pub step: u64,
    /// Number of the operation in the step.
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
pub fn dropout(x: &Tensor, rows: bool, drop: &DropoutParams) -> Result<Tensor, ShimError> {
    let key = [drop.seed, drop.step, u64::from(drop.site)];
    let numbers = result::RawDropout { key, first: drop.first, threshold: drop.threshold, scale: drop.scale };
    result::dropout(x, rows, &numbers)
}
