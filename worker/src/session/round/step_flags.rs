//! What a step takes in and gives beside the data: the learning rate, the flags that a rank sets, and the sums of loss and flags over all
//! ranks. Only this file knows at which place of a tensor each number stands.

use enn_core::autograd::{Cx, Tensor};
use enn_core::{error::OpError, functional};
use tch::{Device, TchError, Tensor as Raw};

/// Flags that one rank sets for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepFlags {
    /// The run is to be saved and stopped.
    pub stop: bool,
    /// This rank received a list of quarantined kernels that is not in force yet.
    pub quarantine: bool,
    pub leave: bool,
    /// A checkpoint is due because the last one is too old.
    pub save: bool,
}

impl StepFlags {
    /// Encodes the flags and the learning rate as the last input of a step, f64 (5).
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
    pub fn loss_of(sums: &Raw) -> Result<Raw, TchError> {
        sums.f_get(0)
    }

    /// Returns loss and valid cells on the device, f64 (2).
    pub fn loss_and_cells_of(sums: &Raw) -> Result<Raw, TchError> {
        sums.f_narrow(0, 0, 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_core::params::ParamBuilder;
    use tch::Kind;

    #[test]
    fn each_flag_comes_back_by_its_name() {
        let params = ParamBuilder::new().build(1, Device::Cpu).unwrap();
        let none = StepFlags::default();
        let all = [
            StepFlags { stop: true, ..none },
            StepFlags { quarantine: true, ..none },
            StepFlags { leave: true, ..none },
            StepFlags { save: true, ..none },
        ];
        for flags in all {
            let cx = Cx::eval(&params);
            let number = |value: f64| cx.input(Raw::from(value).to_kind(Kind::Double));
            let encoded = cx.input(flags.encode(0.5, Device::Cpu).unwrap());
            assert_eq!(StepFlags::rate(&cx, &encoded).unwrap().raw().double_value(&[]), 0.5);
            let joined = StepFlags::with_loss(&cx, &encoded, &number(6.0), &number(3.0)).unwrap();
            assert_eq!(StepSums::cells_of(&cx, &joined).unwrap().raw().double_value(&[]), 3.0);
            let StepSums { loss, cells, stop, quarantine, leave, save } = StepSums::decode(joined.raw()).unwrap();
            let back = [stop, quarantine, leave, save].map(|ranks| ranks > 0.0);
            assert_eq!(back, [flags.stop, flags.quarantine, flags.leave, flags.save]);
            assert_eq!((loss, cells), (6.0, 3.0));
        }
    }
}
