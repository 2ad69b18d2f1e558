//! How much of a target a single column explains, from nothing (0) to all (1): whoever explains nearly all is likely to be made of it. Pure.
//!
//! Rows are grouped by the value of the column. A row is predicted from the others of its group; the only row of a number from its
//! neighbours in the order of numbers. For numbers the measure is R², for classes one minus the errors relative to those of the most
//! frequent class.

use super::facts::ColumnFacts;
use crate::stage::source::block::NO_WORD;
use std::collections::HashMap;

/// Rows that are looked at.
const ROWS_MAX: usize = 10_000;
/// Rows below which nothing is concluded.
const ROWS_MIN: usize = 30;
/// Correlation from which on two columns are one, up to a factor and a constant.
const SAME_CORRELATION: f64 = 0.999_999;

/// A column as the words of its rows.
#[derive(Clone, Copy)]
pub(super) struct WordColumn<'a> {
    pub ids: &'a [u32],
    pub facts: &'a ColumnFacts,
    /// Whether its words are numbers or times, which have an order.
    pub is_ordered: bool,
}

impl WordColumn<'_> {
    fn value(&self, id: u32) -> f64 {
        let at = id as usize;
        let time = self.facts.times.get(at).copied().flatten().map(|micros| micros as f64);
        time.unwrap_or_else(|| self.facts.numbers.get(at).copied().unwrap_or(f64::NAN))
    }
}

/// Relation of a column to the target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Signal {
    /// Share that is explained, 0 to 1.
    pub explained: f64,
    /// Whether it is the target, but for a factor and a constant.
    pub is_same: bool,
}

/// Rows of one value, in the order of values.
struct ValueGroup {
    rows: Vec<usize>,
}

pub(super) fn signal(column: WordColumn<'_>, target: WordColumn<'_>, is_class: bool) -> Option<Signal> {
    let stride = column.ids.len().div_ceil(ROWS_MAX).max(1);
    let both =
        (0..column.ids.len()).step_by(stride).filter(|row| column.ids[*row] != NO_WORD && target.ids[*row] != NO_WORD);
    let rows: Vec<usize> = both.filter(|row| is_class || target.value(target.ids[*row]).is_finite()).collect();
    if rows.len() < ROWS_MIN {
        return None;
    }
    let groups = groups(column, &rows);
    let explained = if is_class { class_share(&groups, target, &rows) } else { variance_share(&groups, target, &rows) };
    let is_same = !is_class && column.is_ordered && correlation(column, target, &rows).abs() > SAME_CORRELATION;
    Some(Signal { explained: explained.clamp(0.0, 1.0), is_same })
}

fn groups(column: WordColumn<'_>, rows: &[usize]) -> Vec<ValueGroup> {
    let mut by_word: HashMap<u32, Vec<usize>> = HashMap::new();
    rows.iter().for_each(|row| by_word.entry(column.ids[*row]).or_default().push(*row));
    let mut groups: Vec<(f64, u32, Vec<usize>)> =
        by_word.into_iter().map(|(id, rows)| (column.value(id), id, rows)).collect();
    groups.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    groups.into_iter().map(|(_, _, rows)| ValueGroup { rows }).collect()
}

fn variance_share(groups: &[ValueGroup], target: WordColumn<'_>, rows: &[usize]) -> f64 {
    let of = |row: usize| target.value(target.ids[row]);
    let mean_of = |rows: &[usize]| rows.iter().map(|row| of(*row)).sum::<f64>() / rows.len() as f64;
    let mean = mean_of(rows);
    let total: f64 = rows.iter().map(|row| (of(*row) - mean).powi(2)).sum();
    let means: Vec<f64> = groups.iter().map(|group| mean_of(&group.rows)).collect();
    let mut missed = 0.0;
    for (at, group) in groups.iter().enumerate() {
        let count = group.rows.len() as f64;
        if group.rows.len() > 1 {
            missed +=
                group.rows.iter().map(|row| ((of(*row) - means[at]) * count / (count - 1.0)).powi(2)).sum::<f64>();
            continue;
        }
        let around: Vec<f64> = [at.checked_sub(1), Some(at + 1)]
            .into_iter()
            .flatten()
            .filter_map(|near| means.get(near))
            .copied()
            .collect();
        let predicted = if around.is_empty() { mean } else { around.iter().sum::<f64>() / around.len() as f64 };
        missed += (of(group.rows[0]) - predicted).powi(2);
    }
    if total > 0.0 { 1.0 - missed / total } else { 0.0 }
}

fn class_share(groups: &[ValueGroup], target: WordColumn<'_>, rows: &[usize]) -> f64 {
    let count = |rows: &[usize]| {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        rows.iter().for_each(|row| *counts.entry(target.ids[*row]).or_default() += 1);
        counts.into_iter().max_by_key(|(class, count)| (*count, u32::MAX - class)).unwrap_or((NO_WORD, 0))
    };
    let most: Vec<(u32, usize)> = groups.iter().map(|group| count(&group.rows)).collect();
    let mut wrong = 0;
    for (at, group) in groups.iter().enumerate() {
        if group.rows.len() > 1 {
            wrong += group.rows.len() - most[at].1;
        } else {
            let before = at.checked_sub(1).and_then(|near| most.get(near)).map(|(class, _)| *class);
            wrong += usize::from(before != Some(target.ids[group.rows[0]]));
        }
    }
    let base = rows.len() - count(rows).1;
    if base > 0 { 1.0 - wrong as f64 / base as f64 } else { 0.0 }
}

fn correlation(column: WordColumn<'_>, target: WordColumn<'_>, rows: &[usize]) -> f64 {
    let pairs: Vec<(f64, f64)> = rows
        .iter()
        .map(|row| (column.value(column.ids[*row]), target.value(target.ids[*row])))
        .filter(|(value, _)| value.is_finite())
        .collect();
    let count = pairs.len().max(1) as f64;
    let mean_x = pairs.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = pairs.iter().map(|(_, y)| y).sum::<f64>() / count;
    let sum = |of: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|(x, y)| of(x - mean_x, y - mean_y)).sum::<f64>();
    let spread = (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt();
    if spread > 0.0 && pairs.len() >= ROWS_MIN { sum(&|x, y| x * y) / spread } else { 0.0 }
}
