//! One column of the source as words, for example the groups of the samples in a staged directory.
//!
//! The source is read once more, only this column and the row id.

use super::{
    Job, StageError, form,
    source::block::{Block, ColumnKind, ColumnSpec, Key, NO_WORD},
    table::{PassOptions, Sink, Table},
};
use enn_common::{
    config::data::{DataConfig, DuplicatePolicy, Layout},
    staged::Staged,
};
use std::collections::HashMap;

/// Returns the words of `column` for the samples of `staged`, which was staged with `config`; empty where missing.
///
/// # Errors
/// A source that cannot be read, a column it lacks, or a layout whose samples are not rows.
pub fn labels(config: &DataConfig, column: &str, staged: &Staged) -> Result<Vec<String>, StageError> {
    let Layout::Rows(layout) = &config.layout else {
        return Err(StageError::config(
            "data",
            format!("the column {column:?} for samples that are not rows of a table"),
            "[data.rows]",
        ));
    };
    let job = Job::reading(config, staged.dir().parent().unwrap_or(staged.dir()));
    let table = Table::open(&job)?;
    let mut specs = vec![ColumnSpec::new(column, ColumnKind::Word)];
    specs.extend(layout.row_id.as_ref().map(|id| ColumnSpec::new(id, ColumnKind::Key)));
    table.require(&specs.iter().map(|spec| spec.column.clone()).collect::<Vec<String>>())?;
    let options = PassOptions { specs: &specs, hash_rows: false, threads: job.threads, resume_log: None };
    let (read, _) = table.pass(options, &WordSink, ColumnWords::default(), &mut |_| {})?;
    Ok(read.of_samples(staged, config.duplicates))
}

#[derive(Default)]
struct ColumnWords {
    words: Vec<String>,
    index: HashMap<String, u32>,
    rows: Vec<u32>,
    keys: Vec<Key>,
}

impl ColumnWords {
    fn code(&mut self, word: String) -> u32 {
        let next = self.words.len() as u32;
        *self.index.entry(word).or_insert_with_key(|word| {
            self.words.push(word.clone());
            next
        })
    }

    /// Returns the words of samples by id: the rows' own ids where all are integers, otherwise their numbers in reading order.
    fn of_samples(self, staged: &Staged, policy: DuplicatePolicy) -> Vec<String> {
        let integer = |key: &Key| if let Key::Integer(id) = key { Some(*id) } else { None };
        let ids: Option<Vec<i64>> = self.keys.iter().map(integer).collect();
        let ids = ids.filter(|ids| ids.len() == self.rows.len());
        let ids = ids.unwrap_or_else(|| (0..self.rows.len() as i64).collect());
        let mut word_of: HashMap<i64, u32> = HashMap::with_capacity(ids.len());
        for (id, word) in ids.into_iter().zip(&self.rows) {
            match policy {
                DuplicatePolicy::Last => *word_of.entry(id).or_insert(*word) = *word,
                _ => {
                    word_of.entry(id).or_insert(*word);
                }
            }
        }
        let (words, _) = form::canonicalize(self.words);
        let word = |id: &i64| word_of.get(id).and_then(|word| words.get(*word as usize)).cloned();
        staged.row_id().iter().map(|id| word(id).unwrap_or_default()).collect()
    }
}

struct WordSink;

struct LabelBatch {
    ids: Vec<u32>,
    list: Vec<String>,
    keys: Vec<Key>,
}

impl Sink for WordSink {
    type Work = LabelBatch;
    type State = ColumnWords;

    fn work(&self, block: Block) -> Result<LabelBatch, StageError> {
        let words = block.columns[0].words().cloned().unwrap_or_default();
        let keys = block.columns.get(1).map_or_else(Vec::new, |column| column.keys().to_vec());
        Ok(LabelBatch { ids: words.ids, list: words.list, keys })
    }

    fn order(&self, state: &mut ColumnWords, _: u64, work: &mut LabelBatch) -> Result<(), StageError> {
        let codes: Vec<u32> = work.list.drain(..).map(|word| state.code(word)).collect();
        let code = |id: &u32| if *id == NO_WORD { NO_WORD } else { codes[*id as usize] };
        state.rows.extend(work.ids.iter().map(code));
        state.keys.append(&mut work.keys);
        Ok(())
    }
}
