//! The sizes, batch and learning rate of a new run: chosen by what the data will cost, kept in the run's configuration, and told.

use crate::{Error, run_dir::RunDir, ui::figures};
use enn_common::{
    config::{RunConfig, effort::Estimate, train::Device},
    event::What,
    staged::StagedMeta,
};

/// The configuration with what follows from the data, as the run keeps it; `tell` hears what was chosen.
///
/// # Errors
/// When the run's configuration cannot be written.
pub(super) fn settled(
    config: &RunConfig,
    run: &RunDir,
    meta: &StagedMeta,
    tell: impl FnOnce(What),
) -> Result<RunConfig, Error> {
    let data = (meta.split_rows[0], meta.features.len(), meta.out_shape.as_slice());
    let settled = config.settled(data.0, data.1, data.2);
    if settled != *config {
        run.write_config(&settled)?;
    }
    tell(What::Decided { decision: sentence(config, &settled, data) });
    Ok(settled)
}

/// What was chosen, by what, and what it will take.
fn sentence(config: &RunConfig, settled: &RunConfig, (rows, inputs, out_shape): (u64, usize, &[usize])) -> String {
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
        figures::count(batch),
        settled.train.lr,
        figures::plural(settled.train.passes(rows), "epoch")
    );
    let memory = figures::bytes(estimate.step_bytes as u64);
    match settled.cluster.device {
        Device::Cuda => format!("{sizes}; {work}; about {memory} a step"),
        _ => {
            format!("{sizes}; {work}; about {} on two cores, {memory} a step", figures::seconds(estimate.seconds))
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
        let data = (70_000, 10, [1].as_slice());
        let open = config("");
        let told = sentence(&open, &open.settled(70_000, 10, &[1]), data);
        assert!(
            told.starts_with("sizes chosen by the data: width 32, 1 and 1 blocks, 16 latents; batch 64, "),
            "{told}"
        );
        assert!(told.contains(" on two cores, ") && told.ends_with(" a step") && !told.contains('\n'), "{told}");
        let named = config("[model]\nd_model = 64\n[train]\nbatch = 256\nepochs = 1\n");
        let told = sentence(&named, &named.settled(70_000, 10, &[1]), data);
        assert!(
            told.starts_with(
                "sizes as configured: width 64, 4 and 4 blocks, 64 latents; batch 256, rate 0.001, 1 epoch;"
            ),
            "{told}"
        );
    }
}
