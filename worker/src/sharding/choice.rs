//! Which strategy the ranks of a round take: the configuration's, or the first whose state fits into the devices' memory.

use super::{Nodes, Placement, Sharding, fsdp::Fsdp, hsdp::Hsdp, replicated::Replicated, zero1::Zero1};
use crate::collective::{COLLECTIVE_WAIT_MAX, RankError, gather};
use enn_comm::{ProcessGroup, Reduce};
use enn_common::config::train::Strategy;
use enn_core::backend::graph;
use tch::{Device, Tensor};

/// The strategy of a rank that is alone.
pub const REPLICATED: &dyn Sharding = &Replicated;
/// All strategies, those with less communication first. `auto` takes the first whose state fits, else the last.
const ALL: [&dyn Sharding; 4] = [REPLICATED, &Zero1, &Hsdp, &Fsdp];
/// Share of a device's memory that the state may take; the rest is for activations, workspaces and collectives.
const STATE_SHARE: f64 = 0.5;

#[derive(Debug)]
pub struct ChosenSharding {
    pub sharding: &'static dyn Sharding,
    pub reason: String,
    /// Whether another one was asked for, which does not run on these nodes.
    pub instead: bool,
}

/// The strategy that the configuration names; `None` for `auto`.
pub fn configured(strategy: Strategy) -> Option<&'static dyn Sharding> {
    ALL.into_iter().find(|sharding| sharding.strategy() == strategy)
}

/// Decides for a model of so many weights; `local` ranks are on this one's node. At most two collectives, where the answer does not
/// follow from the configuration, so that all ranks take the same.
pub fn choose(
    wanted: Strategy,
    weights: i64,
    device: Device,
    local: u32,
    group: &dyn ProcessGroup,
) -> Result<ChosenSharding, RankError> {
    let nodes = || Ok(Nodes::of(&gather(group, device, i64::from(local))?));
    match (configured(wanted), device) {
        (Some(sharding), _) => Ok(placed(sharding, sharding.placement(&nodes)?)),
        (None, Device::Cuda(index)) => {
            let memory = Tensor::f_from_slice(&[graph::memory(index)?.1 as f64])?.f_to_device(device)?;
            group.all_reduce(&memory, Reduce::Min)?.wait(COLLECTIVE_WAIT_MAX)?;
            Ok(for_memory(weights as f64, memory.f_double_value(&[0])?, &nodes()?))
        }
        // A host has swap, and no honest number of bytes.
        (None, _) => {
            let reason = "nothing is shared on the CPU".to_owned();
            Ok(ChosenSharding { sharding: REPLICATED, reason, instead: false })
        }
    }
}

fn placed(asked: &'static dyn Sharding, placement: Placement) -> ChosenSharding {
    match placement {
        Placement::Runs(reason) => ChosenSharding { sharding: asked, reason, instead: false },
        Placement::Instead(sharding, why) => {
            let reason = format!("in place of {}: {why}", asked.strategy().name());
            ChosenSharding { sharding, reason, instead: true }
        }
    }
}

/// The strategy with the least communication whose state fits into a part of `memory` bytes.
fn for_memory(weights: f64, memory: f64, nodes: &Nodes) -> ChosenSharding {
    let room = STATE_SHARE * memory;
    let bytes = |sharding: &dyn Sharding| sharding.bytes(weights, nodes).unwrap_or(f64::INFINITY);
    let fits = |sharding: &&dyn Sharding| nodes.ranks() < 2 || bytes(*sharding) <= room;
    let sharding = ALL.into_iter().find(fits).unwrap_or(ALL[ALL.len() - 1]);
    let [whole, limit] = [bytes(REPLICATED), room].map(|bytes| bytes / 1e9);
    let reason = format!(
        "the whole state takes {whole:.1} GB, and {limit:.1} GB of the device are for it{}",
        sharding.advantage(nodes)
    );
    ChosenSharding { sharding, reason, instead: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_memory(weights: f64, locals: &[i64]) -> (Strategy, String) {
        let chosen = for_memory(weights, 80e9, &Nodes::of(locals));
        (chosen.sharding.strategy(), chosen.reason)
    }

    #[test]
    fn the_larger_the_model_the_more_is_sharded() {
        let strategy = |weights: f64| in_memory(weights, &[8; 8]).0;
        assert_eq!(strategy(1e9), Strategy::Ddp);
        assert_eq!(strategy(3e9), Strategy::Zero1);
        assert_eq!(strategy(7e9), Strategy::Fsdp);
        assert_eq!(in_memory(7e9, &[1]).0, Strategy::Ddp);
        let reason = in_memory(3e9, &[8; 8]).1;
        assert_eq!(reason, "the whole state takes 72.0 GB, and 40.0 GB of the device are for it");
    }

    #[test]
    fn a_node_shares_what_fits_into_it() {
        let (strategy, reason) = in_memory(7e9, &[8; 16]);
        assert_eq!(strategy, Strategy::Hsdp);
        assert!(reason.ends_with("divided by the 8 workers of a node it fits"), "{reason}");
        // 336 GB, 42 to each of a node and 21 to each of all.
        assert_eq!(in_memory(14e9, &[8; 16]).0, Strategy::Fsdp);
        assert_eq!(in_memory(3e9, &[8; 16]).0, Strategy::Zero1);
        assert_eq!(in_memory(7e9, &[8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4]).0, Strategy::Fsdp);
    }

    #[test]
    fn a_strategy_that_does_not_run_is_replaced_with_a_reason() {
        let hsdp = configured(Strategy::Hsdp).unwrap();
        let chosen = |locals: &[i64]| {
            let placement = hsdp.placement(&|| Ok(Nodes::of(locals))).unwrap();
            let chosen = placed(hsdp, placement);
            (chosen.sharding.strategy(), chosen.instead, chosen.reason)
        };
        let even = chosen(&[2, 2, 2, 2]);
        assert_eq!(even, (Strategy::Hsdp, false, "as asked, over 2 nodes of 2 workers".to_owned()));
        let reason = "in place of hsdp: the nodes have 2, 1 workers, and it needs the same number on each";
        assert_eq!(chosen(&[2, 2, 1]), (Strategy::Fsdp, true, reason.to_owned()));
        for (locals, strategy) in [(&[3, 3, 3][..], Strategy::Fsdp), (&[1, 1], Strategy::Ddp), (&[1], Strategy::Ddp)] {
            let (found, instead, _) = chosen(locals);
            assert_eq!((found, instead), (strategy, true), "{locals:?}");
        }
    }

    #[test]
    fn every_strategy_has_its_row() {
        for sharding in ALL {
            assert_eq!(configured(sharding.strategy()).unwrap().strategy(), sharding.strategy());
        }
        for strategy in [Strategy::Ddp, Strategy::Zero1, Strategy::Fsdp, Strategy::Hsdp] {
            assert!(configured(strategy).is_some(), "{strategy:?}");
        }
        assert!(configured(Strategy::Auto).is_none());
    }
}
