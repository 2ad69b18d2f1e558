//! Meaning of each column of the feature vector and of the crosses, and the matching column of a pretrained model, by
//! the names of inputs and categories. These functions are pure.

use crate::layer::{
    Crosses,
    embedding::{WIDTH_MAX, width_of},
};
use enn_common::staged::{
    meta::{FeatureMeta, LabelMeta},
    words::Places,
};
use std::collections::HashMap;

/// Meaning of a column; inputs and categories are numbers in their lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Column {
    Number(usize),
    /// 1 where the number is missing.
    Flag(usize),
    /// One dimension of the vector that represents a category.
    Dimension(usize, usize),
    /// 1 where both inputs have these categories.
    Cross([usize; 2], [usize; 2]),
}

/// Returns the columns of the feature vector, in the order of [`crate::layer::Embedding`], followed by the crosses.
pub(super) fn columns(inputs: &[FeatureMeta]) -> Vec<Column> {
    let each = |keep: fn(&FeatureMeta) -> bool| {
        inputs.iter().enumerate().filter(move |(_, input)| keep(input)).map(|(i, _)| i)
    };
    let numbers = each(|input| input.categories.is_empty()).map(Column::Number);
    let flags = each(|input| input.has_missing && input.categories.is_empty()).map(Column::Flag);
    let categories = each(|input| !input.categories.is_empty());
    let dimensions = categories.flat_map(|i| (0..width_of(&inputs[i])).map(move |d| Column::Dimension(i, d)));
    let pairs = Crosses::pairs(inputs).into_iter().flat_map(|[one, other]| {
        (0..one.1).flat_map(move |a| (0..other.1).map(move |b| Column::Cross([one.0, other.0], [a, b])))
    });
    numbers.chain(flags).chain(dimensions).chain(pairs).collect()
}

/// Matches the inputs of a model with those of a pretrained model by name.
pub(super) struct InputMatch<'a> {
    own: &'a [FeatureMeta],
    pretrained: &'a [FeatureMeta],
    /// Index of the pretrained input of the same name and type, by own input.
    inputs: Vec<Option<usize>>,
    /// Positions of the pretrained categories, by pretrained input.
    categories: Vec<Places<'a>>,
}

impl<'a> InputMatch<'a> {
    pub(super) fn new(own: &'a [FeatureMeta], pretrained: &'a [FeatureMeta]) -> Self {
        let same = |one: &FeatureMeta, other: &FeatureMeta| {
            let sort = |input: &FeatureMeta| (input.categories.is_empty(), input.one_hot);
            one.name == other.name && sort(one) == sort(other)
        };
        let inputs = own.iter().map(|one| pretrained.iter().position(|other| same(one, other))).collect();
        let categories = pretrained.iter().map(|input| Places::new(&input.categories)).collect();
        Self { own, pretrained, inputs, categories }
    }

    /// Returns the index of the matching pretrained input.
    pub(super) fn input(&self, own: usize) -> Option<usize> {
        self.inputs[own]
    }

    /// Returns the pretrained input whose flag marks a missing value of `own`. Labels of one source column share a
    /// flag.
    fn flag(&self, own: usize) -> Option<usize> {
        let Some(label) = &self.own[own].label else { return self.inputs[own] };
        let shares =
            |other: &FeatureMeta| other.has_missing && LabelMeta::share_column(other.label.as_ref(), Some(label));
        self.pretrained.iter().position(shares)
    }

    /// Whether `own` is a label that the pretrained model lacks, of a source column from which it has other labels.
    /// Such a label had no influence there.
    fn is_new_label(&self, own: usize) -> bool {
        let label = self.own[own].label.as_ref();
        self.inputs[own].is_none()
            && self.pretrained.iter().any(|other| LabelMeta::share_column(other.label.as_ref(), label))
    }

    /// Returns the index of a category in the pretrained input.
    pub(super) fn category(&self, input: usize, category: usize) -> Option<usize> {
        let name = self.own[input].categories.get(category)?;
        self.categories[self.inputs[input]?].of(name)
    }

    /// Returns the pretrained dimension that matches a dimension of an input: the dimension of the same category where
    /// each category has one, else the same index.
    pub(super) fn dimension(&self, input: usize, dimension: usize) -> Option<usize> {
        let pretrained = &self.pretrained[self.inputs[input]?];
        if pretrained.one_hot || self.own[input].categories.len().max(pretrained.categories.len()) <= WIDTH_MAX {
            return self.category(input, dimension);
        }
        (dimension < width_of(pretrained)).then_some(dimension)
    }

    /// Returns the position of the matching pretrained column, by own column.
    pub(super) fn places(&self) -> Vec<Option<usize>> {
        let pretrained: HashMap<Column, usize> = columns(self.pretrained).into_iter().zip(0..).collect();
        let find = |column: &Column| {
            let same = match *column {
                Column::Number(i) => Column::Number(self.inputs[i]?),
                Column::Flag(i) => Column::Flag(self.flag(i)?),
                Column::Dimension(i, d) => Column::Dimension(self.inputs[i]?, self.dimension(i, d)?),
                Column::Cross([i, j], [a, b]) => {
                    let inputs = [self.inputs[i]?, self.inputs[j]?];
                    let categories = [self.category(i, a)?, self.category(j, b)?];
                    let turned = Column::Cross([inputs[1], inputs[0]], [categories[1], categories[0]]);
                    if pretrained.contains_key(&turned) { turned } else { Column::Cross(inputs, categories) }
                }
            };
            pretrained.get(&same).copied()
        };
        columns(self.own).iter().map(find).collect()
    }

    /// Returns the problems, which are inputs or categories that only one model has, and notes about differences that
    /// are handled.
    pub(super) fn differences(&self) -> (Vec<String>, Vec<String>) {
        let mut problems = Vec::new();
        let mut notes = Vec::new();
        for (i, own) in self.own.iter().enumerate() {
            if self.is_new_label(i) {
                notes.push(format!("{} is a new label and begins without effect", own.name));
                continue;
            }
            let Some(pretrained) = self.inputs[i].map(|at| &self.pretrained[at]) else {
                problems.push(format!("the input {} is missing there", own.name));
                continue;
            };
            let only = |one: &FeatureMeta, other: &FeatureMeta| {
                let known = Places::new(&other.categories);
                one.categories.iter().filter(|name| known.of(name).is_none()).cloned().collect::<Vec<_>>()
            };
            let new = only(own, pretrained);
            let gone = only(pretrained, own);
            if !new.is_empty() {
                notes.push(format!("{} initialises new categories like unknown ones: {}", own.name, new.join(", ")));
            }
            if !gone.is_empty() && width_of(own) < width_of(pretrained) {
                problems.push(format!("{} has no {} here", own.name, gone.join(", ")));
            } else if !gone.is_empty() {
                notes.push(format!("{} forgets {}", own.name, gone.join(", ")));
            }
        }
        let gone = self.pretrained.iter().enumerate().filter(|(at, _)| !self.inputs.contains(&Some(*at)));
        problems.extend(gone.map(|(_, input)| format!("the input {} is unexpected", input.name)));
        (problems, notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(name: &str, categories: &[&str], has_missing: bool) -> FeatureMeta {
        FeatureMeta {
            name: name.into(),
            categories: categories.iter().map(|c| (*c).to_owned()).collect(),
            has_missing,
            ..FeatureMeta::default()
        }
    }

    #[test]
    fn columns_are_found_by_the_names_of_inputs_and_categories() {
        let pretrained = [input("n", &[], false), input("c", &["x", "y"], false), input("d", &["p", "q"], false)];
        let own = [input("d", &["p", "q"], false), input("n", &[], true), input("c", &["w", "x", "y"], false)];
        // The columns are numbers, flags, dimensions of c and d, and crosses c × d.
        assert_eq!(columns(&pretrained).len(), 1 + 2 + 2 + 4);
        let matched = InputMatch::new(&own, &pretrained);
        let places = matched.places();
        // The columns are n, its flag, d's p and q, c's w, x, y.
        assert_eq!(places[..7], [Some(0), None, Some(3), Some(4), None, Some(1), Some(2)]);
        // The crosses are d × c, where the pretrained model has c × d: p×w, p×x, p×y, q×w, q×x, q×y.
        assert_eq!(places[7..], [None, Some(5), Some(7), None, Some(6), Some(8)]);
        let (problems, notes) = matched.differences();
        assert!(
            problems.is_empty() && notes == ["c initialises new categories like unknown ones: w"],
            "{problems:?} {notes:?}"
        );
        let (problems, _) = InputMatch::new(&pretrained[..2], &own).differences();
        assert_eq!(problems, ["c has no w here", "the input d is unexpected"]);
        // A learned table cannot be used for one-hot rows.
        let one_hot = FeatureMeta { one_hot: true, ..input("c", &["x", "y"], false) };
        let (problems, _) = InputMatch::new(&[one_hot], &pretrained[1..2]).differences();
        assert_eq!(problems, ["the input c is missing there", "the input c is unexpected"]);
    }

    #[test]
    fn labels_of_a_column_share_a_flag_and_new_ones_begin_with_nothing() {
        let label = |name: &str, has_missing| {
            let label = Some(LabelMeta { column: "w".into(), name: name.into() });
            FeatureMeta { label, ..input(&format!("w[{name}]"), &[], has_missing) }
        };
        let pretrained = [label("rain", true), label("wind", false), input("n", &[], true)];
        let own = [label("wind", true), label("hail", false), label("rain", false), input("n", &[], false)];
        let matched = InputMatch::new(&own, &pretrained);
        // The columns are the numbers wind, hail, rain, n, and the flag of wind, which is the flag of rain in the
        // pretrained model.
        assert_eq!(matched.places(), [Some(1), None, Some(0), Some(2), Some(3)]);
        let (problems, notes) = matched.differences();
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(notes, ["w[hail] is a new label and begins without effect"]);
        let (problems, _) = InputMatch::new(&own[3..], &pretrained).differences();
        assert_eq!(problems, ["the input w[rain] is unexpected", "the input w[wind] is unexpected"]);
        // Labels of a column that the pretrained model does not know are ordinary inputs.
        let (problems, _) = InputMatch::new(&own[1..2], &pretrained[2..]).differences();
        assert_eq!(problems, ["the input w[hail] is missing there", "the input n is unexpected"]);
    }
}
