//! What a step takes in and gives beside the data: the learning rate, the flags that a rank sets, and the sums of loss and flags over all
//! ranks. Only this file knows at which place of a tensor each number stands.

use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};
use tch::{Device, TchError, Tensor as Raw};

/// Flags that one rank sets for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepFlags {
    /// The run is to be saved and stopped.
    pub stop: bool,
    /// This rank received a list of quarantined kernels that is not in force yet.
    pub quarantine: bool,
    /// The round is to be left.
    pub leave: bool,
    /// A checkpoint is due because the last one is too old.
    pub save: bool,
}

impl StepFlags {
    /// Encodes the flags and the learning rate as the last input of a step, f64 (5).
    ///
    /// # Errors
    /// What libtorch says.
    pub fn encode(self, rate: f64, device: Device) -> Result<Raw, TchError> {
        let number = |flag: bool| if flag { 1.0 } else { 0.0 };
        let Self { stop, quarantine, leave, save } = self;
        Raw::f_from_slice(&[number(stop), rate, number(quarantine), number(leave), number(save)])?.f_to_device(device)
    }

    /// Returns the learning rate of an encoded input as a scalar.
    pub(super) fn rate(cx: &Cx<'_>, encoded: &Tensor) -> Result<Tensor, OpError> {
        functional::reshape(cx, &functional::narrow(cx, encoded, 0, 1, 1)?, &[])
    }

    /// Joins this rank's sum of losses and its count of valid cells with the flags of an encoded input: what is summed over the ranks
    /// becomes [`StepSums`], f64 (6).
    pub(super) fn with_loss(cx: &Cx<'_>, encoded: &Tensor, loss: &Tensor, cells: &Tensor) -> Result<Tensor, OpError> {
        let flat = |t: &Tensor| functional::reshape(cx, t, &[1]);
        let others = functional::narrow(cx, encoded, 0, 2, 3)?;
        let loss = flat(loss)?;
        let cells = flat(cells)?;
        let stop = functional::narrow(cx, encoded, 0, 0, 1)?;
        functional::cat(cx, &[&loss, &cells, &stop, &others], 0)
    }
}

/// Sums of a step over all ranks; of a flag, the number of ranks that set it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSums {
    pub loss: f64,
    /// Valid cells of the global batch.
    pub cells: f64,
    pub stop: f64,
    pub quarantine: f64,
    pub leave: f64,
    pub save: f64,
}

impl StepSums {
    /// Decodes what a step gave. Waits for the device.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn decode(sums: &Raw) -> Result<Self, TchError> {
        let numbers = Vec::<f64>::try_from(sums.f_to_device(Device::Cpu)?)?;
        let [loss, cells, stop, quarantine, leave, save] = numbers[..] else {
            unreachable!("StepFlags::with_loss joined six numbers")
        };
        Ok(Self { loss, cells, stop, quarantine, leave, save })
    }

    /// Returns the count of valid cells as a scalar of the recorded step.
    pub(super) fn cells_of(cx: &Cx<'_>, sums: &Tensor) -> Result<Tensor, OpError> {
        functional::reshape(cx, &functional::narrow(cx, sums, 0, 1, 1)?, &[])
    }

    /// Returns the loss on the device.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn loss_of(sums: &Raw) -> Result<Raw, TchError> {
        sums.f_get(0)
    }

    /// Returns loss and valid cells on the device, f64 (2).
    ///
    /// # Errors
    /// What libtorch says.
    pub fn loss_and_cells_of(sums: &Raw) -> Result<Raw, TchError> {
        sums.f_narrow(0, 0, 2)
    }
}
