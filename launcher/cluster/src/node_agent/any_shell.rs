//! The impure half of a node agent, whatever its workers are.

use super::{
    effect::NodeEffect,
    error::AgentError,
    input::NodeInput,
    programs::ProgramShell,
    shell::{NodeShell, NodeSource, Outward},
};
use std::{
    os::fd::BorrowedFd,
    path::Path,
    time::{Duration, Instant},
};

/// Shell of a node agent, by the contract with its workers.
pub(crate) enum AnyShell {
    /// Workers of ours, with a broker and control pages.
    Own(Box<NodeShell>),
    /// Any programs.
    Programs(Box<ProgramShell>),
}

impl AnyShell {
    /// Returns the directory of the broker's socket, private to the user.
    pub(crate) fn socket_directory(&self) -> Option<&Path> {
        match self {
            Self::Own(shell) => shell.socket_directory(),
            Self::Programs(_) => None,
        }
    }

    /// Returns the run directory that all nodes share, where it is known.
    pub(crate) fn run_dir(&self) -> Option<&Path> {
        match self {
            Self::Own(shell) => shell.run_dir(),
            Self::Programs(_) => None,
        }
    }

    /// Returns the descriptors to wait for.
    pub(crate) fn descriptors(&self) -> Vec<(NodeSource, BorrowedFd<'_>)> {
        match self {
            Self::Own(shell) => shell.descriptors().collect(),
            Self::Programs(shell) => shell.descriptors().collect(),
        }
    }

    /// Returns a source that is to be read without waiting, though its descriptor may not be ready.
    pub(crate) fn unread(&self) -> Option<NodeSource> {
        match self {
            Self::Own(shell) => shell.unread(),
            Self::Programs(_) => None,
        }
    }

    /// Returns when the shell itself has something to do.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::Own(_) => None,
            Self::Programs(shell) => shell.deadline(now),
        }
    }

    /// Does what is due.
    pub(crate) fn time_up(&mut self, inputs: &mut Vec<NodeInput>) {
        match self {
            Self::Own(_) => {}
            Self::Programs(shell) => shell.time_up(inputs),
        }
    }

    /// Reads a descriptor that became ready. The end of a process is at most `late` old.
    pub(crate) fn read(&mut self, source: NodeSource, late: Duration, inputs: &mut Vec<NodeInput>) {
        match self {
            Self::Own(shell) => shell.read(source, late, inputs),
            Self::Programs(shell) => shell.read(source, late, inputs),
        }
    }

    /// Returns what followed from effects since the last call.
    pub(crate) fn take_pending(&mut self) -> Vec<NodeInput> {
        match self {
            Self::Own(shell) => shell.take_pending(),
            Self::Programs(shell) => shell.take_pending(),
        }
    }

    /// Returns why the launcher cannot go on, once it cannot.
    pub(crate) fn take_failure(&mut self) -> Option<AgentError> {
        match self {
            Self::Own(_) => None,
            Self::Programs(shell) => shell.take_failure(),
        }
    }

    /// Does one thing; returns an effect that is not about this machine.
    pub(crate) fn carry_out(&mut self, effect: NodeEffect) -> Option<Outward> {
        match self {
            Self::Own(shell) => shell.carry_out(effect),
            Self::Programs(shell) => shell.carry_out(effect),
        }
    }

    /// Kills what is left. Programs have been ended before.
    pub(crate) fn end(self) {
        match self {
            Self::Own(shell) => shell.end(),
            Self::Programs(shell) => drop(shell),
        }
    }
}
