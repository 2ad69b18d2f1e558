//! Columns whose cells hold any number of labels: their text form, and an extra pass over the source that finds all labels, because
//! each label becomes an input.
//!
//! **Invariant:** labels are in order of first appearance in the source, for any number of threads and attempts.

use super::{
    Job, Progress,
    dictionary::Dictionary,
    error::StageError,
    form,
    input::labels_of,
    label_cell::of_cell,
    resume_log::ResumeLog,
    source::block::{Block, ColumnKind, ColumnSpec, Words},
    table::{PassOptions, Sink, Table},
};
use enn_common::staged::{
    StagedMeta, StagedWriter,
    meta::LabelMeta,
    unfinished::{Kept, ResumePoint},
    words::Form,
};
use std::collections::{HashMap, HashSet};

const LABELS_MAX: usize = 1_000;

/// Number of the pass in resume points; the pass over the rows has 0.
const PASS: u32 = 1;

/// Distinct canonical labels and their form, by source column.
pub(super) type ColumnLabels = HashMap<String, (Vec<String>, Option<Form>)>;

pub(super) fn of_model(meta: &StagedMeta, column: &str) -> (Vec<String>, Option<Form>) {
    let is_of = |label: &LabelMeta| label.column == column;
    let own = meta.features.iter().find(|feature| feature.label.as_ref().is_some_and(is_of));
    (labels_of(meta, column), own.and_then(|own| own.form))
}

#[derive(Debug)]
pub(super) struct LabelSet {
    separator: char,
    known: Dictionary,
    /// Number of inputs, including the count of unknown labels.
    width: usize,
}

impl LabelSet {
    /// Creates the encoder of these labels; `counts_unknown` adds an input.
    pub(super) fn new(labels: &[String], form: Option<Form>, separator: char, counts_unknown: bool) -> Self {
        let known = Dictionary::fixed(labels, form);
        Self { separator, known, width: labels.len() + usize::from(counts_unknown) }
    }

    /// Writes the inputs of a block into `x`, shape (n, width), from column `first` on; missing cells are not written.
    pub(super) fn scatter(&self, x: &mut [f32], first: usize, width: usize, words: &Words) {
        let known: Vec<Vec<f32>> = words.list.iter().map(|text| self.of(text)).collect();
        for (row, id) in x.chunks_exact_mut(width).zip(&words.ids) {
            if let Some(known) = known.get(*id as usize) {
                row[first..first + self.width].copy_from_slice(known);
            }
        }
    }

    fn of(&self, text: &str) -> Vec<f32> {
        let mut inputs = vec![0.0; self.width];
        let mut unknown: Vec<&str> = Vec::new();
        for label in of_cell(text, self.separator) {
            match self.known.known(label) as usize {
                at if at < self.known.len() => inputs[at] = 1.0,
                _ if unknown.contains(&label) => {}
                _ => unknown.push(label),
            }
        }
        if self.width > self.known.len() {
            inputs[self.known.len()] = unknown.len() as f32;
        }
        inputs
    }
}

pub(super) fn find(
    job: &Job<'_>,
    table: &Table,
    specs: &[ColumnSpec],
    writer: &StagedWriter,
    points: &[ResumePoint],
    progress: &mut dyn FnMut(Progress),
) -> Result<ColumnLabels, StageError> {
    // This pass writes nothing except its resume points.
    let resume_log = ResumeLog::new(writer, &|| Ok(()), PASS, job.resume_policy, points);
    let mut state = LabelScan { dictionaries: vec![Dictionary::default(); specs.len()], kept: Vec::new() };
    for point in points {
        let Kept::Labels { words } = &point.kept else { continue };
        let dictionaries = state.dictionaries.iter_mut().zip(words);
        dictionaries.for_each(|(own, words)| own.add_all(words.iter().map(String::as_str)));
    }
    state.kept = state.dictionaries.iter().map(Dictionary::len).collect();
    let options = PassOptions { specs, hash_rows: false, threads: job.threads, resume_log: Some(&resume_log) };
    let (state, _) = table.pass(options, &LabelSink { specs }, state, progress)?;
    let names = specs.iter().map(|spec| spec.column.clone());
    let settled = state.dictionaries.into_iter().map(|found| {
        let (words, form) = form::canonicalize(found.into_list());
        let mut seen = HashSet::new();
        let once: Vec<String> = words.into_iter().filter(|word| seen.insert(word.clone())).collect();
        (once, Some(form))
    });
    Ok(names.zip(settled).collect())
}

struct LabelScan {
    dictionaries: Vec<Dictionary>,
    kept: Vec<usize>,
}

struct LabelSink<'a> {
    specs: &'a [ColumnSpec],
}

impl Sink for LabelSink<'_> {
    /// Labels of a block by column, in order of first appearance.
    type Work = Vec<Dictionary>;
    type State = LabelScan;

    fn work(&self, block: Block) -> Result<Vec<Dictionary>, StageError> {
        let of = |(spec, column): (&ColumnSpec, &super::source::block::Values)| {
            let mut found = Dictionary::default();
            if let (ColumnKind::Labels(labels), Some(words)) = (spec.kind, column.words()) {
                found.add_all(words.list.iter().flat_map(|text| of_cell(text, labels.separator)));
            }
            found
        };
        Ok(self.specs.iter().zip(&block.columns).map(of).collect())
    }

    fn order(&self, state: &mut LabelScan, _: u64, work: &mut Vec<Dictionary>) -> Result<(), StageError> {
        for ((all, found), spec) in state.dictionaries.iter_mut().zip(work).zip(self.specs) {
            all.add_all(found.words().iter().map(String::as_str));
            if all.len() > LABELS_MAX {
                return Err(StageError::TooManyLabels { column: spec.column.clone(), labels_max: LABELS_MAX });
            }
        }
        Ok(())
    }

    fn keep(&self, state: &mut LabelScan) -> Result<Kept, StageError> {
        let kept = state.kept.iter_mut().zip(&state.dictionaries);
        Ok(Kept::Labels { words: kept.map(|(kept, own)| own.since(kept)).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_says_which_labels_a_cell_has_and_how_many_are_strange() {
        let labels = ["rain", "wind"].map(String::from);
        let mut words = Words::default();
        ["wind;wind", "", "hail;rain;hail;fog"].into_iter().for_each(|text| words.push(text));
        words.push_missing();
        let mut x = vec![f32::NAN; 4 * 4];
        LabelSet::new(&labels, None, ';', true).scatter(&mut x, 1, 4, &words);
        assert_eq!(x[1..4], [0.0, 1.0, 0.0]);
        assert_eq!(x[5..8], [0.0, 0.0, 0.0]);
        assert_eq!(x[9..12], [1.0, 0.0, 2.0]);
        assert!(x[12..].iter().chain(&x[..1]).all(|cell| cell.is_nan()));
        assert_eq!(LabelSet::new(&labels, None, ';', false).of("hail;wind"), [0.0, 1.0]);
    }
}
