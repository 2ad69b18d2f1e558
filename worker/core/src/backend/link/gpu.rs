//! Driver calls on one device, with `Result`.
//!
//! **Invariant:** the driver is checked to be present before any call, as cudarc panics without one.

use crate::backend::cuda::driver::{self, Context};
use cudarc::driver::sys as cu;
use std::fmt;
use thiserror::Error;

/// An error of the driver, of the runtime or of libtorch.
#[derive(Debug, Clone, Error)]
#[error("{what}: {status}")]
pub struct LinkError {
    /// The attempted action, e.g. "map memory".
    pub(super) what: &'static str,
    /// Name or message of the error.
    pub(super) status: String,
}

impl LinkError {
    /// Returns a conversion that adds the attempted action to an error.
    pub fn of<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> Self {
        move |error| Self { what, status: error.to_string() }
    }
}

/// One CUDA device of this process, in libtorch's own context.
#[derive(Debug, Clone, Copy)]
pub struct Gpu {
    pub(super) index: usize,
    context: Context,
}

impl Gpu {
    /// Opens the device with this index.
    ///
    /// # Errors
    /// When there is no driver or no such device, or the device cannot map memory of other processes or wait for words on a stream.
    pub fn open(index: usize) -> Result<Self, LinkError> {
        use cu::CUdevice_attribute as Attribute;
        let failed = |status: String| LinkError { what: "open the device", status };
        if !driver::is_present() {
            return Err(failed("libcuda.so was not found".to_owned()));
        }
        let gpu = Self { index, context: driver::primary(index).map_err(failed)? };
        let abilities = [
            (Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "map memory page by page"),
            (
                Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                "share memory by a descriptor",
            ),
            (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, "wait for a word on a stream"),
        ];
        for (ability, what) in abilities {
            if driver::attribute(index, ability).map_err(failed)? == 0 {
                return Err(failed(format!("it cannot {what}")));
            }
        }
        Ok(gpu)
    }

    /// Returns the device's PCI address: domain, bus and device.
    pub fn bus(self) -> Result<[i64; 3], LinkError> {
        bus(self.index)
    }

    /// Checks that this device reaches the memory of the device at a PCI address over NVLink, i.e. with native atomic operations.
    ///
    /// # Errors
    /// When it does not, or the other device is not visible to this process.
    pub fn reaches(self, other: [i64; 3]) -> Result<(), LinkError> {
        let failed = |status: String| LinkError { what: "reach another device's memory", status };
        let count = driver::count().map_err(failed)?;
        let there = (0..count).find(|&index| bus(index).is_ok_and(|at| at == other));
        let [domain, bus, slot] = other;
        let there = there.ok_or_else(|| failed(format!("{domain:04x}:{bus:02x}:{slot:02x} is not visible here")))?;
        let attribute = cu::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        match driver::between(self.index, there, attribute).map_err(failed)? {
            0 => Err(failed(format!("no NVLink between devices {} and {there}", self.index))),
            _ => Ok(()),
        }
    }

    pub(super) fn current(self) -> Result<driver::CudaStream, LinkError> {
        driver::current_stream(self.index).map_err(LinkError::of("find the current stream"))
    }

    pub(super) fn ask(self, what: &'static str, call: impl FnOnce() -> cu::CUresult) -> Result<(), LinkError> {
        driver::inside(self.context, || driver::status(call())).map_err(LinkError::of(what))
    }
}

fn bus(index: usize) -> Result<[i64; 3], LinkError> {
    use cu::CUdevice_attribute as Attribute;
    let failed = LinkError::of("find the device's place");
    let read = |which| driver::attribute(index, which).map(i64::from).map_err(&failed);
    Ok([
        read(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        read(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
        read(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
    ])
}
