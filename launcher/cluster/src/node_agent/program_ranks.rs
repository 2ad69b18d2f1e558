//! Places of a node's workers in their round, as torchrun counts them. Pure.

use crate::rendezvous::{Member, RendezvousInfo};

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
    /// Returns the ranks of this node's workers, by local rank: nodes come in order, each with a block of ranks; a role counts its own.
    pub(super) fn of_node(plan: &RendezvousInfo) -> Vec<Self> {
        let count = |members: &[Member], role: Option<&str>| -> u32 {
            let fits = |member: &&Member| role.is_none_or(|role| member.role == role);
            members.iter().filter(fits).map(|member| member.local_world).sum()
        };
        let upto = plan.members.get(..=plan.node_rank as usize);
        let Some((own, before)) = upto.and_then(<[Member]>::split_last) else { return Vec::new() };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::NodeId;

    fn member(host: &str, local_world: u32, role: &str) -> Member {
        Member { host: host.into(), local_world, role: role.into() }
    }

    #[test]
    fn ranks_are_blocks_in_node_order_and_roles_count_their_own() {
        let members = vec![member("a", 2, "trainer"), member("b", 3, "reader"), member("c", 1, "trainer")];
        let plan = |node_rank| RendezvousInfo {
            leader: NodeId(0),
            nodes: Vec::new(),
            round: 0,
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
