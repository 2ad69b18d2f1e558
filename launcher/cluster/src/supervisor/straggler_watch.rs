//! The worker for which the others wait.
//!
//! All ranks do the same steps, so the one that computes longest waits least and makes the others wait. Control pages tell how long
//! each has waited since the round began; two looks at them make a window. One slow window says nothing: a machine has other work,
//! too.

use super::input::Time;
use enn_common::id::WorkerId;
use std::{collections::BTreeMap, time::Duration};

/// Steps that a window must have.
const STEPS_MIN: u64 = 3;
/// Part of the time that the others wait longer than the straggler does, at least.
const GAP_MIN: f64 = 0.2;
/// Windows in a row that accuse the same worker before it is reported.
const WINDOWS_MIN: u32 = 3;
/// Windows from one warning to the next about the same worker.
const SILENT_WINDOWS: u32 = 60;

/// Control page of a worker at one look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PageLook {
    pub(super) step: u64,
    /// Time waited for others since the round began.
    pub(super) waited: Duration,
}

/// Control pages of all workers of a round at one look.
pub(super) type PageLooks = BTreeMap<WorkerId, PageLook>;

/// A worker that makes the others wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Straggler {
    pub(super) worker: WorkerId,
    /// Its time for a step's own work over that of the others.
    pub(super) slower_by: f64,
    /// It was not reported lately.
    pub(super) is_new: bool,
}

/// Looks so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StragglerWatch {
    before: Option<(Time, PageLooks)>,
    suspect: Option<Suspect>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Suspect {
    worker: WorkerId,
    windows: u32,
}

impl StragglerWatch {
    /// A round begins: pages count anew. A worker that was suspected still is.
    pub(super) fn round_began(&mut self) {
        self.before = None;
    }

    /// Returns when the pages are looked at next, with windows of this length.
    pub(super) fn next(&self, window: Duration, now: Time) -> Time {
        self.before.as_ref().map_or(now, |(at, _)| *at + window)
    }

    /// Takes a look; returns the worker that is too slow, once enough windows in a row said so.
    pub(super) fn look(&mut self, looks: PageLooks, now: Time) -> Option<Straggler> {
        let before = self.before.replace((now, looks));
        let (began, before) = before?;
        let (_, after) = self.before.as_ref()?;
        // A window without steps, e.g. while a checkpoint is written, neither accuses nor acquits.
        if steps(&before, after) < STEPS_MIN {
            return None;
        }
        let Some((worker, slower_by)) = slowest(&before, after, now.saturating_sub(began)) else {
            self.suspect = None;
            return None;
        };
        let windows = match self.suspect {
            Some(suspect) if suspect.worker == worker => suspect.windows.saturating_add(1),
            _ => 1,
        };
        self.suspect = Some(Suspect { worker, windows });
        let is_new = windows >= WINDOWS_MIN && (windows - WINDOWS_MIN).is_multiple_of(SILENT_WINDOWS);
        (windows >= WINDOWS_MIN).then_some(Straggler { worker, slower_by, is_new })
    }
}

/// Returns the number of steps that all did.
fn steps(before: &PageLooks, after: &PageLooks) -> u64 {
    let done = |worker, look: &PageLook| before.get(worker).map_or(0, |known| look.step.saturating_sub(known.step));
    after.iter().map(|(worker, look)| done(worker, look)).min().unwrap_or(0)
}

/// Returns the worker that waits least, when the others wait much longer, and its time per step over theirs.
fn slowest(before: &PageLooks, after: &PageLooks, window: Duration) -> Option<(WorkerId, f64)> {
    let window = window.as_secs_f64();
    let mut shares: Vec<(WorkerId, f64)> = after
        .iter()
        .filter_map(|(worker, look)| {
            let known = before.get(worker)?;
            let waited = look.waited.saturating_sub(known.waited).as_secs_f64();
            Some((*worker, (waited / window).clamp(0.0, 1.0)))
        })
        .collect();
    shares.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let [(worker, own), others @ ..] = &shares[..] else { return None };
    // The second waits least of the others: two slow workers of four are a slow half, not a straggler.
    let (_, second) = others.first()?;
    let (_, typical) = others.get(others.len() / 2)?;
    if second - own < GAP_MIN {
        return None;
    }
    // What is not waited is worked; a window of nothing but waiting has no measure.
    let theirs = (1.0 - typical).max(1e-3);
    Some((*worker, (1.0 - own) / theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    /// Workers, and looks at them window after window.
    struct Scene {
        watch: StragglerWatch,
        at: Time,
        waited: Vec<Duration>,
        step: u64,
    }

    impl Scene {
        fn new(workers: usize) -> Self {
            let mut scene = Self {
                watch: StragglerWatch::default(),
                at: Time::ZERO,
                waited: vec![Duration::ZERO; workers],
                step: 0,
            };
            assert_eq!(scene.look(), None);
            scene
        }

        fn look(&mut self) -> Option<Straggler> {
            let looks = (0..).zip(&self.waited);
            let looks = looks.map(|(id, waited)| (WorkerId(id), PageLook { step: self.step, waited: *waited }));
            self.watch.look(looks.collect(), self.at)
        }

        fn window(&mut self, percents: &[u32], steps: u64) -> Option<Straggler> {
            self.at += WINDOW;
            self.step += steps;
            for (waited, percent) in self.waited.iter_mut().zip(percents) {
                *waited += WINDOW * *percent / 100;
            }
            self.look()
        }
    }

    #[test]
    fn three_windows_in_a_row_accuse_and_news_are_rare() {
        let mut scene = Scene::new(3);
        for _ in 0..2 {
            assert_eq!(scene.window(&[50, 2, 50], 20), None);
        }
        // Somebody else was slow, or nobody: it begins again.
        assert_eq!(scene.window(&[40, 45, 50], 20), None);
        for _ in 0..2 {
            assert_eq!(scene.window(&[50, 0, 50], 20), None);
        }
        let found = scene.window(&[50, 0, 50], 20).unwrap();
        assert_eq!((found.worker, found.is_new), (WorkerId(1), true));
        assert!((found.slower_by - 2.0).abs() < 1e-9, "{found:?}");
        let news = (0..2 * SILENT_WINDOWS).filter(|_| scene.window(&[50, 0, 50], 20).unwrap().is_new).count();
        assert_eq!(news, 2);
    }

    #[test]
    fn a_window_without_steps_neither_accuses_nor_acquits() {
        let mut scene = Scene::new(2);
        assert_eq!(scene.window(&[60, 0], 20), None);
        assert_eq!(scene.window(&[99, 0], STEPS_MIN - 1), None);
        assert_eq!(scene.window(&[60, 0], 20), None);
        assert!(scene.window(&[60, 0], 20).is_some());
    }

    #[test]
    fn equals_and_halves_are_no_stragglers() {
        for percents in [&[30, 30, 30][..], &[0, 0, 50, 50], &[0], &[20, 39]] {
            let mut scene = Scene::new(percents.len());
            assert!((0..9).all(|_| scene.window(percents, 20).is_none()), "{percents:?}");
        }
    }

    #[test]
    fn a_new_round_counts_anew_and_remembers_the_suspect() {
        let mut scene = Scene::new(2);
        for _ in 0..2 {
            assert_eq!(scene.window(&[60, 0], 20), None);
        }
        scene.watch.round_began();
        scene.waited = vec![Duration::ZERO; 2];
        assert_eq!(scene.look(), None);
        assert!(scene.window(&[60, 0], 20).is_some());
    }
}
