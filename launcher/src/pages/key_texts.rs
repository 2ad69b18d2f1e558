//! What the pages (.md) tell of the keys of a configuration: the rows of their tables. `enn help` and the JSON schema take it from here.
//!
//! A table describes keys if one of the first two cells of its head is `key`, `size` or `switch`, or names a section: "`[data]`", "key of
//! `[cluster]`". Keys without a section belong to that section, else to the last one that the text between heading and table names.

use super::{DATA, EmbeddedPage, FAULTS, TRAINING};
use std::collections::BTreeMap;

const PAGES: [EmbeddedPage; 3] = [DATA, TRAINING, FAULTS];
/// Heads of columns of keys.
const HEADS: [&str; 3] = ["key", "size", "switch"];
/// Texts of keys that pages explain in sentences, or in a row about something else as well.
const SENTENCES: &[(&str, &str)] = &[
    ("cluster", "Workers, and what happens when they fail."),
    ("data", "The data, and how they become samples."),
    ("data.arrays", "Samples from arrays that have the right shape already."),
    ("data.ranges.column", "Column whose values have a valid range."),
    ("data.ranges.high", "Largest valid value."),
    ("data.ranges.low", "Smallest valid value."),
    ("data.rows.features.column", "Name of the column."),
    ("data.rows.features.empty", "What an empty cell of labels means: \"none\" of them, or a \"missing\" value."),
    (
        "data.rows.features.encoding",
        "How a category or an index is read: by a learned table (\"embedding\"), or as one column for each (\"one_hot\").",
    ),
    ("data.rows.features.kind", "What the column holds. Without it: a number."),
    ("data.rows.features.offset", "Smallest integer of an index."),
    ("data.rows.features.outside", "What an integer outside the range of an index is: unknown, or the nearest one."),
    ("data.rows.features.rows", "How many integers an index has, from `offset` on."),
    ("data.rows.features.separator", "The character between labels."),
    ("data.sources.files", "Files of the source: one path or a list."),
    ("data.sources.name", "Name of the source in reports."),
    ("data.sources.weight", "Share of an epoch, relative to the other sources' weights; for all sources or for none."),
    ("data.split", "Which samples are for training, validation and test."),
    ("data.windows", "Samples from a long table of entities and times: past windows in, the next window out."),
    ("data.rows", "Samples from a table: one row is one sample."),
    ("data.input_units", "Units of numeric inputs, by column."),
    ("data.mask", "Which target cells are used."),
    ("data.mask_value", "The number in a target that means \"missing\", with mask = \"value\"."),
    ("data.units", "Unit of the targets, for reports."),
    ("data.weight", "Column with the weight of each row."),
    ("model", "The model. Without any size its sizes follow from the number of training rows."),
    ("model.tasks.depth", "Blocks of a template."),
    ("model.tasks.mixer", "Layer that mixes the tokens of a template."),
    (
        "model.tasks.mode",
        "Whether the tokens of a template attend to all (\"spatial\") or to earlier ones (\"temporal\").",
    ),
    ("model.tasks.model", "A module of your own worker that follows the blocks."),
    ("model.tasks.name", "Name of the task, which is part of the names of its parameters."),
    ("model.tasks.parent", "The sub-fuser that joins this task."),
    ("model.tasks.reduction", "Makes the task a sub-fuser, and says how it joins its children."),
    ("model.tasks.tokens", "Tokens of a template."),
    ("model.tasks.weight", "Share of the attention among the tasks of the same parent."),
    ("name", "Name of the runs."),
    ("seed", "Seed of everything that is random."),
    ("model.d_model", "Width of a token; without any size the sizes follow from the number of training rows."),
    ("model.heads", "Number of heads, which must divide the width."),
    ("train", "Optimizer, schedule, loss, checkpoints."),
    ("train.batch", "Rows of one step over all workers; 0: by the number of training rows."),
    ("train.degrees_of_freedom", "Degrees of freedom of Student's t distribution."),
    ("train.epochs", "Passes over the training rows; 0: by their number."),
    ("train.huber_delta", "Error, in standard deviations of the targets, from which on it counts linearly."),
    ("train.levels", "Levels of the predicted quantiles, rising, with 0.5 among them."),
    (
        "train.loss",
        "What is predicted and minimised: a number (huber, mse), quantiles, a distribution (gaussian, crps, student_t), or the probabilities of classes (cross_entropy).",
    ),
    ("train.lr", "Peak learning rate; without it, it follows from the number of training rows."),
    ("train.step_memory_mb", "Memory that the activations of a step may take, in MB; 0: 90 % of what is free."),
];

/// What the pages tell of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyText {
    /// The default as the page tells it; empty where it does not.
    pub(crate) default: String,
    /// The description in Markdown.
    pub(crate) text: String,
    /// Path of the page in the repository.
    pub(crate) page: &'static str,
}

/// Texts of keys, by key path.
#[derive(Debug)]
pub(crate) struct KeyTexts {
    texts: BTreeMap<String, KeyText>,
}

impl KeyTexts {
    /// Reads the pages.
    pub(crate) fn read() -> Self {
        let mut texts = BTreeMap::new();
        let rows: Vec<PageRow> = PAGES.into_iter().flat_map(rows).collect();
        // A table of keys describes them; others use them to describe something else.
        for is_of_keys in [true, false] {
            for row in rows.iter().filter(|row| row.is_of_keys == is_of_keys) {
                row.keys.iter().for_each(|key| _ = texts.entry(key.clone()).or_insert_with(|| row.text.clone()));
            }
        }
        for (key, sentence) in SENTENCES {
            let page = if key.starts_with("data") {
                DATA
            } else if key.starts_with("cluster") {
                FAULTS
            } else {
                TRAINING
            };
            let new = || KeyText { default: String::new(), text: String::new(), page: page.path };
            texts.entry((*key).to_owned()).or_insert_with(new).text = (*sentence).to_owned();
        }
        Self { texts }
    }

    pub(crate) fn of(&self, key: &str) -> Option<&KeyText> {
        self.texts.get(key)
    }
}

/// A row of a table, and the keys in its cell of keys.
#[derive(Debug)]
struct PageRow {
    keys: Vec<String>,
    text: KeyText,
    is_of_keys: bool,
}

/// Returns those rows of a page that name keys.
fn rows(page: EmbeddedPage) -> Vec<PageRow> {
    let mut found = Vec::new();
    let mut heads: Option<Vec<&str>> = None;
    let mut section = "";
    for line in page.text.lines() {
        let Some(row) = line.strip_prefix('|') else {
            heads = None;
            section = if line.starts_with('#') { "" } else { section_in(line).unwrap_or(section) };
            continue;
        };
        let cells: Vec<&str> = row.trim_end().trim_end_matches('|').split('|').map(str::trim).collect();
        match &heads {
            None => heads = Some(cells),
            Some(heads) => found.extend(page_row(heads, &cells, section, page.path)),
        }
    }
    found
}

/// Reads a row of a table with these heads, below text that names `section`.
fn page_row(heads: &[&str], cells: &[&str], section: &str, page: &'static str) -> Option<PageRow> {
    let names_keys = |head: &&str| HEADS.contains(head) || section_in(head).is_some();
    let column = heads.iter().take(2).position(names_keys);
    let section = column.and_then(|column| section_in(heads[column])).unwrap_or(section);
    let text = cells.last().filter(|text| cells.len() > 1 && !text.is_empty())?;
    let named = spans(cells.get(column.unwrap_or(0))?);
    let path = |key: &str| match key.strip_prefix('[').and_then(|key| key.strip_suffix(']')) {
        Some(whole) => Some(whole.to_owned()),
        None if key.contains('.') => Some(key.to_owned()),
        // Elsewhere a word may be anything.
        None => column.map(|_| format!("{section}.{key}")),
    };
    let keys: Vec<String> = named.filter_map(path).collect();
    let at = heads.iter().position(|head| *head == "default");
    let default = at.and_then(|at| cells.get(at)).copied().unwrap_or_default().to_owned();
    let text = KeyText { default, text: (*text).to_owned(), page };
    (!keys.is_empty()).then_some(PageRow { keys, text, is_of_keys: column.is_some() })
}

/// Returns the last section that a text names, as `[data.rows]`.
fn section_in(text: &str) -> Option<&str> {
    spans(text).filter_map(|span| span.strip_prefix('[')?.strip_suffix(']')).last()
}

/// Returns the spans of code in a text.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::config::key_list;

    #[test]
    fn rows_are_those_of_tables_of_keys() {
        let text = "## Rows\n`[data.rows]`: one row.\n\n| key | default | |\n|---|---|---|\n| `features`, `train.epochs` | 0 | input columns |\n\n\
                    ## More\n| `[data.split]` | |\n|---|---|\n| `kind` | the rule |\n\n| value | rule |\n|---|---|\n| `train.batch`, `auto` | by rows |\n";
        let rows = rows(EmbeddedPage { path: "a.md", text });
        let keys: Vec<(Vec<&str>, bool)> =
            rows.iter().map(|row| (row.keys.iter().map(String::as_str).collect(), row.is_of_keys)).collect();
        let expected = [
            (vec!["data.rows.features", "train.epochs"], true),
            (vec!["data.split.kind"], true),
            (vec!["train.batch"], false),
        ];
        assert_eq!(keys, expected);
        assert_eq!((rows[0].text.default.as_str(), rows[0].text.text.as_str()), ("0", "input columns"));
    }

    #[test]
    fn every_key_has_a_text_and_every_sentence_a_key() {
        let texts = KeyTexts::read();
        let keys: Vec<String> = key_list::keys().into_iter().map(|key| key.path).collect();
        let missing: Vec<&String> = keys.iter().filter(|key| texts.of(key).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}: add rows to a page");
        assert!(SENTENCES.iter().all(|(key, _)| keys.iter().any(|known| known == key)));
        assert_eq!(texts.of("train.patience").map(|text| text.default.as_str()), Some("0"));
    }
}
