//! Keys that an object of a JSON text has twice: readers take the last of them without a word, and others the first.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::{collections::HashSet, fmt};

/// Bytes of the names and shapes at the beginning of a safetensors file, at most: each of its tensors takes about a hundred, and several
/// times that in memory.
pub const NAMES_BYTES_MAX: u64 = 32 << 20;

/// How many bytes of names and shapes a safetensors file says that it has.
pub fn names_bytes(file: &[u8]) -> u64 {
    file.first_chunk().map_or(0, |length| u64::from_le_bytes(*length))
}

/// The first key that comes twice in one object, at any depth; `None` where there is none, and for what is no JSON.
pub fn twice(json: &[u8]) -> Option<String> {
    let mut found = None;
    let mut text = serde_json::Deserializer::from_slice(json);
    // It stops at the first one, which is an error only to the reader.
    let _read = Look(&mut found).deserialize(&mut text);
    found
}

struct Look<'f>(&'f mut Option<String>);

impl<'de> DeserializeSeed<'de> for Look<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Look<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if let Some(first) = seen.replace(key) {
                *self.0 = Some(first);
                return Err(A::Error::custom("twice"));
            }
            entries.next_value_seed(Look(self.0))?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Look(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_comes_twice_is_named_at_any_depth() {
        let found = |json: &str| twice(json.as_bytes());
        assert_eq!(found(r#"{"a": 1, "b": [true, null, -1, 1.5, "a"], "c": {"a": 2}}"#), None);
        assert_eq!(found(r#"{"a": 1, "b": 2, "a": 1}"#), Some("a".to_owned()));
        assert_eq!(found(r#"{"m": {"x": "1", "\u0078": "2"}}"#), Some("x".to_owned()));
        assert_eq!(found(r#"[{"a": 1}, {"a": 1, "a": 1}]"#), Some("a".to_owned()));
        assert_eq!((found("{"), found(""), found("nonsense")), (None, None, None));
    }
}
