//! Words and their indices, in order of first appearance.

use std::collections::HashMap;

/// Words and their indices.
#[derive(Debug, Clone, Default)]
pub(super) struct Dictionary {
    list: Vec<String>,
    index: HashMap<String, u32>,
    /// A model's own words: nothing is added.
    is_fixed: bool,
    /// Whether true is one word however it is spelt.
    knows_truth: bool,
}

impl Dictionary {
    /// The categories of a column, as they are found; or a model's own and no others.
    pub(super) fn categories(own: Option<&[String]>) -> Self {
        let list = own.unwrap_or_default();
        let index = list.iter().cloned().zip(0..).collect();
        Self { list: list.to_vec(), index, is_fixed: own.is_some(), knows_truth: true }
    }

    /// Number of words.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The words by their indices.
    pub(super) fn words(&self) -> &[String] {
        &self.list
    }

    /// The words by their indices.
    pub(super) fn into_list(self) -> Vec<String> {
        self.list
    }

    /// The words from number `kept` on, which becomes their number.
    pub(super) fn since(&self, kept: &mut usize) -> Vec<String> {
        self.list[std::mem::replace(kept, self.list.len())..].to_vec()
    }

    /// Index of a word, or the unknown id.
    pub(super) fn known(&self, word: &str) -> u32 {
        let index = self.index.get(word).copied();
        index.or_else(|| self.same_truth(word)).unwrap_or(self.list.len() as u32)
    }

    /// Index of the word that says the same, where this one is true or false: writers of CSV spell it True, TRUE or true, and types
    /// say it in none of these ways. A model that knows nothing but true and false takes 1 and 0 for them, and the reverse.
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

    /// Index of a word; strangers are added, or get the unknown id.
    pub(super) fn code(&mut self, word: &str) -> u32 {
        let code = self.known(word);
        if code as usize == self.list.len() && !self.is_fixed {
            self.list.push(word.to_string());
            self.index.insert(word.to_string(), code);
        }
        code
    }
}

/// Whether a word says true or false, if it says either.
fn truth(word: &str) -> Option<bool> {
    let is = |yes: &str| word.eq_ignore_ascii_case(yes);
    match word {
        _ if is("true") => Some(true),
        _ if is("false") => Some(false),
        "1" => Some(true),
        "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(list: &[&str]) -> Dictionary {
        Dictionary::categories(Some(&list.iter().map(ToString::to_string).collect::<Vec<_>>()))
    }

    #[test]
    fn true_is_one_word_however_it_is_spelt() {
        let mut found = Dictionary::categories(None);
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
}
