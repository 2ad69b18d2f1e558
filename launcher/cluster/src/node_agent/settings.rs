//! Settings of a node agent.

use enn_process::WorkerSpec;
use std::{path::PathBuf, time::Duration};

/// Control pages are read this often where the run has few nodes.
const PAGES_PERIOD_MIN: Duration = Duration::from_millis(50);
/// One more node lengthens the period by this time, so that the leader gets about as many messages from many nodes as from fifty.
const PAGES_PERIOD_PER_NODE: Duration = Duration::from_millis(1);

/// A node with ENN's own workers, or with scripts.
#[derive(Debug, Clone)]
pub struct NodeSpec {
    /// How to start one worker.
    pub worker: WorkerSpec,
    /// The workers are scripts, which may attach.
    pub runs_scripts: bool,
    /// Workers of this node when none is missing.
    pub workers: u32,
    /// Workers that the machine has room for: the run may be resized up to there.
    pub workers_max: u32,
    pub host: String,
    /// Devices that the workers may use (`CUDA_VISIBLE_DEVICES`); `None`: all.
    pub visible_devices: Option<Vec<String>>,
    /// Short directory for the broker's socket, e.g. /tmp.
    pub socket_parent: PathBuf,
    /// Whether SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 stop the run. A program with handlers of its own says no.
    pub handle_signals: bool,
}

impl NodeSpec {
    /// Returns whether each worker has a GPU.
    pub(super) fn uses_gpus(&self) -> bool {
        self.worker.device_name() == "cuda"
    }

    /// Returns the settings of the node agent in a run of so many nodes.
    pub(crate) fn settings(&self, leads: bool, nodes_max: u32) -> NodeSettings {
        NodeSettings {
            host: self.host.clone(),
            workers: self.workers,
            workers_max: self.workers_max,
            leads,
            pages_period: NodeSettings::pages_period(nodes_max),
            programs: None,
        }
    }
}

/// Settings of one node for its agent.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    pub host: String,
    /// Workers that the node runs when none is missing.
    pub workers: u32,
    /// Workers that the node has room for, at least `workers`.
    pub workers_max: u32,
    /// The node leads from the beginning: the shell makes its supervisor together with this state.
    pub leads: bool,
    /// Time between two readings of the control pages, or two looks for signs of progress.
    pub pages_period: Duration,
    /// The workers are any programs; `None`: they are ENN's own.
    pub programs: Option<ProgramSettings>,
}

/// Settings of a node whose workers are any programs.
#[derive(Debug, Clone)]
pub struct ProgramSettings {
    /// Time between the request to end and SIGKILL.
    pub grace: Duration,
    /// Maximum number of restarts of the run.
    pub restarts_max: u32,
    /// What workers leave behind outlives a run that ended well.
    pub leave_background: bool,
    /// The first workers wait for the fork server.
    pub awaits_fork_server: bool,
    /// Workers without progress are a hang, so that it is looked for.
    pub watches_progress: bool,
}

impl NodeSettings {
    /// Returns the time between two readings of the control pages in a run of so many nodes: the leader reads what all nodes send.
    pub fn pages_period(nodes_max: u32) -> Duration {
        PAGES_PERIOD_MIN.max(PAGES_PERIOD_PER_NODE.saturating_mul(nodes_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_nodes_send_their_pages_less_often() {
        assert_eq!(NodeSettings::pages_period(1), Duration::from_millis(50));
        assert_eq!(NodeSettings::pages_period(50), Duration::from_millis(50));
        assert_eq!(NodeSettings::pages_period(1000), Duration::from_secs(1));
    }
}
