//! AdamW over flat arrays, with clipping by the global norm. A step with a non-finite gradient changes nothing.
//!
//! Per element, with g the mean gradient after clipping (torch.optim.AdamW's order):
//! ```text
//! p ← p (1 − lr·wd)      m ← m + (1−β₁)(g − m)      v ← v + (1−β₂)(g² − v)
//! p ← p − lr/(1−β₁ᵗ) · m / (√v/√(1−β₂ᵗ) + ε)
//! ```
//! **Invariant:** every update is recorded, and the host never waits for the device: norm, clipping and the skipping of
//! steps are computed there.

use super::{
    Ema, FlatParams, OptimError,
    error::failed,
    flat::{Boxes, Shard, copy_in},
};
use enn_core::{
    autograd::{Cx, Tensor, call},
    error::OpError,
    functional,
    op::{AdamW as Update, CastInto, GlobalNorm, StepScalars, Unary},
    params::{BucketId, GradBuckets, Group, Share},
};
use std::collections::BTreeMap;
use tch::{Device, Kind, TchError, Tensor as Raw};

/// Added to the root of the second moment.
const EPS: f64 = 1e-8;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWSettings {
    pub betas: (f64, f64),
    /// Weight decay of the parameters in [`Group::Decay`].
    pub weight_decay: f64,
    /// Maximum global norm of the mean gradient; 0 disables clipping.
    pub clip: f64,
}

#[derive(Debug, Clone)]
pub struct StepStats {
    /// Norm of the mean gradient before clipping, scalar f64.
    pub grad_norm: Tensor,
    /// Whether the step was taken, scalar f64: 1, or 0 when the gradient was not finite.
    pub taken: Tensor,
}

/// Optimizer state: first and second moments, and counters.
#[derive(Debug)]
pub struct AdamW {
    settings: AdamWSettings,
    exp_avg: Vec<Raw>,
    exp_avg_sq: Vec<Raw>,
    pieces: Vec<UpdateRange>,
    /// Whether this rank keeps only its share of the arrays.
    divided: bool,
    /// Weights by bucket, with the part that the ranks update separately; empty when this rank updates everything.
    shared: Vec<(Raw, Option<Raw>)>,
    /// Steps taken, scalar f64 on the device.
    steps: Raw,
    /// Steps skipped, scalar f64 on the device.
    skipped: Raw,
}

/// Views of the part of one segment that this rank keeps, in every array.
#[derive(Debug)]
struct UpdateRange {
    bucket: BucketId,
    start: i64,
    length: i64,
    /// Index of the run that contains the range; `at` is the offset in the run.
    run: usize,
    at: i64,
    /// Whether all ranks keep the range.
    common: bool,
    weight: Raw,
    exp_avg: Raw,
    exp_avg_sq: Raw,
    decays: bool,
}

impl UpdateRange {
    /// Returns the gradient of the range: from the shards where this rank keeps only those, else from the bucket.
    fn of(&self, grads: &GradBuckets, kept: Option<&[&Raw]>) -> Result<Raw, TchError> {
        match kept {
            Some(kept) => kept[self.run].f_narrow(0, self.at, self.length),
            None => grads.bucket(self.bucket).f_narrow(0, self.start, self.length),
        }
    }

    fn all(weights: &FlatParams, exp_avg: &[Raw], exp_avg_sq: &[Raw]) -> Result<Vec<Self>, TchError> {
        let mut pieces = Vec::new();
        let own = weights.own()?;
        for segment in weights.segments() {
            for (kept, run) in weights.runs().iter().enumerate().filter(|(_, run)| run.bucket == segment.bucket) {
                let start = segment.start.max(run.start);
                let length = (segment.start + segment.len).min(run.start + run.len) - start;
                if length <= 0 {
                    continue;
                }
                let cut = |kept: &Raw| kept.f_narrow(0, start - run.start, length);
                pieces.push(Self {
                    bucket: segment.bucket,
                    start,
                    length,
                    run: kept,
                    at: start - run.start,
                    common: run.common,
                    weight: cut(&own[kept])?,
                    exp_avg: cut(&exp_avg[kept])?,
                    exp_avg_sq: cut(&exp_avg_sq[kept])?,
                    decays: segment.group == Group::Decay,
                });
            }
        }
        Ok(pieces)
    }
}

impl AdamW {
    /// Creates zero moments for the arrays that `weights` keeps.
    pub fn new(weights: &FlatParams, settings: AdamWSettings) -> Result<Self, OptimError> {
        let go = || {
            let zeros = || weights.own()?.iter().map(Raw::f_zeros_like).collect::<Result<Vec<_>, _>>();
            let exp_avg = zeros()?;
            let exp_avg_sq = zeros()?;
            let pieces = UpdateRange::all(weights, &exp_avg, &exp_avg_sq)?;
            let device = weights.slabs().first().map_or(Device::Cpu, Raw::device);
            let scalar = || Raw::f_zeros([0_i64; 0], (Kind::Double, device));
            let steps = scalar()?;
            let skipped = scalar()?;
            let shared = shared(weights)?;
            let divided = weights.share() != Share::WHOLE;
            Ok(Self { settings, exp_avg, exp_avg_sq, pieces, divided, shared, steps, skipped })
        };
        go().map_err(failed("allocate moments"))
    }

    /// Waits for all pending reductions ([`Cx::all_reduce_wait`]) and returns the norm of the gradients, √Σg² of their
    /// sums over the ranks, f64 of 0 axes. Where the reduction measures the norm, its result is used. Otherwise the
    /// other buckets are measured while the last reduction is pending.
    pub fn complete(&self, cx: &Cx, grads: &GradBuckets) -> Result<Tensor, OpError> {
        if let Some(norms) = cx.measured(grads.buckets().map(|(_, flat)| flat)).filter(|_| !self.divided) {
            cx.all_reduce_wait()?;
            return norm(cx, None, norms.iter());
        }
        let last = cx.last_bucket().filter(|_| !self.divided);
        let others = || grads.buckets().filter(|(bucket, _)| Some(*bucket) != last).map(|(_, flat)| flat);
        let before = if last.is_some() && others().next().is_some() { Some(norm(cx, None, others())?) } else { None };
        cx.all_reduce_wait()?;
        match (before, last) {
            _ if self.divided => self.norm_of_shares(cx, grads),
            (Some(before), Some(last)) => norm(cx, Some(&before), std::iter::once(grads.bucket(last))),
            _ => norm(cx, None, grads.buckets().map(|(_, flat)| flat)),
        }
    }

    /// Updates the weights from `grads`, the gradient summed over the global batch; `norm` is the result of
    /// [`AdamW::complete`], `count` the divisor (the global number of valid cells) and `rate` the learning rate, all
    /// f64 scalars on the device. The buckets keep the sum. Low-precision copies of the weights are updated with them.
    ///
    /// A non-finite gradient changes only the count of skipped steps.
    ///
    /// The `average` is updated in the same pass, as by [`Ema::update`].
    ///
    /// Where the moments are sharded, this rank's shards of `grads` hold the sums, the rank updates the same shards of
    /// the weights, and the ranks exchange the results.
    ///
    /// # Errors
    /// When `grads` does not have the layout the weights were adopted with.
    pub fn step(
        &self,
        cx: &Cx,
        grads: &GradBuckets,
        average: Option<&Ema>,
        norm: &Tensor,
        count: &Tensor,
        rate: &Tensor,
    ) -> Result<StepStats, OpError> {
        let kept_grads = grads.kept();
        let stats = cx.optim(|cx| {
            let state = |raw: &Raw| cx.opt_state(raw.shallow_clone());
            let (b1, b2) = self.settings.betas;
            let decay = self.settings.weight_decay.into();
            let clip = self.settings.clip.into();
            let scalars = StepScalars { beta1: b1.into(), beta2: b2.into(), decay, clip };
            let mut made = call(cx, scalars, &[norm, count, rate, &state(&self.steps), &state(&self.skipped)])?;
            let taken = made.swap_remove(2);
            let grad_norm = made.swap_remove(1);
            let numbers = made.swap_remove(0);
            let mut ins = vec![numbers];
            if let Some(average) = average {
                ins.extend([state(average.updates()), taken.clone()]);
            }
            let kept = cx.low_precision_shards();
            let mut shadows = false;
            for piece in &self.pieces {
                let grad = cx.opt_state(piece.of(grads, kept_grads.as_deref()).map_err(|kind| cx.fail("adamw", kind))?);
                ins.extend([state(&piece.weight), grad, state(&piece.exp_avg), state(&piece.exp_avg_sq)]);
                let copy = match kept.get(piece.run) {
                    Some(kept) => Some(kept.f_narrow(0, piece.at, piece.length)),
                    None if self.divided => None,
                    None => cx.shadow_flat(piece.bucket).map(|flat| flat.f_narrow(0, piece.start, piece.length)),
                };
                if let Some(copy) = copy.transpose().map_err(|kind| cx.fail("adamw", kind))? {
                    shadows = true;
                    ins.push(cx.opt_state(copy));
                }
                if let Some(average) = average {
                    let cut = average.kept()[piece.run].f_narrow(0, piece.at, piece.length);
                    ins.push(cx.opt_state(cut.map_err(|kind| cx.fail("adamw", kind))?));
                }
            }
            let decays = self.pieces.iter().map(|piece| i64::from(piece.decays)).collect();
            let average = average.map(|average| average.decay().into());
            call(cx, Update { eps: EPS.into(), decays, shadows, average }, &ins.iter().collect::<Vec<_>>())?;
            Ok(StepStats { grad_norm, taken })
        })?;
        if !self.shared.is_empty() {
            self.share_weights(cx)?;
        }
        Ok(stats)
    }

    /// Computes the norm of a sharded gradient.
    fn norm_of_shares(&self, cx: &Cx, grads: &GradBuckets) -> Result<Tensor, OpError> {
        let kept = grads.kept();
        let parts = |common: bool| {
            let pieces = self.pieces.iter().filter(move |piece| piece.common == common);
            pieces
                .map(|piece| piece.of(grads, kept.as_deref()))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|kind| cx.fail("global_norm", kind))
        };
        let own = parts(false)?;
        let common = parts(true)?;
        let square = |parts: &[Raw]| unary(cx, Unary::Square, &norm(cx, None, parts.iter())?);
        let mut sum = None;
        if !own.is_empty() {
            let own = square(&own)?;
            cx.all_reduce_shares(&own)?;
            cx.all_reduce_wait()?;
            sum = Some(own);
        }
        if !common.is_empty() {
            let common = square(&common)?;
            sum = Some(match sum {
                Some(own) => cx.optim(|cx| functional::add(cx, &own, &common))?,
                None => common,
            });
        }
        match sum {
            Some(sum) => unary(cx, Unary::Sqrt, &sum),
            None => norm(cx, None, std::iter::empty()),
        }
    }

    /// Gathers the updated shards of the weights from all ranks and updates low-precision copies.
    fn share_weights(&self, cx: &Cx) -> Result<(), OpError> {
        let mut divided = self.shared.iter().filter_map(|(_, divided)| divided.as_ref());
        divided.try_for_each(|whole| cx.all_gather(whole))?;
        cx.all_reduce_wait()?;
        for (bucket, (slab, _)) in self.shared.iter().enumerate() {
            let Some(copy) = cx.shadow_flat(BucketId(bucket as u32)) else { continue };
            cx.optim(|cx| {
                let copy = cx.opt_state(copy.shallow_clone());
                let slab = cx.opt_state(slab.shallow_clone());
                call(cx, CastInto, &[&copy, &slab])
            })?;
        }
        Ok(())
    }

    /// Returns the first and the second moments that this rank keeps.
    pub fn kept(&self) -> [&[Raw]; 2] {
        [&self.exp_avg, &self.exp_avg_sq]
    }

    /// Replaces the moments by those of the arrays that `weights` keeps now.
    ///
    /// # Errors
    /// When the arrays do not have that layout.
    pub fn keep(&mut self, weights: &FlatParams, exp_avg: Vec<Raw>, exp_avg_sq: Vec<Raw>) -> Result<(), OptimError> {
        self.pieces = UpdateRange::all(weights, &exp_avg, &exp_avg_sq).map_err(failed("divide the moments"))?;
        self.shared = shared(weights).map_err(failed("divide the weights"))?;
        self.divided = weights.share() != Share::WHOLE;
        self.exp_avg = exp_avg;
        self.exp_avg_sq = exp_avg_sq;
        Ok(())
    }

    /// Returns boxes of sharded moments, and the step counts.
    pub fn shards(&self, weights: &FlatParams, which: Boxes) -> (Vec<Shard>, Vec<(String, Raw)>) {
        let named = |what: &'static str, kept: &[Raw]| {
            let renamed = move |shard: Shard| Shard { name: format!("optim.state.{}.{what}", shard.name), ..shard };
            weights.shards(kept, which).into_iter().map(renamed)
        };
        let all = named("exp_avg", &self.exp_avg).chain(named("exp_avg_sq", &self.exp_avg_sq));
        (all.collect(), self.counts(weights))
    }

    /// Reads the number of steps taken from the device.
    pub fn steps(&self) -> Result<u64, OptimError> {
        Ok(self.steps.f_double_value(&[]).map_err(failed("read the step count"))? as u64)
    }

    /// Reads the number of steps skipped for a non-finite gradient from the device.
    pub fn skipped(&self) -> Result<u64, OptimError> {
        Ok(self.skipped.f_double_value(&[]).map_err(failed("read the count of skipped steps"))? as u64)
    }

    /// Returns the state by parameter with the names of torch: `optim.state.<fqn>.{exp_avg, exp_avg_sq}` (views in the
    /// parameter's shape) and `.step` (f32).
    pub fn named(&self, weights: &FlatParams) -> Vec<(String, Raw)> {
        let mut all = self.moments(weights);
        all.extend(self.counts(weights));
        all
    }

    fn counts(&self, weights: &FlatParams) -> Vec<(String, Raw)> {
        let step = self.steps.to_kind(Kind::Float);
        weights.names().map(|name| (format!("optim.state.{name}.step"), step.shallow_clone())).collect()
    }

    fn moments(&self, weights: &FlatParams) -> Vec<(String, Raw)> {
        let named = |slabs: &[Raw], what: &str| -> Vec<(String, Raw)> {
            weights.views(slabs).into_iter().map(|(n, raw)| (format!("optim.state.{n}.{what}"), raw)).collect()
        };
        let mut all = named(&self.exp_avg, "exp_avg");
        all.extend(named(&self.exp_avg_sq, "exp_avg_sq"));
        all
    }

    /// Restores saved state; `steps` and `skipped` are counts of the run so far.
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
        copy_in(weights, || self.moments(weights), saved)?;
        let mut set = || -> Result<(), TchError> {
            let _ = self.steps.f_fill_(steps as f64)?;
            let _ = self.skipped.f_fill_(skipped as f64)?;
            Ok(())
        };
        set().map_err(failed("restore the step count"))
    }
}

/// Returns √Σx² over all elements, f64 of 0 axes; `before` is a norm that is included.
fn norm<'t>(cx: &Cx, before: Option<&Tensor>, parts: impl Iterator<Item = &'t Raw>) -> Result<Tensor, OpError> {
    cx.optim(|cx| {
        let parts: Vec<Tensor> = parts.map(|raw| cx.opt_state(raw.shallow_clone())).collect();
        Ok(call(cx, GlobalNorm, &before.into_iter().chain(&parts).collect::<Vec<_>>())?.swap_remove(0))
    })
}

fn unary(cx: &Cx, op: Unary, value: &Tensor) -> Result<Tensor, OpError> {
    cx.optim(|cx| Ok(call(cx, op, &[value])?.swap_remove(0)))
}

/// Returns the weights by bucket with the parts that the ranks update separately; empty when this rank updates
/// everything.
fn shared(weights: &FlatParams) -> Result<Vec<(Raw, Option<Raw>)>, TchError> {
    if weights.share() == Share::WHOLE || !weights.is_resident() {
        return Ok(Vec::new());
    }
    weights.slabs().iter().map(|slab| Ok((slab.shallow_clone(), weights.share().split(slab)?.0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_core::params::{Group, Init, ParamBuilder, ParamId, Params};

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
        // The parameter is longer than one chunk, so that the boundary is tested.
        let a = pb.param("a", &[300, 250], Init::Normal { std: 1.0 }, Group::Decay);
        let b = pb.param("b", &[7], Init::Normal { std: 1.0 }, Group::NoDecay);
        let params = pb.build(3, Device::Cpu).unwrap();
        let grads = GradBuckets::new(&params).unwrap();
        let weights = FlatParams::of(&params);
        let optimizer = AdamW::new(&weights, settings).unwrap();
        Bench { params, grads, weights, optimizer, ids: [a, b] }
    }

    impl Bench {
        /// Fills the gradients with values that depend on the step only.
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
            self.averaged_step(None, count, lr)
        }

        fn averaged_step(&mut self, average: Option<&Ema>, count: f64, lr: f64) -> StepStats {
            let cx = Cx::train(&self.params, 0, 0);
            let scalar = |value: f64| cx.input(Raw::from(value));
            let norm = self.optimizer.complete(&cx, &self.grads).unwrap();
            self.optimizer.step(&cx, &self.grads, average, &norm, &scalar(count), &scalar(lr)).unwrap()
        }

        fn values(&self) -> Vec<Raw> {
            self.ids.iter().map(|&id| self.params.get(id).copy()).collect()
        }
    }

    /// Textbook AdamW in f64, element by element.
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
        // The first step's moment is a tenth of the clipped gradient.
        let moment = |b: &Bench| {
            b.optimizer.kept()[0].iter().map(|m| m.square().sum(Kind::Double).double_value(&[])).sum::<f64>().sqrt()
        };
        assert!((moment(&bench) - 0.1).abs() < 1e-6);
        let mut bench = self::bench(AdamWSettings { clip: 1.0, ..SETTINGS });
        bench.fill(2);
        bench.step(1e6, 1e-3);
        assert!(moment(&bench) < 1e-4);
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        for bad in [f64::NAN, f64::INFINITY] {
            let mut bench = bench(SETTINGS);
            bench.fill(1);
            bench.step(1.0, 1e-2);
            let before = bench.values();
            let state = copies(&bench);
            bench.fill(2);
            let _ = bench.grads.view(bench.ids[1]).shallow_clone().fill_(bad);
            let stats = bench.step(1.0, 1e-2);
            assert_eq!(stats.taken.raw().double_value(&[]), 0.0);
            assert!(before.iter().zip(bench.values()).all(|(a, b)| *a == b));
            assert!(state.iter().all(|(name, raw)| copies(&bench)[name] == *raw));
            assert_eq!((bench.optimizer.steps().unwrap(), bench.optimizer.skipped().unwrap()), (1, 1));
        }
    }

    #[test]
    fn the_average_of_the_pass_is_that_after_it() {
        let [mut one, mut two] = [bench(SETTINGS), bench(SETTINGS)];
        let [within, after] = [&one, &two].map(|bench| Ema::new(&bench.weights, 0.9).unwrap());
        for (t, bad) in [0.0, 0.0, f64::NAN, 0.0].into_iter().enumerate() {
            for bench in [&mut one, &mut two] {
                bench.fill(t as i64);
                let _ = tch::no_grad(|| bench.grads.view(bench.ids[0]).shallow_clone().f_add_scalar_(bad)).unwrap();
            }
            one.averaged_step(Some(&within), 4.0, 1e-2);
            let stats = two.step(4.0, 1e-2);
            after.update(&Cx::train(&two.params, 0, 0), &two.weights, &stats.taken).unwrap();
            assert!(one.values().iter().zip(two.values()).all(|(a, b)| *a == b), "step {t}");
            assert!(within.kept().iter().zip(after.kept()).all(|(a, b)| a == b), "step {t}");
            assert_eq!(within.updates(), after.updates(), "step {t}");
        }
        assert_eq!(within.updates().double_value(&[]), 3.0);
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
