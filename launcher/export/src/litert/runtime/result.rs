//! LiteRT's C API with a `Result` for every call that can fail; an error names the call and the meaning of its status.

use super::sys::{
    ACCELERATORS, AXES_MAX, CPU, Destroy, ERROR, EnvOption, Functions, Handle, Layout, NUMBER, OptionValue, READ,
    SEVERITY, TensorType, WRITE,
};
use std::{
    ffi::{CStr, CString, c_int},
    ptr,
};

/// Result of a call; the error names the call and its status.
pub(super) type ApiResult<T> = Result<T, String>;

/// Index of the signature that is run; our files have one.
const SIGNATURE: usize = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Input,
    Output,
}

/// Turns a `LiteRtStatus` into a result.
fn done(what: &str, status: c_int) -> ApiResult<()> {
    let meaning = match status {
        0 => return Ok(()),
        1 => "an argument is not valid",
        2 => "no memory",
        3 => "the runtime failed",
        5 => "not supported",
        6 => "not found",
        500 => "the file cannot be read",
        501 => "the flatbuffer is not valid",
        504 => "it does not compile",
        _ => "see LiteRtStatus",
    };
    Err(format!("{what}: {meaning} (status {status})"))
}

/// Returns the handle that a call stores through its last argument.
fn returned_handle(what: &str, call: impl FnOnce(*mut Handle) -> c_int) -> ApiResult<Handle> {
    let mut handle = ptr::null_mut();
    done(what, call(&raw mut handle))?;
    if handle.is_null() { Err(format!("{what}: no handle was returned")) } else { Ok(handle) }
}

/// Makes the environment for all models of this process: CPUs only, and error logs only.
pub(super) fn environment(api: &Functions) -> ApiResult<Handle> {
    let choice = |(tag, value)| EnvOption { tag, value: OptionValue { kind: NUMBER, value } };
    let choices = [(ACCELERATORS, i64::from(CPU)), (SEVERITY, ERROR)].map(choice);
    // SAFETY: the choices are read during the call; the environment goes to a place that is alive.
    returned_handle("an environment", |to| unsafe {
        (api.create_environment)(choices.len() as c_int, choices.as_ptr(), to)
    })
}

pub(super) fn model(api: &Functions, environment: Handle, path: &str) -> ApiResult<Handle> {
    let path = CString::new(path).map_err(|_| "its path has a zero in it".to_owned())?;
    // SAFETY: the environment and the path are alive.
    returned_handle("reading the model", |to| unsafe { (api.model_from_file)(environment, path.as_ptr(), to) })
}

/// Compiles a model for CPUs.
pub(super) fn compiled(api: &Functions, environment: Handle, model: Handle) -> ApiResult<Handle> {
    // SAFETY: the options go to a place that is alive.
    let options = returned_handle("options", |to| unsafe { (api.create_options)(to) })?;
    // SAFETY: the options were just made.
    let set = done("choosing the CPU", unsafe { (api.set_accelerators)(options, CPU) });
    // SAFETY: environment, model and options are alive; the options are read during the call only.
    let made =
        set.and_then(|()| returned_handle("compiling", |to| unsafe { (api.compile)(environment, model, options, to) }));
    // SAFETY: made above, used no more.
    unsafe { (api.destroy_options)(options) };
    made
}

pub(super) fn destroy(destroy: Destroy, handle: Handle) {
    // SAFETY: its owner uses it no more, and what was made from it is gone.
    unsafe { destroy(handle) };
}

/// Returns names and types of one side of the signature.
pub(super) fn ports(api: &Functions, model: Handle, side: Side) -> ApiResult<Vec<(String, TensorType)>> {
    let (count, name, tensor) = match side {
        Side::Input => (api.count_inputs, api.input_name, api.input_tensor),
        Side::Output => (api.count_outputs, api.output_name, api.output_tensor),
    };
    // SAFETY: the model is alive; what it gives lives as long.
    let signature = returned_handle("its signature", |to| unsafe { (api.signature)(model, SIGNATURE, to) })?;
    let mut ports = 0;
    // SAFETY: as above; the number goes to a place that is alive.
    done("counting ports", unsafe { count(signature, &raw mut ports) })?;
    (0..ports)
        .map(|port| {
            let mut name_text = ptr::null();
            // SAFETY: as above.
            done("a port's name", unsafe { name(signature, port, &raw mut name_text) })?;
            // SAFETY: the name ends with a zero and lives as long as the model; it is copied.
            let name_text = unsafe { CStr::from_ptr(name_text) }.to_string_lossy().into_owned();
            // SAFETY: as above.
            let tensor = returned_handle("a port's tensor", |to| unsafe { tensor(signature, port, to) })?;
            let mut kind = TensorType::default();
            // SAFETY: the tensor lives as long as the model; the type has the header's layout.
            done("a port's type", unsafe { (api.tensor_type)(tensor, &raw mut kind) })?;
            Ok((name_text, kind))
        })
        .collect()
}

pub(super) fn resize(api: &Functions, compiled: Handle, input: usize, shape: &[c_int]) -> ApiResult<()> {
    let status =
        // SAFETY: the model is alive, the sizes are read during the call.
        unsafe { (api.resize)(compiled, SIGNATURE, input, shape.as_ptr(), shape.len()) };
    done(&format!("input {input} of sizes {shape:?}"), status)
}

/// Returns the shapes of the outputs for the inputs' current shapes.
pub(super) fn outputs(api: &Functions, compiled: Handle, count: usize) -> ApiResult<Vec<Layout>> {
    let mut layouts = vec![Layout::default(); count];
    // SAFETY: the model is alive; there is room for as many layouts as are said to be asked for.
    let status = unsafe { (api.output_layouts)(compiled, SIGNATURE, count, layouts.as_mut_ptr(), true) };
    done("the outputs' shapes", status)?;
    Ok(layouts)
}

/// Allocates the memory of a port.
pub(super) fn buffer(
    api: &Functions,
    environment: Handle,
    compiled: Handle,
    side: Side,
    port: usize,
    kind: &TensorType,
) -> ApiResult<Handle> {
    let ask = match side {
        Side::Input => api.input_requirements,
        Side::Output => api.output_requirements,
    };
    // SAFETY: the model is alive, and the answer belongs to it.
    let requirements = returned_handle("what a buffer must be", |to| unsafe { ask(compiled, SIGNATURE, port, to) })?;
    // SAFETY: all are alive during the call.
    returned_handle("a buffer", |to| unsafe { (api.create_buffer)(environment, kind, requirements, to) })
}

/// Replaces the buffer's first bytes.
pub(super) fn fill(api: &Functions, buffer: Handle, bytes: &[u8]) -> ApiResult<()> {
    locked(api, buffer, WRITE, bytes.len(), |memory| {
        // SAFETY: the memory is locked for us, and is as long as `locked` made sure.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) }
    })
}

/// Reads the buffer's first bytes.
pub(super) fn read(api: &Functions, buffer: Handle, bytes: usize) -> ApiResult<Vec<u8>> {
    locked(api, buffer, READ, bytes, |memory| {
        // SAFETY: the memory is locked for us, and is as long as `locked` made sure.
        unsafe { std::slice::from_raw_parts(memory, bytes) }.to_vec()
    })
}

fn locked<T>(
    api: &Functions,
    buffer: Handle,
    mode: c_int,
    bytes: usize,
    work: impl FnOnce(*mut u8) -> T,
) -> ApiResult<T> {
    let mut room = 0;
    // SAFETY: the buffer is alive.
    done("a buffer's size", unsafe { (api.buffer_bytes)(buffer, &raw mut room) })?;
    if room < bytes {
        return Err(format!("a buffer has {room} bytes, expected {bytes}"));
    }
    // SAFETY: as above; the address goes to a place that is alive.
    let memory = returned_handle("locking a buffer", |to| unsafe { (api.lock)(buffer, to, mode) })?;
    let answer = work(memory.cast());
    // SAFETY: it was locked above.
    done("unlocking a buffer", unsafe { (api.unlock)(buffer) })?;
    Ok(answer)
}

pub(super) fn run(api: &Functions, compiled: Handle, inputs: &[Handle], outputs: &[Handle]) -> ApiResult<()> {
    let mut ins = inputs.to_vec();
    let mut outs = outputs.to_vec();
    // SAFETY: model and buffers are alive, the lists as long as said.
    let status = unsafe { (api.run)(compiled, SIGNATURE, ins.len(), ins.as_mut_ptr(), outs.len(), outs.as_mut_ptr()) };
    done("running", status)
}

impl Layout {
    pub(super) fn of(shape: &[c_int]) -> ApiResult<Self> {
        if shape.len() > AXES_MAX {
            return Err(format!("{} axes, LiteRT's tensors have at most {AXES_MAX}", shape.len()));
        }
        let mut layout = Self { axes: shape.len() as u32, ..Self::default() };
        layout.sizes[..shape.len()].copy_from_slice(shape);
        Ok(layout)
    }

    /// Returns the sizes; an error where one is dynamic.
    pub(super) fn shape(&self) -> ApiResult<Vec<usize>> {
        let axes = (self.axes & 0x7f) as usize;
        let sizes = self.sizes.get(..axes).ok_or_else(|| format!("a shape of {axes} axes"))?;
        sizes.iter().map(|size| usize::try_from(*size).map_err(|_| format!("a shape with {size} in it"))).collect()
    }
}
