//! Words and their indices, in order of first appearance.

use std::collections::HashMap;

/// Words and their indices.
#[derive(Debug, Clone, Default)]
pub(super) struct Dictionary {
    list: Vec<String>,
    index: HashMap<String, u32>,
    /// A model's own words: nothing is added.
    is_fixed: bool,
}

impl Dictionary {
    /// These words and no others.
    pub(super) fn fixed(list: &[String]) -> Self {
        let index = list.iter().cloned().zip(0..).collect();
        Self { list: list.to_vec(), index, is_fixed: true }
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
        self.index.get(word).copied().unwrap_or(self.list.len() as u32)
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
