//! What each column of the feature vector and of the crosses stands for, and which column of another model's stands for the same: by the
//! names of inputs and categories. Pure.

use crate::layer::{
    Crosses,
    embedding::{WIDTH_MAX, width_of},
};
use enn_common::staged::{
    meta::{FeatureMeta, LabelMeta},
    words::Places,
};
use std::collections::HashMap;

/// What a column is made of; inputs and categories by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Column {
    Number(usize),
    /// 1 where the number is missing.
    Flag(usize),
    /// Of the vector that a category is looked up as.
    Dimension(usize, usize),
    /// 1 where both inputs have these categories.
    Cross([usize; 2], [usize; 2]),
}

/// Columns of the feature vector, in the order of [`crate::layer::Embedding`], and behind them those of the crosses.
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

/// Inputs of a model by the names of another's.
pub(super) struct Kinship<'a> {
    own: &'a [FeatureMeta],
    parent: &'a [FeatureMeta],
    /// Number of the parent's input of the same name and sort, by own input.
    inputs: Vec<Option<usize>>,
    /// Where the parent's categories stand, by its input.
    categories: Vec<Places<'a>>,
}

impl<'a> Kinship<'a> {
    pub(super) fn new(own: &'a [FeatureMeta], parent: &'a [FeatureMeta]) -> Self {
        let same = |one: &FeatureMeta, other: &FeatureMeta| {
            let sort = |input: &FeatureMeta| (input.categories.is_empty(), input.one_hot);
            one.name == other.name && sort(one) == sort(other)
        };
        let inputs = own.iter().map(|one| parent.iter().position(|other| same(one, other))).collect();
        let categories = parent.iter().map(|input| Places::new(&input.categories)).collect();
        Self { own, parent, inputs, categories }
    }

    /// The parent's number of an input.
    pub(super) fn input(&self, own: usize) -> Option<usize> {
        self.inputs[own]
    }

    /// The parent's input with the flag that says of an own one that it is missing: labels of one source column share one.
    fn flag(&self, own: usize) -> Option<usize> {
        let Some(label) = &self.own[own].label else { return self.inputs[own] };
        let shares =
            |other: &FeatureMeta| other.has_missing && LabelMeta::share_column(other.label.as_ref(), Some(label));
        self.parent.iter().position(shares)
    }

    /// Whether it is a label that the parent has not, of a source column of which it has others: they count for nothing there.
    fn is_new_label(&self, own: usize) -> bool {
        let label = self.own[own].label.as_ref();
        self.inputs[own].is_none()
            && self.parent.iter().any(|other| LabelMeta::share_column(other.label.as_ref(), label))
    }

    /// The parent's number of a category.
    pub(super) fn category(&self, input: usize, category: usize) -> Option<usize> {
        let name = self.own[input].categories.get(category)?;
        self.categories[self.inputs[input]?].of(name)
    }

    /// The parent's dimension for one of an input's own: that of the same category where each has its own, else the same number.
    pub(super) fn dimension(&self, input: usize, dimension: usize) -> Option<usize> {
        let parent = &self.parent[self.inputs[input]?];
        if parent.one_hot || self.own[input].categories.len().max(parent.categories.len()) <= WIDTH_MAX {
            return self.category(input, dimension);
        }
        (dimension < width_of(parent)).then_some(dimension)
    }

    /// The place of the same column among the parent's, by own column.
    pub(super) fn places(&self) -> Vec<Option<usize>> {
        let parent: HashMap<Column, usize> = columns(self.parent).into_iter().zip(0..).collect();
        let find = |column: &Column| {
            let same = match *column {
                Column::Number(i) => Column::Number(self.inputs[i]?),
                Column::Flag(i) => Column::Flag(self.flag(i)?),
                Column::Dimension(i, d) => Column::Dimension(self.inputs[i]?, self.dimension(i, d)?),
                Column::Cross([i, j], [a, b]) => {
                    let inputs = [self.inputs[i]?, self.inputs[j]?];
                    let categories = [self.category(i, a)?, self.category(j, b)?];
                    let turned = Column::Cross([inputs[1], inputs[0]], [categories[1], categories[0]]);
                    if parent.contains_key(&turned) { turned } else { Column::Cross(inputs, categories) }
                }
            };
            parent.get(&same).copied()
        };
        columns(self.own).iter().map(find).collect()
    }

    /// What differs: what only one of the two has, and for people to know what else.
    pub(super) fn differences(&self) -> (Vec<String>, Vec<String>) {
        let mut problems = Vec::new();
        let mut notes = Vec::new();
        for (i, own) in self.own.iter().enumerate() {
            if self.is_new_label(i) {
                notes.push(format!("{} begins with nothing, as unknown labels had", own.name));
                continue;
            }
            let Some(parent) = self.inputs[i].map(|at| &self.parent[at]) else {
                problems.push(format!("the input {} is missing there", own.name));
                continue;
            };
            let only = |one: &FeatureMeta, other: &FeatureMeta| {
                let known = Places::new(&other.categories);
                one.categories.iter().filter(|name| known.of(name).is_none()).cloned().collect::<Vec<_>>()
            };
            let new = only(own, parent);
            let gone = only(parent, own);
            if !new.is_empty() {
                notes.push(format!("{} begins with what unknown categories had for {}", own.name, new.join(", ")));
            }
            if !gone.is_empty() && width_of(own) < width_of(parent) {
                problems.push(format!("{} has no {} here", own.name, gone.join(", ")));
            } else if !gone.is_empty() {
                notes.push(format!("{} forgets {}", own.name, gone.join(", ")));
            }
        }
        let gone = self.parent.iter().enumerate().filter(|(at, _)| !self.inputs.contains(&Some(*at)));
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
        let parent = [input("n", &[], false), input("c", &["x", "y"], false), input("d", &["p", "q"], false)];
        let own = [input("d", &["p", "q"], false), input("n", &[], true), input("c", &["w", "x", "y"], false)];
        // Numbers, flags, dimensions of c and d, crosses c × d.
        assert_eq!(columns(&parent).len(), 1 + 2 + 2 + 4);
        let kinship = Kinship::new(&own, &parent);
        let places = kinship.places();
        // n, its flag, d's p and q, c's w, x, y.
        assert_eq!(places[..7], [Some(0), None, Some(3), Some(4), None, Some(1), Some(2)]);
        // Crosses d × c, of the parent c × d: p×w, p×x, p×y, q×w, q×x, q×y.
        assert_eq!(places[7..], [None, Some(5), Some(7), None, Some(6), Some(8)]);
        let (problems, notes) = kinship.differences();
        assert!(
            problems.is_empty() && notes == ["c begins with what unknown categories had for w"],
            "{problems:?} {notes:?}"
        );
        let (problems, _) = Kinship::new(&parent[..2], &own).differences();
        assert_eq!(problems, ["c has no w here", "the input d is unexpected"]);
        // A table that was learnt is nothing to one-hot rows.
        let one_hot = FeatureMeta { one_hot: true, ..input("c", &["x", "y"], false) };
        let (problems, _) = Kinship::new(&[one_hot], &parent[1..2]).differences();
        assert_eq!(problems, ["the input c is missing there", "the input c is unexpected"]);
    }

    #[test]
    fn labels_of_a_column_share_a_flag_and_new_ones_begin_with_nothing() {
        let label = |name: &str, has_missing| {
            let label = Some(LabelMeta { column: "w".into(), name: name.into() });
            FeatureMeta { label, ..input(&format!("w[{name}]"), &[], has_missing) }
        };
        let parent = [label("rain", true), label("wind", false), input("n", &[], true)];
        let own = [label("wind", true), label("hail", false), label("rain", false), input("n", &[], false)];
        let kinship = Kinship::new(&own, &parent);
        // Numbers wind, hail, rain, n, and the flag of wind, which is that of rain there.
        assert_eq!(kinship.places(), [Some(1), None, Some(0), Some(2), Some(3)]);
        let (problems, notes) = kinship.differences();
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(notes, ["w[hail] begins with nothing, as unknown labels had"]);
        let (problems, _) = Kinship::new(&own[3..], &parent).differences();
        assert_eq!(problems, ["the input w[rain] is unexpected", "the input w[wind] is unexpected"]);
        // Of a column that the parent does not know, labels are inputs like others.
        let (problems, _) = Kinship::new(&own[1..2], &parent[2..]).differences();
        assert_eq!(problems, ["the input w[hail] is missing there", "the input n is unexpected"]);
    }
}
