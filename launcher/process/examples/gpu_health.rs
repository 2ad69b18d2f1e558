//! Prints what the node agent finds out about the GPUs of this node: `cargo run -p enn-process --example gpu_health`.

#![expect(clippy::print_stdout, reason = "a program for people")]

use enn_process::devices::{GpuWatch, gpus_with_health};
use std::time::{Duration, Instant};

fn main() {
    let began = Instant::now();
    let gpus = gpus_with_health(Duration::from_secs(60)).unwrap_or_default();
    println!("{} GPUs, read in {:?}", gpus.len(), began.elapsed());
    for (gpu, health) in &gpus {
        println!("{gpu}, {:?}: {health:?}", gpu.model);
    }
    let workers = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let watch = GpuWatch::start(None, workers);
    for local_rank in 0..=workers {
        let began = Instant::now();
        let finding = watch.look(local_rank, Duration::from_secs(10));
        println!("worker {local_rank}: {finding:?}, in {:?}", began.elapsed());
    }
}
