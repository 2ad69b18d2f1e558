//! Where training is: everything that a resumed run must know beside weights and optimizer, as small tensors.

use super::{SessionError, decide::EarlyStopping};
use crate::checkpoint::Named;
use crate::data::{Position, Sampler};
use std::{collections::BTreeMap, path::Path};
use tch::{Device, Kind, Tensor};

/// Names in a checkpoint.
pub const COUNTS: &str = "progress.counts";
/// Smallest validation error so far.
pub const BEST: &str = "progress.best_metric";
/// Sums of the epoch that is under way.
pub const SUMS: &str = "progress.epoch_sums";
/// Numbers on which the order of samples depends.
pub const ORDER: &str = "progress.order";
/// Rows and draws of each source, where sources have weights.
pub const MIX: &str = "progress.mix";

/// State of training beside weights and optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Progress {
    /// Epochs completed and steps done inside the current one.
    pub position: Position,
    /// Optimizer steps done since the run began, skipped ones included.
    pub step: u64,
    pub early_stopping: EarlyStopping,
    /// The step after which the best weights were validated; 0 before the first validation.
    pub best_step: u64,
    /// Steps of completed epochs that were skipped because loss or gradient was not finite.
    pub skipped: u64,
    /// Refused steps that were run once more in vain: there is a limit.
    pub replays: u64,
    /// The step after which weights were validated last; at an epoch's end its sums were cleared then.
    pub validated: u64,
    /// Then the mean over the last steps won.
    pub mean_won: bool,
    /// The step after which a checkpoint was due last.
    pub due: u64,
    pub stopped_early: bool,
    /// All epochs are done, or training ended early.
    pub finished: bool,
    /// Steps from validation to validation within an epoch; 0: only at its end. The configuration's, and not saved.
    pub every: u64,
}

/// Sums of the current epoch, kept on the device so that a step reads nothing back; in the order of `EpochTotals`.
#[derive(Debug)]
pub struct EpochSums(pub Tensor);

pub const EPOCH_SUMS: i64 = 5;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpochTotals {
    /// Loss over the valid cells of the steps that landed.
    pub loss: f64,
    /// Valid cells of those steps.
    pub cells: f64,
    /// Gradient norms of those steps.
    pub grad_norm: f64,
    /// Number of steps that changed the weights.
    pub landed: f64,
    /// Steps skipped because loss or gradient was not finite.
    pub skipped: f64,
}

impl EpochSums {
    pub fn new(device: Device) -> Result<Self, SessionError> {
        Ok(Self(Tensor::f_zeros([EPOCH_SUMS], (Kind::Double, device))?))
    }

    /// Adds a step by its loss sum and valid cells, f64 (2); `taken` is 1 when it landed, else 0.
    pub fn add(&mut self, loss_and_cells: &Tensor, grad_norm: &Tensor, taken: &Tensor) -> Result<(), SessionError> {
        let taken = taken.f_view([1])?;
        let zero = taken.f_zeros_like()?;
        let refused = taken.f_neg()?.f_add_scalar(1.0)?;
        let values = Tensor::f_cat(&[loss_and_cells, &grad_norm.f_view([1])?, &taken], 0)?;
        // Selected, not multiplied: the numbers of a refused step are not finite.
        let values = values.f_where_self(&taken.f_gt(0.5)?, &zero)?;
        let _ = self.0.f_add_(&Tensor::f_cat(&[&values, &refused], 0)?)?;
        Ok(())
    }

    pub fn clear(&mut self) -> Result<(), SessionError> {
        let _ = self.0.f_zero_()?;
        Ok(())
    }

    pub fn read(&self) -> Result<EpochTotals, SessionError> {
        let values = Vec::<f64>::try_from(self.0.f_to_device(Device::Cpu)?)?;
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        Ok(EpochTotals { loss: at(0), cells: at(1), grad_norm: at(2), landed: at(3), skipped: at(4) })
    }
}

impl Progress {
    /// Whether the step that was done last is one to validate after, and was not validated yet.
    pub fn owes_validation(&self) -> bool {
        self.step > self.validated && self.position.step.is_multiple_of(self.every)
    }

    /// The state as tensors. `order` is what the sampler's order depends on.
    pub fn named(&self, sums: &EpochSums, order: &Sampler) -> Vec<Named> {
        let counts = [
            self.position.epoch,
            self.position.step,
            self.step,
            self.early_stopping.bad_validations,
            self.best_step,
            self.skipped,
            self.replays,
            self.validated,
            self.due,
            u64::from(self.stopped_early),
            u64::from(self.finished),
            u64::from(self.mean_won),
        ]
        .map(u64::cast_signed);
        let mut named = vec![
            Named::of(COUNTS, &Tensor::from_slice(&counts)),
            Named::of(BEST, &Tensor::from_slice(&[self.early_stopping.best])),
            Named::of(SUMS, &sums.0),
            Named::of(ORDER, &Tensor::from_slice(&order_numbers(order))),
        ];
        named.extend(order.mix.as_ref().map(|mix| Named::of(MIX, &Tensor::from_slice(&mix.numbers()))));
        named
    }

    /// Names, shapes and kinds that `named` always gives.
    pub fn expected() -> Vec<(String, Vec<i64>, Kind)> {
        vec![
            (COUNTS.to_owned(), vec![12], Kind::Int64),
            (BEST.to_owned(), vec![1], Kind::Double),
            (SUMS.to_owned(), vec![EPOCH_SUMS], Kind::Double),
            (ORDER.to_owned(), vec![3], Kind::Int64),
        ]
    }

    /// Reads the state back, all but `every`; `tensors` holds what `wanted` names.
    ///
    /// # Errors
    /// [`SessionError::OtherTraining`] or [`SessionError::OtherMix`] when rows, batch, seed or the sources' weights differ: the
    /// samples still due in the epoch would be others.
    pub fn restore(
        tensors: &BTreeMap<String, Tensor>,
        sums: &mut EpochSums,
        order: &Sampler,
        path: &Path,
    ) -> Result<Self, SessionError> {
        let integers = |name: &str| -> Result<Vec<i64>, SessionError> {
            Ok(tensors.get(name).map(Vec::<i64>::try_from).transpose()?.unwrap_or_default())
        };
        let counts = integers(COUNTS)?;
        let count = |index: usize| counts.get(index).copied().unwrap_or(0).cast_unsigned();
        let found = integers(ORDER)?;
        let expected = order_numbers(order);
        // Initial weights made without data have no order yet.
        let begun = count(2) > 0;
        for (index, what) in ["this many training rows:", "batch", "seed"].into_iter().enumerate() {
            let found = found.get(index).copied().unwrap_or(-1);
            if begun && found != expected[index] {
                let path = path.to_owned();
                return Err(SessionError::OtherTraining { path, what, found, expected: expected[index] });
            }
        }
        let found = integers(MIX)?;
        let expected = order.mix.as_ref().map_or_else(Vec::new, |mix| mix.numbers());
        if begun && found != expected {
            return Err(SessionError::OtherMix { path: path.to_owned(), found, expected });
        }
        let best = tensors.get(BEST).map(Vec::<f64>::try_from).transpose()?.unwrap_or_default();
        if let Some(saved) = tensors.get(SUMS) {
            sums.0.f_copy_(saved)?;
        }
        Ok(Self {
            position: Position { epoch: count(0), step: count(1) },
            step: count(2),
            early_stopping: EarlyStopping {
                best: best.first().copied().unwrap_or(f64::INFINITY),
                bad_validations: count(3),
            },
            best_step: count(4),
            skipped: count(5),
            replays: count(6),
            validated: count(7),
            due: count(8),
            stopped_early: count(9) != 0,
            finished: count(10) != 0,
            mean_won: count(11) != 0,
            every: 0,
        })
    }
}

fn order_numbers(order: &Sampler) -> [i64; 3] {
    [order.rows, order.batch, order.seed].map(u64::cast_signed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler() -> Sampler {
        Sampler { rows: 100, batch: 8, seed: u64::MAX, rank: 0, world: 2, accumulation: 1, mix: None }
    }

    #[test]
    fn a_refused_step_adds_nothing_but_its_count() {
        let mut sums = EpochSums::new(Device::Cpu).unwrap();
        let number = |v: f64| Tensor::from_slice(&[v]);
        sums.add(&Tensor::from_slice(&[6.0, 3.0]), &number(2.0), &number(1.0)).unwrap();
        sums.add(&Tensor::from_slice(&[f64::NAN, 3.0]), &number(f64::INFINITY), &number(0.0)).unwrap();
        let totals = EpochTotals { loss: 6.0, cells: 3.0, grad_norm: 2.0, landed: 1.0, skipped: 1.0 };
        assert_eq!(sums.read().unwrap(), totals);
        sums.clear().unwrap();
        assert_eq!(sums.read().unwrap().landed, 0.0);
    }

    #[test]
    fn a_validation_is_owed_after_every_so_many_steps_and_at_the_end_of_an_epoch() {
        let order = Sampler { rows: 56, ..sampler() };
        let after = |every: u64| {
            let mut progress = Progress { every, ..Progress::default() };
            let step = |step: u64| {
                (progress.step, progress.position) = (step, order.after(progress.position));
                let owed = progress.owes_validation();
                progress.validated = if owed { step } else { progress.validated };
                assert!(!progress.owes_validation());
                owed
            };
            let mut step = step;
            (1..=14).filter(|at| step(*at)).collect::<Vec<u64>>()
        };
        assert_eq!(after(0), [7, 14]);
        assert_eq!(after(3), [3, 6, 7, 10, 13, 14]);
        assert_eq!(after(100), [7, 14]);
        assert!(!Progress { every: 1, ..Progress::default() }.owes_validation());
    }

    #[test]
    fn state_comes_back_exactly_in_any_world() {
        let progress = Progress {
            position: Position { epoch: 3, step: 5 },
            step: 44,
            early_stopping: EarlyStopping { best: 1.0 / 3.0, bad_validations: 2 },
            best_step: 15,
            mean_won: true,
            skipped: 4,
            replays: 6,
            validated: 40,
            due: 40,
            stopped_early: true,
            finished: false,
            every: 0,
        };
        let sums = EpochSums(Tensor::from_slice(&[0.1, 2.0, 3.0, 4.0, 5.0]));
        let named = progress.named(&sums, &sampler());
        for ((name, shape, kind), item) in Progress::expected().iter().zip(&named) {
            assert_eq!((name, shape, *kind), (&item.fqn, &item.tensor.size(), item.tensor.kind()));
        }
        let tensors: BTreeMap<_, _> = named.into_iter().map(|n| (n.fqn, n.tensor)).collect();
        let mut back = EpochSums::new(Device::Cpu).unwrap();
        let other_world = Sampler { world: 5, rank: 3, ..sampler() };
        let restored = Progress::restore(&tensors, &mut back, &other_world, Path::new("ck")).unwrap();
        assert_eq!(restored, progress);
        let totals = EpochTotals { loss: 0.1, cells: 2.0, grad_norm: 3.0, landed: 4.0, skipped: 5.0 };
        assert_eq!(back.read().unwrap(), totals);

        let mix = Some(std::sync::Arc::new(crate::data::Mix::new(&[60, 40], &[1.0, 1.0])));
        let other = Sampler { mix, ..sampler() };
        let error = Progress::restore(&tensors, &mut back, &other, Path::new("ck")).unwrap_err().to_string();
        assert!(error.contains("[], expected [60, 50, 40, 50]"), "{error}");
        let tensors: BTreeMap<_, _> = progress.named(&back, &other).into_iter().map(|n| (n.fqn, n.tensor)).collect();
        assert!(Progress::restore(&tensors, &mut back, &other, Path::new("ck")).is_ok());
        assert!(Progress::restore(&tensors, &mut back, &sampler(), Path::new("ck")).is_err());

        let other = Sampler { batch: 16, ..sampler() };
        let error = Progress::restore(&tensors, &mut back, &other, Path::new("ck")).unwrap_err().to_string();
        assert!(error.contains("batch 8, expected 16"), "{error}");
    }
}
