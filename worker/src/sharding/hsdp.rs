//! `hsdp`: [`Fsdp`] among the ranks of each node, and every node has all of the state.

use super::{Nodes, Placement, Sharding, arrays::WEIGHT_BYTES, fsdp::Fsdp, replicated::Replicated};
use crate::collective::RankError;
use enn_comm::ProcessGroup;
use enn_common::config::train::Strategy;

#[derive(Debug)]
pub(super) struct Hsdp;

impl Sharding for Hsdp {
    fn strategy(&self) -> Strategy {
        Strategy::Hsdp
    }

    fn placement(&self, nodes: &dyn Fn() -> Result<Nodes, RankError>) -> Result<Placement, RankError> {
        let replicated = |why: &str| Placement::Instead(&Replicated, why.to_owned());
        let fsdp = |why: String| Placement::Instead(&Fsdp, why);
        Ok(match nodes()? {
            Nodes::Even { nodes: 1, each: 1 } => replicated("there is one worker"),
            Nodes::Even { nodes: 1, .. } => {
                fsdp("all workers are on one node, and no other has what they share".to_owned())
            }
            Nodes::Even { each: 1, .. } => replicated("every node has one worker, and nobody to share with"),
            Nodes::Even { nodes, each } => Placement::Runs(format!("as asked, over {nodes} nodes of {each} workers")),
            Nodes::Uneven(nodes) => {
                let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
                fsdp(format!("the nodes have {} workers, and it needs the same number on each", nodes.join(", ")))
            }
        })
    }

    fn bytes(&self, weights: f64, nodes: &Nodes) -> Option<f64> {
        match nodes {
            Nodes::Even { nodes: 2.., each } => Some(weights * WEIGHT_BYTES / f64::from(*each)),
            _ => None,
        }
    }

    fn advantage(&self, nodes: &Nodes) -> String {
        match nodes {
            Nodes::Even { each, .. } => format!("; divided by the {each} workers of a node it fits"),
            Nodes::Uneven(_) => String::new(),
        }
    }

    fn form_groups(&self, group: &dyn ProcessGroup, local: u32) -> Result<(), RankError> {
        Ok(group.by_node(local)?)
    }

    fn among_sharing(&self) -> Option<&'static dyn Sharding> {
        Some(&Fsdp)
    }
}
