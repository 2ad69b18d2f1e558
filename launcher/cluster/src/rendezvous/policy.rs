//! Which side of a broken network may go on. Pure.

/// What one side knows of the nodes of the last round after some of them are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Side {
    /// Nodes of the round.
    pub(super) nodes: usize,
    /// Those known to be dead: their connection was closed by their own system, or refused.
    pub(super) dead: usize,
    /// Those on this side, this node included.
    pub(super) here: usize,
    /// Whether the node that hosted the round is on this side.
    pub(super) with_host: bool,
}

/// Whether this side may go on without the others.
///
/// Of the nodes of the last round that are not known to be dead, it needs more than half; exactly half is enough with the
/// node that hosted it. Two sides can then never both go on: together they would need more nodes than there are.
pub(super) fn may_go_on(side: Side) -> bool {
    let living = side.nodes.saturating_sub(side.dead);
    2 * side.here > living || (2 * side.here == living && side.with_host)
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
            let side = |which: u8| Side {
                nodes,
                dead: (0..nodes)
                    .filter(|n| places[*n] == 0 && if which == 1 { knows[*n].0 } else { knows[*n].1 })
                    .count(),
                here: places.iter().filter(|place| **place == which).count(),
                with_host: places[host] == which,
            };
            prop_assert!(!(may_go_on(side(1)) && may_go_on(side(2))));
        }
    }
}
