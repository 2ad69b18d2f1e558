//! Words and their indices, in order of first appearance.

use super::form;
use enn_common::staged::words::{self, Form};
use std::collections::HashMap;

const UNKNOWN_WORDS_MAX: usize = 5;
const UNKNOWN_WORD_CHARS_MAX: usize = 60;

#[derive(Debug, Clone, Default)]
pub(super) struct Dictionary {
    list: Vec<String>,
    index: HashMap<String, u32>,
    /// Whether the words are those of a model, to which nothing is added.
    is_fixed: bool,
    /// Whether different spellings of true and false are one word each.
    knows_truth: bool,
    form: Form,
    /// Indices of a model's own words by other spellings.
    alike: HashMap<String, u32>,
    unknown_words: Vec<String>,
}

impl Dictionary {
    pub(super) fn found() -> Self {
        Self { knows_truth: true, ..Self::default() }
    }

    /// Creates the dictionary of a model's categories. Without `form` (older versions) the form is derived from the words.
    pub(super) fn of_model(own: &[String], form: Option<Form>) -> Self {
        Self { knows_truth: true, ..Self::fixed(own, form) }
    }

    /// Creates a dictionary to which no words are added.
    pub(super) fn fixed(own: &[String], form: Option<Form>) -> Self {
        let form = form.unwrap_or_else(|| form::of(own));
        let index: HashMap<String, u32> = own.iter().cloned().zip(0..).collect();
        let mut alike = HashMap::new();
        for (word, code) in own.iter().zip(0..) {
            let settled = form::canonical(word, form).into_owned();
            let narrowed = words::narrowed(&settled).filter(|_| form == Form::Number);
            for other in narrowed.into_iter().chain([settled]).filter(|other| !index.contains_key(other)) {
                alike.entry(other).or_insert(code);
            }
        }
        Self { list: own.to_vec(), index, is_fixed: true, form, alike, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn words(&self) -> &[String] {
        &self.list
    }

    pub(super) fn into_list(self) -> Vec<String> {
        self.list
    }

    pub(super) fn unknown_words(&self) -> &[String] {
        &self.unknown_words
    }

    /// Returns the words from index `kept` on, and sets `kept` to the number of words.
    pub(super) fn since(&self, kept: &mut usize) -> Vec<String> {
        self.list[std::mem::replace(kept, self.list.len())..].to_vec()
    }

    /// Returns the index of a word, or the unknown id.
    pub(super) fn known(&self, word: &str) -> u32 {
        let index = self.index.get(word).copied();
        index.or_else(|| self.same_word(word)).or_else(|| self.same_truth(word)).unwrap_or(self.list.len() as u32)
    }

    /// Returns the index of a model's own word in another spelling: a number with other digits, or an f32.
    fn same_word(&self, word: &str) -> Option<u32> {
        if !self.is_fixed || self.form == Form::Text {
            return None;
        }
        let find = |word: &str| self.index.get(word).or_else(|| self.alike.get(word)).copied();
        let settled = form::canonical(word, self.form);
        let narrowed = || words::narrowed(&settled).filter(|_| self.form == Form::Number);
        find(&settled).or_else(|| find(&narrowed()?))
    }

    /// Returns the index of another spelling of true or false: CSV files contain True, TRUE or true. A model whose words are all truth
    /// values also accepts 1 and 0, and the reverse.
    fn same_truth(&self, word: &str) -> Option<u32> {
        let own = truth(word).filter(|_| self.knows_truth)?;
        let is_spelt = |word: &str| word.len() > 1;
        let is_same = |other: &str| truth(other) == Some(own);
        let are_truths = || self.is_fixed && self.list.iter().all(|other| truth(other).is_some());
        let mut same = match are_truths() {
            true => (0..).zip(&self.list).filter(|(_, other)| is_same(other)).collect::<Vec<_>>(),
            false if is_spelt(word) => {
                (0..).zip(&self.list).filter(|(_, other)| is_spelt(other) && is_same(other)).collect()
            }
            false => Vec::new(),
        };
        let found = same.pop();
        found.filter(|_| same.is_empty()).map(|(index, _)| index)
    }

    /// Returns the index of a word; a new word is added, or gets the unknown id in a fixed dictionary.
    pub(super) fn code(&mut self, word: &str) -> u32 {
        let code = self.known(word);
        let is_new = code as usize == self.list.len();
        if is_new && !self.is_fixed {
            self.list.push(word.to_string());
            self.index.insert(word.to_string(), code);
        } else if is_new && self.unknown_words.len() < UNKNOWN_WORDS_MAX {
            let example: String = word.chars().take(UNKNOWN_WORD_CHARS_MAX).collect();
            if !self.unknown_words.contains(&example) {
                self.unknown_words.push(example);
            }
        }
        code
    }

    /// Adds words like [`Dictionary::code`].
    pub(super) fn add_all<'w>(&mut self, words: impl IntoIterator<Item = &'w str>) {
        for word in words {
            self.code(word);
        }
    }
}

/// Whether two lists have the same words in the same order, regardless of the spelling of numbers, times and truth values, which version
/// 0.1 wrote as in the file.
pub fn same_words(own: &[String], before: &[String]) -> bool {
    let known = Dictionary::of_model(before, None);
    own.len() == before.len() && (0..).zip(own).all(|(at, word)| known.known(word) == at)
}

/// Parses true or false, in letters or as 1 and 0.
fn truth(word: &str) -> Option<bool> {
    words::truth(word).or(match word {
        "1" => Some(true),
        "0" => Some(false),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(list: &[&str]) -> Dictionary {
        Dictionary::of_model(&list.iter().map(ToString::to_string).collect::<Vec<_>>(), None)
    }

    #[test]
    fn words_of_0_1_are_those_of_today_and_their_order_counts() {
        let same = |own: &[&str], before: &[&str]| {
            let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
            same_words(&list(own), &list(before))
        };
        assert!(same(&["1", "2", "10"], &["1.0", "2.0", "10.0"]));
        assert!(same(&["true", "false"], &["True", "FALSE"]));
        assert!(same(&["2024-01-31", "2024-02-01"], &["2024-01-31", "2024-02-01"]));
        assert!(same(&["2024-01-31", "2024-02-01"], &["2024-01-31T00:00:00Z", "2024-02-01 00:00:00"]));
        assert!(!same(&["1", "2"], &["2.0", "1.0"]));
        assert!(!same(&["007", "1"], &["7", "1"]));
        assert!(!same(&["1"], &["1.0", "2.0"]));
    }

    #[test]
    fn true_is_one_word_however_it_is_spelt() {
        let mut found = Dictionary::found();
        let codes = ["False", "a", "TRUE", "false", "true", "1", "A", "0"].map(|word| found.code(word));
        assert_eq!(codes, [0, 1, 2, 0, 2, 3, 4, 5], "while categories are found, 1 is a number");
        let codes = |known: &[&str]| ["true", "False", "1", "0", "yes"].map(|word| fixed(known).known(word));
        assert_eq!(codes(&["False", "True"]), [1, 0, 1, 0, 2]);
        assert_eq!(codes(&["1", "0"]), [0, 1, 0, 1, 2]);
        assert_eq!(codes(&["true"]), [0, 1, 0, 1, 1]);
        assert_eq!(codes(&["0", "1", "2"]), [3, 3, 1, 0, 3], "a count is not a truth");
        assert_eq!(codes(&["true", "1", "0"]), [0, 2, 1, 2, 3], "false is 0 where nothing else says so");
        assert_eq!(codes(&["TRUE", "1", "0"])[0], 3, "which of the two cannot be told");
    }

    #[test]
    fn a_model_knows_its_words_in_every_spelling() {
        let codes =
            |known: &[&str], words: &[&str]| words.iter().map(|word| fixed(known).known(word)).collect::<Vec<_>>();
        assert_eq!(codes(&["1.0", "2.0"], &["1", "2.00", "1.0", "2e0", "3", "02"]), [0, 1, 0, 1, 2, 2]);
        assert_eq!(codes(&["0.10000000149011612"], &["0.1", "0.10"]), [0, 0], "an f32 of a version before");
        assert_eq!(codes(&["0.1"], &["0.10000000149011612"]), [0]);
        assert_eq!(codes(&["1.0", "1"], &["1", "1.0"]), [1, 0], "two of a version before stay two");
        assert_eq!(codes(&["007", "1"], &["7", "1.0", "007"]), [2, 2, 0], "texts are what they are");
        assert_eq!(codes(&["2013-01-31 00:00:00"], &["2013-01-31", "2013-01-31T00:00:00Z", "2013-02-01"]), [0, 0, 1]);
        let mut known = Dictionary::of_model(&["1".to_owned()], Some(Form::Text));
        assert_eq!((known.code("1.0"), known.code("2"), known.code("2")), (1, 1, 1), "a text stood among the numbers");
        assert_eq!(known.unknown_words(), ["1.0", "2"]);
    }
}
