//! A table of the raw tree, read key by key with type and range; every mistake is kept, reading goes on with the default.
//!
//! **Invariant:** a default returned after a mistake is never used: the caller gives up when `errors` is not empty.

use super::{
    error::{ConfigError, ConfigErrorKind, Place, nearest},
    raw::{RawEntry, RawNode, RawValue},
    shape::{KeyShape, Notes, ValueShape},
};
use std::{
    fmt::Display,
    ops::{RangeBounds, RangeInclusive},
};

pub(super) struct Section<'a> {
    path: String,
    pub(super) place: Place,
    entries: &'a [RawEntry],
    known: Vec<&'static str>,
    pub(super) errors: Vec<ConfigError>,
    /// Where the keys that are read are noted, if somebody asked for their shapes.
    notes: Option<Notes>,
}

impl<'a> Section<'a> {
    pub(super) fn root(node: &'a RawNode, notes: Option<Notes>) -> Self {
        Self { notes, ..Self::of(String::new(), node) }
    }

    /// A section in which nothing is said: reading it gives the defaults.
    pub(super) fn empty() -> Self {
        let place = Place::Flag("".into());
        Self { path: String::new(), place, entries: &[], known: Vec::new(), errors: Vec::new(), notes: None }
    }

    fn of(path: String, node: &'a RawNode) -> Self {
        let mut section = Self { path, place: node.place.clone(), ..Self::empty() };
        match &node.value {
            RawValue::Table(entries) => section.entries = entries,
            _ => section.wrong("", node, &ValueShape::Section),
        }
        section
    }

    fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Notes the shape of a key.
    fn note(&self, name: &str, shape: impl FnOnce() -> ValueShape) {
        if let Some(notes) = &self.notes {
            notes.borrow_mut().push(KeyShape { path: self.key(name), shape: shape(), is_required: false });
        }
    }

    /// Notes that a key must be there.
    pub(super) fn note_required(&self, name: &str) {
        let Some(notes) = &self.notes else { return };
        let path = self.key(name);
        notes.borrow_mut().iter_mut().filter(|key| key.path == path).for_each(|key| key.is_required = true);
    }

    fn find(&mut self, name: &'static str) -> Option<&'a RawNode> {
        // A key that may have two shapes is looked up twice, and named once.
        if !self.known.contains(&name) {
            self.known.push(name);
        }
        self.entries.iter().find(|entry| entry.key == name).map(|entry| &entry.node)
    }

    /// Keeps a mistake at `place`.
    pub(super) fn error(&mut self, name: &str, place: Place, kind: ConfigErrorKind) {
        let key = if name.is_empty() { self.path.clone() } else { self.key(name) };
        self.errors.push(ConfigError { place, key, kind });
    }

    /// Keeps a mistake at the value of `name`, or at the section when the key is absent.
    pub(super) fn error_at(&mut self, name: &'static str, kind: ConfigErrorKind) {
        let place = self.place_of(name);
        self.error(name, place, kind);
    }

    /// Where the value of `name` stands; the section's place when it is absent.
    pub(super) fn place_of(&self, name: &str) -> Place {
        let entry = self.entries.iter().find(|entry| entry.key == name);
        entry.map_or_else(|| self.place.clone(), |entry| entry.node.place.clone())
    }

    /// Whether the key is there, without reading it.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == name)
    }

    /// Keeps that a value is of another type.
    pub(super) fn wrong(&mut self, name: &str, node: &RawNode, expected: &ValueShape) {
        let kind = ConfigErrorKind::Type { found: describe(&node.value), expected: expected.to_string() };
        self.error(name, node.place.clone(), kind);
    }

    /// Keeps that the value of `name` is out of its range.
    pub(super) fn out_of_range(&mut self, name: &'static str, found: impl Into<String>, expected: impl Into<String>) {
        self.error_at(name, ConfigErrorKind::Range { found: found.into(), expected: expected.into() });
    }

    pub(super) fn section(&mut self, name: &'static str) -> Option<Self> {
        self.note(name, || ValueShape::Section);
        let node = self.find(name)?;
        Some(Self { notes: self.notes.clone(), ..Self::of(self.key(name), node) })
    }

    pub(super) fn item<'b>(&self, name: &'static str, node: &'b RawNode) -> Section<'b> {
        Section { notes: self.notes.clone(), ..Section::of(self.key(name), node) }
    }

    /// All entries of a section whose keys are free; marks nothing as known.
    pub(super) fn free(&mut self, name: &'static str) -> &'a [RawEntry] {
        self.note(name, || ValueShape::Free);
        match self.find(name) {
            None => &[],
            Some(RawNode { value: RawValue::Table(entries), .. }) => entries,
            Some(node) => {
                self.wrong(name, node, &ValueShape::Free);
                &[]
            }
        }
    }

    /// A whole number within `range`.
    pub(super) fn integer<T>(&mut self, name: &'static str, range: RangeInclusive<T>, default: T) -> T
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        self.note(name, || ValueShape::integer(&range, Some(default)));
        self.find(name).and_then(|node| self.integer_of(name, node, &range)).unwrap_or(default)
    }

    /// A whole number within `range` that has no default.
    pub(super) fn integer_if<T>(&mut self, name: &'static str, range: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        self.note(name, || ValueShape::integer(&range, None));
        self.find(name).and_then(|node| self.integer_of(name, node, &range))
    }

    /// A whole number within `range` that must be there; the least one after a mistake.
    pub(super) fn integer_required<T>(
        &mut self,
        name: &'static str,
        range: RangeInclusive<T>,
        expected: &'static str,
    ) -> T
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        if !self.has(name) {
            self.error_at(name, ConfigErrorKind::Missing(expected));
        }
        let least = *range.start();
        let found = self.integer_if(name, range);
        self.note_required(name);
        found.unwrap_or(least)
    }

    fn integer_of<T>(&mut self, name: &str, node: &RawNode, range: &RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        let expected = ValueShape::integer(range, None);
        let RawValue::Integer(number) = node.value else {
            self.wrong(name, node, &expected);
            return None;
        };
        let value = T::try_from(number).ok().filter(|value| range.contains(value));
        if value.is_none() {
            let kind = ConfigErrorKind::Range { found: number.to_string(), expected: expected.to_string() };
            self.error(name, node.place.clone(), kind);
        }
        value
    }

    /// A finite number within `range`; whole numbers are numbers too.
    pub(super) fn number(&mut self, name: &'static str, range: impl RangeBounds<f64>, default: f64) -> f64 {
        self.note(name, || ValueShape::number(&range, Some(default)));
        self.find(name).and_then(|node| self.number_of(name, node, &range)).unwrap_or(default)
    }

    /// A finite number within `range` that has no default.
    pub(super) fn number_if(&mut self, name: &'static str, range: impl RangeBounds<f64>) -> Option<f64> {
        self.note(name, || ValueShape::number(&range, None));
        self.find(name).and_then(|node| self.number_of(name, node, &range))
    }

    #[expect(clippy::cast_precision_loss, reason = "a configured whole number is far below 2^53")]
    pub(super) fn number_of(&mut self, name: &str, node: &RawNode, range: &impl RangeBounds<f64>) -> Option<f64> {
        let number = match node.value {
            RawValue::Integer(number) => number as f64,
            RawValue::Float(number) => number,
            _ => {
                self.wrong(name, node, &ValueShape::number(range, None));
                return None;
            }
        };
        if number.is_finite() && range.contains(&number) {
            return Some(number);
        }
        let expected = ValueShape::number(range, None).to_string();
        let kind = ConfigErrorKind::Range { found: number.to_string(), expected };
        self.error(name, node.place.clone(), kind);
        None
    }

    /// A pair of numbers, `[low, high]`.
    pub(super) fn pair(&mut self, name: &'static str, range: impl RangeBounds<f64>) -> Option<(f64, f64)> {
        self.note(name, || ValueShape::Pair);
        let node = self.find(name)?;
        self.pair_of(name, node, &range)
    }

    pub(super) fn pair_of(&mut self, name: &str, node: &RawNode, range: &impl RangeBounds<f64>) -> Option<(f64, f64)> {
        match &node.value {
            RawValue::Array(items) if items.len() == 2 => {
                let first = self.number_of(name, &items[0], range);
                let second = self.number_of(name, &items[1], range);
                Some((first?, second?))
            }
            _ => {
                self.wrong(name, node, &ValueShape::Pair);
                None
            }
        }
    }

    pub(super) fn truth(&mut self, name: &'static str, default: bool) -> bool {
        self.note(name, || ValueShape::Truth(Some(default)));
        self.truth_of(name).unwrap_or(default)
    }

    /// True or false, by default something that depends on other keys.
    pub(super) fn truth_if(&mut self, name: &'static str) -> Option<bool> {
        self.note(name, || ValueShape::Truth(None));
        self.truth_of(name)
    }

    fn truth_of(&mut self, name: &'static str) -> Option<bool> {
        let node = self.find(name)?;
        if let RawValue::Bool(truth) = node.value {
            return Some(truth);
        }
        self.wrong(name, node, &ValueShape::Truth(None));
        None
    }

    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        self.note(name, || ValueShape::Text);
        let node = self.find(name)?;
        self.text_of(name, node)
    }

    pub(super) fn text_of(&mut self, name: &str, node: &RawNode) -> Option<String> {
        if let RawValue::Text(text) = &node.value {
            return Some(text.clone());
        }
        self.wrong(name, node, &ValueShape::Text);
        None
    }

    /// Text that must be there; the empty text after a mistake.
    pub(super) fn text_required(&mut self, name: &'static str, expected: &'static str) -> String {
        if !self.has(name) {
            self.error_at(name, ConfigErrorKind::Missing(expected));
        }
        let text = self.text(name).unwrap_or_default();
        self.note_required(name);
        text
    }

    /// A list of texts, or one text for a list of one.
    pub(super) fn texts(&mut self, name: &'static str) -> Option<Vec<String>> {
        self.note(name, || ValueShape::Texts);
        let node = self.find(name)?;
        let items = match &node.value {
            RawValue::Text(text) => return Some(vec![text.clone()]),
            RawValue::Array(items) => items,
            _ => {
                self.wrong(name, node, &ValueShape::Texts);
                return None;
            }
        };
        Some(items.iter().filter_map(|item| self.text_of(name, item)).collect())
    }

    /// A list of column names: not empty and without repetition.
    pub(super) fn columns(&mut self, name: &'static str) -> Vec<String> {
        if !self.has(name) {
            self.error_at(name, ConfigErrorKind::Missing("a list of column names"));
        }
        let columns = self.texts(name).unwrap_or_default();
        self.note_required(name);
        if columns.is_empty() && self.has(name) {
            self.error_at(name, ConfigErrorKind::Empty("column name"));
        }
        self.distinct(name, columns.iter().map(String::as_str));
        columns
    }

    /// Keeps a mistake for a name that comes twice.
    pub(super) fn distinct<'b>(&mut self, name: &'static str, names: impl IntoIterator<Item = &'b str>) {
        let mut seen = std::collections::BTreeSet::new();
        for item in names {
            if !seen.insert(item) {
                self.error_at(name, ConfigErrorKind::Repeated(item.to_owned()));
            }
        }
    }

    /// A list of whole numbers.
    pub(super) fn integers(&mut self, name: &'static str, range: RangeInclusive<usize>) -> Option<Vec<usize>> {
        self.note(name, || ValueShape::Integers);
        let node = self.find(name)?;
        let RawValue::Array(items) = &node.value else {
            self.wrong(name, node, &ValueShape::Integers);
            return None;
        };
        Some(items.iter().filter_map(|item| self.integer_of(name, item, &range)).collect())
    }

    /// A list of numbers, each within `range`.
    pub(super) fn numbers(&mut self, name: &'static str, range: impl RangeBounds<f64>) -> Option<Vec<f64>> {
        self.note(name, || ValueShape::Numbers);
        let node = self.find(name)?;
        self.numbers_of(name, node, &range)
    }

    pub(super) fn numbers_of(&mut self, name: &str, node: &RawNode, range: &impl RangeBounds<f64>) -> Option<Vec<f64>> {
        let RawValue::Array(items) = &node.value else {
            self.wrong(name, node, &ValueShape::Numbers);
            return None;
        };
        Some(items.iter().filter_map(|item| self.number_of(name, item, range)).collect())
    }

    /// Reads one of `names`, or one of `old_names`, which no error mentions.
    pub(super) fn name_or_old<T: Copy>(
        &mut self,
        name: &'static str,
        names: &[(&str, T)],
        old_names: &[(&str, T)],
    ) -> Option<T> {
        self.note(name, || ValueShape::of_names(names));
        let node = self.find(name)?;
        let old = old_names.iter().find(|(old, _)| matches!(&node.value, RawValue::Text(text) if text == old));
        old.map(|(_, value)| *value).or_else(|| self.name_of(name, node, names))
    }

    pub(super) fn name<T: Copy>(&mut self, name: &'static str, names: &[(&str, T)]) -> Option<T> {
        self.note(name, || ValueShape::of_names(names));
        let node = self.find(name)?;
        self.name_of(name, node, names)
    }

    pub(super) fn name_of<T: Copy>(&mut self, name: &str, node: &RawNode, names: &[(&str, T)]) -> Option<T> {
        self.note(name, || ValueShape::of_names(names));
        let known = || names.iter().map(|(known, _)| (*known).to_owned()).collect::<Vec<_>>();
        let RawValue::Text(text) = &node.value else {
            self.wrong(name, node, &ValueShape::of_names(names));
            return None;
        };
        let value = names.iter().find(|(known, _)| known == text).map(|(_, value)| *value);
        if value.is_none() {
            let nearest = nearest(text, names.iter().map(|(known, _)| *known));
            let kind = ConfigErrorKind::UnknownName { found: text.clone(), nearest, known: known() };
            self.error(name, node.place.clone(), kind);
        }
        value
    }

    /// The node of a key that code of its own reads, and what that expects.
    pub(super) fn node(&mut self, name: &'static str, expected: &'static str) -> Option<&'a RawNode> {
        self.note(name, || ValueShape::Other(expected));
        self.find(name)
    }

    /// Makes a key known that is not read: whoever says why it is refused says so instead of "unknown".
    pub(super) fn pass_over(&mut self, name: &'static str) {
        let _passed = self.find(name);
    }

    /// Ends the section: unknown keys are mistakes. All mistakes of the section go to `errors`.
    pub(super) fn finish(mut self, errors: &mut Vec<ConfigError>) {
        for entry in self.entries {
            if !self.known.contains(&entry.key.as_str()) {
                let nearest = nearest(&entry.key, self.known.iter().copied());
                let known = self.known.iter().map(|name| (*name).to_owned()).collect();
                let kind = ConfigErrorKind::UnknownKey { nearest, known };
                self.error(&entry.key, entry.place.clone(), kind);
            }
        }
        errors.append(&mut self.errors);
    }
}

fn describe(value: &RawValue) -> String {
    match value {
        RawValue::Text(text) => format!("the text \"{text}\""),
        RawValue::Integer(number) => format!("the number {number}"),
        RawValue::Float(number) => format!("the number {number}"),
        RawValue::Bool(truth) => truth.to_string(),
        RawValue::Time(time) => format!("the time {time}"),
        RawValue::Array(items) => format!("a list of {}", items.len()),
        RawValue::Table(_) => "a section".into(),
    }
}
