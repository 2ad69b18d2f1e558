//! Descriptions of input columns and classes during staging.

use super::outlier_limits;
use enn_common::{
    config::data::ColumnRange,
    staged::{StagedMeta, meta::LabelMeta, words::Form},
};
use std::collections::HashMap;

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Classes {
    /// Canonical names by written index; several indices may have the same name.
    pub words: Vec<String>,
    /// Common form of the names; `None` for a model's own classes.
    pub form: Option<Form>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Input {
    pub name: String,
    /// Source column, empty for the calendar.
    pub source: String,
    /// Canonical categories by written index; `None` for a number. Several indices may have the same category until they get their final
    /// indices.
    pub categories: Option<Vec<String>>,
    pub form: Option<Form>,
    /// The integer of category 0, for declared categories, which do not depend on the training samples.
    pub offset: Option<i64>,
    pub one_hot: bool,
    /// Label of an indicator column; an empty name counts the labels that the model does not know.
    pub label: Option<LabelMeta>,
}

/// Returns the labels of a source column that a model knows, in order.
pub fn labels_of(meta: &StagedMeta, column: &str) -> Vec<String> {
    let labels = meta.features.iter().filter_map(|feature| feature.label.as_ref());
    labels.filter(|label| label.column == column).map(|label| label.name.clone()).collect()
}

/// Returns the index of each input among the model's; `None` for other inputs.
pub(crate) fn places_in(training: &StagedMeta, inputs: &[Input]) -> Vec<Option<usize>> {
    let names: HashMap<&str, usize> = training.features.iter().map(|one| one.name.as_str()).zip(0..).collect();
    inputs.iter().map(|input| names.get(input.name.as_str()).copied()).collect()
}

/// Removes the limits of inputs with a declared range, of categories and labels, and of calendar inputs.
pub(crate) fn lift_inputs(inputs: &[Input], ranges: &[ColumnRange], limits: &mut [outlier_limits::Range]) {
    for (input, limit) in inputs.iter().zip(limits) {
        let is_declared = ranges.iter().any(|range| range.column == input.source);
        if input.categories.is_some() || input.label.is_some() || input.source.is_empty() || is_declared {
            *limit = outlier_limits::ANY;
        }
    }
}
