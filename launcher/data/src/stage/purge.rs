//! Removal of windows whose history contains targets of validation or test.
//!
//! **Invariant:** afterwards no history of a training window contains a validation or test target, and no history of a validation window
//! a test target. The reverse is no leak: training targets may lie in the history of a test window.

use super::error::StageError;
use enn_common::{
    config::data::{DataConfig, Layout},
    staged::{LEFT_OUT, Split, Staged},
};

/// Returns the length of a window's history, seconds; `None` for other layouts.
pub(crate) fn reach(config: &DataConfig) -> Option<i64> {
    let Layout::Windows(layout) = &config.layout else { return None };
    let steps = i64::try_from(layout.history.saturating_mul(layout.steps)).unwrap_or(i64::MAX);
    Some(layout.step_s.saturating_mul(steps))
}

/// Marks such windows of one source as left out in `split`, and returns their number. `starts` are the starts of the target windows,
/// seconds, ascending.
pub(crate) fn leave_out(starts: &[i64], reach: i64, split: &mut [u8]) -> u64 {
    let mut last_val = None::<i64>;
    let mut last_test = None::<i64>;
    let mut count = 0;
    for (start, code) in starts.iter().zip(split) {
        let begin = start.saturating_sub(reach);
        let holds = |last: Option<i64>| last.is_some_and(|last| last >= begin && last < *start);
        let leaks = match *code {
            code if code == Split::Train as u8 => holds(last_val) || holds(last_test),
            code if code == Split::Val as u8 => holds(last_test),
            _ => false,
        };
        if leaks {
            *code = LEFT_OUT;
            count += 1;
        } else if *code == Split::Val as u8 {
            last_val = Some(*start);
        } else if *code == Split::Test as u8 {
            last_test = Some(*start);
        }
    }
    count
}

/// Refuses a split that leaves less than half of the training windows.
pub(crate) fn check(config: &DataConfig, before: u64, left: u64) -> Result<(), StageError> {
    if 2 * left >= before {
        return Ok(());
    }
    Err(StageError::Leak { kind: format!("{:?}", config.split.kind).to_lowercase(), before, left })
}

pub(crate) fn training(split: &[u8]) -> u64 {
    split.iter().filter(|code| **code == Split::Train as u8).count() as u64
}

/// Marks the windows of staged data as left out in another split of them if their history contains validation or test targets.
///
/// # Errors
/// Less than half of the training windows are left.
pub fn purge(config: &DataConfig, staged: &Staged, split: &mut [u8]) -> Result<u64, StageError> {
    let Some(reach) = reach(config) else { return Ok(0) };
    let before = training(split);
    let sources: Vec<usize> = staged.meta().sources.iter().map(|source| source.rows() as usize).collect();
    let sizes = if sources.is_empty() { vec![split.len()] } else { sources };
    // The row id of a window is its start.
    let mut starts = staged.row_id();
    let mut rest = &mut *split;
    let mut count = 0;
    for size in sizes {
        let (own, behind) = starts.split_at(size.min(starts.len()));
        let (part, after) = rest.split_at_mut(size.min(rest.len()));
        count += leave_out(own, reach, part);
        starts = behind;
        rest = after;
    }
    check(config, before, training(split))?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_window_behind_one_of_test_does_not_train() {
        let starts = [0, 10, 20, 30, 40, 50];
        let mut split = [0, 2, 0, 1, 0, 0];
        assert_eq!(leave_out(&starts, 10, &mut split), 2);
        assert_eq!(split, [0, 2, LEFT_OUT, 1, LEFT_OUT, 0]);
        // In the order of time nothing is lost, whatever the history.
        let mut ordered = [0, 0, 0, 1, 1, 2];
        assert_eq!((leave_out(&starts, 40, &mut ordered), ordered), (0, [0, 0, 0, 1, 1, 2]));
        // Beyond a gap in the data the history holds nothing of it.
        let mut gap = [2, 0];
        assert_eq!(leave_out(&[0, 100], 10, &mut gap), 0);
    }

    proptest! {
        #[test]
        fn no_history_holds_what_it_must_not(codes in proptest::collection::vec(0u8..3, 1..60), windows in 1i64..6) {
            let starts: Vec<i64> = (0..codes.len() as i64).map(|at| at * 7).collect();
            let mut split = codes.clone();
            leave_out(&starts, windows * 7, &mut split);
            for (at, code) in split.iter().enumerate().filter(|(_, code)| **code < 2) {
                for back in 1..=windows as usize {
                    let held = at.checked_sub(back).map_or(LEFT_OUT, |before| split[before]);
                    prop_assert!(held == LEFT_OUT || held <= *code, "{:?}", split);
                }
            }
            prop_assert!(split.iter().zip(&codes).all(|(now, before)| now == before || *now == LEFT_OUT));
        }
    }
}
