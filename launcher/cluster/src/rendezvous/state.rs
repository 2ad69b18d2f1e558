//! What the host of the rendezvous knows, and how it changes. No sockets, no clock: events come in with their time, and
//! what is to be told goes out through `take_told`.
//!
//! **Invariant:** every event costs O(log n); only beginning and ending a round, which concern all nodes, cost O(n log n).

use super::{
    decide::{Decision, Reason},
    policy::{Side, may_go_on},
    settings::Settings,
};
use enn_common::wire::node::{
    FromHost, LastRound, Members, NodeDescription, NodeId, Roster, RoundEnd, RunEnd, Successor,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

/// Time since the rendezvous was opened.
pub(super) type Time = Duration;

/// Members that may take over, told with every round: more would not be tried in the time there is.
pub(super) const HEIRS_MAX: usize = 16;

/// Where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It does not ask for a round: workers of the last one still live there.
    Settling,
    /// It wants to be in the next round.
    Ready,
    /// Its workers run.
    Running,
    /// Its workers all exited 0.
    Done,
}

/// A node that is connected.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) card: NodeDescription,
    pub(super) phase: Phase,
    /// When it last said anything.
    pub(super) heard: Time,
    /// Which one it was to become ready.
    order: u64,
    /// Its rank in the last round, when it was in it.
    pub(super) last_rank: Option<u32>,
    /// Whether it was in the round before, and whether it said that it knows of the last one.
    before: bool,
    knows: bool,
}

/// How a node was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Loss {
    /// Its system closed the connection: the agent is dead.
    Closed,
    /// Nothing was heard for so long: it may be dead, or only out of reach.
    Silent(Duration),
    /// The network broke the connection, or what came over it made no sense.
    Broken(String),
    /// It heard nothing of this host for too long and looks for another one.
    Abandoned,
    /// It is connected and does not do its part.
    Stuck(String),
    /// It was asked to stop.
    Left(String),
}

impl Loss {
    /// Whether the node cannot go on elsewhere.
    fn is_death(&self) -> bool {
        matches!(self, Self::Closed | Self::Left(_))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "its connection was closed; the agent there ended"),
            Self::Silent(time) => write!(f, "nothing was heard of it for {:.1} s", time.as_secs_f64()),
            Self::Broken(why) | Self::Stuck(why) => write!(f, "{why}"),
            Self::Abandoned => write!(f, "it heard nothing of this host for too long"),
            Self::Left(why) => write!(f, "it was asked to stop ({why})"),
        }
    }
}

/// What the next decision has to answer: a node is gone.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Trouble {
    pub(super) host: String,
    pub(super) loss: Loss,
}

/// Where the run stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stage {
    /// Nodes come.
    Gathering,
    /// This node took over from a dead host and waits for the nodes of the last round until then.
    Succeeding(Time),
    /// A round is on.
    Running,
    /// Nothing follows.
    Over(RunEnd),
}

/// A restart after a round that the supervisor ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Restart {
    /// Restarts of the run, with this one.
    pub(super) number: u32,
    /// Time from the end of the round to the next one.
    pub(super) wait: Duration,
}

/// What has to be told, and to whom.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Told {
    /// One node.
    To(NodeId, FromHost),
    These(Vec<NodeId>, FromHost),
    /// Every node.
    All(FromHost),
    /// The members of a new round, by rank.
    Begin {
        roster: Arc<Roster>,
        ranks: Vec<NodeId>,
    },
    /// The journal: a node joined.
    Joined {
        node: NodeId,
        host: String,
        workers: u32,
    },
    /// The journal: a node was lost.
    Lost {
        node: NodeId,
        host: String,
        reason: String,
    },
}

/// The rendezvous.
#[derive(Debug)]
pub(super) struct State {
    /// The node that hosts it.
    pub(super) host: NodeId,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    /// Nodes that want to be in the next round, in the order in which they came.
    pub(super) ready: BTreeSet<(u64, NodeId)>,
    /// Nodes of the last round that do not ask for the next one yet.
    pub(super) settling: BTreeSet<NodeId>,
    /// Who has which fixed rank.
    pub(super) ranks: HashMap<u32, NodeId>,
    /// Fixed ranks nobody ready has.
    pub(super) missing: BTreeSet<u32>,
    pub(super) stage: Stage,
    /// Rounds begun so far.
    pub(super) rounds: u64,
    /// Living members of the current round, and those of them whose workers are done.
    pub(super) running: usize,
    pub(super) done: usize,
    /// Members of the last round, those known dead, and those lost in silence.
    pub(super) side: Side,
    /// The same of the round before, as long as not every member of the last round said that it knows of that: one that
    /// was cut off in between counts by the old round, and its side must not go on as well.
    before: Option<Side>,
    /// Members that did not say so.
    unaware: usize,
    /// When gathering began, the last node came, the next round may begin.
    pub(super) opened_at: Time,
    pub(super) last_join: Time,
    pub(super) not_before: Time,
    pub(super) trouble: Option<Trouble>,
    /// How many could take over if this host died now.
    pub(super) heirs: usize,
    /// The last node lost, for a run that ends for want of nodes.
    pub(super) last_loss: Option<(String, Loss)>,
    /// Restarts of the run, as its supervisor said last.
    pub(super) restarts: u32,
    /// Nodes that asked for the next round before this one has ended.
    eager: Vec<NodeId>,
    joined: u64,
    told: Vec<Told>,
}

impl State {
    /// A rendezvous that nobody has joined, hosted by `host`.
    pub(super) fn open(host: NodeId, settings: &Settings, now: Time) -> Self {
        let missing = if settings.node_rank.is_some() { (0..settings.nodes_max).collect() } else { BTreeSet::new() };
        Self {
            host,
            nodes: BTreeMap::new(),
            ready: BTreeSet::new(),
            settling: BTreeSet::new(),
            ranks: HashMap::new(),
            missing,
            stage: Stage::Gathering,
            rounds: 0,
            running: 0,
            done: 0,
            side: Side { nodes: 0, dead: 0, here: 0, with_host: true },
            before: None,
            unaware: 0,
            opened_at: now,
            last_join: now,
            not_before: now,
            trouble: None,
            heirs: 0,
            last_loss: None,
            restarts: 0,
            eager: Vec::new(),
            joined: 0,
            told: Vec::new(),
        }
    }

    /// The rendezvous of a run whose host died, taken over by `host` from what it knows; the members of the last round
    /// are waited for until `deadline`.
    pub(super) fn inherit(host: NodeId, last: &Roster, dead: usize, settings: &Settings, times: (Time, Time)) -> Self {
        let (now, deadline) = times;
        let mut state = Self::open(host, settings, now);
        state.rounds = last.round + 1;
        state.side = Side { nodes: last.members.len(), dead, here: 0, with_host: false };
        state.stage = Stage::Succeeding(deadline);
        state
    }

    /// What was decided or happened since, to be told.
    pub(super) fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    /// The first of `ids` by name, and how many there are besides.
    pub(super) fn names(&self, ids: impl Iterator<Item = NodeId>, max: usize) -> Vec<String> {
        ids.take(max).filter_map(|id| Some(self.nodes.get(&id)?.card.host.clone())).collect()
    }

    /// Whether the run has to stop when a node was asked to: too few are left, or it was the host and nobody takes over.
    pub(super) fn stops(&self, settings: &Settings) -> bool {
        let host_left = !self.nodes.contains_key(&self.host);
        self.nodes.len() < settings.nodes_min as usize || (host_left && self.heirs == 0)
    }

    /// Whether the last round's members may form a round again without a last call.
    pub(super) fn reforming(&self) -> bool {
        self.rounds > 0
    }

    /// A node came and said who it is. One that may not take part is told why and not kept.
    pub(super) fn join(&mut self, now: Time, card: NodeDescription, settings: &Settings) -> bool {
        let id = card.node;
        if let Stage::Over(end) = &self.stage {
            self.told.push(Told::To(id, FromHost::RunEnded(end.clone())));
            return false;
        }
        if self.nodes.contains_key(&id) {
            // It lost the connection that we still believe in, and came back.
            self.lose(now, id, Loss::Closed);
        }
        if let Some(reason) = self.refusal(&card, settings) {
            self.told.push(Told::To(id, FromHost::Refused { reason }));
            return false;
        }
        if let Some(rank) = card.node_rank {
            self.ranks.insert(rank, id);
        }
        let last_rank = self.returning(&card);
        self.told.push(Told::Joined { node: id, host: card.host.clone(), workers: card.local_world });
        self.nodes.insert(
            id,
            Node { card, phase: Phase::Settling, heard: now, order: 0, last_rank, before: false, knows: true },
        );
        if last_rank.is_some() {
            self.side.here += 1;
            self.settling.insert(id);
        }
        true
    }

    /// Its rank in the last round, when this node took over and the one that comes was in it. The old host may have died
    /// while it told of a new round: then some come from that one and some from the one before.
    fn returning(&mut self, card: &NodeDescription) -> Option<u32> {
        let LastRound { round, node_rank, dead } = card.last.as_ref()?;
        if !matches!(self.stage, Stage::Succeeding(_)) || (round + 1).abs_diff(self.rounds) > 1 {
            return None;
        }
        self.rounds = self.rounds.max(round + 1);
        self.side.dead = self.side.dead.max(dead.len());
        Some(*node_rank)
    }

    fn refusal(&self, card: &NodeDescription, settings: &Settings) -> Option<String> {
        if let Some(mismatch) = mismatch(card, settings) {
            return Some(mismatch);
        }
        let rank = card.node_rank?;
        if rank >= settings.nodes_max {
            let host = &card.host;
            let max = settings.nodes_max;
            return Some(format!(
                "node rank {rank} of {host} is too large for {max} nodes\nhint: ranks are 0 to {} (--node-rank)",
                max.saturating_sub(1)
            ));
        }
        let other = self.nodes.get(self.ranks.get(&rank)?)?;
        Some(format!(
            "node rank {rank} is wanted by {} and taken by {}\nhint: give every node its own --node-rank",
            card.host, other.card.host
        ))
    }

    /// A node has no worker of the last round any more and wants to be in the next.
    pub(super) fn ready(&mut self, now: Time, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        match node.phase {
            Phase::Ready => return,
            Phase::Settling => {}
            // It never said how its round ended: nobody may wait for its workers.
            Phase::Running | Phase::Done => {
                let host = node.card.host.clone();
                self.trouble.get_or_insert(Trouble { host, loss: Loss::Left("its workers are gone".into()) });
                return self.eager.push(id);
            }
        }
        node.phase = Phase::Ready;
        node.heard = now;
        node.order = self.joined;
        self.joined += 1;
        self.ready.insert((node.order, id));
        self.settling.remove(&id);
        if let Some(rank) = node.card.node_rank {
            self.missing.remove(&rank);
        }
        self.last_join = now;
    }

    /// All workers of a node exited 0.
    pub(super) fn finish(&mut self, id: NodeId, round: u64) {
        if self.runs(id, round)
            && let Some(node) = self.nodes.get_mut(&id)
        {
            node.phase = Phase::Done;
            self.done += 1;
        }
    }

    fn runs(&self, id: NodeId, round: u64) -> bool {
        self.stage == Stage::Running
            && round + 1 == self.rounds
            && self.nodes.get(&id).is_some_and(|node| node.phase == Phase::Running)
    }

    /// A node lives; the last round that it was told of, if it says so.
    pub(super) fn alive(&mut self, now: Time, id: NodeId, round: Option<u64>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.heard = now;
        if !node.knows && round.is_some_and(|round| round + 1 == self.rounds) {
            node.knows = true;
            self.unaware -= 1;
            if self.unaware == 0 {
                self.before = None;
            }
        }
    }

    /// Whether those who are here may go on without those of the last round who are not.
    pub(super) fn may_go_on(&self) -> bool {
        may_go_on(self.side) && self.before.is_none_or(may_go_on)
    }

    /// Nodes of which nothing was heard for too long, though this host listened since `from`. Its own is heard always.
    pub(super) fn silent(&self, now: Time, from: Time, settings: &Settings) -> Vec<(NodeId, Duration)> {
        let quiet = |node: &Node| now.saturating_sub(node.heard.max(from));
        let others = self.nodes.iter().filter(|(id, _)| **id != self.host);
        others.filter(|(_, node)| quiet(node) > settings.silence_max).map(|(id, node)| (*id, quiet(node))).collect()
    }

    /// A node is gone.
    pub(super) fn lose(&mut self, now: Time, id: NodeId, loss: Loss) {
        let Some(node) = self.nodes.remove(&id) else { return };
        let host = node.card.host.clone();
        self.ready.remove(&(node.order, id));
        self.settling.remove(&id);
        if let Some(rank) = node.card.node_rank {
            self.ranks.remove(&rank);
            self.missing.insert(rank);
        }
        if node.last_rank.is_some() {
            self.side.here = self.side.here.saturating_sub(1);
            self.side.dead += usize::from(loss.is_death());
        }
        if let (true, Some(side)) = (node.before, &mut self.before) {
            side.here = side.here.saturating_sub(1);
            side.dead += usize::from(loss.is_death());
        }
        self.told.push(Told::Lost { node: id, host: host.clone(), reason: loss.to_string() });
        self.last_loss = Some((host.clone(), loss.clone()));
        let ends = match (&self.stage, node.phase) {
            (Stage::Running, Phase::Running) => {
                self.running -= 1;
                true
            }
            // What it had to do is done: it stays counted as done.
            (Stage::Gathering | Stage::Succeeding(_), _) => {
                matches!(loss, Loss::Left(_)) && (self.rounds > 0 || id == self.host)
            }
            _ => false,
        };
        if self.rounds > 0 && node.last_rank.is_some() {
            self.last_join = now;
        }
        if ends {
            self.trouble.get_or_insert(Trouble { host, loss });
        }
    }

    /// Carries out what was decided.
    pub(super) fn apply(&mut self, now: Time, decision: Decision, settings: &Settings) {
        self.trouble = None;
        match decision {
            Decision::Wait(_) => {}
            Decision::Begin => self.begin(settings),
            Decision::Resume => self.stage = Stage::Gathering,
            Decision::EndRound(end) => self.end_round(now, end, Duration::ZERO),
            Decision::EndRun(end) => {
                self.told.push(Told::All(FromHost::RunEnded(end.clone())));
                self.stage = Stage::Over(end);
            }
        }
    }

    /// The supervisor ends this round, and another one follows. A round that is over already is not ended again.
    pub(super) fn close_round(&mut self, now: Time, round: u64, end: RoundEnd, restart: Restart) {
        if self.stage == Stage::Running && round + 1 == self.rounds {
            self.trouble = None;
            self.restarts = restart.number;
            self.end_round(now, end, restart.wait);
        }
    }

    /// The supervisor ends the run.
    pub(super) fn close_run(&mut self, end: RunEnd) {
        if !matches!(self.stage, Stage::Over(_)) {
            self.told.push(Told::All(FromHost::RunEnded(end.clone())));
            self.stage = Stage::Over(end);
        }
    }

    fn begin(&mut self, settings: &Settings) {
        let mut ids: Vec<NodeId> = self.ready.iter().map(|(_, id)| *id).collect();
        let place = |id: &NodeId| {
            let node = &self.nodes[id];
            (node.card.node_rank, *id != self.host, node.last_rank.unwrap_or(u32::MAX), node.order)
        };
        ids.sort_by_cached_key(place);
        ids.truncate(settings.nodes_max as usize);
        for node in self.nodes.values_mut() {
            node.before = node.last_rank.take().is_some();
            node.knows = true;
        }
        self.before = (self.rounds > 0).then_some(Side { with_host: true, ..self.side });
        for (rank, id) in (0u32..).zip(&ids) {
            if let Some(node) = self.nodes.get_mut(id) {
                self.ready.remove(&(node.order, *id));
                node.phase = Phase::Running;
                node.last_rank = Some(rank);
                node.knows = *id == self.host;
            }
        }
        self.unaware = ids.iter().filter(|id| **id != self.host).count();
        self.settling.clear();
        let roster = Arc::new(self.roster(&ids, settings));
        self.heirs = roster.successors.len();
        self.rounds += 1;
        self.running = ids.len();
        self.done = 0;
        self.side = Side { nodes: ids.len(), dead: 0, here: ids.len(), with_host: ids.contains(&self.host) };
        self.last_loss = None;
        self.stage = Stage::Running;
        self.told.push(Told::Begin { roster, ranks: ids });
    }

    /// The host leaves the run for good, and the others are to go on without it.
    pub(super) fn bequeath(&mut self, settings: &Settings) {
        let members = self.nodes.values().filter_map(|node| Some((node.last_rank?, &node.card)));
        let ranked: BTreeMap<u32, &NodeDescription> = members.collect();
        let heirs = if settings.elastic() { self.heirs_among(ranked.into_iter()) } else { Vec::new() };
        self.told.push(Told::All(FromHost::Left { successors: heirs }));
        self.stage = Stage::Over(RunEnd::Stopped { by: format!("enn drain on {}", settings.host) });
    }

    fn roster(&self, ids: &[NodeId], settings: &Settings) -> Roster {
        let cards = || ids.iter().filter_map(|id| Some(&self.nodes.get(id)?.card));
        // With two nodes a lost connection does not tell who of them is the one that is gone.
        let inherits = settings.elastic() && ids.len() > 2;
        let heirs = if inherits { self.heirs_among((0u32..).zip(cards())) } else { Vec::new() };
        Roster {
            round: self.rounds,
            members: Members::pack(cards().map(|card| (&*card.host, card.local_world, &*card.role))),
            host: self.host,
            host_rank: (0u32..).zip(ids).find(|(_, id)| **id == self.host).map_or(0, |(rank, _)| rank),
            successors: heirs,
        }
    }

    /// Those of `ranked` who can take over.
    fn heirs_among<'a>(&self, ranked: impl Iterator<Item = (u32, &'a NodeDescription)>) -> Vec<Successor> {
        let others = ranked.filter(|(_, card)| card.node != self.host);
        let heirs = others.filter_map(|(node_rank, card)| Some(Successor { node_rank, at: card.standby.clone()? }));
        let mut heirs: Vec<Successor> = heirs.collect();
        // Loopback is another machine's own for those who come from outside.
        let inside = |heir: &Successor| heir.at.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if !heirs.iter().all(inside) {
            heirs.retain(|heir| !inside(heir));
        }
        heirs.truncate(HEIRS_MAX);
        heirs
    }

    fn end_round(&mut self, now: Time, end: RoundEnd, wait: Duration) {
        let mut members = Vec::with_capacity(self.running);
        for (id, node) in &mut self.nodes {
            if matches!(node.phase, Phase::Running | Phase::Done) {
                node.phase = Phase::Settling;
                members.push(*id);
            }
        }
        self.settling.extend(&members);
        let eager = std::mem::take(&mut self.eager);
        self.missing.extend(members.iter().filter_map(|id| self.nodes[id].card.node_rank));
        self.told.push(Told::These(members, FromHost::RoundEnded(end)));
        self.running = 0;
        self.done = 0;
        self.not_before = now + wait;
        self.opened_at = self.not_before;
        self.stage = Stage::Gathering;
        eager.into_iter().for_each(|id| self.ready(now, id));
    }

    /// Tells those who wait, and the host, why.
    pub(super) fn tell_reason(&mut self, now: Time, reason: &Reason) {
        let mut waiting: Vec<NodeId> = self.ready.iter().map(|(_, id)| *id).collect();
        if self.stage != Stage::Running && !waiting.contains(&self.host) {
            waiting.push(self.host);
        }
        self.told.push(Told::These(waiting, FromHost::Waiting { reason: reason.at(now) }));
    }
}

/// One sentence naming what `card` and the host do not have in common.
fn mismatch(card: &NodeDescription, settings: &Settings) -> Option<String> {
    let here = settings.terms();
    let there = &card.terms;
    let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
    let idle = |time: Option<Duration>| time.map_or("none".to_owned(), seconds);
    let nodes = |min: u32, max: u32| if min == max { min.to_string() } else { format!("{min}:{max}") };
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
            if settings.uneven || card.role != settings.role { settings.local_world } else { card.local_world }
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
    ];
    let (what, flag, ours, theirs) = pairs.into_iter().find(|(_, _, ours, theirs)| ours != theirs)?;
    Some(format!(
        "{what} is {theirs} on {} and {ours} on {}\nhint: start all nodes of a run with the same {flag}",
        card.host, settings.host
    ))
}

#[cfg(test)]
mod tests;
