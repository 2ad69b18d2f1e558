//! TensorFlow's C API with a `Result` for every call that can fail; an error is TensorFlow's own sentence.

use super::sys::{Functions, TF_OK, TfGraph, TfOperation, TfOutput, TfSession, TfStatus, TfTensor};
use crate::proto::Message;
use std::{
    ffi::{CStr, CString, c_char, c_int},
    ptr,
};

/// Result of a call; the error is TensorFlow's message, or ours where it has none.
pub(super) type TfResult<T> = Result<T, String>;

fn text(words: *const c_char) -> String {
    // SAFETY: the API's strings end with a zero and live as long as what they were asked of.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

fn c_string(text: &str) -> TfResult<CString> {
    CString::new(text).map_err(|_| format!("{text:?} has a zero in it"))
}

fn count(of: usize) -> TfResult<c_int> {
    c_int::try_from(of).map_err(|_| format!("{of} is more than the API counts"))
}

pub(super) fn version(api: &Functions) -> String {
    // SAFETY: no arguments; the answer is a constant.
    text(unsafe { (api.version)() })
}

/// Makes a call with a status; returns its result or the status's message.
fn with_status<T>(api: &Functions, call: impl FnOnce(*mut TfStatus) -> T) -> TfResult<T> {
    // SAFETY: no arguments.
    let status = unsafe { (api.new_status)() };
    let answer = call(status);
    // SAFETY: the status is alive until here, and its message is copied before it goes.
    let outcome = unsafe { if (api.code)(status) == TF_OK { Ok(answer) } else { Err(text((api.message)(status))) } };
    // SAFETY: it was made above and is used no more.
    unsafe { (api.delete_status)(status) };
    outcome
}

pub(super) fn new_graph(api: &Functions) -> *mut TfGraph {
    // SAFETY: no arguments; never null.
    unsafe { (api.new_graph)() }
}

/// Encodes a `ConfigProto` without GPUs, of which a session would take all memory.
fn config() -> Vec<u8> {
    Message::new().message(1, &Message::new().text(1, "GPU").uint(2, 0)).into_bytes()
}

/// Loads the session of a SavedModel, whose operations are added to `graph`.
pub(super) fn load(api: &Functions, dir: &str, tag: &str, graph: *mut TfGraph) -> TfResult<*mut TfSession> {
    let dir = c_string(dir)?;
    let tag = c_string(tag)?;
    let tags = [tag.as_ptr()];
    // SAFETY: no arguments; never null.
    let options = unsafe { (api.new_session_options)() };
    let config = config();
    // SAFETY: the options were just made, the configuration is copied during the call.
    let session =
        with_status(api, |status| unsafe { (api.configure)(options, config.as_ptr().cast(), config.len(), status) });
    let session = session.and_then(|()| {
        with_status(api, |status| {
            // SAFETY: all pointers are alive during the call; null stands for no run options and for no description.
            unsafe {
                (api.load_session)(options, ptr::null(), dir.as_ptr(), tags.as_ptr(), 1, graph, ptr::null_mut(), status)
            }
        })
    });
    // SAFETY: made above, used no more.
    unsafe { (api.delete_session_options)(options) };
    session
}

pub(super) fn end(api: &Functions, session: *mut TfSession, graph: *mut TfGraph) {
    if !session.is_null() {
        // SAFETY: the session is alive; it is called no more. An error of closing it has no consequence.
        let _ = with_status(api, |status| unsafe { (api.close_session)(session, status) });
        // SAFETY: as above, and it is closed.
        let _ = with_status(api, |status| unsafe { (api.delete_session)(session, status) });
    }
    // SAFETY: its session is gone.
    unsafe { (api.delete_graph)(graph) };
}

/// Returns a tensor of a graph by its name, `node:0`.
pub(super) fn output(api: &Functions, graph: *mut TfGraph, name: &str) -> TfResult<TfOutput> {
    let (node, index) = name.rsplit_once(':').ok_or_else(|| format!("{name} is no tensor's name"))?;
    let index = index.parse().map_err(|_| format!("{name} is no tensor's name"))?;
    let node = c_string(node)?;
    // SAFETY: graph and name are alive.
    let operation: *mut TfOperation = unsafe { (api.operation)(graph, node.as_ptr()) };
    if operation.is_null() { Err(format!("the graph has no {name}")) } else { Ok(TfOutput { operation, index }) }
}

pub(super) fn tensor(api: &Functions, kind: u32, shape: &[i64], bytes: &[u8]) -> TfResult<*mut TfTensor> {
    // SAFETY: the shape is alive; memory of the length asked for is allocated, or null is answered.
    let tensor = unsafe { (api.allocate)(kind, shape.as_ptr(), count(shape.len())?, bytes.len()) };
    if tensor.is_null() {
        return Err(format!("no memory for a tensor of {} bytes", bytes.len()));
    }
    // SAFETY: the tensor is alive and ours alone; as many bytes are copied as it says that it has.
    unsafe {
        let room = (api.bytes)(tensor).min(bytes.len());
        ptr::copy_nonoverlapping(bytes.as_ptr(), (api.data)(tensor).cast(), room);
    }
    Ok(tensor)
}

/// Returns element type, sizes and bytes of a tensor.
pub(super) fn read(api: &Functions, tensor: *const TfTensor) -> (u32, Vec<usize>, Vec<u8>) {
    // SAFETY: the tensor is alive; its bytes are where it says, as many as it says, and are copied.
    unsafe {
        let sizes = (0..(api.axes)(tensor)).map(|axis| (api.size)(tensor, axis) as usize).collect();
        let data = (api.data)(tensor).cast::<u8>();
        let bytes = (api.bytes)(tensor);
        let bytes = if bytes == 0 { Vec::new() } else { std::slice::from_raw_parts(data, bytes).to_vec() };
        ((api.kind)(tensor), sizes, bytes)
    }
}

pub(super) fn delete_tensor(api: &Functions, tensor: *mut TfTensor) {
    // SAFETY: it was given to the caller, who uses it no more.
    unsafe { (api.delete_tensor)(tensor) };
}

/// Makes one call. The results belong to the caller.
pub(super) fn run(
    api: &Functions,
    session: *mut TfSession,
    inputs: &[TfOutput],
    given: &[*mut TfTensor],
    outputs: &[TfOutput],
) -> TfResult<Vec<*mut TfTensor>> {
    assert_eq!(inputs.len(), given.len(), "a tensor for every input");
    let mut made = vec![ptr::null_mut(); outputs.len()];
    let ins = count(inputs.len())?;
    let outs = count(outputs.len())?;
    with_status(api, |status| {
        // SAFETY: every list is alive and as long as said; null stands for no options, no targets and no statistics.
        unsafe {
            (api.run)(
                session,
                ptr::null(),
                inputs.as_ptr(),
                given.as_ptr(),
                ins,
                outputs.as_ptr(),
                made.as_mut_ptr(),
                outs,
                ptr::null(),
                0,
                ptr::null_mut(),
                status,
            );
        }
    })?;
    Ok(made)
}
