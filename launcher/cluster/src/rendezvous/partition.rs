//! Quorum after a network partition. Pure.

/// View that one side of a network partition has of the members of the last round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartitionSide {
    /// Number of members.
    pub(super) nodes: usize,
    /// Members known to be dead: their own system closed or refused the connection.
    pub(super) dead: usize,
    /// Members on this side, with this node.
    pub(super) here: usize,
    /// Whether the leader of that round is on this side.
    pub(super) with_leader: bool,
}

/// Whether this side is a quorum, so that it may go on without the others.
///
/// A quorum is more than half of the members of the last round that are not known to be dead, or exactly half with the
/// leader of that round. Two sides can never both have one: together they would need more nodes than there are.
pub(super) fn has_quorum(side: PartitionSide) -> bool {
    let living = side.nodes.saturating_sub(side.dead);
    2 * side.here > living || (2 * side.here == living && side.with_leader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_do_two_sides_go_on(
            nodes in 1usize..40,
            places in proptest::collection::vec(0u8..3, 40),
            host in 0usize..40,
            knows in proptest::collection::vec(any::<(bool, bool)>(), 40),
        ) {
            // 0: dead; 1 and 2: on that side. A side may or may not know of a dead node that it is dead.
            let places = &places[..nodes];
            let host = host % nodes;
            let side = |which: u8| PartitionSide {
                nodes,
                dead: (0..nodes)
                    .filter(|n| places[*n] == 0 && if which == 1 { knows[*n].0 } else { knows[*n].1 })
                    .count(),
                here: places.iter().filter(|location| **location == which).count(),
                with_leader: places[host] == which,
            };
            prop_assert!(!(has_quorum(side(1)) && has_quorum(side(2))));
        }
    }
}
