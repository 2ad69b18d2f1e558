//! Sizes of a graph's values: numbers, and multiples of the batch, which is the only size that a graph leaves open.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dim {
    Fixed(u64),
    /// A multiple of the batch, at least 1.
    Batch(u64),
}

impl Dim {
    pub const BATCH: Self = Self::Batch(1);
    /// An axis of one element, which stretches to any size.
    pub const ONE: Self = Self::Fixed(1);

    /// The size for a batch of so many rows.
    pub const fn of(self, batch: u64) -> u64 {
        match self {
            Self::Fixed(size) => size,
            Self::Batch(times) => times * batch,
        }
    }

    /// The size, where it is always the same.
    pub const fn fixed(self) -> Option<u64> {
        match self {
            Self::Fixed(size) => Some(size),
            Self::Batch(_) => None,
        }
    }

    /// Whether it follows the batch.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Batch(_))
    }
}

impl From<u64> for Dim {
    fn from(size: u64) -> Self {
        Self::Fixed(size)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Batch(1) => f.write_str("batch"),
            Self::Batch(times) => write!(f, "{times}*batch"),
        }
    }
}

/// A number, or `batch`, or `6*batch`.
impl Serialize for Dim {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(size) => to.serialize_u64(*size),
            Self::Batch(_) => to.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(from)? {
            Written::Number(size) => Ok(Self::Fixed(size)),
            Written::Text(text) => {
                let times = match text.strip_suffix("batch") {
                    Some("") => Some(1),
                    Some(times) => times.strip_suffix('*').and_then(|times| times.parse().ok()).filter(|n| *n > 0),
                    None => None,
                };
                times.map(Self::Batch).ok_or_else(|| D::Error::custom(format!("{text} is no size, e.g. 6 or 6*batch")))
            }
        }
    }
}

/// Sizes in words: `[batch, 3, 24]`.
pub fn shape_text(shape: &[Dim]) -> String {
    let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

/// The number of elements, where the batch is not asked for; otherwise how many per row of the batch.
pub fn numel(shape: &[Dim]) -> u64 {
    shape.iter().map(|dim| dim.of(1)).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_they_are_read() {
        let shape = vec![Dim::BATCH, Dim::Fixed(3), Dim::Batch(6)];
        let text = serde_json::to_string(&shape).unwrap();
        assert_eq!(text, r#"["batch",3,"6*batch"]"#);
        assert_eq!(serde_json::from_str::<Vec<Dim>>(&text).unwrap(), shape);
        for wrong in [r#"["0*batch"]"#, r#"["6batch"]"#, r#"["rows"]"#, "[-1]"] {
            assert!(serde_json::from_str::<Vec<Dim>>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(shape_text(&shape), "[batch, 3, 6*batch]");
    }
}
