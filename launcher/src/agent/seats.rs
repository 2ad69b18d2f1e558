//! Who sits where in the next round. Pure.
//!
//! **Invariant:** whoever keeps the state of training keeps the index on the node, and with it the device. Indices of a round
//! that goes on with fewer have gaps; ranks never have.

use enn_common::id::{LocalRank, WorkerId};
use std::collections::BTreeSet;

/// A process and the index on the node that it has, or is prepared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) worker: WorkerId,
    pub(super) slot: LocalRank,
}

/// Everybody who could sit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Candidates {
    /// They left the round before whole and keep its state.
    pub(super) kept: Vec<Candidate>,
    /// Spares that have loaded everything.
    pub(super) warm: Vec<Candidate>,
    /// Spares that are loading.
    pub(super) warming: Vec<Candidate>,
}

/// Seats of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// With so many it begins at once.
    pub(super) fewest: u32,
    /// Never more.
    pub(super) most: u32,
}

/// Who takes a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taker {
    /// A worker of the round before.
    Kept(WorkerId),
    /// A process that stood by, warm or not.
    Spare(WorkerId),
    /// A process that is started for it.
    New,
}

/// A seat taken; its place in the list is its rank.
pub(super) type Seating = Vec<(LocalRank, Taker)>;

/// Gives out the seats. Nobody waits for a process that is starting, unless fewer than `fewest` could go on without.
pub(super) fn give(candidates: &Candidates, bounds: Bounds) -> Seating {
    // The first of the list: who has the state of training stands there.
    let kept = &candidates.kept[..candidates.kept.len().min(bounds.most as usize)];
    let mut seating = last(kept);
    fill(&mut seating, &candidates.warm, bounds);
    if seating.len() < bounds.fewest.max(1) as usize {
        fill(&mut seating, &candidates.warming, bounds);
        let room = room(&seating, bounds);
        seating.extend(vacant(&seating, bounds).into_iter().take(room).map(|slot| (slot, Taker::New)));
    }
    seating.sort_by_key(|(slot, _)| *slot);
    seating
}

/// Seats for those who keep the state, and nobody else: they are to save it.
pub(super) fn last(kept: &[Candidate]) -> Seating {
    let mut seating: Seating = kept.iter().map(|kept| (kept.slot, Taker::Kept(kept.worker))).collect();
    seating.sort_by_key(|(slot, _)| *slot);
    seating
}

/// Indices without a worker.
pub(super) fn vacant(seating: &[(LocalRank, Taker)], bounds: Bounds) -> BTreeSet<LocalRank> {
    (0..bounds.most).map(LocalRank).filter(|slot| !seating.iter().any(|(taken, _)| taken == slot)).collect()
}

/// Seats that may still be given: an index beyond `most` is one that is taken, too.
fn room(seating: &[(LocalRank, Taker)], bounds: Bounds) -> usize {
    (bounds.most as usize).saturating_sub(seating.len())
}

/// First everybody where it is prepared to sit, then the others where room is left.
fn fill(seating: &mut Seating, spares: &[Candidate], bounds: Bounds) {
    let room = room(seating, bounds);
    let mut free = vacant(seating, bounds);
    let (at_home, others): (Vec<&Candidate>, Vec<&Candidate>) =
        spares.iter().partition(|spare| free.remove(&spare.slot));
    let at_home = at_home.into_iter().map(|spare| (spare.slot, Taker::Spare(spare.worker)));
    let elsewhere = free.into_iter().zip(others).map(|(slot, spare)| (slot, Taker::Spare(spare.worker)));
    seating.extend(at_home.chain(elsewhere).take(room));
}

/// The index that the next spare is prepared for: one that nobody has, else the one with the fewest spares.
pub(super) fn hint(taken: &[LocalRank], spares: &[LocalRank], most: u32) -> LocalRank {
    let pressure = |slot: &LocalRank| {
        let standing = spares.iter().filter(|hint| *hint == slot).count();
        (standing + usize::from(taken.contains(slot)), slot.0)
    };
    (0..most).map(LocalRank).min_by_key(pressure).unwrap_or(LocalRank(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(pairs: &[(u32, u32)]) -> Vec<Candidate> {
        pairs.iter().map(|(worker, slot)| Candidate { worker: WorkerId(*worker), slot: LocalRank(*slot) }).collect()
    }

    fn kept(worker: u32) -> Taker {
        Taker::Kept(WorkerId(worker))
    }

    fn spare(worker: u32) -> Taker {
        Taker::Spare(WorkerId(worker))
    }

    fn slots(seating: Vec<(u32, Taker)>) -> Seating {
        seating.into_iter().map(|(slot, taker)| (LocalRank(slot), taker)).collect()
    }

    #[test]
    fn a_spare_sits_where_it_is_prepared_to_and_a_new_process_where_none_is() {
        let all = Bounds { fewest: 3, most: 3 };
        let first = give(&Candidates::default(), all);
        assert_eq!(first, slots(vec![(0, Taker::New), (1, Taker::New), (2, Taker::New)]));
        let candidates = Candidates { kept: at(&[(0, 0)]), warm: at(&[(7, 2)]), warming: at(&[(8, 2)]) };
        assert_eq!(give(&candidates, all), slots(vec![(0, kept(0)), (1, spare(8)), (2, spare(7))]));
        let candidates = Candidates { kept: at(&[(2, 2)]), warm: at(&[(7, 2)]), warming: Vec::new() };
        assert_eq!(give(&candidates, all), slots(vec![(0, spare(7)), (1, Taker::New), (2, kept(2))]));
    }

    #[test]
    fn enough_go_on_without_waiting() {
        let some = Bounds { fewest: 1, most: 3 };
        let candidates = Candidates { kept: at(&[(0, 0), (2, 2)]), warm: Vec::new(), warming: at(&[(8, 1)]) };
        assert_eq!(give(&candidates, some), slots(vec![(0, kept(0)), (2, kept(2))]));
        assert_eq!(last(&at(&[(2, 2), (0, 0)])), slots(vec![(0, kept(0)), (2, kept(2))]));
    }

    #[test]
    fn spares_are_prepared_for_who_is_missing_then_for_all_in_turn() {
        let slots: Vec<LocalRank> = [0, 2].map(LocalRank).to_vec();
        assert_eq!(hint(&slots, &[], 3), LocalRank(1));
        let all = [0, 1, 2].map(LocalRank);
        let mut spares = Vec::new();
        for expected in [0, 1, 2, 0, 1] {
            assert_eq!(hint(&all, &spares, 3), LocalRank(expected));
            spares.push(LocalRank(expected));
        }
    }

    #[test]
    fn a_smaller_round_keeps_the_first_of_the_list_and_never_has_more_seats() {
        let bounds = Bounds { fewest: 1, most: 2 };
        let three = Candidates { kept: at(&[(7, 0), (9, 2), (8, 1)]), ..Candidates::default() };
        assert_eq!(give(&three, bounds), slots(vec![(0, kept(7)), (2, kept(9))]));
        // Index 1 is free, but the seats are given.
        let gap = Candidates { kept: at(&[(7, 0), (9, 2)]), warm: at(&[(4, 1)]), ..Candidates::default() };
        assert_eq!(give(&gap, bounds), slots(vec![(0, kept(7)), (2, kept(9))]));
    }

    proptest! {
        #[test]
        fn nobody_sits_twice_and_enough_sit(
            kept in proptest::collection::btree_set(0u32..8, 0..8),
            warm in proptest::collection::vec(0u32..8, 0..5),
            warming in proptest::collection::vec(0u32..8, 0..5),
            fewest in 1u32..=8,
        ) {
            let numbered = |from: u32, slots: Vec<u32>| {
                at(&slots.into_iter().enumerate().map(|(n, slot)| (from + n as u32, slot)).collect::<Vec<_>>())
            };
            let kept: Vec<u32> = kept.into_iter().collect();
            let candidates = Candidates {
                kept: numbered(0, kept.clone()),
                warm: numbered(100, warm.clone()),
                warming: numbered(200, warming),
            };
            let seating = give(&candidates, Bounds { fewest, most: 8 });
            let taken: BTreeSet<LocalRank> = seating.iter().map(|(slot, _)| *slot).collect();
            prop_assert_eq!(taken.len(), seating.len());
            prop_assert!(seating.len() >= fewest as usize && seating.len() <= 8);
            for candidate in &candidates.kept {
                prop_assert!(seating.contains(&(candidate.slot, Taker::Kept(candidate.worker))));
            }
            let ready = kept.len() + warm.len();
            let waits = seating.iter().any(|(_, taker)| *taker == Taker::New);
            prop_assert!(!waits || ready < fewest as usize);
            prop_assert!(ready < fewest as usize || seating.len() == ready.min(8));
        }
    }
}
