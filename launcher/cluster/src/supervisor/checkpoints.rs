//! Carries out what the checkpoint ledger asks for.

use super::{checkpoint_ledger::LedgerAction, effect::Effect, machine::Supervisor};
use enn_common::{
    event::EventKind,
    wire::{message::ToWorker, node_agent::NodeCommand},
};

impl Supervisor {
    /// Does what the ledger has asked for since the last time.
    pub(super) fn act_on_ledger(&mut self) {
        for action in self.ledger.take_actions() {
            self.act(action);
        }
    }

    fn act(&mut self, action: LedgerAction) {
        match action {
            LedgerAction::Persist { snapshot, dir, rank } => {
                let worker = snapshot.worker;
                let ticket = snapshot.ticket;
                self.send(snapshot.node, NodeCommand::PersistSnapshot { worker, ticket, dir, rank });
            }
            LedgerAction::Release(snapshot) => {
                let worker = snapshot.worker;
                let ticket = snapshot.ticket;
                self.send(snapshot.node, NodeCommand::ReleaseSnapshot { worker, ticket });
            }
            LedgerAction::Commit(set) => self.write(Effect::Commit(set)),
            LedgerAction::MakeRoom(set) => self.write(Effect::MakeRoom(set)),
            LedgerAction::Discard { attempt, below } => self.write(Effect::DiscardAttempt { attempt, below }),
            LedgerAction::Abandoned { step, error } => {
                self.broadcast(ToWorker::Abandoned { step, error: error.clone() });
                self.record.failed_save = Some((step, error.clone()));
                self.journal(EventKind::CheckpointFailed { step, error });
            }
            LedgerAction::Committed { step, checkpoint, seconds, blocked } => {
                let path = checkpoint.path;
                self.record.checkpoint = Some((step, path.clone()));
                self.broadcast(ToWorker::Committed { step, path: path.clone() });
                self.journal(EventKind::CheckpointCommitted {
                    step,
                    path,
                    bytes: checkpoint.bytes,
                    seconds,
                    metric: checkpoint.metric,
                    blocked_seconds: blocked,
                });
            }
            LedgerAction::Fenced { error } => self.fenced_by(&error),
        }
    }
}
