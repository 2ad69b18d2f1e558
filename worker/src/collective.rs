//! Numbers that all ranks exchange, and the limits of every wait for other ranks.

use enn_comm::{CommError, ProcessGroup};
use enn_core::backend::torch::ShimError;
use enn_model::optim::OptimError;
use std::time::Duration;
use tch::{Device, Kind, TchError, Tensor};
use thiserror::Error;

/// Longest time to meet the other ranks of a round, and the limit of every collective.
pub const COLLECTIVE_WAIT_MAX: Duration = Duration::from_secs(300);
/// Longest wait for the other ranks to leave the process group.
pub(crate) const SHUTDOWN_WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a process group that is cut: the end of the process cuts what is left.
pub(crate) const ABORT_WAIT_MAX: Duration = Duration::from_millis(200);

/// Failures where a rank exchanges numbers or divides its state with others.
#[derive(Debug, Error)]
pub enum RankError {
    #[error(transparent)]
    Comm(#[from] CommError),
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
    #[error(transparent)]
    Optim(#[from] OptimError),
    #[error(transparent)]
    Shim(#[from] ShimError),
}

/// Every rank's number, by rank. One collective.
pub fn gather(group: &dyn ProcessGroup, device: Device, mine: i64) -> Result<Vec<i64>, RankError> {
    let mut slots = vec![0; group.size() as usize];
    slots[group.rank() as usize] = mine;
    let tensor = Tensor::f_from_slice(&slots)?.f_to_device(device)?;
    group.all_reduce_sum(&tensor)?.wait(COLLECTIVE_WAIT_MAX)?;
    Ok(Vec::<i64>::try_from(tensor.f_to_device(Device::Cpu)?)?)
}

/// Brings every rank to the sum of `values`, exactly the same bits on all.
pub fn sum(group: &dyn ProcessGroup, device: Device, values: &[f64]) -> Result<Vec<f64>, RankError> {
    let tensor = Tensor::f_from_slice(values)?.f_to_device(device)?;
    group.all_reduce_sum(&tensor)?.wait(COLLECTIVE_WAIT_MAX)?;
    Ok(Vec::<f64>::try_from(tensor.f_to_kind(Kind::Double)?.f_to_device(Device::Cpu)?)?)
}
