//! The training of a run as a plain loop: one process without a launcher, a socket or a control page. `plain_loop RUN
//! STAGED FOLDER` trains on the CPU by RUN/run.json until it is terminated; FOLDER/pages/PID holds the number of
//! optimizer steps, where a control page has it. `tests/bench/elastic_overhead.py` runs it beside `enn train`.

use enn_common::{
    config::RunConfig,
    wire::{
        client::ClientError,
        control::{PAGE_BYTES, Phase},
        message::FromWorker,
    },
};
use enn_worker::{
    block::SubModels,
    comm::Solo,
    session::{KernelTask, Reporter, RoundTask, TrainTask, train},
};
use std::{env, error::Error, fs, os::unix::fs::FileExt, path::PathBuf};
use tch::Device;

/// Offset of the number of optimizer steps, in bytes.
const STEP_AT: u64 = 16;

/// Discards messages and writes the step to a file.
struct Page(fs::File);

impl Reporter for Page {
    fn send(&self, _: FromWorker) -> Result<(), ClientError> {
        Ok(())
    }

    fn mark(&self, _: Phase, step: u64) {
        // A failed write shows no step, which the reader of the file reports.
        let _unseen = self.0.write_all_at(&step.to_le_bytes(), STEP_AT);
    }

    fn stop_requested(&self) -> bool {
        false
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [run, staged, folder] = &paths[..] else { return Err("usage: plain_loop RUN STAGED FOLDER".into()) };
    let config: RunConfig = serde_json::from_slice(&fs::read(run.join("run.json"))?)?;
    tch::set_num_threads(1);
    let pages = folder.join("pages");
    fs::create_dir_all(&pages)?;
    let page = fs::File::create(pages.join(std::process::id().to_string()))?;
    page.set_len(PAGE_BYTES as u64)?;
    let task = TrainTask {
        staged: staged.clone(),
        checkpoints: folder.join("checkpoints"),
        device: Device::Cpu,
        kernels: KernelTask::default(),
        models: SubModels::new(),
        round: RoundTask::default(),
    };
    train(&config, &task, &Page(page), &Solo)?;
    Ok(())
}
