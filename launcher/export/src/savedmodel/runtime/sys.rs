//! TensorFlow's C API, from its headers: tensorflow/c/{c_api,tf_tensor,tf_status}.h.
//!
//! **Invariant:** no logic; only [`super::result`] calls these functions.

use crate::foreign::sys::functions;
use std::ffi::{c_char, c_int, c_uint, c_void};

macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] pub(super) struct $name([u8; 0]);)* };
}
opaque!(TfStatus TfSessionOptions TfGraph TfSession TfOperation TfTensor TfBuffer);

/// A tensor of a graph: an operation, and the index of its result.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct TfOutput {
    pub(super) operation: *mut TfOperation,
    pub(super) index: c_int,
}

/// Code of `TF_Code` for success.
pub(super) const TF_OK: c_int = 0;

functions! {
    /// Functions of libtensorflow_cc.so.2, and of the libtensorflow_framework.so.2 that it loads.
    Functions {
        version = b"TF_Version" () -> *const c_char;
        new_status = b"TF_NewStatus" () -> *mut TfStatus;
        delete_status = b"TF_DeleteStatus" (*mut TfStatus);
        code = b"TF_GetCode" (*const TfStatus) -> c_int;
        message = b"TF_Message" (*const TfStatus) -> *const c_char;
        new_session_options = b"TF_NewSessionOptions" () -> *mut TfSessionOptions;
        delete_session_options = b"TF_DeleteSessionOptions" (*mut TfSessionOptions);
        configure = b"TF_SetConfig" (*mut TfSessionOptions, *const c_void, usize, *mut TfStatus);
        new_graph = b"TF_NewGraph" () -> *mut TfGraph;
        delete_graph = b"TF_DeleteGraph" (*mut TfGraph);
        load_session = b"TF_LoadSessionFromSavedModel" (
            *const TfSessionOptions, *const TfBuffer, *const c_char, *const *const c_char, c_int, *mut TfGraph, *mut TfBuffer,
            *mut TfStatus
        ) -> *mut TfSession;
        close_session = b"TF_CloseSession" (*mut TfSession, *mut TfStatus);
        delete_session = b"TF_DeleteSession" (*mut TfSession, *mut TfStatus);
        operation = b"TF_GraphOperationByName" (*mut TfGraph, *const c_char) -> *mut TfOperation;
        allocate = b"TF_AllocateTensor" (c_uint, *const i64, c_int, usize) -> *mut TfTensor;
        delete_tensor = b"TF_DeleteTensor" (*mut TfTensor);
        kind = b"TF_TensorType" (*const TfTensor) -> c_uint;
        axes = b"TF_NumDims" (*const TfTensor) -> c_int;
        size = b"TF_Dim" (*const TfTensor, c_int) -> i64;
        bytes = b"TF_TensorByteSize" (*const TfTensor) -> usize;
        data = b"TF_TensorData" (*const TfTensor) -> *mut c_void;
        run = b"TF_SessionRun" (
            *mut TfSession, *const TfBuffer, *const TfOutput, *const *mut TfTensor, c_int, *const TfOutput, *mut *mut TfTensor,
            c_int, *const *const TfOperation, c_int, *mut TfBuffer, *mut TfStatus
        );
    }
}
