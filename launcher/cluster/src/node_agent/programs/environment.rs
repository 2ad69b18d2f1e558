//! torchrun's environment contract, for one worker. Pure.
//!
//! Source: torch 2.8 to 2.15, `torch/distributed/elastic/agent/server/local_elastic_agent.py` and `multiprocessing/api.py`.

use super::{
    program_start::{ProgramStart, ScriptStart, SpareKind},
    spec::GroupSpec,
};
use crate::node_agent::program_ranks::Ranks;
use enn_process::template::substitute;
use std::{ffi::OsString, path::Path};

/// Files a worker is told of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Files<'a> {
    pub(super) error: &'a Path,
    pub(super) progress: &'a Path,
}

/// Variables that describe a seat; a spare must not inherit the launcher's.
pub(super) const OF_A_SEAT: [&str; 9] = [
    "LOCAL_RANK",
    "RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "ENN_ROUND",
];

/// Arguments of one worker: as torchrun, `${local_rank}` in them is the worker's own, and `$$` a dollar sign.
pub(super) fn args(args: &[OsString], local_rank: u32) -> Vec<OsString> {
    let value = |name: &str| (name == "local_rank").then(|| local_rank.to_string());
    // What is no text is left as it is.
    args.iter().map(|arg| arg.to_str().map_or_else(|| arg.clone(), |text| substitute(text, value).into())).collect()
}

/// Variables of one worker, over those inherited.
pub(super) fn variables(spec: &GroupSpec, seat: &ProgramStart<'_>, files: Files<'_>) -> Vec<(&'static str, OsString)> {
    let number = |value: u32| OsString::from(value.to_string());
    let rendezvous = &spec.rendezvous;
    let signals: Vec<&str> = spec.signals.iter().map(|signal| signal.as_str()).collect();
    let mut variables = vec![
        ("ROLE_NAME", rendezvous.role.clone().into()),
        ("MASTER_ADDR", seat.store.0.clone().into()),
        ("MASTER_PORT", seat.store.1.to_string().into()),
        ("TORCHELASTIC_RESTART_COUNT", number(seat.restarts)),
        ("TORCHELASTIC_MAX_RESTARTS", number(rendezvous.restarts_max)),
        ("TORCHELASTIC_RUN_ID", rendezvous.run_id.clone().into()),
        // The store at MASTER_ADDR:MASTER_PORT is ours: no worker has to serve one.
        ("TORCHELASTIC_USE_AGENT_STORE", "True".into()),
        ("TORCHELASTIC_ERROR_FILE", files.error.into()),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", signals.join(",").into()),
        ("ENN_RUN_DIR", spec.run_dir.clone().into()),
        ("ENN_PROGRESS_FILE", files.progress.into()),
    ];
    match seat.spare() {
        None => variables.extend(of_ranks(spec, seat)),
        Some(SpareKind::WithDevice) => variables.push(("LOCAL_RANK", number(seat.ranks.local_rank))),
        Some(SpareKind::Cold) => {}
    }
    // NCCL's watchdog would end a worker that can leave a round when another one dies.
    let nccl = spec.nccl_async_error_handling.as_deref().or(seat.script.is_none().then_some("1"));
    variables.extend(nccl.map(|handling| ("TORCH_NCCL_ASYNC_ERROR_HANDLING", handling.into())));
    if let Some(ScriptStart { worker, places, .. }) = seat.script {
        variables.push(("ENN_WORKER_ID", number(worker.0)));
        variables.push(("ENN_SCRIPT_SOCKET", places.socket.into()));
        variables.push(("ENN_SEAT_DIR", places.seat_dir.into()));
    }
    if spec.virtual_local_rank {
        let ranks = &seat.ranks;
        let device = match &spec.visible_devices {
            Some(devices) => devices.get(ranks.local_rank as usize).cloned().unwrap_or_default(),
            None => ranks.local_rank.to_string(),
        };
        if spec.hip_devices {
            variables.push(("HIP_VISIBLE_DEVICES", device.clone().into()));
        }
        variables.push(("CUDA_VISIBLE_DEVICES", device.into()));
    }
    variables
}

/// Variables that describe a seat.
fn of_ranks(spec: &GroupSpec, seat: &ProgramStart<'_>) -> [(&'static str, OsString); 9] {
    let number = |value: u32| OsString::from(value.to_string());
    let Ranks { local_rank, local_world, rank, world, role_rank, role_world, node_rank, nodes } = seat.ranks;
    let shown_rank = if spec.virtual_local_rank { 0 } else { local_rank };
    let ranks = [shown_rank, rank, node_rank, role_rank, local_world, world, nodes, role_world].map(number);
    let mut values = ranks.into_iter().chain([OsString::from(seat.round.to_string())]);
    OF_A_SEAT.map(|name| (name, values.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_may_name_the_local_rank() {
        let given = ["-u", "train.py", "--device=cuda:${local_rank}", "$local_rank", "$$HOME", "${other}", "a b"];
        let filled = args(&given.map(OsString::from), 3);
        assert_eq!(filled, ["-u", "train.py", "--device=cuda:3", "3", "$HOME", "${other}", "a b"]);
    }
}
