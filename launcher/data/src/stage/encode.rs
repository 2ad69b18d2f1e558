//! Encoding without staging: a batch in memory becomes a model's inputs by the rules of staging.
//!
//! **Invariant:** equal cells give the same numbers as staging for prediction; nothing is written.

use super::{
    column_bounds,
    error::{CellError, StageError},
    input::{lift_inputs, places_in},
    outlier_limits::{Limits, Range, mask_outliers},
    rows::RowsPlan,
    source::{
        Request, arrow,
        block::{ColumnKind, PieceError},
        clean::MissingTokens,
    },
};
use arrow_array::RecordBatch;
use arrow_schema::DataType;
use enn_common::{
    artifact::bounds::Bounds,
    config::data::{DataConfig, Feature, FeatureKind, Layout, Outside, RowsLayout},
    staged::StagedMeta,
};
use std::{collections::HashMap, sync::Arc};

#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("column {column:?} is missing, expected {expected}")]
    Missing { column: String, expected: String },
    #[error("column {column:?} holds {found}, expected numbers, text, times or lists of labels")]
    Type { column: String, found: DataType },
    #[error("row {row}, column {column:?}: {kind}")]
    Cell {
        /// Index of the row, from 0.
        row: u64,
        column: String,
        kind: CellError,
    },
    /// An inconsistent configuration.
    #[error(transparent)]
    Stage(#[from] StageError),
}

/// Encodes rows as a model's inputs, for the layouts `rows` and `arrays`.
#[derive(Debug)]
pub struct Encoder {
    plan: RowsPlan,
    columns: Vec<Feature>,
    limits: Vec<Range>,
    kept: Vec<bool>,
    missing: MissingTokens,
}

impl Encoder {
    /// Creates the encoder of a model; `None` for layouts whose samples are not rows.
    ///
    /// # Errors
    /// The configuration does not fit the model.
    pub fn new(config: &DataConfig, training: &StagedMeta) -> Result<Option<Self>, StageError> {
        let layout = match &config.layout {
            Layout::Rows(layout) => RowsLayout { row_id: None, ..layout.clone() },
            Layout::Arrays(_) => of_arrays(training),
            Layout::Windows(_) => return Ok(None),
        };
        // Cells of an array are missing only where they are NaN, and have no range.
        let is_table = matches!(config.layout, Layout::Rows(_));
        let (missing, ranges) =
            if is_table { (config.missing.clone(), config.ranges.clone()) } else { Default::default() };
        let columns = layout.features.clone();
        let config = DataConfig { layout: Layout::Rows(layout.clone()), missing, ranges, ..config.clone() };
        let plan = RowsPlan::new(&column_bounds::job(&config, training), &layout, &|_| false, &HashMap::new())?;
        let places = places_in(training, &plan.inputs);
        if !places.iter().flatten().copied().eq(0..training.features.len()) {
            return Err(StageError::config(
                "data",
                format!("{} of the model's {} inputs", places.iter().flatten().count(), training.features.len()),
                "the inputs the model was trained with, in their order",
            ));
        }
        if training.x_stats.len() != training.features.len() {
            return Err(StageError::config(
                "data",
                format!("ranges of {} of the model's {} inputs", training.x_stats.len(), training.features.len()),
                "a range of each input: take the file as it was written",
            ));
        }
        let [Limits { x: mut limits, .. }, _] = Limits::of_model(training, &places, false);
        lift_inputs(&plan.inputs, &config.ranges, &mut limits);
        let kept = places.iter().map(Option::is_some).collect();
        Ok(Some(Self { plan, columns, limits, kept, missing: MissingTokens::new(&config.missing) }))
    }

    pub(super) fn input_bounds(&self) -> Vec<Bounds> {
        let of = |(at, limit): (usize, &Range)| {
            let spec = self.plan.source_of(at);
            let index = spec.and_then(|spec| if let ColumnKind::Index(index) = spec.kind { Some(index) } else { None });
            // The input of an index is its row.
            let offset = index.map_or(0.0, |index| index.offset as f64);
            let clamped = index.filter(|index| index.outside == Outside::Clamp);
            let nearest = clamped.map(|index| [0.0, index.rows.saturating_sub(1) as f32]);
            Bounds { nearest, ..column_bounds::bounds(spec, offset, &self.missing, *limit) }
        };
        let kept = self.limits.iter().enumerate().filter(|(at, _)| self.kept[*at]);
        kept.map(of).collect()
    }

    /// Returns the expected columns in the order of the configuration.
    pub fn columns(&self) -> &[Feature] {
        &self.columns
    }

    /// Returns the model's inputs of shape (rows, F), NaN where missing. Columns are found by name; other columns are ignored.
    ///
    /// # Errors
    /// A missing column, or a cell that its column cannot hold.
    pub fn encode(&self, batch: RecordBatch) -> Result<Vec<f32>, EncodeError> {
        let schema = batch.schema();
        let place = |column: &String| schema.index_of(column).map_err(|_| self.missing(column));
        let columns = self.plan.specs.iter().map(|spec| place(&spec.column)).collect::<Result<_, _>>()?;
        let specs = self.plan.specs.clone();
        let request = Request { file: 0, specs, columns, missing: self.missing.clone(), hash_rows: false };
        let block = arrow::decode(batch, Arc::new(request)).map_err(|at| {
            let field = schema.field(at);
            EncodeError::Type { column: field.name().clone(), found: field.data_type().clone() }
        })?;
        let block = block.map_err(|error| match error {
            PieceError::Cell { at, column, kind, .. } => EncodeError::Cell { row: at, column, kind },
            PieceError::Stage(error) => error.into(),
        })?;
        let mut x = self.plan.encoded(&block);
        mask_outliers(&mut x, &self.limits, &mut vec![0; self.limits.len()]);
        if self.kept.contains(&false) {
            x = x
                .into_iter()
                .zip(self.kept.iter().cycle())
                .filter(|(_, kept)| **kept)
                .map(|(value, _)| value)
                .collect();
        }
        Ok(x)
    }

    fn missing(&self, column: &str) -> EncodeError {
        let names: Vec<&str> = self.columns.iter().map(|feature| feature.column.as_str()).collect();
        EncodeError::Missing { column: column.to_owned(), expected: names.join(", ") }
    }
}

fn of_arrays(training: &StagedMeta) -> RowsLayout {
    let number = |name: &String| Feature::new(name.clone(), FeatureKind::Number);
    RowsLayout {
        features: training.features.iter().map(|feature| number(&feature.name)).collect(),
        targets: vec![String::new(); training.out_shape.iter().product()],
        classes: false,
        out_shape: training.out_shape.clone(),
        row_id: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::{StageOptions, stage, tests::Bench};
    use arrow_array::{
        ArrayRef, DictionaryArray, Float32Array, Float64Array, Int32Array, Int64Array, StringArray, types::Int32Type,
    };
    use enn_common::{
        config::data::{ArraysLayout, ColumnRange},
        staged::{Staged, meta::FeatureMeta},
    };

    fn feature(column: &str, kind: FeatureKind) -> Feature {
        Feature::new(column, kind)
    }

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
    }

    /// A trained table with a column that does not stay, and what is staged of other rows.
    fn bench() -> (Bench, StagedMeta, Vec<f32>) {
        let mut text = "a,city,when,blank,b,y\n".to_owned();
        for row in 0..40 {
            text += &format!(
                "{row},c{},2020-01-{:02}T0{}:00:00Z,NA,{}.5,{row}\n",
                row % 3,
                row % 28 + 1,
                row % 10,
                row % 7
            );
        }
        let mut bench = Bench::rows("train.csv", text.as_bytes());
        bench.layout().features = vec![
            feature("a", FeatureKind::Number),
            feature("city", FeatureKind::Category),
            feature("when", FeatureKind::Time),
            feature("blank", FeatureKind::Number),
            feature("b", FeatureKind::Number),
        ];
        bench.config.ranges = vec![ColumnRange { column: "b".into(), low: 0.0, high: 5.0 }];
        let trained = bench.try_stage(1, None).unwrap();
        let path = bench.dir.path().join("new.csv");
        let rows = "a,city,when,blank,b\n1.25,c1,2021-06-01T12:00:00Z,7,5.5\nNA,c9,,,2\n1e30,,1600000000,NA,-1\n";
        std::fs::write(&path, rows).unwrap();
        let config = DataConfig { files: vec![path], ..bench.config.clone() };
        let out = bench.dir.path().join("predicted");
        let options = StageOptions { out, threads: 1, for_prediction: Some(trained.meta.clone()) };
        let staged = stage(&config, &options, &mut |_| {}).unwrap();
        let x = Staged::open(&staged.dir).unwrap().x().to_vec();
        (bench, trained.meta, x)
    }

    #[test]
    fn rows_in_memory_are_encoded_as_staged_ones() {
        let (bench, meta, expected) = bench();
        assert_eq!((meta.features.len(), expected.len() % meta.features.len()), (9, 0), "the blank column is left out");
        let encoder = Encoder::new(&bench.config, &meta).unwrap().unwrap();
        let rows = batch(vec![
            ("b", Arc::new(Float64Array::from(vec![5.5, 2.0, -1.0]))),
            ("when", Arc::new(StringArray::from(vec![Some("2021-06-01T12:00:00Z"), None, Some("1600000000")]))),
            ("unasked", Arc::new(Int32Array::from(vec![1, 2, 3]))),
            ("a", Arc::new(Float64Array::from(vec![Some(1.25), None, Some(1e30)]))),
            ("city", Arc::new(StringArray::from(vec![Some("c1"), Some("c9"), None]))),
            ("blank", Arc::new(Int64Array::from(vec![Some(7), None, None]))),
        ]);
        let bits = |x: &[f32]| x.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&encoder.encode(rows.clone()).unwrap()), bits(&expected));
        // A dictionary without values says that none is known.
        let none: DictionaryArray<Int32Type> = [None::<&str>; 3].into_iter().collect();
        let without = |city: ArrayRef| {
            let mut columns = rows.columns().to_vec();
            let names = ["b", "when", "unasked", "a", "city", "blank"];
            columns[4] = city;
            batch(names.into_iter().zip(columns).collect())
        };
        let nothing: ArrayRef = Arc::new(StringArray::from(vec![None::<&str>; 3]));
        let [found, expected] = [Arc::new(none), nothing].map(|city| encoder.encode(without(city)).unwrap());
        assert_eq!(bits(&found), bits(&expected));
    }

    #[test]
    fn what_cannot_be_encoded_is_named() {
        let (bench, meta, _) = bench();
        let encoder = Encoder::new(&bench.config, &meta).unwrap().unwrap();
        let text = |value: &str| -> ArrayRef { Arc::new(StringArray::from(vec![value])) };
        let error = |a: ArrayRef, name: &str| {
            let mut columns = vec![("a", a), ("when", text("2021-06-01T12:00:00Z")), ("blank", text("NA"))];
            columns.extend([(name, text("1")), ("city", text("c1"))]);
            encoder.encode(batch(columns)).unwrap_err().to_string()
        };
        assert!(error(text("high"), "b").starts_with("row 0, column \"a\": found \"high\", expected a number"));
        assert_eq!(error(text("1"), "c"), "column \"b\" is missing, expected a, city, when, blank, b");
        let list = arrow_array::new_empty_array(&DataType::Binary);
        let found = encoder.encode(batch(vec![
            ("a", list),
            ("b", arrow_array::new_empty_array(&DataType::Utf8)),
            ("when", arrow_array::new_empty_array(&DataType::Utf8)),
            ("blank", arrow_array::new_empty_array(&DataType::Utf8)),
            ("city", arrow_array::new_empty_array(&DataType::Utf8)),
        ]));
        assert!(found.unwrap_err().to_string().contains("holds Binary"));
    }

    #[test]
    fn arrays_have_a_column_for_each_input() {
        let (mut bench, _, _) = bench();
        let path = bench.dir.path().join("x.npz");
        bench.config.files = vec![path];
        let layout = ArraysLayout { x: "x".into(), y: "y".into(), row_id: None };
        bench.config.layout = Layout::Arrays(layout);
        let (_, meta, _) = super::tests::bench();
        let stats = meta.x_stats[0];
        let named = |name: &str| FeatureMeta { name: name.into(), ..FeatureMeta::default() };
        let meta = StagedMeta { features: vec![named("x[0]"), named("x[2]")], x_stats: vec![stats; 2], ..meta };
        let encoder = Encoder::new(&bench.config, &meta).unwrap().unwrap();
        let rows = batch(vec![
            ("x[2]", Arc::new(Float32Array::from(vec![Some(2.0), None]))),
            ("x[0]", Arc::new(Float32Array::from(vec![1.0, f32::INFINITY]))),
        ]);
        let x = encoder.encode(rows).unwrap();
        assert_eq!(x[..2], [1.0, 2.0]);
        assert!(x[2].is_nan() && x[3].is_nan(), "{x:?}");
    }
}
