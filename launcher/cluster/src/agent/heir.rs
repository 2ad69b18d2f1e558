//! The agent of a hand that becomes the head, because the node of the head before it is gone: it takes over the workers of the
//! nodes that are left, where they stand.

use super::{
    body::Body,
    committer::Checkpoints,
    dispatcher::{Agent, Headship, Means},
    error::AgentError,
    far::Far,
    hand::{Held, Heritage},
    memory::Parts,
    nodes::Nodes,
    policy::History,
    round::{HALT_WAIT_MAX, Mode, RoundState},
    seats::{Home, Slot},
    spec::{AgentSpec, Outcome, Signal},
    worker::{Place, Seat, Worker},
};
use enn_common::{
    event::EventKind,
    id::{LocalRank, Rank, Round, WorkerId},
    wire::follower::{LiveSeat, LiveWorker, NodeIntroduction, RunSnapshot},
};
use std::time::Instant;

/// Names of workers that the head before may have given without this node having heard of it.
const NAMES_LEFT_OUT: u32 = 1024;

/// Leads the run from where the head before left it.
///
/// # Errors
/// As [`super::run`].
pub fn inherit(
    spec: &AgentSpec,
    checkpoints: Box<dyn Checkpoints>,
    emit: &mut dyn FnMut(EventKind),
    (headship, heritage): (Headship, Heritage),
) -> Result<Outcome, AgentError> {
    let Headship { guard, rendezvous, work, nodes: (least, most) } = headship;
    let Heritage { signals, signalled, broker, children, standing, plan, .. } = heritage;
    let nodes = Nodes::new(broker, spec, Some((rendezvous, work)));
    let mut agent = Agent::new(spec, checkpoints, emit, (Means { guard, signals }, nodes))?;
    let now = Instant::now();
    agent.nodes_min = least;
    agent.nodes_max = most;
    agent.heir = true;
    agent.signalled = signalled;
    agent.sources.nodes.agreed(&plan);
    agent.outcome.checkpoint = match agent.sources.committer.prepare() {
        // The workers may have the state.
        Err(error) if error.is_none_whole() => None,
        found => found?.map(|found| (found.step, found.path)),
    };
    agent.state = RoundState::new(Round(standing.round), String::new(), 0, true);
    agent.learn(&standing);
    agent.state.mode = Mode::Halting(Some(now + HALT_WAIT_MAX));
    match standing.drained {
        Some(host) => agent.state.wish = Some(format!("node {host}, which led the run, was drained")),
        None => {
            agent.state.cause = Some("the node that led the run was lost".into());
            agent.state.failed_at = Some(now);
        }
    }
    for (_, Held { child, living }) in children {
        agent.adopt(Home::OWN, &living, Body::Here(child));
    }
    agent.count_world();
    if let Some(stop) = &standing.stop {
        agent.stop_as_was_asked(stop)?;
    }
    // What came behind the word that made this node the head has woken nobody.
    agent.hear()?;
    agent.work()
}

impl Agent<'_> {
    /// What the head before told, to this node or to another one: it may have died before all had heard of its last round.
    fn learn(&mut self, standing: &RunSnapshot) {
        self.pool.names_from(standing.workers.saturating_add(NAMES_LEFT_OUT));
        if standing.requests >= self.wishes {
            self.wishes = standing.requests;
            self.resized = standing.resized;
            self.paused = standing.paused.then(Instant::now);
            self.to_leave.clone_from(&standing.leaving);
        }
        if standing.round < self.state.round.0 || standing.attempt == self.state.attempt {
            return;
        }
        self.first_round = Round(self.first_round.0.max(standing.round.saturating_add(1)));
        self.outcome.restarts = standing.restarts;
        self.history = History { restarts: standing.failures, proven: true, ..History::default() };
        self.parts = Parts::cut_into(standing.split);
        self.state.round = Round(standing.round);
        self.state.split = standing.split;
        self.state.attempt.clone_from(&standing.attempt);
    }

    /// Somebody asked the run to stop when this agent did not lead it, or did not hear of it.
    pub(super) fn stop_as_was_asked(&mut self, signal: &str) -> Result<(), AgentError> {
        if self.stop.is_some() || self.state.mode.is_last() {
            return Ok(());
        }
        self.signalled(Signal::named(signal), false)
    }

    /// Nodes that were to be left, now that it is known who is here.
    pub(super) fn drain_as_was_asked(&mut self) {
        if !self.heir || !self.sources.nodes.settled() {
            return;
        }
        for host in std::mem::take(&mut self.to_leave) {
            // The head before was to leave, or one that has left.
            if self.sources.nodes.on_host(&host).is_empty() {
                continue;
            }
            if let Err(reason) = self.drain(&host) {
                let message = format!("node {host} is not drained, as was asked before the head was lost: {reason}");
                (self.emit)(EventKind::Warned { message });
            }
        }
    }

    /// Hosts that the workers are to leave.
    pub(super) fn leaving(&self) -> Vec<String> {
        let leaving = self.sources.nodes.leaving().into_iter().map(|home| self.sources.nodes.host(home));
        leaving.chain(self.to_leave.iter().cloned()).collect()
    }

    /// Takes over the workers of another node.
    pub(super) fn adopt_all(&mut self, home: Home, here: &NodeIntroduction) -> Result<(), AgentError> {
        for living in &here.workers {
            if self.pool.get(WorkerId(living.worker)).is_some() {
                continue;
            }
            let Some(line) = self.sources.nodes.line(home).cloned() else { return Ok(()) };
            let far = Far::new(line, WorkerId(living.worker), living.pid, Instant::now());
            self.adopt(home, living, Body::There(Box::new(far)));
        }
        if let Some(standing) = &here.snapshot {
            self.learn(standing);
        }
        if let Mode::Halting(_) = self.state.mode {
            // Who has not left the round yet has as long to do so as those who were here first.
            self.state.mode = Mode::Halting(Some(Instant::now() + HALT_WAIT_MAX));
        }
        // Those who came last have not been asked.
        if self.is_stopping() { self.ask_to_stop() } else { Ok(()) }
    }

    fn adopt(&mut self, home: Home, living: &LiveWorker, body: Body) {
        let now = Instant::now();
        // Who has no state yet need not leave the round; it loads what it can.
        let place = match living.seat {
            Some(LiveSeat { rank, halted, share }) if living.stateful => {
                Place::Seat(Seat { halted, share, ..Seat::new(Rank(rank), true, now) })
            }
            _ => Place::Spare,
        };
        let slot = Slot { home, index: LocalRank(living.local_rank) };
        let mut worker = Worker::new(WorkerId(living.worker), body, (slot, place), now);
        worker.joined = living.joined.then_some(now);
        worker.warm = living.warm;
        worker.entered = living.stateful;
        self.pool.add(worker);
    }
}
