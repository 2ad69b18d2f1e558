//! Rules for single cells: which texts mean "missing", which numbers are believed. Pure.

use super::block::{CellCounts, Key, Kind, NO_TIME, Values, Want};
use crate::stage::{error::CellError, timestamp};

/// Texts that mean "missing". The empty text always does.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct MissingTokens {
    tokens: Vec<String>,
    /// Values of the tokens that are numbers: a cell with such a value must be compared as text.
    numbers: Vec<f64>,
}

impl MissingTokens {
    /// From the configuration.
    pub(crate) fn new(tokens: &[String]) -> Self {
        let tokens: Vec<String> = tokens.iter().map(|token| token.trim().to_string()).collect();
        let numbers = tokens.iter().filter_map(|token| token.parse().ok()).filter(|n: &f64| n.is_finite()).collect();
        Self { tokens, numbers }
    }

    /// Whether a trimmed text means "missing".
    pub(crate) fn contains(&self, text: &str) -> bool {
        text.is_empty() || self.tokens.iter().any(|token| token == text)
    }

    /// Whether any token is a number.
    pub(crate) fn has_numbers(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// Whether a cell with this value may be a token.
    pub(crate) fn may_be(&self, value: f64) -> bool {
        self.numbers.contains(&value)
    }
}

/// What became of one cell, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// A value.
    Valid,
    /// A missing token.
    Missing,
    /// inf or nan.
    NonFinite,
    /// Not believed.
    OutOfRange,
}

impl CellCounts {
    /// Counts one cell.
    pub(crate) fn count(&mut self, found: Found) {
        match found {
            Found::Valid => {}
            Found::Missing => self.missing += 1,
            Found::NonFinite => self.non_finite += 1,
            Found::OutOfRange => self.out_of_range += 1,
        }
    }
}

/// Judges a number.
pub(crate) fn number(value: f64, want: &Want) -> (f64, Found) {
    if value >= want.range.0 && value <= want.range.1 {
        (value, Found::Valid)
    } else if value.is_finite() {
        (f64::NAN, Found::OutOfRange)
    } else {
        (f64::NAN, Found::NonFinite)
    }
}

/// Appends a cell given as trimmed text to its column.
pub(crate) fn push_text(
    text: &str,
    want: &Want,
    missing: &MissingTokens,
    column: &mut Values,
) -> Result<Found, CellError> {
    if missing.contains(text) {
        return push_missing(want, column);
    }
    match column {
        Values::Numbers(values) => {
            let value =
                fast_float2::parse::<f64, _>(text).map_err(|_| CellError::NotANumber { found: text.to_string() })?;
            let (value, found) = number(value, want);
            values.push(value);
            return Ok(found);
        }
        Values::Words(words) if want.kind == Kind::Split => words.push(split(text)?),
        Values::Words(words) => words.push(text),
        Values::Times(values) => {
            let time = timestamp::parse(text.as_bytes());
            values.push(time.ok_or_else(|| CellError::NotATime { found: text.to_string() })?);
        }
        Values::Keys(values) => values.push(key(text)),
    }
    Ok(Found::Valid)
}

/// The name of a split in one of its usual spellings.
fn split(text: &str) -> Result<&'static str, CellError> {
    match text.to_ascii_lowercase().as_str() {
        "train" | "training" => Ok("train"),
        "val" | "valid" | "validation" => Ok("val"),
        "test" | "testing" => Ok("test"),
        _ => Err(CellError::NotASplit { found: text.to_string() }),
    }
}

/// A text as a key: integers are kept.
pub(crate) fn key(text: &str) -> Key {
    text.parse().map_or_else(|_| Key::Text(text.to_string()), Key::Integer)
}

/// Appends a missing cell to its column.
pub(crate) fn push_missing(want: &Want, column: &mut Values) -> Result<Found, CellError> {
    debug_assert_eq!(std::mem::discriminant(&Values::new(want.kind, 0)), std::mem::discriminant(column));
    match column {
        Values::Words(_) if want.kind == Kind::Split => return Err(CellError::NotASplit { found: String::new() }),
        Values::Numbers(values) => values.push(f64::NAN),
        Values::Words(words) => words.push_missing(),
        Values::Times(values) => values.push(NO_TIME),
        Values::Keys(_) => return Err(CellError::NoKey),
    }
    Ok(Found::Missing)
}

/// Appends a number to a column of any kind, as the text it would be written with where the column is no number.
pub(crate) fn push_number(
    value: f64,
    want: &Want,
    missing: &MissingTokens,
    column: &mut Values,
) -> Result<Found, CellError> {
    match want.kind {
        Kind::Number if !missing.may_be(value) => {
            let (value, found) = number(value, want);
            if let Values::Numbers(values) = column {
                values.push(value);
            }
            Ok(found)
        }
        // A nan in a typed column of words or times is how many writers say "nothing".
        Kind::Word | Kind::Time if value.is_nan() => push_missing(want, column),
        _ => push_text(&value.to_string(), want, missing, column),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(text: &str, want: &Want, tokens: &[&str]) -> (Result<Found, CellError>, Values) {
        let tokens: Vec<String> = tokens.iter().map(ToString::to_string).collect();
        let mut column = Values::new(want.kind, 1);
        (push_text(text, want, &MissingTokens::new(&tokens), &mut column), column)
    }

    #[test]
    fn a_number_is_believed_missing_or_an_error() {
        let mut want = Want::new("a", Kind::Number);
        want.range = (0.0, 10.0);
        assert_eq!(cell("3.5", &want, &["NA"]), (Ok(Found::Valid), Values::Numbers(vec![3.5])));
        for (text, found) in
            [("NA", Found::Missing), ("", Found::Missing), ("11", Found::OutOfRange), ("-inf", Found::NonFinite)]
        {
            let (result, column) = cell(text, &want, &["NA"]);
            assert_eq!(result, Ok(found), "{text}");
            assert!(column.numbers()[0].is_nan());
        }
        assert_eq!(cell("n/a", &want, &["NA"]).0, Err(CellError::NotANumber { found: "n/a".into() }));
        assert_eq!(cell("nan", &want, &["nan"]).0, Ok(Found::Missing), "a declared token wins over its value");
        let wide = Want::new("a", Kind::Number);
        assert_eq!(cell("1e300", &wide, &[]).0, Ok(Found::OutOfRange), "more than an f32 holds");
    }

    #[test]
    fn a_token_that_is_a_number_is_compared_as_text() {
        let tokens = MissingTokens::new(&["-999".to_string()]);
        assert!(tokens.may_be(-999.0) && !tokens.may_be(0.0));
        assert!(tokens.contains("-999") && !tokens.contains("-999.0"));
    }

    #[test]
    fn typed_numbers_fit_any_column() {
        let tokens = MissingTokens::default();
        let mut words = Values::new(Kind::Word, 1);
        push_number(7.0, &Want::new("a", Kind::Word), &tokens, &mut words).unwrap();
        assert_eq!(words.words().unwrap().list, ["7"]);
        let mut times = Values::new(Kind::Time, 1);
        push_number(3600.0, &Want::new("a", Kind::Time), &tokens, &mut times).unwrap();
        assert_eq!(times.times(), [3600]);
        let mut keys = Values::new(Kind::Key, 1);
        assert!(push_missing(&Want::new("a", Kind::Key), &mut keys).is_err());
    }
}
