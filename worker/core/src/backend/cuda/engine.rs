//! Turns a variant into a loaded kernel: disk cache, compiler, driver.
//!
//! Each device has its own modules. Each module is built once per process, and a failure is remembered, too.

use super::cache;
use super::driver::{self, Context};
use super::error::BuildError;
use super::result::{self, Function};
use super::source::{Element, NUMBERS_MAX, Variant};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use std::collections::HashMap;
use std::ffi::CString;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// Dynamic shared memory that a kernel has without a special attribute, in bytes.
const SHARED_BYTES_DEFAULT: u32 = 48 << 10;

/// Most static shared memory, in bytes, of our kernels that raise the limit of dynamic shared memory.
const SHARED_BYTES_STATIC: u32 = 1 << 10;

#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceFacts {
    context: Context,
    /// Compute capability, e.g. (9, 0).
    pub(super) capability: (u32, u32),
    pub(super) processors: u32,
    /// Most dynamic shared memory of a block, in bytes.
    pub(super) shared_bytes_max: u32,
}

pub fn is_present() -> bool {
    driver::is_present() && result::nvrtc_is_present()
}

/// Returns the machine code of `variant` for `arch`, e.g. `sm_90`: from `folder` if it is cached there, else compiled and cached.
///
/// # Errors
/// NVRTC is missing or refuses the source.
pub fn compile(variant: &Variant, arch: &str, folder: Option<&Path>) -> Result<Vec<u8>, BuildError> {
    if !result::nvrtc_is_present() {
        return Err(BuildError::Library { library: "libnvrtc.so" });
    }
    let text = variant.text();
    let options = variant.options(arch);
    let key = cache::key(&text, &options, result::nvrtc_version());
    if let Some(kept) = folder.and_then(|folder| cache::read(folder, &key)) {
        return Ok(kept);
    }
    let failed =
        |status: String, log: String| BuildError::Compile { name: variant.name(), arch: arch.to_owned(), status, log };
    let nul = |_| failed("a NUL byte in the source".to_owned(), String::new());
    let text = CString::new(text).map_err(nul)?;
    let name = CString::new(variant.source.name).map_err(nul)?;
    let cubin = result::cubin(&text, &name, &options).map_err(|refusal| failed(refusal.status, refusal.log))?;
    if let Some(folder) = folder
        && let Err(error) = cache::write(folder, &key, &cubin)
    {
        tracing::warn!("compiled kernels are not kept in {}: {error}", folder.display());
    }
    Ok(cubin)
}

fn failed<'a>(what: &'static str, name: &'a str, device: usize) -> impl Fn(String) -> BuildError + 'a {
    move |status| BuildError::Driver { what, name: name.to_owned(), device, status }
}

/// Returns the properties of a device, which are read once.
pub(super) fn facts(device: usize) -> Result<DeviceFacts, BuildError> {
    static FACTS: OnceLock<Mutex<HashMap<usize, DeviceFacts>>> = OnceLock::new();
    if !driver::is_present() {
        return Err(BuildError::Library { library: "libcuda.so" });
    }
    let mut known = FACTS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(facts) = known.get(&device) {
        return Ok(*facts);
    }
    let failed = failed("describe the device", "every kernel", device);
    let context = driver::primary(device).map_err(&failed)?;
    let read = |which| driver::attribute(device, which).map(i32::cast_unsigned).map_err(&failed);
    let facts = DeviceFacts {
        context,
        capability: (
            read(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            read(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        processors: read(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes_max: read(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?
            .saturating_sub(SHARED_BYTES_STATIC),
    };
    known.insert(device, facts);
    Ok(facts)
}

type FunctionKey = (usize, (&'static str, Element, [u32; NUMBERS_MAX]), &'static str);
type ModuleKey = (usize, (&'static str, Element, [u32; NUMBERS_MAX]));

/// Returns the kernel `entry` of `variant` on a device, which is built at the first call.
pub(super) fn function(device: usize, variant: &Variant, entry: &'static str) -> Result<Function, BuildError> {
    static READY: OnceLock<RwLock<HashMap<FunctionKey, Result<Function, BuildError>>>> = OnceLock::new();
    let ready = READY.get_or_init(RwLock::default);
    let key = (device, variant.identity(), entry);
    if let Some(known) = ready.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return known.clone();
    }
    let made = make(device, variant, entry);
    ready.write().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(made).clone()
}

fn make(device: usize, variant: &Variant, entry: &'static str) -> Result<Function, BuildError> {
    let facts = facts(device)?;
    let module = module(device, variant, &facts)?;
    let failed = failed("find a kernel", entry, device);
    let name = CString::new(entry).map_err(|_| failed("a NUL byte in its name".to_owned()))?;
    let asked = variant.source.shared_bytes_max.min(facts.shared_bytes_max);
    let shared = if asked > SHARED_BYTES_DEFAULT { asked } else { 0 };
    result::function(facts.context, module, &name, shared).map_err(failed)
}

type ModuleSlot = Arc<OnceLock<Result<result::Module, BuildError>>>;

fn module(device: usize, variant: &Variant, facts: &DeviceFacts) -> Result<result::Module, BuildError> {
    static LOADED: OnceLock<Mutex<HashMap<ModuleKey, ModuleSlot>>> = OnceLock::new();
    let key = (device, variant.identity());
    let mut loaded = LOADED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let slot = loaded.entry(key).or_default().clone();
    drop(loaded);
    // The map's lock is released, so that two threads can compile different modules at once.
    let build = || {
        let arch = format!("sm_{}{}", facts.capability.0, facts.capability.1);
        let cubin = compile(variant, &arch, cache::folder())?;
        result::load(facts.context, &cubin).map_err(failed("load a module", &variant.name(), device))
    };
    slot.get_or_init(build).clone()
}
