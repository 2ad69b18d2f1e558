//! The shapes of all keys of a configuration, noted by the code that reads them: the JSON schema for editors is made of these, so that it
//! cannot differ from what `resolve` accepts.

use std::{
    cell::RefCell,
    ops::{Bound, RangeBounds},
    rc::Rc,
};

/// A key and the form in which a value of it is read. A key that has two forms is listed twice.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyShape {
    /// Key path, e.g. "train.epochs". Keys of the items of a list have the path of the list before them.
    pub path: String,
    pub shape: ValueShape,
    /// Whether a configuration without the key is refused where its section is there.
    pub is_required: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ValueShape {
    Section,
    /// A section whose keys are free: names of columns or operations.
    Free,
    Integer {
        least: i64,
        most: i64,
        default: Option<i64>,
    },
    Number {
        low: Bound<f64>,
        high: Bound<f64>,
        default: Option<f64>,
    },
    Pair,
    Numbers,
    Integers,
    Truth(bool),
    Text,
    /// A list of texts, or one text.
    Texts,
    /// One of these names.
    Name(Vec<String>),
    /// A value that code of its own reads.
    Other,
}

impl ValueShape {
    pub(super) fn number(range: &impl RangeBounds<f64>, default: Option<f64>) -> Self {
        Self::Number { low: range.start_bound().cloned(), high: range.end_bound().cloned(), default }
    }

    pub(super) fn of_names<T>(names: &[(&str, T)]) -> Self {
        Self::Name(names.iter().map(|(name, _)| (*name).to_owned()).collect())
    }
}

/// Keys noted so far. Sections of one configuration share it.
pub(super) type Notes = Rc<RefCell<Vec<KeyShape>>>;
