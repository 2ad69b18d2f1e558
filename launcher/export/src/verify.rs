//! Comparison of an artifact's answers with the model's: the same rows in calls of several sizes, each difference measured in spreads of
//! the targets.

use crate::{Batch, ExportError, Runner, Tensor};
use enn_common::graph::{Graph, numel};
use std::{collections::BTreeSet, path::Path};

/// Rows of the calls that are tried for every range that has them, besides its ends, the tuned size, and all rows.
const CALLS: [u64; 3] = [1, 2, 7];
/// Limit on the elements of the widest tensor in a call, unless the smallest call has more.
const NUMBERS_MAX: u64 = 64 << 20;
/// Limit on the calls of each size.
const CALLS_EACH: usize = 8;
/// Relative error that a runtime may always have: some units in the last place.
const ROUNDING: f64 = 4.0 * f32::EPSILON as f64;

/// Rows, and the model's own answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Cases {
    /// Inputs, rows first.
    pub given: Vec<Tensor>,
    /// Outputs, rows first.
    pub answered: Vec<Tensor>,
    /// Mean of the targets, in the output's shape.
    pub centre: Vec<f32>,
    /// Spread of the targets.
    pub spread: Vec<f32>,
    /// Source of the rows: "test", "val", "train" or "drawn".
    pub from: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Deviation {
    /// Rows of each size of call.
    pub batches: Vec<usize>,
    pub rows: usize,
    /// Largest difference in spreads.
    pub largest: f64,
    /// Mean difference in spreads.
    pub mean: f64,
    /// First answer that differs too much, in words; `None` without one.
    pub wrong: Option<String>,
}

impl Cases {
    pub fn rows(&self) -> usize {
        self.given.first().map_or(0, |tensor| tensor.shape[0])
    }

    /// Returns the last `rows` of the cases.
    pub fn some(&self, rows: usize) -> Self {
        let part = self.rows().saturating_sub(rows)..self.rows();
        let cut = |tensors: &[Tensor]| tensors.iter().map(|tensor| cut(tensor, &part)).collect();
        Self { given: cut(&self.given), answered: cut(&self.answered), ..self.clone() }
    }

    /// Returns centre and spread of element `i` of an answer.
    fn unit(&self, answer: &Tensor, i: usize) -> (f64, f64) {
        let is_whole = answer.values.len().is_multiple_of(self.spread.len().max(1));
        let is_target = is_whole && !answer.name.starts_with("next_");
        if !is_target || self.spread.is_empty() {
            return (0.0, 1.0);
        }
        let cell = i % self.spread.len();
        (f64::from(self.centre[cell]), f64::from(self.spread[cell]))
    }
}

/// Returns some rows of a tensor; the first row follows the last.
fn cut(tensor: &Tensor, rows: &std::ops::Range<usize>) -> Tensor {
    let width: usize = tensor.shape[1..].iter().product();
    let mut shape = tensor.shape.clone();
    let all = shape[0].max(1);
    shape[0] = rows.len();
    let values = rows.clone().flat_map(|row| &tensor.values[row % all * width..(row % all + 1) * width]);
    Tensor { name: tensor.name.clone(), shape, values: values.copied().collect() }
}

/// Runs all cases in calls of several sizes.
///
/// # Errors
/// Any error of the runtime; outputs of other names or shapes than the model's.
pub fn verify(
    runner: &mut dyn Runner,
    cases: &Cases,
    sizes: &[usize],
    artifact: &Path,
    tolerance: f64,
) -> Result<Deviation, ExportError> {
    let rows = cases.rows();
    let refused = |why: String| ExportError::refused("the check", artifact, why);
    let mut found = Deviation { batches: sizes.to_vec(), rows, largest: 0.0, mean: 0.0, wrong: None };
    let mut sum = 0.0;
    let mut count = 0_u64;
    for size in sizes.iter().copied() {
        // The rows with invalid inputs are the last ones.
        let calls = (0..rows.div_ceil(size)).rev().take(CALLS_EACH);
        for call in calls {
            let part = (call * size)..((call + 1) * size);
            let given: Vec<Tensor> = cases.given.iter().map(|tensor| cut(tensor, &part)).collect();
            let outputs = runner.run(&given)?;
            for expected in &cases.answered {
                let expected = cut(expected, &part);
                let output = outputs.iter().find(|output| output.name == expected.name);
                let output = output.ok_or_else(|| refused(format!("it does not answer {}", expected.name)))?;
                if output.shape != expected.shape {
                    let why = format!("{} is {:?}, expected {:?}", output.name, output.shape, expected.shape);
                    return Err(refused(why));
                }
                for (i, (a, b)) in output.values.iter().zip(&expected.values).enumerate() {
                    let (centre, spread) = cases.unit(&expected, i);
                    let (off, within) = distance(*a, *b, centre, spread, tolerance);
                    sum += off.min(f64::from(f32::MAX));
                    count += 1;
                    found.largest = found.largest.max(off);
                    if !within && found.wrong.is_none() {
                        let row = (part.start + i / (expected.values.len() / part.len()).max(1)) % rows;
                        let name = &output.name;
                        let difference = format!("{name} of row {row} in a call of {size} is {a}, the model says {b}");
                        found.wrong = Some(difference);
                    }
                }
            }
        }
    }
    found.mean = sum / count.max(1) as f64;
    Ok(found)
}

/// Returns the rows of the calls for an artifact of `graph` with a range of batches, ascending: the smallest, the tuned, the largest
/// size, and some between, none so large that the check itself would need much memory.
pub fn sizes(graph: &Graph, batch: Batch, rows: usize) -> Vec<usize> {
    let widest = graph.nodes().iter().map(|node| numel(&graph.value(node.out).shape)).max().unwrap_or(1);
    let most = batch.max.min(NUMBERS_MAX / widest.max(1)).max(batch.min);
    let sizes = CALLS.into_iter().chain([batch.min, batch.opt.min(most), rows as u64, most]);
    let sizes: BTreeSet<u64> = sizes.filter(|size| (batch.min..=most).contains(size)).collect();
    sizes.into_iter().map(|size| size as usize).collect()
}

/// Returns the distance of `a` from `b` in spreads, or in multiples of `b`'s own distance from the centre where `b` is far outside; and
/// whether it is within the tolerance, or within the rounding error of an answer of this size.
fn distance(a: f32, b: f32, centre: f64, spread: f64, tolerance: f64) -> (f64, bool) {
    let a = f64::from(a);
    let b = f64::from(b);
    if a.is_nan() && b.is_nan() || a == b {
        return (0.0, true);
    }
    if !a.is_finite() || !b.is_finite() {
        return (f64::INFINITY, false);
    }
    let off = (a - b).abs();
    let unit = spread + (b - centre).abs();
    (off / unit, off <= tolerance * unit + ROUNDING * b.abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::graph::{Binary, DType, Dim, Op};

    /// Twice what it is given, and wrong for one row, or in calls of one size.
    struct Double {
        wrong_row: Option<f32>,
        wrong_size: usize,
    }

    impl Runner for Double {
        fn version(&self) -> String {
            "double 1".to_owned()
        }

        fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
            let off = if inputs[0].shape[0] == self.wrong_size { 1.0 } else { 0.0 };
            let one = |v: &f32| 2.0 * v + off + if self.wrong_row == Some(*v) { 0.5 } else { 0.0 };
            let values = inputs[0].values.iter().map(one).collect();
            Ok(vec![Tensor { name: "y".to_owned(), shape: inputs[0].shape.clone(), values }])
        }
    }

    fn cases() -> Cases {
        let tensor = |name: &str, by: f32| Tensor {
            name: name.to_owned(),
            shape: vec![20, 1],
            values: (0..20).map(|i| if i == 19 { f32::NAN } else { by * i as f32 }).collect(),
        };
        Cases {
            given: vec![tensor("x", 1.0)],
            answered: vec![tensor("y", 2.0)],
            centre: vec![20.0],
            spread: vec![10.0],
            from: "drawn".to_owned(),
        }
    }

    #[test]
    fn a_right_artifact_passes_and_each_wrong_one_is_seen() {
        let check = |wrong_row, wrong_size| {
            let sizes = sizes(&graph(), Batch { min: 1, opt: 64, max: 100 }, 20);
            verify(&mut Double { wrong_row, wrong_size }, &cases(), &sizes, Path::new("m.onnx"), 1e-4).unwrap()
        };
        let right = check(None, 0);
        assert_eq!((right.largest, right.mean, right.rows), (0.0, 0.0, 20));
        assert_eq!(right.batches, [1, 2, 7, 20, 64, 100]);
        // Row 17 says 34: 14 from the centre, and 0.5 of 24 off.
        let wrong = check(Some(17.0), 0);
        assert!((wrong.largest - 0.5 / 24.0).abs() < 1e-4, "{wrong:?}");
        assert!(wrong.wrong.unwrap().starts_with("y of row 17 in a call of 1 is 34.5, the model says 34"));
        for size in [1, 2, 7, 20, 64, 100] {
            assert!(check(None, size).wrong.is_some(), "calls of {size}");
        }
    }

    #[test]
    fn calls_are_of_sizes_that_the_artifact_takes() {
        let of = |min, opt, max| sizes(&graph(), Batch { min, opt, max }, 20);
        assert_eq!(of(1, 1, 1), [1]);
        assert_eq!(of(8, 8, 8), [8]);
        assert_eq!(of(1, 4, 16), [1, 2, 4, 7, 16]);
        assert_eq!(of(8, 16, 100), [8, 16, 20, 100]);
        // Twice x has three numbers: the largest calls of a wide model are left to whoever makes them.
        let most = (NUMBERS_MAX / 3) as usize;
        assert_eq!(of(1, 64, u64::MAX), [1, 2, 7, 20, 64, most]);
        assert_eq!(of(u64::from(u32::MAX), u64::MAX, u64::MAX), [u32::MAX as usize]);
        // A call of more rows than there are has them again from the first.
        let mut calls = Calls(Vec::new());
        let found = verify(&mut calls, &cases(), &of(8, 16, 100), Path::new("m"), 1e-4).unwrap();
        assert_eq!((calls.0, found.wrong), (vec![8, 8, 8, 16, 16, 20, 100], None));
    }

    /// Twice x, of three numbers a row.
    fn graph() -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(3)]);
        let y = g.node(Op::Binary(Binary::Add), &[x, x], "a").unwrap();
        g.output(y, "y");
        g
    }

    /// Twice what it is given; the rows of each call.
    struct Calls(Vec<usize>);

    impl Runner for Calls {
        fn version(&self) -> String {
            "calls 1".to_owned()
        }

        fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
            self.0.push(inputs[0].shape[0]);
            Double { wrong_row: None, wrong_size: 0 }.run(inputs)
        }
    }

    #[test]
    fn differences_are_measured_where_the_targets_lie() {
        let off = |a: f32, b: f32, centre: f64, spread: f64| distance(a, b, centre, spread, 1e-4);
        assert_eq!(off(f32::NAN, f32::NAN, 0.0, 1.0), (0.0, true));
        assert_eq!(off(1.0, f32::NAN, 0.0, 1.0), (f64::INFINITY, false));
        // A target of a million with a spread of one: the offset says nothing of how good 3 is.
        assert_eq!(off(1e6 + 3.0, 1e6, 1e6, 1.0), (3.0, false));
        // One unit in the last place is near enough however small the spread is.
        assert!(off(1e6 + 0.0625, 1e6, 1e6, 1e-3).1 && !off(1e6 + 1.0, 1e6, 1e6, 1e-3).1);
    }
}
