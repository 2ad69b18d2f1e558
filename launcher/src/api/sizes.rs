//! Model sizes, batch and learning rate of a new run: chosen by the estimated cost of the data, written to the run's configuration, and
//! reported.

use crate::Error;
use enn_common::{
    config::{RunConfig, effort::Estimate, train::Device},
    event::EventKind,
    staged::StagedMeta,
};
use enn_process::run_dir::RunDir;
use enn_ui::format;

/// Returns the configuration with the values that follow from the data, and writes it to the run; the choice is sent to `emit`.
///
/// # Errors
/// The run's configuration cannot be written.
pub(super) fn settled(
    config: &RunConfig,
    run: &RunDir,
    meta: &StagedMeta,
    emit: impl FnOnce(EventKind),
) -> Result<RunConfig, Error> {
    let rows = meta.split_rows[0];
    let inputs = meta.features.len();
    let out_shape = meta.out_shape.as_slice();
    let settled = config.settled(rows, inputs, out_shape);
    if settled != *config {
        run.write_config(&settled)?;
    }
    emit(EventKind::Decided { decision: sentence(config, &settled, rows, inputs, out_shape) });
    Ok(settled)
}

/// Describes the sizes, how they were chosen, and the cost of training.
fn sentence(config: &RunConfig, settled: &RunConfig, rows: u64, inputs: usize, out_shape: &[usize]) -> String {
    let model = settled.model.sized(rows, out_shape);
    let estimate = Estimate::of(settled, rows, inputs, out_shape);
    let who = if config.model.by_rows { "chosen by the data" } else { "as configured" };
    let sizes = format!(
        "sizes {who}: width {}, {} and {} blocks, {} latents",
        model.d_model, model.spatial_depth, model.temporal_depth, model.fuser_latents
    );
    let batch = settled.train.global_batch(rows as usize) as u64;
    let work = format!(
        "batch {}, rate {}, {}",
        format::count(batch),
        settled.train.lr,
        format::plural(settled.train.passes(rows), "epoch")
    );
    let memory = format::bytes(estimate.step_bytes as u64);
    match settled.cluster.device {
        Device::Cuda => format!("{sizes}; {work}; about {memory} a step"),
        _ => {
            format!("{sizes}; {work}; about {} on two cores, {memory} a step", format::seconds(estimate.seconds))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::config::{facts::Facts, raw::RawConfig, resolve};

    fn config(text: &str) -> RunConfig {
        let raw = RawConfig::parse(text, std::path::Path::new("a.toml")).unwrap();
        resolve(&raw, &Facts { cores: 2, gpus: 0, cuda_worker: false, cwd: "/home/u".into() }).unwrap()
    }

    #[test]
    fn what_was_chosen_and_what_it_takes_is_one_line() {
        let open = config("");
        let told = sentence(&open, &open.settled(70_000, 10, &[1]), 70_000, 10, &[1]);
        assert!(
            told.starts_with("sizes chosen by the data: width 32, 1 and 1 blocks, 16 latents; batch 64, "),
            "{told}"
        );
        assert!(told.contains(" on two cores, ") && told.ends_with(" a step") && !told.contains('\n'), "{told}");
        let named = config("[model]\nd_model = 64\n[train]\nbatch = 256\nepochs = 1\n");
        let told = sentence(&named, &named.settled(70_000, 10, &[1]), 70_000, 10, &[1]);
        assert!(
            told.starts_with(
                "sizes as configured: width 64, 4 and 4 blocks, 64 latents; batch 256, rate 0.001, 1 epoch;"
            ),
            "{told}"
        );
    }
}
