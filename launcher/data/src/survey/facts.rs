//! Counts about the cells of a sampled column: how many are numbers, times, texts. Pure.

use super::sample::SampledColumn;
use crate::stage::{source::block::NO_WORD, timestamp};
use enn_common::staged::words;

/// Microseconds since 1970, and numbers, of each different word; NaN and `None` where it is none.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ColumnFacts {
    pub rows: usize,
    pub missing: usize,
    pub distinct: usize,
    /// Number of rows with each word.
    pub counts: Vec<usize>,
    /// The number that each word is, NaN for others.
    pub numbers: Vec<f64>,
    /// The time that each word is, in microseconds since 1970.
    pub times: Vec<Option<i64>>,
    /// Rows with a number, a whole number, true or false, a time, a text with a comma for a decimal point, a date in another notation.
    pub number_rows: usize,
    pub whole_rows: usize,
    pub truth_rows: usize,
    pub time_rows: usize,
    pub comma_rows: usize,
    pub foreign_date_rows: usize,
    pub least: f64,
    pub most: f64,
    /// Share of the rows whose number is that of the row before and 1.
    pub running_share: f64,
    /// Mean number of letters of the words.
    pub letters: f64,
}

impl ColumnFacts {
    pub(super) fn of(column: &SampledColumn) -> Self {
        let mut counts = vec![0; column.words.len()];
        column.ids.iter().filter(|id| **id != NO_WORD).for_each(|id| counts[*id as usize] += 1);
        let rows = column.ids.len();
        let known: usize = counts.iter().sum();
        let numbers: Vec<f64> = column.words.iter().map(|word| number(word)).collect();
        let times: Vec<Option<i64>> = column.words.iter().map(|word| time(word)).collect();
        let rows_with = |is: &dyn Fn(usize) -> bool| (0..counts.len()).filter(|at| is(*at)).map(|at| counts[at]).sum();
        let finite = || numbers.iter().copied().filter(|value| value.is_finite());
        let letters: usize = column.words.iter().map(|word| word.chars().count()).sum();
        Self {
            rows,
            missing: rows - known,
            distinct: column.words.len(),
            number_rows: rows_with(&|at| !numbers[at].is_nan()),
            whole_rows: rows_with(&|at| numbers[at].fract() == 0.0),
            truth_rows: rows_with(&|at| words::truth(&column.words[at]).is_some()),
            time_rows: rows_with(&|at| times[at].is_some()),
            comma_rows: rows_with(&|at| has_decimal_comma(&column.words[at])),
            foreign_date_rows: rows_with(&|at| is_foreign_date(&column.words[at])),
            least: finite().fold(f64::INFINITY, f64::min),
            most: finite().fold(f64::NEG_INFINITY, f64::max),
            running_share: running_share(column, &numbers),
            letters: letters as f64 / column.words.len().max(1) as f64,
            counts,
            numbers,
            times,
        }
    }

    /// Returns the number of rows with a value.
    pub(super) fn known(&self) -> usize {
        self.rows - self.missing
    }

    pub(super) fn missing_share(&self) -> f64 {
        self.missing as f64 / self.rows.max(1) as f64
    }

    /// Returns the share of the different values among the rows with a value.
    pub(super) fn distinct_share(&self) -> f64 {
        self.distinct as f64 / self.known().max(1) as f64
    }

    /// Whether all values are whole numbers.
    pub(super) fn is_whole(&self) -> bool {
        self.known() > 0 && self.whole_rows == self.known()
    }
}

/// Returns the number that a cell is as an input of kind number; NaN if it is none, or a code such as `007`.
fn number(word: &str) -> f64 {
    words::number(word).and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

fn time(word: &str) -> Option<i64> {
    let bytes = word.as_bytes();
    let is_date = bytes.len() >= 10 && bytes[4] == b'-' && bytes[7] == b'-';
    is_date.then(|| timestamp::parse_micros(bytes)).flatten()
}

fn running_share(column: &SampledColumn, numbers: &[f64]) -> f64 {
    let of = |id: u32| numbers.get(id as usize).copied().unwrap_or(f64::NAN);
    let runs = column.ids.windows(2).filter(|pair| of(pair[1]) - of(pair[0]) == 1.0).count();
    runs as f64 / column.ids.len().saturating_sub(1).max(1) as f64
}

/// Whether a text is a number with a decimal comma, as `1.234,5`.
fn has_decimal_comma(word: &str) -> bool {
    let Some((whole, fraction)) = word.split_once(',') else { return false };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let whole = whole.strip_prefix('-').unwrap_or(whole);
    digits(fraction) && whole.split('.').all(digits)
}

/// Whether a text is a date that is read as none: `31.01.2024`, `1/31/24 06:00`, `2024/01/31`, `20240131`.
fn is_foreign_date(word: &str) -> bool {
    if timestamp::is_compact_date(word.as_bytes()) {
        return true;
    }
    let date = word.split([' ', 'T']).next().unwrap_or_default();
    let Some(mark) = date.chars().find(|letter| matches!(letter, '.' | '/')) else { return false };
    let parts: Vec<&str> = date.split(mark).collect();
    let number = |text: &str| text.parse::<u32>().ok().filter(|_| text.len() <= 4);
    let [Some(first), Some(second), Some(third)] = [0, 1, 2].map(|at| parts.get(at).and_then(|part| number(part)))
    else {
        return false;
    };
    let is_day = |day: u32| (1..=31).contains(&day);
    let has_year =
        (1000..3000).contains(&third) || (parts[2].len() == 2 && mark == '/') || (1000..3000).contains(&first);
    let days = if first >= 1000 { [second, third] } else { [first, second] };
    parts.len() == 3 && has_year && days.into_iter().all(is_day) && days.into_iter().any(|day| day <= 12)
}

#[cfg(test)]
mod facts_tests {
    use super::*;

    #[test]
    fn commas_and_dates_of_other_places_are_seen() {
        for word in ["1,5", "-3,25", "1.234,5"] {
            assert!(has_decimal_comma(word), "{word}");
        }
        for word in ["1.5", "1,", "a,5", "rain, 5", "1,5,6", ","] {
            assert!(!has_decimal_comma(word), "{word}");
        }
        for word in ["31.01.2024", "1/31/2024", "1/31/24", "31.01.2024 06:00", "2024/01/31", "20240131"] {
            assert!(is_foreign_date(word), "{word}");
        }
        for word in ["2024-01-31", "1.2.3", "10/20", "31.31.2024", "192.168.1.1", "20249931", "é/1/2024"] {
            assert!(!is_foreign_date(word), "{word}");
        }
        assert_eq!(time("2024-01-31T06:00:00.5Z").map(|micros| micros % 1_000_000), Some(500_000));
        assert!(number("007").is_nan() && number("1e3") == 1000.0 && time("1700000000").is_none());
    }
}
