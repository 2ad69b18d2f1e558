//! A replayed step computes what the recorded one computed, bit for bit.

use crate::again;
use enn_worker::autograd::{Cx, Executor, Leaves, Mode, Phase, Request, Tensor as Traced};
use enn_worker::backend::graph::{memory, use_own_stream};
use enn_worker::error::OpError;
use enn_worker::functional as f;
use enn_worker::kernel::{FirstFit, Launcher, Manager};
use enn_worker::op::aten::AtenArg;
use enn_worker::optim::{AdamW, AdamWSettings, Ema, FlatParams};
use enn_worker::params::{GradBuckets, Group, Init, ParamBuilder, ParamId, Params};
use enn_worker::precision::Autocast;
use std::cell::Cell;
use tch::{Device, Kind, Tensor};

struct Bench {
    params: Params,
    grads: GradBuckets,
    weights: FlatParams,
    optimizer: AdamW,
    ema: Ema,
    ids: [ParamId; 3],
    recompute: bool,
    executor: Executor,
    /// How often the code ran.
    calls: Cell<u32>,
    launcher: Box<dyn Launcher>,
    autocast: Option<Autocast>,
}

fn bench(limit: Mode) -> Bench {
    bench_on(limit, Device::Cpu)
}

fn bench_on(limit: Mode, device: Device) -> Bench {
    let mut b = ParamBuilder::new();
    let w = b.param("w", &[5, 4], Init::Linear { fan_in: 4 }, Group::Decay);
    let bias = b.param("b", &[5], Init::Linear { fan_in: 4 }, Group::NoDecay);
    let out = b.param("out", &[1, 5], Init::Linear { fan_in: 5 }, Group::Decay);
    let params = b.build(9, device).unwrap();
    let grads = GradBuckets::new(&params).unwrap();
    let weights = FlatParams::of(&params);
    let settings = AdamWSettings { betas: (0.9, 0.99), weight_decay: 0.1, clip: 0.5 };
    let optimizer = AdamW::new(&weights, settings).unwrap();
    let ema = Ema::new(&weights, 0.9).unwrap();
    let ids = [w, bias, out];
    Bench {
        params,
        grads,
        weights,
        optimizer,
        ema,
        ids,
        recompute: false,
        executor: Executor::new(limit),
        calls: Cell::new(0),
        launcher: Box::new(FirstFit),
        autocast: None,
    }
}

/// Two micro-batches with dropout, clipped AdamW, averaged weights.
fn code(bench: &Parts<'_>, cx: &Cx<'_>, inputs: &[Traced]) -> Result<Vec<Traced>, OpError> {
    bench.calls.set(bench.calls.get() + 1);
    let [x, y, rate] = inputs else { panic!("three inputs") };
    cx.set_recompute(bench.recompute);
    cx.set_autocast(bench.autocast.clone())?;
    cx.zero(bench.grads.buckets().map(|(_, flat)| flat))?;
    let mut sum: Option<Traced> = None;
    for micro in 0..2 {
        cx.set_rows(4 * micro, 4);
        let cut = |t: &Traced| f::narrow(cx, t, 0, 4 * micro as i64, 4);
        let [w, bias, out] = bench.ids.map(|id| cx.param(id));
        let hidden = cx.part(|cx| {
            let wide = f::gelu(cx, &f::linear(cx, &cut(x)?, &w, Some(&bias))?, false)?;
            // An operator that has no row of its own.
            let along = vec![AtenArg::Operand, AtenArg::Int(-1), AtenArg::None];
            let sums = f::aten(cx, "aten::cumsum", "", along, &[&wide])?.swap_remove(0);
            f::dropout(cx, &sums, 0.3)
        })?;
        let z = f::linear(cx, &hidden, &out, None)?;
        let loss = f::sum_all(cx, &f::square(cx, &f::sub(cx, &z, &cut(y)?)?)?)?;
        cx.backward(&loss, bench.grads, &mut |_, _| Ok(()))?;
        let part = f::cast(cx, &f::detach(cx, &loss)?, Kind::Double)?;
        sum = Some(match sum {
            None => part,
            Some(sum) => f::add(cx, &sum, &part)?,
        });
    }
    let count = f::sum_all(cx, &f::ones(cx, &[8], Kind::Double)?)?;
    let norm = bench.optimizer.complete(cx, bench.grads)?;
    let stats = bench.optimizer.step(cx, bench.grads, Some(bench.ema), &norm, &count, rate)?;
    Ok(vec![sum.unwrap(), stats.grad_norm])
}

struct Parts<'a> {
    grads: &'a GradBuckets,
    optimizer: &'a AdamW,
    ema: &'a Ema,
    ids: [ParamId; 3],
    recompute: bool,
    calls: &'a Cell<u32>,
    autocast: &'a Option<Autocast>,
}

/// Libtorch's generator is shared with the tests beside this one.
fn numbers(rows: i64, columns: i64, seed: f64) -> Tensor {
    let index = Tensor::arange(rows * columns, (Kind::Float, Device::Cpu));
    ((index + seed) * 12.9898).sin().view([rows, columns]) * 2.0
}

impl Bench {
    fn step(&mut self, step: u64, rows: i64) -> (Vec<Tensor>, Mode) {
        let inputs = [
            numbers(rows, 4, step as f64),
            numbers(rows, 1, step as f64 + 0.5),
            Tensor::from(1e-2 / (1.0 + step as f64)),
        ];
        let inputs = inputs.iter().map(|x| x.to_device(self.params.device())).collect();
        let parts = Parts {
            grads: &self.grads,
            optimizer: &self.optimizer,
            ema: &self.ema,
            ids: self.ids,
            recompute: self.recompute,
            calls: &self.calls,
            autocast: &self.autocast,
        };
        let request = Request {
            leaves: &self.params,
            seed: 3,
            step,
            launcher: &*self.launcher,
            collectives: None,
            inputs,
            watch: None,
            observer: None,
        };
        let ran = self.executor.step(request, |cx, inputs| code(&parts, cx, inputs)).unwrap();
        (ran.outputs.iter().map(Tensor::copy).collect(), ran.mode)
    }

    fn state(&self) -> Vec<Tensor> {
        let mut all: Vec<Tensor> = self.weights.slabs().iter().map(Tensor::copy).collect();
        all.extend(self.optimizer.named(&self.weights).into_iter().map(|(_, raw)| raw.copy()));
        all.extend(self.ema.named(&self.weights).into_iter().map(|(_, raw)| raw.copy()));
        all
    }
}

#[test]
fn tape_and_plan_give_the_same_bits() {
    let mut tape = bench(Mode::Tape);
    let mut plan = bench(Mode::Plan);
    for step in 0..12 {
        // Another shape in between begins anew and leaves the first plan ready.
        let rows = if (5..8).contains(&step) { 9 } else { 8 };
        let recorded = tape.step(step, rows);
        let replayed = plan.step(step, rows);
        assert_eq!(recorded.1, Mode::Tape);
        let expected = if [0, 1, 5, 6].contains(&step) { Mode::Tape } else { Mode::Plan };
        assert_eq!(replayed.1, expected, "step {step}");
        assert_eq!(recorded.0, replayed.0, "step {step}");
        assert_eq!(tape.state(), plan.state(), "step {step}");
    }
    assert_eq!((tape.calls.get(), plan.calls.get()), (12, 4));
}

#[test]
fn on_a_gpu_a_captured_step_has_the_bits_of_its_code() {
    let Some(device) = gpu() else { return };
    let mut tape = bench_on(Mode::Tape, device);
    let mut graph = bench_on(Mode::Graph, device);
    for step in 0..12 {
        let recorded = tape.step(step, 8);
        let replayed = graph.step(step, 8);
        let expected = [Mode::Tape, Mode::Plan, Mode::Graph][(usize::from(step > 1)) + usize::from(step > 4)];
        assert_eq!(
            (recorded.1, replayed.1),
            (Mode::Tape, expected),
            "step {step}: {:?}",
            graph.executor.fallback_reason()
        );
        assert_eq!(recorded.0, replayed.0, "step {step}");
        assert_eq!(tape.state(), graph.state(), "step {step}");
    }
}

/// One that waits for the device to say that a matrix has an inverse, its reverse that does so too, and a product with a number on the
/// host: they run between the graphs, and the number is that of the step.
#[test]
fn on_a_gpu_what_no_graph_holds_runs_between_graphs() {
    let Some(device) = gpu() else { return };
    let mut b = ParamBuilder::new();
    let w = b.param("w", &[4, 4], Init::Linear { fan_in: 4 }, Group::Decay);
    let params = b.build(9, device).unwrap();
    let grads = GradBuckets::new(&params).unwrap();
    let eye = Tensor::eye(4, (Kind::Float, device));
    let code = |cx: &Cx<'_>, inputs: &[Traced]| {
        let [x, factor] = inputs else { panic!("two inputs") };
        cx.zero(grads.buckets().map(|(_, flat)| flat))?;
        let w = cx.param(w);
        let square = f::add(cx, &f::linear(cx, &w, &w, None)?, &cx.constant(eye.shallow_clone()))?;
        let checked = vec![AtenArg::Operand, AtenArg::Bool(true)];
        let inverse = f::aten(cx, "aten::linalg_inv_ex", "", checked, &[&square])?.swap_remove(0);
        let y = f::mul(cx, &f::linear(cx, x, &inverse, None)?, factor)?;
        let loss = f::sum_all(cx, &f::square(cx, &y)?)?;
        cx.backward(&loss, &grads, &mut |_, _| Ok(()))?;
        Ok::<_, OpError>(vec![loss])
    };
    let run = |executor: &mut Executor, step: u64| {
        let request = Request {
            leaves: &params,
            seed: 3,
            step,
            launcher: &FirstFit,
            collectives: None,
            inputs: vec![numbers(8, 4, step as f64).to_device(device), Tensor::from(1.0 + step as f32)],
            watch: None,
            observer: None,
        };
        let ran = executor.step(request, code).unwrap();
        let made = ran.outputs.iter().chain(grads.buckets().map(|(_, flat)| flat)).map(Tensor::copy);
        (made.collect::<Vec<_>>(), ran.mode)
    };
    let mut tape = Executor::new(Mode::Tape);
    let mut graph = Executor::new(Mode::Graph);
    let mut modes = Vec::new();
    for step in 0..16 {
        let recorded = run(&mut tape, step);
        let replayed = run(&mut graph, step);
        assert_eq!(recorded.0, replayed.0, "step {step}: {:?}", graph.fallback_reason());
        modes.push(replayed.1);
    }
    assert_eq!(modes[2..5], [Mode::Plan; 3]);
    // Graphs in pieces may take longer than the record: then they are given up, which is said.
    let said = graph.fallback_reason().unwrap();
    assert!(modes.contains(&Mode::Graph) && said.contains("runs"), "{modes:?}: {said}");
    eprintln!("{modes:?}: {said}");
}

/// The first GPU, with a stream that can be captured; says so if there is none.
fn gpu() -> Option<Device> {
    if !tch::Cuda::is_available() {
        eprintln!("skipped: no CUDA device");
        return None;
    }
    use_own_stream(0).unwrap();
    Some(Device::Cuda(0))
}

#[test]
fn what_is_computed_again_has_the_same_bits() {
    let mut kept = bench(Mode::Plan);
    let mut again = bench(Mode::Plan);
    again.recompute = true;
    for step in 0..5 {
        assert_eq!(kept.step(step, 8).0, again.step(step, 8).0, "step {step}");
        assert_eq!(kept.state(), again.state(), "step {step}");
    }
    let count = |bench: &mut Bench| {
        let plan = bench.executor.plan().unwrap();
        plan.program().recs().iter().filter(|rec| rec.phase == Phase::Recompute).count()
    };
    assert_eq!(
        (count(&mut kept), count(&mut again)),
        (0, 2 * 5),
        "narrow, linear, gelu, cumsum, dropout of two micro-batches"
    );
}

#[test]
fn a_plan_has_the_programs_hash_and_shows_every_record() {
    let mut bench = bench(Mode::Plan);
    (0..3).for_each(|step| drop(bench.step(step, 8)));
    let plan = bench.executor.plan().unwrap();
    assert_eq!(plan.hash(), plan.program().hash());
    let records = plan.program().recs().len();
    let mut seen = Vec::new();
    let inputs = [numbers(8, 4, 0.0), numbers(8, 1, 0.0), Tensor::from(0.0)];
    plan.run(
        &inputs,
        3,
        None,
        Some(&mut |record| {
            assert_eq!(record.ins.len(), record.rec.ins.len());
            assert_eq!(record.outs.len(), record.rec.outs as usize);
            seen.push(record.at);
            Ok(())
        }),
    )
    .unwrap();
    assert_eq!(seen, (0..records).collect::<Vec<_>>());
}

#[test]
fn an_input_entered_during_the_step_keeps_the_tape_and_says_why() {
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let mut executor = Executor::new(Mode::Plan);
    for step in 0..5 {
        let request = Request {
            leaves: &params,
            seed: 0,
            step,
            launcher: &FirstFit,
            collectives: None,
            inputs: vec![Tensor::from(1.0_f32)],
            watch: None,
            observer: None,
        };
        let ran = executor.step(request, |cx, inputs| {
            let stray = cx.input(Tensor::from(step as f32));
            Ok::<_, OpError>(vec![f::add(cx, &inputs[0], &stray)?])
        });
        let ran = ran.unwrap();
        assert_eq!((ran.mode, ran.outputs[0].double_value(&[])), (Mode::Tape, 1.0 + step as f64));
    }
    assert!(executor.fallback_reason().unwrap().contains("declare it as an input"), "{:?}", executor.fallback_reason());
}

/// Resident memory of this process.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Memory of device 0 that is taken.
fn device_bytes() -> u64 {
    let (free, total) = memory(0).unwrap();
    total - free
}

/// Tests beside this one take memory too, so the steps are done in a process of their own.
fn alone(test: &str) {
    again::alone(again::command(module_path!(), test));
}

#[test]
fn ten_thousand_steps_take_no_more_memory_than_five_thousand() {
    alone("many_steps");
}

#[test]
fn on_a_gpu_ten_thousand_steps_take_no_more_memory_than_five_thousand() {
    if gpu().is_some() {
        alone("many_steps_of_a_device");
    }
}

#[test]
#[ignore = "the part of a process of its own; a test above starts it"]
fn many_steps() {
    // Tensors this small: more threads would only wait for each other.
    tch::set_num_threads(1);
    for limit in [Mode::Tape, Mode::Plan] {
        many(bench(limit));
    }
}

#[test]
#[ignore = "the part of a process of its own; a test above starts it"]
fn many_steps_of_a_device() {
    let device = gpu().unwrap();
    let taken = [Mode::Tape, Mode::Plan, Mode::Graph].map(|limit| {
        many(bench_on(limit, device));
        device_bytes()
    });
    assert!(taken[2] < taken[0] + (64 << 20), "the device's memory grew with the benches: {taken:?}");
}

fn many(mut bench: Bench) {
    // 100 bytes a step, less than any tensor.
    const GROWTH_MAX: u64 = 500 << 10;
    const STEPS: u64 = 10_000;
    bench.launcher = Box::new(Manager::default());
    bench.autocast = Some(Autocast::bf16());
    let cuda = bench.params.device().is_cuda();
    let on_device = || if cuda { device_bytes() } else { 0 };
    let mut early = 0;
    let mut early_there = 0;
    let mut last = Mode::Tape;
    for step in 0..STEPS {
        last = bench.step(step, 8).1;
        if step == STEPS / 2 {
            early = resident_bytes();
            early_there = on_device();
        }
    }
    let grown = resident_bytes().saturating_sub(early);
    assert!(grown < GROWTH_MAX, "{last:?}: {grown} bytes in {} steps", STEPS / 2);
    // The driver's own grows a little; libtorch takes no less than 2 MiB at once.
    assert!(on_device() < early_there + (2 << 20), "{last:?}: {early_there} bytes of the device, then {}", on_device());
}
