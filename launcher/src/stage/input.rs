//! What is said of an input column and of classes while data are staged.

use super::implausible;
use enn_common::{
    config::data::ColumnRange,
    staged::{StagedMeta, meta::LabelMeta, words::Form},
};

/// Classes of a target that is a category.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Classes {
    /// By the index written, in their form; of several that are the same all are meant.
    pub words: Vec<String>,
    /// What all of them are; `None`: a model's own.
    pub form: Option<Form>,
}

/// One input column.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Input {
    /// Staged name.
    pub name: String,
    /// Source column, empty for the calendar.
    pub source: String,
    /// Categories by the index written, in their form; `None` for a number. Of several that are the same all are meant, until they have
    /// their final indices.
    pub categories: Option<Vec<String>>,
    /// What the words of its source column are.
    pub form: Option<Form>,
    /// The integer of category 0, where categories are declared: they are what they are, whatever training has.
    pub offset: Option<i64>,
    /// Whether the model reads a column for each category.
    pub one_hot: bool,
    /// What a column of 0 and 1 says; a name of nothing counts the labels that the model does not know.
    pub label: Option<LabelMeta>,
}

/// The labels of a source column that a model knows, in order.
pub fn labels_of(meta: &StagedMeta, column: &str) -> Vec<String> {
    let labels = meta.features.iter().filter_map(|feature| feature.label.as_ref());
    labels.filter(|label| label.column == column).map(|label| label.name.clone()).collect()
}

/// Lifts the limits of inputs whose range is declared, that are categories or labels, or that were made by us.
pub(crate) fn lift_inputs(inputs: &[Input], ranges: &[ColumnRange], limits: &mut [implausible::Range]) {
    for (input, limit) in inputs.iter().zip(limits) {
        let is_declared = ranges.iter().any(|range| range.column == input.source);
        if input.categories.is_some() || input.label.is_some() || input.source.is_empty() || is_declared {
            *limit = implausible::ANY;
        }
    }
}
