//! The impure half of a node agent, whatever its workers are.

use super::{effect::NodeEffect, input::NodeInput};
use enn_common::id::WorkerId;
use std::{
    os::fd::BorrowedFd,
    path::Path,
    time::{Duration, Instant},
};

/// A descriptor of the node agent that became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeSource {
    Signals,
    Process(WorkerId),
    Broker,
    Answers,
    /// Of programs.
    ForkServer,
    Timers,
}

/// Carries out what the node state decides about this machine, and tells what happens on it.
pub(crate) trait NodeShell {
    /// Returns the directory of the broker's socket, private to the user.
    fn socket_directory(&self) -> Option<&Path> {
        None
    }

    /// Returns the run directory that all nodes share, where it is known.
    fn run_dir(&self) -> Option<&Path> {
        None
    }

    /// Returns the descriptors to wait for.
    fn descriptors(&self) -> Vec<(NodeSource, BorrowedFd<'_>)>;

    /// Returns a source that is to be read without waiting, though its descriptor may not be ready.
    fn unread(&self) -> Option<NodeSource> {
        None
    }

    /// Returns when the shell itself has something to do.
    fn deadline(&self, _now: Instant) -> Option<Instant> {
        None
    }

    fn time_up(&mut self, _inputs: &mut Vec<NodeInput>) {}

    /// Reads a descriptor that became ready. The end of a process is at most `late` old.
    fn read(&mut self, source: NodeSource, late: Duration, inputs: &mut Vec<NodeInput>);

    /// Does one thing; `inputs` gets what follows from it at once. Effects that are not about this machine are the owner loop's.
    fn carry_out(&mut self, effect: NodeEffect, inputs: &mut Vec<NodeInput>);
}
