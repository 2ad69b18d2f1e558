//! What meta.json says of a staged directory.

use super::words::Form;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Contents of meta.json. Written last, atomically.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StagedMeta {
    /// Version of this file; 1.
    pub version: u32,
    /// blake3 of the sources' digests and the data configuration, hex: the directory's name.
    pub digest: String,
    pub rows: u64,
    /// Input columns F, in order.
    pub features: Vec<FeatureMeta>,
    /// Shape of one target, e.g. [3, 24]; product O.
    pub out_shape: Vec<usize>,
    /// Names along each output axis (entities, hours), for people; same lengths as `out_shape`.
    pub out_labels: Vec<Vec<String>>,
    /// Unit of the target, empty when unknown.
    pub units: String,
    /// For every output cell the input column that holds its persistence forecast (same hour yesterday); `None` where there is none.
    pub persistence: Option<Vec<u32>>,
    /// Whether targets were in the source (prediction data may lack them).
    pub has_targets: bool,
    /// Whether the output cells are the classes of one categorical target: 1 in the cell of a sample's class, 0 elsewhere. The
    /// names of the only output axis are the classes.
    #[serde(default)]
    pub has_classes: bool,
    /// Kind of the classes, by all cells of the target; absent in what was staged before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_form: Option<Form>,
    #[serde(default)]
    pub has_weights: bool,
    /// Samples per split: train, val, test.
    pub split_rows: [u64; 3],
    /// The sources of the samples, one below the other; empty when there is only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceMeta>,
    /// Human name of each sample (a date, a row id); empty when the row id is the name. Length N when present and N ≤ 100 000.
    pub row_names: Vec<String>,
    /// Statistics of the F inputs over valid training cells; categories and labels have mean 0, std 1.
    pub x_stats: Vec<Stats>,
    /// Statistics of the O target cells over valid training cells.
    pub y_stats: Vec<Stats>,
    pub report: CleaningReport,
}

/// Spreads of target cells that are further apart are of different units.
const UNITS_MAX: f64 = 100.0;

impl StagedMeta {
    /// Factors by which errors of the target cells are multiplied before they are added up: `None` where they have one unit and are added up as they
    /// are. They have not where the widest spread is more than `UNITS_MAX` times the narrowest, as the one cell would decide alone:
    /// then they are counted in the cells' standard deviations, and cells that do not vary have no say.
    pub fn scales(&self) -> Option<Vec<f64>> {
        scales(&self.y_stats)
    }
}

fn scales(targets: &[Stats]) -> Option<Vec<f64>> {
    let varying = targets.iter().map(|stats| stats.std).filter(|std| *std > 0.0);
    let (low, high) = varying.fold((f64::INFINITY, 0.0f64), |(low, high), std| (low.min(std), high.max(std)));
    let scale = |stats: &Stats| if stats.std > 0.0 { 1.0 / stats.std } else { 0.0 };
    (high > UNITS_MAX * low).then(|| targets.iter().map(scale).collect())
}

/// Samples of one source, which follow those of the source before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceMeta {
    /// Name, unique in the set.
    pub name: String,
    /// Samples per split: train, val, test.
    pub split_rows: [u64; 3],
}

impl SourceMeta {
    /// Sources of so many samples each, counted in `split`, the codes of all samples.
    pub fn count(sources: impl IntoIterator<Item = (String, u64)>, split: &[u8]) -> Vec<Self> {
        let mut rest = split;
        let mut one = |(name, rows): (String, u64)| {
            let (own, behind) = rest.split_at((rows as usize).min(rest.len()));
            rest = behind;
            let of = |code: u8| own.iter().filter(|other| **other == code).count() as u64;
            Self { name, split_rows: [of(0), of(1), of(2)] }
        };
        sources.into_iter().map(&mut one).collect()
    }

    pub fn rows(&self) -> u64 {
        self.split_rows.iter().sum()
    }
}

/// One input column of the staged x.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FeatureMeta {
    /// Name, unique in the set, e.g. "temp[JFK,-1d,07h]" or "day_of_year.sin".
    pub name: String,
    /// Source column that it is made of; empty where that has its name, and for labels, which say it themselves.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Unit of a number, empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub units: String,
    /// Categories in index order for a category column; empty for a number.
    pub categories: Vec<String>,
    /// Whether any training row lacks it: the model then gets a missing flag. Of the labels of one source column the first says it.
    pub has_missing: bool,
    /// Whether the model reads the categories as a column for each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_hot: bool,
    /// Range of categories that are declared integers; `None` for those that were found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexMeta>,
    /// Meaning of a column of 0 and 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelMeta>,
    /// Kind of the words of the source column, by all cells; absent where there are none, and in what was staged before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Form>,
}

impl FeatureMeta {
    /// The source column that it is made of.
    pub fn source(&self) -> &str {
        match &self.label {
            Some(label) => &label.column,
            None if self.source.is_empty() => &self.name,
            None => &self.source,
        }
    }

    /// Whether it is standardised: it is no category and no label.
    pub fn is_measured(&self) -> bool {
        self.categories.is_empty() && self.label.is_none()
    }
}

/// A category column whose categories are the integers from `offset` on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexMeta {
    /// The integer of category 0.
    pub offset: i64,
    /// Categories that no training row has, ascending.
    pub unseen: Vec<u32>,
}

/// 1 where a cell has the label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelMeta {
    pub column: String,
    pub name: String,
}

impl LabelMeta {
    /// Whether two inputs are labels of one source column: the first has the flag that they are missing.
    pub fn share_column(own: Option<&Self>, other: Option<&Self>) -> bool {
        own.zip(other).is_some_and(|(own, other)| own.column == other.column)
    }
}

/// Running moments of one column (Welford, merged by Chan's formula), f64.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    pub n: u64,
    pub mean: f64,
    /// Population standard deviation (0 for a constant column: the model's scaler then uses 1).
    pub std: f64,
    pub min: f64,
    pub max: f64,
}

/// Counts of everything cleaning did, per source column and in total. Nothing is repaired silently.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CleaningReport {
    pub rows_read: u64,
    /// Samples made of them.
    pub samples: u64,
    /// Rows that repeated a key, and the policy applied.
    pub duplicates: u64,
    /// Rows with more or fewer fields than the header, with the first such line.
    pub wrong_width: u64,
    /// First line with a wrong width, 1-based.
    pub wrong_width_line: Option<u64>,
    /// Samples dropped because too little of the target is valid.
    pub dropped_samples: u64,
    /// Samples whose names are not kept, for there are more than so many.
    #[serde(default)]
    pub nameless: u64,
    /// Windows whose (entity, step) cells were absent from the table, in cells.
    pub absent_cells: u64,
    pub columns: BTreeMap<String, ColumnReport>,
    /// Sentences for people: constant columns, all-missing inputs left out, and so on.
    pub notes: Vec<String>,
    /// Sentences that people must not miss: many rows were left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ColumnReport {
    /// Cells that hold a missing token.
    pub missing: u64,
    /// Cells that hold inf or nan as a number.
    pub non_finite: u64,
    pub out_of_range: u64,
    /// Integers beyond the rows of their index, which count as the nearest.
    #[serde(default)]
    pub clamped: u64,
    /// Staged cells that are not believed: a million times as far from the median as most.
    #[serde(default)]
    pub implausible: u64,
    /// Cells with a category not seen in training; labels not seen there.
    pub unseen_category: u64,
    /// Cells with a category, or labels in all cells; 0 in what was staged before they were counted.
    #[serde(default)]
    pub words: u64,
    /// Some of the categories that the model does not know.
    #[serde(default)]
    pub strangers: Vec<String>,
    /// Whether all valid training cells are equal.
    pub constant: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_are_far_apart_are_not_added_up() {
        let of = |spreads: &[f64]| {
            let stats = spreads.iter().map(|std| Stats { n: 5, mean: 1.0, std: *std, min: 0.0, max: 2.0 });
            scales(&stats.collect::<Vec<_>>())
        };
        assert_eq!((of(&[]), of(&[0.0]), of(&[1e6, 0.0, 2e4])), (None, None, None));
        assert_eq!(of(&[4.0, 0.0, 1024.0]), Some(vec![0.25, 0.0, 1.0 / 1024.0]));
    }
}
