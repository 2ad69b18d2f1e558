//! AdamW over flat arrays, with global-norm clipping, and a gate that lets no non-finite step through.
//!
//! Per element, with g the mean gradient after clipping (torch.optim.AdamW's order):
//! ```text
//! p ← p (1 − lr·wd)      m ← m + (1−β₁)(g − m)      v ← v + (1−β₂)(g² − v)
//! p ← p − lr/(1−β₁ᵗ) · m / (√v/√(1−β₂ᵗ) + ε)
//! ```
//! **Invariant:** every update is recorded, and the host never waits for a number: norm, clip and gate stay on the device.

use super::{FlatParams, OptimError, error::failed, flat::copy_in};
use crate::{
    autograd::{Cx, Tensor, call},
    error::OpError,
    op::Op,
    params::{BucketId, GradBuckets, Group},
};
use std::collections::BTreeMap;
use tch::{Device, Kind, TchError, Tensor as Raw};

/// Added to the root of the second moment.
const EPS: f64 = 1e-8;

/// Constants of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWSettings {
    /// β₁, β₂.
    pub betas: (f64, f64),
    /// Decay of the decayed group.
    pub weight_decay: f64,
    /// Global-norm clip of the mean gradient; 0 switches it off.
    pub clip: f64,
}

/// Numbers of one step, on the device.
#[derive(Debug, Clone)]
pub struct StepStats {
    /// Norm of the mean gradient before clipping, scalar f64.
    pub grad_norm: Tensor,
    /// Whether the step was taken, scalar f64: 1, or 0 when the gradient was not finite.
    pub taken: Tensor,
}

/// Moments and counters.
#[derive(Debug)]
pub struct AdamW {
    settings: AdamWSettings,
    exp_avg: Vec<Raw>,
    exp_avg_sq: Vec<Raw>,
    pieces: Vec<Piece>,
    /// Steps taken, scalar f64 on the device.
    steps: Raw,
    /// Steps refused, scalar f64 on the device.
    skipped: Raw,
}

/// Views of one segment of every array.
#[derive(Debug)]
struct Piece {
    bucket: BucketId,
    start: i64,
    length: i64,
    weight: Raw,
    exp_avg: Raw,
    exp_avg_sq: Raw,
    decays: bool,
}

impl AdamW {
    /// Zero moments for `weights`.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn new(weights: &FlatParams, settings: AdamWSettings) -> Result<Self, OptimError> {
        let go = || {
            let zeros = || weights.slabs().iter().map(Raw::f_zeros_like).collect::<Result<Vec<_>, _>>();
            let (exp_avg, exp_avg_sq) = (zeros()?, zeros()?);
            let mut pieces = Vec::new();
            for segment in weights.segments() {
                let slab = segment.bucket.index();
                let cut = |slabs: &[Raw]| slabs[slab].f_narrow(0, segment.start, segment.len);
                pieces.push(Piece {
                    bucket: segment.bucket,
                    start: segment.start,
                    length: segment.len,
                    weight: cut(weights.slabs())?,
                    exp_avg: cut(&exp_avg)?,
                    exp_avg_sq: cut(&exp_avg_sq)?,
                    decays: segment.group == Group::Decay,
                });
            }
            let device = weights.slabs().first().map_or(Device::Cpu, Raw::device);
            let scalar = || Raw::f_zeros([0_i64; 0], (Kind::Double, device));
            Ok(Self { settings, exp_avg, exp_avg_sq, pieces, steps: scalar()?, skipped: scalar()? })
        };
        go().map_err(failed("allocate moments"))
    }

    /// One update of the weights from `grads`, the summed gradient over the global batch, and `count`, what to divide it by:
    /// the global number of valid cells. `rate` is the learning rate. Both f64 scalars on the device. The buckets are
    /// overwritten with the clipped mean gradient. Low-precision copies of the weights, where they are kept, follow the weights.
    ///
    /// A gradient that is not finite changes nothing but the count of refused steps.
    ///
    /// # Errors
    /// When `grads` does not have the layout the weights were adopted with.
    pub fn step(&self, cx: &Cx, grads: &GradBuckets, count: &Tensor, rate: &Tensor) -> Result<StepStats, OpError> {
        cx.optim(|cx| {
            let state = |raw: &Raw| cx.opt_state(raw.shallow_clone());
            let flats: Vec<Tensor> = grads.buckets().map(|(_, flat)| state(flat)).collect();
            let norm = call(cx, Op::GlobalNorm, &flats.iter().collect::<Vec<_>>())?.swap_remove(0);
            let (b1, b2) = self.settings.betas;
            let (decay, clip) = (self.settings.weight_decay.into(), self.settings.clip.into());
            let scalars = Op::StepScalars { beta1: b1.into(), beta2: b2.into(), decay, clip };
            let mut made = call(cx, scalars, &[&norm, count, rate, &state(&self.steps), &state(&self.skipped)])?;
            let (taken, grad_norm, numbers) = (made.swap_remove(2), made.swap_remove(1), made.swap_remove(0));
            let mut ins = vec![numbers];
            let mut shadows = false;
            for piece in &self.pieces {
                let cut =
                    |flat: &Raw| flat.f_narrow(0, piece.start, piece.length).map_err(|kind| cx.fail("adamw", kind));
                let grad = cx.opt_state(cut(grads.bucket(piece.bucket))?);
                ins.extend([state(&piece.weight), grad, state(&piece.exp_avg), state(&piece.exp_avg_sq)]);
                if let Some(copy) = cx.shadow_flat(piece.bucket) {
                    shadows = true;
                    ins.push(cx.opt_state(cut(copy)?));
                }
            }
            let decays = self.pieces.iter().map(|piece| i64::from(piece.decays)).collect();
            call(cx, Op::AdamW { eps: EPS.into(), decays, shadows }, &ins.iter().collect::<Vec<_>>())?;
            Ok(StepStats { grad_norm, taken })
        })
    }

    /// Steps taken, read from the device.
    ///
    /// # Errors
    /// When the device failed.
    pub fn steps(&self) -> Result<u64, OptimError> {
        Ok(self.steps.f_double_value(&[]).map_err(failed("read the step count"))? as u64)
    }

    /// Steps refused because the gradient was not finite, read from the device.
    ///
    /// # Errors
    /// When the device failed.
    pub fn skipped(&self) -> Result<u64, OptimError> {
        Ok(self.skipped.f_double_value(&[]).map_err(failed("read the count of refused steps"))? as u64)
    }

    /// State by parameter, as torch names it: `optim.state.<fqn>.{exp_avg, exp_avg_sq}` (views in the parameter's shape) and `.step` (f32).
    pub fn named(&self, weights: &FlatParams) -> Vec<(String, Raw)> {
        let mut all = self.moments(weights);
        let step = self.steps.to_kind(Kind::Float);
        all.extend(weights.names().map(|name| (format!("optim.state.{name}.step"), step.shallow_clone())));
        all
    }

    fn moments(&self, weights: &FlatParams) -> Vec<(String, Raw)> {
        let named = |slabs: &[Raw], what: &str| -> Vec<(String, Raw)> {
            weights.views(slabs).into_iter().map(|(n, raw)| (format!("optim.state.{n}.{what}"), raw)).collect()
        };
        let mut all = named(&self.exp_avg, "exp_avg");
        all.extend(named(&self.exp_avg_sq, "exp_avg_sq"));
        all
    }

    /// Puts saved state in place; `steps` and `skipped` are counts of the run so far.
    ///
    /// # Errors
    /// When an entry is missing or has another shape; nothing is changed then.
    pub fn restore(
        &mut self,
        weights: &FlatParams,
        saved: &BTreeMap<String, Raw>,
        steps: u64,
        skipped: u64,
    ) -> Result<(), OptimError> {
        copy_in(self.moments(weights), saved)?;
        let mut set = || -> Result<(), TchError> {
            let _ = self.steps.f_fill_(steps as f64)?;
            let _ = self.skipped.f_fill_(skipped as f64)?;
            Ok(())
        };
        set().map_err(failed("restore the step count"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Group, Init, ParamBuilder, ParamId, Params};

    const SETTINGS: AdamWSettings = AdamWSettings { betas: (0.9, 0.99), weight_decay: 0.1, clip: 0.0 };

    struct Bench {
        params: Params,
        grads: GradBuckets,
        weights: FlatParams,
        optimizer: AdamW,
        ids: [ParamId; 2],
    }

    fn bench(settings: AdamWSettings) -> Bench {
        let mut pb = ParamBuilder::new();
        // Longer than one chunk, so that the seam is tested.
        let a = pb.param("a", &[300, 250], Init::Normal { std: 1.0 }, Group::Decay);
        let b = pb.param("b", &[7], Init::Normal { std: 1.0 }, Group::NoDecay);
        let params = pb.build(3, Device::Cpu).unwrap();
        let grads = GradBuckets::new(&params).unwrap();
        let weights = FlatParams::of(&params);
        let optimizer = AdamW::new(&weights, settings).unwrap();
        Bench { params, grads, weights, optimizer, ids: [a, b] }
    }

    impl Bench {
        /// A gradient that depends on the step only.
        fn fill(&mut self, step: i64) -> Vec<Raw> {
            tch::manual_seed(100 + step);
            self.ids
                .iter()
                .map(|&id| {
                    let mut view = self.grads.view(id).shallow_clone();
                    let grad = Raw::randn(view.size(), (Kind::Float, Device::Cpu));
                    tch::no_grad(|| view.copy_(&grad));
                    grad
                })
                .collect()
        }

        fn step(&mut self, count: f64, lr: f64) -> StepStats {
            let cx = Cx::train(&self.params, 0, 0);
            let scalar = |value: f64| cx.input(Raw::from(value));
            self.optimizer.step(&cx, &self.grads, &scalar(count), &scalar(lr)).unwrap()
        }

        fn values(&self) -> Vec<Raw> {
            self.ids.iter().map(|&id| self.params.get(id).copy()).collect()
        }
    }

    /// The textbook in f64, element by element.
    struct Reference {
        p: Raw,
        m: Raw,
        v: Raw,
        decay: f64,
    }

    impl Reference {
        fn new(p: &Raw, decay: f64) -> Self {
            let p = p.to_kind(Kind::Double);
            Self { m: p.zeros_like(), v: p.zeros_like(), p, decay }
        }

        fn step(&mut self, g: &Raw, t: i32, lr: f64) {
            let g = g.to_kind(Kind::Double);
            let (b1, b2) = SETTINGS.betas;
            self.p = &self.p * (1.0 - lr * self.decay);
            self.m = &self.m * b1 + &g * (1.0 - b1);
            self.v = &self.v * b2 + g.square() * (1.0 - b2);
            let m = &self.m / (1.0 - b1.powi(t));
            let v = &self.v / (1.0 - b2.powi(t));
            self.p = &self.p - lr * m / (v.sqrt() + EPS);
        }
    }

    fn distance(a: &Raw, b: &Raw) -> f64 {
        (a.to_kind(Kind::Double) - b.to_kind(Kind::Double)).abs().max().double_value(&[])
    }

    #[test]
    fn ten_steps_equal_the_textbook() {
        let mut bench = bench(SETTINGS);
        let start = bench.values();
        let mut reference = [Reference::new(&start[0], SETTINGS.weight_decay), Reference::new(&start[1], 0.0)];
        for t in 1..=10 {
            let lr = 1e-2 / f64::from(t);
            let grads = bench.fill(i64::from(t));
            bench.step(8.0, lr);
            for (r, g) in reference.iter_mut().zip(&grads) {
                r.step(&(g / 8.0), t, lr);
            }
            for (value, r) in bench.values().iter().zip(&reference) {
                assert!(distance(value, &r.p) < 2e-6, "step {t}: {}", distance(value, &r.p));
            }
        }
        assert_eq!(bench.optimizer.steps().unwrap(), 10);
    }

    #[test]
    fn clip_bounds_the_norm_and_leaves_small_gradients() {
        let mut bench = bench(AdamWSettings { clip: 1.0, ..SETTINGS });
        let grads = bench.fill(1);
        let norm = grads.iter().map(|g| g.square().sum(Kind::Double).double_value(&[])).sum::<f64>().sqrt();
        let stats = bench.step(2.0, 1e-3);
        assert!((stats.grad_norm.raw().double_value(&[]) - norm / 2.0).abs() < 1e-3);
        let left = |b: &Bench| {
            b.ids.iter().map(|&id| b.grads.view(id).square().sum(Kind::Double).double_value(&[])).sum::<f64>().sqrt()
        };
        assert!((left(&bench) - 1.0).abs() < 1e-5);
        bench.fill(2);
        bench.step(1e6, 1e-3);
        assert!(left(&bench) < 1e-3);
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        for bad in [f64::NAN, f64::INFINITY] {
            let mut bench = bench(SETTINGS);
            bench.fill(1);
            bench.step(1.0, 1e-2);
            let (before, state) = (bench.values(), copies(&bench));
            bench.fill(2);
            let _ = bench.grads.view(bench.ids[1]).shallow_clone().fill_(bad);
            let stats = bench.step(1.0, 1e-2);
            assert_eq!(stats.taken.raw().double_value(&[]), 0.0);
            assert!(before.iter().zip(bench.values()).all(|(a, b)| *a == b));
            assert!(state.iter().all(|(name, raw)| copies(&bench)[name] == *raw));
            assert_eq!((bench.optimizer.steps().unwrap(), bench.optimizer.skipped().unwrap()), (1, 1));
        }
    }

    fn copies(bench: &Bench) -> BTreeMap<String, Raw> {
        bench.optimizer.named(&bench.weights).into_iter().map(|(name, raw)| (name, raw.copy())).collect()
    }

    #[test]
    fn restored_state_goes_on_bit_for_bit() {
        let mut one = bench(SETTINGS);
        for t in 0..3 {
            one.fill(t);
            one.step(4.0, 1e-2);
        }
        let saved = copies(&one);
        assert_eq!(saved["optim.state.a.step"].double_value(&[]), 3.0);
        let mut two = bench(SETTINGS);
        for (&id, value) in two.ids.iter().zip(one.values()) {
            tch::no_grad(|| two.params.get(id).shallow_clone().copy_(&value));
        }
        two.optimizer.restore(&two.weights, &saved, 3, 0).unwrap();
        for t in 3..6 {
            for bench in [&mut one, &mut two] {
                bench.fill(t);
                bench.step(4.0, 1e-2);
            }
        }
        assert!(one.values().iter().zip(two.values()).all(|(a, b)| *a == b));
        assert!(copies(&two).iter().all(|(name, raw)| copies(&one)[name] == *raw));
    }

    #[test]
    fn state_of_another_model_is_refused_untouched() {
        let mut bench = bench(SETTINGS);
        bench.fill(1);
        bench.step(1.0, 1e-2);
        let before = copies(&bench);
        let mut saved = copies(&bench);
        saved.insert("optim.state.b.exp_avg_sq".to_owned(), Raw::zeros([8], (Kind::Float, Device::Cpu)));
        saved.insert("optim.state.a.exp_avg".to_owned(), Raw::ones([300, 250], (Kind::Float, Device::Cpu)));
        let error = bench.optimizer.restore(&bench.weights, &saved, 9, 0).unwrap_err().to_string();
        assert!(
            error.contains("optim.state.b.exp_avg_sq") && error.contains("[8]") && error.contains("[7]"),
            "{error}"
        );
        assert!(before.iter().all(|(name, raw)| copies(&bench)[name] == *raw));
    }
}
