//! Statistics over the training samples, computed from the written arrays: exactly what the model sees.
//! The same pass gives categories their final indices.
//!
//! **Invariant:** chunks are merged in row order, so that the statistics do not depend on the number of threads.

use super::{
    error::StageError,
    ordered_pool::{self, PoolSteps},
    output::{self, Output},
};
use enn_common::staged::{LEFT_OUT, Moments, Split, Staged};
use std::ops::Range;

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SampleStats {
    pub split_rows: [u64; 3],
    /// Moments of every input over valid training cells.
    pub x: Vec<Moments>,
    /// Moments of every target over valid training cells.
    pub y: Vec<Moments>,
    /// Minimum and maximum of every input over all valid cells; (∞, −∞) without any.
    pub x_reach: Vec<(f64, f64)>,
    /// Minimum and maximum of every target over all valid cells; (∞, −∞) without any.
    pub y_reach: Vec<(f64, f64)>,
    /// Cells of each category input whose category no training sample has.
    pub unseen: Vec<u64>,
    /// Cells of each category input with a category.
    pub words: Vec<u64>,
}

/// Map from provisional to final indices of a category input.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Codes {
    /// Index of the staged column.
    pub column: usize,
    /// Final index by written index; `None` for the unknown id. An empty map leaves the column unchanged.
    pub map: Vec<Option<u32>>,
    /// The unknown id: the number of categories.
    pub unknown: u32,
    /// Declared categories that no training sample has, ascending.
    pub unseen: Vec<u32>,
}

/// Returns for each of `columns` the category indices in order of first appearance in the training samples.
pub(crate) fn appearance(output: &Output, columns: &[usize], threads: usize) -> Result<Vec<Vec<u32>>, StageError> {
    let mut chunks = output.chunks();
    let state = columns.iter().map(|_| CodeOrder::default()).collect();
    let steps = Appearance { output, columns };
    let orders = ordered_pool::run(threads, || Ok(chunks.next()), &steps, state, &mut |()| {})?;
    Ok(orders.into_iter().map(|order| order.codes).collect())
}

#[derive(Debug, Default)]
struct CodeOrder {
    codes: Vec<u32>,
    seen: Vec<bool>,
}

impl CodeOrder {
    fn add(&mut self, code: u32) {
        let index = code as usize;
        if index >= self.seen.len() {
            self.seen.resize(index + 1, false);
        }
        if !self.seen[index] {
            self.seen[index] = true;
            self.codes.push(code);
        }
    }
}

struct Appearance<'a> {
    output: &'a Output,
    columns: &'a [usize],
}

impl PoolSteps for Appearance<'_> {
    type Item = Range<u64>;
    type Work = Result<Vec<CodeOrder>, StageError>;
    type State = Vec<CodeOrder>;
    type Placed = ();
    type Report = ();

    fn work(&self, rows: Range<u64>) -> Self::Work {
        let split = self.output.read_split(rows.clone())?;
        let x = self.output.read_x(rows)?;
        let mut orders: Vec<CodeOrder> = self.columns.iter().map(|_| CodeOrder::default()).collect();
        for (row, split) in x.chunks_exact(self.output.features).zip(&split) {
            for (column, order) in self.columns.iter().zip(&mut orders) {
                let code = row[*column];
                if *split == Split::Train as u8 && !code.is_nan() {
                    order.add(code as u32);
                }
            }
        }
        Ok(orders)
    }

    fn order(&self, state: &mut Vec<CodeOrder>, work: Self::Work) -> Result<((), ()), StageError> {
        for (order, part) in state.iter_mut().zip(work?) {
            part.codes.into_iter().for_each(|code| order.add(code));
        }
        Ok(((), ()))
    }
}

/// Computes the statistics of all samples and gives categories their final indices.
pub(crate) fn measure(output: &Output, codes: &[Codes], threads: usize) -> Result<SampleStats, StageError> {
    if codes.iter().any(Codes::changes) {
        output.invalidate_resume()?;
    }
    let mut chunks = output.chunks();
    let targets = if output.has_targets() { output.outputs } else { 0 };
    let state = SampleStats {
        x: vec![Moments::default(); output.features],
        y: vec![Moments::default(); targets],
        x_reach: vec![NOTHING; output.features],
        y_reach: vec![NOTHING; targets],
        unseen: vec![0; codes.len()],
        words: vec![0; codes.len()],
        ..SampleStats::default()
    };
    ordered_pool::run(threads, || Ok(chunks.next()), &Measure { output, codes }, state, &mut |()| {})
}

/// Computes the moments of staged data for the division `split`, without reach and category counts.
pub(crate) fn of_staged(staged: &Staged, split: &[u8]) -> SampleStats {
    let features = staged.features();
    let outputs = staged.outputs();
    let mut sum = SampleStats {
        x: vec![Moments::default(); features],
        y: vec![Moments::default(); if staged.meta().has_targets { outputs } else { 0 }],
        ..SampleStats::default()
    };
    for code in split.iter().filter(|code| **code < LEFT_OUT) {
        sum.split_rows[usize::from(*code)] += 1;
    }
    for rows in output::row_chunks(staged.meta().rows, features, outputs) {
        let first = rows.start as usize;
        let end = rows.end as usize;
        let split = &split[first..end];
        let x = moments(&staged.x()[first * features..end * features], features, split);
        sum.x.iter_mut().zip(&x).for_each(|(sum, part)| sum.merge(part));
        if staged.meta().has_targets {
            let y = moments(&staged.y()[first * outputs..end * outputs], outputs, split);
            sum.y.iter_mut().zip(&y).for_each(|(sum, part)| sum.merge(part));
        }
    }
    sum
}

struct Measure<'a> {
    output: &'a Output,
    codes: &'a [Codes],
}

impl PoolSteps for Measure<'_> {
    type Item = Range<u64>;
    type Work = Result<SampleStats, StageError>;
    type State = SampleStats;
    type Placed = ();
    type Report = ();

    fn work(&self, rows: Range<u64>) -> Self::Work {
        let split = self.output.read_split(rows.clone())?;
        let mut x = self.output.read_x(rows.clone())?;
        let (unseen, words) = self.codes.iter().map(|codes| codes.apply(&mut x, self.output.features)).unzip();
        if self.codes.iter().any(Codes::changes) {
            self.output.put_x(rows.start, &x)?;
        }
        let y = self.output.read_y(rows)?;
        let mut split_rows = [0; 3];
        split.iter().for_each(|split| split_rows[usize::from(*split).min(2)] += 1);
        Ok(SampleStats {
            split_rows,
            x: moments(&x, self.output.features, &split),
            y: moments(&y, self.output.outputs, &split),
            x_reach: reach(&x, self.output.features),
            y_reach: reach(&y, self.output.outputs),
            unseen,
            words,
        })
    }

    fn order(&self, state: &mut SampleStats, work: Self::Work) -> Result<((), ()), StageError> {
        let part = work?;
        state.x.iter_mut().zip(&part.x).for_each(|(sum, part)| sum.merge(part));
        state.y.iter_mut().zip(&part.y).for_each(|(sum, part)| sum.merge(part));
        let wider = |(all, part): (&mut (f64, f64), &(f64, f64))| *all = (all.0.min(part.0), all.1.max(part.1));
        state.x_reach.iter_mut().zip(&part.x_reach).for_each(wider);
        state.y_reach.iter_mut().zip(&part.y_reach).for_each(wider);
        state.unseen.iter_mut().zip(part.unseen).for_each(|(sum, part)| *sum += part);
        state.words.iter_mut().zip(part.words).for_each(|(sum, part)| *sum += part);
        state.split_rows.iter_mut().zip(part.split_rows).for_each(|(sum, part)| *sum += part);
        Ok(((), ()))
    }
}

impl Codes {
    fn changes(&self) -> bool {
        (0..).zip(&self.map).any(|(code, index)| *index != Some(code))
    }

    /// Replaces written by final indices; returns the number of cells with an unknown category and with any category.
    fn apply(&self, x: &mut [f32], width: usize) -> (u64, u64) {
        let mut unseen = 0;
        let mut words = 0;
        for code in x.iter_mut().skip(self.column).step_by(width).filter(|code| !code.is_nan()) {
            if !self.map.is_empty() {
                let index = self.map.get(*code as usize).copied().flatten();
                *code = index.unwrap_or(self.unknown) as f32;
            }
            let code = *code as u32;
            unseen += u64::from(code == self.unknown || self.unseen.binary_search(&code).is_ok());
            words += 1;
        }
        (unseen, words)
    }
}

/// Computes the moments of each column over the valid cells of training rows.
fn moments(numbers: &[f32], width: usize, split: &[u8]) -> Vec<Moments> {
    let training = || numbers.chunks_exact(width.max(1)).zip(split).filter(|(_, split)| **split == Split::Train as u8);
    let mut sums = ShiftedSums::new(width);
    let mut open = width;
    for (row, _) in training() {
        // Any value of a column will do as its shift; usually the first row has them all.
        for (shift, value) in sums.shift.iter_mut().zip(row).filter(|(shift, value)| shift.is_nan() && !value.is_nan())
        {
            *shift = f64::from(*value);
            open -= 1;
        }
        if open == 0 {
            break;
        }
    }
    training().for_each(|(row, _)| sums.add(row));
    sums.moments()
}

const NOTHING: (f64, f64) = (f64::INFINITY, f64::NEG_INFINITY);

fn reach(numbers: &[f32], width: usize) -> Vec<(f64, f64)> {
    let mut reach = vec![(f32::INFINITY, f32::NEG_INFINITY); width];
    for row in numbers.chunks_exact(width.max(1)) {
        for ((low, high), value) in reach.iter_mut().zip(row) {
            // A comparison with NaN is false: missing cells change nothing.
            *low = if *value < *low { *value } else { *low };
            *high = if *value > *high { *value } else { *high };
        }
    }
    reach.iter().map(|(low, high)| (f64::from(*low), f64::from(*high))).collect()
}

/// Sums over a chunk, shifted by one value per column, in loops that the compiler vectorises.
struct ShiftedSums {
    shift: Vec<f64>,
    n: Vec<u32>,
    sum: Vec<f64>,
    squares: Vec<f64>,
    min: Vec<f32>,
    max: Vec<f32>,
}

impl ShiftedSums {
    fn new(width: usize) -> Self {
        Self {
            shift: vec![f64::NAN; width],
            n: vec![0; width],
            sum: vec![0.0; width],
            squares: vec![0.0; width],
            min: vec![f32::INFINITY; width],
            max: vec![f32::NEG_INFINITY; width],
        }
    }

    fn add(&mut self, row: &[f32]) {
        let sums = self.sum.iter_mut().zip(&mut self.squares).zip(&mut self.n);
        for (((sum, squares), n), (value, shift)) in sums.zip(row.iter().zip(&self.shift)) {
            let delta = if value.is_nan() { 0.0 } else { f64::from(*value) - shift };
            *sum += delta;
            *squares += delta * delta;
            *n += u32::from(!value.is_nan());
        }
        for ((min, max), value) in self.min.iter_mut().zip(&mut self.max).zip(row) {
            // A comparison with NaN is false: missing cells change nothing.
            *min = if *value < *min { *value } else { *min };
            *max = if *value > *max { *value } else { *max };
        }
    }

    fn moments(&self) -> Vec<Moments> {
        (0..self.n.len())
            .map(|c| {
                let range = (f64::from(self.min[c]), f64::from(self.max[c]));
                Moments::of_shifted_sums(u64::from(self.n[c]), self.shift[c], self.sum[c], self.squares[c], range)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_training_cells_count() {
        let nan = f32::NAN;
        let x = [nan, 1.0, 2.0, nan, 4.0, 3.0, 100.0, 100.0];
        let stats = moments(&x, 2, &[0, 0, 0, 2]);
        let a = stats[0].stats();
        let b = stats[1].stats();
        assert_eq!((a.n, a.mean, a.std, a.min, a.max), (2, 3.0, 1.0, 2.0, 4.0));
        assert_eq!((b.n, b.mean, b.std, b.min, b.max), (2, 2.0, 1.0, 1.0, 3.0));
        assert_eq!(moments(&x, 2, &[1; 4])[0].stats().n, 0);
    }

    #[test]
    fn codes_are_translated_and_strangers_counted() {
        let codes = Codes { column: 1, map: vec![Some(1), None, Some(0)], unknown: 2, unseen: Vec::new() };
        let mut x = [9.0, 0.0, 9.0, 1.0, 9.0, 2.0, 9.0, f32::NAN];
        assert_eq!(codes.apply(&mut x, 2), (1, 3));
        assert_eq!(x[..6], [9.0, 1.0, 9.0, 2.0, 9.0, 0.0]);
    }
}
