//! Safe access to the shim: dispatcher operators that are found once by name, the version counter, the CPU kernels.

use super::ShimError;
use super::result::{self, Handle, Pointers};
pub use super::result::{
    Argument, CpuNorm, CpuNormBackward, DropoutParams, RetentionBackward, adamw, allow_tf32, attention,
    attention_backward, average, average_share, deterministic, dropout, gate, gate_backward, global_norm, layouts,
    linear, linear_backward, norm, norm_backward, retention, retention_backward, version, zero,
};
use super::sys::RawArg;
use crate::backend::Outs;
use smallvec::SmallVec;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::OnceLock;
use tch::{Device, Kind, Tensor};

#[derive(Debug, Clone, Copy)]
pub enum Arg<'a> {
    None,
    Tensor(&'a Tensor),
    Int(i64),
    Real(f64),
    Bool(bool),
    Ints(&'a [i64]),
    Bools(&'a [bool]),
    Tensors(&'a [&'a Tensor]),
    /// A list of optional tensors: each `true` takes the next tensor.
    TensorsWhere(&'a [&'a Tensor], &'a [bool]),
    Reals(&'a [f64]),
    Text(&'a str),
    Kind(Kind),
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
    pub fn all() -> Result<Vec<(String, String)>, ShimError> {
        result::operators()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Calls the operator with all arguments of its schema, in order.
    pub fn call(&self, args: &[Arg<'_>]) -> Result<Outs, ShimError> {
        self.named(call(self.handle, args))
    }

    /// Returns the gradients of the `wanted` operands, in order, from the gradients of the results. libtorch's autograd computes them and
    /// calls the operator once more.
    pub fn gradients(&self, args: &[Arg<'_>], given: &[Option<&Tensor>], wanted: &[bool]) -> Result<Outs, ShimError> {
        self.named(with_raw(args, |raw| result::gradients(self.handle, raw, given, wanted)))
    }

    /// Adds the operator's name to an error.
    fn named<T>(&self, made: Result<T, ShimError>) -> Result<T, ShimError> {
        made.map_err(|error| ShimError { message: format!("{}: {}", self.name, error.message) })
    }

    /// Whether the operator draws random numbers, so that a second call gives other results.
    pub fn draws(&self) -> Result<bool, ShimError> {
        result::draws(self.handle)
    }

    /// Returns a tensor without memory (on the meta device), on which operators compute shapes only.
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
pub fn renew_storage(tensor: &Tensor, there: bool) -> Result<(), ShimError> {
    let bytes = if there { tensor.numel() * tensor.kind().elt_size_in_bytes() } else { 0 };
    result::renew_storage(tensor, bytes as i64)
}

/// Whether the CPU kernels take this tensor.
pub fn has_cpu_kernel(tensor: &Tensor) -> bool {
    tensor.device() == Device::Cpu && matches!(tensor.kind(), Kind::Float | Kind::Double)
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
