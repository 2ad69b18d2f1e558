//! Stand-in until the dispatcher is here: starts the workers of one round, waits, and says how they ended.

use super::GroupSpec;
use crate::rendezvous::{RoundEnd, RunEnd};
use enn_common::{event::What, failure::Failure};
use nix::sys::signal::Signal;
use std::io;

/// What became of the run on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupOutcome {
    /// How the run ended.
    pub end: RunEnd,
    /// Rounds this node took part in.
    pub rounds: u64,
    /// Restarts of the run.
    pub restarts: u32,
    /// The signal that asked this node to stop.
    pub stopped_by: Option<Signal>,
}

/// Why the group itself cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A descriptor, process or handler the launcher works with.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Cause.
        source: io::Error,
    },
}

/// Runs the group once.
///
/// # Errors
/// When a worker cannot be started.
pub fn run(spec: &GroupSpec, _emit: &mut dyn FnMut(What)) -> Result<GroupOutcome, GroupError> {
    let world = spec.rendezvous.local_world;
    let mut children = Vec::new();
    for rank in 0..world {
        let mut command = std::process::Command::new(&spec.command.program);
        command.args(&spec.command.args).envs(&spec.variables);
        for (name, value) in [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", world)]
        {
            command.env(name, value.to_string());
        }
        children.push(command.spawn().map_err(|source| GroupError::System { what: "start a worker", source })?);
    }
    let mut end = RunEnd::Finished;
    for (rank, mut child) in children.into_iter().enumerate() {
        let status = child.wait().map_err(|source| GroupError::System { what: "wait for a worker", source })?;
        if !status.success() && end == RunEnd::Finished {
            let rank = u32::try_from(rank).unwrap_or_default();
            let failure = Failure { rank, local_rank: rank, code: status.code(), ..Failure::default() };
            end = RunEnd::Failed { end: RoundEnd::Failed(Box::new(failure)), reason: "stand-in".into() };
        }
    }
    Ok(GroupOutcome { end, rounds: 1, restarts: 0, stopped_by: None })
}
