//! Decides when an engine is restarted, and what an engine computes next.

use std::time::Duration;

/// The first pause, which doubles with each failure, and the maximum.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Returns the pause before the next start after consecutive failures.
pub(super) fn pause(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        more => (PAUSE * 2_u32.pow((more - 2).min(16))).min(PAUSE_MAX),
    }
}

/// Target time of a part of a job while others may wait.
pub(super) const PART_TIME: Duration = Duration::from_millis(50);
/// Initial and minimum number of rows of a part.
const PART_ROWS: usize = 64;
const PART_ROWS_MIN: usize = 8;
/// A part takes at least this many times the fixed cost of a call.
const CALLS_PER_PART: f64 = 4.0;
/// Weight of an older measurement relative to the next one.
const MEMORY: f64 = 0.8;
const GROWTH_MAX: usize = 4;

/// The order of jobs. Engines alternate, so that short jobs overtake long ones and long ones still progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Jobs with the fewest remaining rows come first.
    Shortest,
    /// The job that has waited for longest comes first, then those with the fewest remaining rows.
    Oldest,
}

impl Order {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Shortest => Self::Oldest,
            Self::Oldest => Self::Shortest,
        }
    }
}

/// A number of rows of the job at an index of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) at: usize,
    pub(super) rows: usize,
}

/// Chooses the jobs to compute together by their remaining rows, oldest first. Only the first choice may be computed in part; others are
/// added completely or not at all.
pub(super) fn parts(left: &[usize], part_max: usize, rows_max: usize, order: Order) -> Vec<Part> {
    let mut choice: Vec<usize> = (0..left.len()).collect();
    let first = usize::from(order == Order::Oldest).min(choice.len());
    choice[first..].sort_by_key(|at| left[*at]);
    let Some((first, others)) = choice.split_first() else { return Vec::new() };
    let rows = left[*first].min(part_max).min(rows_max).max(1);
    let mut parts = vec![Part { at: *first, rows: rows.min(left[*first]) }];
    if rows < left[*first] {
        return parts;
    }
    let mut room = rows_max.saturating_sub(rows);
    for at in others {
        if left[*at] > room.min(part_max) {
            break;
        }
        room -= left[*at];
        parts.push(Part { at: *at, rows: left[*at] });
    }
    parts
}

/// Chooses the number of rows that an engine computes at once from measured times: a fixed time for each call, and a time for each row.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    rows: usize,
    most: usize,
    /// The fixed time of a call, seconds, as far as calls of several sizes have shown it.
    call: f64,
    /// Weighted sums over measurements, of: 1, rows, rows², seconds, rows · seconds.
    sums: [f64; 5],
}

impl Pace {
    pub(super) fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { rows: PART_ROWS.min(most), most, call: 0.0, sums: [0.0; 5] }
    }

    pub(super) const fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn took(&mut self, rows: usize, took: Duration) {
        let count = rows as f64;
        let seconds = took.as_secs_f64();
        for (sum, value) in self.sums.iter_mut().zip([1.0, count, count * count, seconds, count * seconds]) {
            *sum = *sum * MEMORY + value;
        }
        let [weight, n, nn, t, nt] = self.sums;
        let spread = nn * weight - n * n;
        // Calls of one size do not show the fixed time, which is left unchanged.
        if spread > 1e-6 * nn * weight {
            let row = ((nt * weight - n * t) / spread).max(0.0);
            self.call = ((t - row * n) / weight).max(0.0);
        }
        let row = ((t - self.call * weight) / n.max(1.0)).max(0.0);
        let time = PART_TIME.as_secs_f64().max(CALLS_PER_PART * self.call) - self.call;
        let wanted = (time / row.max(1e-9)).min(self.most as f64) as usize;
        self.rows = wanted.min(self.rows.saturating_mul(GROWTH_MAX)).max(PART_ROWS_MIN).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_few_rows_stay_within_what_is_computed_at_once() {
        for most in [1, 3, PART_ROWS_MIN] {
            let mut pace = Pace::new(most);
            pace.took(1, Duration::from_micros(1));
            assert!((1..=most).contains(&pace.rows()), "{} of {most}", pace.rows());
        }
    }

    /// The rows of a part after many, of an engine that takes so many seconds for a call and for each row.
    fn settled(call: f64, row: f64) -> usize {
        let mut pace = Pace::new(1024);
        for _ in 0..50 {
            let rows = pace.rows();
            pace.took(rows, Duration::from_secs_f64(call + row * rows as f64));
        }
        pace.rows()
    }

    #[test]
    fn parts_are_as_long_as_their_time_allows() {
        assert_eq!(settled(1e-3, 1e-6), 1024, "a fast engine computes as many as may be");
        let slow = settled(1e-3, 2e-3);
        assert!((20..=30).contains(&slow), "50 ms of 2 ms a row: {slow}");
        assert_eq!(settled(0.0, 1.0), PART_ROWS_MIN);
        let calls = settled(0.1, 1e-4);
        assert_eq!(calls, 1024, "a call that costs much is used for many rows");
        let mut paused = Pace::new(4);
        paused.took(4, Duration::from_secs(9));
        assert_eq!(paused.rows(), 4, "never more than may be computed together");
    }

    #[test]
    fn short_jobs_pass_long_ones_which_go_on_all_the_same() {
        let part = |at, rows| Part { at, rows };
        let left = [60_000, 1, 2000, 3];
        assert_eq!(parts(&left, 100, 1000, Order::Shortest), [part(1, 1), part(3, 3)]);
        assert_eq!(parts(&left, 100, 1000, Order::Oldest), [part(0, 100)]);
        // The oldest is short: others join it.
        assert_eq!(parts(&[5, 60_000, 1], 100, 1000, Order::Oldest), [part(0, 5), part(2, 1)]);
        assert_eq!(parts(&[2, 2, 2], 100, 4, Order::Shortest), [part(0, 2), part(1, 2)]);
        assert_eq!(parts(&[7, 9], 100, 4, Order::Shortest), [part(0, 4)]);
        assert_eq!(parts(&[], 100, 4, Order::Oldest), []);
    }

    /// However many come, nobody waits for ever.
    #[test]
    fn every_job_is_done_whatever_comes_after_it() {
        let mut waiting = std::collections::VecDeque::from([500_usize]);
        let mut order = Order::Shortest;
        for batch in 0..1000 {
            waiting.extend([1, 1, 1]);
            let chosen = parts(waiting.make_contiguous(), 10, 16, order);
            order = order.other();
            let mut back = Vec::new();
            for Part { at, rows } in &chosen {
                waiting[*at] -= rows;
                back.extend(Some(waiting[*at]).filter(|left| *left > 0));
                waiting[*at] = 0;
            }
            waiting.retain(|left| *left > 0);
            waiting.extend(back);
            if waiting.iter().all(|left| *left == 1) {
                assert!(batch < 500, "{batch}");
                return;
            }
        }
        panic!("the long one is never done");
    }

    #[test]
    fn waits_double_up_to_a_bound() {
        let millis: Vec<u128> = (0..6).map(|failures| pause(failures).as_millis()).collect();
        assert_eq!(millis, [0, 0, 100, 200, 400, 800]);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }
}
