//! Seats of the next round.
//!
//! **Invariant:** a worker that keeps the state of training keeps the index on its node, and with it the device; no worker changes
//! its node. Indices of a round that goes on with fewer workers have gaps; ranks never have.

use super::batch_parts::BatchParts;
use enn_common::id::{LocalRank, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

/// A node of the run, by the number that the supervisor gave it. No number is given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeIndex(pub(super) u32);

impl NodeIndex {
    /// The node of the leader.
    pub(super) const OWN: Self = Self(0);
}

/// A place for a worker: a node, and an index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) node: NodeIndex,
    pub(super) index: LocalRank,
}

/// A process and the slot that it has, or is prepared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SeatCandidate {
    pub(super) worker: WorkerId,
    pub(super) slot: Slot,
    /// It had the slot in a round, so that it can take no other one.
    pub(super) is_bound: bool,
}

/// All processes that could have a seat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SeatCandidates {
    /// Workers that left the round before and stand; those with the state of training come first.
    pub(super) kept: Vec<SeatCandidate>,
    /// Spares that have loaded everything.
    pub(super) warm: Vec<SeatCandidate>,
    /// Spares that are loading.
    pub(super) warming: Vec<SeatCandidate>,
}

/// Number of workers for which a node has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeRoom {
    pub(super) node: NodeIndex,
    /// Workers of the node when none is missing.
    pub(super) workers: u32,
    /// Workers that it can take when another node lacks some.
    pub(super) workers_max: u32,
}

/// Number of seats of a round, and where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeatLimits {
    /// With so many seats the round begins at once.
    pub(super) fewest: u32,
    pub(super) most: u32,
    /// In the order of the nodes.
    pub(super) rooms: Vec<NodeRoom>,
    /// Slots whose device a process holds that cannot be killed.
    pub(super) blocked: BTreeSet<Slot>,
    /// Slots whose device is sick. They do not count: the next one takes the place of each.
    pub(super) left_out: BTreeSet<Slot>,
    /// Spares take no slot but their own.
    pub(super) spares_are_bound: bool,
    /// What the seats share equally.
    pub(super) parts: BatchParts,
}

impl SeatLimits {
    /// Returns the first `count` slots of a node.
    fn slots(&self, node: NodeIndex, count: u32) -> impl Iterator<Item = Slot> {
        let all = (0..).map(move |index| Slot { node, index: LocalRank(index) });
        all.filter(|slot| !self.left_out.contains(slot)).take(count as usize)
    }
}

/// Process for a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taker {
    /// A worker of the round before.
    Kept(WorkerId),
    /// A process that stood by, warm or not.
    Spare(WorkerId),
    /// A process that is started for the seat.
    New,
}

/// A seat; its place in the list is its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlannedSeat {
    pub(super) slot: Slot,
    pub(super) taker: Taker,
}

impl PlannedSeat {
    /// Returns the worker that keeps the seat from the round before.
    pub(super) fn kept(&self) -> Option<WorkerId> {
        match self.taker {
            Taker::Kept(worker) => Some(worker),
            Taker::Spare(_) | Taker::New => None,
        }
    }
}

/// Seats being given, and the slots that are taken.
struct SeatPlan<'a> {
    limits: &'a SeatLimits,
    seats: Vec<PlannedSeat>,
    taken: BTreeSet<Slot>,
}

/// Gives out the seats, as many as share the parts equally. Nobody waits for a process that is starting, unless fewer than `fewest` could go
/// on without.
pub(super) fn give(candidates: &SeatCandidates, limits: &SeatLimits) -> Vec<PlannedSeat> {
    let most = limits.parts.largest(1..=limits.most).unwrap_or(limits.most);
    let fewest = limits.parts.smallest(limits.fewest..=most).unwrap_or(limits.fewest.min(most));
    let limits = SeatLimits { fewest, most, ..limits.clone() };
    let seats = give_all(candidates, &limits);
    let given = u32::try_from(seats.len()).unwrap_or(u32::MAX);
    match limits.parts.largest(1..=given) {
        Some(world) if world < given => give_all(candidates, &SeatLimits { fewest: world, most: world, ..limits }),
        Some(_) | None => seats,
    }
}

/// Gives out as many seats as there can be.
fn give_all(candidates: &SeatCandidates, limits: &SeatLimits) -> Vec<PlannedSeat> {
    let mut plan = SeatPlan { limits, seats: Vec::new(), taken: limits.blocked.clone() };
    // The first of the list: workers with the state of training stand there.
    for kept in candidates.kept.iter().take(limits.most as usize) {
        plan.give(kept.slot, Taker::Kept(kept.worker));
    }
    plan.fill(&candidates.warm);
    if plan.seats.len() < limits.fewest.max(1) as usize {
        plan.fill(&candidates.warming);
        plan.start(|room| room.workers, limits.most);
        plan.start(|room| room.workers_max, limits.fewest);
    }
    plan.seats.sort_by_key(|seat| seat.slot);
    plan.seats
}

/// Seats for workers that save the state that they keep, and for nobody else.
pub(super) fn for_savers(kept: &[SeatCandidate]) -> Vec<PlannedSeat> {
    let seat = |kept: &SeatCandidate| PlannedSeat { slot: kept.slot, taker: Taker::Kept(kept.worker) };
    let mut seats: Vec<PlannedSeat> = kept.iter().map(seat).collect();
    seats.sort_by_key(|seat| seat.slot);
    seats
}

impl SeatPlan<'_> {
    fn give(&mut self, slot: Slot, taker: Taker) {
        self.seats.push(PlannedSeat { slot, taker });
        self.taken.insert(slot);
    }

    fn has_room(&self) -> bool {
        self.seats.len() < self.limits.most as usize
    }

    /// Gives each spare the slot that it is prepared for; to the others one that their node has left, if need be in place of
    /// another node's.
    fn fill(&mut self, spares: &[SeatCandidate]) {
        let mut free: BTreeSet<Slot> =
            self.limits.rooms.iter().flat_map(|room| self.limits.slots(room.node, room.workers)).collect();
        free.retain(|slot| !self.taken.contains(slot));
        let mut others = Vec::new();
        for spare in spares {
            if !free.remove(&spare.slot) {
                if !self.limits.spares_are_bound && !spare.is_bound {
                    others.push(spare);
                }
            } else if self.has_room() {
                self.give(spare.slot, Taker::Spare(spare.worker));
            }
        }
        let mut strangers = Vec::new();
        for spare in others {
            let node = spare.slot.node;
            let first = Slot { node, index: LocalRank(0) };
            match free.range(first..).next().copied().filter(|slot| slot.node == node) {
                Some(slot) if self.has_room() => {
                    free.remove(&slot);
                    self.give(slot, Taker::Spare(spare.worker));
                }
                Some(_) => {}
                None => strangers.push(spare),
            }
        }
        for spare in strangers {
            let room = self.limits.rooms.iter().find(|room| room.node == spare.slot.node);
            let Some(room) = room.filter(|_| self.has_room()) else { continue };
            if let Some(slot) = self.limits.slots(room.node, room.workers_max).find(|slot| !self.taken.contains(slot)) {
                self.give(slot, Taker::Spare(spare.worker));
            }
        }
    }

    /// Gives free slots to new processes until there are `until` seats.
    fn start(&mut self, count: impl Fn(&NodeRoom) -> u32, until: u32) {
        let limits = self.limits;
        for room in &limits.rooms {
            for slot in limits.slots(room.node, count(room)) {
                if self.seats.len() >= until as usize {
                    return;
                }
                if !self.taken.contains(&slot) {
                    self.give(slot, Taker::New);
                }
            }
        }
    }
}

/// Returns the nodes' parts of `world` workers: those that each was asked for, and more or fewer of them in turn when the run was
/// resized.
pub(super) fn spread(asked: &[NodeRoom], world: u32) -> Vec<NodeRoom> {
    let mut rooms = asked.to_vec();
    let mut left = i64::from(world) - rooms.iter().map(|room| i64::from(room.workers)).sum::<i64>();
    while left != 0 {
        let more = left > 0;
        let fits = |room: &&mut NodeRoom| if more { room.workers < room.workers_max } else { room.workers > 0 };
        // The emptiest, or the fullest; the first of equals, or the last.
        let next = if more {
            rooms.iter_mut().filter(fits).min_by_key(|room| room.workers)
        } else {
            rooms.iter_mut().filter(fits).max_by_key(|room| room.workers)
        };
        let Some(next) = next else { break };
        next.workers = if more { next.workers + 1 } else { next.workers - 1 };
        left -= if more { 1 } else { -1 };
    }
    rooms
}

/// Returns the slots that the next `count` spares are prepared for: those that nobody has, else those with the fewest spares.
/// `taken` are the slots of workers with a seat, `spares` those of the spares that stand by.
pub(super) fn spare_slots(
    taken: impl Iterator<Item = Slot>,
    spares: impl Iterator<Item = Slot>,
    limits: &SeatLimits,
    count: usize,
) -> Vec<Slot> {
    let all = limits.rooms.iter().flat_map(|room| limits.slots(room.node, room.workers));
    let mut pressure: BTreeMap<Slot, usize> =
        all.filter(|slot| !limits.blocked.contains(slot)).map(|slot| (slot, 0)).collect();
    for slot in taken.collect::<BTreeSet<_>>().into_iter().chain(spares) {
        if let Some(pressure) = pressure.get_mut(&slot) {
            *pressure += 1;
        }
    }
    let mut order: BTreeSet<(usize, Slot)> = pressure.into_iter().map(|(slot, pressure)| (pressure, slot)).collect();
    let mut found = Vec::new();
    while found.len() < count
        && let Some((pressure, slot)) = order.pop_first()
    {
        order.insert((pressure + 1, slot));
        found.push(slot);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    fn slot(node: u32, index: u32) -> Slot {
        Slot { node: NodeIndex(node), index: LocalRank(index) }
    }

    fn own(index: u32) -> Slot {
        slot(0, index)
    }

    fn at(pairs: &[(u32, u32)]) -> Vec<SeatCandidate> {
        pairs
            .iter()
            .map(|(worker, index)| SeatCandidate { worker: WorkerId(*worker), slot: own(*index), is_bound: false })
            .collect()
    }

    fn room(node: u32, workers: u32, workers_max: u32) -> NodeRoom {
        NodeRoom { node: NodeIndex(node), workers, workers_max }
    }

    fn limits(fewest: u32, most: u32, rooms: Vec<NodeRoom>) -> SeatLimits {
        let parts = BatchParts::default();
        SeatLimits {
            fewest,
            most,
            rooms,
            blocked: BTreeSet::new(),
            left_out: BTreeSet::new(),
            spares_are_bound: false,
            parts,
        }
    }

    /// One node.
    fn here(fewest: u32, most: u32) -> SeatLimits {
        limits(fewest, most, vec![room(0, most, most)])
    }

    fn kept(worker: u32) -> Taker {
        Taker::Kept(WorkerId(worker))
    }

    fn spare(worker: u32) -> Taker {
        Taker::Spare(WorkerId(worker))
    }

    fn seats(seats: Vec<(u32, Taker)>) -> Vec<PlannedSeat> {
        seats.into_iter().map(|(index, taker)| PlannedSeat { slot: own(index), taker }).collect()
    }

    #[test]
    fn a_spare_sits_where_it_is_prepared_to_and_a_new_process_where_none_is() {
        let all = &here(3, 3);
        let first = give(&SeatCandidates::default(), all);
        assert_eq!(first, seats(vec![(0, Taker::New), (1, Taker::New), (2, Taker::New)]));
        let candidates = SeatCandidates { kept: at(&[(0, 0)]), warm: at(&[(7, 2)]), warming: at(&[(8, 2)]) };
        assert_eq!(give(&candidates, all), seats(vec![(0, kept(0)), (1, spare(8)), (2, spare(7))]));
        let candidates = SeatCandidates { kept: at(&[(2, 2)]), warm: at(&[(7, 2)]), warming: Vec::new() };
        assert_eq!(give(&candidates, all), seats(vec![(0, spare(7)), (1, Taker::New), (2, kept(2))]));
    }

    #[test]
    fn enough_go_on_without_waiting() {
        let some = &here(1, 3);
        let candidates = SeatCandidates { kept: at(&[(0, 0), (2, 2)]), warm: Vec::new(), warming: at(&[(8, 1)]) };
        assert_eq!(give(&candidates, some), seats(vec![(0, kept(0)), (2, kept(2))]));
        assert_eq!(for_savers(&at(&[(2, 2), (0, 0)])), seats(vec![(0, kept(0)), (2, kept(2))]));
    }

    #[test]
    fn spares_are_prepared_for_who_is_missing_then_for_all_in_turn() {
        let bounds = here(3, 3);
        let next = |taken: &[u32], count| {
            spare_slots(taken.iter().map(|index| own(*index)), std::iter::empty(), &bounds, count)
        };
        assert_eq!(next(&[0, 2], 1), [own(1)]);
        assert_eq!(next(&[0, 1, 2], 5), [0, 1, 2, 0, 1].map(own));
    }

    #[test]
    fn a_smaller_round_keeps_the_first_of_the_list_and_never_has_more_seats() {
        let bounds = &here(1, 2);
        let three = SeatCandidates { kept: at(&[(7, 0), (9, 2), (8, 1)]), ..SeatCandidates::default() };
        assert_eq!(give(&three, bounds), seats(vec![(0, kept(7)), (2, kept(9))]));
        // Index 1 is free, but the seats are given.
        let gap = SeatCandidates { kept: at(&[(7, 0), (9, 2)]), warm: at(&[(4, 1)]), ..SeatCandidates::default() };
        assert_eq!(give(&gap, bounds), seats(vec![(0, kept(7)), (2, kept(9))]));
    }

    #[test]
    fn nobody_changes_the_node_and_a_spare_sits_in_for_another_node_where_its_own_has_room() {
        let bounds = |most| limits(1, 2, vec![room(0, 1, most), room(1, 1, 1)]);
        let at = |worker, slot| SeatCandidate { worker: WorkerId(worker), slot, is_bound: false };
        let kept = vec![at(0, own(0))];
        let warm = vec![at(7, own(0))];
        let candidates = SeatCandidates { kept: kept.clone(), warm, warming: Vec::new() };
        let seat = |slot, taker| PlannedSeat { slot, taker };
        assert_eq!(give(&candidates, &bounds(1)), [seat(own(0), Taker::Kept(WorkerId(0)))]);
        let both = [seat(own(0), Taker::Kept(WorkerId(0))), seat(own(1), Taker::Spare(WorkerId(7)))];
        assert_eq!(give(&candidates, &bounds(4)), both);
        let there = vec![at(8, slot(1, 0))];
        let warm = [candidates.warm, there].concat();
        let seats = give(&SeatCandidates { kept, warm, warming: Vec::new() }, &bounds(4));
        assert_eq!(seats, [seat(own(0), Taker::Kept(WorkerId(0))), seat(slot(1, 0), Taker::Spare(WorkerId(8)))]);
    }

    #[test]
    fn a_blocked_slot_is_not_given_away() {
        let blocked = BTreeSet::from([own(1)]);
        let bounds = SeatLimits { blocked: blocked.clone(), ..here(3, 3) };
        assert_eq!(give(&SeatCandidates::default(), &bounds), seats(vec![(0, Taker::New), (2, Taker::New)]));
        let bounds = SeatLimits { blocked, ..limits(3, 3, vec![room(0, 3, 4)]) };
        let all = [0, 2, 3].map(|index| (index, Taker::New)).to_vec();
        assert_eq!(give(&SeatCandidates::default(), &bounds), seats(all));
        let warm = SeatCandidates { warm: at(&[(7, 1)]), ..SeatCandidates::default() };
        assert_eq!(give(&warm, &bounds)[0], PlannedSeat { slot: own(0), taker: spare(7) });
    }

    #[test]
    fn a_world_shares_the_parts_equally() {
        let cut = |fewest, most, parts| SeatLimits { parts: BatchParts(NonZeroU32::new(parts)), ..here(fewest, most) };
        let three = SeatCandidates { kept: at(&[(0, 0), (2, 2), (3, 3)]), ..SeatCandidates::default() };
        assert_eq!(give(&three, &cut(1, 4, 8)), seats(vec![(0, kept(0)), (2, kept(2))]));
        assert_eq!(give(&three, &cut(1, 4, 12)).len(), 3);
        // Too few of them share the parts: a new process makes up the number.
        assert_eq!(give(&three, &cut(3, 4, 8))[1], PlannedSeat { slot: own(1), taker: Taker::New });
        let four = SeatCandidates { warm: at(&[(7, 1)]), warming: at(&[(8, 4)]), ..three };
        assert_eq!(give(&four, &cut(1, 5, 8)).len(), 4);
        let bound = SeatCandidate { is_bound: true, ..at(&[(7, 2)])[0] };
        let stays = SeatCandidates { kept: at(&[(0, 0), (2, 2)]), warm: vec![bound], warming: Vec::new() };
        assert_eq!(give(&stays, &cut(1, 4, 8)).len(), 2, "it has another device than the one that is free");
    }

    #[test]
    fn shares_grow_and_shrink_in_turn_within_what_nodes_have_room_for() {
        let asked = [room(0, 2, 3), room(1, 2, 8)];
        let share = |world| spread(&asked, world).iter().map(|room| room.workers).collect::<Vec<_>>();
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
            parts in 1u32..=24,
        ) {
            let numbered = |from: u32, slots: Vec<u32>| {
                at(&slots.into_iter().enumerate().map(|(n, slot)| (from + n as u32, slot)).collect::<Vec<_>>())
            };
            let kept: Vec<u32> = kept.into_iter().collect();
            let candidates = SeatCandidates {
                kept: numbered(0, kept.clone()),
                warm: numbered(100, warm.clone()),
                warming: numbered(200, warming),
            };
            let cut = SeatLimits { parts: BatchParts(NonZeroU32::new(parts)), ..here(fewest, 8) };
            let shared = give(&candidates, &cut);
            let sizes = |range: std::ops::RangeInclusive<u32>| cut.parts.largest(range).unwrap_or(0) as usize;
            prop_assert_eq!(parts as usize % shared.len(), 0);
            prop_assert!(shared.len() >= fewest as usize || sizes(fewest..=8) == 0);
            prop_assert!(shared.iter().map(|seat| seat.slot).collect::<BTreeSet<Slot>>().len() == shared.len());
            let seats = give(&candidates, &here(fewest, 8));
            let taken: BTreeSet<Slot> = seats.iter().map(|seat| seat.slot).collect();
            prop_assert_eq!(taken.len(), seats.len());
            prop_assert!(seats.len() >= fewest as usize && seats.len() <= 8);
            for candidate in &candidates.kept {
                let seat = PlannedSeat { slot: candidate.slot, taker: Taker::Kept(candidate.worker) };
                prop_assert!(seats.contains(&seat));
            }
            let ready = kept.len() + warm.len();
            let waits = seats.iter().any(|seat| seat.taker == Taker::New);
            prop_assert!(!waits || ready < fewest as usize);
            prop_assert!(ready < fewest as usize || seats.len() == ready.min(8));
        }
    }
}
