//! LiteRT's C API, from its headers: litert/c/litert_{environment,model,options,compiled_model,tensor_buffer}.h.
//!
//! **Invariant:** no logic; only [`super::result`] calls these functions.

use crate::foreign::sys::functions;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// An opaque object of the library.
pub(super) type Handle = *mut c_void;

/// A function that destroys an object.
pub(super) type Destroy = unsafe extern "C" fn(Handle);

/// Limit on the axes of a tensor.
pub(super) const AXES_MAX: usize = 8;

/// C struct `LiteRtLayout`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Layout {
    /// Number of axes in the lower seven bits; the eighth is set when there are strides.
    pub(super) axes: c_uint,
    pub(super) sizes: [i32; AXES_MAX],
    pub(super) strides: [u32; AXES_MAX],
}

/// C struct `LiteRtRankedTensorType`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TensorType {
    pub(super) kind: c_int,
    pub(super) layout: Layout,
}

/// C struct `LiteRtEnvOption` with an integer value.
#[repr(C)]
pub(super) struct EnvOption {
    pub(super) tag: c_int,
    pub(super) value: OptionValue,
}

/// C struct `LiteRtAny` with an integer value.
#[repr(C)]
pub(super) struct OptionValue {
    pub(super) kind: c_int,
    pub(super) value: i64,
}

/// Value of `kLiteRtAnyTypeInt`.
pub(super) const NUMBER: c_int = 2;
/// Values of `kLiteRtEnvOptionTagAutoRegisterAccelerators` and `kLiteRtEnvOptionTagMinLoggerSeverity`.
pub(super) const ACCELERATORS: c_int = 24;
pub(super) const SEVERITY: c_int = 25;
/// Value of `kLiteRtLogSeverityError`.
pub(super) const ERROR: i64 = 3;

/// Value of `kLiteRtHwAcceleratorCpu`.
pub(super) const CPU: c_int = 1;
/// Values of `kLiteRtTensorBufferLockModeRead` and `kLiteRtTensorBufferLockModeWrite`.
pub(super) const READ: c_int = 0;
pub(super) const WRITE: c_int = 1;

functions! {
    /// Functions of libLiteRt.so that are used.
    Functions {
        create_environment = b"LiteRtCreateEnvironment" (c_int, *const EnvOption, *mut Handle) -> c_int;
        // This function appeared together with the environment argument of the next one; without it that takes other arguments.
        _model_from_fd = b"LiteRtCreateModelFromFd" (Handle, c_int, usize, usize, *mut Handle) -> c_int;
        model_from_file = b"LiteRtCreateModelFromFile" (Handle, *const c_char, *mut Handle) -> c_int;
        destroy_model = b"LiteRtDestroyModel" (Handle);
        signature = b"LiteRtGetModelSignature" (Handle, usize, *mut Handle) -> c_int;
        count_inputs = b"LiteRtGetNumSignatureInputs" (Handle, *mut usize) -> c_int;
        count_outputs = b"LiteRtGetNumSignatureOutputs" (Handle, *mut usize) -> c_int;
        input_name = b"LiteRtGetSignatureInputName" (Handle, usize, *mut *const c_char) -> c_int;
        output_name = b"LiteRtGetSignatureOutputName" (Handle, usize, *mut *const c_char) -> c_int;
        input_tensor = b"LiteRtGetSignatureInputTensorByIndex" (Handle, usize, *mut Handle) -> c_int;
        output_tensor = b"LiteRtGetSignatureOutputTensorByIndex" (Handle, usize, *mut Handle) -> c_int;
        tensor_type = b"LiteRtGetRankedTensorType" (Handle, *mut TensorType) -> c_int;
        create_options = b"LiteRtCreateOptions" (*mut Handle) -> c_int;
        set_accelerators = b"LiteRtSetOptionsHardwareAccelerators" (Handle, c_int) -> c_int;
        destroy_options = b"LiteRtDestroyOptions" (Handle);
        compile = b"LiteRtCreateCompiledModel" (Handle, Handle, Handle, *mut Handle) -> c_int;
        destroy_compiled = b"LiteRtDestroyCompiledModel" (Handle);
        resize = b"LiteRtCompiledModelResizeInputTensor" (Handle, usize, usize, *const c_int, usize) -> c_int;
        output_layouts = b"LiteRtGetCompiledModelOutputTensorLayouts" (Handle, usize, usize, *mut Layout, bool) -> c_int;
        input_requirements = b"LiteRtGetCompiledModelInputBufferRequirements" (Handle, usize, usize, *mut Handle) -> c_int;
        output_requirements = b"LiteRtGetCompiledModelOutputBufferRequirements" (Handle, usize, usize, *mut Handle) -> c_int;
        create_buffer = b"LiteRtCreateManagedTensorBufferFromRequirements" (
            Handle, *const TensorType, Handle, *mut Handle
        ) -> c_int;
        buffer_bytes = b"LiteRtGetTensorBufferSize" (Handle, *mut usize) -> c_int;
        lock = b"LiteRtLockTensorBuffer" (Handle, *mut *mut c_void, c_int) -> c_int;
        unlock = b"LiteRtUnlockTensorBuffer" (Handle) -> c_int;
        destroy_buffer = b"LiteRtDestroyTensorBuffer" (Handle);
        run = b"LiteRtRunCompiledModel" (Handle, usize, usize, *mut Handle, usize, *mut Handle) -> c_int;
    }
}
