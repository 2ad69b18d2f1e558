//! When control pages are read, and which of them the leader has not seen.

use super::{effect::NodeEffect, report::EffectList};
use enn_common::{
    id::WorkerId,
    wire::node_agent::{NodeEvent, WorkerProgress},
};
use std::{collections::BTreeMap, time::Duration};

/// Longest time in which the leader hears nothing of the pages, so that it knows that the node agent lives.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Signs of progress within a step are told at most every so many readings.
const HEARTBEAT_READINGS: u32 = 4;
/// A sign of progress that is newer by less than this is the same one, read at another moment.
const HEARTBEAT_DIFFERENCE_MIN: Duration = Duration::from_millis(10);

/// A control page as it was sent.
#[derive(Debug, Clone, Copy)]
struct SentPage {
    page: WorkerProgress,
    at: Duration,
}

impl SentPage {
    /// Returns whether the worker is where it was.
    fn is_same(&self, page: &WorkerProgress) -> bool {
        WorkerProgress { idle: page.idle, ..self.page } == *page
    }
}

/// Control pages as the leader knows them.
#[derive(Debug)]
pub(super) struct PageWatch {
    period: Duration,
    sent: BTreeMap<WorkerId, SentPage>,
    read_at: Duration,
    /// Time from which signs of progress within a step are told again.
    heartbeats_from: Duration,
    /// Time by which the leader hears of the pages, changed or not.
    report_by: Duration,
}

impl PageWatch {
    pub(super) fn new(period: Duration, now: Duration) -> Self {
        let report_by = now + SILENCE_MAX;
        Self { period, sent: BTreeMap::new(), read_at: now, heartbeats_from: now, report_by }
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

    /// Reports the pages of workers that went on, now and then those of workers that only gave a sign of progress, and every second that
    /// the node lives.
    pub(super) fn on_pages(&mut self, mut pages: Vec<WorkerProgress>, list: &mut EffectList<'_>) {
        let with_heartbeats = list.now >= self.heartbeats_from;
        let mut heartbeats = false;
        pages.retain(|page| match self.sent.get(&page.worker) {
            Some(sent) if sent.is_same(page) => {
                // The worker gave a sign of progress since then.
                let idle = sent.page.idle + list.now.saturating_sub(sent.at);
                let is_newer = with_heartbeats && page.idle + HEARTBEAT_DIFFERENCE_MIN < idle;
                heartbeats |= is_newer;
                is_newer
            }
            Some(_) | None => true,
        });
        if heartbeats {
            self.heartbeats_from = list.now + SILENCE_MAX.min(HEARTBEAT_READINGS * self.period);
        }
        if !pages.is_empty() || list.now >= self.report_by {
            self.sent.extend(pages.iter().map(|page| (page.worker, SentPage { page: *page, at: list.now })));
            self.report_by = list.now + SILENCE_MAX;
            list.report(NodeEvent::Progress(pages));
        }
    }

    /// Reads the pages when it is time, or says that the node without workers lives. Called while there is a leader.
    pub(super) fn due(&mut self, has_workers: bool, list: &mut EffectList<'_>) {
        if has_workers && list.now >= self.read_at {
            self.read_at = list.now + self.period;
            list.push(NodeEffect::ReadPages);
        } else if !has_workers && list.now >= self.report_by {
            self.report_by = list.now + SILENCE_MAX;
            list.report(NodeEvent::Progress(Vec::new()));
        }
    }

    /// Returns the time at which `due` has something to do while somebody leads.
    pub(super) fn deadline(&self, has_workers: bool) -> Duration {
        if has_workers { self.read_at } else { self.report_by }
    }
}
