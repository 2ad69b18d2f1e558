//! torchrun's environment contract, for one worker. Pure.
//!
//! Source: torch 2.8 to 2.15, `torch/distributed/elastic/agent/server/local_elastic_agent.py` and `multiprocessing/api.py`.

use super::spec::GroupSpec;
use crate::rendezvous::{Member, RoundPlan};
use enn_process::template::substitute;
use std::{ffi::OsString, path::Path};

/// A worker's places in its round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ranks {
    pub(super) local_rank: u32,
    pub(super) local_world: u32,
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) role_rank: u32,
    pub(super) role_world: u32,
    pub(super) node_rank: u32,
    pub(super) nodes: u32,
}

impl Ranks {
    /// The ranks of this node's workers, by local rank: nodes come in order, each with a block of ranks; a role counts its own.
    pub(super) fn of_node(plan: &RoundPlan) -> Vec<Self> {
        let count = |members: &[Member], role: Option<&str>| -> u32 {
            let fits = |member: &&Member| role.is_none_or(|role| member.role == role);
            members.iter().filter(fits).map(|member| member.local_world).sum()
        };
        let Some((before, own)) = plan
            .members
            .get(..=plan.node_rank as usize)
            .and_then(<[Member]>::split_last)
            .map(|(own, before)| (before, own))
        else {
            return Vec::new();
        };
        let first = count(before, None);
        let world = count(&plan.members, None);
        let role_first = count(before, Some(&own.role));
        let role_world = count(&plan.members, Some(&own.role));
        let nodes = u32::try_from(plan.members.len()).unwrap_or(u32::MAX);
        let of = |local_rank| Self {
            local_rank,
            local_world: own.local_world,
            rank: first + local_rank,
            world,
            role_rank: role_first + local_rank,
            role_world,
            node_rank: plan.node_rank,
            nodes,
        };
        (0..own.local_world).map(of).collect()
    }
}

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
    plan: &RoundPlan,
    ranks: &Ranks,
    files: Files<'_>,
) -> Vec<(&'static str, OsString)> {
    let number = |value: u32| OsString::from(value.to_string());
    let rendezvous = &spec.rendezvous;
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
        ("TORCHELASTIC_RESTART_COUNT", number(plan.restarts)),
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
    use crate::rendezvous::NodeId;

    fn member(host: &str, local_world: u32, role: &str) -> Member {
        Member { host: host.into(), local_world, role: role.into() }
    }

    #[test]
    fn arguments_may_name_the_local_rank() {
        let given = ["-u", "train.py", "--device=cuda:${local_rank}", "$local_rank", "$$HOME", "${other}", "a b"];
        let filled = args(&given.map(OsString::from), 3);
        assert_eq!(filled, ["-u", "train.py", "--device=cuda:3", "3", "$HOME", "${other}", "a b"]);
    }

    #[test]
    fn ranks_are_blocks_in_node_order_and_roles_count_their_own() {
        let members = vec![member("a", 2, "trainer"), member("b", 3, "reader"), member("c", 1, "trainer")];
        let plan = |node_rank| RoundPlan {
            host: NodeId(0),
            nodes: Vec::new(),
            round: 0,
            restarts: 0,
            node_rank,
            members: members.clone(),
            master: ("a".into(), 1),
        };
        let ranks =
            |node| Ranks::of_node(&plan(node)).iter().map(|r| (r.local_rank, r.rank, r.role_rank)).collect::<Vec<_>>();
        assert_eq!(ranks(0), [(0, 0, 0), (1, 1, 1)]);
        assert_eq!(ranks(1), [(0, 2, 0), (1, 3, 1), (2, 4, 2)]);
        assert_eq!(ranks(2), [(0, 5, 2)]);
        let last = Ranks::of_node(&plan(2))[0];
        assert_eq!((last.world, last.role_world, last.local_world, last.nodes), (6, 3, 1, 3));
        assert!(Ranks::of_node(&plan(3)).is_empty());
    }
}
