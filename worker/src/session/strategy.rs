//! What the ranks share of the state: as the configuration says, or as little as fits into the devices' memory.

use super::{SessionError, boot::COLLECTIVE_WAIT_MAX};
use crate::{
    backend::graph,
    comm::{ProcessGroup, Reduce},
};
use enn_common::config::train::Strategy;
use tch::{Device, Tensor};

/// Share of a device's memory that the state may take; the rest is for activations, workspaces and collectives.
const STATE_SHARE: f64 = 0.5;
/// Bytes of a weight that every rank has under `zero1`: itself and its gradient.
const COMMON_BYTES: f64 = 8.0;
/// Bytes of a weight's two moments, average and best.
const SHARED_BYTES: f64 = 16.0;

/// A strategy, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// What the ranks share.
    pub strategy: Strategy,
    /// For the user.
    pub reason: String,
}

/// Decides for a model of `weights` weights; one collective where the configuration leaves it open, so that all ranks take the
/// same.
///
/// # Errors
/// When the device does not answer, or a rank is lost.
pub fn choose(
    wanted: Strategy,
    weights: i64,
    device: Device,
    group: &dyn ProcessGroup,
) -> Result<Chosen, SessionError> {
    if wanted != Strategy::Auto {
        return Ok(Chosen { strategy: wanted, reason: "as asked".to_owned() });
    }
    let Device::Cuda(index) = device else {
        // A host has swap, and no honest number of bytes.
        return Ok(Chosen { strategy: Strategy::Ddp, reason: "nothing is shared on the CPU".to_owned() });
    };
    let memory = Tensor::f_from_slice(&[graph::memory(index)?.1 as f64])?.f_to_device(device)?;
    group.all_reduce(&memory, Reduce::Min)?.wait(COLLECTIVE_WAIT_MAX)?;
    Ok(for_memory(weights as f64, memory.f_double_value(&[0])?, f64::from(group.size())))
}

/// The strategy with the least communication whose state fits.
fn for_memory(weights: f64, memory: f64, world: f64) -> Chosen {
    let room = STATE_SHARE * memory;
    let whole = weights * (COMMON_BYTES + SHARED_BYTES);
    let strategy = if whole <= room || world < 2.0 {
        Strategy::Ddp
    } else if weights * (COMMON_BYTES + SHARED_BYTES / world) <= room {
        Strategy::Zero1
    } else {
        Strategy::Fsdp
    };
    let [whole, room] = [whole, room].map(|bytes| bytes / 1e9);
    Chosen {
        strategy,
        reason: format!("the whole state takes {whole:.1} GB, and {room:.1} GB of the device are for it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_the_model_the_more_is_shared() {
        let strategy = |weights: f64| for_memory(weights, 80e9, 8.0).strategy;
        assert_eq!(strategy(1e9), Strategy::Ddp);
        assert_eq!(strategy(3e9), Strategy::Zero1);
        assert_eq!(strategy(7e9), Strategy::Fsdp);
        assert_eq!(for_memory(7e9, 80e9, 1.0).strategy, Strategy::Ddp);
        let reason = for_memory(3e9, 80e9, 8.0).reason;
        assert_eq!(reason, "the whole state takes 72.0 GB, and 40.0 GB of the device are for it");
    }
}
