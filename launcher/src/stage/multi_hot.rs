//! Columns whose cells hold any number of labels: how a cell is written, and a pass of its own over the source that finds which
//! labels there are, because each becomes an input.
//!
//! **Invariant:** labels are in order of first appearance in the source, whatever the number of threads and of attempts.

use super::{
    Job, Progress,
    dictionary::Dictionary,
    error::StageError,
    form,
    input::labels_of,
    keeper::Keeper,
    source::block::{Block, Kind, Want, Words},
    table::{Ask, Sink, Table},
};
use enn_common::staged::{
    StagedMeta, StagedWriter,
    meta::LabelMeta,
    unfinished::{Kept, Mark},
    words::Form,
};
use std::collections::{HashMap, HashSet};

/// Stands before each label of what was a list: no separator of the user's cuts those.
const LISTED: char = '\u{1f}';

/// Labels of one column, at most.
const LABELS_MAX: usize = 1_000;

/// The number of the pass in marks; that over the rows has 0.
const PASS: u32 = 1;

/// Labels in their form, each once, and what all of them are, by the source column they are of.
pub(super) type Found = HashMap<String, (Vec<String>, Option<Form>)>;

/// The labels of a source column that a model knows, in order, and what they are.
pub(super) fn of_model(meta: &StagedMeta, column: &str) -> (Vec<String>, Option<Form>) {
    let is_of = |label: &LabelMeta| label.column == column;
    let own = meta.features.iter().find(|feature| feature.label.as_ref().is_some_and(is_of));
    (labels_of(meta, column), own.and_then(|own| own.form))
}

/// A list of labels as the text of a cell, as no separator cuts it.
pub fn listed(labels: &[String]) -> String {
    if labels.is_empty() {
        return LISTED.to_string();
    }
    labels.iter().flat_map(|label| [LISTED.to_string(), label.clone()]).collect()
}

/// The labels of a cell, perhaps with repetitions.
pub(super) fn of_cell(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let separator = if text.starts_with(LISTED) { LISTED } else { separator };
    text.split(separator).map(str::trim).filter(|label| !label.is_empty())
}

/// The inputs of one column of labels: which of them a cell sets to 1.
#[derive(Debug)]
pub(super) struct Set {
    separator: char,
    known: Dictionary,
    /// Inputs, with the one that counts labels the model does not know.
    width: usize,
}

impl Set {
    /// Of these labels; `counts_strangers` makes an input more.
    pub(super) fn new(labels: &[String], form: Option<Form>, separator: char, counts_strangers: bool) -> Self {
        let known = Dictionary::fixed(labels, form);
        Self { separator, known, width: labels.len() + usize::from(counts_strangers) }
    }

    /// Writes the inputs of a block from column `first` of `x` (n, width) on; missing cells stay as they are.
    pub(super) fn scatter(&self, x: &mut [f32], (first, width): (usize, usize), words: &Words) {
        let known: Vec<Vec<f32>> = words.list.iter().map(|text| self.of(text)).collect();
        for (row, id) in x.chunks_exact_mut(width).zip(&words.ids) {
            if let Some(known) = known.get(*id as usize) {
                row[first..first + self.width].copy_from_slice(known);
            }
        }
    }

    fn of(&self, text: &str) -> Vec<f32> {
        let mut inputs = vec![0.0; self.width];
        let mut strangers: Vec<&str> = Vec::new();
        for label in of_cell(text, self.separator) {
            match self.known.known(label) as usize {
                at if at < self.known.len() => inputs[at] = 1.0,
                _ if strangers.contains(&label) => {}
                _ => strangers.push(label),
            }
        }
        if self.width > self.known.len() {
            inputs[self.known.len()] = strangers.len() as f32;
        }
        inputs
    }
}

/// Reads the columns of labels that are wanted, and nothing else, for the labels they have.
pub(super) fn find(
    job: &Job<'_>,
    table: &Table,
    wants: &[Want],
    (writer, marks): (&StagedWriter, &[Mark]),
    progress: &mut dyn FnMut(Progress),
) -> Result<Found, StageError> {
    // Nothing is written in this pass but its marks.
    let keeper = Keeper::new(writer, &|| Ok(()), (PASS, job.marking), marks);
    let mut state = State { dictionaries: vec![Dictionary::default(); wants.len()], kept: Vec::new() };
    for mark in marks {
        let Kept::Labels { words } = &mark.kept else { continue };
        for (dictionary, words) in state.dictionaries.iter_mut().zip(words) {
            words.iter().for_each(|word| {
                dictionary.code(word);
            });
        }
    }
    state.kept = state.dictionaries.iter().map(Dictionary::len).collect();
    let ask = Ask { wants, hash_rows: false, threads: job.threads, keeper: Some(&keeper) };
    let (state, _) = table.pass(ask, &LabelSink { wants }, state, progress)?;
    let names = wants.iter().map(|want| want.column.clone());
    let settled = state.dictionaries.into_iter().map(|found| {
        let (words, form) = form::settle(found.into_list());
        let mut seen = HashSet::new();
        let once: Vec<String> = words.into_iter().filter(|word| seen.insert(word.clone())).collect();
        (once, Some(form))
    });
    Ok(names.zip(settled).collect())
}

struct State {
    dictionaries: Vec<Dictionary>,
    /// Labels that marks have.
    kept: Vec<usize>,
}

struct LabelSink<'a> {
    wants: &'a [Want],
}

impl Sink for LabelSink<'_> {
    /// Labels of a block by column, in order of first appearance.
    type Work = Vec<Dictionary>;
    type State = State;

    fn work(&self, block: Block) -> Result<Vec<Dictionary>, StageError> {
        let of = |(want, column): (&Want, &super::source::block::Values)| {
            let mut found = Dictionary::default();
            if let (Kind::Labels(labels), Some(words)) = (want.kind, column.words()) {
                words.list.iter().flat_map(|text| of_cell(text, labels.separator)).for_each(|label| {
                    found.code(label);
                });
            }
            found
        };
        Ok(self.wants.iter().zip(&block.columns).map(of).collect())
    }

    fn order(&self, state: &mut State, _: u64, work: &mut Vec<Dictionary>) -> Result<(), StageError> {
        for ((all, found), want) in state.dictionaries.iter_mut().zip(work).zip(self.wants) {
            found.words().iter().for_each(|label| {
                all.code(label);
            });
            if all.len() > LABELS_MAX {
                return Err(StageError::TooManyLabels { column: want.column.clone(), labels_max: LABELS_MAX });
            }
        }
        Ok(())
    }

    fn after(&self, _: Vec<Dictionary>) -> Result<(), StageError> {
        Ok(())
    }

    fn keep(&self, state: &mut State) -> Result<Kept, StageError> {
        let kept = state.kept.iter_mut().zip(&state.dictionaries);
        Ok(Kept::Labels { words: kept.map(|(kept, own)| own.since(kept)).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_cut_at_its_separator_and_a_list_where_it_was() {
        let of = |text: &'static str, separator| of_cell(text, separator).collect::<Vec<_>>();
        assert_eq!(of("rain; wind;;", ';'), ["rain", "wind"]);
        assert_eq!(of("rain; wind", '|'), ["rain; wind"]);
        assert!(of("", ';').is_empty());
        for labels in [vec![], vec!["a;b".to_owned()], vec!["a;b".to_owned(), "c".to_owned()]] {
            let text = listed(&labels);
            assert_eq!(of_cell(&text, ';').collect::<Vec<_>>(), labels);
        }
    }

    #[test]
    fn a_set_says_which_labels_a_cell_has_and_how_many_are_strange() {
        let labels = ["rain", "wind"].map(String::from);
        let mut words = Words::default();
        ["wind;wind", "", "hail;rain;hail;fog"].into_iter().for_each(|text| words.push(text));
        words.push_missing();
        let mut x = vec![f32::NAN; 4 * 4];
        Set::new(&labels, None, ';', true).scatter(&mut x, (1, 4), &words);
        assert_eq!(x[1..4], [0.0, 1.0, 0.0]);
        assert_eq!(x[5..8], [0.0, 0.0, 0.0]);
        assert_eq!(x[9..12], [1.0, 0.0, 2.0]);
        assert!(x[12..].iter().chain(&x[..1]).all(|cell| cell.is_nan()));
        assert_eq!(Set::new(&labels, None, ';', false).of("hail;wind"), [0.0, 1.0]);
    }
}
