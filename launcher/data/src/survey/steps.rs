//! The usual distance of the times of a forecast, and the windows that go with it. Pure.

use super::{facts::ColumnFacts, sample::SampledColumn};
use crate::stage::source::block::NO_WORD;
use std::collections::{BTreeMap, BTreeSet};

const SECOND_US: i64 = 1_000_000;
const HOUR_S: i64 = 3600;
const DAY_S: i64 = 86_400;
/// Steps of a forecast where nothing else is said and the step is neither part of a day nor a day.
const STEPS: usize = 12;
const STEPS_MAX: usize = 96;

/// Returns the most frequent distance of neighbouring times in the first rows, in whole seconds; the smaller one of equally frequent ones.
pub(super) fn usual_step(
    column: &SampledColumn,
    facts: &ColumnFacts,
    head_rows: usize,
    is_number: bool,
) -> Option<i64> {
    let seconds = |id: u32| {
        let at = id as usize;
        match facts.times.get(at).copied().flatten() {
            Some(micros) => Some(micros.div_euclid(SECOND_US)),
            None if is_number => facts.numbers.get(at).filter(|value| value.fract() == 0.0).map(|value| *value as i64),
            None => None,
        }
    };
    let head = column.ids.iter().take(head_rows).filter(|id| **id != NO_WORD);
    let known: BTreeSet<i64> = head.filter_map(|id| seconds(*id)).collect();
    let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
    known.iter().zip(known.iter().skip(1)).for_each(|(one, next)| *counts.entry(next - one).or_default() += 1);
    counts.into_iter().max_by_key(|(gap, count)| (*count, -gap)).map(|(gap, _)| gap).filter(|gap| *gap > 0)
}

/// Returns how many steps are forecast where nobody says: a day of steps, or a week of days.
pub(super) fn usual_horizon(step_s: i64, is_number: bool) -> usize {
    match step_s {
        _ if is_number => STEPS,
        DAY_S => 7,
        step if step > 0 && step < DAY_S && DAY_S % step == 0 => {
            usize::try_from(DAY_S / step).unwrap_or(STEPS).min(STEPS_MAX)
        }
        _ => STEPS,
    }
}

/// Returns how a step is said.
pub(super) fn step_text(step_s: i64) -> String {
    match step_s {
        HOUR_S => "one hour".into(),
        DAY_S => "one day".into(),
        step if step % DAY_S == 0 => format!("{} days", step / DAY_S),
        step if step % HOUR_S == 0 => format!("{} hours", step / HOUR_S),
        step if step % 60 == 0 => format!("{} minutes", step / 60),
        step => format!("{step} s"),
    }
}
