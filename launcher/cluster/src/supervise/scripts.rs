//! Programs whose workers are replaced while the others live (`enn run --on-failure replace`).

use super::{
    GroupOutcome,
    owner_loop::{END_WAIT_MAX, LoopEnd, OwnerLoop},
};
use crate::{
    node_agent::{
        AgentError,
        effect::NodeEnd,
        programs::{GroupSpec, ProgramShell, Requests},
    },
    rendezvous::{RoundEnd, RunEnd as GroupRunEnd},
    supervisor::effect::{RunEnd, RunOutcome},
};
use enn_common::{
    failure::Failure,
    wire::node_agent::{RunEnding, StopSignal},
};
use nix::sys::signal::Signal;

impl OwnerLoop<'_, ProgramShell> {
    /// Runs until the run is over for this node, and until what its workers wrote is read.
    pub(super) fn run_scripts(mut self, spec: &GroupSpec) -> Result<GroupOutcome, AgentError> {
        let end = self.run_until_scripts_end();
        let (stopped_by, second) =
            self.shell.scripts.as_ref().map_or((None, false), |scripts| (scripts.stopped_by, scripts.is_stopped_twice));
        let stopped_early = matches!(&end, Ok(LoopEnd::Led(RunOutcome { end: RunEnd::Stopped(_), rounds: 0, .. })));
        if let (Some(rendezvous), true) = (&self.rendezvous, stopped_early) {
            // Nodes that wait for this one hear that it does not come.
            rendezvous.leave(stopped_by.map_or("a signal", Signal::as_str).to_owned());
            rendezvous.await_end(END_WAIT_MAX);
        }
        let others = end.as_ref().ok().and_then(|end| self.end_leading(end));
        let has_ended_well = matches!(&end, Ok(LoopEnd::Led(RunOutcome { end: RunEnd::Finished, .. })));
        self.shell.clear(spec.leave_background && has_ended_well);
        let waited = self.shell.end(Requests { first: stopped_by, second }, &mut *self.emit)?;
        let output_lost = self.shell.output_lost();
        if let Some(rendezvous) = others {
            rendezvous.await_end(END_WAIT_MAX);
        }
        let failure = self.shell.scripts.take().and_then(|scripts| scripts.failure);
        let ended = EndedScripts { failure, membership: self.group_end.take(), host: &spec.rendezvous.host };
        let (end, rounds, restarts) = ended.end(end?)?;
        // All nodes end by the signal that came to one of them.
        let by = if let GroupRunEnd::Stopped { by } = &end { by.split(' ').next() } else { None };
        let named = by.and_then(|name| name.parse().ok());
        Ok(GroupOutcome { end, rounds, restarts, stopped_by: waited.first.or(named), output_lost })
    }

    fn run_until_scripts_end(&mut self) -> Result<LoopEnd, AgentError> {
        loop {
            self.drive();
            if let Some(error) = self.failure.take().or_else(|| self.shell.failure.take()) {
                return Err(error);
            }
            if let Some(end) = self.ended() {
                return Ok(end);
            }
            self.wait()?;
        }
    }
}

/// Facts about the end of a run besides what the supervisor says.
struct EndedScripts<'a> {
    /// The newest failure on this node.
    failure: Option<Box<Failure>>,
    /// How the run ended for the membership.
    membership: Option<GroupRunEnd>,
    host: &'a str,
}

impl EndedScripts<'_> {
    /// Returns how the run ended, its rounds and its restarts.
    fn end(self, end: LoopEnd) -> Result<(GroupRunEnd, u64, u32), AgentError> {
        Ok(match end {
            LoopEnd::Led(RunOutcome { end, rounds, restarts, .. }) => {
                let end = match end {
                    RunEnd::Finished | RunEnd::HandedOff => GroupRunEnd::Finished,
                    RunEnd::Stopped(signal) => self.stopped(signal),
                    RunEnd::Failed { cause } | RunEnd::CheckpointsUnusable { error: cause, .. } => self.failed(cause),
                };
                (end, rounds, restarts)
            }
            LoopEnd::Followed(end) => {
                let end = match end {
                    NodeEnd::Ended(RunEnding::Finished) | NodeEnd::Drained => GroupRunEnd::Finished,
                    NodeEnd::Ended(RunEnding::Stopped { signal }) | NodeEnd::Stopped(signal) => self.stopped(signal),
                    NodeEnd::Ended(RunEnding::Failed { cause }) | NodeEnd::Failed(cause) => self.failed(cause),
                    NodeEnd::Group(_) => return Err(AgentError::LeadLost),
                };
                (end, 0, 0)
            }
            LoopEnd::NotPrepared => return Err(AgentError::LeadLost),
        })
    }

    fn stopped(&self, signal: StopSignal) -> GroupRunEnd {
        GroupRunEnd::Stopped { by: format!("{} on {}", signal.name(), self.host) }
    }

    fn failed(self, reason: String) -> GroupRunEnd {
        match self.membership {
            Some(
                end @ (GroupRunEnd::TimedOut { .. }
                | GroupRunEnd::LeaderLost { .. }
                | GroupRunEnd::Refused { .. }
                | GroupRunEnd::Failed { .. }),
            ) => end,
            Some(GroupRunEnd::Finished | GroupRunEnd::Stopped { .. }) | None => {
                // A worker of another node may have failed: this one knows nothing of it but the reason.
                let elsewhere = || Box::new(Failure { message: Some(reason.clone()), ..Failure::default() });
                let end = RoundEnd::Failed(self.failure.unwrap_or_else(elsewhere));
                GroupRunEnd::Failed { end, reason }
            }
        }
    }
}
