//! The workers that are admitted and seated, and the meaning of a message or a closed connection. Pure: effects are returned,
//! and `server` applies them; a simulation does it in virtual time.
//!
//! **Invariant:** a worker connects once and stays through many rounds. Its messages belong to the round that it entered last. A script
//! enters a round when it is assigned to it, names the round in its messages, and may connect again when its connection was lost.

use crate::event::{BrokerEvent, RoundPlan};
use enn_common::{
    id::{Round, WorkerId},
    wire::{
        control::Phase,
        message::{Assignment, FromWorker, PROTOCOL, Standby, ToWorker},
        script::{FromScript, SCRIPT_PROTOCOL, SCRIPT_PROTOCOL_MIN, state_source},
    },
};
use std::collections::{BTreeMap, BTreeSet};

/// What a script is reported to run on: it says nothing of its device.
const SCRIPT_DEVICE: &str = "script";

/// Identifies a connection; an id is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub usize);

/// Effects that the owner of the connections must apply, in order.
#[derive(Debug, PartialEq)]
pub enum Effect {
    Send(ConnectionId, ToWorker),
    /// Flush what can be flushed, then close.
    Close(ConnectionId),
    Emit(BrokerEvent),
}

/// The workers that are expected, connected or seated.
#[derive(Debug, Default)]
pub struct Roster {
    /// Workers that have not connected yet.
    expected: BTreeMap<WorkerId, Option<Box<Standby>>>,
    members: BTreeMap<ConnectionId, Member>,
    current: Option<RoundPlan>,
    /// Workers with a seat in the newest round, which may be over.
    seated: BTreeSet<WorkerId>,
    /// Scripts that are to end.
    stopping: BTreeSet<WorkerId>,
}

#[derive(Debug)]
struct Member {
    worker: WorkerId,
    /// The round that the worker entered last.
    round: Option<Round>,
    is_script: bool,
    /// A script that knows what it is to be parked.
    parks: bool,
}

impl Roster {
    /// Returns whether the connection belongs to an admitted worker.
    pub(crate) fn is_member(&self, id: ConnectionId) -> bool {
        self.members.contains_key(&id)
    }

    /// Admits a worker when it connects; without a seat it prepares for `standby`.
    pub fn expect(&mut self, worker: WorkerId, standby: Option<Box<Standby>>) -> Vec<Effect> {
        self.expected.insert(worker, standby);
        Vec::new()
    }

    /// Gives seats: now to the connected workers, to others when they connect. A script that had a seat and has none now is parked.
    pub fn begin(&mut self, plan: RoundPlan) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (id, member) in &mut self.members {
            let Some(seat) = plan.seats.get(&member.worker) else {
                if member.parks && member.round.take().is_some() {
                    effects.extend([Effect::Send(*id, ToWorker::Parked), Effect::Emit(waits(member.worker))]);
                }
                continue;
            };
            effects.push(Effect::Send(*id, ToWorker::Assign(Box::new(seat.clone()))));
            if member.is_script {
                member.round = Some(plan.round);
                effects.extend(entered(member.worker, seat));
            }
        }
        self.seated = plan.seats.keys().copied().collect();
        self.current = Some(plan);
        effects
    }

    /// Tells all workers with a seat that the round is over.
    pub fn end(&mut self, reason: &str) -> Vec<Effect> {
        let Some(plan) = &self.current else { return Vec::new() };
        let effects = self.tell_all(&ToWorker::RoundEnded { round: plan.round.0, reason: reason.to_owned() });
        self.current = None;
        // One that has not come is not of that round any more.
        self.seated.retain(|worker| self.members.values().any(|member| member.worker == *worker));
        effects
    }

    /// Tells one worker to end, closes its connection and admits it no more.
    pub fn dismiss(&mut self, worker: WorkerId) -> Vec<Effect> {
        self.expected.remove(&worker);
        self.stopping.remove(&worker);
        let here = self.connection(worker).map(|(id, _)| id);
        if let Some(id) = here {
            self.members.remove(&id);
        }
        here.map(|id| [Effect::Send(id, ToWorker::Dismissed), Effect::Close(id)]).into_iter().flatten().collect()
    }

    /// Tells a script to end, now or when it attaches. Other workers see that on their control pages.
    pub fn stop_script(&mut self, worker: WorkerId) -> Vec<Effect> {
        self.stopping.insert(worker);
        let here = self.connection(worker).filter(|(_, member)| member.is_script);
        here.map(|(id, _)| Effect::Send(id, ToWorker::Dismissed)).into_iter().collect()
    }

    fn connection(&self, worker: WorkerId) -> Option<(ConnectionId, &Member)> {
        self.members.iter().find(|(_, member)| member.worker == worker).map(|(id, member)| (*id, member))
    }

    /// Closes all connections and admits no more workers, save for scripts without a seat: they wait for one in the next round.
    pub fn close_all(&mut self) -> Vec<Effect> {
        let seated = std::mem::take(&mut self.seated);
        self.expected.retain(|worker, _| !seated.contains(worker));
        self.stopping.retain(|worker| !seated.contains(worker));
        self.current = None;
        let of_round = |_: &ConnectionId, member: &mut Member| !member.is_script || seated.contains(&member.worker);
        self.members.extract_if(.., of_round).map(|(id, _)| Effect::Close(id)).collect()
    }

    /// Sends a message to every connected worker with a seat.
    pub fn tell_all(&self, message: &ToWorker) -> Vec<Effect> {
        let Some(current) = &self.current else { return Vec::new() };
        let seated = self.members.iter().filter(|(_, member)| current.seats.contains_key(&member.worker));
        seated.map(|(id, _)| Effect::Send(*id, message.clone())).collect()
    }

    /// A message came on a connection.
    pub fn on_message(&mut self, id: ConnectionId, message: FromWorker) -> Vec<Effect> {
        if let FromWorker::Hello { protocol, worker, pid } = message {
            return self.on_hello(id, protocol, WorkerId(worker), pid);
        }
        let Some(member) = self.members.get_mut(&id) else {
            return refuse(id, "the first message on a connection must be Hello".into());
        };
        if let FromWorker::Entered { round } = message {
            member.round = Some(Round(round));
        }
        let worker = member.worker;
        let round = member.round;
        vec![Effect::Emit(BrokerEvent::Reported { round, worker, message })]
    }

    fn on_hello(&mut self, id: ConnectionId, protocol: u32, worker: WorkerId, pid: u32) -> Vec<Effect> {
        if protocol != PROTOCOL {
            let hint = "are enn and enn-worker of one version?";
            return refuse(id, format!("enn-worker speaks protocol {protocol}, enn speaks {PROTOCOL} ({hint})"));
        }
        let standby = match self.admit(id, Member { worker, round: None, is_script: false, parks: false }) {
            Ok(standby) => standby,
            Err(error) => return refuse(id, error),
        };
        let seat = self.current.as_ref().and_then(|current| current.seats.get(&worker));
        let answer = match (seat, standby) {
            (Some(seat), _) => Some(ToWorker::Assign(Box::new(seat.clone()))),
            (None, standby) => standby.map(ToWorker::Stand),
        };
        let sent = answer.map(|message| Effect::Send(id, message));
        sent.into_iter().chain([Effect::Emit(BrokerEvent::Joined { worker, pid })]).collect()
    }

    /// Makes a connection that of an expected worker; returns what the worker prepares for without a seat.
    fn admit(&mut self, id: ConnectionId, member: Member) -> Result<Option<Box<Standby>>, String> {
        let worker = member.worker;
        if self.is_member(id) || self.connection(worker).is_some() {
            return Err(format!("worker {worker} is already connected"));
        }
        let Some(standby) = self.expected.remove(&worker) else {
            return Err(format!("worker {worker} is not expected: it belongs to an attempt that has ended"));
        };
        self.members.insert(id, member);
        Ok(standby)
    }

    /// A message of a script came on a connection.
    pub fn on_script(&mut self, id: ConnectionId, message: FromScript) -> Vec<Effect> {
        if let FromScript::Attach { protocol, worker, pid } = message {
            return self.on_attach(id, protocol, WorkerId(worker), pid);
        }
        let Some(Member { worker, round, .. }) = self.members.get(&id) else {
            return refuse(id, "the first message on a connection must be attach".into());
        };
        let worker = *worker;
        let present = *round;
        let report = |round, message| Effect::Emit(BrokerEvent::Reported { round, worker, message });
        // What it says of a round that it has left moves nothing.
        let progressed = |round, phase, step| {
            let is_now = present == Some(round);
            is_now.then_some(Effect::Emit(BrokerEvent::Progressed { worker, phase, step })).into_iter()
        };
        match message {
            FromScript::Attach { .. } => Vec::new(),
            FromScript::Ready { round, step } => {
                let round = Round(round);
                let device = SCRIPT_DEVICE.to_owned();
                let ready = FromWorker::Ready { device, backend: String::new(), libtorch: String::new() };
                progressed(round, Phase::Compute, step).chain([report(Some(round), ready)]).collect()
            }
            FromScript::Halted { round, step, whole } => {
                let halted = FromWorker::Halted { round, step, kept: whole };
                let round = Round(round);
                progressed(round, Phase::Rendezvous, step).chain([report(Some(round), halted)]).collect()
            }
            FromScript::Progress { round, step } => progressed(Round(round), Phase::Compute, step).collect(),
            FromScript::Stalled { round, step, waits } => {
                let phase = if waits { Phase::Collective } else { Phase::Compute };
                progressed(Round(round), phase, step).collect()
            }
            FromScript::Failed { error } => vec![report(present, FromWorker::Failed { error })],
            FromScript::Parts { parts } => vec![report(present, FromWorker::BatchParts { parts })],
        }
    }

    fn on_attach(&mut self, id: ConnectionId, protocol: u32, worker: WorkerId, pid: u32) -> Vec<Effect> {
        if !(SCRIPT_PROTOCOL_MIN..=SCRIPT_PROTOCOL).contains(&protocol) {
            let hint = "are the package enn and the program enn of one version?";
            return refuse(id, format!("the script speaks protocol {protocol}, enn speaks {SCRIPT_PROTOCOL} ({hint})"));
        }
        let seat = self.current.as_ref().and_then(|current| current.seats.get(&worker)).cloned();
        let round = seat.as_ref().map(|seat| Round(seat.round));
        if let Err(error) =
            self.admit(id, Member { worker, round, is_script: true, parks: protocol > SCRIPT_PROTOCOL_MIN })
        {
            return refuse(id, error);
        }
        let mut effects = vec![Effect::Emit(BrokerEvent::Joined { worker, pid })];
        match seat {
            Some(seat) => {
                effects.extend(entered(worker, &seat));
                effects.push(Effect::Send(id, ToWorker::Assign(Box::new(seat))));
            }
            // It waits in front of its training, with all that it imports.
            None => effects.push(Effect::Emit(waits(worker))),
        }
        if self.stopping.contains(&worker) {
            effects.push(Effect::Send(id, ToWorker::Dismissed));
        }
        effects
    }

    /// A connection ended, from the worker's side or because of `error`.
    pub fn on_closed(&mut self, id: ConnectionId, error: Option<String>) -> Vec<Effect> {
        match self.members.remove(&id) {
            Some(Member { worker, is_script, .. }) => {
                if is_script {
                    self.expected.insert(worker, None);
                }
                vec![Effect::Emit(BrokerEvent::Left { worker, error })]
            }
            None => error.map(|error| Effect::Emit(BrokerEvent::Refused { error })).into_iter().collect(),
        }
    }
}

/// A script without a seat waits for one.
fn waits(worker: WorkerId) -> BrokerEvent {
    BrokerEvent::Reported { round: None, worker, message: FromWorker::Warm }
}

/// A script has entered the round of its seat: it has no say in that.
fn entered(worker: WorkerId, seat: &Assignment) -> [Effect; 2] {
    let round = Some(Round(seat.round));
    let message = FromWorker::Entered { round: seat.round };
    let step = state_source(seat).map_or(0, |source| source.step);
    [
        Effect::Emit(BrokerEvent::Progressed { worker, phase: Phase::Rendezvous, step }),
        Effect::Emit(BrokerEvent::Reported { round, worker, message }),
    ]
}

/// Refuses a connection, and reports it to the worker and to the agent.
pub(crate) fn refuse(id: ConnectionId, error: String) -> Vec<Effect> {
    vec![
        Effect::Send(id, ToWorker::Refused { error: error.clone() }),
        Effect::Close(id),
        Effect::Emit(BrokerEvent::Refused { error }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::wire::message::{Assignment, WorkerTask};

    fn plan(round: u64, workers: &[u32]) -> RoundPlan {
        let world_size = workers.len() as u32;
        let seat = |(rank, worker): (usize, &u32)| {
            let assignment = Assignment {
                round,
                rank: rank as u32,
                world_size,
                local_rank: rank as u32,
                local_world_size: world_size,
                store_host: String::new(),
                store_port: 0,
                device: "cpu".into(),
                threads: 1,
                run_dir: "/run".into(),
                kernels: enn_common::kernels::Quarantined::default(),
                split: 1,
                task: WorkerTask::Init { meta: "/m".into(), attempt: "0".into() },
            };
            (WorkerId(*worker), assignment)
        };
        RoundPlan { round: Round(round), seats: workers.iter().enumerate().map(seat).collect() }
    }

    fn hello(worker: u32) -> FromWorker {
        FromWorker::Hello { protocol: PROTOCOL, worker, pid: 5 }
    }

    fn standby() -> Box<Standby> {
        let run_dir = "/run".into();
        let staged = "/staged".into();
        let store_host = String::new();
        let store_port = 0;
        let local_rank = 0;
        let world_size = 2;
        let threads = 1;
        let device = "cpu".into();
        Box::new(Standby { device, local_rank, world_size, store_host, store_port, threads, run_dir, staged })
    }

    /// Workers 0, 1, … on connections of the same numbers, in the round `round`.
    fn seated(round: u64, workers: &[u32]) -> Roster {
        let mut roster = Roster::default();
        roster.begin(plan(round, workers));
        for worker in workers {
            roster.expect(WorkerId(*worker), None);
            roster.on_message(ConnectionId(*worker as usize), hello(*worker));
            roster.on_message(ConnectionId(*worker as usize), FromWorker::Entered { round });
        }
        roster
    }

    fn refused(effects: &[Effect], text: &str) -> bool {
        matches!(effects, [Effect::Send(_, ToWorker::Refused { error }), Effect::Close(_), Effect::Emit(BrokerEvent::Refused { .. })] if error.contains(text))
    }

    #[test]
    fn who_is_expected_gets_a_seat_or_stands_by() {
        let mut roster = Roster::default();
        assert!(refused(&roster.on_message(ConnectionId(1), hello(0)), "not expected"));
        for (worker, prepare) in [(7, None), (8, Some(standby())), (9, None)] {
            roster.expect(WorkerId(worker), prepare);
        }
        assert!(roster.begin(plan(3, &[4, 7])).is_empty());
        let effects = roster.on_message(ConnectionId(2), hello(7));
        let [
            Effect::Send(ConnectionId(2), ToWorker::Assign(assignment)),
            Effect::Emit(BrokerEvent::Joined { worker: WorkerId(7), .. }),
        ] = &effects[..]
        else {
            panic!("{effects:?}")
        };
        assert_eq!((assignment.rank, assignment.round), (1, 3));
        let effects = roster.on_message(ConnectionId(3), hello(8));
        assert!(matches!(&effects[..], [Effect::Send(_, ToWorker::Stand(_)), Effect::Emit(_)]), "{effects:?}");
        let effects = roster.on_message(ConnectionId(4), hello(9));
        assert!(matches!(&effects[..], [Effect::Emit(BrokerEvent::Joined { .. })]), "{effects:?}");
        assert!(refused(&roster.on_message(ConnectionId(5), hello(7)), "already connected"));
        assert!(refused(&roster.on_message(ConnectionId(6), FromWorker::Done { stopped: false }), "must be Hello"));
        let foreign = FromWorker::Hello { protocol: 9, worker: 4, pid: 5 };
        assert!(refused(&roster.on_message(ConnectionId(7), foreign), "protocol 9"));
    }

    #[test]
    fn workers_live_through_rounds_and_their_words_belong_to_the_round_they_entered() {
        let mut roster = seated(0, &[0, 1]);
        let over = roster.end("rank 1 died");
        assert!(
            matches!(&over[..], [Effect::Send(_, ToWorker::RoundEnded { round: 0, .. }), Effect::Send(..)]),
            "{over:?}"
        );
        assert_eq!(roster.on_closed(ConnectionId(1), None).len(), 1);
        let effects = roster.begin(plan(1, &[0]));
        assert!(matches!(&effects[..], [Effect::Send(ConnectionId(0), ToWorker::Assign(_))]), "{effects:?}");
        // Said before it entered the new round.
        let late = roster.on_message(ConnectionId(0), FromWorker::Halted { round: 0, step: 3, kept: true });
        assert!(matches!(&late[..], [Effect::Emit(BrokerEvent::Reported { round: Some(Round(0)), .. })]), "{late:?}");
        roster.on_message(ConnectionId(0), FromWorker::Entered { round: 1 });
        let now = roster.on_message(ConnectionId(0), FromWorker::Warm);
        assert!(matches!(&now[..], [Effect::Emit(BrokerEvent::Reported { round: Some(Round(1)), .. })]), "{now:?}");
    }

    fn attach(worker: u32) -> FromScript {
        FromScript::Attach { protocol: SCRIPT_PROTOCOL, worker, pid: 5 }
    }

    fn reported(effects: &[Effect]) -> Vec<(Option<u64>, &FromWorker)> {
        let report = |effect| match effect {
            &Effect::Emit(BrokerEvent::Reported { round, ref message, .. }) => {
                Some((round.map(|round: Round| round.0), message))
            }
            _ => None,
        };
        effects.iter().filter_map(report).collect()
    }

    fn progressed(effects: &[Effect]) -> Option<(Phase, u64)> {
        effects.iter().find_map(|effect| match effect {
            Effect::Emit(BrokerEvent::Progressed { phase, step, .. }) => Some((*phase, *step)),
            _ => None,
        })
    }

    #[test]
    fn a_script_attaches_and_its_messages_are_those_of_a_worker() {
        let id = ConnectionId(4);
        let mut roster = Roster::default();
        let early = roster.on_script(id, FromScript::Progress { round: 0, step: 1 });
        assert!(refused(&early, "must be attach"), "{early:?}");
        let foreign = FromScript::Attach { protocol: 9, worker: 1, pid: 5 };
        assert!(refused(&roster.on_script(id, foreign), "protocol 9"));
        assert!(refused(&roster.on_script(id, attach(1)), "not expected"));
        roster.begin(plan(0, &[0, 1]));
        roster.expect(WorkerId(1), None);
        let effects = roster.on_script(id, attach(1));
        assert!(matches!(effects[0], Effect::Emit(BrokerEvent::Joined { worker: WorkerId(1), pid: 5 })), "{effects:?}");
        assert!(
            matches!(effects.last(), Some(Effect::Send(_, ToWorker::Assign(seat))) if seat.rank == 1),
            "{effects:?}"
        );
        assert_eq!(reported(&effects), [(Some(0), &FromWorker::Entered { round: 0 })]);
        assert_eq!(progressed(&effects), Some((Phase::Rendezvous, 0)));
        assert!(refused(&roster.on_script(ConnectionId(5), attach(1)), "already connected"));
        let ready = roster.on_script(id, FromScript::Ready { round: 0, step: 7 });
        assert!(matches!(reported(&ready)[..], [(Some(0), FromWorker::Ready { .. })]), "{ready:?}");
        assert_eq!(
            progressed(&roster.on_script(id, FromScript::Progress { round: 0, step: 9 })),
            Some((Phase::Compute, 9))
        );
        let stalled = |waits| FromScript::Stalled { round: 0, step: 9, waits };
        assert_eq!(progressed(&roster.on_script(id, stalled(true))), Some((Phase::Collective, 9)));
        assert_eq!(progressed(&roster.on_script(id, stalled(false))), Some((Phase::Compute, 9)));
        assert!(matches!(&roster.end("rank 0 died")[..], [Effect::Send(_, ToWorker::RoundEnded { round: 0, .. })]));
        let halted = roster.on_script(id, FromScript::Halted { round: 0, step: 9, whole: true });
        assert_eq!(reported(&halted), [(Some(0), &FromWorker::Halted { round: 0, step: 9, kept: true })]);
        let next = roster.begin(plan(1, &[1]));
        assert!(matches!(&next[0], Effect::Send(_, ToWorker::Assign(seat)) if seat.round == 1), "{next:?}");
        assert_eq!(reported(&next), [(Some(1), &FromWorker::Entered { round: 1 })]);
        assert!(roster.on_script(id, FromScript::Progress { round: 0, step: 10 }).is_empty(), "it has left that round");
        let failed = roster.on_script(id, FromScript::Failed { error: "x".into() });
        assert_eq!(reported(&failed), [(Some(1), &FromWorker::Failed { error: "x".into() })]);
    }

    #[test]
    fn a_script_that_loses_its_seat_is_parked_and_says_into_how_many_parts_a_step_is_cut() {
        let mut roster = Roster::default();
        roster.begin(plan(0, &[0, 1, 2]));
        for worker in 0..3 {
            roster.expect(WorkerId(worker), None);
        }
        roster.on_script(ConnectionId(0), attach(0));
        roster.on_script(ConnectionId(1), attach(1));
        let old = FromScript::Attach { protocol: SCRIPT_PROTOCOL_MIN, worker: 2, pid: 5 };
        assert_eq!(reported(&roster.on_script(ConnectionId(2), old)), [(Some(0), &FromWorker::Entered { round: 0 })]);
        let parts = 8.try_into().unwrap();
        let said = roster.on_script(ConnectionId(0), FromScript::Parts { parts });
        assert_eq!(reported(&said), [(Some(0), &FromWorker::BatchParts { parts })]);
        roster.end("rank 3 died");
        let next = roster.begin(plan(1, &[0]));
        assert_eq!(next.len(), 5, "one that does not know it is not parked: {next:?}");
        assert_eq!(reported(&next), [(Some(1), &FromWorker::Entered { round: 1 }), (None, &FromWorker::Warm)]);
        assert!(next.contains(&Effect::Send(ConnectionId(1), ToWorker::Parked)), "{next:?}");
        assert!(!roster.begin(plan(2, &[0])).contains(&Effect::Send(ConnectionId(1), ToWorker::Parked)), "once");
        let back = roster.begin(plan(3, &[0, 1]));
        assert!(reported(&back).contains(&(Some(3), &FromWorker::Entered { round: 3 })), "{back:?}");
    }

    #[test]
    fn a_script_without_a_seat_waits_and_one_that_lost_its_connection_comes_again() {
        let mut roster = Roster::default();
        roster.expect(WorkerId(3), None);
        assert_eq!(reported(&roster.on_script(ConnectionId(1), attach(3))), [(None, &FromWorker::Warm)]);
        assert_eq!(roster.on_closed(ConnectionId(1), Some("x".into())).len(), 1);
        assert_eq!(roster.on_script(ConnectionId(2), attach(3)).len(), 2);
        roster.on_closed(ConnectionId(2), None);
        assert!(roster.stop_script(WorkerId(3)).is_empty());
        let effects = roster.on_script(ConnectionId(3), attach(3));
        assert_eq!(effects.last(), Some(&Effect::Send(ConnectionId(3), ToWorker::Dismissed)));
        assert_eq!(roster.stop_script(WorkerId(3)), [Effect::Send(ConnectionId(3), ToWorker::Dismissed)]);
        assert_eq!(roster.dismiss(WorkerId(3)).len(), 2);
        assert!(refused(&roster.on_script(ConnectionId(4), attach(3)), "not expected"));
        let mut workers = seated(0, &[0]);
        assert!(workers.stop_script(WorkerId(0)).is_empty(), "its control page says so");
    }

    #[test]
    fn when_all_start_again_scripts_without_a_seat_wait_for_one() {
        let mut roster = Roster::default();
        for worker in [0, 1, 2, 3] {
            roster.expect(WorkerId(worker), Some(standby()));
        }
        roster.begin(plan(0, &[0, 1]));
        roster.on_script(ConnectionId(0), attach(0));
        roster.on_script(ConnectionId(2), attach(2));
        assert_eq!(roster.close_all(), [Effect::Close(ConnectionId(0))]);
        assert!(refused(&roster.on_script(ConnectionId(1), attach(1)), "not expected"), "it had a seat");
        assert_eq!(reported(&roster.on_script(ConnectionId(3), attach(3))), [(None, &FromWorker::Warm)]);
        let next = roster.begin(plan(1, &[2, 3]));
        assert_eq!(reported(&next), [(Some(1), &FromWorker::Entered { round: 1 }); 2]);
        // One that had not come when its round ended stands by, too.
        roster.expect(WorkerId(4), Some(standby()));
        roster.begin(plan(2, &[2, 4]));
        roster.end("rank 0 died");
        assert_eq!(roster.close_all(), [Effect::Close(ConnectionId(2))]);
        assert_eq!(reported(&roster.on_script(ConnectionId(4), attach(4))), [(None, &FromWorker::Warm)]);
    }

    #[test]
    fn who_is_dismissed_is_let_in_no_more() {
        let mut roster = seated(0, &[0, 1]);
        roster.expect(WorkerId(2), None);
        let told = [Effect::Send(ConnectionId(1), ToWorker::Dismissed), Effect::Close(ConnectionId(1))];
        assert_eq!(roster.dismiss(WorkerId(1)), told);
        assert!(roster.dismiss(WorkerId(2)).is_empty());
        assert!(refused(&roster.on_message(ConnectionId(9), hello(2)), "not expected"));
        assert_eq!(roster.close_all(), [Effect::Close(ConnectionId(0))]);
        assert!(roster.on_closed(ConnectionId(0), None).is_empty());
    }
}
