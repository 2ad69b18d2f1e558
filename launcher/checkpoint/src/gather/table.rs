//! Predictions as record batches: the columns of a Parquet file and of a stream, which are listed in `Format::Parquet`.

use super::layout::{Layout, Rows};
use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use enn_common::staged::StagedMeta;
use rayon::prelude::*;
use std::{collections::HashMap, sync::Arc};

const LABEL: &str = "label";
const FAILED: &str = "failed";

#[derive(Debug)]
pub(super) struct Table {
    schema: SchemaRef,
    layout: Layout,
    /// The index in a row's numbers of each column of numbers.
    places: Vec<usize>,
    named: bool,
}

impl Table {
    /// Makes the columns; units, shape and levels go into the metadata of the schema. With `named` rows have names.
    pub(super) fn new(meta: &StagedMeta, layout: Layout, named: bool) -> Self {
        let mut fields = vec![Field::new("row_id", DataType::Int64, false)];
        if named {
            fields.push(Field::new("row_name", DataType::Utf8, false));
        }
        let point = layout.point() * layout.columns.len();
        let points = layout.columns.iter().enumerate().map(|(cell, name)| (name.clone(), point + cell));
        let (columns, places): (Vec<String>, Vec<usize>) = points.chain(layout.quantiles()).unzip();
        fields.extend(columns.iter().map(|column| Field::new(column, DataType::Float32, true)));
        if layout.classes {
            fields.push(Field::new(LABEL, DataType::Utf8, true));
        }
        fields.push(Field::new(FAILED, DataType::Utf8, true));
        let about = [
            ("units".to_owned(), meta.units.clone()),
            ("out_shape".to_owned(), format!("{:?}", meta.out_shape)),
            ("levels".to_owned(), format!("{:?}", layout.levels)),
        ];
        let schema = Arc::new(Schema::new_with_metadata(fields, HashMap::from(about)));
        Self { schema, layout, places, named }
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = &str> {
        let first = 1 + usize::from(self.named);
        self.schema.fields()[first..first + self.places.len()].iter().map(|field| field.name().as_str())
    }

    /// Returns the layout of a row, and the index of each column of numbers.
    pub(super) fn layout(&self) -> (&Layout, &[usize]) {
        (&self.layout, &self.places)
    }

    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        let fields = self.schema.fields().iter().filter(|field| *field.data_type() == DataType::Utf8);
        fields.map(|field| field.name().as_str())
    }

    pub(super) fn numbers(&self) -> usize {
        self.places.len()
    }

    pub(super) fn batch(&self, rows: &Rows<'_>) -> Result<RecordBatch, ArrowError> {
        let mut arrays: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(rows.ids.to_vec()))];
        if self.named {
            arrays.push(Arc::new(StringArray::from_iter_values(rows.names)));
        }
        let numbers = self.layout.numbers().max(1);
        let column = |place: &usize| -> ArrayRef {
            let values: Vec<f32> = rows.values.iter().skip(*place).step_by(numbers).copied().collect();
            if values.iter().all(|value| value.is_finite()) {
                return Arc::new(Float32Array::from(values));
            }
            Arc::new(Float32Array::from_iter(values.into_iter().map(|value| value.is_finite().then_some(value))))
        };
        arrays.par_extend(self.places.par_iter().map(column));
        if self.layout.classes {
            let labels = self.layout.labels(rows).into_iter();
            let name = |label: Option<usize>| self.layout.columns.get(label?);
            arrays.push(Arc::new(StringArray::from_iter(labels.map(name))));
        }
        arrays.push(Arc::new(StringArray::from_iter(self.layout.failed(rows))));
        RecordBatch::try_new(Arc::clone(&self.schema), arrays)
    }
}
