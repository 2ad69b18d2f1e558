//! What a node needs for programs that attach, besides what any programs need.

use super::spec::{GroupSpec, ReplaceSpec};
use crate::{
    node_agent::{background::JobThread, broker_reader::BrokerReader, error::AgentError},
    rendezvous::Rendezvous,
};
use enn_broker::Broker;
use enn_common::{failure::Failure, id::WorkerId, wire::node_agent::SeatFacts};
use enn_process::devices::GpuWatch;
use nix::sys::signal::Signal;
use std::{collections::BTreeSet, rc::Rc, time::Duration};

/// Longest wait at the end for a look at a GPU.
const LOOKS_END_MAX: Duration = Duration::ZERO;

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
    /// Health of NVIDIA's GPUs.
    pub(super) gpus: GpuWatch,
    /// Waits for looks at them.
    pub(super) looks: JobThread,
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
    pub(super) fn serve(spec: &ReplaceSpec, group: &GroupSpec, rendezvous: Rc<Rendezvous>) -> Result<Self, AgentError> {
        let visible = group.visible_devices.clone().filter(|_| !group.hip_devices);
        Ok(Self {
            gpus: GpuWatch::start(visible, group.rendezvous.local_world),
            looks: JobThread::start("enn-gpu-looks", LOOKS_END_MAX)?,
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
