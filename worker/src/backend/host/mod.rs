//! Memory of the host.

mod sys;

use super::torch::safe::{Arg, AtenOp};
pub use sys::{host_bytes, host_bytes_mut};
use tch::{Device, Kind, TchError, Tensor};

/// A tensor of so many bytes (u8) that is not written yet, page-locked where a CUDA device will fetch it.
///
/// # Errors
/// What libtorch says, usually that memory is exhausted.
pub fn buffer(bytes: usize, locked: bool) -> Result<Tensor, TchError> {
    static NEW: AtenOp = AtenOp::new(c"aten::new_empty", c"");
    let like = Tensor::f_empty(0, (Kind::Uint8, Device::Cpu))?;
    let outs =
        NEW.call(&[Arg::Tensor(&like), Arg::Ints(&[bytes as i64]), Arg::None, Arg::None, Arg::None, Arg::Bool(locked)]);
    outs.map(|mut outs| outs.swap_remove(0)).map_err(|error| TchError::Torch(error.to_string()))
}
