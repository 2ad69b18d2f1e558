//! Steps of a long table: the step of a time, the time differences between rows of an entity, and whether the step fits them.

use crate::stage::{
    error::StageError,
    timestamp::{DAY_S, SECOND_US},
};
use enn_common::config::data::WindowsLayout;
use std::collections::BTreeMap;

const GAPS_MAX: usize = 1024;

/// Minimum number of differences for an estimate of the usual difference.
const GAPS_MIN: u64 = 8;

const TOLERANCE: f64 = 0.1;

/// Minimum share of differences that are multiples of the usual one in regular rows.
const REGULAR_MIN: f64 = 0.9;

/// Maximum rows per usual difference in steps that are shorter than it: one, and the rows at both ends.
const FILLED_MAX: f64 = 1.5;

/// Maximum percentage of rows that share a step with a row of another time.
const CLASHES_PERCENT_MAX: u64 = 1;

/// Calendar lengths: name, months, minimum and maximum days.
const CALENDAR: [(&str, i64, i64, i64); 3] = [("month", 1, 28, 31), ("quarter", 3, 90, 92), ("year", 12, 365, 366)];

/// Returns the step, counted from 1970, that contains a time in microseconds since 1970.
pub(super) fn step_of(layout: &WindowsLayout, micros: i64) -> i64 {
    local(layout, micros).div_euclid(layout.step_s.saturating_mul(SECOND_US))
}

/// Whether a time in microseconds since 1970 is the start of a step.
pub(super) fn begins_at(layout: &WindowsLayout, micros: i64) -> bool {
    local(layout, micros).rem_euclid(layout.step_s.saturating_mul(SECOND_US)) == 0
}

fn local(layout: &WindowsLayout, micros: i64) -> i64 {
    micros.saturating_add(layout.time_offset_s.saturating_mul(SECOND_US))
}

/// Histogram of time differences between consecutive rows of an entity, in microseconds.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Gaps(BTreeMap<i64, u64>);

impl Gaps {
    pub(super) fn kept(all: &[(i64, u64)]) -> Self {
        Self(all.iter().copied().collect())
    }

    pub(super) fn to_kept(&self) -> Vec<(i64, u64)> {
        self.0.iter().map(|(gap, count)| (*gap, *count)).collect()
    }

    /// Counts the difference of two times of an entity, unless they are equal.
    pub(super) fn add(&mut self, from: i64, to: i64) {
        let gap = i64::try_from(to.abs_diff(from)).unwrap_or(i64::MAX);
        if gap > 0 {
            self.count(gap, 1);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(gap, count)| self.count(*gap, *count));
    }

    fn count(&mut self, gap: i64, count: u64) {
        if self.0.len() < GAPS_MAX || self.0.contains_key(&gap) {
            *self.0.entry(gap).or_default() += count;
        }
    }

    /// Returns the median difference, if nearly all differences are multiples of it.
    fn usual(&self) -> Option<i64> {
        let all: u64 = self.0.values().sum();
        let mut before = 0;
        let median = self.0.iter().find(|(_, count)| {
            before += **count;
            2 * before >= all
        });
        let median = *median?.0;
        let is_multiple = |gap: i64| {
            let times = gap as f64 / median as f64;
            times.round() >= 1.0 && (times - times.round()).abs() <= TOLERANCE
        };
        let fit: u64 = self.0.iter().filter(|(gap, _)| is_multiple(**gap)).map(|(_, count)| count).sum();
        (all >= GAPS_MIN && fit as f64 >= REGULAR_MIN * all as f64).then_some(median)
    }

    /// Refuses steps much shorter or longer than the usual difference of regular rows. `filled` is the share of steps with a row between
    /// the first and the last: rows that are not sorted by time have larger differences in the file than in time.
    pub(super) fn check(&self, layout: &WindowsLayout, filled: f64) -> Result<(), StageError> {
        let Some(usual) = self.usual() else { return Ok(()) };
        let ratio = usual as f64 / layout.step_s.saturating_mul(SECOND_US) as f64;
        if (ratio - 1.0).abs() <= TOLERANCE || (ratio > 1.0 && filled * ratio > FILLED_MAX) {
            return Ok(());
        }
        Err(self.misfit(layout, format!("rows of one entity that are {} apart", self.distance(usual))))
    }

    /// Refuses steps that contain rows of several times: `clashes` of `rows` rows share a step with a row of another time.
    pub(super) fn check_clashes(&self, layout: &WindowsLayout, clashes: u64, rows: u64) -> Result<(), StageError> {
        if clashes * 100 <= rows * CLASHES_PERCENT_MAX {
            return Ok(());
        }
        let apart = self.usual().map_or_else(String::new, |usual| format!("; rows are {} apart", self.distance(usual)));
        let found = format!("{clashes} of {rows} rows in a step that has a row of the entity of another time{apart}");
        Err(self.misfit(layout, found))
    }

    fn misfit(&self, layout: &WindowsLayout, found: String) -> StageError {
        let hint = match (self.calendar(), self.usual()) {
            (Some((name, months)), _) => {
                let part = if months == 1 { "month".to_owned() } else { format!("month, divided by {months}") };
                format!(
                    "a {name} has no fixed length: give each row a running number as its time (12 × year + {part}), and set step_s = 1 \
                     and calendar = []"
                )
            }
            (None, Some(usual)) => fitting(usual),
            (None, None) => match self.0.keys().next() {
                Some(gap) if *gap >= SECOND_US => {
                    format!("make one row of each step first; steps of at most {} s have no two rows", gap / SECOND_US)
                }
                _ => "make one row of each step first".to_owned(),
            },
        };
        StageError::Steps { column: layout.time.clone(), step_s: layout.step_s, found, hint }
    }

    /// Returns the calendar length of the usual difference, with its number of months.
    fn calendar(&self) -> Option<(&'static str, i64)> {
        let usual = self.usual()?;
        let days = |gap: i64| gap as f64 / (DAY_S * SECOND_US) as f64;
        let has = |low: i64, high: i64, gap: i64| (low as f64..=high as f64).contains(&days(gap));
        let (name, months, ..) = CALENDAR.into_iter().find(|(_, _, low, high)| {
            // A fixed length has a single difference.
            has(*low, *high, usual) && self.0.keys().filter(|gap| has(*low, *high, **gap)).count() > 1
        })?;
        Some((name, months))
    }

    fn distance(&self, usual: i64) -> String {
        match self.calendar() {
            Some((name, _)) => format!("a {name}"),
            None => format!("{} s", usual as f64 / SECOND_US as f64),
        }
    }
}

fn fitting(usual: i64) -> String {
    match (usual % SECOND_US, usual >= SECOND_US) {
        (0, _) => format!("set data.windows.step_s = {}", usual / SECOND_US),
        (_, true) => format!("set data.windows.step_s = {}, or make one row of each step first", usual / SECOND_US),
        (_, false) => format!(
            "steps are whole seconds: make one row of each second first, or give each row a running number as its time (one for each \
             {} s), and set step_s = 1 and calendar = []",
            usual as f64 / SECOND_US as f64
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(times: impl IntoIterator<Item = i64>) -> Gaps {
        let times: Vec<i64> = times.into_iter().collect();
        let mut gaps = Gaps::default();
        times.windows(2).for_each(|pair| gaps.add(pair[0], pair[1]));
        gaps
    }

    fn layout(step_s: i64) -> WindowsLayout {
        WindowsLayout {
            entity: "who".into(),
            time: "when".into(),
            time_offset_s: 0,
            step_s,
            steps: 2,
            history: 1,
            inputs: vec![],
            circular: vec![],
            target: "v".into(),
            calendar: vec![],
            target_valid_min: 0.5,
        }
    }

    fn told(gaps: &Gaps, step_s: i64) -> String {
        gaps.check(&layout(step_s), step_s as f64 / 1e9).unwrap_err().to_string()
    }

    #[test]
    fn what_rows_are_apart_is_found_and_told() {
        let hours = gaps((0..40).map(|row| row * 3600 * SECOND_US));
        assert!(hours.check(&layout(3600), 1.0).is_ok());
        assert!(told(&hours, 60).contains("hint: set data.windows.step_s = 3600"), "{}", told(&hours, 60));
        assert!(told(&hours, 86_400).contains("rows of one entity that are 3600 s apart"));
        let tenths = gaps((0..40).map(|row| row * SECOND_US / 10));
        assert!(told(&tenths, 1).contains("0.1 s apart") && told(&tenths, 1).contains("running number"));
        // Days without weekends, and hours with holes.
        let days = gaps((0..60).filter(|day| day % 7 < 5).map(|day| day * DAY_S * SECOND_US));
        assert!(days.check(&layout(DAY_S), 1.0).is_ok());
        assert!(
            gaps((0..90).filter(|row| row % 3 > 0).map(|row| row * 60 * SECOND_US)).check(&layout(60), 1.0).is_ok()
        );
    }

    #[test]
    fn rows_in_another_order_are_as_far_apart_as_in_that_of_time() {
        // By the hour of the day, then by the day: a day apart, and all hours have a row.
        let by_hour = gaps((0..24).flat_map(|hour| (0..30).map(move |day| (day * 24 + hour) * 3600 * SECOND_US)));
        assert!(by_hour.check(&layout(3600), 1.0).is_ok() && by_hour.check(&layout(3600), 0.7).is_ok());
        assert!(by_hour.check(&layout(3600), 1.0 / 24.0).is_err(), "a row a day");
    }

    #[test]
    fn months_are_no_length() {
        let lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let months = gaps((0..36).scan(0, |day, month| {
            *day += lengths[month % 12];
            Some(*day * DAY_S * SECOND_US)
        }));
        assert!(months.check(&layout(2_629_746), 1.0).is_ok(), "that is left to the rows that fall in one step");
        let text = months.check_clashes(&layout(2_629_746), 4, 36).unwrap_err().to_string();
        assert!(text.contains("rows are a month apart") && text.contains("12 × year + month"), "{text}");
        assert!(told(&months, DAY_S).contains("rows of one entity that are a month apart"));
    }

    #[test]
    fn irregular_rows_are_judged_by_what_falls_together() {
        let odd = gaps((0..40).map(|row: i64| row * row * 7 * SECOND_US));
        assert!(odd.check(&layout(3600), 1.0).is_ok() && odd.check_clashes(&layout(3600), 1, 100).is_ok());
        let text = odd.check_clashes(&layout(3600), 2, 100).unwrap_err().to_string();
        assert!(text.contains("2 of 100 rows in a step") && text.contains("steps of at most 7 s"), "{text}");
    }
}
