//! Converts a resolved configuration into the specification of an agent.

use crate::{Error, export::Packed, facts::Facts};
use enn_cluster::supervise::{AgentSpec, Contract, NodeSpec, RunJob, RunSettings};
use enn_common::config::{
    RunConfig,
    train::{Device, Nproc, Recovery},
};
use enn_export::{ExportError, Target, maker::aoti};
use enn_process::{WorkerSpec, run_dir::RunDir};
use std::{path::PathBuf, sync::Once, time::Duration};

/// Interval between two checks for stragglers.
const STRAGGLER_WINDOW: Duration = Duration::from_secs(10);
/// Maximum time for workers to leave a round together.
const REGROUP_WAIT: Duration = Duration::from_secs(120);

/// Returns the configured number of workers, which `resolve` has made a number.
pub(super) fn world(config: &RunConfig) -> u32 {
    match config.cluster.nproc_per_node {
        Nproc::Count(workers) => workers.max(1),
        _ => 1,
    }
}

/// Builds the specification of a run's agent. Nothing is started.
pub(super) fn agent_spec(
    config: &RunConfig,
    facts: &Facts,
    run: &RunDir,
    job: RunJob,
    handle_signals: bool,
) -> Result<AgentSpec, Error> {
    let world = match &job {
        RunJob::Init { .. } => 1,
        // A worker without a chunk would be useless.
        RunJob::Predict { chunk_rows, rows, .. } => {
            let chunks = rows.div_ceil((*chunk_rows).max(1)).max(1);
            world(config).min(u32::try_from(chunks).unwrap_or(u32::MAX))
        }
        RunJob::Train { .. } | RunJob::Program => world(config),
    };
    let cluster = &config.cluster;
    let training = matches!(job, RunJob::Train { .. });
    let reforms = training && cluster.policy == Recovery::Reform;
    let hang_timeout = Duration::try_from_secs_f64(cluster.hang_timeout_s).unwrap_or_default();
    let run_settings = RunSettings {
        contract: Contract::Broker,
        workers_min: if cluster.workers_min == 0 { world } else { cluster.workers_min.min(world) },
        on_failure: if reforms { Recovery::Reform } else { Recovery::Restart },
        max_restarts: cluster.max_restarts,
        spares: if reforms { cluster.spares } else { 0 },
        spares_are_bound: false,
        evict_stragglers: reforms && cluster.evict_stragglers,
        straggler_window: STRAGGLER_WINDOW,
        regroup_wait: REGROUP_WAIT,
        hang_timeout: (training && !hang_timeout.is_zero()).then_some(hang_timeout),
        grace: Duration::try_from_secs_f64(cluster.grace_s).unwrap_or_default(),
        first_round: run.next_round().0,
        run_dir: run.path().to_owned(),
        job,
    };
    let node = node_spec(config, facts, world, handle_signals)?;
    Ok(AgentSpec { node, run: run_settings, lock: Some(run.witness()?) })
}

/// Builds the specification of this node, with `world` workers. Nothing is started.
pub(super) fn node_spec(
    config: &RunConfig,
    facts: &Facts,
    world: u32,
    handle_signals: bool,
) -> Result<NodeSpec, Error> {
    Ok(NodeSpec {
        worker: worker(config, facts, world)?,
        runs_scripts: false,
        workers: world,
        workers_max: most(config, facts).max(world),
        host: facts.host.clone(),
        visible_devices: facts.visible_devices.as_deref().map(device_names),
        socket_parent: facts.socket_parent.clone(),
        handle_signals,
    })
}

/// Returns the names in `CUDA_VISIBLE_DEVICES`.
fn device_names(list: &str) -> Vec<String> {
    list.split(',').map(|name| name.trim().to_owned()).collect()
}

/// Returns the number of workers that fit on the machine.
fn most(config: &RunConfig, facts: &Facts) -> u32 {
    let places = if config.cluster.device == Device::Cuda { facts.gpus } else { facts.cores };
    u32::try_from(places).unwrap_or(u32::MAX)
}

/// Describes one of `world` workers that share the machine.
pub(super) fn worker(config: &RunConfig, facts: &Facts, world: u32) -> Result<WorkerSpec, Error> {
    let device = if config.cluster.device == Device::Cuda { Device::Cuda } else { Device::Cpu };
    Ok(WorkerSpec { device, ..with_libtorch(config, facts, world)? })
}

/// Describes the process of an exported model's runtime. Formats that libtorch runs need a worker, the others do not. The process runs on
/// the CPU unless the code was compiled for a GPU.
pub(super) fn runtime_worker(
    packed: &Packed,
    config: &RunConfig,
    facts: &Facts,
    world: u32,
) -> Result<WorkerSpec, Error> {
    let refused = |why| ExportError::Refused { what: "enn", path: packed.path.clone(), why };
    let device = device(packed.sidecar.notes.get(aoti::DEVICE).map(String::as_str), facts.gpus).map_err(refused)?;
    let needs = matches!(packed.target, Target::Pt2 | Target::Aoti);
    let spec = if needs { with_libtorch(config, facts, world)? } else { without_libtorch(config, facts, world) };
    Ok(WorkerSpec { device, ..spec })
}

/// Returns the device of an artifact that names its device: an AOTInductor package.
fn device(said: Option<&str>, gpus: usize) -> Result<Device, String> {
    match said {
        None | Some("cpu") => Ok(Device::Cpu),
        Some("cuda") if gpus > 0 => Ok(Device::Cuda),
        Some("cuda") => {
            Err("it was compiled for a GPU, and there is none here\nhint: export the run again with --device cpu"
                .to_owned())
        }
        Some(other) => Err(format!("it was compiled for {other}, expected cpu or cuda")),
    }
}

/// Describes a worker on the CPU, with the libraries that it loads. A torch that was skipped is reported once per process.
fn with_libtorch(config: &RunConfig, facts: &Facts, world: u32) -> Result<WorkerSpec, Error> {
    static REPORTED: Once = Once::new();
    let program = facts.libtorch.worker().map_err(Clone::clone)?.to_owned();
    let found = facts.libtorch.find().map_err(Clone::clone)?;
    if let Some(note) = &found.note {
        REPORTED.call_once(|| tracing::warn!("{note}; the libtorch in {} is used", found.lib.display()));
    }
    let library_path = found.behind(facts.library_path.as_deref());
    let library_dir = Some(found.lib.clone());
    Ok(WorkerSpec { program, library_dir, library_path, ..without_libtorch(config, facts, world) })
}

/// Describes a process on the CPU that needs neither libtorch nor enn-worker.
fn without_libtorch(config: &RunConfig, facts: &Facts, world: u32) -> WorkerSpec {
    WorkerSpec {
        library_path: facts.library_path.clone(),
        threads: threads(config, facts, world),
        sleeps: !facts.omp_waits,
        repeatable_products: config.train.deterministic,
        ..WorkerSpec::new(PathBuf::new())
    }
}

/// Returns the number of threads of one of `world` processes.
fn threads(config: &RunConfig, facts: &Facts, world: u32) -> u32 {
    let shared = u32::try_from(facts.cores / world.max(1) as usize).unwrap_or(u32::MAX).max(1);
    match u32::try_from(config.train.threads) {
        Ok(0) | Err(_) => facts.omp_threads.unwrap_or(shared),
        Ok(threads) => threads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_runs_where_its_code_was_compiled_for_or_not_at_all() {
        assert_eq!((device(None, 2), device(Some("cpu"), 2)), (Ok(Device::Cpu), Ok(Device::Cpu)));
        assert_eq!(device(Some("cuda"), 1), Ok(Device::Cuda));
        assert!(
            device(Some("cuda"), 0)
                .unwrap_err()
                .starts_with("it was compiled for a GPU, and there is none here\nhint: ")
        );
        assert_eq!(device(Some("xpu"), 1).unwrap_err(), "it was compiled for xpu, expected cpu or cuda");
    }
}
