//! Settings of a node agent.

use std::time::Duration;

/// Control pages are read this often where the run has few nodes.
const PAGES_PERIOD_MIN: Duration = Duration::from_millis(50);
/// One more node lengthens the period by this time, so that the leader gets about as many messages from many nodes as from fifty.
const PAGES_PERIOD_PER_NODE: Duration = Duration::from_millis(1);

/// Settings of one node for its agent.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Name of this host.
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
