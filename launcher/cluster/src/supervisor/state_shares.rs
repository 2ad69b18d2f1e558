//! Shares of a state of training that the ranks divided among themselves.

use enn_common::wire::node_agent::StateShare;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the furthest step of which workers keep all shares: each keeps one share, of the state after that step.
pub(super) fn whole_step(kept: impl Iterator<Item = (u64, StateShare)>) -> Option<u64> {
    let mut shares: BTreeMap<(u64, u32), BTreeSet<u32>> = BTreeMap::new();
    for (step, share) in kept {
        shares.entry((step, share.of)).or_default().insert(share.index);
    }
    let is_whole = |of: u32, had: &BTreeSet<u32>| (0..of).all(|index| had.contains(&index));
    shares.iter().rev().find(|((_, of), had)| is_whole(*of, had)).map(|((step, _), _)| *step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_make_up_a_step() {
        let whole = |kept: &[(u64, u32)]| {
            whole_step(kept.iter().map(|(step, index)| (*step, StateShare { index: *index, of: 2 })))
        };
        assert_eq!(whole(&[]), None);
        assert_eq!(whole(&[(7, 0), (7, 0)]), None);
        assert_eq!(whole(&[(7, 0), (7, 0), (7, 1)]), Some(7));
        assert_eq!(whole(&[(8, 0), (7, 0), (7, 1)]), Some(7));
        assert_eq!(whole(&[(8, 0), (7, 1)]), None);
        assert_eq!(whole(&[(8, 0), (8, 1), (7, 1)]), Some(8));
    }
}
