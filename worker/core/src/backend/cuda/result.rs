//! NVRTC, and the driver's calls for modules and launches, with `Result`.
//!
//! **Invariant:** the library is checked to be present before any call, as cudarc panics without it.

use super::driver::{Context, CudaStream, inside, status};
use cudarc::driver::sys as cu;
use cudarc::nvrtc::{result as nvrtc, sys as rtc};
use smallvec::SmallVec;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::OnceLock;

pub(super) fn nvrtc_is_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opens a library and looks at nothing in it.
    *PRESENT.get_or_init(|| unsafe { rtc::is_culib_present() })
}

/// Returns the version of NVRTC, which must be present.
pub(super) fn nvrtc_version() -> (i32, i32) {
    let mut major = 0;
    let mut minor = 0;
    // SAFETY: both places are writable.
    unsafe {
        let _ = rtc::nvrtcVersion(&raw mut major, &raw mut minor);
    }
    (major, minor)
}

pub(super) struct CompileFailure {
    pub(super) status: String,
    pub(super) log: String,
}

struct NvrtcProgram(rtc::nvrtcProgram);

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: made by create_program, destroyed only here.
        let _ = unsafe { nvrtc::destroy_program(self.0) };
    }
}

/// Compiles `text` to machine code. NVRTC must be present.
pub(super) fn cubin(text: &CString, name: &CString, options: &[String]) -> Result<Vec<u8>, CompileFailure> {
    let plain = |error: nvrtc::NvrtcError| CompileFailure { status: error.to_string(), log: String::new() };
    let program = NvrtcProgram(nvrtc::create_program(text, Some(name)).map_err(plain)?);
    // SAFETY: the program is alive; `text` and `name` outlive it.
    let compiled = unsafe { nvrtc::compile_program(program.0, options) };
    if let Err(error) = compiled {
        // SAFETY: the program is alive.
        let log = unsafe { nvrtc::get_program_log(program.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|&c| c.cast_unsigned()).take_while(|&c| c != 0).collect();
        return Err(CompileFailure {
            status: error.to_string(),
            log: String::from_utf8_lossy(&bytes).trim().to_owned(),
        });
    }
    let mut size = 0_usize;
    // SAFETY: the program is compiled, `size` is writable.
    unsafe { rtc::nvrtcGetCUBINSize(program.0, &raw mut size) }.result().map_err(plain)?;
    let mut image = vec![0_u8; size];
    // SAFETY: `image` has the size NVRTC asked for.
    unsafe { rtc::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast::<c_char>()) }.result().map_err(plain)?;
    Ok(image)
}

/// A loaded module, which is never unloaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Module(usize);

pub(super) fn load(context: Context, image: &[u8]) -> Result<Module, String> {
    inside(context, || {
        let mut module = ptr::null_mut();
        // SAFETY: `image` is a whole cubin; the driver copies it.
        status(unsafe { cu::cuModuleLoadData(&raw mut module, image.as_ptr().cast::<c_void>()) })?;
        Ok(Module(module as usize))
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Function {
    raw: usize,
    context: Context,
}

/// Finds a kernel and sets its limit of dynamic shared memory to `shared` bytes, 0 for the default.
pub(super) fn function(context: Context, module: Module, name: &CStr, shared: u32) -> Result<Function, String> {
    inside(context, || {
        let mut raw = ptr::null_mut();
        // SAFETY: the module is loaded, the name NUL-terminated.
        status(unsafe { cu::cuModuleGetFunction(&raw mut raw, module.0 as cu::CUmodule, name.as_ptr()) })?;
        if shared > 0 {
            let what = cu::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just found.
            status(unsafe { cu::cuFuncSetAttribute(raw, what, shared.cast_signed()) })?;
        }
        Ok(Function { raw: raw as usize, context })
    })
}

/// Blocks, threads per block, and bytes of dynamic shared memory of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaunchGrid {
    pub(super) blocks: u32,
    pub(super) threads: (u32, u32),
    pub(super) shared: u32,
}

/// Launches on `stream`. `slots` holds the arguments' bytes, `starts` the position of each argument.
///
/// The arguments must have the number, types and order of the kernel's parameters.
pub(super) fn launch(
    function: Function,
    grid: LaunchGrid,
    stream: CudaStream,
    slots: &mut [u64],
    starts: &[u16],
) -> Result<(), String> {
    let mut pointers = pointers(slots, starts);
    inside(function.context, || {
        let raw = function.raw as cu::CUfunction;
        let stream = stream.raw();
        let (x, y) = grid.threads;
        let params = pointers.as_mut_ptr();
        // SAFETY: the function belongs to the current context; the driver copies the arguments before it returns.
        status(unsafe {
            cu::cuLaunchKernel(raw, grid.blocks, 1, 1, x, y, 1, grid.shared, stream, params, ptr::null_mut())
        })
    })
}

fn pointers(slots: &mut [u64], starts: &[u16]) -> SmallVec<[*mut c_void; 32]> {
    starts.iter().map(|&at| (&raw mut slots[usize::from(at)]).cast::<c_void>()).collect()
}

#[derive(Debug)]
pub(super) struct SingleKernelGraph {
    function: Function,
    graph: cu::CUgraph,
    node: cu::CUgraphNode,
    ready: cu::CUgraphExec,
}

// SAFETY: the driver's handles, which any thread may use, one at a time.
unsafe impl Send for SingleKernelGraph {}

impl SingleKernelGraph {
    /// Builds the graph with the arguments of [`launch`].
    pub(super) fn new(function: Function, grid: LaunchGrid, slots: &mut [u64], starts: &[u16]) -> Result<Self, String> {
        let mut pointers = pointers(slots, starts);
        let kernel = described(function, grid, &mut pointers);
        inside(function.context, || {
            let mut made = Self { function, graph: ptr::null_mut(), node: ptr::null_mut(), ready: ptr::null_mut() };
            // SAFETY: the places are writable; the function belongs to the current context; the driver copies the arguments.
            unsafe {
                status(cu::cuGraphCreate(&raw mut made.graph, 0))?;
                status(cu::cuGraphAddKernelNode_v2(&raw mut made.node, made.graph, ptr::null(), 0, &raw const kernel))?;
                status(cu::cuGraphInstantiateWithFlags(&raw mut made.ready, made.graph, 0))?;
            }
            Ok(made)
        })
    }

    /// Sets the arguments for later launches.
    pub(super) fn change(&self, grid: LaunchGrid, slots: &mut [u64], starts: &[u16]) -> Result<(), String> {
        let mut pointers = pointers(slots, starts);
        let kernel = described(self.function, grid, &mut pointers);
        inside(self.function.context, || {
            // SAFETY: the handles live as long as `self`; the driver copies the arguments.
            status(unsafe { cu::cuGraphExecKernelNodeSetParams_v2(self.ready, self.node, &raw const kernel) })
        })
    }

    pub(super) fn launch(&self, stream: CudaStream) -> Result<(), String> {
        // SAFETY: the graph lives as long as `self`, and the driver keeps what is not done for longer.
        inside(self.function.context, || status(unsafe { cu::cuGraphLaunch(self.ready, stream.raw()) }))
    }
}

fn described(function: Function, grid: LaunchGrid, pointers: &mut [*mut c_void]) -> cu::CUDA_KERNEL_NODE_PARAMS {
    let (x, y) = grid.threads;
    cu::CUDA_KERNEL_NODE_PARAMS {
        func: function.raw as cu::CUfunction,
        gridDimX: grid.blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: x,
        blockDimY: y,
        blockDimZ: 1,
        sharedMemBytes: grid.shared,
        kernelParams: pointers.as_mut_ptr(),
        extra: ptr::null_mut(),
        kern: ptr::null_mut(),
        ctx: ptr::null_mut(),
    }
}

impl Drop for SingleKernelGraph {
    fn drop(&mut self) {
        // SAFETY: made in `new`, each once; what is not done yet is freed when it is.
        let _ = inside(self.function.context, || unsafe {
            if !self.ready.is_null() {
                status(cu::cuGraphExecDestroy(self.ready))?;
            }
            if !self.graph.is_null() {
                status(cu::cuGraphDestroy(self.graph))?;
            }
            Ok(())
        });
    }
}
