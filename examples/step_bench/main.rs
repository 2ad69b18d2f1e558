//! A benchmark of one optimizer step: forward, backward, clip, AdamW and, where training has one, the average of the weights.
//!
//! `tests/bench/gpu_step.py` runs it beside the same models in PyTorch, `tests/bench/gpu_scaling.py` on several ranks. Rank 0
//! prints one line of JSON for each model and mode.

#[path = "../gpt"]
mod gpt {
    pub(crate) mod layer;
    #[expect(dead_code, reason = "the bench uses some of the example")]
    pub(crate) mod model;
}
mod subject;
mod timing;
mod trainer;

use clap::Parser;
use enn_common::config::train::Precision;
use enn_worker::{
    autograd::Mode,
    session::torchrun::{DeviceChoice, Member, WantedCollectives, join_with},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    error::Error,
    io::{Write, stdout},
    path::PathBuf,
};
use timing::Timing;
use trainer::{Trainer, Work};

/// Times steps of models.
#[derive(Parser)]
struct Settings {
    /// File with the sizes of models.
    #[arg(long, default_value = "tests/bench/sizes.json")]
    sizes: PathBuf,
    /// Which of them; several with commas.
    #[arg(long, value_delimiter = ',', required = true)]
    model: Vec<String>,
    /// Samples of a rank's batch, instead of the model's.
    #[arg(long)]
    batch: Option<i64>,
    /// cpu or cuda.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// fp32, tf32, bf16, fp16 or fp8.
    #[arg(long, default_value = "fp32")]
    precision: String,
    /// tape: every step runs the model's code; plan: the recorded step runs; graph: its captured graph is launched.
    /// Several with commas.
    #[arg(long, value_delimiter = ',', default_value = "tape")]
    mode: Vec<String>,
    /// Steps that are timed.
    #[arg(long, default_value_t = 30)]
    steps: u64,
    /// Steps before.
    #[arg(long, default_value_t = 10)]
    warm_up: u64,
    /// Threads of one operation on the CPU; 0 leaves it to libtorch.
    #[arg(long, default_value_t = 0)]
    threads: i32,
    /// On several ranks: also times steps without all-reduce, and the all-reduces of a step alone.
    #[arg(long)]
    overlap: bool,
    /// On several ranks: how they sum: auto (on GPUs with copy engines where these are linked, on CPUs through shared memory),
    /// nccl, or gloo.
    #[arg(long, default_value = "auto")]
    collectives: String,
    /// Largest bucket of gradients, MiB, instead of the default.
    #[arg(long)]
    bucket_mib: Option<f64>,
    /// Kernels of an operation in the order in which they are tried, as in the table `[kernels]`: OP=KERNEL,…
    #[arg(long, value_parser = order)]
    kernels: Vec<(String, Vec<String>)>,
}

impl Settings {
    /// Returns the orders of kernels in the form of the kernel manager.
    fn orders(&self) -> BTreeMap<String, Vec<String>> {
        self.kernels.iter().cloned().collect()
    }
}

fn order(text: &str) -> Result<(String, Vec<String>), String> {
    let (op, kernels) = text.split_once('=').ok_or("expected OP=KERNEL,…")?;
    Ok((op.to_owned(), kernels.split(',').map(str::to_owned).collect()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let settings = Settings::parse();
    let devices = BTreeMap::from([("cpu", DeviceChoice::Cpu), ("cuda", DeviceChoice::Cuda)]);
    let device = *devices.get(settings.device.as_str()).ok_or("--device: expected cpu or cuda")?;
    let precision: Precision = serde_json::from_value(json!(settings.precision))?;
    let collectives: WantedCollectives = serde_json::from_value(json!(settings.collectives))?;
    if settings.threads > 0 {
        enn_worker::tch::set_num_threads(settings.threads);
    }
    let sizes: Value = serde_json::from_slice(&std::fs::read(&settings.sizes)?)?;
    let place = join_with(device, collectives)?;
    for model in &settings.model {
        for mode in &settings.mode {
            let result = one(&settings, &sizes[model], mode, precision, &place);
            let about = json!({
                "model": model, "device": settings.device, "precision": settings.precision, "mode": mode,
                "world": place.world(),
            });
            let line = match result {
                Ok(found) => json!({ "about": merged(about, &found["about"]), "result": found["result"] }),
                // The other ranks cannot continue without this one.
                Err(error) if place.world() > 1 => return Err(error),
                Err(error) => json!({ "about": about, "error": error.to_string() }),
            };
            if place.leads() {
                let mut out = stdout().lock();
                writeln!(out, "{line}")?;
                out.flush()?;
            }
        }
    }
    Ok(place.leave()?)
}

/// Measures one model in one mode.
fn one(
    settings: &Settings,
    size: &Value,
    mode: &str,
    precision: Precision,
    place: &Member,
) -> Result<Value, Box<dyn Error>> {
    let batch = settings.batch.or_else(|| size["batch"].as_i64()).ok_or("no such model in the file of sizes")?;
    let modes = [Mode::Tape, Mode::Plan, Mode::Graph];
    let found = modes.into_iter().find(|known| known.name() == mode);
    let mode = found.ok_or("--mode: expected tape, plan or graph")?;
    let work = Work { size, batch, mode, precision, orders: settings.orders(), bucket_mib: settings.bucket_mib };
    let mut trainer = Trainer::new(&work, place)?;
    let timing = Timing::new(settings.warm_up, settings.steps, place);
    let mut result = timing.steps(&mut trainer)?;
    if settings.overlap && place.world() > 1 {
        result["all_reduce_bytes"] = json!(trainer.gradient_bytes());
        result["all_reduce_groups"] = json!(timing.all_reduces(&trainer)?);
        trainer.stop_reducing();
        result["without_groups"] = timing.steps(&mut trainer)?["groups"].take();
    }
    let about = json!({
        "batch": batch, "parameters": trainer.parameters(), "backend": place.group.backend(),
        "bucket_mib": settings.bucket_mib,
    });
    Ok(json!({ "about": about, "result": result }))
}

/// Merges the entries of both objects.
fn merged(mut into: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().into_iter().flatten() {
        into[key] = value.clone();
    }
    into
}
