//! When control pages are read, and which of them the leader has not seen.

use super::{effect::NodeEffect, report::EffectList};
use enn_common::{
    id::WorkerId,
    wire::node_agent::{NodeEvent, WorkerProgress},
};
use std::{collections::BTreeMap, time::Duration};

/// Longest time in which the leader hears nothing of the pages, so that it knows that the node agent lives.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Control pages as the leader knows them.
#[derive(Debug)]
pub(super) struct PageWatch {
    period: Duration,
    sent: BTreeMap<WorkerId, WorkerProgress>,
    read_at: Duration,
    /// Time by which the leader hears of the pages, changed or not.
    report_by: Duration,
}

impl PageWatch {
    pub(super) fn new(period: Duration, now: Duration) -> Self {
        Self { period, sent: BTreeMap::new(), read_at: now, report_by: now + SILENCE_MAX }
    }

    /// Forgets what was sent: this leader has seen nothing.
    pub(super) fn begin(&mut self, now: Duration) {
        self.sent.clear();
        self.read_at = now;
        self.report_by = now + SILENCE_MAX;
    }

    /// Forgets the page of a worker that has ended.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.sent.remove(&worker);
    }

    /// Reports the pages that changed, or that the node lives.
    pub(super) fn on_pages(&mut self, now: Duration, pages: Vec<WorkerProgress>, list: &mut EffectList<'_>) {
        let mut changed = Vec::new();
        for page in pages {
            let is_same = |sent: &WorkerProgress| WorkerProgress { idle: page.idle, ..*sent } == page;
            if !self.sent.get(&page.worker).is_some_and(is_same) {
                self.sent.insert(page.worker, page);
                changed.push(page);
            }
        }
        if !changed.is_empty() || now >= self.report_by {
            list.report(NodeEvent::Progress(changed));
            self.report_by = now + SILENCE_MAX;
        }
    }

    /// Reads the pages when it is time, or says that the node without workers lives. Called while there is a leader.
    pub(super) fn due(&mut self, now: Duration, has_workers: bool, list: &mut EffectList<'_>) {
        if has_workers && now >= self.read_at {
            self.read_at = now + self.period;
            list.push(NodeEffect::ReadPages);
        } else if !has_workers && now >= self.report_by {
            self.report_by = now + SILENCE_MAX;
            list.report(NodeEvent::Progress(Vec::new()));
        }
    }

    /// Returns the time at which `due` has something to do while somebody leads.
    pub(super) fn deadline(&self, has_workers: bool) -> Duration {
        if has_workers { self.read_at } else { self.report_by }
    }
}
