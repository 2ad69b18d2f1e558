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
    /// The run.
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
/// As [`super::run`], or the node stopped meanwhile.
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
            JournalMessage::Event(event) => emit(event),
            JournalMessage::Flush(done) => _ = done.send(()),
        }
    }
    usable(outcome.recv().unwrap_or(Err(AgentError::LeadLost))?)
}
