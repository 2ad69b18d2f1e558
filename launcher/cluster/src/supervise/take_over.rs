//! The thread that prepares a node to lead while the owner loop goes on with its workers.
//!
//! ```text
//! owner loop                                   thread
//! NodeEffect::Lead ── TakeOver ──────────────► takes the run directory's lock, opens the journal, …
//! inputs wait, workers go on      ◄─────────── succeed: specification and checkpoints
//! supervisor ── events, then the outcome ────► records them, concludes the run
//! ```
//! **Invariant:** a thread that gives up tells so by dropping its `TakeOver`, and hears of the loop's end by closed channels.

use super::spec::{AgentSpec, usable};
use crate::{
    leader::{Checkpoints, Fence, JournalMessage},
    node_agent::{AgentError, background::AnswerSender},
    supervisor::effect::RunOutcome,
};
use crossbeam_channel::{Sender, bounded, unbounded};
use enn_common::{event::EventKind, wire::node_agent::RunFacts};

/// Order to lead a run whose leader is gone; [`succeed`] carries it out.
pub struct TakeOver {
    pub facts: RunFacts,
    /// `None` once the leader was prepared.
    prepared: Option<AnswerSender<Prepared>>,
}

/// Message to the owner loop.
pub(super) enum Prepared {
    Ready(Box<PreparedLeader>),
    /// The thread gave up.
    Failed,
}

/// Everything that a supervisor needs besides the machines of the node.
pub(super) struct PreparedLeader {
    pub(super) spec: AgentSpec,
    pub(super) checkpoints: Box<dyn Checkpoints>,
    pub(super) fence: Fence,
    pub(super) journal: Sender<JournalMessage>,
    pub(super) outcome: Sender<Result<RunOutcome, AgentError>>,
}

impl TakeOver {
    pub(super) fn new(facts: RunFacts, prepared: AnswerSender<Prepared>) -> Self {
        Self { facts, prepared: Some(prepared) }
    }
}

impl Drop for TakeOver {
    fn drop(&mut self) {
        if let Some(prepared) = self.prepared.take() {
            prepared.send(Prepared::Failed);
        }
    }
}

/// Leads the run from where the leader before left it, until it is over. The owner loop of the node decides and owns the workers; this
/// thread records the events.
///
/// # Errors
/// Those of [`super::run`], or the node stopped meanwhile.
pub fn succeed(
    spec: &AgentSpec,
    checkpoints: Box<dyn Checkpoints>,
    emit: &mut dyn FnMut(EventKind),
    mut order: TakeOver,
) -> Result<RunOutcome, AgentError> {
    let fence = spec.fence()?;
    let (journal, messages) = unbounded();
    let (outcome_out, outcome) = bounded(1);
    let leader = PreparedLeader { spec: spec.clone(), checkpoints, fence, journal, outcome: outcome_out };
    if let Some(prepared) = order.prepared.take() {
        prepared.send(Prepared::Ready(Box::new(leader)));
    }
    for message in messages {
        match message {
            JournalMessage::Event(event) => emit(*event),
            JournalMessage::Flush(done) => _ = done.send(()),
        }
    }
    usable(outcome.recv().unwrap_or(Err(AgentError::LeadLost))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        leader::CheckpointFailure,
        node_agent::{background::Inbox, settings::NodeSpec},
        supervisor::{
            CompleteCheckpoint,
            effect::RunEnd,
            input::{CommittedCheckpoint, FoundCheckpoint},
            settings::{Contract, RunJob, RunSettings},
        },
    };
    use enn_common::config::train::Recovery;
    use enn_process::WorkerSpec;
    use std::time::Duration;

    struct NoCheckpoints;

    impl Checkpoints for NoCheckpoints {
        fn prepare(&mut self) -> Result<Option<FoundCheckpoint>, CheckpointFailure> {
            Ok(None)
        }

        fn commit(&mut self, _: &CompleteCheckpoint) -> Result<CommittedCheckpoint, CheckpointFailure> {
            Err("nothing is committed here".into())
        }
    }

    fn spec() -> AgentSpec {
        let worker = WorkerSpec::new("/nowhere".into());
        let run = RunSettings {
            contract: Contract::Broker,
            workers_min: 1,
            on_failure: Recovery::Restart,
            max_restarts: 0,
            spares: 0,
            spares_are_bound: false,
            evict_stragglers: false,
            straggler_window: Duration::from_secs(1),
            regroup_wait: Duration::from_secs(1),
            hang_timeout: None,
            grace: Duration::from_secs(1),
            first_round: 0,
            run_dir: "/run".into(),
            job: RunJob::Init { meta: "/meta".into() },
        };
        let host = "here".into();
        let socket_parent = "/tmp".into();
        let node = NodeSpec {
            worker,
            runs_scripts: false,
            workers: 1,
            workers_max: 1,
            host,
            visible_devices: None,
            socket_parent,
            handle_signals: false,
        };
        AgentSpec { node, run, lock: None }
    }

    fn order(inbox: &Inbox<Prepared>) -> TakeOver {
        let facts = RunFacts { run_dir: "/run".into(), config: String::new(), staged: "/staged".into() };
        TakeOver::new(facts, inbox.sender())
    }

    fn outcome() -> RunOutcome {
        RunOutcome {
            end: RunEnd::Finished,
            restarts: 0,
            rounds: 1,
            metrics: None,
            checkpoint: None,
            unsaved: None,
            unkillable: Vec::new(),
            chunks: Vec::new(),
        }
    }

    /// The result of a thread that leads, and the events that it recorded. `lead` is the owner loop.
    fn led(lead: impl FnOnce(PreparedLeader)) -> (Result<RunOutcome, AgentError>, Vec<EventKind>) {
        let inbox = Inbox::new().unwrap();
        let order = order(&inbox);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let mut events = Vec::new();
                let result = succeed(&spec(), Box::new(NoCheckpoints), &mut |event| events.push(event), order);
                (result, events)
            });
            let prepared = loop {
                match inbox.take().pop() {
                    Some(Prepared::Ready(leader)) => break leader,
                    Some(Prepared::Failed) => panic!("it gave up"),
                    None => std::thread::yield_now(),
                }
            };
            lead(*prepared);
            thread.join().unwrap()
        })
    }

    #[test]
    fn a_thread_records_the_events_in_order_and_returns_the_outcome() {
        let warned = |number: u32| EventKind::Warned { message: number.to_string() };
        let (result, events) = led(|leader| {
            let (done, flushed) = bounded(1);
            leader.journal.send(JournalMessage::Event(Box::new(warned(1)))).unwrap();
            leader.journal.send(JournalMessage::Flush(done)).unwrap();
            flushed.recv().unwrap();
            leader.journal.send(JournalMessage::Event(Box::new(warned(2)))).unwrap();
            leader.outcome.send(Ok(outcome())).unwrap();
        });
        assert_eq!((result.unwrap(), events), (outcome(), vec![warned(1), warned(2)]));
    }

    #[test]
    fn both_sides_hear_of_the_others_end() {
        let (result, events) = led(drop);
        assert!(matches!(result, Err(AgentError::LeadLost)) && events.is_empty());
        let inbox = Inbox::new().unwrap();
        drop(order(&inbox));
        assert!(matches!(inbox.take()[..], [Prepared::Failed]));
        let unusable = RunEnd::CheckpointsUnusable { error: "all are damaged".into(), none_whole: true };
        let (result, _) = led(|leader| {
            leader.outcome.send(Ok(RunOutcome { end: unusable, ..outcome() })).unwrap();
        });
        assert!(result.unwrap_err().is_none_whole());
    }
}
