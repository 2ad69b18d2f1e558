//! Nodes of the run and their membership.
//!
//! **Invariant:** commands go only to nodes that sent an inventory, and none to a node that is lost.

use super::{
    input::Time,
    seating::{NodeIndex, NodeRoom, Slot},
    worker_table::slot,
};
use crate::rendezvous::NodeId;
use enn_common::{
    event::NodeBrief,
    wire::node_agent::{DeviceFailure, Epoch, Inventory},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Whether the workers of a node are to leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    Asked,
    /// The node was told to leave the run.
    Told,
}

/// A device that its node takes for broken.
#[derive(Debug, Clone)]
struct SickDevice {
    failure: DeviceFailure,
    /// It was looked at whether the run can do without it.
    is_decided: bool,
    is_left_out: bool,
}

/// A node that sent its inventory.
#[derive(Debug, Clone)]
pub(super) struct NodeEntry {
    pub(super) id: NodeId,
    pub(super) host: String,
    /// Workers when none is missing.
    workers: u32,
    /// Workers for which the node has room.
    workers_max: u32,
    /// By local rank.
    sick: BTreeMap<u32, SickDevice>,
    leaving: Leaving,
    /// Number of requests in the newest snapshot that it acknowledged.
    acknowledged: u64,
    /// Time of the last event of its agent.
    pub(super) last_event_at: Time,
}

impl NodeEntry {
    /// Returns the number of workers for which devices are left. Those beyond the workers of the node take the places of devices that are
    /// left out.
    fn seats(&self) -> u32 {
        let devices = self.sick.values().map(|sick| sick.failure.devices).max().unwrap_or(0).max(self.workers_max);
        let left_out = self.sick.values().filter(|sick| sick.is_left_out).count();
        let left = devices.saturating_sub(u32::try_from(left_out).unwrap_or(u32::MAX));
        left.min(self.workers_max)
    }
}

/// The nodes, and who takes part.
#[derive(Debug, Default)]
pub(super) struct NodeTable {
    own: NodeId,
    nodes: BTreeMap<NodeIndex, NodeEntry>,
    by_id: BTreeMap<NodeId, NodeIndex>,
    next: u32,
    leaving: BTreeSet<NodeIndex>,
    /// Nodes whose workers were given up with them.
    lost: BTreeSet<NodeId>,
    /// The present membership; `None`: the nodes have to agree.
    epoch: Option<Epoch>,
    /// The last membership.
    pub(super) last_epoch: Epoch,
    /// Members that have not sent their inventory.
    awaited: BTreeSet<NodeId>,
    /// Time when the membership was formed.
    since: Time,
    /// No node joins any more.
    pub(super) is_over: bool,
    /// No node needs to be looked at for silence before.
    silence_check: Time,
}

/// What an inventory is to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Welcome {
    /// It belongs to another membership, or its node is no member.
    Stray,
    Known(NodeIndex),
    New(NodeIndex),
}

impl NodeTable {
    pub(super) fn new(own: NodeId) -> Self {
        Self { own, next: 1, ..Self::default() }
    }

    /// The nodes agreed; returns known nodes that are no members any more.
    pub(super) fn formed(&mut self, epoch: Epoch, members: &[NodeId], now: Time) -> Vec<NodeId> {
        self.epoch = Some(epoch);
        self.last_epoch = epoch;
        self.awaited = members.iter().copied().collect();
        self.since = now;
        self.silence_check = now;
        self.by_id.keys().filter(|id| !self.awaited.contains(id)).copied().collect()
    }

    /// The nodes have to agree again.
    pub(super) fn reopened(&mut self) {
        self.epoch = None;
        self.awaited.clear();
    }

    /// Returns the present membership.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// Returns whether a round can begin: all members are here, or none comes any more.
    pub(super) fn is_settled(&self) -> bool {
        self.is_over || (self.epoch.is_some() && self.awaited.is_empty())
    }

    /// Returns whether a member has not sent its inventory.
    pub(super) fn is_awaiting(&self) -> bool {
        !self.is_over && !self.awaited.is_empty()
    }

    /// A node sent its inventory.
    pub(super) fn welcome(&mut self, id: NodeId, inventory: &Inventory, now: Time) -> Welcome {
        if self.epoch != Some(inventory.epoch) {
            return Welcome::Stray;
        }
        let expected = self.awaited.remove(&id);
        if let Some(index) = self.by_id.get(&id) {
            return Welcome::Known(*index);
        }
        if !expected {
            return Welcome::Stray;
        }
        let index = if id == self.own { NodeIndex::OWN } else { NodeIndex(self.next) };
        self.next += u32::from(id != self.own);
        let workers = inventory.workers;
        let workers_max = inventory.workers_max.max(workers);
        let host = inventory.host.clone();
        self.nodes.insert(
            index,
            NodeEntry {
                id,
                host,
                workers,
                workers_max,
                sick: BTreeMap::new(),
                leaving: Leaving::No,
                acknowledged: 0,
                last_event_at: now,
            },
        );
        self.by_id.insert(id, index);
        Welcome::New(index)
    }

    /// A node is gone; returns its number and whether its workers were to leave it.
    pub(super) fn lose(&mut self, id: NodeId) -> Option<LostNode> {
        self.awaited.remove(&id);
        let index = self.by_id.remove(&id)?;
        self.nodes.remove(&index);
        let was_leaving = self.leaving.remove(&index);
        self.lost.insert(id);
        Some(LostNode { index, was_leaving })
    }

    /// Returns whether the node was lost once.
    pub(super) fn was_lost(&self, id: NodeId) -> bool {
        self.lost.contains(&id)
    }

    pub(super) fn get(&self, index: NodeIndex) -> Option<&NodeEntry> {
        self.nodes.get(&index)
    }

    pub(super) fn index(&self, id: NodeId) -> Option<NodeIndex> {
        self.by_id.get(&id).copied()
    }

    /// Notes that the agent of a node lives; returns its number.
    pub(super) fn note_event(&mut self, id: NodeId, now: Time) -> Option<NodeIndex> {
        let index = self.index(id)?;
        if let Some(node) = self.nodes.get_mut(&index) {
            node.last_event_at = now;
        }
        Some(index)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.values().map(|node| node.id)
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = NodeIndex> {
        self.nodes.keys().copied()
    }

    /// Returns the nodes but that of the leader.
    pub(super) fn others(&self) -> impl Iterator<Item = &NodeEntry> {
        self.nodes.iter().filter(|(index, _)| **index != NodeIndex::OWN).map(|(_, node)| node)
    }

    /// A node knows so many requests.
    pub(super) fn acknowledged(&mut self, id: NodeId, requests: u64) {
        if let Some(node) = self.index(id).and_then(|index| self.nodes.get_mut(&index)) {
            node.acknowledged = node.acknowledged.max(requests);
        }
    }

    /// Returns the nodes but that of the leader that do not know so many requests.
    pub(super) fn unaware(&self, requests: u64) -> BTreeSet<NodeId> {
        self.others().filter(|node| node.acknowledged < requests).map(|node| node.id).collect()
    }

    pub(super) fn are_several(&self) -> bool {
        self.others().next().is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the nodes with this host's name.
    pub(super) fn on_host(&self, host: &str) -> Vec<NodeIndex> {
        self.nodes.iter().filter(|(_, node)| node.host == host).map(|(index, _)| *index).collect()
    }

    /// Returns the nodes whose workers stay, for the journal.
    pub(super) fn briefs(&self) -> Vec<NodeBrief> {
        let brief = |node: &NodeEntry| NodeBrief { host: node.host.clone(), workers: node.workers };
        self.nodes.values().filter(|node| node.leaving == Leaving::No).map(brief).collect()
    }

    /// Returns the room on the nodes whose workers stay.
    pub(super) fn rooms(&self) -> Vec<NodeRoom> {
        let staying = self.nodes.iter().filter(|(_, node)| node.leaving == Leaving::No);
        staying.filter_map(|(index, _)| self.room(*index)).collect()
    }

    pub(super) fn room(&self, index: NodeIndex) -> Option<NodeRoom> {
        let node = self.nodes.get(&index)?;
        let workers_max = node.seats();
        Some(NodeRoom { node: index, workers: node.workers.min(workers_max), workers_max })
    }

    /// Returns the workers that the nodes whose workers stay were asked for.
    pub(super) fn asked(&self) -> u32 {
        self.nodes.values().filter(|node| node.leaving == Leaving::No).map(|node| node.workers).sum()
    }

    /// Returns the most workers for which these nodes have room.
    pub(super) fn seats(&self) -> u32 {
        self.rooms().iter().fold(0, |most, room| most.saturating_add(room.workers_max))
    }

    /// Notes that a device is sick.
    pub(super) fn note_sick(&mut self, index: NodeIndex, failure: DeviceFailure) {
        if let Some(node) = self.nodes.get_mut(&index) {
            let local_rank = failure.local_rank;
            let sick = SickDevice { failure, is_decided: false, is_left_out: false };
            node.sick.entry(local_rank).or_insert(sick);
        }
    }

    /// Returns the sick devices that are not left out.
    pub(super) fn sick_devices(&self) -> Vec<(NodeIndex, DeviceFailure)> {
        let sick = self.nodes.iter().flat_map(|(index, node)| node.sick.values().map(|sick| (*index, sick)));
        sick.filter(|(_, sick)| !sick.is_left_out).map(|(index, sick)| (index, sick.failure.clone())).collect()
    }

    /// Leaves a sick device out if so many seats remain; returns whether they do.
    pub(super) fn leave_out(&mut self, index: NodeIndex, local_rank: u32, needed: u32) -> bool {
        self.set_left_out(index, local_rank, true);
        let is_possible = self.seats() >= needed;
        self.set_left_out(index, local_rank, is_possible);
        is_possible
    }

    fn set_left_out(&mut self, index: NodeIndex, local_rank: u32, is_left_out: bool) {
        if let Some(sick) = self.nodes.get_mut(&index).and_then(|node| node.sick.get_mut(&local_rank)) {
            sick.is_left_out = is_left_out;
        }
    }

    /// Notes that it was decided about a sick device; returns whether it was not before.
    pub(super) fn note_decided(&mut self, index: NodeIndex, local_rank: u32) -> bool {
        let sick = self.nodes.get_mut(&index).and_then(|node| node.sick.get_mut(&local_rank));
        sick.is_some_and(|sick| !std::mem::replace(&mut sick.is_decided, true))
    }

    /// Returns the slots whose devices are left out.
    pub(super) fn left_out(&self) -> BTreeSet<Slot> {
        let slots = |(index, node): (&NodeIndex, &NodeEntry)| {
            let left_out = node.sick.iter().filter(|(_, sick)| sick.is_left_out);
            left_out.map(|(local_rank, _)| slot(*index, *local_rank)).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(slots).collect()
    }

    /// Returns the nodes whose workers are to leave.
    pub(super) fn leaving(&self) -> &BTreeSet<NodeIndex> {
        &self.leaving
    }

    /// Returns whether the workers of all nodes are to leave, that of the leader included.
    pub(super) fn are_all_leaving(&self) -> bool {
        self.leaving.contains(&NodeIndex::OWN) && self.leaving.len() == self.nodes.len()
    }

    /// The workers of a node are to leave it.
    pub(super) fn leave(&mut self, index: NodeIndex) {
        if let Some(node) = self.nodes.get_mut(&index).filter(|node| node.leaving == Leaving::No) {
            node.leaving = Leaving::Asked;
            self.leaving.insert(index);
        }
    }

    /// The workers of a node stay after all.
    pub(super) fn stay(&mut self, index: NodeIndex) {
        if let Some(node) = self.nodes.get_mut(&index) {
            node.leaving = Leaving::No;
            self.leaving.remove(&index);
        }
    }

    /// Notes that a node whose workers have left it is told to leave the run; returns the node, once.
    pub(super) fn dismiss(&mut self, index: NodeIndex) -> Option<NodeId> {
        let node = self.nodes.get_mut(&index).filter(|node| node.leaving == Leaving::Asked)?;
        node.leaving = Leaving::Told;
        Some(node.id)
    }

    /// Forgets all nodes but that of the leader: another one leads them.
    pub(super) fn forget_others(&mut self) {
        let own = self.own;
        self.nodes.retain(|index, _| *index == NodeIndex::OWN);
        self.by_id.retain(|id, _| *id == own);
        self.leaving.retain(|index| *index == NodeIndex::OWN);
        self.awaited.clear();
        self.is_over = true;
    }

    /// Returns when the nodes are looked at for silence next.
    pub(super) fn silence_check(&self, limit: Duration) -> Option<Time> {
        let has_others = self.are_several() || self.is_awaiting();
        has_others.then(|| self.silence_check.max(Time::ZERO) + limit)
    }

    /// A process is started on the node: its agent has something to report from now on.
    pub(super) fn expect_reports(&mut self, index: NodeIndex, now: Time) {
        if let Some(node) = self.nodes.get_mut(&index) {
            node.last_event_at = now;
        }
    }

    /// Returns the nodes whose agents must have sent something by now: those that have workers, and members without an inventory.
    /// The leader's own is never silent.
    pub(super) fn silent(
        &mut self,
        limit: Duration,
        now: Time,
        has_workers: impl Fn(NodeIndex) -> bool,
    ) -> Vec<NodeId> {
        if self.silence_check(limit).is_none_or(|at| at > now) {
            return Vec::new();
        }
        let awaited: Vec<NodeId> = if self.is_over { Vec::new() } else { self.awaited.iter().copied().collect() };
        let reporting = |index: NodeIndex| index != NodeIndex::OWN && has_workers(index);
        let last =
            self.nodes.iter().filter(|(index, _)| reporting(**index)).map(|(_, node)| (node.last_event_at, node.id));
        let all: Vec<(Time, NodeId)> = last.chain(awaited.into_iter().map(|id| (self.since, id))).collect();
        let (silent, heard): (Vec<_>, Vec<_>) = all.into_iter().partition(|(at, _)| *at + limit <= now);
        self.silence_check = heard.iter().map(|(at, _)| *at).min().unwrap_or(now);
        silent.into_iter().map(|(_, id)| id).filter(|id| *id != self.own).collect()
    }
}

/// A node that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LostNode {
    pub(super) index: NodeIndex,
    pub(super) was_leaving: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch_of(number: u64) -> Epoch {
        Epoch { number, leader: NodeId(1) }
    }

    fn inventory(epoch: u64) -> Inventory {
        let host = "n2".to_owned();
        Inventory {
            epoch: epoch_of(epoch),
            host,
            workers: 1,
            workers_max: 1,
            living: Vec::new(),
            snapshot: None,
            stop: None,
        }
    }

    #[test]
    fn only_members_are_let_in_and_silence_has_a_limit() {
        let limit = Duration::from_secs(60);
        let mut nodes = NodeTable::new(NodeId(1));
        assert_eq!(nodes.silence_check(limit), None);
        let at = Duration::from_secs;
        nodes.formed(epoch_of(4), &[NodeId(1), NodeId(2)], at(1));
        assert_eq!(nodes.welcome(NodeId(3), &inventory(4), at(1)), Welcome::Stray);
        assert_eq!(nodes.welcome(NodeId(2), &inventory(3), at(1)), Welcome::Stray);
        assert!(nodes.is_awaiting() && !nodes.is_settled());
        assert_eq!(nodes.welcome(NodeId(1), &inventory(4), at(1)), Welcome::New(NodeIndex::OWN));
        assert_eq!(nodes.silent(limit, at(61), |_| true), [NodeId(2)]);
        assert_eq!(nodes.welcome(NodeId(2), &inventory(4), at(2)), Welcome::New(NodeIndex(1)));
        assert_eq!(nodes.welcome(NodeId(2), &inventory(4), at(2)), Welcome::Known(NodeIndex(1)));
        assert!(nodes.is_settled());
        nodes.note_event(NodeId(2), at(50));
        assert_eq!(nodes.silent(limit, at(109), |_| true), []);
        assert_eq!(nodes.silent(limit, at(121), |_| true), [NodeId(2)]);
        assert_eq!(nodes.silent(limit, at(200), |_| false), [], "it has nothing to report");
        assert_eq!(nodes.lose(NodeId(2)), Some(LostNode { index: NodeIndex(1), was_leaving: false }));
        assert_eq!(nodes.welcome(NodeId(2), &inventory(4), at(3)), Welcome::Stray, "an event of one that is lost");
    }
}
