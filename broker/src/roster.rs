//! Who is in the round, and what a message or a closed connection means. Pure: effects are returned, `server` applies them.

use crate::{
    event::{BrokerEvent, RoundPlan},
    shards::{Report, Shards, Verdict},
};
use enn_common::{
    id::{LocalRank, Round},
    wire::message::{FromWorker, PROTOCOL, ToWorker},
};
use std::collections::BTreeMap;

/// Names a connection; never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionId(pub(crate) usize);

/// What the server must do, in order.
#[derive(Debug, PartialEq)]
pub(crate) enum Effect {
    /// Queue a message.
    Send(ConnectionId, ToWorker),
    /// Flush what can be flushed, then close.
    Close(ConnectionId),
    /// Tell the agent.
    Emit(BrokerEvent),
}

/// The round's members.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    plan: RoundPlan,
    members: BTreeMap<ConnectionId, LocalRank>,
    shards: Shards,
}

impl Roster {
    /// Whether the connection belongs to a worker of the round.
    pub(crate) fn is_member(&self, id: ConnectionId) -> bool {
        self.current.as_ref().is_some_and(|current| current.members.contains_key(&id))
    }

    /// Expects the plan's workers; those of the round before are dropped.
    pub(crate) fn begin(&mut self, plan: RoundPlan) -> Vec<Effect> {
        let effects = self.end();
        let shards = Shards::new(plan.assignments.len());
        self.current = Some(Current { plan, members: BTreeMap::new(), shards });
        effects
    }

    /// Ends the round.
    pub(crate) fn end(&mut self) -> Vec<Effect> {
        let members = self.current.take().map(|current| current.members).unwrap_or_default();
        members.into_keys().map(Effect::Close).collect()
    }

    /// The same message to every member.
    pub(crate) fn tell_all(&self, message: &ToWorker) -> Vec<Effect> {
        let members = self.current.iter().flat_map(|current| current.members.keys());
        members.map(|id| Effect::Send(*id, message.clone())).collect()
    }

    /// A message came.
    pub(crate) fn on_message(&mut self, id: ConnectionId, message: FromWorker) -> Vec<Effect> {
        if let FromWorker::Hello { protocol, round, local_rank, pid } = message {
            return self.on_hello(id, (protocol, Round(round), LocalRank(local_rank), pid));
        }
        let Some((current, worker)) = self.member(id) else {
            return refuse(id, "the first message on a connection must be Hello".into());
        };
        let round = current.plan.round;
        let rank = current.plan.assignments[worker.0 as usize].rank;
        let verdicts = match message {
            FromWorker::ShardWritten { step, epoch, dir, metric, table } => {
                current.shards.written(Report { rank, step, epoch, dir, metric, table })
            }
            FromWorker::ShardFailed { step, error } => current.shards.failed(rank, step, &error),
            message => return vec![Effect::Emit(BrokerEvent::Reported { round, worker, message })],
        };
        let mut effects = Vec::new();
        for verdict in verdicts {
            match verdict {
                Verdict::Complete(shards) => effects.push(Effect::Emit(BrokerEvent::ShardsWritten { round, shards })),
                Verdict::Abandoned { step, error } => {
                    effects.extend(self.tell_all(&ToWorker::Abandoned { step, error: error.clone() }));
                    effects.push(Effect::Emit(BrokerEvent::ShardsAbandoned { round, step, error }));
                }
            }
        }
        effects
    }

    fn on_hello(&mut self, id: ConnectionId, hello: (u32, Round, LocalRank, u32)) -> Vec<Effect> {
        let (protocol, round, worker, pid) = hello;
        if protocol != PROTOCOL {
            let hint = "are enn and enn-worker of one version?";
            return refuse(id, format!("enn-worker speaks protocol {protocol}, enn speaks {PROTOCOL} ({hint})"));
        }
        let Some(current) = &mut self.current else {
            return refuse(id, format!("a worker of round {round} came when no round was open"));
        };
        let now = current.plan.round;
        if round != now {
            return refuse(id, format!("a worker of round {round} came in round {now}"));
        }
        let Some(assignment) = current.plan.assignments.get(worker.0 as usize) else {
            let world = current.plan.assignments.len();
            return refuse(id, format!("a worker says local rank {worker}, the round has {world} workers"));
        };
        if current.members.values().any(|member| *member == worker) || current.members.contains_key(&id) {
            return refuse(id, format!("local rank {worker} is already taken"));
        }
        let assignment = Box::new(assignment.clone());
        current.members.insert(id, worker);
        vec![Effect::Send(id, ToWorker::Assign(assignment)), Effect::Emit(BrokerEvent::Joined { round, worker, pid })]
    }

    /// A connection ended, from the worker's side or because of `error`.
    pub(crate) fn on_closed(&mut self, id: ConnectionId, error: Option<String>) -> Vec<Effect> {
        match self.member(id) {
            Some((current, worker)) => {
                let round = current.plan.round;
                current.members.remove(&id);
                vec![Effect::Emit(BrokerEvent::Left { round, worker, error })]
            }
            None => error.map(|error| Effect::Emit(BrokerEvent::Refused { error })).into_iter().collect(),
        }
    }

    fn member(&mut self, id: ConnectionId) -> Option<(&mut Current, LocalRank)> {
        let current = self.current.as_mut()?;
        let worker = *current.members.get(&id)?;
        Some((current, worker))
    }
}

/// Says no, to the worker and to the agent.
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
    use enn_common::wire::message::{Assignment, Task};

    fn plan(round: u64, world: u32) -> RoundPlan {
        let assignment = |rank| Assignment {
            round,
            rank,
            world_size: world,
            local_rank: rank,
            local_world_size: world,
            store_host: String::new(),
            store_port: 0,
            device: "cpu".into(),
            threads: 1,
            run_dir: "/run".into(),
            kernels: enn_common::kernels::Quarantined::default(),
            task: Task::Init { meta: "/m".into(), attempt: "0".into() },
        };
        RoundPlan { round: Round(round), assignments: (0..world).map(assignment).collect() }
    }

    fn hello(round: u64, local_rank: u32) -> FromWorker {
        FromWorker::Hello { protocol: PROTOCOL, round, local_rank, pid: 5 }
    }

    fn refused(effects: &[Effect], text: &str) -> bool {
        matches!(effects, [Effect::Send(_, ToWorker::Refused { error }), Effect::Close(_), Effect::Emit(BrokerEvent::Refused { .. })] if error.contains(text))
    }

    #[test]
    fn a_worker_joins_once_with_its_own_assignment() {
        let mut roster = Roster::default();
        assert!(refused(&roster.on_message(ConnectionId(1), hello(0, 0)), "no round was open"));
        assert!(roster.begin(plan(3, 2)).is_empty());
        let effects = roster.on_message(ConnectionId(2), hello(3, 1));
        let [
            Effect::Send(ConnectionId(2), ToWorker::Assign(assignment)),
            Effect::Emit(BrokerEvent::Joined { worker, .. }),
        ] = &effects[..]
        else {
            panic!("{effects:?}")
        };
        assert_eq!((assignment.rank, *worker), (1, LocalRank(1)));
        assert!(refused(&roster.on_message(ConnectionId(3), hello(3, 1)), "already taken"));
        assert!(refused(&roster.on_message(ConnectionId(4), hello(2, 0)), "round 2 came in round 3"));
        assert!(refused(&roster.on_message(ConnectionId(5), hello(3, 2)), "the round has 2 workers"));
        assert!(refused(&roster.on_message(ConnectionId(6), FromWorker::Done { stopped: false }), "must be Hello"));
        let foreign = FromWorker::Hello { protocol: 9, round: 3, local_rank: 0, pid: 5 };
        assert!(refused(&roster.on_message(ConnectionId(7), foreign), "protocol 9"));
    }

    #[test]
    fn a_new_round_closes_the_old_and_late_words_are_refused() {
        let mut roster = Roster::default();
        roster.begin(plan(0, 1));
        roster.on_message(ConnectionId(1), hello(0, 0));
        assert_eq!(roster.begin(plan(1, 1)), [Effect::Close(ConnectionId(1))]);
        assert!(!roster.is_member(ConnectionId(1)));
        assert!(refused(&roster.on_message(ConnectionId(1), FromWorker::Done { stopped: true }), "must be Hello"));
        assert!(roster.on_closed(ConnectionId(1), None).is_empty());
    }

    #[test]
    fn shards_of_all_ranks_become_one_event_and_a_failure_is_told_to_all() {
        let mut roster = Roster::default();
        roster.begin(plan(0, 2));
        for rank in 0..2 {
            roster.on_message(ConnectionId(rank as usize), hello(0, rank));
        }
        let written = |step| FromWorker::ShardWritten {
            step,
            epoch: 1,
            dir: "/d".into(),
            metric: None,
            table: enn_common::checkpoint::table::ShardTable::default(),
        };
        assert!(roster.on_message(ConnectionId(0), written(5)).is_empty());
        let effects = roster.on_message(ConnectionId(1), written(5));
        assert!(
            matches!(&effects[..], [Effect::Emit(BrokerEvent::ShardsWritten { shards, .. })] if shards.step == 5),
            "{effects:?}"
        );
        let effects = roster.on_message(ConnectionId(1), FromWorker::ShardFailed { step: 9, error: "full".into() });
        assert!(
            matches!(
                &effects[..],
                [
                    Effect::Send(ConnectionId(0), ToWorker::Abandoned { step: 9, .. }),
                    Effect::Send(ConnectionId(1), ToWorker::Abandoned { .. }),
                    Effect::Emit(BrokerEvent::ShardsAbandoned { step: 9, .. })
                ]
            ),
            "{effects:?}"
        );
    }
}
