//! A parser for flags whose values are the names of a table.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Returns a parser for the names of a table; those in `hidden` are accepted and not listed.
pub(crate) fn names<T>(
    names: &'static [(&'static str, T)],
    hidden: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let value = move |text: String| {
        let entry = names.iter().chain(hidden).find(|(name, _)| *name == text);
        entry.map(|(_, value)| *value).ok_or("not one of the names")
    };
    let listed = names.iter().map(|(name, _)| PossibleValue::new(*name));
    let accepted = listed.chain(hidden.iter().map(|(name, _)| PossibleValue::new(*name).hide(true)));
    PossibleValuesParser::new(accepted).try_map(value)
}
