//! The shim's functions with `Result`: every status becomes a [`ShimError`], every returned pointer gets an owner.

use super::ShimError;
use super::sys;
use crate::backend::Outs;
use smallvec::SmallVec;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;
use tch::Tensor;
use torch_sys::C_tensor;

const RESULTS_MAX: usize = 16;
const ARGUMENTS_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    pub name: String,
    /// Whether the operator writes the argument in place.
    pub writes: bool,
    /// Accepted argument types: bit i is set if a value with tag i is accepted.
    pub takes: u32,
}

/// Converts the status of a shim function that reports through `enn_aten_error`.
pub(in crate::backend) fn check(status: i32) -> Result<(), ShimError> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: the shim keeps a NUL-terminated string per thread, valid until the next call on this thread.
    let text = unsafe { CStr::from_ptr(sys::enn_aten_error()) };
    Err(ShimError { message: sentence(&text.to_string_lossy()) })
}

/// Returns an exception's message on one line, without the advice that libtorch adds to every device error.
fn sentence(text: &str) -> String {
    let advice = ["Search for `cuda", "CUDA kernel errors might be asynchronously reported"];
    let said = text.trim().lines().take_while(|line| !advice.iter().any(|begin| line.starts_with(begin)));
    said.collect::<Vec<_>>().join(" ")
}

fn pointer(tensor: Option<&Tensor>) -> *const C_tensor {
    tensor.map_or(ptr::null(), Tensor::as_ptr)
}

fn owned(made: *mut C_tensor) -> Tensor {
    // SAFETY: called only on pointers the shim has just made with `new at::Tensor` and given up.
    unsafe { Tensor::from_ptr(made) }
}

unsafe extern "C" fn release<T>(owner: *mut c_void) {
    // SAFETY: `over` made this pointer of an `Arc<T>`, and the shim gives it back once.
    drop(unsafe { Arc::from_raw(owner.cast_const().cast::<T>()) });
}

/// Returns a tensor of the shape, strides and kind of `like` over the memory at `data`. `owner` keeps the memory alive and is dropped
/// with the last tensor on it.
///
/// # Safety
/// The memory holds the bytes of such a tensor, on the device of `like`, as long as `owner` is held; nothing else accesses it while an
/// operation reads or writes the tensor.
pub unsafe fn over<T: Send + Sync>(data: *mut c_void, like: &Tensor, owner: Arc<T>) -> Result<Tensor, ShimError> {
    let owner = Arc::into_raw(owner).cast_mut();
    // SAFETY: the memory is as the caller says; `like` lives during the call.
    one(|out| unsafe { sys::enn_tensor_over(data, like.as_ptr(), release::<T>, owner.cast(), out) })
}

/// Handle of a dispatcher operator, valid as long as the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle(*mut c_void);

// SAFETY: a handle is a pointer to an immutable OperatorHandle that is never freed; the dispatcher locks internally.
unsafe impl Send for Handle {}
// SAFETY: as above; calling through it from several threads is what the dispatcher is made for.
unsafe impl Sync for Handle {}

/// Runs a shim function that writes one number.
pub(in crate::backend) fn number<T: Default>(run: impl FnOnce(*mut T) -> i32) -> Result<T, ShimError> {
    let mut out = T::default();
    check(run(&raw mut out))?;
    Ok(out)
}

/// Runs a shim function that makes a handle or finds an address.
pub(in crate::backend) fn handle<T>(run: impl FnOnce(*mut *mut T) -> i32) -> Result<*mut T, ShimError> {
    let mut out = ptr::null_mut();
    check(run(&raw mut out))?;
    Ok(out)
}

/// Runs a shim function that makes up to `N` tensors; those that it does not make are `None`.
fn some_of<const N: usize>(run: impl FnOnce(*mut *mut C_tensor) -> i32) -> Result<[Option<Tensor>; N], ShimError> {
    let mut outs = [ptr::null_mut(); N];
    check(run(outs.as_mut_ptr()))?;
    Ok(outs.map(|made: *mut C_tensor| (!made.is_null()).then(|| owned(made))))
}

/// Runs a shim function that makes `N` tensors.
fn all_of<const N: usize>(run: impl FnOnce(*mut *mut C_tensor) -> i32) -> Result<[Tensor; N], ShimError> {
    let mut outs = [ptr::null_mut(); N];
    check(run(outs.as_mut_ptr()))?;
    Ok(outs.map(owned))
}

/// Runs a shim function that makes one tensor.
fn one(run: impl FnOnce(*mut *mut C_tensor) -> i32) -> Result<Tensor, ShimError> {
    all_of(run).map(|[made]| made)
}

pub(super) fn find(name: &CStr, overload: &CStr) -> Result<Handle, ShimError> {
    // SAFETY: both strings are NUL-terminated.
    handle(|out| unsafe { sys::enn_aten_find(name.as_ptr(), overload.as_ptr(), out) }).map(Handle)
}

pub(super) fn arguments(handle: Handle) -> Result<Vec<Argument>, ShimError> {
    let mut found = [sys::RawArgument { writes: 0, takes: 0, name: ptr::null() }; ARGUMENTS_MAX];
    // SAFETY: the handle came from `find`; `found` has the room given.
    let count = number(|count| unsafe { sys::enn_aten_arguments(handle.0, found.as_mut_ptr(), ARGUMENTS_MAX, count) })?;
    let argument = |raw: &sys::RawArgument| Argument {
        // SAFETY: the shim has filled the first `count` with NUL-terminated names that live as long as the operator.
        name: unsafe { text(raw.name) },
        writes: raw.writes != 0,
        takes: raw.takes,
    };
    Ok(found[..count].iter().map(argument).collect())
}

/// Copies a string of the shim.
///
/// # Safety
/// The string is NUL-terminated and alive.
unsafe fn text(raw: *const c_char) -> String {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned()
}

/// Returns name and overload of every operator that has a schema.
pub(super) fn operators() -> Result<Vec<(String, String)>, ShimError> {
    unsafe extern "C" fn take(to: *mut c_void, name: *const c_char, overload: *const c_char) {
        // SAFETY: `to` is the list below, which nobody else uses during the call, and the shim's texts live as long.
        unsafe { (*to.cast::<Vec<(String, String)>>()).push((text(name), text(overload))) };
    }
    let mut found = Vec::new();
    // SAFETY: `take` is made for this list, which outlives the call.
    check(unsafe { sys::enn_aten_operators(take, (&raw mut found).cast()) })?;
    Ok(found)
}

/// Returns a tensor on the meta device, of the kind of `like`.
pub(super) fn hollow(sizes: &[i64], like: &Tensor) -> Result<Tensor, ShimError> {
    // SAFETY: `sizes` has the length given, and `like` is alive.
    one(|out| unsafe { sys::enn_aten_hollow(sizes.as_ptr(), sizes.len(), like.as_ptr(), out) })
}

/// Calls an operator.
///
/// The caller keeps what `args` points to alive for the duration of the call.
pub(super) fn call(handle: Handle, args: &[sys::RawArg]) -> Result<Outs, ShimError> {
    let mut outs = [ptr::null_mut(); RESULTS_MAX];
    let mut made = 0;
    // SAFETY: the handle came from `find`; `args` and `outs` are valid for the counts given.
    let status = unsafe {
        sys::enn_aten_call(handle.0, args.as_ptr(), args.len(), outs.as_mut_ptr(), RESULTS_MAX, &raw mut made)
    };
    let results: Outs = outs[..made].iter().map(|p| owned(*p)).collect();
    check(status)?;
    Ok(results)
}

/// Returns the gradients of the `wanted` operands from the `given` gradients of the results.
///
/// The caller keeps what `args` points to alive for the duration of the call.
pub(super) fn gradients(
    handle: Handle,
    args: &[sys::RawArg],
    given: &[Option<&Tensor>],
    wanted: &[bool],
) -> Result<Outs, ShimError> {
    let given: SmallVec<[*const C_tensor; 4]> = given.iter().map(|one| pointer(*one)).collect();
    let mut outs: SmallVec<[*mut C_tensor; 4]> = wanted.iter().filter(|one| **one).map(|_| ptr::null_mut()).collect();
    // SAFETY: the handle came from `find`; all lists are valid for the counts given, and there is room for each gradient that is wanted.
    check(unsafe {
        sys::enn_aten_gradients(
            handle.0,
            args.as_ptr(),
            args.len(),
            given.as_ptr(),
            given.len(),
            wanted.as_ptr(),
            wanted.len(),
            outs.as_mut_ptr(),
        )
    })?;
    Ok(outs.into_iter().map(owned).collect())
}

pub(super) fn draws(handle: Handle) -> Result<bool, ShimError> {
    // SAFETY: the handle came from `find`.
    Ok(number(|out| unsafe { sys::enn_aten_draws(handle.0, out) })? != 0)
}

pub(super) fn renew_storage(tensor: &Tensor, bytes: i64) -> Result<(), ShimError> {
    // SAFETY: the tensor is alive.
    check(unsafe { sys::enn_aten_renew_storage(tensor.as_ptr(), bytes) })
}

/// Returns the number of in-place writes to the tensor's storage so far, through any view; −1 where libtorch keeps no count.
pub fn version(tensor: &Tensor) -> i64 {
    // SAFETY: the tensor is alive.
    number(|out| unsafe { sys::enn_aten_version(tensor.as_ptr(), out) }).unwrap_or(-1)
}

/// Mixes the properties of operands that a kernel may depend on into `hash`: kind, shape, strides where they are not dense,
/// alignment up to `alignment_max` bytes (a power of two) and device class. No device is accessed. On an error of libtorch the hash is
/// unchanged.
pub fn layouts(tensors: &[&Tensor], alignment_max: u64, hash: u64) -> u64 {
    let pointers = pointers(tensors);
    let mut mixed = hash;
    // SAFETY: all tensors are alive, `pointers` has the length given and `mixed` is writable.
    let status = unsafe { sys::enn_aten_layouts(pointers.as_ptr(), pointers.len(), alignment_max, &raw mut mixed) };
    if check(status).is_ok() { mixed } else { hash }
}

/// Sets, for the whole process, whether products of f32 matrices on CUDA may use 10-bit mantissas (TF32).
pub fn allow_tf32(on: bool) -> Result<(), ShimError> {
    // SAFETY: no pointers; the shim writes a flag of libtorch's global context.
    check(unsafe { sys::enn_allow_tf32(i32::from(on)) })
}

/// Sets, for the whole process, whether libtorch uses deterministic implementations where operators have one.
pub fn deterministic(on: bool) -> Result<(), ShimError> {
    // SAFETY: no pointers; the shim writes flags of libtorch's global context.
    check(unsafe { sys::enn_deterministic(i32::from(on)) })
}

/// Runs the retention scan: v (B,N,H,Dh), λ (H), state (B,H,Dh), f32 or f64; `both` adds the reversed scan.
pub fn retention(v: &Tensor, lambda: &Tensor, state: Option<&Tensor>, both: bool) -> Result<Tensor, ShimError> {
    let both = i32::from(both);
    // SAFETY: operands are alive; a missing state is null, which the shim checks.
    one(|y| unsafe { sys::enn_retention(v.as_ptr(), lambda.as_ptr(), pointer(state), both, y) })
}

#[derive(Debug, Clone, Copy)]
pub struct RetentionBackward<'a> {
    /// Summands v (B,N,H,Dh).
    pub v: &'a Tensor,
    /// Decay λ per head (H).
    pub lambda: &'a Tensor,
    pub y: &'a Tensor,
    pub g: &'a Tensor,
    pub state: Option<&'a Tensor>,
    /// Gradient of the outgoing state.
    pub gstate: Option<&'a Tensor>,
    /// Whether the scan runs in both directions.
    pub both: bool,
}

/// Computes the gradients of v, λ and the incoming state.
pub fn retention_backward(r: &RetentionBackward<'_>) -> Result<[Tensor; 3], ShimError> {
    let ins = [Some(r.v), Some(r.lambda), Some(r.y), Some(r.g), r.state, r.gstate].map(pointer);
    // SAFETY: six operand pointers of which the last two may be null, and room for three results.
    all_of(|outs| unsafe { sys::enn_retention_backward(ins.as_ptr(), i32::from(r.both), outs) })
}

/// Runs AdamW over weight, gradient, first and second moment: dense, f32, of one length, all written except the gradient. The average, if
/// given, moves by a share. `numbers` are the six scalars of the optimizer's operation.
pub fn adamw(
    arrays: [&Tensor; 4],
    average: Option<(&Tensor, f32)>,
    numbers: &Tensor,
    decays: bool,
    eps: f64,
) -> Result<(), ShimError> {
    let mut all = arrays.map(Tensor::as_ptr).to_vec();
    all.extend(average.map(|(average, _)| average.as_ptr()));
    let count = all.len() as i64;
    let share = average.map_or(0.0, |(_, share)| share);
    // SAFETY: so many arrays and the numbers are alive; the shim checks kinds and lengths before it writes.
    check(unsafe { sys::enn_adamw(all.as_ptr(), count, numbers.as_ptr(), i32::from(decays), eps as f32, share) })
}

/// Counts an update in `updates` (f64, written) if `taken` (f64) is 1 and not 0. Returns the share by which averages move.
pub fn average_share(updates: &Tensor, taken: &Tensor, decay: f64) -> Result<f32, ShimError> {
    // SAFETY: both counts are alive; the shim checks their kinds before it writes.
    number(|share| unsafe { sys::enn_average_share(updates.as_ptr(), taken.as_ptr(), decay, share) })
}

/// Moves averages by a share. `arrays` alternates averages, which are written, and weights: dense, f32, of one length.
pub fn average(arrays: &[&Tensor], share: f32) -> Result<(), ShimError> {
    let arrays = pointers(arrays);
    // SAFETY: so many arrays are alive; the shim checks kinds and lengths before it writes.
    check(unsafe { sys::enn_average(arrays.as_ptr(), arrays.len() as i64, share) })
}

/// Sets dense f32 arrays to 0.
pub fn zero(arrays: &[&Tensor]) -> Result<(), ShimError> {
    let arrays = pointers(arrays);
    // SAFETY: so many arrays are alive; the shim checks kind and layout before it writes.
    check(unsafe { sys::enn_zero(arrays.as_ptr(), arrays.len() as i64) })
}

/// Sets the number of threads of later operations. Returns the previous number, 0 where threads are not counted.
pub(super) fn threads(count: i32) -> i32 {
    // SAFETY: no pointers; the number is this thread's own.
    unsafe { sys::enn_threads(count) }
}

/// Computes √Σx² over dense f32 arrays: summed in f32 within rows of 4,096 elements, in f64 across rows.
pub fn global_norm(arrays: &[&Tensor]) -> Result<f64, ShimError> {
    let arrays = pointers(arrays);
    // SAFETY: so many arrays are alive; the shim checks kind and layout before it reads.
    number(|norm| unsafe { sys::enn_global_norm(arrays.as_ptr(), arrays.len() as i64, norm) })
}

/// Whether the processor has the vector registers that the following kernels need.
pub(super) fn has_wide() -> bool {
    // SAFETY: no pointers; the shim asks the processor.
    unsafe { sys::enn_has_wide() != 0 }
}

/// Computes x Wᵀ + b: x (…, in), W (out, in), b (out), all f32. `far` tells that W does not fit the caches.
pub fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, far: bool) -> Result<Tensor, ShimError> {
    // SAFETY: operands are alive; a missing bias is null, which the shim checks.
    one(|y| unsafe { sys::enn_linear(x.as_ptr(), w.as_ptr(), pointer(bias), i32::from(far), y) })
}

/// Runs the backward pass of [`linear`] for the gradient of its result, x and W. With `dx` it returns the gradient of x; those of W and
/// b are added to the dense arrays `dw` and `db`.
pub fn linear_backward(
    ins: [&Tensor; 3],
    dx: bool,
    dw: Option<&Tensor>,
    db: Option<&Tensor>,
) -> Result<Option<Tensor>, ShimError> {
    let ins = ins.map(Tensor::as_ptr);
    let mut made = ptr::null_mut();
    let place = if dx { &raw mut made } else { ptr::null_mut() };
    // SAFETY: three operands and the storages are alive; what is not wanted is null, which the shim checks, as it does lengths.
    check(unsafe { sys::enn_linear_backward(ins.as_ptr(), place, pointer(dw), pointer(db)) })?;
    Ok(dx.then(|| owned(made)))
}

/// Runs attention: q, k, v (B,H,tokens,width) of one width, a dense bias (keys) or (B,keys), all f32. Returns the result and log Σ exp.
pub fn attention(ins: [&Tensor; 3], bias: Option<&Tensor>, causal: bool) -> Result<[Tensor; 2], ShimError> {
    let ins = ins.map(Tensor::as_ptr);
    // SAFETY: three operands are alive; a missing bias is null, which the shim checks; there is room for two results.
    all_of(|outs| unsafe { sys::enn_attention(ins.as_ptr(), pointer(bias), i32::from(causal), outs) })
}

/// Computes the gradients of q, k, v from gradient, q, k, v, result and log Σ exp.
pub fn attention_backward(ins: [&Tensor; 6], bias: Option<&Tensor>, causal: bool) -> Result<[Tensor; 3], ShimError> {
    let ins = ins.map(Tensor::as_ptr);
    // SAFETY: six operands are alive; a missing bias is null, which the shim checks; there is room for three results.
    all_of(|outs| unsafe { sys::enn_attention_backward(ins.as_ptr(), pointer(bias), i32::from(causal), outs) })
}

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
pub fn norm(n: &CpuNorm<'_>) -> Result<impl Iterator<Item = Tensor> + use<>, ShimError> {
    let ins = [Some(n.x), n.branch, n.weight, n.bias].map(pointer);
    // SAFETY: four operands of which all but the first may be null, which the shim checks; there is room for four results.
    let outs = some_of::<4>(|outs| unsafe { sys::enn_norm(ins.as_ptr(), i32::from(n.centred), n.eps as f32, outs) })?;
    Ok(outs.into_iter().flatten())
}

#[derive(Debug, Clone, Copy)]
pub struct CpuNormBackward<'a> {
    pub g: &'a Tensor,
    /// The tensor that was normalised.
    pub x: &'a Tensor,
    /// Means; layer norm only.
    pub mean: Option<&'a Tensor>,
    pub rstd: &'a Tensor,
    /// Scale per column.
    pub weight: Option<&'a Tensor>,
    /// Gradient of the sum with the branch, which is added to the result.
    pub gsum: Option<&'a Tensor>,
}

/// Runs the backward pass of a norm. Yields the gradient of x and, with a weight, its gradient, followed by that of the bias for a layer
/// norm.
pub fn norm_backward(n: &CpuNormBackward<'_>) -> Result<impl Iterator<Item = Tensor> + use<>, ShimError> {
    let ins = [Some(n.g), Some(n.x), n.mean, Some(n.rstd), n.weight, n.gsum].map(pointer);
    // SAFETY: six operands of which mean, weight and the last may be null, which the shim checks; there is room for three results.
    let outs = some_of::<3>(|outs| unsafe { sys::enn_norm_backward(ins.as_ptr(), outs) })?;
    Ok(outs.into_iter().flatten())
}

/// Computes silu(a) · b; without `b`, a holds both in the halves of its last axis.
pub fn gate(a: &Tensor, b: Option<&Tensor>) -> Result<Tensor, ShimError> {
    let ins = [Some(a), b].map(pointer);
    // SAFETY: two operands of which the second may be null, which the shim checks.
    one(|y| unsafe { sys::enn_gate(ins.as_ptr(), y) })
}

/// Computes the gradients of a and b from the gradient of [`gate`]. Where a holds both halves, so does its gradient.
pub fn gate_backward(
    g: &Tensor,
    a: &Tensor,
    b: Option<&Tensor>,
) -> Result<impl Iterator<Item = Tensor> + use<>, ShimError> {
    let ins = [Some(g), Some(a), b].map(pointer);
    // SAFETY: three operands of which the last may be null, which the shim checks; there is room for two results.
    let outs = some_of::<2>(|outs| unsafe { sys::enn_gate_backward(ins.as_ptr(), outs) })?;
    Ok(outs.into_iter().flatten())
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

/// Drops elements of `x`, f32 or f64; with `rows`, returns one factor per row of the first axis instead.
pub fn dropout(x: &Tensor, rows: bool, drop: &DropoutParams) -> Result<Tensor, ShimError> {
    let key = [drop.seed, drop.step, u64::from(drop.site)];
    let DropoutParams { first, threshold, scale, .. } = *drop;
    let rows = i32::from(rows);
    // SAFETY: `x` is alive, and the key has the three words the shim reads.
    one(|y| unsafe { sys::enn_dropout(x.as_ptr(), rows, key.as_ptr(), first, threshold, scale, y) })
}

pub(super) type Pointers = SmallVec<[*const C_tensor; 8]>;

pub(super) fn pointers(tensors: &[&Tensor]) -> Pointers {
    tensors.iter().map(|t| t.as_ptr()).collect()
}

/// Returns the pointers of a list with gaps: each `true` takes the next tensor, each `false` gives null.
pub(super) fn pointers_where(tensors: &[&Tensor], there: &[bool]) -> Pointers {
    let mut tensors = tensors.iter();
    there.iter().map(|there| pointer(if *there { tensors.next().copied() } else { None })).collect()
}

#[cfg(test)]
mod tests {
    use super::sentence;

    #[test]
    fn a_devices_error_is_told_without_libtorchs_advice() {
        let text = "CUDA error: an illegal memory access\nSearch for `cudaErrorIllegalAddress' in https://docs.nvidia.com\nCompile with X\n";
        assert_eq!(sentence(text), "CUDA error: an illegal memory access");
        assert_eq!(sentence(" two lines\nof another \n"), "two lines of another");
    }
}
