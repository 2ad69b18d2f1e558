//! What a node needs for programs that attach, besides what any programs need.

use super::spec::ReplaceSpec;
use crate::{
    node_agent::{broker_reader::BrokerReader, error::AgentError},
    rendezvous::Rendezvous,
};
use enn_broker::Broker;
use enn_common::{failure::Failure, id::WorkerId, wire::node_agent::SeatFacts};
use nix::sys::signal::Signal;
use std::{collections::BTreeSet, rc::Rc};

/// A worker that waits for the fork server.
#[derive(Debug)]
pub(super) struct WaitingStart {
    pub(super) worker: WorkerId,
    pub(super) seat: Option<SeatFacts>,
    pub(super) local_rank: u32,
}

/// What scripts need besides what any programs do.
pub(crate) struct Scripts {
    pub(super) broker: BrokerReader,
    pub(super) rendezvous: Rc<Rendezvous>,
    pub(super) spec: ReplaceSpec,
    pub(super) waiting: Vec<WaitingStart>,
    /// A worker was started: from then on others may wait for each that is started.
    pub(super) has_started: bool,
    /// Workers that were signalled: their end is no failure of theirs.
    pub(super) signalled: BTreeSet<WorkerId>,
    /// The newest failure on this node.
    pub(crate) failure: Option<Box<Failure>>,
    /// Signals that asked the run to stop.
    pub(crate) stopped_by: Option<Signal>,
    pub(crate) is_stopped_twice: bool,
}

impl Scripts {
    /// Serves a broker to which the workers may attach. They meet in the store of the rendezvous.
    pub(super) fn serve(spec: &ReplaceSpec, rendezvous: Rc<Rendezvous>) -> Result<Self, AgentError> {
        Ok(Self {
            broker: BrokerReader::new(Broker::serve(&spec.socket_parent)?),
            rendezvous,
            spec: spec.clone(),
            waiting: Vec::new(),
            has_started: false,
            signalled: BTreeSet::new(),
            failure: None,
            stopped_by: None,
            is_stopped_twice: false,
        })
    }
}
