//! How long one optimizer step takes: forward, backward, clip, AdamW and, where training has one, the average of the weights.
//!
//! `tests/bench/gpu_step.py` runs it beside the same models in PyTorch. Prints one line of JSON.

#![expect(clippy::print_stdout, reason = "its one line of output is its result")]

#[path = "../gpt"]
mod gpt {
    pub(crate) mod layer;
    #[expect(dead_code, reason = "the bench uses some of the example")]
    pub(crate) mod model;
}
mod subject;

use clap::Parser;
use enn_worker::{
    autograd::{Cx, Executor, Mode, Program, Request},
    error::OpError,
    functional as f,
    kernel::FirstFit,
    optim::{AdamW, AdamWSettings, Ema, FlatParams},
    params::{GradBuckets, ParamBuilder, Params},
    session::torchrun::{DeviceChoice, join},
    tch::{Cuda, Device, Kind, Tensor},
};
use serde_json::{Value, json};
use std::{error::Error, path::PathBuf, time::Instant};
use subject::Subject;

/// Parts the measured steps are cut into; each is timed from one standstill of the device to the next.
const GROUPS: u64 = 6;
const RATE: f64 = 1e-4;

/// Times steps of one model.
#[derive(Parser)]
struct Settings {
    /// File with the sizes of models.
    #[arg(long, default_value = "tests/bench/sizes.json")]
    sizes: PathBuf,
    /// Which of them.
    #[arg(long)]
    model: String,
    /// Samples of the batch, instead of the model's.
    #[arg(long)]
    batch: Option<i64>,
    /// cpu or cuda.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// fp32.
    #[arg(long, default_value = "fp32")]
    precision: String,
    /// tape: every step runs the model's code; plan: the recorded step runs; graph: its captured graph is launched.
    #[arg(long, default_value = "tape")]
    mode: String,
    /// Steps that are timed.
    #[arg(long, default_value_t = 30)]
    steps: u64,
    /// Steps before.
    #[arg(long, default_value_t = 10)]
    warm_up: u64,
    /// Threads of one operation on the CPU; 0 leaves it to libtorch.
    #[arg(long, default_value_t = 0)]
    threads: i32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let settings = Settings::parse();
    known("--precision", &settings.precision, &["fp32"])?;
    known("--mode", &settings.mode, &["tape", "plan", "graph"])?;
    known("--device", &settings.device, &["cpu", "cuda"])?;
    if settings.threads > 0 {
        enn_worker::tch::set_num_threads(settings.threads);
    }
    let device = join(if settings.device == "cuda" { DeviceChoice::Cuda } else { DeviceChoice::Cpu })?.device;
    let sizes: Value = serde_json::from_slice(&std::fs::read(&settings.sizes)?)?;
    let sizes = &sizes[&settings.model];
    let batch = settings.batch.or_else(|| sizes["batch"].as_i64()).ok_or("no such model in the file of sizes")?;
    let modes = [Mode::Tape, Mode::Plan, Mode::Graph];
    let mode = modes.into_iter().find(|mode| mode.name() == settings.mode).unwrap_or(Mode::Tape);
    let mut trainer = Trainer::new(sizes, batch, device, mode)?;
    let found = measure(&mut trainer, &settings, device)?;
    let about = json!({
        "model": settings.model, "batch": batch, "device": settings.device, "precision": settings.precision,
        "mode": settings.mode, "parameters": trainer.params.numel(),
    });
    println!("{}", json!({ "about": about, "result": found }));
    Ok(())
}

/// Refuses what is not built yet rather than measure something else under its name.
fn known(flag: &str, found: &str, possible: &[&str]) -> Result<(), String> {
    let words = possible.join(" or ");
    if possible.contains(&found) { Ok(()) } else { Err(format!("{flag} is {found}, expected {words}")) }
}

fn measure(trainer: &mut Trainer, settings: &Settings, device: Device) -> Result<Value, Box<dyn Error>> {
    for number in 0..settings.warm_up {
        trainer.step(number)?;
    }
    let per_group = (settings.steps / GROUPS).max(1);
    let mut ms = Vec::new();
    for group in 0..GROUPS {
        stand_still(device);
        let start = Instant::now();
        for number in 0..per_group {
            trainer.step(settings.warm_up + group * per_group + number)?;
        }
        stand_still(device);
        ms.push(start.elapsed().as_secs_f64() * 1e3 / per_group as f64);
    }
    if trainer.mode != settings.mode {
        let why = trainer.executor.refusal().unwrap_or("too few steps before, or not on a GPU");
        return Err(format!("the last step ran as {}, not as {}: {why}", trainer.mode, settings.mode).into());
    }
    let first = ms.clone();
    ms.sort_by(f64::total_cmp);
    let (flops, operations) = trainer.cost()?;
    Ok(json!({
        "ms": f64::midpoint(ms[ms.len() / 2 - 1], ms[ms.len() / 2]), "groups": first, "steps": per_group * GROUPS,
        "loss": trainer.loss()?, "flops": flops, "operations": operations,
    }))
}

fn stand_still(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}

/// Everything a step changes.
struct Trainer {
    subject: Subject,
    params: Params,
    grads: GradBuckets,
    weights: FlatParams,
    optimizer: AdamW,
    average: Option<Ema>,
    executor: Executor,
    rate: Tensor,
    last: Vec<Tensor>,
    mode: &'static str,
}

impl Trainer {
    fn new(sizes: &Value, batch: i64, device: Device, mode: Mode) -> Result<Self, Box<dyn Error>> {
        let mut pb = ParamBuilder::new();
        let subject = Subject::new(sizes, batch, device, &mut pb)?;
        let params = pb.build(1, device)?;
        let grads = GradBuckets::new(&params)?;
        let weights = FlatParams::of(&params);
        let settings = AdamWSettings { betas: (0.9, 0.95), weight_decay: 0.1, clip: 1.0 };
        let optimizer = AdamW::new(&weights, settings)?;
        let average = if subject.averages() { Some(Ema::new(&weights, 0.98)?) } else { None };
        let rate = Tensor::from(RATE).to_device(device);
        let (executor, last) = (Executor::new(mode), Vec::new());
        Ok(Self { subject, params, grads, weights, optimizer, average, executor, rate, last, mode: "" })
    }

    fn step(&mut self, number: u64) -> Result<(), OpError> {
        let Self { subject, params, grads, weights, optimizer, average, executor, rate, .. } = self;
        let mut inputs = subject.batch();
        inputs.push(rate.shallow_clone());
        let request = Request {
            leaves: params,
            seed: 1,
            step: number,
            launcher: &FirstFit,
            collectives: None,
            inputs,
            watch: None,
        };
        let ran = executor.step(request, |cx, inputs| {
            let Some((rate, batch)) = inputs.split_last() else { unreachable!("the rate is the last input") };
            cx.zero(grads.buckets().map(|(_, flat)| flat))?;
            let (loss, count) = subject.loss(cx, batch)?;
            cx.backward(&loss, grads, &mut |_, _| Ok(()))?;
            optimizer.step(cx, grads, &count, rate)?;
            if let Some(average) = average {
                average.update(cx, weights)?;
            }
            let sum = f::cast(cx, &loss, Kind::Double)?;
            Ok::<_, OpError>(vec![f::div(cx, &sum, &count)?])
        })?;
        (self.last, self.mode) = (ran.outputs, ran.mode.name());
        Ok(())
    }

    /// The last step's mean loss.
    fn loss(&self) -> Result<f64, Box<dyn Error>> {
        Ok(self.last.first().ok_or("no step was made")?.f_double_value(&[])?)
    }

    /// Floating-point operations of forward and backward, and recorded operations.
    fn cost(&self) -> Result<(u64, usize), OpError> {
        let cx = Cx::train(&self.params, 1, 0);
        let batch: Vec<_> = self.subject.batch().into_iter().map(|raw| cx.input(raw)).collect();
        let (loss, _) = self.subject.loss(&cx, &batch)?;
        cx.backward(&loss, &self.grads, &mut |_, _| Ok(()))?;
        Ok((cx.with_program(Program::flops), cx.with_program(|program| program.recs().len())))
    }
}
