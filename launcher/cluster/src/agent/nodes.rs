//! The nodes of a run as its head sees them: what is wanted of workers goes to the broker of the node they are on.
//!
//! **Invariant:** nothing is asked of a node that did not say that it is here, and nothing of one that is lost.

use super::{
    error::AgentError,
    far::Line,
    seats::{Home, Room, Slot},
    spec::AgentSpec,
};
use crate::rendezvous::{NodeId, Rendezvous, RoundPlan as Membership};
use enn_broker::{Broker, RoundPlan};
use enn_common::{
    event::NodeBrief,
    id::{Round, WorkerId},
    wire::{
        follower::{NodeIntroduction, Order, RunDescription, RunSnapshot},
        message::{Assignment, Standby, ToWorker},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::{Duration, Instant},
};

/// A hand whose connection stands may do nothing for so long: its disk may be slow.
const HAND_SILENT_MAX: Duration = Duration::from_secs(60);

/// One node.
#[derive(Debug)]
struct Node {
    /// `None`: this one.
    line: Option<Line>,
    host: String,
    share: u32,
    most: u32,
    /// Its workers are to leave it; `Some(true)`: it was told to go.
    leaving: Option<bool>,
}

/// Where the nodes meet.
#[derive(Debug)]
struct Meeting {
    rendezvous: Rc<Rendezvous>,
    work: RunDescription,
    /// The present membership; `None`: a new one is being formed.
    membership: Option<u64>,
    /// Members that did not yet say that they are here, and since when they are expected to.
    awaited: BTreeSet<NodeId>,
    since: Instant,
    over: bool,
}

/// All nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    /// That of this node.
    pub(super) broker: Broker,
    homes: BTreeMap<Home, Node>,
    next: u32,
    meeting: Option<Meeting>,
}

impl Nodes {
    /// This node, and those that meet with it, if it is not the only one.
    pub(super) fn new(broker: Broker, spec: &AgentSpec, meeting: Option<(Rc<Rendezvous>, RunDescription)>) -> Self {
        let host = spec.host.clone();
        let share = spec.world;
        let most = spec.workers_most;
        let own = Node { line: None, host, share, most, leaving: None };
        let meeting = meeting.map(|(rendezvous, work)| {
            let membership = None;
            let awaited = BTreeSet::new();
            Meeting { rendezvous, work, membership, awaited, since: Instant::now(), over: false }
        });
        Self { broker, homes: BTreeMap::from([(Home::OWN, own)]), next: 1, meeting }
    }

    /// Where the nodes meet, if there can be several.
    pub(super) fn rendezvous(&self) -> Option<&Rc<Rendezvous>> {
        self.meeting.as_ref().map(|meeting| &meeting.rendezvous)
    }

    /// Whether every node of the run is here, so that a round can begin; also when none will come any more.
    pub(super) fn settled(&self) -> bool {
        self.meeting
            .as_ref()
            .is_none_or(|meeting| meeting.over || (meeting.membership.is_some() && meeting.awaited.is_empty()))
    }

    /// Whether a node that takes part has not yet said that it is here.
    pub(super) fn awaits(&self) -> bool {
        self.awaited().is_some_and(|(nodes, _)| !nodes.is_empty())
    }

    /// The nodes agreed on who takes part.
    pub(super) fn agreed(&mut self, plan: &Membership) {
        let Some(meeting) = &mut self.meeting else { return };
        let own = usize::try_from(plan.node_rank).ok().and_then(|rank| plan.nodes.get(rank));
        meeting.awaited = plan.nodes.iter().filter(|node| Some(*node) != own).copied().collect();
        meeting.membership = Some(plan.round);
        meeting.since = Instant::now();
    }

    /// They have to agree again. Workers work on meanwhile.
    pub(super) fn disagreed(&mut self) {
        if let Some(meeting) = &mut self.meeting {
            meeting.membership = None;
            meeting.rendezvous.join();
        }
    }

    /// The rendezvous is over: nobody comes any more.
    pub(super) fn over(&mut self) {
        if let Some(meeting) = &mut self.meeting {
            meeting.over = true;
        }
    }

    /// Members that have not said that they are here, and when they must have.
    pub(super) fn awaited(&self) -> Option<(&BTreeSet<NodeId>, Instant)> {
        let meeting = self.meeting.as_ref().filter(|meeting| !meeting.over && meeting.membership.is_some())?;
        Some((&meeting.awaited, meeting.since + self.patience()?))
    }

    /// The longest time in which the agent of a node that has something to say may say nothing.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.rendezvous().map(|rendezvous| HAND_SILENT_MAX + rendezvous.silence_max())
    }

    /// A node says that it is here. Its number, and whether it is new; `None`: it speaks of another membership, or is in none.
    pub(super) fn here(&mut self, from: NodeId, here: &NodeIntroduction) -> Option<(Home, bool)> {
        let known = self.home(from);
        let meeting = self.meeting.as_mut()?;
        if meeting.membership != Some(here.membership) {
            return None;
        }
        let expected = meeting.awaited.remove(&from);
        if let Some(home) = known {
            return Some((home, false));
        }
        if !expected {
            return None;
        }
        let home = Home(self.next);
        self.next += 1;
        let line = Line::new(Rc::clone(&meeting.rendezvous), from);
        line.order(&Order::TakePart(Box::new(meeting.work.clone())));
        let host = here.host.clone();
        let share = here.room;
        let most = here.room_max.max(here.room);
        self.homes.insert(home, Node { line: Some(line), host, share, most, leaving: None });
        Some((home, true))
    }

    /// A node is gone; its number, if it had one.
    pub(super) fn lost(&mut self, node: NodeId) -> Option<Home> {
        if let Some(meeting) = &mut self.meeting {
            meeting.awaited.remove(&node);
        }
        let home = self.home(node)?;
        self.homes.remove(&home);
        Some(home)
    }

    /// The number of an agent's node.
    pub(super) fn home(&self, node: NodeId) -> Option<Home> {
        let of = |known: &Node| known.line.as_ref().is_some_and(|line| line.node() == node);
        self.homes.iter().find(|(_, known)| of(known)).map(|(home, _)| *home)
    }

    /// The nodes with this host's name.
    pub(super) fn on_host(&self, host: &str) -> Vec<Home> {
        self.homes.iter().filter(|(_, node)| node.host == host).map(|(home, _)| *home).collect()
    }

    /// The hosts, by number.
    pub(super) fn briefs(&self) -> Vec<NodeBrief> {
        let brief = |node: &Node| NodeBrief { host: node.host.clone(), workers: node.share };
        self.homes.values().filter(|node| node.leaving.is_none()).map(brief).collect()
    }

    /// A node's host; empty in a run that can have no other.
    pub(super) fn host(&self, home: Home) -> String {
        let several = self.meeting.is_some();
        self.homes.get(&home).filter(|_| several).map(|node| node.host.clone()).unwrap_or_default()
    }

    /// How another node is written to.
    pub(super) fn line(&self, home: Home) -> Option<&Line> {
        self.homes.get(&home)?.line.as_ref()
    }

    /// The agents of the other nodes, and their hosts.
    pub(super) fn others(&self) -> Vec<(NodeId, String)> {
        self.homes.values().filter_map(|node| Some((node.line.as_ref()?.node(), node.host.clone()))).collect()
    }

    fn lines(&self) -> impl Iterator<Item = (Home, &Line)> {
        self.homes.iter().filter_map(|(home, node)| Some((*home, node.line.as_ref()?)))
    }

    /// What the nodes were asked for and have room for, but for those whose workers are to leave.
    pub(super) fn rooms(&self) -> Vec<Room> {
        let room = |(home, node): (&Home, &Node)| Room { home: *home, share: node.share, most: node.most };
        self.homes.iter().filter(|(_, node)| node.leaving.is_none()).map(room).collect()
    }

    /// Nobody is to work there any more.
    pub(super) fn leave(&mut self, home: Home) {
        if let Some(node) = self.homes.get_mut(&home) {
            node.leaving.get_or_insert(false);
        }
    }

    /// It was not to be: its workers stay.
    pub(super) fn stay(&mut self, home: Home) {
        if let Some(node) = self.homes.get_mut(&home) {
            node.leaving = None;
        }
    }

    /// The other nodes go on without this one.
    pub(super) fn hand_over(&mut self, standing: RunSnapshot) {
        self.order_all(&Order::Snapshot(Box::new(standing)));
        if let Some(meeting) = &mut self.meeting {
            meeting.rendezvous.bequeath();
            meeting.over = true;
        }
        self.homes.retain(|home, _| *home == Home::OWN);
    }

    /// How a node that nobody works on any more is written to, once.
    pub(super) fn part(&mut self, home: Home) -> Option<&Line> {
        let node = self.homes.get_mut(&home).filter(|node| node.leaving == Some(false))?;
        node.leaving = Some(true);
        node.line.as_ref()
    }

    /// Nodes whose workers are to leave.
    pub(super) fn leaving(&self) -> Vec<Home> {
        self.homes.iter().filter(|(_, node)| node.leaving.is_some()).map(|(home, _)| *home).collect()
    }

    /// Lets a worker in when it comes.
    pub(super) fn expect(&self, slot: Slot, worker: WorkerId, standby: Option<Standby>) -> Result<(), AgentError> {
        match self.line(slot.home) {
            None => self.broker.expect(worker, standby)?,
            Some(line) => line.order(&Order::Expect { worker: worker.0, standby: standby.map(Box::new) }),
        }
        Ok(())
    }

    /// Gives the seats of a round.
    pub(super) fn begin(
        &self,
        round: Round,
        seats: Vec<(Home, WorkerId, Assignment)>,
        standing: &RunSnapshot,
    ) -> Result<(), AgentError> {
        let mut by_home: BTreeMap<Home, BTreeMap<WorkerId, Assignment>> = BTreeMap::new();
        for (home, worker, assignment) in seats {
            by_home.entry(home).or_default().insert(worker, assignment);
        }
        self.broker.begin_round(RoundPlan { round, seats: by_home.remove(&Home::OWN).unwrap_or_default() })?;
        for (home, line) in self.lines() {
            let seats = by_home.remove(&home).unwrap_or_default();
            let seats = seats.into_iter().map(|(worker, seat)| (worker.0, seat)).collect();
            line.order(&Order::Begin { round: round.0, seats, snapshot: Box::new(standing.clone()) });
        }
        Ok(())
    }

    /// Tells the round's workers on all nodes that it is over.
    pub(super) fn end_round(&self, reason: &str) -> Result<(), AgentError> {
        for (_, line) in self.lines() {
            line.order(&Order::EndRound { reason: reason.to_owned() });
        }
        Ok(self.broker.end_round(reason.to_owned())?)
    }

    /// Closes one worker's connection: it ends itself.
    pub(super) fn dismiss(&self, home: Home, worker: WorkerId) -> Result<(), AgentError> {
        match self.line(home) {
            Some(line) => line.order(&Order::Dismiss { worker: worker.0 }),
            None if home == Home::OWN => self.broker.dismiss(worker)?,
            None => {}
        }
        Ok(())
    }

    /// Closes all connections: the workers end themselves.
    pub(super) fn close_all(&self) -> Result<(), AgentError> {
        self.lines().for_each(|(_, line)| line.order(&Order::CloseAll));
        Ok(self.broker.close_all()?)
    }

    /// The same message to every worker with a seat.
    pub(super) fn tell_all(&self, message: &ToWorker) -> Result<(), AgentError> {
        self.lines().for_each(|(_, line)| line.order(&Order::Tell(Box::new(message.clone()))));
        Ok(self.broker.tell_all(message.clone())?)
    }

    /// Asks for a word behind everything that the worker has said.
    pub(super) fn sync(&self, home: Home, worker: WorkerId) -> Result<(), AgentError> {
        match self.line(home) {
            Some(line) => line.order(&Order::Sync { worker: worker.0 }),
            None => self.broker.sync(worker.0.into())?,
        }
        Ok(())
    }

    /// The same order to every other node.
    pub(super) fn order_all(&self, order: &Order) {
        self.lines().for_each(|(_, line)| line.order(order));
    }

    /// Whether there is another node.
    pub(super) fn are_several(&self) -> bool {
        self.lines().next().is_some()
    }

    /// This node's work is done, in the present membership.
    pub(super) fn finished(&self) {
        if let Some(Meeting { rendezvous, membership: Some(membership), .. }) = &self.meeting {
            rendezvous.finished(*membership);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::settings_for_tests;

    #[test]
    fn only_who_takes_part_is_let_in_and_who_says_nothing_has_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let rendezvous = Rc::new(Rendezvous::start(settings_for_tests()).unwrap());
        let work = RunDescription { run_dir: "/r".into(), config: String::new(), staged: "/s".into() };
        let awaited = BTreeSet::new();
        let since = Instant::now();
        let meeting = Some(Meeting { rendezvous, work, membership: None, awaited, since, over: false });
        let broker = Broker::serve(dir.path()).unwrap();
        let mut nodes = Nodes { broker, homes: BTreeMap::new(), next: 1, meeting };
        assert!(nodes.awaited().is_none());
        let members = vec![NodeId(1), NodeId(2)];
        let master = (String::new(), 0);
        nodes.agreed(&Membership { round: 4, restarts: 0, node_rank: 0, members: Vec::new(), master, nodes: members });
        let here = |membership| {
            let host = "n2".to_owned();
            let workers = Vec::new();
            let snapshot = None;
            NodeIntroduction { membership, host, room: 1, room_max: 1, workers, snapshot }
        };
        assert_eq!(nodes.here(NodeId(3), &here(4)), None, "a stranger");
        assert_eq!(nodes.here(NodeId(2), &here(3)), None, "what it said before");
        let (awaited, until) = nodes.awaited().unwrap();
        assert!(awaited.contains(&NodeId(2)) && until > Instant::now() && !nodes.settled());
        assert_eq!(nodes.here(NodeId(2), &here(4)), Some((Home(1), true)));
        assert_eq!(nodes.here(NodeId(2), &here(4)), Some((Home(1), false)));
        assert!(nodes.settled());
        assert_eq!(nodes.lost(NodeId(2)), Some(Home(1)));
        assert_eq!(nodes.here(NodeId(2), &here(4)), None, "a letter of one that is lost");
    }
}
