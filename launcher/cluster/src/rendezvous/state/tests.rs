//! A rendezvous in virtual time: agents that come, leave, die, fail, are cut off and take over, with a check of everything
//! that must hold after every step.

use super::{
    super::{
        decide::decide,
        decision::{Decision, Reason},
        partition::has_quorum,
        settings::tests::settings,
    },
    *,
};
use enn_common::wire::node::StandbyEndpoint;
use proptest::prelude::*;
use std::{cmp::Reverse, collections::BinaryHeap};

const SECOND: Duration = Duration::from_secs(1);
/// Time to find the next leader, and for one successor to answer, as in `discovery`.
const SUCCESSION_MAX: Duration = Duration::from_millis(4500);
const TAKE_OVER_MAX: Duration = Duration::from_secs(2);

impl State {
    /// Everything that must hold whatever happened.
    pub(in super::super) fn sanity_check(&self, now: Elapsed, settings: &Settings) {
        let count = |phase: NodePhase| self.nodes.values().filter(|node| node.phase == phase).count();
        assert_eq!(self.ready.len(), count(NodePhase::Ready));
        assert!(self.ready.iter().all(|(order, id)| self.nodes[id].order == *order));
        assert!(self.stopping.iter().all(|id| self.nodes[id].phase == NodePhase::NotReady));
        let running = count(NodePhase::Running);
        match &self.stage {
            RunStage::Running => {
                assert_eq!(running, self.running - self.done, "living members whose workers run");
                assert!(running > 0, "a round without work goes on");
            }
            RunStage::Over(_) => {}
            _ => assert_eq!(running, 0, "workers run although no round does: {:?}", self.stage),
        }
        let (decision, reason) = decide(now, self, settings);
        match (&self.stage, decision) {
            (RunStage::Gathering | RunStage::TakingOver(_), Decision::Wait(until)) => {
                let until = until.expect("waiting has a deadline");
                assert!(until > now, "the deadline is over: {}", reason.at(now));
                assert!(!reason.at(now).is_empty() && !matches!(reason, Reason::Over | Reason::Running { .. }));
            }
            (_, Decision::Wait(_)) => {}
            (_, decision) => panic!("{decision:?} was not carried out"),
        }
        if settings.node_rank.is_some() {
            let ready: BTreeSet<u32> =
                self.ready.iter().filter_map(|(_, id)| self.nodes[id].description.node_rank).collect();
            assert!(self.stage == RunStage::Running || self.missing.is_disjoint(&ready));
        }
    }
}

fn description(id: u64, settings: &Settings) -> NodeDescription {
    NodeDescription {
        node: NodeId(id),
        host: format!("n{id}"),
        local_world: 1,
        role: "default".into(),
        node_rank: settings.node_rank.map(|_| u32::try_from(id).unwrap() % settings.nodes_max),
        standby: Some(StandbyEndpoint { host: "10.0.0.1".into(), port: 1 }),
        terms: settings.terms(),
        last: None,
    }
}

/// Events of the outside world.
#[derive(Debug, Clone, Copy)]
enum Act {
    Come,
    Leave(usize),
    Die(usize),
    DieHost,
    Fail(usize),
    /// From now on, one side of the network receives nothing from the other.
    CutOff(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Act(usize),
    /// The leader's timer.
    Tick(u64),
    /// The leader's deadline.
    Wake(u64),
    /// An agent's workers are stopped.
    Stopped(u64, u64),
    /// An agent's workers are done with this round.
    Finished(u64, u64),
    /// An agent detects the loss of its leader; whether it knows that the leader is dead.
    Missed {
        agent: u64,
        host: u64,
        closed: bool,
    },
    /// An agent looks at a successor: its number, since when, and when the discovery began.
    Look {
        agent: u64,
        successor: usize,
        since: Duration,
        began: Duration,
        dead: Vec<u32>,
    },
}

#[derive(Debug)]
enum Role {
    Leader(Box<State>),
    Follower(u64),
    Discovering,
    Ended(#[expect(dead_code, reason = "Debug shows it where a test fails")] RunEnd),
}

#[derive(Debug)]
struct Agent {
    role: Role,
    ready: bool,
    running: Option<u64>,
    last: Option<(Arc<Roster>, Vec<NodeId>, u32)>,
    /// On which side of a cut it is.
    side: bool,
    alive: bool,
    /// When it is woken next.
    wake: Option<Elapsed>,
}

struct World {
    now: Elapsed,
    settings: Settings,
    agents: Vec<Agent>,
    events: BinaryHeap<Reverse<(Elapsed, u64, Event)>>,
    count: u64,
    acts: Vec<Act>,
    seed: u64,
    rounds: u64,
    restarts: u32,
    work: Duration,
}

impl World {
    fn new(settings: Settings, acts: Vec<(Duration, Act)>, first: usize, seed: u64) -> Self {
        let mut world = Self {
            now: Duration::ZERO,
            settings,
            agents: Vec::new(),
            events: BinaryHeap::new(),
            count: 0,
            acts: acts.iter().map(|(_, act)| *act).collect(),
            seed,
            rounds: 0,
            restarts: 0,
            work: 20 * SECOND,
        };
        for (index, (at, _)) in acts.iter().enumerate() {
            world.at(*at, Event::Act(index));
        }
        for _ in 0..first {
            world.come();
        }
        world
    }

    fn random(&mut self, below: u64) -> u64 {
        // xorshift64*: the same world for the same seed.
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        (self.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below
    }

    fn delay(&mut self, up_to: Duration) -> Duration {
        let nanoseconds = u64::try_from(up_to.as_nanos()).unwrap() + 1;
        Duration::from_nanos(self.random(nanoseconds))
    }

    fn at(&mut self, time: Elapsed, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, event)));
    }

    fn host(&self) -> Option<u64> {
        (0u64..)
            .zip(&self.agents)
            .find(|(_, agent)| agent.alive && matches!(agent.role, Role::Leader(_)))
            .map(|(id, _)| id)
    }

    fn come(&mut self) {
        let id = self.agents.len() as u64;
        let role = if id == 0 {
            Role::Leader(Box::new(State::open(NodeId(0), &self.settings, self.now)))
        } else {
            match self.host() {
                Some(host) => Role::Follower(host),
                None => Role::Ended(RunEnd::TimedOut { reason: "no host".into() }),
            }
        };
        let host = match role {
            Role::Follower(host) => host,
            _ => id,
        };
        // It comes where it can be let in.
        let side = self.agents.get(usize::try_from(host).unwrap()).is_some_and(|host| host.side);
        self.agents.push(Agent { role, ready: true, running: None, last: None, side, alive: true, wake: None });
        if id == host && id > 0 {
            return;
        }
        let description = description(id, &self.settings);
        self.with(host, |now, state, settings| {
            if state.join(now, description, settings) {
                state.ready(now, NodeId(id));
            }
        });
        if id == 0 {
            self.at(self.now + SECOND, Event::Tick(0));
        }
    }

    /// Something happens at a leader; its decisions and effects are carried out.
    fn with(&mut self, host: u64, change: impl FnOnce(Elapsed, &mut State, &Settings)) {
        let now = self.now;
        let Role::Leader(state) = &mut self.agents[usize::try_from(host).unwrap()].role else { return };
        change(now, state, &self.settings);
        let mut effects = state.take_effects();
        let mut wake = None;
        loop {
            let (decision, _) = decide(now, state, &self.settings);
            let wait = match &decision {
                Decision::Wait(until) => Some(*until),
                _ => None,
            };
            state.apply(now, decision, &self.settings);
            effects.extend(state.take_effects());
            if let Some(until) = wait {
                wake = wake.or(until);
                break;
            }
        }
        state.sanity_check(now, &self.settings);
        let agent = &mut self.agents[usize::try_from(host).unwrap()];
        if let Some(until) = wake
            && agent.wake != Some(until)
        {
            agent.wake = Some(until);
            self.at(until, Event::Wake(host));
        }
        for effect in effects {
            self.carry_out(host, effect);
        }
        self.check_rounds();
    }

    fn carry_out(&mut self, host: u64, effect: RendezvousEffect) {
        let reached = |world: &Self, id: NodeId| {
            let agent = &world.agents[usize::try_from(id.0).unwrap()];
            let ours = matches!(agent.role, Role::Follower(of) if of == host) || id.0 == host;
            agent.alive && ours && agent.side == world.agents[usize::try_from(host).unwrap()].side
        };
        match effect {
            RendezvousEffect::Close(id, message) => {
                if reached(self, id) {
                    self.receive(id, message);
                }
            }
            RendezvousEffect::Send(ids, message) => {
                for id in ids {
                    if reached(self, id) {
                        self.receive(id, message.clone());
                    }
                }
            }
            RendezvousEffect::CloseAll(message) => {
                for id in (0..self.agents.len() as u64).map(NodeId) {
                    if reached(self, id) {
                        self.receive(id, message.clone());
                    }
                }
            }
            RendezvousEffect::Begin { roster, ranks } => {
                self.check_begin(&roster, &ranks);
                for (rank, id) in (0u32..).zip(ranks.clone()) {
                    if reached(self, id) {
                        let after = self.work + self.random(5) as u32 * SECOND;
                        self.at(self.now + after, Event::Finished(id.0, roster.round));
                        let agent = &mut self.agents[usize::try_from(id.0).unwrap()];
                        let before = agent.last.as_ref().map(|(roster, ..)| roster.round);
                        assert!(before < Some(roster.round), "rounds go up");
                        assert_eq!(agent.running.replace(roster.round), None, "two rounds at once");
                        agent.last = Some((Arc::clone(&roster), ranks.clone(), rank));
                        agent.ready = false;
                    }
                }
            }
            RendezvousEffect::Joined { .. } | RendezvousEffect::Lost { .. } => {}
        }
    }

    fn receive(&mut self, id: NodeId, message: FromLeader) {
        let agent = &mut self.agents[usize::try_from(id.0).unwrap()];
        match message {
            FromLeader::RoundEnded(_) => self.stop(id.0),
            FromLeader::RunEnded(end) => {
                agent.running = None;
                // The leader's own state stays, to answer nodes that join later.
                if !matches!(agent.role, Role::Leader(_)) {
                    agent.role = Role::Ended(end);
                }
            }
            FromLeader::Refused { reason } => agent.role = Role::Ended(RunEnd::Refused { reason }),
            _ => {}
        }
    }

    fn stop(&mut self, id: u64) {
        if let Some(round) = self.agents[usize::try_from(id).unwrap()].running.take() {
            let delay = self.delay(2 * SECOND);
            self.at(self.now + delay, Event::Stopped(id, round));
        }
    }

    fn check_begin(&mut self, roster: &Roster, ranks: &[NodeId]) {
        let distinct: BTreeSet<&NodeId> = ranks.iter().collect();
        assert_eq!(distinct.len(), ranks.len(), "a node with two ranks");
        assert_eq!(roster.members.len(), ranks.len());
        assert!(ranks.len() >= self.settings.nodes_min as usize && ranks.len() <= self.settings.nodes_max as usize);
        self.rounds = self.rounds.max(roster.round + 1);
        if self.settings.node_rank.is_some() {
            let fixed = ranks.iter().map(|id| u32::try_from(id.0).unwrap() % self.settings.nodes_max);
            assert!((0u32..).zip(fixed).all(|(rank, fixed)| rank == fixed), "fixed ranks");
        }
    }

    /// Never are two rounds alive.
    fn check_rounds(&self) {
        let on = |agent: &&Agent| {
            agent.alive && matches!(&agent.role, Role::Leader(state) if state.stage == RunStage::Running)
        };
        assert!(self.agents.iter().filter(on).count() <= 1, "two hosts run a round");
    }

    fn act(&mut self, act: Act) {
        let pick = |n: usize| n % self.agents.len();
        match act {
            Act::Come => self.come(),
            Act::DieHost => {
                if let Some(host) = self.host() {
                    self.die(host);
                }
            }
            Act::Die(n) => self.die(pick(n) as u64),
            Act::Leave(n) => {
                let id = pick(n) as u64;
                match self.agents[pick(n)].role {
                    Role::Follower(host) if self.reaches(id, host) => {
                        self.with(host, |now, state, _| state.lose(now, NodeId(id), NodeLoss::Left("x".into())));
                    }
                    _ => return,
                }
                let agent = &mut self.agents[usize::try_from(id).unwrap()];
                agent.role = Role::Ended(RunEnd::Stopped { by: "x".into() });
                agent.running = None;
            }
            Act::Fail(n) => {
                let id = pick(n) as u64;
                let agent = &self.agents[pick(n)];
                let host = match agent.role {
                    Role::Follower(host) => host,
                    Role::Leader(_) => id,
                    _ => return,
                };
                if let Some(round) = agent.running.filter(|_| agent.alive && self.reaches(id, host)) {
                    self.supervise(host, round);
                }
            }
            // The network breaks once.
            Act::CutOff(_) if self.agents.iter().any(|agent| agent.side) => {}
            Act::CutOff(n) => {
                // One agent in `n % 4 + 2` is on the other side.
                let every = n % 4 + 2;
                for (index, agent) in self.agents.iter_mut().enumerate() {
                    agent.side = index % every == n % every;
                }
                let followers = (0u64..).zip(&self.agents).filter_map(|(id, agent)| match agent.role {
                    Role::Follower(host) if !self.reaches(id, host) => Some((id, host)),
                    _ => None,
                });
                for (agent, host) in followers.collect::<Vec<_>>() {
                    let delay = self.delay(SECOND);
                    let at = self.now + self.settings.silence_max - SECOND + delay;
                    self.at(at, Event::Missed { agent, host, closed: false });
                }
            }
        }
    }

    /// The supervisor handles a failure.
    fn supervise(&mut self, host: u64, round: u64) {
        let end = RoundEnd::Failed(Box::default());
        if self.restarts < self.settings.restarts_max {
            self.restarts += 1;
            let restart = Restart { number: self.restarts, wait: Duration::ZERO };
            self.with(host, |now, state, _| state.close_round(now, round, end, restart));
        } else {
            let end = RunEnd::Failed { end, reason: "all restarts are used up".into() };
            self.with(host, |_, state, _| state.close_run(end));
        }
    }

    fn reaches(&self, a: u64, b: u64) -> bool {
        self.agents[usize::try_from(a).unwrap()].side == self.agents[usize::try_from(b).unwrap()].side
    }

    fn die(&mut self, id: u64) {
        let agent = &mut self.agents[usize::try_from(id).unwrap()];
        if !agent.alive {
            return;
        }
        agent.alive = false;
        agent.running = None;
        match self.agents[usize::try_from(id).unwrap()].role {
            Role::Follower(host) if self.reaches(id, host) => {
                self.with(host, |now, state, _| state.lose(now, NodeId(id), NodeLoss::Closed));
            }
            Role::Leader(_) => {
                for other in 0..self.agents.len() as u64 {
                    let is_follower =
                        matches!(self.agents[usize::try_from(other).unwrap()].role, Role::Follower(of) if of == id);
                    if is_follower && self.reaches(other, id) {
                        let delay = self.delay(SECOND / 10);
                        self.at(self.now + delay, Event::Missed { agent: other, host: id, closed: true });
                    }
                }
            }
            _ => {}
        }
    }

    fn missed(&mut self, id: u64, host: u64, closed: bool) {
        let agent = &mut self.agents[usize::try_from(id).unwrap()];
        if !agent.alive || !matches!(agent.role, Role::Follower(of) if of == host) {
            return;
        }
        agent.role = Role::Discovering;
        // Not the leader of the round: another one may have taken over since.
        let of = |ranks: &[NodeId]| (0u32..).zip(ranks).find(|(_, id)| id.0 == host).map(|(rank, _)| rank);
        let dead = agent.last.as_ref().filter(|_| closed).and_then(|(_, ranks, _)| of(ranks));
        self.stop(id);
        let now = self.now;
        let dead = dead.into_iter().collect();
        self.at(now, Event::Look { agent: id, successor: 0, since: now, began: now, dead });
    }

    fn look(&mut self, id: u64, successor: usize, times: (Elapsed, Elapsed), mut dead: Vec<u32>) {
        let (since, began) = times;
        let now = self.now;
        let agent = &mut self.agents[usize::try_from(id).unwrap()];
        if !agent.alive || !matches!(agent.role, Role::Discovering) {
            return;
        }
        let last = agent.last.clone();
        let successors = last.as_ref().map_or(&[][..], |(roster, ..)| &roster.successors);
        let next = successors.get(successor).filter(|_| now < began + SUCCESSION_MAX);
        let (Some(next), Some((roster, ranks, own_rank))) = (next, &last) else {
            agent.role = Role::Ended(RunEnd::LeaderLost { reason: "nobody".into() });
            return;
        };
        let last_round = |dead: &[u32]| LastRound { round: roster.round, node_rank: *own_rank, dead: dead.to_vec() };
        let ready = agent.ready;
        let mut description = description(id, &self.settings);
        description.last = Some(last_round(&dead));
        let join = |now: Elapsed, state: &mut State, settings: &Settings| {
            if state.join(now, description, settings) && ready {
                state.ready(now, NodeId(id));
            }
        };
        if next.node_rank == *own_rank {
            let until = began + SUCCESSION_MAX;
            let state = State::take_over(NodeId(id), roster, dead.len(), &self.settings, now, until);
            agent.role = Role::Leader(Box::new(state));
            self.with(id, join);
            return self.at(now + SECOND, Event::Tick(id));
        }
        let other = ranks[next.node_rank as usize].0;
        let candidate = &self.agents[usize::try_from(other).unwrap()];
        let alive = candidate.alive;
        let reached = self.reaches(id, other);
        if reached && !alive {
            if !dead.contains(&next.node_rank) {
                dead.push(next.node_rank);
            }
            self.at(now, Event::Look { agent: id, successor: successor + 1, since: now, began, dead });
        } else if reached && matches!(&candidate.role, Role::Leader(state) if !matches!(state.stage, RunStage::Over(_)))
        {
            self.agents[usize::try_from(id).unwrap()].role = Role::Follower(other);
            self.with(other, join);
        } else if now >= since + TAKE_OVER_MAX {
            self.at(now, Event::Look { agent: id, successor: successor + 1, since: now, began, dead });
        } else {
            self.at(now + SECOND / 20, Event::Look { agent: id, successor, since, began, dead });
        }
    }

    fn tick(&mut self, host: u64) {
        let agent = &self.agents[usize::try_from(host).unwrap()];
        if !agent.alive || !matches!(agent.role, Role::Leader(_)) {
            return;
        }
        let reporting = |(id, agent): &(u64, &Agent)| {
            agent.alive && self.reaches(*id, host) && matches!(agent.role, Role::Follower(of) if of == host)
        };
        let report = |(id, agent): (u64, &Agent)| (id, agent.last.as_ref().map(|(roster, ..)| roster.round));
        let reporting: Vec<_> = (0u64..).zip(&self.agents).filter(reporting).map(report).collect();
        self.with(host, |now, state, settings| {
            for (id, round) in reporting {
                state.alive(now, NodeId(id), round);
            }
            for (id, time) in state.silent(now, Duration::ZERO, settings) {
                state.lose(now, id, NodeLoss::Silent(time));
            }
        });
        if !matches!(&self.agents[usize::try_from(host).unwrap()].role, Role::Leader(s) if matches!(s.stage, RunStage::Over(_)))
        {
            self.at(self.now + SECOND, Event::Tick(host));
        }
    }

    fn wake(&mut self, host: u64) {
        let agent = &mut self.agents[usize::try_from(host).unwrap()];
        agent.wake = None;
        if agent.alive && matches!(agent.role, Role::Leader(_)) {
            self.with(host, |_, _, _| {});
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Act(index) => self.act(self.acts[index]),
            Event::Tick(host) => self.tick(host),
            Event::Wake(host) => self.wake(host),
            Event::Stopped(id, round) => {
                let agent = &mut self.agents[usize::try_from(id).unwrap()];
                let last = agent.last.as_ref().map(|(roster, ..)| roster.round);
                if !agent.alive || agent.running.is_some() || last != Some(round) {
                    return;
                }
                agent.ready = true;
                let host = match self.agents[usize::try_from(id).unwrap()].role {
                    Role::Leader(_) => id,
                    Role::Follower(host) if self.reaches(id, host) => host,
                    _ => return,
                };
                self.with(host, |now, state, _| state.ready(now, NodeId(id)));
            }
            Event::Finished(id, round) => {
                let agent = &self.agents[usize::try_from(id).unwrap()];
                let host = match agent.role {
                    Role::Leader(_) => id,
                    Role::Follower(host) => host,
                    _ => return,
                };
                if agent.alive && agent.running == Some(round) && self.reaches(id, host) {
                    self.with(host, |_, state, _| state.finish(NodeId(id), round));
                }
            }
            Event::Missed { agent, host, closed } => self.missed(agent, host, closed),
            Event::Look { agent, successor, since, began, dead } => self.look(agent, successor, (since, began), dead),
        }
    }

    /// Runs until nothing happens any more. Every living agent has then learned how its run ended.
    fn run(mut self) -> u64 {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            assert!(time < 4000 * SECOND, "the world does not come to rest");
            self.now = time;
            self.event(event);
        }
        for (id, agent) in self.agents.iter().enumerate().filter(|(_, agent)| agent.alive) {
            let over = match &agent.role {
                Role::Ended(_) => true,
                Role::Leader(state) => matches!(state.stage, RunStage::Over(_)),
                Role::Follower(_) | Role::Discovering => false,
            };
            assert!(over, "agent {id} never learned the end: {:?}", agent.role);
            assert_eq!(agent.running, None, "workers of agent {id} run after the end");
        }
        self.rounds
    }
}

fn acts() -> impl Strategy<Value = Vec<(Duration, Act)>> {
    let act = prop_oneof![
        4 => Just(Act::Come),
        2 => (0usize..1000).prop_map(Act::Leave),
        3 => (0usize..1000).prop_map(Act::Die),
        2 => Just(Act::DieHost),
        3 => (0usize..1000).prop_map(Act::Fail),
        1 => (0usize..1000).prop_map(Act::CutOff),
    ];
    proptest::collection::vec(((0u64..90_000).prop_map(Duration::from_millis), act), 0..25)
}

fn of(min: u32, max: u32, fixed: bool, restarts_max: u32) -> Settings {
    Settings {
        nodes_min: min,
        nodes_max: max,
        node_rank: fixed.then_some(0),
        restarts_max,
        join_timeout: 60 * SECOND,
        last_call: 3 * SECOND,
        ..settings()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    #[test]
    fn whatever_happens_everything_holds(
        acts in acts(),
        first in 1usize..14,
        min in 1u32..8,
        more in 0u32..6,
        fixed in any::<bool>(),
        restarts in 0u32..4,
        seed in 1u64..,
    ) {
        let settings = of(min, min + more, fixed && more == 0, restarts);
        World::new(settings, acts, first, seed).run();
    }
}

#[test]
fn a_thousand_agents() {
    let second = |n: u64| Duration::from_secs(n);
    for seed in 1..6u64 {
        let mut acts: Vec<(Duration, Act)> =
            (0..40).map(|n| (second(n) / 2, Act::Die(usize::try_from(n * 37 + 1).unwrap()))).collect();
        acts.extend((0..200).map(|n| (second(n) / 5, Act::Come)));
        acts.extend([30, 45, 60].map(|n| (second(n), Act::DieHost)));
        acts.extend((0..3).map(|n| (second(35 + n), Act::Fail(n as usize))));
        let rounds = World::new(of(500, 1000, false, 5), acts, 900, seed).run();
        assert!(rounds > 3, "{rounds} rounds");
    }
}

#[test]
fn a_cut_leaves_one_side_at_most() {
    for every in 2..6 {
        let rounds = World::new(of(1, 12, false, 3), vec![(10 * SECOND, Act::CutOff(every))], 12, 7).run();
        assert!(rounds >= 1);
    }
    assert!(has_quorum(PartitionSide { nodes: 4, dead: 0, here: 2, with_leader: true }));
}
