//! One column of the source as words, for the samples of a staged directory: which group each of them belongs to.
//!
//! The source is read once more, this column and the row id alone.

use super::{
    Job, StageError, form,
    source::block::{Block, Key, Kind, NO_WORD, Want},
    table::{Ask, Sink, Table},
};
use enn_common::{
    config::data::{DataConfig, DuplicatePolicy, Layout},
    staged::Staged,
};
use std::collections::HashMap;

/// The words of `column` for the samples of `staged`, which was made of `config`; empty where a row has none.
///
/// # Errors
/// A source that cannot be read, a column it lacks, or a layout whose samples are not rows.
pub fn labels(config: &DataConfig, column: &str, staged: &Staged) -> Result<Vec<String>, StageError> {
    let Layout::Rows(layout) = &config.layout else {
        return Err(StageError::Config {
            key: "data",
            found: format!("the column {column:?} for samples that are not rows of a table"),
            expected: "[data.rows]".into(),
        });
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let out = staged.dir().parent().unwrap_or(staged.dir());
    let job =
        Job { config, out, threads, training: None, digest: String::new(), marking: super::keeper::Marking::default() };
    let table = Table::open(&job)?;
    let mut wants = vec![Want::new(column, Kind::Word)];
    wants.extend(layout.row_id.as_ref().map(|id| Want::new(id, Kind::Key)));
    table.require(&wants.iter().map(|want| want.column.clone()).collect::<Vec<String>>())?;
    let ask = Ask { wants: &wants, hash_rows: false, threads, keeper: None };
    let (read, _) = table.pass(ask, &Reader, Read::default(), &mut |_| {})?;
    Ok(read.of_samples(staged, config.duplicates))
}

/// What was read, row by row.
#[derive(Default)]
struct Read {
    words: Vec<String>,
    index: HashMap<String, u32>,
    rows: Vec<u32>,
    keys: Vec<Key>,
}

impl Read {
    fn code(&mut self, word: String) -> u32 {
        let next = self.words.len() as u32;
        *self.index.entry(word).or_insert_with_key(|word| {
            self.words.push(word.clone());
            next
        })
    }

    /// The words of samples by their ids: the rows' own where all of them are integers, else their numbers in reading order.
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
        let (words, _) = form::settle(self.words);
        let word = |id: &i64| word_of.get(id).and_then(|word| words.get(*word as usize)).cloned();
        staged.row_id().iter().map(|id| word(id).unwrap_or_default()).collect()
    }
}

struct Reader;

/// Words and keys of a block.
struct Work {
    ids: Vec<u32>,
    list: Vec<String>,
    keys: Vec<Key>,
}

impl Sink for Reader {
    type Work = Work;
    type State = Read;

    fn work(&self, block: Block) -> Result<Work, StageError> {
        let words = block.columns[0].words().cloned().unwrap_or_default();
        let keys = block.columns.get(1).map_or_else(Vec::new, |column| column.keys().to_vec());
        Ok(Work { ids: words.ids, list: words.list, keys })
    }

    fn order(&self, state: &mut Read, _: u64, work: &mut Work) -> Result<(), StageError> {
        let codes: Vec<u32> = work.list.drain(..).map(|word| state.code(word)).collect();
        let code = |id: &u32| if *id == NO_WORD { NO_WORD } else { codes[*id as usize] };
        state.rows.extend(work.ids.iter().map(code));
        state.keys.append(&mut work.keys);
        Ok(())
    }

    fn after(&self, _: Work) -> Result<(), StageError> {
        Ok(())
    }
}
