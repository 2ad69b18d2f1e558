//! Where a step's time goes. Run by hand:
//! `cargo test --release -p enn-worker --test cpu -- --ignored --nocapture --test-threads=1 gradcheck::speed`.

use enn_common::config::{model::ModelConfig, train::TrainConfig};
use enn_common::staged::meta::{FeatureMeta, Stats};
use enn_worker::autograd::Cx;
use enn_worker::backend::Outs;
use enn_worker::error::OpErrorKind;
use enn_worker::kernel::{FirstFit, Launcher};
use enn_worker::loss::Objective;
use enn_worker::model::{Head, Model, ModelSpec};
use enn_worker::op::Op;
use enn_worker::op::row::Launch;
use enn_worker::params::{GradBuckets, ParamBuilder};
use nix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tch::{Device, Kind, Tensor};

/// Processor time of this thread, which other processes on the machine do not add to.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// Counts calls and time per operation.
struct Timed(Mutex<Costs>);

type Costs = BTreeMap<&'static str, (u32, Duration)>;

static TIMED: Timed = Timed(Mutex::new(BTreeMap::new()));

impl Launcher for Timed {
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
        let start = now();
        let outs = FirstFit.launch(op, l);
        let mut table = self.0.lock().unwrap();
        let entry = table.entry(op.name()).or_default();
        entry.0 += 1;
        entry.1 += now() - start;
        outs
    }
}

#[test]
#[ignore = "a measurement; run alone on an idle machine"]
fn where_a_step_of_the_default_model_spends_its_time() {
    tch::set_num_threads(1);
    let stats = Stats { n: 700, mean: 0.0, std: 1.0, min: -3.0, max: 3.0 };
    let feature = |i| FeatureMeta { name: format!("f{i}"), ..FeatureMeta::default() };
    let spec = ModelSpec {
        features: (0..300).map(feature).collect(),
        out_shape: vec![3, 4, 24],
        train_rows: 700,
        x_stats: vec![stats; 300],
        y_stats: vec![stats; 288],
        head: Head::Point,
    };
    let mut pb = ParamBuilder::new();
    let model = Model::build(&ModelConfig::default(), &spec, &mut pb).unwrap();
    let params = pb.build(1, Device::Cpu).unwrap();
    let mut grads = GradBuckets::new(&params).unwrap();
    let objective = Objective::new(&TrainConfig::default());
    let cpu = (Kind::Float, Device::Cpu);
    let x = Tensor::randn([32, 300], cpu);
    let y = Tensor::randn([32, 288], cpu);
    let x_mask = x.isfinite();
    let y_mask = y.isfinite();
    let mut best = (f64::MAX, f64::MAX);
    for round in 0..8 {
        grads.zero().unwrap();
        let timed = round == 7;
        let start = now();
        let mut cx = Cx::train(&params, 1, round);
        if timed {
            cx.set_launcher(&TIMED);
        }
        let input = |t: &Tensor| cx.input(t.shallow_clone());
        let output = model.forward(&cx, &input(&x), &input(&x_mask)).unwrap();
        let targets = model.targets(&cx, &input(&y), &input(&y_mask)).unwrap();
        let loss = objective.forward(&cx, &output, &targets).unwrap();
        let forward = (now() - start).as_secs_f64() * 1e3;
        cx.backward(&loss.sum, &grads, &mut |_, _| Ok(())).unwrap();
        let whole = (now() - start).as_secs_f64() * 1e3;
        if timed {
            let (records, flops) = cx.with_program(|p| (p.recs().len(), p.flops()));
            println!("{} parameters, {records} records, {:.2} GFLOP", params.numel(), flops as f64 / 1e9);
        } else {
            best = (f64::min(best.0, forward), f64::min(best.1, whole));
        }
    }
    println!("forward {:.2} ms, with backward {:.2} ms", best.0, best.1);
    let mut rows: Vec<_> = TIMED.0.lock().unwrap().iter().map(|(name, (n, time))| (*time, *n, *name)).collect();
    rows.sort_unstable();
    let total: Duration = rows.iter().map(|r| r.0).sum();
    println!("launches {:.2} ms", total.as_secs_f64() * 1e3);
    for (time, calls, name) in rows.iter().rev().take(24) {
        println!("{:>24} {calls:>5} calls {:>8.3} ms", name, time.as_secs_f64() * 1e3);
    }
    assert!(grads.buckets().all(|(_, flat)| flat.isfinite().all().int64_value(&[]) == 1));
}
