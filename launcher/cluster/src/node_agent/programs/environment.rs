//! torchrun's environment contract, for one worker. Pure.
//!
//! Source: torch 2.8 to 2.15, `torch/distributed/elastic/agent/server/local_elastic_agent.py` and `multiprocessing/api.py`.

use super::spec::GroupSpec;
use crate::node_agent::{effect::ProgramRound, program_ranks::Ranks};
use enn_process::template::substitute;
use std::{ffi::OsString, path::Path};

/// Files a worker is told of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Files<'a> {
    pub(super) error: &'a Path,
    pub(super) progress: &'a Path,
}

/// Arguments of one worker: as torchrun, `${local_rank}` in them is the worker's own, and `$$` a dollar sign.
pub(super) fn args(args: &[OsString], local_rank: u32) -> Vec<OsString> {
    let value = |name: &str| (name == "local_rank").then(|| local_rank.to_string());
    // What is no text is left as it is.
    args.iter().map(|arg| arg.to_str().map_or_else(|| arg.clone(), |text| substitute(text, value).into())).collect()
}

/// Variables of one worker, over those inherited.
pub(super) fn variables(
    spec: &GroupSpec,
    round: &ProgramRound,
    ranks: &Ranks,
    files: Files<'_>,
) -> Vec<(&'static str, OsString)> {
    let number = |value: u32| OsString::from(value.to_string());
    let rendezvous = &spec.rendezvous;
    let plan = &round.plan;
    let shown_rank = if spec.virtual_local_rank { 0 } else { ranks.local_rank };
    let nccl = spec.nccl_async_error_handling.as_deref().unwrap_or("1");
    let signals: Vec<&str> = spec.signals.iter().map(|signal| signal.as_str()).collect();
    let mut variables = vec![
        ("LOCAL_RANK", number(shown_rank)),
        ("RANK", number(ranks.rank)),
        ("GROUP_RANK", number(ranks.node_rank)),
        ("ROLE_RANK", number(ranks.role_rank)),
        ("ROLE_NAME", rendezvous.role.clone().into()),
        ("LOCAL_WORLD_SIZE", number(ranks.local_world)),
        ("WORLD_SIZE", number(ranks.world)),
        ("GROUP_WORLD_SIZE", number(ranks.nodes)),
        ("ROLE_WORLD_SIZE", number(ranks.role_world)),
        ("MASTER_ADDR", plan.master.0.clone().into()),
        ("MASTER_PORT", plan.master.1.to_string().into()),
        ("TORCHELASTIC_RESTART_COUNT", number(round.restarts)),
        ("TORCHELASTIC_MAX_RESTARTS", number(rendezvous.restarts_max)),
        ("TORCHELASTIC_RUN_ID", rendezvous.run_id.clone().into()),
        // The store at MASTER_ADDR:MASTER_PORT is ours: no worker has to serve one.
        ("TORCHELASTIC_USE_AGENT_STORE", "True".into()),
        ("TORCHELASTIC_ERROR_FILE", files.error.into()),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", signals.join(",").into()),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", nccl.into()),
        ("ENN_ROUND", plan.round.to_string().into()),
        ("ENN_RUN_DIR", spec.run_dir.clone().into()),
        ("ENN_PROGRESS_FILE", files.progress.into()),
    ];
    if spec.virtual_local_rank {
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
