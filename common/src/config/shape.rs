//! The shapes of all keys of a configuration, noted by the code that reads them: the JSON schema for editors is made of these, so that it
//! cannot differ from what `resolve` accepts.

use std::{
    cell::RefCell,
    fmt,
    ops::{Bound, RangeBounds, RangeInclusive},
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
    /// True or false, and the default where it depends on no other key.
    Truth(Option<bool>),
    Text,
    /// A list of texts, or one text.
    Texts,
    /// One of these names.
    Name(Vec<String>),
    /// A value that code of its own reads, and what that expects.
    Other(&'static str),
}

impl ValueShape {
    pub(super) fn integer<T: fmt::Display + Copy>(range: &RangeInclusive<T>, default: Option<T>) -> Self {
        let whole = |value: T| value.to_string().parse().unwrap_or(i64::MAX);
        Self::Integer { least: whole(*range.start()), most: whole(*range.end()), default: default.map(whole) }
    }

    pub(super) fn number(range: &impl RangeBounds<f64>, default: Option<f64>) -> Self {
        Self::Number { low: range.start_bound().cloned(), high: range.end_bound().cloned(), default }
    }

    pub(super) fn of_names<T>(names: &[(&str, T)]) -> Self {
        Self::Name(names.iter().map(|(name, _)| (*name).to_owned()).collect())
    }
}

/// What is expected of a value, as errors and help say it.
impl fmt::Display for ValueShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Section | Self::Free => f.write_str("a section"),
            Self::Integer { least, most, .. } => write!(f, "a whole number from {least} to {most}"),
            Self::Number { low, high, .. } => {
                let low = match *low {
                    Bound::Included(low) => Some(format!("at least {}", short(low))),
                    Bound::Excluded(low) => Some(format!("above {}", short(low))),
                    Bound::Unbounded => None,
                };
                let high = match *high {
                    Bound::Included(high) => Some(format!("at most {}", short(high))),
                    Bound::Excluded(high) => Some(format!("below {}", short(high))),
                    Bound::Unbounded => None,
                };
                match (low, high) {
                    (Some(low), Some(high)) => write!(f, "a number {low} and {high}"),
                    (Some(one), None) | (None, Some(one)) => write!(f, "a number {one}"),
                    (None, None) => f.write_str("a number that is finite"),
                }
            }
            Self::Pair => f.write_str("two numbers, [a, b]"),
            Self::Numbers => f.write_str("a list of numbers"),
            Self::Integers => f.write_str("a list of whole numbers"),
            Self::Truth(_) => f.write_str("true or false"),
            Self::Text => f.write_str("text in quotes"),
            Self::Texts => f.write_str("a list of texts"),
            Self::Name(names) => write!(f, "one of: {}", names.join(", ")),
            Self::Other(expected) => f.write_str(expected),
        }
    }
}

/// Returns a bound with its digits, or with a power of ten where most of them were zeros.
fn short(bound: f64) -> String {
    if bound != 0.0 && !(1e-4..1e10).contains(&bound.abs()) { format!("{bound:e}") } else { bound.to_string() }
}

/// Keys noted so far. Sections of one configuration share it.
pub(super) type Notes = Rc<RefCell<Vec<KeyShape>>>;
