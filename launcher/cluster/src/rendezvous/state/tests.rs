//! A rendezvous in virtual time: agents that come, leave, die, fail, are cut off and take over, with a check of everything
//! that must hold after every step.

use super::{
    super::{
        decide::{Decision, Reason, decide},
        policy::may_go_on,
        settings::tests::settings,
    },
    *,
};
use enn_common::wire::node::StandbyEndpoint;
use proptest::prelude::*;
use std::{cmp::Reverse, collections::BinaryHeap};

const SECOND: Duration = Duration::from_secs(1);
/// As in `seek`: time to find the next host, and for one heir to answer.
const SUCCESSION_MAX: Duration = Duration::from_millis(4500);
const TAKE_OVER_MAX: Duration = Duration::from_secs(2);

impl State {
    /// Everything that must hold whatever happened.
    pub(in super::super) fn sanity_check(&self, now: Time, settings: &Settings) {
        let count = |phase: Phase| self.nodes.values().filter(|node| node.phase == phase).count();
        assert_eq!(self.ready.len(), count(Phase::Ready));
        assert!(self.ready.iter().all(|(order, id)| self.nodes[id].order == *order));
        assert!(self.settling.iter().all(|id| self.nodes[id].phase == Phase::Settling));
        let running = count(Phase::Running);
        match &self.stage {
            Stage::Running => {
                assert_eq!(running, self.running - self.done, "living members whose workers run");
                assert!(running > 0, "a round without work goes on");
            }
            Stage::Over(_) => {}
            _ => assert_eq!(running, 0, "workers run although no round does: {:?}", self.stage),
        }
        let (decision, reason) = decide(now, self, settings);
        match (&self.stage, decision) {
            (Stage::Gathering | Stage::Succeeding(_), Decision::Wait(until)) => {
                let until = until.expect("waiting has a deadline");
                assert!(until > now, "the deadline is over: {}", reason.at(now));
                assert!(!reason.at(now).is_empty() && !matches!(reason, Reason::Over | Reason::Running { .. }));
            }
            (_, Decision::Wait(_)) => {}
            (_, decision) => panic!("{decision:?} was not carried out"),
        }
        if settings.node_rank.is_some() {
            let ready: BTreeSet<u32> = self.ready.iter().filter_map(|(_, id)| self.nodes[id].card.node_rank).collect();
            assert!(self.stage == Stage::Running || self.missing.is_disjoint(&ready));
        }
    }
}

fn card(id: u64, settings: &Settings) -> NodeDescription {
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
    /// From now on, one side of the network hears nothing of the other.
    CutOff(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Act(usize),
    /// The host's timer.
    Tick(u64),
    /// The host's deadline.
    Wake(u64),
    /// An agent's workers are stopped.
    Stopped(u64, u64),
    /// An agent's workers are done with this round.
    Finished(u64, u64),
    /// An agent notices that its host is gone; whether it knows that it is dead.
    Missed {
        agent: u64,
        host: u64,
        closed: bool,
    },
    /// An agent looks at heir number so, since then, having begun then.
    Seek {
        agent: u64,
        heir: usize,
        since: Duration,
        began: Duration,
        dead: Vec<u32>,
    },
}

#[derive(Debug)]
enum Seat {
    Host(Box<State>),
    Guest(u64),
    Seeking,
    Out(#[expect(dead_code, reason = "Debug shows it where a test fails")] RunEnd),
}

#[derive(Debug)]
struct Agent {
    seat: Seat,
    ready: bool,
    running: Option<u64>,
    last: Option<(Arc<Roster>, Vec<NodeId>, u32)>,
    /// On which side of a cut it is.
    side: bool,
    alive: bool,
    /// When it is woken next.
    wake: Option<Time>,
}

struct World {
    now: Time,
    settings: Settings,
    agents: Vec<Agent>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
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

    fn at(&mut self, time: Time, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, event)));
    }

    fn host(&self) -> Option<u64> {
        (0u64..)
            .zip(&self.agents)
            .find(|(_, agent)| agent.alive && matches!(agent.seat, Seat::Host(_)))
            .map(|(id, _)| id)
    }

    fn come(&mut self) {
        let id = self.agents.len() as u64;
        let seat = if id == 0 {
            Seat::Host(Box::new(State::open(NodeId(0), &self.settings, self.now)))
        } else {
            match self.host() {
                Some(host) => Seat::Guest(host),
                None => Seat::Out(RunEnd::TimedOut { reason: "no host".into() }),
            }
        };
        let host = match seat {
            Seat::Guest(host) => host,
            _ => id,
        };
        // It comes where it can be let in.
        let side = self.agents.get(usize::try_from(host).unwrap()).is_some_and(|host| host.side);
        self.agents.push(Agent { seat, ready: true, running: None, last: None, side, alive: true, wake: None });
        if id == host && id > 0 {
            return;
        }
        let card = card(id, &self.settings);
        self.with(host, |now, state, settings| {
            if state.join(now, card, settings) {
                state.ready(now, NodeId(id));
            }
        });
        if id == 0 {
            self.at(self.now + SECOND, Event::Tick(0));
        }
    }

    /// Something happens at a host; what it decides is carried out and told.
    fn with(&mut self, host: u64, change: impl FnOnce(Time, &mut State, &Settings)) {
        let now = self.now;
        let Seat::Host(state) = &mut self.agents[usize::try_from(host).unwrap()].seat else { return };
        change(now, state, &self.settings);
        let mut told = state.take_told();
        let mut wake = None;
        loop {
            let (decision, _) = decide(now, state, &self.settings);
            let wait = match &decision {
                Decision::Wait(until) => Some(*until),
                _ => None,
            };
            state.apply(now, decision, &self.settings);
            told.extend(state.take_told());
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
        for told in told {
            self.hear(host, told);
        }
        self.check_rounds();
    }

    fn hear(&mut self, host: u64, told: Told) {
        let reached = |world: &Self, id: NodeId| {
            let agent = &world.agents[usize::try_from(id.0).unwrap()];
            let ours = matches!(agent.seat, Seat::Guest(of) if of == host) || id.0 == host;
            agent.alive && ours && agent.side == world.agents[usize::try_from(host).unwrap()].side
        };
        match told {
            Told::To(id, message) => {
                if reached(self, id) {
                    self.listen(id, message);
                }
            }
            Told::These(ids, message) => {
                for id in ids {
                    if reached(self, id) {
                        self.listen(id, message.clone());
                    }
                }
            }
            Told::All(message) => {
                for id in (0..self.agents.len() as u64).map(NodeId) {
                    if reached(self, id) {
                        self.listen(id, message.clone());
                    }
                }
            }
            Told::Begin { roster, ranks } => {
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
            Told::Joined { .. } | Told::Lost { .. } => {}
        }
    }

    fn listen(&mut self, id: NodeId, message: FromHost) {
        let agent = &mut self.agents[usize::try_from(id.0).unwrap()];
        match message {
            FromHost::RoundEnded(_) => self.stop(id.0),
            FromHost::RunEnded(end) => {
                agent.running = None;
                // The host's own state stays, to answer those who come later.
                if !matches!(agent.seat, Seat::Host(_)) {
                    agent.seat = Seat::Out(end);
                }
            }
            FromHost::Refused { reason } => agent.seat = Seat::Out(RunEnd::Refused { reason }),
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
        let on =
            |agent: &&Agent| agent.alive && matches!(&agent.seat, Seat::Host(state) if state.stage == Stage::Running);
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
                match self.agents[pick(n)].seat {
                    Seat::Guest(host) if self.hears(id, host) => {
                        self.with(host, |now, state, _| state.lose(now, NodeId(id), Loss::Left("x".into())));
                    }
                    _ => return,
                }
                let agent = &mut self.agents[usize::try_from(id).unwrap()];
                agent.seat = Seat::Out(RunEnd::Stopped { by: "x".into() });
                agent.running = None;
            }
            Act::Fail(n) => {
                let id = pick(n) as u64;
                let agent = &self.agents[pick(n)];
                let host = match agent.seat {
                    Seat::Guest(host) => host,
                    Seat::Host(_) => id,
                    _ => return,
                };
                if let Some(round) = agent.running.filter(|_| agent.alive && self.hears(id, host)) {
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
                let guests = (0u64..).zip(&self.agents).filter_map(|(id, agent)| match agent.seat {
                    Seat::Guest(host) if !self.hears(id, host) => Some((id, host)),
                    _ => None,
                });
                for (agent, host) in guests.collect::<Vec<_>>() {
                    let delay = self.delay(SECOND);
                    let at = self.now + self.settings.silence_max - SECOND + delay;
                    self.at(at, Event::Missed { agent, host, closed: false });
                }
            }
        }
    }

    /// The supervisor hears of a failure.
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

    fn hears(&self, a: u64, b: u64) -> bool {
        self.agents[usize::try_from(a).unwrap()].side == self.agents[usize::try_from(b).unwrap()].side
    }

    fn die(&mut self, id: u64) {
        let agent = &mut self.agents[usize::try_from(id).unwrap()];
        if !agent.alive {
            return;
        }
        agent.alive = false;
        agent.running = None;
        match self.agents[usize::try_from(id).unwrap()].seat {
            Seat::Guest(host) if self.hears(id, host) => {
                self.with(host, |now, state, _| state.lose(now, NodeId(id), Loss::Closed));
            }
            Seat::Host(_) => {
                for other in 0..self.agents.len() as u64 {
                    let guest =
                        matches!(self.agents[usize::try_from(other).unwrap()].seat, Seat::Guest(of) if of == id);
                    if guest && self.hears(other, id) {
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
        if !agent.alive || !matches!(agent.seat, Seat::Guest(of) if of == host) {
            return;
        }
        agent.seat = Seat::Seeking;
        // Not the host of the round: another one may have taken over since.
        let of = |ranks: &[NodeId]| (0u32..).zip(ranks).find(|(_, id)| id.0 == host).map(|(rank, _)| rank);
        let dead = agent.last.as_ref().filter(|_| closed).and_then(|(_, ranks, _)| of(ranks));
        self.stop(id);
        let now = self.now;
        let dead = dead.into_iter().collect();
        self.at(now, Event::Seek { agent: id, heir: 0, since: now, began: now, dead });
    }

    fn seek(&mut self, id: u64, heir: usize, times: (Time, Time), mut dead: Vec<u32>) {
        let (since, began) = times;
        let now = self.now;
        let agent = &mut self.agents[usize::try_from(id).unwrap()];
        if !agent.alive || !matches!(agent.seat, Seat::Seeking) {
            return;
        }
        let last = agent.last.clone();
        let heirs = last.as_ref().map_or(&[][..], |(roster, ..)| &roster.successors);
        let next = heirs.get(heir).filter(|_| now < began + SUCCESSION_MAX);
        let (Some(next), Some((roster, ranks, own_rank))) = (next, &last) else {
            agent.seat = Seat::Out(RunEnd::HostLost { reason: "nobody".into() });
            return;
        };
        let last_round = |dead: &[u32]| LastRound { round: roster.round, node_rank: *own_rank, dead: dead.to_vec() };
        let ready = agent.ready;
        let mut card = card(id, &self.settings);
        card.last = Some(last_round(&dead));
        let join = |now: Time, state: &mut State, settings: &Settings| {
            if state.join(now, card, settings) && ready {
                state.ready(now, NodeId(id));
            }
        };
        if next.node_rank == *own_rank {
            let times = (now, began + SUCCESSION_MAX);
            let state = State::inherit(NodeId(id), roster, dead.len(), &self.settings, times);
            agent.seat = Seat::Host(Box::new(state));
            self.with(id, join);
            return self.at(now + SECOND, Event::Tick(id));
        }
        let other = ranks[next.node_rank as usize].0;
        let target = &self.agents[usize::try_from(other).unwrap()];
        let alive = target.alive;
        let reached = self.hears(id, other);
        if reached && !alive {
            if !dead.contains(&next.node_rank) {
                dead.push(next.node_rank);
            }
            self.at(now, Event::Seek { agent: id, heir: heir + 1, since: now, began, dead });
        } else if reached && matches!(&target.seat, Seat::Host(state) if !matches!(state.stage, Stage::Over(_))) {
            self.agents[usize::try_from(id).unwrap()].seat = Seat::Guest(other);
            self.with(other, join);
        } else if now >= since + TAKE_OVER_MAX {
            self.at(now, Event::Seek { agent: id, heir: heir + 1, since: now, began, dead });
        } else {
            self.at(now + SECOND / 20, Event::Seek { agent: id, heir, since, began, dead });
        }
    }

    fn tick(&mut self, host: u64) {
        let agent = &self.agents[usize::try_from(host).unwrap()];
        if !agent.alive || !matches!(agent.seat, Seat::Host(_)) {
            return;
        }
        let heard = |(id, agent): &(u64, &Agent)| {
            agent.alive && self.hears(*id, host) && matches!(agent.seat, Seat::Guest(of) if of == host)
        };
        let said = |(id, agent): (u64, &Agent)| (id, agent.last.as_ref().map(|(roster, ..)| roster.round));
        let heard: Vec<_> = (0u64..).zip(&self.agents).filter(heard).map(said).collect();
        self.with(host, |now, state, settings| {
            for (id, round) in heard {
                state.alive(now, NodeId(id), round);
            }
            for (id, time) in state.silent(now, Duration::ZERO, settings) {
                state.lose(now, id, Loss::Silent(time));
            }
        });
        if !matches!(&self.agents[usize::try_from(host).unwrap()].seat, Seat::Host(s) if matches!(s.stage, Stage::Over(_)))
        {
            self.at(self.now + SECOND, Event::Tick(host));
        }
    }

    fn wake(&mut self, host: u64) {
        let agent = &mut self.agents[usize::try_from(host).unwrap()];
        agent.wake = None;
        if agent.alive && matches!(agent.seat, Seat::Host(_)) {
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
                let host = match self.agents[usize::try_from(id).unwrap()].seat {
                    Seat::Host(_) => id,
                    Seat::Guest(host) if self.hears(id, host) => host,
                    _ => return,
                };
                self.with(host, |now, state, _| state.ready(now, NodeId(id)));
            }
            Event::Finished(id, round) => {
                let agent = &self.agents[usize::try_from(id).unwrap()];
                let host = match agent.seat {
                    Seat::Host(_) => id,
                    Seat::Guest(host) => host,
                    _ => return,
                };
                if agent.alive && agent.running == Some(round) && self.hears(id, host) {
                    self.with(host, |_, state, _| state.finish(NodeId(id), round));
                }
            }
            Event::Missed { agent, host, closed } => self.missed(agent, host, closed),
            Event::Seek { agent, heir, since, began, dead } => self.seek(agent, heir, (since, began), dead),
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
            let over = match &agent.seat {
                Seat::Out(_) => true,
                Seat::Host(state) => matches!(state.stage, Stage::Over(_)),
                Seat::Guest(_) | Seat::Seeking => false,
            };
            assert!(over, "agent {id} never learned the end: {:?}", agent.seat);
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
    assert!(may_go_on(Side { nodes: 4, dead: 0, here: 2, with_host: true }));
}
