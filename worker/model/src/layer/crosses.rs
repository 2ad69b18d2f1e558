//! Pairs of categories as one-hot columns: a linear map over them has one value per pair.

use super::embedding::{category, row_of};
use enn_common::staged::meta::FeatureMeta;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};
use std::collections::{BTreeMap, btree_map::Entry};
use tch::{Device, Kind, Tensor as Raw};

/// Maximum number of columns of one pair: the product of its two numbers of categories.
const PAIR_COLUMNS_MAX: usize = 1024;
/// Maximum number of columns of all pairs together; the largest pairs are omitted.
const COLUMNS_MAX: usize = 2048;

/// Maps (B, F) to (B, C): one-hot columns for each pair of category columns of x, the smallest pairs first.
#[derive(Debug)]
pub struct Crosses {
    pairs: Vec<Pair>,
    columns: i64,
}

#[derive(Debug)]
struct Pair {
    /// Column of x and its number of categories.
    first: (i64, i64),
    second: (i64, i64),
    /// One-hot rows (pairs + 1, pairs) f32. The last row is zero, for samples in which either category is unknown.
    rows: Raw,
}

impl Crosses {
    /// Creates the crosses of the category columns in `features`.
    pub fn new(features: &[FeatureMeta]) -> Self {
        let mut columns = 0;
        let pair = |[first, second]: [(usize, usize); 2]| {
            let size = first.1 * second.1;
            columns += size;
            let counted = |(column, count): (usize, usize)| (column as i64, count as i64);
            let eye = Raw::eye(size as i64, (Kind::Float, Device::Cpu));
            let rows = Raw::cat(&[eye, Raw::zeros([1, size as i64], (Kind::Float, Device::Cpu))], 0);
            Pair { first: counted(first), second: counted(second), rows }
        };
        let pairs = Self::pairs(features).into_iter().map(pair).collect();
        Self { pairs, columns: columns as i64 }
    }

    /// Returns the pairs: the column of x and the number of categories of both members.
    pub fn pairs(features: &[FeatureMeta]) -> Vec<[(usize, usize); 2]> {
        let counts = features.iter().map(|f| f.categories.len()).enumerate();
        let known: Vec<(usize, usize)> = counts.filter(|(_, n)| *n > 0).collect();
        let known = &known;
        let pair = |i: usize| known[i + 1..].iter().map(move |&second| [known[i], second]);
        let mut found: Vec<[(usize, usize); 2]> = (0..known.len()).flat_map(pair).collect();
        found.sort_by_key(|[first, second]| (first.1 * second.1, first.0, second.0));
        let mut columns = 0;
        let fits = |[first, second]: &[(usize, usize); 2]| {
            let size = first.1 * second.1;
            columns += size;
            size <= PAIR_COLUMNS_MAX && columns <= COLUMNS_MAX
        };
        found.into_iter().take_while(fits).collect()
    }

    pub fn columns(&self) -> i64 {
        self.columns
    }

    pub fn to_device(&mut self, device: Device) {
        for pair in &mut self.pairs {
            pair.rows = pair.rows.to_device(device);
        }
    }

    /// Maps category numbers in `x` (B, F) with `valid` (B, F) bool to (B, C); returns `None` without pairs.
    pub fn forward(&self, cx: &Cx, x: &Tensor, valid: &Tensor) -> Result<Option<Tensor>, OpError> {
        if self.pairs.is_empty() {
            return Ok(None);
        }
        let mut numbers = BTreeMap::new();
        for (column, count) in self.pairs.iter().flat_map(|pair| [pair.first, pair.second]) {
            if let Entry::Vacant(place) = numbers.entry(column) {
                place.insert(whole(cx, x, valid, column, count)?);
            }
        }
        let each = self.pairs.iter().map(|pair| {
            let rows = cx.constant(pair.rows.shallow_clone());
            functional::index_select(cx, &rows, 0, &pair.ids(cx, &numbers)?)
        });
        let each = each.collect::<Result<Vec<_>, OpError>>()?;
        Ok(Some(match each.as_slice() {
            [only] => only.clone(),
            several => functional::cat(cx, &several.iter().collect::<Vec<_>>(), 1)?,
        }))
    }
}

/// Category numbers of a column, and a mask of the known ones.
type Numbers = (Tensor, Tensor);

/// Returns the category numbers as the embedding reads them: rounded to whole numbers, 0 where unknown. Without
/// rounding, a fraction of the first number of a pair would be multiplied and select another pair.
fn whole(cx: &Cx, x: &Tensor, valid: &Tensor, column: i64, count: i64) -> Result<Numbers, OpError> {
    let (number, known) = category(cx, x, valid, column, count)?;
    let kind = number.kind();
    Ok((functional::cast(cx, &row_of(cx, &number, &known, 0)?, kind)?, known))
}

impl Pair {
    /// Returns the row of each sample (B) i64: first · categories of the second + second; the last row where either is
    /// unknown.
    fn ids(&self, cx: &Cx, numbers: &BTreeMap<i64, Numbers>) -> Result<Tensor, OpError> {
        let (first, first_known) = &numbers[&self.first.0];
        let (second, second_known) = &numbers[&self.second.0];
        let pair = functional::add(cx, &functional::scale(cx, first, self.second.1 as f64)?, second)?;
        let known = functional::and(cx, first_known, second_known)?;
        row_of(cx, &pair, &known, self.first.1 * self.second.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_core::params::ParamBuilder;

    fn column(categories: usize) -> FeatureMeta {
        let categories = (0..categories).map(|i| i.to_string()).collect();
        FeatureMeta { name: "c".to_owned(), categories, ..FeatureMeta::default() }
    }

    #[test]
    fn every_pair_has_its_column_and_an_unknown_one_has_none() {
        let mut crosses = Crosses::new(&[column(3), column(0), column(2), column(4)]);
        // 3 × 2, 2 × 4, 3 × 4.
        assert_eq!(crosses.columns(), 6 + 8 + 12);
        crosses.to_device(Device::Cpu);
        let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
        let cx = Cx::eval(&params);
        let x = Raw::from_slice(&[2.0_f32, 9.0, 1.0, 3.0, 0.0, 9.0, 1.0, 4.0, f32::NAN, 9.0, 0.0, 2.0]).reshape([3, 4]);
        let mut valid = Raw::ones([3, 4], (Kind::Bool, Device::Cpu));
        let _ = valid.get(0).get(2).fill_(0.0);
        let hot =
            crosses.forward(&cx, &cx.input(x.shallow_clone()), &cx.input(valid.shallow_clone())).unwrap().unwrap();
        // Row 0: the second column is missing, so only 3 × 4 is known: 2 · 4 + 3. Row 1: 4 is no category of the last column, so
        // only 3 × 2 is known: 0 · 2 + 1. Row 2: the first is not a number: 2 × 4 is known: 0 · 4 + 2.
        let ones = Vec::<i64>::try_from(hot.raw().nonzero().reshape([-1])).unwrap();
        assert_eq!(ones, [0, 14 + 11, 1, 1, 2, 6 + 2]);
        valid = Raw::zeros([3, 4], (Kind::Bool, Device::Cpu));
        let none = crosses.forward(&cx, &cx.input(x), &cx.input(valid)).unwrap().unwrap();
        assert_eq!(none.raw().abs().max().double_value(&[]), 0.0);
    }

    #[test]
    fn a_number_that_is_not_whole_is_the_nearest_category_in_every_pair() {
        let mut crosses = Crosses::new(&[column(3), column(4), column(5)]);
        crosses.to_device(Device::Cpu);
        let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
        let cx = Cx::eval(&params);
        let hot = |rows: &[[f32; 3]]| {
            let x = Raw::from_slice(rows.as_flattened()).reshape([-1, 3]);
            let valid = x.isnan().logical_not();
            crosses.forward(&cx, &cx.input(x), &cx.input(valid)).unwrap().unwrap().raw().shallow_clone()
        };
        let found = hot(&[[-0.4, 2.9, 1.4], [1.5, 0.3, 3.6], [0.6, 3.4, -0.4], [2.6, 0.0, 1.0], [f32::NAN, -0.4, 4.4]]);
        let expected = hot(&[[0.0, 3.0, 1.0], [2.0, 0.0, 4.0], [1.0, 3.0, 0.0], [9.0, 0.0, 1.0], [f32::NAN, 0.0, 4.0]]);
        assert!(found.equal(&expected), "{found:?}");
        assert_eq!(found.sum(Kind::Double).double_value(&[]), 3.0 * 3.0 + 1.0 + 1.0);
    }

    #[test]
    fn large_pairs_are_left_out() {
        assert_eq!(Crosses::new(&[column(40), column(30)]).columns(), 0);
        assert_eq!(Crosses::new(&[column(32), column(32), column(2)]).columns(), 64 + 64 + 1024);
        assert_eq!(Crosses::new(&[column(0), column(7)]).columns(), 0);
    }
}
