//! What the ranks share of the state: as the configuration says, or as little as fits into the devices' memory.

use super::{SessionError, agree};
use crate::collective::{COLLECTIVE_WAIT_MAX, gather};
use enn_comm::{ProcessGroup, Reduce};
use enn_common::config::train::Strategy;
use enn_core::backend::graph;
use std::fmt;
use tch::{Device, Tensor};

/// Share of a device's memory that the state may take; the rest is for activations, workspaces and collectives.
const STATE_SHARE: f64 = 0.5;
/// Bytes of a weight that every rank has under `zero1`: itself and its gradient.
const COMMON_BYTES: f64 = 8.0;
/// Bytes of a weight's two moments, average and best.
const SHARED_BYTES: f64 = 16.0;

/// A strategy, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// What the ranks share.
    pub strategy: Strategy,
    /// For the user.
    pub reason: String,
    /// It is another one than was asked for.
    pub instead: bool,
    /// Ranks of a node that share the state, where every node has all of it.
    pub by_node: Option<u32>,
}

impl Chosen {
    fn of(strategy: Strategy, reason: impl Into<String>) -> Self {
        Self { strategy, reason: reason.into(), instead: false, by_node: None }
    }

    fn in_place_of_hsdp(strategy: Strategy, why: impl fmt::Display) -> Self {
        let reason = format!("in place of {}: {why}", Strategy::Hsdp.name());
        Self { instead: true, ..Self::of(strategy, reason) }
    }

    /// `hsdp` over nodes of so many ranks.
    fn by_node(ranks: u32, reason: String) -> Self {
        Self { by_node: Some(ranks), ..Self::of(Strategy::Hsdp, reason) }
    }
}

/// How the ranks are spread over nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Spread {
    /// As many nodes with as many ranks each, those of a node after each other.
    Even { nodes: u32, each: u32 },
    /// Ranks by node.
    Uneven(Vec<u32>),
}

impl Spread {
    /// Every rank said, in their order, how many are on its node.
    fn of(locals: &[i64]) -> Self {
        let mut nodes = Vec::new();
        let mut rest = locals;
        while let Some(&first) = rest.first() {
            let len = usize::try_from(first).unwrap_or(1).clamp(1, rest.len());
            nodes.push(len as u32);
            rest = &rest[len..];
        }
        match nodes.first() {
            Some(&each) if locals.iter().all(|&local| local == i64::from(each)) => {
                Self::Even { nodes: nodes.len() as u32, each }
            }
            _ => Self::Uneven(nodes),
        }
    }
}

/// Decides for a model of `weights` weights; `local` ranks are on this one's node. At most two collectives, where the answer does not
/// follow from the configuration, so that all ranks take the same.
///
/// # Errors
/// When the device does not answer, or a rank is lost.
pub fn choose(
    wanted: Strategy,
    weights: i64,
    (device, local): (Device, u32),
    group: &dyn ProcessGroup,
) -> Result<Chosen, SessionError> {
    let spread = || Ok::<_, SessionError>(Spread::of(&gather(group, device, i64::from(local))?));
    let index = match (wanted, device) {
        (Strategy::Hsdp, _) => return Ok(on_nodes(&spread()?)),
        (Strategy::Auto, Device::Cuda(index)) => index,
        // A host has swap, and no honest number of bytes.
        (Strategy::Auto, _) => return Ok(Chosen::of(Strategy::Ddp, "nothing is shared on the CPU")),
        (wanted, _) => return Ok(Chosen::of(wanted, "as asked")),
    };
    let memory = Tensor::f_from_slice(&[graph::memory(index)?.1 as f64])?.f_to_device(device)?;
    group.all_reduce(&memory, Reduce::Min)?.wait(COLLECTIVE_WAIT_MAX)?;
    Ok(for_memory(weights as f64, memory.f_double_value(&[0])?, group.size(), &spread()?))
}

/// `hsdp`, or what it is on these nodes.
fn on_nodes(spread: &Spread) -> Chosen {
    match spread {
        Spread::Even { nodes: 1, each: 1 } => Chosen::in_place_of_hsdp(Strategy::Ddp, "there is one worker"),
        Spread::Even { nodes: 1, .. } => {
            Chosen::in_place_of_hsdp(Strategy::Fsdp, "all workers are on one node, and no other has what they share")
        }
        Spread::Even { each: 1, .. } => {
            Chosen::in_place_of_hsdp(Strategy::Ddp, "every node has one worker, and nobody to share with")
        }
        Spread::Even { nodes, each } => {
            Chosen::by_node(*each, format!("as asked, over {nodes} nodes of {each} workers"))
        }
        Spread::Uneven(nodes) => {
            let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
            let why = format!("the nodes have {} workers, and it needs the same number on each", nodes.join(", "));
            Chosen::in_place_of_hsdp(Strategy::Fsdp, why)
        }
    }
}

/// The strategy with the least communication whose state fits.
fn for_memory(weights: f64, memory: f64, world: u32, spread: &Spread) -> Chosen {
    let room = STATE_SHARE * memory;
    let whole = weights * (COMMON_BYTES + SHARED_BYTES);
    let [told, told_room] = [whole, room].map(|bytes| bytes / 1e9);
    let reason = format!("the whole state takes {told:.1} GB, and {told_room:.1} GB of the device are for it");
    let strategy = if whole <= room || world < 2 {
        Strategy::Ddp
    } else if weights * (COMMON_BYTES + SHARED_BYTES / f64::from(world)) <= room {
        Strategy::Zero1
    } else {
        match spread {
            Spread::Even { nodes: 2.., each } if whole / f64::from(*each) <= room => {
                return Chosen::by_node(*each, format!("{reason}; divided by the {each} workers of a node it fits"));
            }
            _ => Strategy::Fsdp,
        }
    };
    Chosen::of(strategy, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_the_model_the_more_is_shared() {
        let one = Spread::of(&[8; 8]);
        let strategy = |weights: f64| for_memory(weights, 80e9, 8, &one).strategy;
        assert_eq!(strategy(1e9), Strategy::Ddp);
        assert_eq!(strategy(3e9), Strategy::Zero1);
        assert_eq!(strategy(7e9), Strategy::Fsdp);
        assert_eq!(for_memory(7e9, 80e9, 1, &Spread::of(&[1])).strategy, Strategy::Ddp);
        let reason = for_memory(3e9, 80e9, 8, &one).reason;
        assert_eq!(reason, "the whole state takes 72.0 GB, and 40.0 GB of the device are for it");
    }

    #[test]
    fn a_node_shares_what_fits_into_it() {
        let chosen = |weights: f64, locals: &[i64]| for_memory(weights, 80e9, locals.len() as u32, &Spread::of(locals));
        let hsdp = chosen(7e9, &[8; 16]);
        assert_eq!((hsdp.strategy, hsdp.by_node), (Strategy::Hsdp, Some(8)));
        assert!(hsdp.reason.ends_with("divided by the 8 workers of a node it fits"), "{}", hsdp.reason);
        // 336 GB, 42 to each of a node and 21 to each of all.
        assert_eq!(chosen(14e9, &[8; 16]).strategy, Strategy::Fsdp);
        assert_eq!(chosen(3e9, &[8; 16]).strategy, Strategy::Zero1);
        assert_eq!(chosen(7e9, &[8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4]).strategy, Strategy::Fsdp);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let even = on_nodes(&Spread::of(&[2, 2, 2, 2]));
        assert_eq!((even.strategy, even.by_node, even.instead), (Strategy::Hsdp, Some(2), false));
        assert_eq!(even.reason, "as asked, over 2 nodes of 2 workers");
        let uneven = on_nodes(&Spread::of(&[2, 2, 1]));
        assert_eq!((uneven.strategy, uneven.by_node, uneven.instead), (Strategy::Fsdp, None, true));
        assert_eq!(
            uneven.reason,
            "in place of hsdp: the nodes have 2, 1 workers, and it needs the same number on each"
        );
        for (locals, strategy) in [(&[3, 3, 3][..], Strategy::Fsdp), (&[1, 1], Strategy::Ddp), (&[1], Strategy::Ddp)] {
            let chosen = on_nodes(&Spread::of(locals));
            assert_eq!((chosen.strategy, chosen.instead), (strategy, true), "{locals:?}");
        }
        // Nothing that ranks may say is taken for granted.
        for locals in [&[0, 0][..], &[-1, 7], &[9]] {
            assert!(matches!(Spread::of(locals), Spread::Uneven(_)), "{locals:?}");
        }
    }
}
