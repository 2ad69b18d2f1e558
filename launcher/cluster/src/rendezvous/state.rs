//! State of the rendezvous on the leader. Pure: events have their time as a parameter, and effects go out through
//! `take_effects`.
//!
//! **Invariant:** an event costs O(log n) for n nodes; the begin and the end of a round, which concern all nodes, cost
//! O(n log n).

use super::{
    Elapsed,
    decision::{Decision, Reason},
    node_loss::{NodeLoss, PendingLoss},
    partition::{PartitionSide, has_quorum},
    settings::Settings,
};
use enn_common::wire::node::{
    FromLeader, LastRound, Members, NodeDescription, NodeId, Roster, RoundEnd, RunEnd, Successor,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

/// Largest number of successors in a roster: there would be no time to try more.
pub(super) const SUCCESSORS_MAX: usize = 16;

/// Phase of a node in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodePhase {
    /// The node does not ask for a round: workers of the last one still live there.
    NotReady,
    /// The node asks for the next round.
    Ready,
    /// Workers of the node run.
    Running,
    /// All workers of the node exited with code 0.
    Done,
}

/// A node that is connected.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) description: NodeDescription,
    pub(super) phase: NodePhase,
    /// Time of the last message.
    pub(super) last_seen: Elapsed,
    /// Position among the nodes in the order in which they became ready.
    order: u64,
    /// Rank in the last round, if the node was a member.
    pub(super) last_rank: Option<u32>,
    /// Whether the node was a member of the round before the last.
    in_round_before: bool,
    /// Whether the node has confirmed the last round.
    has_roster: bool,
}

/// Stage of the run.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RunStage {
    /// Nodes join.
    Gathering,
    /// This node took over from a lost leader, and waits for the nodes of the last round until this time.
    TakingOver(Elapsed),
    /// A round runs.
    Running,
    /// The run has ended.
    Over(RunEnd),
}

/// Restart after a round that the supervisor ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Restart {
    /// Restarts of the run, with this one.
    pub(super) number: u32,
    /// Time from the end of the round to the next one.
    pub(super) wait: Duration,
}

/// Effect of an event or a decision, for the coordinator.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RendezvousEffect {
    /// Send a node its last message, and end its session.
    Close(NodeId, FromLeader),
    /// Send a message to nodes.
    Send(Vec<NodeId>, FromLeader),
    /// Send all nodes their last message, and end their sessions.
    CloseAll(FromLeader),
    /// Begin a round with these nodes, by rank.
    Begin { roster: Arc<Roster>, ranks: Vec<NodeId> },
    /// Record in the journal that a node joined.
    Joined { node: NodeId, host: String, workers: u32 },
    /// Record in the journal that a node was lost.
    Lost { node: NodeId, host: String, reason: String },
}

/// State of the rendezvous on its leader.
#[derive(Debug)]
pub(super) struct State {
    /// Agent of the leader.
    pub(super) leader: NodeId,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    /// Nodes that ask for the next round, in the order in which they became ready.
    pub(super) ready: BTreeSet<(u64, NodeId)>,
    /// Nodes of the last round that do not ask for the next one yet: their workers are stopping.
    pub(super) stopping: BTreeSet<NodeId>,
    /// Nodes by their fixed ranks.
    pub(super) ranks: HashMap<u32, NodeId>,
    /// Fixed ranks of which no node is ready.
    pub(super) missing: BTreeSet<u32>,
    pub(super) stage: RunStage,
    /// Number of rounds that have begun.
    pub(super) rounds: u64,
    /// Number of living members of the current round.
    pub(super) running: usize,
    /// Number of those members whose workers are done.
    pub(super) done: usize,
    /// Members of the last round on this side of the network.
    pub(super) side: PartitionSide,
    /// Members of the round before the last, until all members of the last round have confirmed it. A node that was cut
    /// off in between counts by the older round, and its side must not go on as well.
    side_before: Option<PartitionSide>,
    /// Number of members that have not confirmed the last round.
    unaware: usize,
    /// Time at which gathering began.
    pub(super) opened_at: Elapsed,
    /// Time at which the last node became ready.
    pub(super) last_join: Elapsed,
    /// Earliest begin of the next round.
    pub(super) not_before: Elapsed,
    pub(super) pending_loss: Option<PendingLoss>,
    /// Number of nodes that could take over from this leader.
    pub(super) successor_count: usize,
    /// Last node that was lost, for a run that ends because it has too few.
    pub(super) last_loss: Option<(String, NodeLoss)>,
    /// Restarts of the run, from its supervisor.
    pub(super) restarts: u32,
    /// Nodes that asked for the next round before the end of this one.
    ready_early: Vec<NodeId>,
    joined: u64,
    effects: Vec<RendezvousEffect>,
}

impl State {
    /// Returns a rendezvous without nodes.
    pub(super) fn open(leader: NodeId, settings: &Settings, now: Elapsed) -> Self {
        let missing = if settings.node_rank.is_some() { (0..settings.nodes_max).collect() } else { BTreeSet::new() };
        Self {
            leader,
            nodes: BTreeMap::new(),
            ready: BTreeSet::new(),
            stopping: BTreeSet::new(),
            ranks: HashMap::new(),
            missing,
            stage: RunStage::Gathering,
            rounds: 0,
            running: 0,
            done: 0,
            side: PartitionSide { nodes: 0, dead: 0, here: 0, with_leader: true },
            side_before: None,
            unaware: 0,
            opened_at: now,
            last_join: now,
            not_before: now,
            pending_loss: None,
            successor_count: 0,
            last_loss: None,
            restarts: 0,
            ready_early: Vec::new(),
            joined: 0,
            effects: Vec::new(),
        }
    }

    /// Returns the rendezvous of a run whose leader was lost. It waits for the members of the last round until
    /// `deadline`.
    pub(super) fn take_over(
        leader: NodeId,
        last: &Roster,
        dead: usize,
        settings: &Settings,
        now: Elapsed,
        deadline: Elapsed,
    ) -> Self {
        let mut state = Self::open(leader, settings, now);
        state.rounds = last.round + 1;
        state.side = PartitionSide { nodes: last.members.len(), dead, here: 0, with_leader: false };
        state.stage = RunStage::TakingOver(deadline);
        state
    }

    /// Returns the effects since the last call.
    pub(super) fn take_effects(&mut self) -> Vec<RendezvousEffect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the host names of the first `max` of `ids`.
    pub(super) fn names(&self, ids: impl Iterator<Item = NodeId>, max: usize) -> Vec<String> {
        ids.take(max).filter_map(|id| Some(self.nodes.get(&id)?.description.host.clone())).collect()
    }

    /// Whether the run has to stop because a node left: too few are left, or it was the leader and no node can take
    /// over.
    pub(super) fn must_stop(&self, settings: &Settings) -> bool {
        let leader_left = !self.nodes.contains_key(&self.leader);
        self.nodes.len() < settings.nodes_min as usize || (leader_left && self.successor_count == 0)
    }

    /// Whether the members of the last round may form a round again without a last call.
    pub(super) fn reforming(&self) -> bool {
        self.rounds > 0
    }

    /// Adds a node. Returns false for one that may not take part; an effect tells it the reason.
    pub(super) fn join(&mut self, now: Elapsed, description: NodeDescription, settings: &Settings) -> bool {
        let id = description.node;
        if let RunStage::Over(end) = &self.stage {
            self.effects.push(RendezvousEffect::Close(id, FromLeader::RunEnded(end.clone())));
            return false;
        }
        if self.nodes.contains_key(&id) {
            // The node lost the connection that is open here, and came back.
            self.lose(now, id, NodeLoss::Closed);
        }
        if let Some(reason) = self.join_error(&description, settings) {
            self.effects.push(RendezvousEffect::Close(id, FromLeader::Refused { reason }));
            return false;
        }
        if let Some(rank) = description.node_rank {
            self.ranks.insert(rank, id);
        }
        let last_rank = self.last_rank_of(&description);
        self.effects.push(RendezvousEffect::Joined {
            node: id,
            host: description.host.clone(),
            workers: description.local_world,
        });
        self.nodes.insert(
            id,
            Node {
                description,
                phase: NodePhase::NotReady,
                last_seen: now,
                order: 0,
                last_rank,
                in_round_before: false,
                has_roster: true,
            },
        );
        if last_rank.is_some() {
            self.side.here += 1;
            self.stopping.insert(id);
        }
        true
    }

    /// Returns the rank of a joining node in the last round, if this node took over from its leader. The old leader may
    /// have died while it began a round: then some nodes come from that round and some from the one before.
    fn last_rank_of(&mut self, description: &NodeDescription) -> Option<u32> {
        let LastRound { round, node_rank, dead } = description.last.as_ref()?;
        if !matches!(self.stage, RunStage::TakingOver(_)) || (round + 1).abs_diff(self.rounds) > 1 {
            return None;
        }
        self.rounds = self.rounds.max(round + 1);
        self.side.dead = self.side.dead.max(dead.len());
        Some(*node_rank)
    }

    fn join_error(&self, description: &NodeDescription, settings: &Settings) -> Option<String> {
        if let Some(mismatch) = mismatch(description, settings) {
            return Some(mismatch);
        }
        let rank = description.node_rank?;
        if rank >= settings.nodes_max {
            let host = &description.host;
            let max = settings.nodes_max;
            return Some(format!(
                "node rank {rank} of {host} is too large for {max} nodes\nhint: ranks are 0 to {} (--node-rank)",
                max.saturating_sub(1)
            ));
        }
        let other = self.nodes.get(self.ranks.get(&rank)?)?;
        Some(format!(
            "node rank {rank} is wanted by {} and taken by {}\nhint: give every node its own --node-rank",
            description.host, other.description.host
        ))
    }

    /// A node asks for the next round: it has no worker of the last one any more.
    pub(super) fn ready(&mut self, now: Elapsed, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        match node.phase {
            NodePhase::Ready => return,
            NodePhase::NotReady => {}
            // The node did not report the end of its round: nothing may wait for its workers.
            NodePhase::Running | NodePhase::Done => {
                let host = node.description.host.clone();
                self.pending_loss
                    .get_or_insert(PendingLoss { host, loss: NodeLoss::Left("its workers are gone".into()) });
                return self.ready_early.push(id);
            }
        }
        node.phase = NodePhase::Ready;
        node.last_seen = now;
        node.order = self.joined;
        self.joined += 1;
        self.ready.insert((node.order, id));
        self.stopping.remove(&id);
        if let Some(rank) = node.description.node_rank {
            self.missing.remove(&rank);
        }
        self.last_join = now;
    }

    /// All workers of a node exited with code 0.
    pub(super) fn finish(&mut self, id: NodeId, round: u64) {
        if self.runs(id, round)
            && let Some(node) = self.nodes.get_mut(&id)
        {
            node.phase = NodePhase::Done;
            self.done += 1;
        }
    }

    fn runs(&self, id: NodeId, round: u64) -> bool {
        self.stage == RunStage::Running
            && round + 1 == self.rounds
            && self.nodes.get(&id).is_some_and(|node| node.phase == NodePhase::Running)
    }

    /// A node lives, and may report the last round that it received.
    pub(super) fn alive(&mut self, now: Elapsed, id: NodeId, round: Option<u64>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.last_seen = now;
        if !node.has_roster && round.is_some_and(|round| round + 1 == self.rounds) {
            node.has_roster = true;
            self.unaware -= 1;
            if self.unaware == 0 {
                self.side_before = None;
            }
        }
    }

    /// Whether the connected nodes are a quorum of the last round.
    pub(super) fn has_quorum(&self) -> bool {
        has_quorum(self.side) && self.side_before.is_none_or(has_quorum)
    }

    /// Returns the nodes that have been silent for too long, though this leader has run since `from`. The leader's own
    /// node is never silent.
    pub(super) fn silent(&self, now: Elapsed, from: Elapsed, settings: &Settings) -> Vec<(NodeId, Duration)> {
        let quiet = |node: &Node| now.saturating_sub(node.last_seen.max(from));
        let others = self.nodes.iter().filter(|(id, _)| **id != self.leader);
        others.filter(|(_, node)| quiet(node) > settings.silence_max).map(|(id, node)| (*id, quiet(node))).collect()
    }

    /// A node was lost.
    pub(super) fn lose(&mut self, now: Elapsed, id: NodeId, loss: NodeLoss) {
        let Some(node) = self.nodes.remove(&id) else { return };
        let host = node.description.host.clone();
        self.ready.remove(&(node.order, id));
        self.stopping.remove(&id);
        if let Some(rank) = node.description.node_rank {
            self.ranks.remove(&rank);
            self.missing.insert(rank);
        }
        if node.last_rank.is_some() {
            self.side.here = self.side.here.saturating_sub(1);
            self.side.dead += usize::from(loss.is_death());
        }
        if let (true, Some(side)) = (node.in_round_before, &mut self.side_before) {
            side.here = side.here.saturating_sub(1);
            side.dead += usize::from(loss.is_death());
        }
        self.effects.push(RendezvousEffect::Lost { node: id, host: host.clone(), reason: loss.to_string() });
        self.last_loss = Some((host.clone(), loss.clone()));
        let ends = match (&self.stage, node.phase) {
            (RunStage::Running, NodePhase::Running) => {
                self.running -= 1;
                true
            }
            // A node that is done stays counted as done.
            (RunStage::Gathering | RunStage::TakingOver(_), _) => {
                matches!(loss, NodeLoss::Left(_)) && (self.rounds > 0 || id == self.leader)
            }
            _ => false,
        };
        if self.rounds > 0 && node.last_rank.is_some() {
            self.last_join = now;
        }
        if ends {
            self.pending_loss.get_or_insert(PendingLoss { host, loss });
        }
    }

    /// Carries out a decision.
    pub(super) fn apply(&mut self, now: Elapsed, decision: Decision, settings: &Settings) {
        self.pending_loss = None;
        match decision {
            Decision::Wait(_) => {}
            Decision::Begin => self.begin(settings),
            Decision::Resume => self.stage = RunStage::Gathering,
            Decision::EndRound(end) => self.end_round(now, end, Duration::ZERO),
            Decision::EndRun(end) => {
                self.effects.push(RendezvousEffect::CloseAll(FromLeader::RunEnded(end.clone())));
                self.stage = RunStage::Over(end);
            }
        }
    }

    /// Ends this round for the supervisor; another one follows. A round that has ended is left alone.
    pub(super) fn close_round(&mut self, now: Elapsed, round: u64, end: RoundEnd, restart: Restart) {
        if self.stage == RunStage::Running && round + 1 == self.rounds {
            self.pending_loss = None;
            self.restarts = restart.number;
            self.end_round(now, end, restart.wait);
        }
    }

    /// Ends the run for the supervisor.
    pub(super) fn close_run(&mut self, end: RunEnd) {
        if !matches!(self.stage, RunStage::Over(_)) {
            self.effects.push(RendezvousEffect::CloseAll(FromLeader::RunEnded(end.clone())));
            self.stage = RunStage::Over(end);
        }
    }

    fn begin(&mut self, settings: &Settings) {
        let mut ids: Vec<NodeId> = self.ready.iter().map(|(_, id)| *id).collect();
        let order_of = |id: &NodeId| {
            let node = &self.nodes[id];
            (node.description.node_rank, *id != self.leader, node.last_rank.unwrap_or(u32::MAX), node.order)
        };
        ids.sort_by_cached_key(order_of);
        ids.truncate(settings.nodes_max as usize);
        for node in self.nodes.values_mut() {
            node.in_round_before = node.last_rank.take().is_some();
            node.has_roster = true;
        }
        self.side_before = (self.rounds > 0).then_some(PartitionSide { with_leader: true, ..self.side });
        for (rank, id) in (0u32..).zip(&ids) {
            if let Some(node) = self.nodes.get_mut(id) {
                self.ready.remove(&(node.order, *id));
                node.phase = NodePhase::Running;
                node.last_rank = Some(rank);
                node.has_roster = *id == self.leader;
            }
        }
        self.unaware = ids.iter().filter(|id| **id != self.leader).count();
        self.stopping.clear();
        let roster = Arc::new(self.roster(&ids, settings));
        self.successor_count = roster.successors.len();
        self.rounds += 1;
        self.running = ids.len();
        self.done = 0;
        self.side =
            PartitionSide { nodes: ids.len(), dead: 0, here: ids.len(), with_leader: ids.contains(&self.leader) };
        self.last_loss = None;
        self.stage = RunStage::Running;
        self.effects.push(RendezvousEffect::Begin { roster, ranks: ids });
    }

    /// The leader leaves the run for good, and the others go on.
    pub(super) fn hand_off(&mut self, settings: &Settings) {
        let members = self.nodes.values().filter_map(|node| Some((node.last_rank?, &node.description)));
        let ranked: BTreeMap<u32, &NodeDescription> = members.collect();
        let successors = if settings.elastic() { self.successors_among(ranked.into_iter()) } else { Vec::new() };
        self.effects.push(RendezvousEffect::CloseAll(FromLeader::Left { successors }));
        self.stage = RunStage::Over(RunEnd::Stopped { by: format!("enn drain on {}", settings.host) });
    }

    fn roster(&self, ids: &[NodeId], settings: &Settings) -> Roster {
        let descriptions = || ids.iter().filter_map(|id| Some(&self.nodes.get(id)?.description));
        // Of two nodes that lost their connection, neither can know which one is cut off.
        let may_hand_over = settings.elastic() && ids.len() > 2;
        let successors = if may_hand_over { self.successors_among((0u32..).zip(descriptions())) } else { Vec::new() };
        Roster {
            round: self.rounds,
            members: Members::pack(
                descriptions().map(|description| (&*description.host, description.local_world, &*description.role)),
            ),
            leader: self.leader,
            leader_rank: (0u32..).zip(ids).find(|(_, id)| **id == self.leader).map_or(0, |(rank, _)| rank),
            successors,
        }
    }

    /// Returns those of `ranked` that can take over.
    fn successors_among<'a>(&self, ranked: impl Iterator<Item = (u32, &'a NodeDescription)>) -> Vec<Successor> {
        let others = ranked.filter(|(_, description)| description.node != self.leader);
        let successors = others
            .filter_map(|(node_rank, description)| Some(Successor { node_rank, at: description.standby.clone()? }));
        let mut successors: Vec<Successor> = successors.collect();
        // A loopback address means another machine on each of them.
        let inside = |successor: &Successor| successor.at.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if !successors.iter().all(inside) {
            successors.retain(|successor| !inside(successor));
        }
        successors.truncate(SUCCESSORS_MAX);
        successors
    }

    fn end_round(&mut self, now: Elapsed, end: RoundEnd, wait: Duration) {
        let mut members = Vec::with_capacity(self.running);
        for (id, node) in &mut self.nodes {
            if matches!(node.phase, NodePhase::Running | NodePhase::Done) {
                node.phase = NodePhase::NotReady;
                members.push(*id);
            }
        }
        self.stopping.extend(&members);
        let ready_early = std::mem::take(&mut self.ready_early);
        self.missing.extend(members.iter().filter_map(|id| self.nodes[id].description.node_rank));
        self.effects.push(RendezvousEffect::Send(members, FromLeader::RoundEnded(end)));
        self.running = 0;
        self.done = 0;
        self.not_before = now + wait;
        self.opened_at = self.not_before;
        self.stage = RunStage::Gathering;
        ready_early.into_iter().for_each(|id| self.ready(now, id));
    }

    /// Sends the reason to the nodes that wait, and to the leader's own.
    pub(super) fn send_reason(&mut self, now: Elapsed, reason: &Reason) {
        let mut waiting: Vec<NodeId> = self.ready.iter().map(|(_, id)| *id).collect();
        if self.stage != RunStage::Running && !waiting.contains(&self.leader) {
            waiting.push(self.leader);
        }
        self.effects.push(RendezvousEffect::Send(waiting, FromLeader::Waiting { reason: reason.at(now) }));
    }
}

/// Returns a sentence about the first setting in which the node and the leader differ.
fn mismatch(description: &NodeDescription, settings: &Settings) -> Option<String> {
    let here = settings.terms();
    let there = &description.terms;
    let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
    let idle = |time: Option<Duration>| time.map_or("none".to_owned(), seconds);
    let nodes = |min: u32, max: u32| if min == max { min.to_string() } else { format!("{min}:{max}") };
    let policy = |replaces: bool| (if replaces { "replace" } else { "restart" }).to_owned();
    let fixed = |fixed: bool| (if fixed { "fixed" } else { "given by the rendezvous" }).to_owned();
    let pairs = [
        ("the run's name", "--rdzv-id", here.run_id.clone(), there.run_id.clone()),
        (
            "the number of nodes",
            "--nnodes",
            nodes(here.nodes_min, here.nodes_max),
            nodes(there.nodes_min, there.nodes_max),
        ),
        ("the node rank", "--node-rank", fixed(here.ranks_fixed), fixed(there.ranks_fixed)),
        (
            "the number of workers",
            "--nproc-per-node (or --uneven on the host of the rendezvous)",
            settings.local_world.to_string(),
            if settings.uneven || description.role != settings.role {
                settings.local_world
            } else {
                description.local_world
            }
            .to_string(),
        ),
        ("the number of restarts", "--max-restarts", here.restarts_max.to_string(), there.restarts_max.to_string()),
        (
            "the longest silence",
            "--rdzv-conf keep_alive_interval",
            seconds(here.silence_max),
            seconds(there.silence_max),
        ),
        ("the time of a hang", "--hang-timeout", idle(here.hang_timeout), idle(there.hang_timeout)),
        ("what follows a failure", "--on-failure", policy(here.replaces), policy(there.replaces)),
    ];
    let (what, flag, ours, theirs) = pairs.into_iter().find(|(_, _, ours, theirs)| ours != theirs)?;
    Some(format!(
        "{what} is {theirs} on {} and {ours} on {}\nhint: start all nodes of a run with the same {flag}",
        description.host, settings.host
    ))
}

#[cfg(test)]
mod tests;
