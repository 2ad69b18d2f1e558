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

/// Most results of a boxed call.
const RESULTS_MAX: usize = 16;
/// Most arguments of a schema.
const ARGUMENTS_MAX: usize = 64;

/// One argument of an operator's schema.
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

/// Takes ownership of a tensor that the shim made.
fn owned(made: *mut C_tensor) -> Tensor {
    // SAFETY: called only on pointers the shim has just made with `new at::Tensor` and given up.
    unsafe { Tensor::from_ptr(made) }
}

/// Releases the owner that [`over`] passed to libtorch.
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
    let mut out = ptr::null_mut();
    // SAFETY: the memory is as the caller says; `like` lives during the call, and `out` is writable.
    check(unsafe { sys::enn_tensor_over(data, like.as_ptr(), release::<T>, owner.cast(), &raw mut out) })?;
    Ok(owned(out))
}

/// Handle of a dispatcher operator, valid as long as the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle(*mut c_void);

// SAFETY: a handle is a pointer to an immutable OperatorHandle that is never freed; the dispatcher locks internally.
unsafe impl Send for Handle {}
// SAFETY: as above; calling through it from several threads is what the dispatcher is made for.
unsafe impl Sync for Handle {}

pub(super) fn find(name: &CStr, overload: &CStr) -> Result<Handle, ShimError> {
    let mut out = ptr::null_mut();
    // SAFETY: both strings are NUL-terminated and `out` is writable.
    check(unsafe { sys::enn_aten_find(name.as_ptr(), overload.as_ptr(), &raw mut out) })?;
    Ok(Handle(out))
}

/// Returns the arguments of an operator's schema.
pub(super) fn arguments(handle: Handle) -> Result<Vec<Argument>, ShimError> {
    let mut found = [sys::RawArgument { writes: 0, takes: 0, name: ptr::null() }; ARGUMENTS_MAX];
    let mut count = 0;
    // SAFETY: the handle came from `find`; `found` has the room given.
    check(unsafe { sys::enn_aten_arguments(handle.0, found.as_mut_ptr(), ARGUMENTS_MAX, &raw mut count) })?;
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
    let mut out = ptr::null_mut();
    // SAFETY: `sizes` has the length given, `like` is alive and `out` is writable.
    check(unsafe { sys::enn_aten_hollow(sizes.as_ptr(), sizes.len(), like.as_ptr(), &raw mut out) })?;
    Ok(owned(out))
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

/// Whether an operator draws random numbers.
pub(super) fn draws(handle: Handle) -> Result<bool, ShimError> {
    let mut out = 0;
    // SAFETY: the handle came from `find` and `out` is writable.
    check(unsafe { sys::enn_aten_draws(handle.0, &raw mut out) })?;
    Ok(out != 0)
}

pub(super) fn renew_storage(tensor: &Tensor, bytes: i64) -> Result<(), ShimError> {
    // SAFETY: the tensor is alive.
    check(unsafe { sys::enn_aten_renew_storage(tensor.as_ptr(), bytes) })
}

pub(super) fn version(tensor: &Tensor) -> Result<i64, ShimError> {
    let mut out = 0;
    // SAFETY: the tensor is alive and `out` is writable.
    check(unsafe { sys::enn_aten_version(tensor.as_ptr(), &raw mut out) })?;
    Ok(out)
}

/// Mixes the metadata of the tensors into `hash`, without access to a device.
pub(super) fn layouts(tensors: &[&Tensor], alignment_max: u64, mut hash: u64) -> Result<u64, ShimError> {
    let pointers = pointers(tensors);
    // SAFETY: all tensors are alive, `pointers` has the length given and `hash` is writable.
    check(unsafe { sys::enn_aten_layouts(pointers.as_ptr(), pointers.len(), alignment_max, &raw mut hash) })?;
    Ok(hash)
}

pub(super) fn allow_tf32(on: bool) -> Result<(), ShimError> {
    // SAFETY: no pointers; the shim writes a flag of libtorch's global context.
    check(unsafe { sys::enn_allow_tf32(i32::from(on)) })
}

pub(super) fn deterministic(on: bool) -> Result<(), ShimError> {
    // SAFETY: no pointers; the shim writes flags of libtorch's global context.
    check(unsafe { sys::enn_deterministic(i32::from(on)) })
}

pub(super) fn retention(v: &Tensor, lambda: &Tensor, state: Option<&Tensor>, both: bool) -> Result<Tensor, ShimError> {
    let mut y = ptr::null_mut();
    // SAFETY: operands are alive; a missing state is null, which the shim checks; `y` is writable.
    let status =
        unsafe { sys::enn_retention(v.as_ptr(), lambda.as_ptr(), pointer(state), i32::from(both), &raw mut y) };
    check(status)?;
    Ok(owned(y))
}

/// Runs the backward scan. `ins` are v, λ, y, gradient of y, state, gradient of the outgoing state.
pub(super) fn retention_backward(ins: [Option<&Tensor>; 6], both: bool) -> Result<[Tensor; 3], ShimError> {
    let ins = ins.map(pointer);
    let mut outs = [ptr::null_mut(); 3];
    // SAFETY: six operand pointers of which the last two may be null, and room for three results.
    check(unsafe { sys::enn_retention_backward(ins.as_ptr(), i32::from(both), outs.as_mut_ptr()) })?;
    Ok(outs.map(owned))
}

/// Runs AdamW on weight, gradient, first and second moment, all written except the gradient. The average, if given, moves by a share.
pub(super) fn adamw(
    arrays: [&Tensor; 4],
    average: Option<(&Tensor, f32)>,
    numbers: &Tensor,
    decays: bool,
    eps: f32,
) -> Result<(), ShimError> {
    let mut all = arrays.map(Tensor::as_ptr).to_vec();
    all.extend(average.map(|(average, _)| average.as_ptr()));
    let count = all.len() as i64;
    let share = average.map_or(0.0, |(_, share)| share);
    // SAFETY: so many arrays and the numbers are alive; the shim checks kinds and lengths before it writes.
    check(unsafe { sys::enn_adamw(all.as_ptr(), count, numbers.as_ptr(), i32::from(decays), eps, share) })
}

/// Counts an update in `updates` if it was `taken`, and returns the share by which averages move.
pub(super) fn average_share(updates: &Tensor, taken: &Tensor, decay: f64) -> Result<f32, ShimError> {
    let mut share = 0.0;
    // SAFETY: both counts are alive; the shim checks their kinds before it writes.
    check(unsafe { sys::enn_average_share(updates.as_ptr(), taken.as_ptr(), decay, &raw mut share) })?;
    Ok(share)
}

/// Moves averages towards weights; `arrays` alternates averages, which are written, and weights.
pub(super) fn average(arrays: &[&Tensor], share: f32) -> Result<(), ShimError> {
    let arrays: Vec<_> = arrays.iter().map(|array| array.as_ptr()).collect();
    // SAFETY: so many arrays are alive; the shim checks kinds and lengths before it writes.
    check(unsafe { sys::enn_average(arrays.as_ptr(), arrays.len() as i64, share) })
}

/// Clears the arrays.
pub(super) fn zero(arrays: &[&Tensor]) -> Result<(), ShimError> {
    let arrays: Vec<_> = arrays.iter().map(|array| array.as_ptr()).collect();
    // SAFETY: so many arrays are alive; the shim checks kind and layout before it writes.
    check(unsafe { sys::enn_zero(arrays.as_ptr(), arrays.len() as i64) })
}

/// Sets the number of threads of later operations. Returns the previous number, 0 where threads are not counted.
pub(super) fn threads(count: i32) -> i32 {
    // SAFETY: no pointers; the number is this thread's own.
    unsafe { sys::enn_threads(count) }
}

/// Computes √Σx² over all arrays.
pub(super) fn global_norm(arrays: &[&Tensor]) -> Result<f64, ShimError> {
    let arrays: Vec<_> = arrays.iter().map(|array| array.as_ptr()).collect();
    let mut norm = 0.0;
    // SAFETY: so many arrays are alive; the shim checks kind and layout before it reads.
    check(unsafe { sys::enn_global_norm(arrays.as_ptr(), arrays.len() as i64, &raw mut norm) })?;
    Ok(norm)
}

/// Whether the processor has the vector registers that the following kernels need.
pub(super) fn has_wide() -> bool {
    // SAFETY: no pointers; the shim asks the processor.
    unsafe { sys::enn_has_wide() != 0 }
}

pub(super) fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, far: bool) -> Result<Tensor, ShimError> {
    let mut y = ptr::null_mut();
    // SAFETY: operands are alive; a missing bias is null, which the shim checks; `y` is writable.
    check(unsafe { sys::enn_linear(x.as_ptr(), w.as_ptr(), pointer(bias), i32::from(far), &raw mut y) })?;
    Ok(owned(y))
}

/// Runs the backward pass of a linear layer. `ins` are the gradient of the result, x and the weight. The gradients of weight and bias are
/// added to `dw` and `db`.
pub(super) fn linear_backward(
    ins: [&Tensor; 3],
    dx: bool,
    dw: Option<&Tensor>,
    db: Option<&Tensor>,
) -> Result<Option<Tensor>, ShimError> {
    let ins = ins.map(|t| t.as_ptr());
    let mut made = ptr::null_mut();
    let place = if dx { &raw mut made } else { ptr::null_mut() };
    // SAFETY: three operands and the storages are alive; what is not wanted is null, which the shim checks, as it does lengths.
    check(unsafe { sys::enn_linear_backward(ins.as_ptr(), place, pointer(dw), pointer(db)) })?;
    Ok(dx.then(|| owned(made)))
}

/// Runs attention on q, k, v. Returns the result and log Σ exp.
pub(super) fn attention(ins: [&Tensor; 3], bias: Option<&Tensor>, causal: bool) -> Result<[Tensor; 2], ShimError> {
    let ins = ins.map(|t| t.as_ptr());
    let mut outs = [ptr::null_mut(); 2];
    // SAFETY: three operands are alive; a missing bias is null, which the shim checks; there is room for two results.
    check(unsafe { sys::enn_attention(ins.as_ptr(), pointer(bias), i32::from(causal), outs.as_mut_ptr()) })?;
    Ok(outs.map(owned))
}

/// Computes the gradients of q, k, v from gradient, q, k, v, result and log Σ exp.
pub(super) fn attention_backward(
    ins: [&Tensor; 6],
    bias: Option<&Tensor>,
    causal: bool,
) -> Result<[Tensor; 3], ShimError> {
    let ins = ins.map(|t| t.as_ptr());
    let mut outs = [ptr::null_mut(); 3];
    // SAFETY: six operands are alive; a missing bias is null, which the shim checks; there is room for three results.
    check(unsafe { sys::enn_attention_backward(ins.as_ptr(), pointer(bias), i32::from(causal), outs.as_mut_ptr()) })?;
    Ok(outs.map(owned))
}

/// Takes ownership of a tensor that the shim made, if it made one.
fn maybe(made: *mut C_tensor) -> Option<Tensor> {
    (!made.is_null()).then(|| owned(made))
}

/// Runs a norm on x, branch, weight and bias. Returns sum, norm, mean and 1/σ.
pub(super) fn norm(ins: [Option<&Tensor>; 4], centred: bool, eps: f32) -> Result<[Option<Tensor>; 4], ShimError> {
    let ins = ins.map(pointer);
    let mut outs = [ptr::null_mut(); 4];
    // SAFETY: four operands of which all but the first may be null, which the shim checks; there is room for four results.
    check(unsafe { sys::enn_norm(ins.as_ptr(), i32::from(centred), eps, outs.as_mut_ptr()) })?;
    Ok(outs.map(maybe))
}

/// Computes the gradients of x, weight and bias from gradient, x, mean, 1/σ, weight and gradient of the sum.
pub(super) fn norm_backward(ins: [Option<&Tensor>; 6]) -> Result<[Option<Tensor>; 3], ShimError> {
    let ins = ins.map(pointer);
    let mut outs = [ptr::null_mut(); 3];
    // SAFETY: six operands of which mean, weight and the last may be null, which the shim checks; there is room for three results.
    check(unsafe { sys::enn_norm_backward(ins.as_ptr(), outs.as_mut_ptr()) })?;
    Ok(outs.map(maybe))
}

/// Runs silu(a) · b. `ins` are a and b, or one tensor with both.
pub(super) fn gate(ins: [Option<&Tensor>; 2]) -> Result<Tensor, ShimError> {
    let ins = ins.map(pointer);
    let mut y = ptr::null_mut();
    // SAFETY: two operands of which the second may be null, which the shim checks; `y` is writable.
    check(unsafe { sys::enn_gate(ins.as_ptr(), &raw mut y) })?;
    Ok(owned(y))
}

/// Computes the gradients of a and b from the gradient, a and b. Where a and b are one tensor, so are the gradients.
pub(super) fn gate_backward(ins: [Option<&Tensor>; 3]) -> Result<[Option<Tensor>; 2], ShimError> {
    let ins = ins.map(pointer);
    let mut outs = [ptr::null_mut(); 2];
    // SAFETY: three operands of which the last may be null, which the shim checks; there is room for two results.
    check(unsafe { sys::enn_gate_backward(ins.as_ptr(), outs.as_mut_ptr()) })?;
    Ok(outs.map(maybe))
}

/// Parameters of one dropout, as the shim takes them.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawDropout {
    pub(super) key: [u64; 3],
    pub(super) first: u64,
    pub(super) threshold: u32,
    pub(super) scale: f64,
}

pub(super) fn dropout(x: &Tensor, rows: bool, drop: &RawDropout) -> Result<Tensor, ShimError> {
    let mut y = ptr::null_mut();
    // SAFETY: `x` is alive, the key has the three words the shim reads, `y` is writable.
    let status = unsafe {
        sys::enn_dropout(
            x.as_ptr(),
            i32::from(rows),
            drop.key.as_ptr(),
            drop.first,
            drop.threshold,
            drop.scale,
            &raw mut y,
        )
    };
    check(status)?;
    Ok(owned(y))
}

/// A list of tensor pointers.
pub(super) type Pointers = SmallVec<[*const C_tensor; 8]>;

/// Returns the pointers of a list of tensors.
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
