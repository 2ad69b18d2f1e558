//! Memory of the host.

mod sys;

use super::torch::safe::{Arg, AtenOp};
pub use sys::{host_bytes, host_bytes_mut};
use tch::{Device, Kind, TchError, Tensor};

/// Returns an uninitialised u8 tensor of `bytes` bytes, page-locked if `locked`, for fast copies to a CUDA device.
pub fn buffer(bytes: usize, locked: bool) -> Result<Tensor, TchError> {
    static NEW: AtenOp = AtenOp::new(c"aten::new_empty", c"");
    let like = Tensor::f_empty(0, (Kind::Uint8, Device::Cpu))?;
    let outs =
        NEW.call(&[Arg::Tensor(&like), Arg::Ints(&[bytes as i64]), Arg::None, Arg::None, Arg::None, Arg::Bool(locked)]);
    outs.map(|mut outs| outs.swap_remove(0)).map_err(|error| TchError::Torch(error.to_string()))
}
