//! Rules for single cells: which texts mean "missing", which numbers are believed. Pure.

use super::block::{CellCounts, Key, Kind, NO_TIME, Values, Want};
use crate::stage::{error::CellError, multi_hot, timestamp};
use enn_common::{
    config::data::{Index, Outside},
    staged::words,
};

/// Texts that mean "missing". The empty text always does.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct MissingTokens {
    tokens: Vec<String>,
    /// Values of the tokens that are numbers: they are compared as such, `-999` is `-999.0`.
    numbers: Vec<f64>,
}

impl MissingTokens {
    /// From the configuration.
    pub(crate) fn new(tokens: &[String]) -> Self {
        let tokens: Vec<String> = tokens.iter().map(|token| token.trim().to_string()).collect();
        let numbers = tokens.iter().filter_map(|token| token.parse().ok()).filter(|n: &f64| n.is_finite()).collect();
        Self { tokens, numbers }
    }

    /// Whether a trimmed text means "missing": it is a token, or the same number as one.
    pub(crate) fn contains(&self, text: &str) -> bool {
        text.is_empty() || self.tokens.iter().any(|token| token == text) || self.is_number(text)
    }

    /// Whether a text is a number that a token is. What is no number as a category, `007`, is none here.
    fn is_number(&self, text: &str) -> bool {
        self.has_numbers() && words::number(text).is_some_and(|text| text.parse().is_ok_and(|value| self.may_be(value)))
    }

    /// The tokens that are numbers.
    pub(crate) fn numbers(&self) -> &[f64] {
        &self.numbers
    }

    /// Whether any token is a number.
    pub(crate) fn has_numbers(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// Whether a cell with this value is a token.
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
    /// Beyond the rows of an index, and the nearest of them now.
    Clamped,
}

impl CellCounts {
    /// Counts one cell.
    pub(crate) fn count(&mut self, found: Found) {
        match found {
            Found::Valid => {}
            Found::Missing => self.missing += 1,
            Found::NonFinite => self.non_finite += 1,
            Found::OutOfRange => self.out_of_range += 1,
            Found::Clamped => self.clamped += 1,
        }
    }
}

/// Judges a number.
pub(crate) fn number(value: f64, want: &Want) -> (f64, Found) {
    if want.sentinel == Some(value) {
        (f64::NAN, Found::Missing)
    } else if value >= want.range.0 && value <= want.range.1 {
        (value, Found::Valid)
    } else if value.is_finite() {
        (f64::NAN, Found::OutOfRange)
    } else {
        (f64::NAN, Found::NonFinite)
    }
}

/// Judges a number, and makes the row of a table of it where it is an index.
fn judged(value: f64, want: &Want) -> Result<(f64, Found), CellError> {
    match (number(value, want), want.kind) {
        ((value, Found::Valid), Kind::Index(index)) => row_of(value, index),
        (judged, _) => Ok(judged),
    }
}

/// The row of an index that an integer is; the unknown id is counted when all of them are known.
fn row_of(value: f64, index: Index) -> Result<(f64, Found), CellError> {
    if value.fract() != 0.0 {
        return Err(CellError::NotAnInteger { found: value.to_string() });
    }
    let row = value - index.offset as f64;
    let last = index.rows.saturating_sub(1) as f64;
    Ok(match index.outside {
        _ if (0.0..=last).contains(&row) => (row, Found::Valid),
        Outside::Unknown => (index.rows as f64, Found::Valid),
        Outside::Clamp => (row.clamp(0.0, last), Found::Clamped),
    })
}

/// Appends a cell given as trimmed text to its column.
pub(crate) fn push_text(
    text: &str,
    want: &Want,
    missing: &MissingTokens,
    column: &mut Values,
) -> Result<Found, CellError> {
    let is_empty_set = matches!(want.kind, Kind::Labels(labels) if text.is_empty() && !labels.empty_is_missing);
    if missing.contains(text) && !is_empty_set {
        return push_missing(want, column);
    }
    match column {
        Values::Numbers(values) => {
            let value =
                fast_float2::parse::<f64, _>(text).map_err(|_| CellError::NotANumber { found: text.to_string() })?;
            if missing.may_be(value) {
                return push_missing(want, column);
            }
            let (value, found) = judged(value, want)?;
            values.push(value);
            return Ok(found);
        }
        Values::Words(words) if want.kind == Kind::Split => words.push(split(text)?),
        Values::Words(words) => words.push(text),
        Values::Times(values) => {
            let time = match want.kind {
                Kind::Calendar if timestamp::is_year_or_month(text.as_bytes()) => None,
                Kind::Calendar => timestamp::parse(text.as_bytes()),
                _ => timestamp::parse_micros(text.as_bytes()),
            };
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

/// A text as a key: integers are kept, as long as they are written as we would write them. `007` is another name than `7`.
pub(crate) fn key(text: &str) -> Key {
    match text.parse::<i64>() {
        Ok(id) if id.to_string() == text => Key::Integer(id),
        _ => Key::Text(text.to_string()),
    }
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

/// How precise a number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Digits {
    /// As an f32.
    Single,
    /// As an IEEE half.
    Half,
    /// As a bfloat16.
    Brain,
}

impl Digits {
    /// The number that is compared with limits and with numbers that mean "missing": as people write it, so that 0.1 is 0.1.
    pub(crate) fn judged(self, value: f64, want: &Want, has_tokens: bool) -> f64 {
        let is_compared = has_tokens || want.sentinel.is_some() || want.range != Want::ANY;
        match is_compared && value.fract() != 0.0 && value.is_finite() {
            true => self.text(value).parse().unwrap_or(value),
            false => value,
        }
    }

    /// The shortest decimal of a number of this precision.
    fn text(self, value: f64) -> String {
        match self {
            Self::Single => words::single(value as f32),
            Self::Half => words::rounded(value, |other| f64::from(half::f16::from_f64(other)) == value),
            Self::Brain => words::rounded(value, |other| f64::from(half::bf16::from_f64(other)) == value),
        }
    }
}

/// A cell of a source that knows types.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cell<'a> {
    /// Nothing.
    Missing,
    /// A real number.
    Real(f64),
    /// A real number of fewer digits than an f64 has: as a word it has no more than these.
    Short(f64, Digits),
    Integer(i64),
    /// An integer that may be larger: as a name or a key it keeps all its digits.
    Wide(i128),
    /// True or false: a number where numbers are, else a word.
    Truth(bool),
    Text(&'a str),
    /// A moment, Unix seconds.
    Time(i64),
    /// A moment between two seconds, microseconds since 1970.
    Moment(i64),
    /// Labels.
    List(&'a [String]),
}

impl Cell<'_> {
    /// The cell as a text, where its column wants one.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Missing => String::new(),
            Self::Real(value) => words::real(*value),
            Self::Short(value, digits) => digits.text(*value),
            Self::Integer(value) => value.to_string(),
            Self::Wide(value) => value.to_string(),
            Self::Truth(value) => value.to_string(),
            Self::Text(text) => text.trim().to_string(),
            Self::Time(seconds) => timestamp::text(*seconds),
            Self::Moment(micros) => timestamp::text_micros(*micros),
            Self::List(labels) => multi_hot::listed(labels),
        }
    }

    /// Bytes that are equal for equal cells.
    pub(crate) fn fingerprint(&self, out: &mut Vec<u8>) {
        let (kind, number) = match self {
            Self::Missing => (0u8, 0),
            Self::Real(value) | Self::Short(value, _) => (1, value.to_bits()),
            Self::Integer(value) => (2, *value as u64),
            Self::Wide(value) => {
                out.extend_from_slice(&value.to_le_bytes());
                (6, 0)
            }
            Self::Truth(value) => (7, u64::from(*value)),
            Self::Time(seconds) => (3, *seconds as u64),
            Self::Moment(micros) => (8, *micros as u64),
            Self::List(labels) => {
                labels.iter().for_each(|label| Cell::Text(label).fingerprint(out));
                (5, labels.len() as u64)
            }
            Self::Text(text) => {
                out.push(4);
                out.extend_from_slice(text.as_bytes());
                // No text holds this byte, so no two rows of texts run together.
                return out.push(0xff);
            }
        };
        out.push(kind);
        out.extend_from_slice(&number.to_le_bytes());
    }
}

/// Appends a time to its column.
fn push_time(time: i64, column: &mut Values) -> Found {
    if let Values::Times(times) = column {
        times.push(time);
    }
    Found::Valid
}

/// Appends a typed cell to its column.
pub(crate) fn push_cell(
    cell: Cell<'_>,
    want: &Want,
    missing: &MissingTokens,
    column: &mut Values,
) -> Result<Found, CellError> {
    let exact = if let Cell::Short(value, _) = cell { Some(value) } else { None };
    let is_name = matches!(want.kind, Kind::Word | Kind::Labels(_) | Kind::Key);
    let cell = match cell {
        Cell::Short(value, digits) if !is_name => Cell::Real(digits.judged(value, want, missing.has_numbers())),
        Cell::Short(value, _) if value.is_nan() => Cell::Real(value),
        cell => cell,
    };
    let value = match (cell, want.kind) {
        // Writers have no other way to say that a text is empty.
        (Cell::Missing, Kind::Labels(_)) => return push_text("", want, missing, column),
        (Cell::Real(value), Kind::Labels(_)) if value.is_nan() => return push_text("", want, missing, column),
        (Cell::Missing, _) => return push_missing(want, column),
        // A nan among words or times is how many writers say "nothing".
        (Cell::Real(value), kind) if value.is_nan() && kind != Kind::Number => return push_missing(want, column),
        (Cell::Real(value), Kind::Number | Kind::Index(_)) if !missing.may_be(value) => value,
        (Cell::Integer(value), Kind::Number | Kind::Index(_)) if !missing.may_be(value as f64) => value as f64,
        (Cell::Wide(value), Kind::Number | Kind::Index(_)) if !missing.may_be(value as f64) => value as f64,
        (Cell::Truth(value), Kind::Number | Kind::Index(_)) => f64::from(u8::from(value)),
        (Cell::Time(seconds), Kind::Calendar) => return Ok(push_time(seconds, column)),
        (Cell::Time(seconds), Kind::Time) => {
            return Ok(push_time(seconds.saturating_mul(timestamp::SECOND_US), column));
        }
        (Cell::Moment(micros), Kind::Calendar) => {
            return Ok(push_time(micros.div_euclid(timestamp::SECOND_US), column));
        }
        (Cell::Moment(micros), Kind::Time) => return Ok(push_time(micros, column)),
        (Cell::Text(text), _) => return push_text(text.trim(), want, missing, column),
        _ => return push_text(&cell.text(), want, missing, column),
    };
    let (value, found) = judged(value, want)?;
    let kept = exact.filter(|_| found == Found::Valid && want.kind == Kind::Number).unwrap_or(value);
    if let Values::Numbers(values) = column {
        values.push(kept);
    }
    Ok(found)
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
    fn a_token_that_is_a_number_is_that_number_in_every_format() {
        let tokens = MissingTokens::new(&["-999".to_string(), "0.1".to_string()]);
        assert!(tokens.may_be(-999.0) && !tokens.may_be(0.0));
        assert!(["-999", "-999.0", "-9.99e2", "0.10"].into_iter().all(|text| tokens.contains(text)));
        assert!(!["-0999", "999", "-999.5", "x"].into_iter().any(|text| tokens.contains(text)));
        for kind in [Kind::Number, Kind::Word] {
            for text in ["-999.0", "0.10", "-999"] {
                assert_eq!(cell(text, &Want::new("a", kind), &["-999", "0.1"]).0, Ok(Found::Missing), "{text}");
            }
            let tenth = Cell::Short(f64::from(0.1f32), Digits::Single);
            for typed in [tenth, Cell::Real(-999.0), Cell::Integer(-999), Cell::Wide(-999), Cell::Real(0.1)] {
                let mut column = Values::new(kind, 1);
                let found = push_cell(typed, &Want::new("a", kind), &tokens, &mut column);
                assert_eq!(found, Ok(Found::Missing), "{typed:?}");
            }
        }
        assert_eq!(cell("0999", &Want::new("a", Kind::Number), &["999"]).0, Ok(Found::Missing), "a number is a number");
        assert_eq!(cell("0999", &Want::new("a", Kind::Word), &["999"]).0, Ok(Found::Valid), "and a text is a text");
    }

    #[test]
    fn limits_of_an_f32_are_those_that_are_written() {
        let mut want = Want::new("a", Kind::Number);
        want.range = (0.0, 0.1);
        let tenth = Cell::Short(f64::from(0.1f32), Digits::Single);
        let push = |want: &Want| {
            let mut column = Values::new(want.kind, 1);
            let found = push_cell(tenth, want, &MissingTokens::default(), &mut column);
            (found, column.numbers()[0] as f32)
        };
        assert_eq!(push(&want), (Ok(Found::Valid), 0.1));
        want.sentinel = Some(0.1);
        assert_eq!(push(&want).0, Ok(Found::Missing));
    }

    #[test]
    fn typed_cells_fit_any_column() {
        let tokens = MissingTokens::new(&["-1".to_string()]);
        let push = |cell, kind| {
            let mut column = Values::new(kind, 1);
            (push_cell(cell, &Want::new("a", kind), &tokens, &mut column), column)
        };
        assert_eq!(push(Cell::Integer(7), Kind::Word).1.words().unwrap().list, ["7"]);
        assert_eq!(push(Cell::Integer(3600), Kind::Time).1.times(), [3_600_000_000]);
        assert_eq!(push(Cell::Moment(1_100_000), Kind::Time).1.times(), [1_100_000]);
        assert_eq!(push(Cell::Moment(-100_000), Kind::Calendar).1.times(), [-1]);
        let large = u64::MAX;
        assert_eq!(push(Cell::Wide(large.into()), Kind::Key).1.keys(), [Key::Text(large.to_string())]);
        assert_eq!(push(Cell::Wide(large.into()), Kind::Number).1.numbers(), [large as f64]);
        assert_eq!(push(Cell::Wide(7), Kind::Key).1.keys(), [Key::Integer(7)]);
        assert_eq!(push(Cell::Truth(true), Kind::Word).1.words().unwrap().list, ["true"]);
        assert_eq!(push(Cell::Truth(true), Kind::Number).1.numbers(), [1.0]);
        assert!(push(Cell::Truth(true), Kind::Time).0.is_err(), "it is no second of 1970");
        assert_eq!(push(Cell::Time(5), Kind::Time).1.times(), [5_000_000]);
        assert_eq!(push(Cell::Integer(-1), Kind::Number).0, Ok(Found::Missing));
        assert_eq!(push(Cell::Real(f64::NAN), Kind::Number).0, Ok(Found::NonFinite));
        assert_eq!(push(Cell::Real(f64::NAN), Kind::Word).0, Ok(Found::Missing));
        assert_eq!(push(Cell::Text(" 2.5 "), Kind::Number).1.numbers(), [2.5]);
        assert!(push(Cell::Missing, Kind::Key).0.is_err());
        assert!(push(Cell::Time(0), Kind::Number).0.is_err(), "a moment is no number");
    }

    #[test]
    fn a_year_is_no_second_of_1970_where_day_and_hour_count() {
        let calendar = Want::new("a", Kind::Calendar);
        let time = Want::new("a", Kind::Time);
        for text in ["2019", "1000", "2999", "202401", "190012"] {
            assert_eq!(cell(text, &calendar, &[]).0, Err(CellError::NotATime { found: text.into() }));
            let micros = text.parse::<i64>().unwrap() * 1_000_000;
            assert_eq!(cell(text, &time, &[]).1.times(), [micros], "steps of a window are any");
        }
        for text in ["999", "3000", "0", "-2019", "202400", "202413", "1600000000"] {
            assert_eq!(cell(text, &calendar, &[]).1.times(), [text.parse::<i64>().unwrap()]);
        }
        let mut column = Values::new(calendar.kind, 1);
        let typed = push_cell(Cell::Integer(2019), &calendar, &MissingTokens::default(), &mut column);
        assert_eq!(typed, Err(CellError::NotATime { found: "2019".into() }));
        let told = typed.unwrap_err().to_string();
        assert!(told.ends_with("a year has neither day nor hour: read the column with kind = \"number\""), "{told}");
        push_cell(Cell::Time(2019), &calendar, &MissingTokens::default(), &mut column).unwrap();
        assert_eq!(column.times(), [2019], "a type that says so is a time");
    }

    #[test]
    fn keys_that_are_written_differently_are_different() {
        assert_eq!(["7", "-7", "0"].map(key), [7, -7, 0].map(Key::Integer));
        for text in ["007", "+7", "-0", "7.0", "9223372036854775808"] {
            assert_eq!(key(text), Key::Text(text.to_owned()));
        }
    }

    #[test]
    fn an_index_is_a_row_and_what_is_none_is_unknown_or_the_nearest() {
        let index = |outside| Want::new("a", Kind::Index(Index { offset: 10, rows: 3, outside }));
        let unknown = index(Outside::Unknown);
        let clamp = index(Outside::Clamp);
        for (text, row, found) in [("10", 0.0, Found::Valid), ("12.0", 2.0, Found::Valid)] {
            for want in [&unknown, &clamp] {
                assert_eq!(cell(text, want, &[]), (Ok(found), Values::Numbers(vec![row])));
            }
        }
        for (text, nearest) in [("9", 0.0), ("13", 2.0), ("-1e9", 0.0)] {
            assert_eq!(cell(text, &unknown, &[]), (Ok(Found::Valid), Values::Numbers(vec![3.0])), "{text}");
            assert_eq!(cell(text, &clamp, &[]), (Ok(Found::Clamped), Values::Numbers(vec![nearest])), "{text}");
        }
        assert_eq!(cell("NA", &clamp, &["NA"]).0, Ok(Found::Missing));
        assert_eq!(cell("10.5", &clamp, &[]).0, Err(CellError::NotAnInteger { found: "10.5".into() }));
        let mut column = Values::new(clamp.kind, 1);
        push_cell(Cell::Integer(12), &clamp, &MissingTokens::default(), &mut column).unwrap();
        assert_eq!(column.numbers(), [2.0]);
    }

    #[test]
    fn an_empty_cell_of_labels_has_none_unless_that_means_missing() {
        use enn_common::config::data::Labels;
        let labels = |empty_is_missing| Want::new("a", Kind::Labels(Labels { separator: ';', empty_is_missing }));
        for (empty_is_missing, found) in [(false, Found::Valid), (true, Found::Missing)] {
            let want = labels(empty_is_missing);
            assert_eq!(cell("", &want, &["NA"]).0, Ok(found));
            assert_eq!(cell("NA", &want, &["NA"]).0, Ok(Found::Missing));
            for empty in [Cell::Missing, Cell::Real(f64::NAN), Cell::Text(" ")] {
                let mut column = Values::new(want.kind, 1);
                assert_eq!(push_cell(empty, &want, &MissingTokens::default(), &mut column), Ok(found), "{empty:?}");
            }
            let mut column = Values::new(want.kind, 1);
            let none = push_cell(Cell::List(&[]), &want, &MissingTokens::default(), &mut column);
            assert_eq!(none, Ok(Found::Valid), "a list without labels says so");
        }
    }

    #[test]
    fn fingerprints_do_not_run_together() {
        let print = |cells: &[Cell<'_>]| {
            let mut out = Vec::new();
            cells.iter().for_each(|cell| cell.fingerprint(&mut out));
            out
        };
        assert_ne!(print(&[Cell::Text("ab"), Cell::Text("c")]), print(&[Cell::Text("a"), Cell::Text("bc")]));
        assert_ne!(print(&[Cell::Missing]), print(&[Cell::Integer(0)]));
    }
}
