//! Rules for single cells: texts that mean "missing", and accepted numbers. Pure.

use super::block::{CellCounts, ColumnKind, ColumnSpec, Key, NO_TIME, Values};
use crate::stage::{error::CellError, label_cell, timestamp};
use enn_common::{
    config::data::{Index, Outside},
    staged::words,
};

/// Texts that mean "missing", besides the empty text.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct MissingTokens {
    tokens: Vec<String>,
    /// Values of the numeric tokens, which are compared as numbers: `-999` is `-999.0`.
    numbers: Vec<f64>,
}

impl MissingTokens {
    pub(crate) fn new(tokens: &[String]) -> Self {
        let tokens: Vec<String> = tokens.iter().map(|token| token.trim().to_string()).collect();
        let numbers = tokens.iter().filter_map(|token| token.parse().ok()).filter(|n: &f64| n.is_finite()).collect();
        Self { tokens, numbers }
    }

    /// Whether a trimmed text means "missing": it is a token, or the same number as a token.
    pub(crate) fn contains(&self, text: &str) -> bool {
        text.is_empty() || self.tokens.iter().any(|token| token == text) || self.is_number(text)
    }

    /// Whether a text is the same number as a token. A text like `007`, which is not a number as a category, is not a number here.
    fn is_number(&self, text: &str) -> bool {
        self.has_numbers() && words::number(text).is_some_and(|text| text.parse().is_ok_and(|value| self.may_be(value)))
    }

    pub(crate) fn numbers(&self) -> &[f64] {
        &self.numbers
    }

    pub(crate) fn has_numbers(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// Whether a cell with this value is a token.
    pub(crate) fn may_be(&self, value: f64) -> bool {
        self.numbers.contains(&value)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellOutcome {
    Valid,
    Missing,
    NonFinite,
    OutOfRange,
    /// The number was outside the rows of an index and became the nearest row.
    Clamped,
}

impl CellCounts {
    pub(crate) fn count(&mut self, found: CellOutcome) {
        match found {
            CellOutcome::Valid => {}
            CellOutcome::Missing => self.missing += 1,
            CellOutcome::NonFinite => self.non_finite += 1,
            CellOutcome::OutOfRange => self.out_of_range += 1,
            CellOutcome::Clamped => self.clamped += 1,
        }
    }
}

/// Checks a number against sentinel and range; NaN where it counts as missing.
pub(crate) fn number(value: f64, spec: &ColumnSpec) -> (f64, CellOutcome) {
    if spec.sentinel == Some(value) {
        (f64::NAN, CellOutcome::Missing)
    } else if value >= spec.range.0 && value <= spec.range.1 {
        (value, CellOutcome::Valid)
    } else if value.is_finite() {
        (f64::NAN, CellOutcome::OutOfRange)
    } else {
        (f64::NAN, CellOutcome::NonFinite)
    }
}

/// Checks a number, and converts it to its row where the column is an index.
fn checked(value: f64, spec: &ColumnSpec) -> Result<(f64, CellOutcome), CellError> {
    match (number(value, spec), spec.kind) {
        ((value, CellOutcome::Valid), ColumnKind::Index(index)) => row_of(value, index),
        (checked, _) => Ok(checked),
    }
}

/// Returns the row of an integer in an index; unknown ids are counted later.
fn row_of(value: f64, index: Index) -> Result<(f64, CellOutcome), CellError> {
    if value.fract() != 0.0 {
        return Err(CellError::NotAnInteger { found: value.to_string() });
    }
    let row = value - index.offset as f64;
    let last = index.rows.saturating_sub(1) as f64;
    Ok(match index.outside {
        _ if (0.0..=last).contains(&row) => (row, CellOutcome::Valid),
        Outside::Unknown => (index.rows as f64, CellOutcome::Valid),
        Outside::Clamp => (row.clamp(0.0, last), CellOutcome::Clamped),
    })
}

pub(crate) fn push_text(
    text: &str,
    spec: &ColumnSpec,
    missing: &MissingTokens,
    column: &mut Values,
) -> Result<CellOutcome, CellError> {
    let is_empty_set = matches!(spec.kind, ColumnKind::Labels(labels) if text.is_empty() && !labels.empty_is_missing);
    if missing.contains(text) && !is_empty_set {
        return push_missing(spec, column);
    }
    match column {
        Values::Numbers(values) => {
            let value =
                fast_float2::parse::<f64, _>(text).map_err(|_| CellError::NotANumber { found: text.to_string() })?;
            if missing.may_be(value) {
                return push_missing(spec, column);
            }
            let (value, found) = checked(value, spec)?;
            values.push(value);
            return Ok(found);
        }
        Values::Words(words) if spec.kind == ColumnKind::Split => words.push(split(text)?),
        Values::Words(words) => words.push(text),
        Values::Times(values) => {
            let time = match spec.kind {
                ColumnKind::Calendar if timestamp::is_year_or_month(text.as_bytes()) => None,
                ColumnKind::Calendar => timestamp::parse(text.as_bytes()),
                _ => timestamp::parse_micros(text.as_bytes()),
            };
            values.push(time.ok_or_else(|| CellError::NotATime { found: text.to_string() })?);
        }
        Values::Keys(values) => values.push(key(text)),
    }
    Ok(CellOutcome::Valid)
}

fn split(text: &str) -> Result<&'static str, CellError> {
    match text.to_ascii_lowercase().as_str() {
        "train" | "training" => Ok("train"),
        "val" | "valid" | "validation" => Ok("val"),
        "test" | "testing" => Ok("test"),
        _ => Err(CellError::NotASplit { found: text.to_string() }),
    }
}

/// Converts a text to a key: an integer in canonical spelling, otherwise a text, so that `007` differs from `7`.
pub(crate) fn key(text: &str) -> Key {
    match text.parse::<i64>() {
        Ok(id) if id.to_string() == text => Key::Integer(id),
        _ => Key::Text(text.to_string()),
    }
}

pub(crate) fn push_missing(spec: &ColumnSpec, column: &mut Values) -> Result<CellOutcome, CellError> {
    debug_assert_eq!(std::mem::discriminant(&Values::new(spec.kind, 0)), std::mem::discriminant(column));
    match column {
        Values::Words(_) if spec.kind == ColumnKind::Split => {
            return Err(CellError::NotASplit { found: String::new() });
        }
        Values::Numbers(values) => values.push(f64::NAN),
        Values::Words(words) => words.push_missing(),
        Values::Times(values) => values.push(NO_TIME),
        Values::Keys(_) => return Err(CellError::NoKey),
    }
    Ok(CellOutcome::Missing)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Digits {
    /// Type f32.
    Single,
    /// Type IEEE half.
    Half,
    /// Type bfloat16.
    Brain,
}

impl Digits {
    /// Returns the number to compare with ranges and missing tokens: its shortest decimal, so that an f32 0.1 equals 0.1.
    pub(crate) fn comparable(self, value: f64, spec: &ColumnSpec, has_tokens: bool) -> f64 {
        let is_compared = has_tokens || spec.sentinel.is_some() || spec.range != ColumnSpec::ANY;
        match is_compared && value.fract() != 0.0 && value.is_finite() {
            true => self.text(value).parse().unwrap_or(value),
            false => value,
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Single => words::single(value as f32),
            Self::Half => words::rounded(value, |other| f64::from(half::f16::from_f64(other)) == value),
            Self::Brain => words::rounded(value, |other| f64::from(half::bf16::from_f64(other)) == value),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cell<'a> {
    Missing,
    /// A real number, f64.
    Real(f64),
    /// A real number of lower precision, whose text has only the digits of its type.
    Short(f64, Digits),
    Integer(i64),
    /// An integer beyond i64, whose text has all digits.
    Wide(i128),
    /// A truth value: 0 or 1 in a number column, otherwise a word.
    Truth(bool),
    Text(&'a str),
    /// A time, Unix seconds.
    Time(i64),
    /// A time with a fraction of a second, microseconds since 1970.
    Moment(i64),
    List(&'a [String]),
}

impl Cell<'_> {
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
            Self::List(labels) => label_cell::listed(labels),
        }
    }

    /// Appends bytes that are equal exactly for equal cells.
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
                // UTF-8 never contains this byte, so the end of a text is unambiguous.
                return out.push(0xff);
            }
        };
        out.push(kind);
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn push_time(time: i64, column: &mut Values) -> CellOutcome {
    if let Values::Times(times) = column {
        times.push(time);
    }
    CellOutcome::Valid
}

pub(crate) fn push_cell(
    cell: Cell<'_>,
    spec: &ColumnSpec,
    missing: &MissingTokens,
    column: &mut Values,
) -> Result<CellOutcome, CellError> {
    let exact = if let Cell::Short(value, _) = cell { Some(value) } else { None };
    let is_name = matches!(spec.kind, ColumnKind::Word | ColumnKind::Labels(_) | ColumnKind::Key);
    let cell = match cell {
        Cell::Short(value, digits) if !is_name => Cell::Real(digits.comparable(value, spec, missing.has_numbers())),
        Cell::Short(value, _) if value.is_nan() => Cell::Real(value),
        cell => cell,
    };
    let value = match (cell, spec.kind) {
        // Writers cannot distinguish an empty text from a missing one.
        (Cell::Missing, ColumnKind::Labels(_)) => return push_text("", spec, missing, column),
        (Cell::Real(value), ColumnKind::Labels(_)) if value.is_nan() => return push_text("", spec, missing, column),
        (Cell::Missing, _) => return push_missing(spec, column),
        // Many writers use nan for missing words and times.
        (Cell::Real(value), kind) if value.is_nan() && kind != ColumnKind::Number => return push_missing(spec, column),
        (Cell::Real(value), ColumnKind::Number | ColumnKind::Index(_)) if !missing.may_be(value) => value,
        (Cell::Integer(value), ColumnKind::Number | ColumnKind::Index(_)) if !missing.may_be(value as f64) => {
            value as f64
        }
        (Cell::Wide(value), ColumnKind::Number | ColumnKind::Index(_)) if !missing.may_be(value as f64) => value as f64,
        (Cell::Truth(value), ColumnKind::Number | ColumnKind::Index(_)) => f64::from(u8::from(value)),
        (Cell::Time(seconds), ColumnKind::Calendar) => return Ok(push_time(seconds, column)),
        (Cell::Time(seconds), ColumnKind::Time) => {
            return Ok(push_time(seconds.saturating_mul(timestamp::SECOND_US), column));
        }
        (Cell::Moment(micros), ColumnKind::Calendar) => {
            return Ok(push_time(micros.div_euclid(timestamp::SECOND_US), column));
        }
        (Cell::Moment(micros), ColumnKind::Time) => return Ok(push_time(micros, column)),
        (Cell::Text(text), _) => return push_text(text.trim(), spec, missing, column),
        _ => return push_text(&cell.text(), spec, missing, column),
    };
    let (value, found) = checked(value, spec)?;
    let kept = exact.filter(|_| found == CellOutcome::Valid && spec.kind == ColumnKind::Number).unwrap_or(value);
    if let Values::Numbers(values) = column {
        values.push(kept);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(text: &str, spec: &ColumnSpec, tokens: &[&str]) -> (Result<CellOutcome, CellError>, Values) {
        let tokens: Vec<String> = tokens.iter().map(ToString::to_string).collect();
        let mut column = Values::new(spec.kind, 1);
        (push_text(text, spec, &MissingTokens::new(&tokens), &mut column), column)
    }

    #[test]
    fn a_number_is_believed_missing_or_an_error() {
        let mut spec = ColumnSpec::new("a", ColumnKind::Number);
        spec.range = (0.0, 10.0);
        assert_eq!(cell("3.5", &spec, &["NA"]), (Ok(CellOutcome::Valid), Values::Numbers(vec![3.5])));
        for (text, found) in [
            ("NA", CellOutcome::Missing),
            ("", CellOutcome::Missing),
            ("11", CellOutcome::OutOfRange),
            ("-inf", CellOutcome::NonFinite),
        ] {
            let (result, column) = cell(text, &spec, &["NA"]);
            assert_eq!(result, Ok(found), "{text}");
            assert!(column.numbers()[0].is_nan());
        }
        assert_eq!(cell("n/a", &spec, &["NA"]).0, Err(CellError::NotANumber { found: "n/a".into() }));
        assert_eq!(cell("nan", &spec, &["nan"]).0, Ok(CellOutcome::Missing), "a declared token wins over its value");
        let wide = ColumnSpec::new("a", ColumnKind::Number);
        assert_eq!(cell("1e300", &wide, &[]).0, Ok(CellOutcome::OutOfRange), "more than an f32 holds");
    }

    #[test]
    fn a_token_that_is_a_number_is_that_number_in_every_format() {
        let tokens = MissingTokens::new(&["-999".to_string(), "0.1".to_string()]);
        assert!(tokens.may_be(-999.0) && !tokens.may_be(0.0));
        assert!(["-999", "-999.0", "-9.99e2", "0.10"].into_iter().all(|text| tokens.contains(text)));
        assert!(!["-0999", "999", "-999.5", "x"].into_iter().any(|text| tokens.contains(text)));
        for kind in [ColumnKind::Number, ColumnKind::Word] {
            for text in ["-999.0", "0.10", "-999"] {
                assert_eq!(
                    cell(text, &ColumnSpec::new("a", kind), &["-999", "0.1"]).0,
                    Ok(CellOutcome::Missing),
                    "{text}"
                );
            }
            let tenth = Cell::Short(f64::from(0.1f32), Digits::Single);
            for typed in [tenth, Cell::Real(-999.0), Cell::Integer(-999), Cell::Wide(-999), Cell::Real(0.1)] {
                let mut column = Values::new(kind, 1);
                let found = push_cell(typed, &ColumnSpec::new("a", kind), &tokens, &mut column);
                assert_eq!(found, Ok(CellOutcome::Missing), "{typed:?}");
            }
        }
        assert_eq!(
            cell("0999", &ColumnSpec::new("a", ColumnKind::Number), &["999"]).0,
            Ok(CellOutcome::Missing),
            "a number is a number"
        );
        assert_eq!(
            cell("0999", &ColumnSpec::new("a", ColumnKind::Word), &["999"]).0,
            Ok(CellOutcome::Valid),
            "and a text is a text"
        );
    }

    #[test]
    fn limits_of_an_f32_are_those_that_are_written() {
        let mut spec = ColumnSpec::new("a", ColumnKind::Number);
        spec.range = (0.0, 0.1);
        let tenth = Cell::Short(f64::from(0.1f32), Digits::Single);
        let push = |spec: &ColumnSpec| {
            let mut column = Values::new(spec.kind, 1);
            let found = push_cell(tenth, spec, &MissingTokens::default(), &mut column);
            (found, column.numbers()[0] as f32)
        };
        assert_eq!(push(&spec), (Ok(CellOutcome::Valid), 0.1));
        spec.sentinel = Some(0.1);
        assert_eq!(push(&spec).0, Ok(CellOutcome::Missing));
    }

    #[test]
    fn typed_cells_fit_any_column() {
        let tokens = MissingTokens::new(&["-1".to_string()]);
        let push = |cell, kind| {
            let mut column = Values::new(kind, 1);
            (push_cell(cell, &ColumnSpec::new("a", kind), &tokens, &mut column), column)
        };
        assert_eq!(push(Cell::Integer(7), ColumnKind::Word).1.words().unwrap().list, ["7"]);
        assert_eq!(push(Cell::Integer(3600), ColumnKind::Time).1.times(), [3_600_000_000]);
        assert_eq!(push(Cell::Moment(1_100_000), ColumnKind::Time).1.times(), [1_100_000]);
        assert_eq!(push(Cell::Moment(-100_000), ColumnKind::Calendar).1.times(), [-1]);
        let large = u64::MAX;
        assert_eq!(push(Cell::Wide(large.into()), ColumnKind::Key).1.keys(), [Key::Text(large.to_string())]);
        assert_eq!(push(Cell::Wide(large.into()), ColumnKind::Number).1.numbers(), [large as f64]);
        assert_eq!(push(Cell::Wide(7), ColumnKind::Key).1.keys(), [Key::Integer(7)]);
        assert_eq!(push(Cell::Truth(true), ColumnKind::Word).1.words().unwrap().list, ["true"]);
        assert_eq!(push(Cell::Truth(true), ColumnKind::Number).1.numbers(), [1.0]);
        assert!(push(Cell::Truth(true), ColumnKind::Time).0.is_err(), "it is no second of 1970");
        assert_eq!(push(Cell::Time(5), ColumnKind::Time).1.times(), [5_000_000]);
        assert_eq!(push(Cell::Integer(-1), ColumnKind::Number).0, Ok(CellOutcome::Missing));
        assert_eq!(push(Cell::Real(f64::NAN), ColumnKind::Number).0, Ok(CellOutcome::NonFinite));
        assert_eq!(push(Cell::Real(f64::NAN), ColumnKind::Word).0, Ok(CellOutcome::Missing));
        assert_eq!(push(Cell::Text(" 2.5 "), ColumnKind::Number).1.numbers(), [2.5]);
        assert!(push(Cell::Missing, ColumnKind::Key).0.is_err());
        assert!(push(Cell::Time(0), ColumnKind::Number).0.is_err(), "a moment is no number");
    }

    #[test]
    fn a_year_is_no_second_of_1970_where_day_and_hour_count() {
        let calendar = ColumnSpec::new("a", ColumnKind::Calendar);
        let time = ColumnSpec::new("a", ColumnKind::Time);
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
        let index = |outside| ColumnSpec::new("a", ColumnKind::Index(Index { offset: 10, rows: 3, outside }));
        let unknown = index(Outside::Unknown);
        let clamp = index(Outside::Clamp);
        for (text, row, found) in [("10", 0.0, CellOutcome::Valid), ("12.0", 2.0, CellOutcome::Valid)] {
            for spec in [&unknown, &clamp] {
                assert_eq!(cell(text, spec, &[]), (Ok(found), Values::Numbers(vec![row])));
            }
        }
        for (text, nearest) in [("9", 0.0), ("13", 2.0), ("-1e9", 0.0)] {
            assert_eq!(cell(text, &unknown, &[]), (Ok(CellOutcome::Valid), Values::Numbers(vec![3.0])), "{text}");
            assert_eq!(cell(text, &clamp, &[]), (Ok(CellOutcome::Clamped), Values::Numbers(vec![nearest])), "{text}");
        }
        assert_eq!(cell("NA", &clamp, &["NA"]).0, Ok(CellOutcome::Missing));
        assert_eq!(cell("10.5", &clamp, &[]).0, Err(CellError::NotAnInteger { found: "10.5".into() }));
        let mut column = Values::new(clamp.kind, 1);
        push_cell(Cell::Integer(12), &clamp, &MissingTokens::default(), &mut column).unwrap();
        assert_eq!(column.numbers(), [2.0]);
    }

    #[test]
    fn an_empty_cell_of_labels_has_none_unless_that_means_missing() {
        use enn_common::config::data::Labels;
        let labels =
            |empty_is_missing| ColumnSpec::new("a", ColumnKind::Labels(Labels { separator: ';', empty_is_missing }));
        for (empty_is_missing, found) in [(false, CellOutcome::Valid), (true, CellOutcome::Missing)] {
            let spec = labels(empty_is_missing);
            assert_eq!(cell("", &spec, &["NA"]).0, Ok(found));
            assert_eq!(cell("NA", &spec, &["NA"]).0, Ok(CellOutcome::Missing));
            for empty in [Cell::Missing, Cell::Real(f64::NAN), Cell::Text(" ")] {
                let mut column = Values::new(spec.kind, 1);
                assert_eq!(push_cell(empty, &spec, &MissingTokens::default(), &mut column), Ok(found), "{empty:?}");
            }
            let mut column = Values::new(spec.kind, 1);
            let none = push_cell(Cell::List(&[]), &spec, &MissingTokens::default(), &mut column);
            assert_eq!(none, Ok(CellOutcome::Valid), "a list without labels says so");
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
