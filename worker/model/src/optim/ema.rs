//! Averages of the weights: exponential moving averages without initial bias, and uniform averages over all updates.
//!
//! avg ← avg + w_t (p − avg) with w_t = (1 − d)/(1 − dᵗ) equals the usual average from zero divided by 1 − dᵗ, but
//! never stores the biased value: the stored array can be used as weights at any time. Each parameter is stored once.
//! For d = 1 w_t is 1/t: the mean of all weights so far, independent of the initial value.

use super::{
    FlatParams, OptimError,
    error::failed,
    flat::{Boxes, Shard, copy_in},
};
use enn_core::{
    autograd::{Cx, Tensor, call},
    backend::duplicate,
    error::OpError,
    op::Average,
};
use std::collections::BTreeMap;
use tch::{Device, Kind, TchError, Tensor as Raw};

/// Averages in the layout of [`FlatParams`].
#[derive(Debug)]
pub struct Ema {
    averages: Vec<Raw>,
    decay: f64,
    /// Number of updates, scalar f64 on the device.
    updates: Raw,
}

impl Ema {
    /// Creates an average with decay d, 0 < d ≤ 1, which begins at the current weights.
    pub fn new(weights: &FlatParams, decay: f64) -> Result<Self, OptimError> {
        let device = weights.slabs().first().map_or(Device::Cpu, Raw::device);
        let go = || -> Result<Self, TchError> {
            let averages = weights.own()?.iter().map(duplicate).collect::<Result<_, _>>()?;
            Ok(Self { averages, decay, updates: Raw::f_zeros([0_i64; 0], (Kind::Double, device))? })
        };
        go().map_err(failed("allocate the average"))
    }

    /// Updates the average with the weights after an optimizer step; a skipped step, with `taken` 0, changes nothing.
    /// The update is recorded.
    ///
    /// # Errors
    /// When the weights are not those given to `new`.
    pub fn update(&self, cx: &Cx, weights: &FlatParams, taken: &Tensor) -> Result<(), OpError> {
        cx.optim(|cx| {
            let state = |raw: &Raw| cx.opt_state(raw.shallow_clone());
            let mut ins = vec![state(&self.updates), taken.clone()];
            let kept = weights.own().map_err(|kind| cx.fail("average", kind))?;
            for (average, weights) in self.averages.iter().zip(&kept) {
                ins.extend([state(average), state(weights)]);
            }
            call(cx, Average { decay: self.decay.into() }, &ins.iter().collect::<Vec<_>>())?;
            Ok(())
        })
    }

    /// Exchanges weights and average exactly: once to validate with the average, and again to continue training.
    /// Weights that this rank does not keep do not change.
    ///
    /// # Errors
    /// When the weights are not those given to `new`.
    pub fn swap(&mut self, weights: &FlatParams) -> Result<(), OptimError> {
        weights.exchange(&mut self.averages).map_err(failed("exchange weights and average"))
    }

    pub fn decay(&self) -> f64 {
        self.decay
    }

    /// Returns the part of the average that this rank keeps.
    pub fn kept(&self) -> &[Raw] {
        &self.averages
    }

    /// Replaces the arrays by those of the same average that the weights keep now.
    pub fn keep(&mut self, averages: Vec<Raw>) {
        self.averages = averages;
    }

    pub fn shards(&self, weights: &FlatParams, which: Boxes) -> Vec<Shard> {
        weights.shards(&self.averages, which)
    }

    /// Returns the average by parameter, `ema.<fqn>`, as views in the parameters' shapes.
    pub fn named(&self, weights: &FlatParams) -> Vec<(String, Raw)> {
        weights.views(&self.averages).into_iter().map(|(name, raw)| (format!("ema.{name}"), raw)).collect()
    }

    /// Returns the number of updates, scalar f64 on the device.
    pub fn updates(&self) -> &Raw {
        &self.updates
    }

    /// Restores a saved average: all of `ema.<fqn>`, and the number of updates.
    ///
    /// # Errors
    /// When an entry is missing or has another shape; nothing is changed then.
    pub fn restore(
        &mut self,
        weights: &FlatParams,
        saved: &BTreeMap<String, Raw>,
        updates: u64,
    ) -> Result<(), OptimError> {
        copy_in(weights, || self.named(weights), saved)?;
        let _ = tch::no_grad(|| self.updates.f_fill_(updates as f64)).map_err(failed("restore the average"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_core::params::{Group, Init, ParamBuilder, Params};
    use tch::Device;

    fn weights() -> (Params, FlatParams) {
        let mut pb = ParamBuilder::new();
        pb.param("a", &[2, 3], Init::Normal { std: 1.0 }, Group::Decay);
        pb.param("b", &[4], Init::Ones, Group::NoDecay);
        let params = pb.build(1, Device::Cpu).unwrap();
        let flat = FlatParams::of(&params);
        (params, flat)
    }

    fn shift(flat: &FlatParams, by: f64) {
        for slab in &mut flat.own().unwrap() {
            let _ = tch::no_grad(|| slab.f_add_scalar_(by)).unwrap();
        }
    }

    #[test]
    fn a_decay_of_one_is_the_mean_of_all_updates() {
        let (params, flat) = weights();
        let mean = Ema::new(&flat, 1.0).unwrap();
        for t in 1..=20 {
            shift(&flat, 1.0);
            update(&mean, &params, &flat);
            // Parameter "b" began at 1.
            assert!((value(&mean.named(&flat), "ema.b") - (1.0 + f64::from(t + 1) / 2.0)).abs() < 1e-5, "update {t}");
        }
    }

    fn update(ema: &Ema, params: &Params, flat: &FlatParams) {
        let cx = Cx::train(params, 0, 0);
        ema.update(&cx, flat, &cx.input(Raw::from(1.0f64))).unwrap();
    }

    fn updates(ema: &Ema) -> u64 {
        ema.updates.double_value(&[]) as u64
    }

    fn value(pairs: &[(String, Raw)], name: &str) -> f64 {
        pairs.iter().find(|(n, _)| n == name).unwrap().1.double_value(&[0])
    }

    #[test]
    fn equals_the_bias_corrected_average() {
        let (params, flat) = weights();
        let ema = Ema::new(&flat, 0.9).unwrap();
        let mut biased = 0.0;
        let mut weight = 1.0;
        // A skipped step changes nothing, not even before the first update.
        let refused = Cx::train(&params, 0, 0);
        ema.update(&refused, &flat, &refused.input(Raw::from(0.0f64))).unwrap();
        assert_eq!((updates(&ema), value(&ema.named(&flat), "ema.b")), (0, 1.0));
        for t in 1..=20 {
            shift(&flat, 1.0);
            update(&ema, &params, &flat);
            biased = 0.9 * biased + 0.1 * weight_value(t);
            weight *= 0.9;
            let expected = biased / (1.0 - weight);
            assert!((value(&ema.named(&flat), "ema.b") - expected).abs() < 1e-5, "update {t}");
        }
        assert_eq!(updates(&ema), 20);
    }

    fn weight_value(t: i32) -> f64 {
        1.0 + f64::from(t)
    }

    #[test]
    fn swapping_twice_changes_nothing_and_once_moves_the_parameters() {
        let (params, flat) = weights();
        let mut ema = Ema::new(&flat, 0.5).unwrap();
        shift(&flat, 2.0);
        update(&ema, &params, &flat);
        shift(&flat, 2.0);
        let b = params.get(params.by_name("b").unwrap()).shallow_clone();
        assert_eq!(b.double_value(&[0]), 5.0);
        ema.swap(&flat).unwrap();
        assert_eq!((b.double_value(&[0]), value(&ema.named(&flat), "ema.b")), (3.0, 5.0));
        ema.swap(&flat).unwrap();
        assert_eq!((b.double_value(&[0]), value(&ema.named(&flat), "ema.b")), (5.0, 3.0));
    }

    #[test]
    fn restored_average_goes_on_bit_for_bit() {
        let (params, flat) = weights();
        let ema = Ema::new(&flat, 0.7).unwrap();
        shift(&flat, 0.3);
        update(&ema, &params, &flat);
        let saved: BTreeMap<String, Raw> =
            ema.named(&flat).into_iter().map(|(n, raw)| (n, duplicate(&raw).unwrap())).collect();
        let mut again = Ema::new(&flat, 0.7).unwrap();
        again.restore(&flat, &saved, updates(&ema)).unwrap();
        shift(&flat, 0.1);
        update(&ema, &params, &flat);
        update(&again, &params, &flat);
        for ((_, left), (_, right)) in ema.named(&flat).iter().zip(again.named(&flat)) {
            assert_eq!(left, &right);
        }
        let incomplete: BTreeMap<String, Raw> = saved.into_iter().filter(|(n, _)| n != "ema.a").collect();
        assert!(again.restore(&flat, &incomplete, 1).unwrap_err().to_string().contains("ema.a"));
        assert_eq!(updates(&again), 2);
    }
}
