//! The list of workers: what the events say of each, and its load where it could be measured. Pure.

use super::{
    sample::{ProcessLoad, Samples},
    state::{TopState, WorkerFilter},
};
use crate::{RunView, run_status::WorkerStatus};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct WorkerRow {
    pub(super) rank: u32,
    pub(super) local_rank: u32,
    pub(super) host: String,
    pub(super) round: u64,
    /// Process id and status; `None` for a worker of another node, whose launcher keeps its own journal.
    pub(super) process: Option<(u32, WorkerStatus)>,
    /// Device such as "cuda:0", once the worker has said it.
    pub(super) device: Option<String>,
    pub(super) load: Option<ProcessLoad>,
    pub(super) here: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RowContext<'a> {
    pub(super) living: bool,
    pub(super) host: &'a str,
}

/// Returns the workers of the current round that pass the filter, by rank.
pub(super) fn rows(view: &RunView, samples: &Samples, context: RowContext<'_>, filter: WorkerFilter) -> Vec<WorkerRow> {
    let launcher = view.sessions.last().map_or("", |session| session.host.as_str());
    let mut all: Vec<WorkerRow> = view
        .current_workers()
        .map(|worker| {
            let host = if worker.host.is_empty() { launcher } else { &worker.host };
            let here = host == context.host;
            let status = WorkerStatus::of(view, worker, context.living);
            let load = samples.of(worker.pid).filter(|_| here && status.alive());
            WorkerRow {
                rank: worker.rank,
                local_rank: worker.local_rank,
                host: host.to_owned(),
                round: worker.round,
                process: Some((worker.pid, status)),
                device: worker.ready.as_ref().map(|ready| ready.device.clone()).filter(|device| !device.is_empty()),
                load,
                here,
            }
        })
        .collect();
    all.extend(elsewhere(view, &all));
    all.sort_by_key(|row| row.rank);
    all.retain(|row| match filter {
        WorkerFilter::All => true,
        WorkerFilter::Failed => row.process.is_some_and(|(_, status)| status.failed()),
        WorkerFilter::Here => row.here,
    });
    all
}

/// Ranks of the round that no journal line names: ranks go by node, in the order of the nodes.
fn elsewhere(view: &RunView, known: &[WorkerRow]) -> Vec<WorkerRow> {
    let Some(round) = view.rounds.last() else { return Vec::new() };
    let known: std::collections::BTreeSet<u32> = known.iter().map(|row| row.rank).collect();
    let mut first = 0u32;
    let mut rows = Vec::new();
    for node in &round.nodes {
        for local_rank in 0..node.workers {
            let rank = first.saturating_add(local_rank);
            if !known.contains(&rank) {
                let host = node.host.clone();
                let round = round.round;
                rows.push(WorkerRow {
                    rank,
                    local_rank,
                    host,
                    round,
                    process: None,
                    device: None,
                    load: None,
                    here: false,
                });
            }
        }
        first = first.saturating_add(node.workers);
    }
    rows
}

/// Index of the row that is selected: the chosen one, else the one that failed, else the first.
pub(super) fn selected(rows: &[WorkerRow], state: &TopState) -> Option<usize> {
    let chosen = state.selected.and_then(|rank| rows.iter().position(|row| row.rank == rank));
    let failed = || rows.iter().position(|row| row.process.is_some_and(|(_, status)| status.failed()));
    chosen.or_else(failed).or((!rows.is_empty()).then_some(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{gang_events, view_after};
    use enn_common::event::{Event, EventKind};

    const PLACE: RowContext<'_> = RowContext { living: true, host: "n1" };

    fn ranks(rows: &[WorkerRow]) -> Vec<u32> {
        rows.iter().map(|row| row.rank).collect()
    }

    #[test]
    fn filters_choose() {
        let view = view_after(&gang_events());
        let of = |filter| rows(&view, &Samples::default(), PLACE, filter);
        assert_eq!(
            [WorkerFilter::All, WorkerFilter::Failed, WorkerFilter::Here].map(|filter| ranks(&of(filter))),
            [vec![0, 1, 2, 3], vec![2], vec![0, 1]]
        );
        assert_eq!(selected(&of(WorkerFilter::All), &TopState::default()), Some(2));
        assert_eq!(selected(&of(WorkerFilter::All), &TopState { selected: Some(3), ..TopState::default() }), Some(3));
        assert_eq!(selected(&[], &TopState::default()), None);
    }

    #[test]
    fn workers_of_other_nodes_have_rows() {
        let own = |event: &Event| !matches!(&event.what, EventKind::WorkerStarted { host, .. } if host == "n2");
        let events: Vec<Event> = gang_events().into_iter().filter(own).collect();
        let all = rows(&view_after(&events), &Samples::default(), PLACE, WorkerFilter::All);
        assert_eq!(ranks(&all), [0, 1, 2, 3]);
        let hosts: Vec<_> = all.iter().map(|row| (row.host.as_str(), row.local_rank, row.process.is_some())).collect();
        assert_eq!(hosts, [("n1", 0, true), ("n1", 1, true), ("n2", 0, false), ("n2", 1, false)]);
    }
}
