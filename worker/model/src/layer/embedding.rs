//! Maps standardised columns to the feature vector that the model reads.

use enn_common::staged::meta::FeatureMeta;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::{Group, Init, ParamBuilder, ParamId},
};
use tch::{Device, Kind, Tensor as Raw};

/// Largest width of a category's vector. Tables of at most as many categories begin as one-hot vectors; larger tables
/// begin random.
pub const WIDTH_MAX: usize = 32;
/// Added before truncation to round to the nearest whole number: TensorFlow divides by 1 with a factor of 0.99999994,
/// so that 14 arrives as 13.999999.
const ROUNDING: f64 = 0.5;

/// (B, F) → (B, F'): numbers, then missing flags, then one vector per category column.
///
/// - A number passes through standardised; missing becomes 0 (its mean).
/// - A column whose training rows lack values adds a flag, 1 where it is missing.
/// - A label is a number that staging leaves at 0 and 1; of those of one source column the first has the flag.
/// - A category column of C categories is looked up in a table (C + 1, W) whose last row is the unknown id; W = min(C, 32). A
///   declared category without a training row begins as the unknown one.
/// - One that is read as one-hot is looked up in the identity, of width C, with zeros for the unknown id; nothing is learnt of it.
#[derive(Debug)]
pub struct Embedding {
    /// Columns of x that pass through (i64).
    numbers: Raw,
    /// Columns of x that get a missing flag (i64).
    flags: Raw,
    categories: Vec<CategoryTable>,
    width: i64,
    columns: i64,
}

#[derive(Debug)]
struct CategoryTable {
    column: i64,
    /// Number of known categories, which is also the row of the unknown id.
    count: i64,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    Learnt(ParamId),
    /// One-hot rows, not trained.
    Fixed(Raw),
}

impl Embedding {
    /// Creates tables for the columns in `features`.
    pub fn new(pb: &mut ParamBuilder, name: &str, features: &[FeatureMeta]) -> Self {
        let columns = |keep: fn(&FeatureMeta) -> bool| -> Vec<i64> {
            (0_i64..).zip(features).filter(|(_, f)| keep(f)).map(|(i, _)| i).collect()
        };
        let numbers = columns(|f| f.categories.is_empty());
        let flags = columns(|f| f.has_missing && f.categories.is_empty());
        let mut width = (numbers.len() + flags.len()) as i64;
        let categories = pb.scoped(name, |pb| {
            let mut tables = Vec::new();
            for column in columns(|f| !f.categories.is_empty()) {
                let feature = &features[column as usize];
                let count = feature.categories.len();
                let w = width_of(feature);
                width += w as i64;
                let size = [count as i64 + 1, w as i64];
                let rows = if feature.one_hot {
                    Rows::Fixed(Raw::eye_m(size[0], size[1], (Kind::Float, Device::Cpu)))
                } else {
                    let unseen = feature.index.as_ref().map_or(&[][..], |index| &index.unseen);
                    let start = table_start(count, w, unseen);
                    Rows::Learnt(
                        pb.scoped(&format!("category_{column}"), |pb| pb.param("weight", &size, start, Group::NoDecay)),
                    )
                };
                tables.push(CategoryTable { column, count: count as i64, rows });
            }
            tables
        });
        let columns = features.len() as i64;
        Self { numbers: Raw::from_slice(&numbers), flags: Raw::from_slice(&flags), categories, width, columns }
    }

    /// Returns F', the width of the feature vector.
    pub fn width(&self) -> i64 {
        self.width
    }

    /// Returns F, the number of input columns.
    pub fn columns(&self) -> i64 {
        self.columns
    }

    /// Moves the column lists to `device`.
    pub fn to_device(&mut self, device: Device) {
        self.numbers = self.numbers.to_device(device);
        self.flags = self.flags.to_device(device);
        for category in &mut self.categories {
            if let Rows::Fixed(rows) = &mut category.rows {
                *rows = rows.to_device(device);
            }
        }
    }

    /// Maps standardised `x` (B, F) with `valid` (B, F) bool to features (B, F').
    ///
    /// A category column holds its index, which standardising leaves as it is (mean 0, std 1).
    pub fn forward(&self, cx: &Cx, x: &Tensor, valid: &Tensor) -> Result<Tensor, OpError> {
        let mut parts = Vec::with_capacity(2 + self.categories.len());
        if self.numbers.numel() > 0 {
            let filled = functional::zero_where_not(cx, x, valid)?;
            parts.push(functional::index_select(cx, &filled, 1, &cx.constant(self.numbers.shallow_clone()))?);
        }
        if self.flags.numel() > 0 {
            let missing = functional::not(cx, valid)?;
            let missing = functional::index_select(cx, &missing, 1, &cx.constant(self.flags.shallow_clone()))?;
            parts.push(functional::cast(cx, &missing, x.kind())?);
        }
        for category in &self.categories {
            let ids = category.ids(cx, x, valid)?;
            parts.push(match &category.rows {
                Rows::Learnt(table) => functional::embedding(cx, &cx.param(*table), &ids)?,
                Rows::Fixed(rows) => functional::index_select(cx, &cx.constant(rows.shallow_clone()), 0, &ids)?,
            });
        }
        if parts.len() == 1 {
            return Ok(parts.remove(0));
        }
        functional::cat(cx, &parts.iter().collect::<Vec<_>>(), 1)
    }
}

impl CategoryTable {
    /// Returns the table row of each sample (B) i64; missing, negative or unseen categories give the unknown id.
    fn ids(&self, cx: &Cx, x: &Tensor, valid: &Tensor) -> Result<Tensor, OpError> {
        let (number, known) = category(cx, x, valid, self.column, self.count)?;
        row_of(cx, &number, &known, self.count)
    }
}

/// Returns the number in a category column of `x` (B, F) for each sample (B), and a mask (B) bool of the numbers that
/// are one of its `count` categories: neither missing nor negative nor unseen.
pub(super) fn category(
    cx: &Cx,
    x: &Tensor,
    valid: &Tensor,
    column: i64,
    count: i64,
) -> Result<(Tensor, Tensor), OpError> {
    let narrow = |t: &Tensor| functional::squeeze(cx, &functional::narrow(cx, t, 1, column, 1)?, 1);
    let number = narrow(x)?;
    let valid = narrow(valid)?;
    let reaches = functional::at_least(cx, &number, -ROUNDING)?;
    let inside = functional::and(cx, &reaches, &functional::below(cx, &number, count as f64 - ROUNDING)?)?;
    Ok((number, functional::and(cx, &inside, &valid)?))
}

/// Converts `number` (B) to a table row, i64; `unknown` where it is not `known`.
pub(super) fn row_of(cx: &Cx, number: &Tensor, known: &Tensor, unknown: i64) -> Result<Tensor, OpError> {
    // The first sum is zero where the category is unknown; the second adds the unknown id there.
    let kept = functional::zero_where_not(cx, number, known)?;
    let missing = functional::cast(cx, &functional::not(cx, known)?, number.kind())?;
    let id = functional::add(cx, &kept, &functional::scale(cx, &missing, unknown as f64)?)?;
    // The cast truncates the fraction.
    functional::cast(cx, &functional::add_scalar(cx, &id, ROUNDING)?, Kind::Int64)
}

/// Returns the width of the vector that represents a category of this input.
pub fn width_of(input: &FeatureMeta) -> usize {
    let count = input.categories.len();
    if input.one_hot { count } else { count.min(WIDTH_MAX) }
}

/// Returns one-hot rows where the width allows, else small random rows. Among one-hot rows the unknown row and the rows
/// in `unseen` begin at zero.
fn table_start(count: usize, width: usize, unseen: &[u32]) -> Init {
    if count > width {
        return Init::Normal { std: 1.0 / (width as f64).sqrt() };
    }
    let mut rows = vec![0.0_f32; (count + 1) * width];
    for i in (0..count).filter(|i| unseen.binary_search(&(*i as u32)).is_err()) {
        rows[i * width + i] = 1.0;
    }
    Init::Value(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::staged::meta::IndexMeta;

    fn category(one_hot: bool, unseen: Option<Vec<u32>>) -> FeatureMeta {
        let categories = ["a", "b", "c"].map(String::from).to_vec();
        let index = unseen.map(|unseen| IndexMeta { offset: 7, unseen });
        FeatureMeta { name: "c".to_owned(), categories, one_hot, index, ..FeatureMeta::default() }
    }

    #[test]
    fn one_hot_rows_are_not_learnt_and_an_index_without_a_row_begins_as_unknown() {
        let features = [category(true, None), category(false, Some(vec![1])), category(true, Some(vec![1]))];
        let mut pb = ParamBuilder::new();
        let mut embedding = Embedding::new(&mut pb, "embedding", &features);
        embedding.to_device(Device::Cpu);
        let params = pb.build(0, Device::Cpu).unwrap();
        let named: Vec<String> = params.named().map(|(name, _)| name.to_owned()).collect();
        assert_eq!((named, embedding.width()), (vec!["embedding.category_1.weight".to_owned()], 9));
        let cx = Cx::eval(&params);
        // The rows are each known category, an unknown one and a missing one.
        let x = Raw::from_slice(&[0.0_f32, 1.0, 2.0, 3.0, 0.0]).reshape([5, 1]).repeat([1, 3]);
        let valid = Raw::from_slice(&[true, true, true, true, false]).reshape([5, 1]).repeat([1, 3]);
        let found = embedding.forward(&cx, &cx.input(x), &cx.input(valid.shallow_clone())).unwrap();
        let ones = Vec::<i64>::try_from(found.raw().nonzero().reshape([-1])).unwrap();
        // Row 1 is of no training row, so its vector is zero.
        assert_eq!(ones, [0, 0, 0, 3, 0, 6, 1, 1, 1, 7, 2, 2, 2, 5, 2, 8]);
        assert_eq!(found.raw().sum(Kind::Double).double_value(&[]), 8.0);
        let near = |x: &[f32; 5]| {
            let x = Raw::from_slice(x).reshape([5, 1]).repeat([1, 3]);
            embedding.forward(&cx, &cx.input(x), &cx.input(valid.shallow_clone())).unwrap().raw().shallow_clone()
        };
        let whole = near(&[0.0, 1.0, 2.0, 3.0, 0.0]);
        for off in [-1e-6, 1e-6] {
            assert!(near(&[off, 1.0 + off, 2.0 + off, 3.0 + off, off]).equal(&whole), "as runtimes divide");
        }
    }
}
