//! Who sits where in the next round. Pure.
//!
//! **Invariant:** whoever keeps the state of training keeps the index on the node, and with it the device; nobody changes the
//! node. Indices of a round that goes on with fewer have gaps; ranks never have.

use enn_common::id::{LocalRank, WorkerId};
use std::collections::BTreeSet;

/// A node of the run, by the number that the agent gave it; the agent's own is 0. No number is given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Home(pub(super) u32);

impl Home {
    /// The node of the agent that decides.
    pub(super) const OWN: Self = Self(0);
}

/// A place for a worker: a node, and an index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) home: Home,
    pub(super) index: LocalRank,
}

/// A process and the place that it has, or is prepared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) worker: WorkerId,
    pub(super) slot: Slot,
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

/// What a node has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) home: Home,
    /// Its share of the workers when none is missing.
    pub(super) share: u32,
    /// Workers it can take when another node lacks some.
    pub(super) most: u32,
}

/// Seats of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bounds {
    /// With so many it begins at once.
    pub(super) fewest: u32,
    /// Never more.
    pub(super) most: u32,
    /// By node, in order.
    pub(super) rooms: Vec<Room>,
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
pub(super) type Seating = Vec<(Slot, Taker)>;

/// Gives out the seats. Nobody waits for a process that is starting, unless fewer than `fewest` could go on without.
pub(super) fn give(candidates: &Candidates, bounds: &Bounds) -> Seating {
    // The first of the list: who has the state of training stands there.
    let kept = &candidates.kept[..candidates.kept.len().min(bounds.most as usize)];
    let mut seating = last(kept);
    fill(&mut seating, &candidates.warm, bounds);
    if seating.len() < bounds.fewest.max(1) as usize {
        fill(&mut seating, &candidates.warming, bounds);
        let room = room(&seating, bounds);
        seating.extend(vacant(&seating, &bounds.rooms).into_iter().take(room).map(|slot| (slot, Taker::New)));
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

/// The nodes' shares of `world` workers: what each was asked for, and more or fewer of it in turn when the run was resized.
pub(super) fn shares(asked: &[Room], world: u32) -> Vec<Room> {
    let mut rooms = asked.to_vec();
    let mut left = i64::from(world) - rooms.iter().map(|room| i64::from(room.share)).sum::<i64>();
    while left != 0 {
        let more = left > 0;
        let fits = |room: &&mut Room| if more { room.share < room.most } else { room.share > 0 };
        // The emptiest, or the fullest; the first of equals, or the last.
        let next = if more {
            rooms.iter_mut().filter(fits).min_by_key(|room| room.share)
        } else {
            rooms.iter_mut().filter(fits).max_by_key(|room| room.share)
        };
        let Some(next) = next else { break };
        next.share = if more { next.share + 1 } else { next.share - 1 };
        left -= if more { 1 } else { -1 };
    }
    rooms
}

/// Places without a worker.
fn vacant(seating: &[(Slot, Taker)], rooms: &[Room]) -> BTreeSet<Slot> {
    let all = rooms.iter().flat_map(|room| places(room, room.share));
    all.filter(|slot| !seating.iter().any(|(taken, _)| taken == slot)).collect()
}

fn places(room: &Room, count: u32) -> impl Iterator<Item = Slot> + use<> {
    let home = room.home;
    (0..count).map(move |index| Slot { home, index: LocalRank(index) })
}

/// Seats that may still be given: an index beyond a node's share is one that is taken, too.
fn room(seating: &[(Slot, Taker)], bounds: &Bounds) -> usize {
    (bounds.most as usize).saturating_sub(seating.len())
}

/// First everybody where it is prepared to sit, then the others where their node has room left, if need be in place of another
/// node's.
fn fill(seating: &mut Seating, spares: &[Candidate], bounds: &Bounds) {
    let mut room = room(seating, bounds);
    let mut free = vacant(seating, &bounds.rooms);
    let (at_home, others): (Vec<&Candidate>, Vec<&Candidate>) =
        spares.iter().partition(|spare| free.remove(&spare.slot));
    let mut sit = |slot: Slot, spare: &Candidate| {
        if room > 0 {
            seating.push((slot, Taker::Spare(spare.worker)));
            room -= 1;
        }
    };
    at_home.into_iter().for_each(|spare| sit(spare.slot, spare));
    let mut strangers = Vec::new();
    for spare in others {
        match free.iter().find(|slot| slot.home == spare.slot.home).copied() {
            Some(slot) => {
                free.remove(&slot);
                sit(slot, spare);
            }
            None => strangers.push(spare),
        }
    }
    for spare in strangers.into_iter().take(room) {
        let Some(own) = bounds.rooms.iter().find(|room| room.home == spare.slot.home) else { continue };
        let taken = |slot: &Slot| seating.iter().any(|(taken, _)| taken == slot);
        if let Some(slot) = places(own, own.most).find(|slot| !taken(slot)) {
            seating.push((slot, Taker::Spare(spare.worker)));
        }
    }
}

/// The place that the next spare is prepared for: one that nobody has, else the one with the fewest spares.
pub(super) fn hint(taken: &[Slot], spares: &[Slot], rooms: &[Room]) -> Slot {
    let pressure = |slot: &Slot| {
        let standing = spares.iter().filter(|hint| *hint == slot).count();
        (standing + usize::from(taken.contains(slot)), *slot)
    };
    let all = rooms.iter().flat_map(|room| places(room, room.share));
    all.min_by_key(pressure).unwrap_or(Slot { home: Home::OWN, index: LocalRank(0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(home: u32, index: u32) -> Slot {
        Slot { home: Home(home), index: LocalRank(index) }
    }

    fn own(index: u32) -> Slot {
        slot(0, index)
    }

    fn at(pairs: &[(u32, u32)]) -> Vec<Candidate> {
        pairs.iter().map(|(worker, index)| Candidate { worker: WorkerId(*worker), slot: own(*index) }).collect()
    }

    fn room(home: u32, share: u32, most: u32) -> Room {
        Room { home: Home(home), share, most }
    }

    /// One node.
    fn here(fewest: u32, most: u32) -> Bounds {
        Bounds { fewest, most, rooms: vec![room(0, most, most)] }
    }

    fn kept(worker: u32) -> Taker {
        Taker::Kept(WorkerId(worker))
    }

    fn spare(worker: u32) -> Taker {
        Taker::Spare(WorkerId(worker))
    }

    fn slots(seating: Vec<(u32, Taker)>) -> Seating {
        seating.into_iter().map(|(index, taker)| (own(index), taker)).collect()
    }

    #[test]
    fn a_spare_sits_where_it_is_prepared_to_and_a_new_process_where_none_is() {
        let all = &here(3, 3);
        let first = give(&Candidates::default(), all);
        assert_eq!(first, slots(vec![(0, Taker::New), (1, Taker::New), (2, Taker::New)]));
        let candidates = Candidates { kept: at(&[(0, 0)]), warm: at(&[(7, 2)]), warming: at(&[(8, 2)]) };
        assert_eq!(give(&candidates, all), slots(vec![(0, kept(0)), (1, spare(8)), (2, spare(7))]));
        let candidates = Candidates { kept: at(&[(2, 2)]), warm: at(&[(7, 2)]), warming: Vec::new() };
        assert_eq!(give(&candidates, all), slots(vec![(0, spare(7)), (1, Taker::New), (2, kept(2))]));
    }

    #[test]
    fn enough_go_on_without_waiting() {
        let some = &here(1, 3);
        let candidates = Candidates { kept: at(&[(0, 0), (2, 2)]), warm: Vec::new(), warming: at(&[(8, 1)]) };
        assert_eq!(give(&candidates, some), slots(vec![(0, kept(0)), (2, kept(2))]));
        assert_eq!(last(&at(&[(2, 2), (0, 0)])), slots(vec![(0, kept(0)), (2, kept(2))]));
    }

    #[test]
    fn spares_are_prepared_for_who_is_missing_then_for_all_in_turn() {
        let slots = [0, 2].map(own);
        let rooms = [room(0, 3, 3)];
        assert_eq!(hint(&slots, &[], &rooms), own(1));
        let all = [0, 1, 2].map(own);
        let mut spares = Vec::new();
        for expected in [0, 1, 2, 0, 1] {
            assert_eq!(hint(&all, &spares, &rooms), own(expected));
            spares.push(own(expected));
        }
    }

    #[test]
    fn a_smaller_round_keeps_the_first_of_the_list_and_never_has_more_seats() {
        let bounds = &here(1, 2);
        let three = Candidates { kept: at(&[(7, 0), (9, 2), (8, 1)]), ..Candidates::default() };
        assert_eq!(give(&three, bounds), slots(vec![(0, kept(7)), (2, kept(9))]));
        // Index 1 is free, but the seats are given.
        let gap = Candidates { kept: at(&[(7, 0), (9, 2)]), warm: at(&[(4, 1)]), ..Candidates::default() };
        assert_eq!(give(&gap, bounds), slots(vec![(0, kept(7)), (2, kept(9))]));
    }

    #[test]
    fn nobody_changes_the_node_and_a_spare_sits_in_for_another_node_where_its_own_has_room() {
        let bounds = |most| Bounds { fewest: 1, most: 2, rooms: vec![room(0, 1, most), room(1, 1, 1)] };
        let kept = vec![Candidate { worker: WorkerId(0), slot: own(0) }];
        let warm = vec![Candidate { worker: WorkerId(7), slot: own(0) }];
        let candidates = Candidates { kept: kept.clone(), warm, warming: Vec::new() };
        assert_eq!(give(&candidates, &bounds(1)), [(own(0), Taker::Kept(WorkerId(0)))]);
        let both = [(own(0), Taker::Kept(WorkerId(0))), (own(1), Taker::Spare(WorkerId(7)))];
        assert_eq!(give(&candidates, &bounds(4)), both);
        let there = vec![Candidate { worker: WorkerId(8), slot: slot(1, 0) }];
        let warm = [candidates.warm, there].concat();
        let seating = give(&Candidates { kept, warm, warming: Vec::new() }, &bounds(4));
        assert_eq!(seating, [(own(0), Taker::Kept(WorkerId(0))), (slot(1, 0), Taker::Spare(WorkerId(8)))]);
    }

    #[test]
    fn shares_grow_and_shrink_in_turn_within_what_nodes_have_room_for() {
        let asked = [room(0, 2, 3), room(1, 2, 8)];
        let share = |world| shares(&asked, world).iter().map(|room| room.share).collect::<Vec<_>>();
        assert_eq!((share(4), share(5), share(8), share(40)), (vec![2, 2], vec![3, 2], vec![3, 5], vec![3, 8]));
        assert_eq!((share(3), share(1), share(0)), (vec![2, 1], vec![1, 0], vec![0, 0]));
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
            let seating = give(&candidates, &here(fewest, 8));
            let taken: BTreeSet<Slot> = seating.iter().map(|(slot, _)| *slot).collect();
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
