//! Names of configuration values: those that serde's derive gives the variants, so that each is written once.

use serde::de::{DeserializeOwned, Error, value::StrDeserializer};
use std::fmt::Display;

/// A text that names no variant, with the names that there are.
#[derive(Debug, thiserror::Error)]
#[error("expected one of {0:?}")]
struct Unnamed(&'static [&'static str]);

impl Error for Unnamed {
    fn custom<T: Display>(_: T) -> Self {
        Self(&[])
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        Self(known)
    }
}

/// The variant of this name.
pub(super) fn named<T: DeserializeOwned>(name: &str) -> Result<T, &'static [&'static str]> {
    T::deserialize(StrDeserializer::new(name)).map_err(|Unnamed(known)| known)
}

/// The names of all variants, in their order.
fn names<T: DeserializeOwned>() -> &'static [&'static str] {
    named::<T>("").err().unwrap_or_default()
}

/// All variants with their names, in their order.
pub(super) fn all<T: DeserializeOwned>() -> Vec<(&'static str, T)> {
    names::<T>().iter().filter_map(|name| Some((*name, named(name).ok()?))).collect()
}

/// The name of a variant.
pub(super) fn name_of<T: DeserializeOwned + PartialEq>(value: &T) -> &'static str {
    names::<T>().iter().find(|name| named(name).as_ref() == Ok(value)).copied().unwrap_or_default()
}
