//! The configuration as it was typed: a tree of values, each with its place. Nothing is decided here.
//!
//! A tree instead of structs of `Option`s, so that every unknown key and every wrong type is reported, not the first one
//! only. `resolve` gives it meaning.

use super::{
    error::{ConfigError, ConfigErrorKind, Place},
    shape::Notes,
};
use std::{ops::Range, path::Path, sync::Arc};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A value and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct RawNode {
    pub place: Place,
    pub value: RawValue,
}

impl RawNode {
    /// The items of a list; another value is a list of one.
    pub(super) fn items(&self) -> &[Self] {
        if let RawValue::Array(items) = &self.value { items } else { std::slice::from_ref(self) }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum RawValue {
    Text(String),
    Integer(i64),
    /// Number with a fraction or exponent.
    Float(f64),
    Bool(bool),
    /// A bare date or time; no key takes one, it is kept to say so.
    Time(String),
    Array(Vec<RawNode>),
    /// Keys with their own places.
    Table(Vec<RawEntry>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct RawEntry {
    pub key: String,
    pub place: Place,
    pub node: RawNode,
}

/// A configuration as typed: the file's tree, then overrides.
#[derive(Debug, Clone, PartialEq)]
pub struct RawConfig {
    pub(super) root: RawNode,
    /// Where `resolve` notes the keys that it reads, if somebody asked for their shapes.
    pub(super) notes: Option<Notes>,
}

impl RawConfig {
    /// Parses the text of the file `path` (used for places only; make it absolute, relative data paths hang on it).
    pub fn parse(text: &str, path: &Path) -> Result<Self, Vec<ConfigError>> {
        let lines = Lines::new(text, path);
        let (table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let error = |error: toml::de::Error| ConfigError {
                place: lines.place(error.span().unwrap_or_default()),
                key: String::new(),
                kind: ConfigErrorKind::Syntax(error.message().to_owned()),
            };
            return Err(errors.into_iter().take(SYNTAX_ERRORS_MAX).map(error).collect());
        }
        let span = table.span();
        Ok(Self {
            root: RawNode { place: lines.place(span), value: from_table(table.get_ref(), &|span| lines.place(span)) },
            notes: None,
        })
    }

    /// A configuration of flags only.
    pub fn empty(flag: &str) -> Self {
        Self { root: RawNode { place: Place::Flag(flag.into()), value: RawValue::Table(Vec::new()) }, notes: None }
    }

    /// Applies `--set section.key=value`. The value is read as TOML; what is not TOML is text, so quotes may be left out.
    pub fn set(&mut self, assignment: &str) -> Result<(), Box<ConfigError>> {
        let flag: Arc<str> = format!("--set {assignment}").into();
        let place = Place::Flag(flag);
        let parts = assignment.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
        match parts {
            Some((key, text)) if !key.is_empty() && key.split('.').all(|part| !part.is_empty()) => {
                self.insert(key, value_of(text, &place), &place);
                Ok(())
            }
            _ => {
                let kind = ConfigErrorKind::Override(assignment.to_owned());
                Err(Box::new(ConfigError { place, key: String::new(), kind }))
            }
        }
    }

    /// Sets the key path `key` (dots between sections) to `value`, on behalf of the flag `flag`.
    pub fn set_value(&mut self, key: &str, value: RawValue, flag: &str) {
        self.insert(key, value, &Place::Flag(flag.into()));
    }

    /// Returns the value of the key path `key`, if it is there.
    pub fn get(&self, key: &str) -> Option<&RawNode> {
        key.split('.').try_fold(&self.root, |node, part| match &node.value {
            RawValue::Table(entries) => entries.iter().find(|entry| entry.key == part).map(|entry| &entry.node),
            _ => None,
        })
    }

    /// Removes the key path `key`; returns its value, if it was there.
    pub fn take(&mut self, key: &str) -> Option<RawNode> {
        let (sections, last) = key.rsplit_once('.').map_or((None, key), |(sections, last)| (Some(sections), last));
        let section =
            sections.into_iter().flat_map(|sections| sections.split('.')).try_fold(&mut self.root, |node, part| {
                let RawValue::Table(entries) = &mut node.value else { return None };
                entries.iter_mut().find(|entry| entry.key == part).map(|entry| &mut entry.node)
            })?;
        let RawValue::Table(entries) = &mut section.value else { return None };
        let index = entries.iter().position(|entry| entry.key == last)?;
        Some(entries.remove(index).node)
    }

    /// Sets the key path `key` to a value with a place of its own.
    pub fn put(&mut self, key: &str, node: RawNode) {
        let place = node.place.clone();
        self.insert(key, node.value, &place);
    }

    fn insert(&mut self, key: &str, value: RawValue, place: &Place) {
        let mut node = &mut self.root;
        for part in key.split('.') {
            if !matches!(node.value, RawValue::Table(_)) {
                node.value = RawValue::Table(Vec::new());
            }
            let RawValue::Table(entries) = &mut node.value else { return };
            let index = entries.iter().position(|entry| entry.key == part).unwrap_or_else(|| {
                let node = RawNode { place: place.clone(), value: RawValue::Table(Vec::new()) };
                entries.push(RawEntry { key: part.to_owned(), place: place.clone(), node });
                entries.len() - 1
            });
            node = &mut entries[index].node;
        }
        *node = RawNode { place: place.clone(), value };
    }
}

fn value_of(text: &str, place: &Place) -> RawValue {
    match DeValue::parse(text) {
        Ok(value) => from_value(value.get_ref(), &|_| place.clone()),
        Err(_) => RawValue::Text(text.to_owned()),
    }
}

/// Mistakes told of a text that is not TOML: a table of data that is taken for a configuration has one in every line.
const SYNTAX_ERRORS_MAX: usize = 10;
/// Bytes between two places whose characters are counted beforehand.
const STRIDE: usize = 1024;

/// Byte spans to lines and columns, without reading the text again for each: a list may have a hundred thousand names, on one line.
struct Lines<'a> {
    text: &'a str,
    path: Arc<Path>,
    /// Bytes at which lines begin.
    starts: Vec<usize>,
    /// Characters before every `STRIDE`-th byte.
    chars: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str, path: &Path) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect();
        let add = |sum: &mut usize, block: &[u8]| {
            let before = *sum;
            *sum += begun(block);
            Some(before)
        };
        let chars = text.as_bytes().chunks(STRIDE).scan(0, add).collect();
        Self { text, path: path.into(), starts, chars }
    }

    fn place(&self, span: Range<usize>) -> Place {
        let at = span.start.min(self.text.len());
        let line = self.starts.partition_point(|start| *start <= at);
        let column = self.chars_before(at) - self.chars_before(self.starts[line - 1]) + 1;
        Place::File { path: self.path.clone(), line, column }
    }

    /// Characters that begin before this byte.
    fn chars_before(&self, at: usize) -> usize {
        let block = (at / STRIDE).min(self.chars.len().saturating_sub(1));
        let counted = self.chars.get(block).copied().unwrap_or(0);
        counted + begun(&self.text.as_bytes()[block * STRIDE..at])
    }
}

/// Characters that begin in these bytes of UTF-8.
fn begun(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

type PlaceOf<'a> = dyn Fn(Range<usize>) -> Place + 'a;

fn from_table(table: &DeTable<'_>, place: &PlaceOf<'_>) -> RawValue {
    let entry = |(key, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| RawEntry {
        key: key.get_ref().to_string(),
        place: place(key.span()),
        node: from_spanned(value, place),
    };
    RawValue::Table(table.iter().map(entry).collect())
}

fn from_spanned(value: &Spanned<DeValue<'_>>, place: &PlaceOf<'_>) -> RawNode {
    RawNode { place: place(value.span()), value: from_value(value.get_ref(), place) }
}

fn from_value(value: &DeValue<'_>, place: &PlaceOf<'_>) -> RawValue {
    match value {
        DeValue::String(text) => RawValue::Text(text.to_string()),
        // A number too large for 64 bits becomes a float, which the range checks then refuse with its value.
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| RawValue::Float(number.as_str().parse().unwrap_or(f64::INFINITY)), RawValue::Integer),
        DeValue::Float(number) => RawValue::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(truth) => RawValue::Bool(*truth),
        DeValue::Datetime(time) => RawValue::Time(time.to_string()),
        DeValue::Array(items) => RawValue::Array(items.iter().map(|item| from_spanned(item, place)).collect()),
        DeValue::Table(table) => from_table(table, place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_characters_in_their_lines() {
        let text = format!("a\n{}é\n\n{}z", "ö".repeat(3000), "☃ x".repeat(2000));
        let lines = Lines::new(&text, Path::new("t.toml"));
        let mut line = 1;
        let mut column = 1;
        for (at, character) in text.char_indices() {
            let expected = Place::File { path: lines.path.clone(), line, column };
            assert_eq!(lines.place(at..at), expected, "byte {at}");
            (line, column) = if character == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        for end in [text.len(), text.len() + 9] {
            assert_eq!(lines.place(end..end), Place::File { path: lines.path.clone(), line, column });
        }
        let empty = Lines::new("", Path::new("t.toml"));
        assert_eq!(empty.place(0..0), Place::File { path: empty.path.clone(), line: 1, column: 1 });
    }
}
