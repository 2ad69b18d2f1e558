//! The kind of a column, guessed from its values and its name, and reasons to leave it out. Pure.
//!
//! A type that a table declares decides: numbers are numbers, texts and truth values categories, times times, lists labels. A file of text
//! declares nothing, so that the values tell.

use super::{facts::ColumnFacts, names, sample::SampledColumn};
use crate::stage::source::DeclaredType;
use std::collections::BTreeSet;

/// Share of missing cells from which on a column is left out.
const MISSING_SHARE_MAX: f64 = 0.95;
/// Rows from which on unique values say something.
const ROWS_TO_JUDGE: usize = 20;
/// Share of different values from which on they are nearly unique, and from which on texts are too many for categories.
const UNIQUE_SHARE: f64 = 0.95;
const TEXTS_SHARE_MAX: f64 = 0.5;
/// Different values of a column with the name of an identifier that may be categories.
const NAMED_CATEGORIES_MAX: usize = 50;
/// Share of rows of a column of numbers that may have other texts, and how many different ones.
const ODD_SHARE_MAX: f64 = 0.2;
const ODD_WORDS_MAX: usize = 5;
const ODD_LETTERS_MAX: usize = 20;
/// Mean letters from which on texts are prose.
const PROSE_LETTERS: f64 = 40.0;
/// Share of rows with a separator from which on texts are lists of labels, and how many labels at most.
const LABELS_SHARE_MIN: f64 = 0.3;
const LABELS_MAX: usize = 200;
/// Share of neighbouring rows with consecutive numbers, and whole numbers that are seconds since 1970: the years 1990 to 2100.
const RUNNING_SHARE: f64 = 0.9;
const SECONDS: std::ops::Range<f64> = 631_152_000.0..4_102_444_800.0;
/// Different values that a remark lists.
const LISTED_MAX: usize = 4;
const LISTED_LETTERS_MAX: usize = 16;

/// The kind as which a column is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuessedKind {
    Number,
    Category,
    Time,
    /// Labels, which this separates.
    Labels(char),
}

impl GuessedKind {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Category => "category",
            Self::Time => "time",
            Self::Labels(_) => "labels",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ColumnGuess {
    pub name: String,
    /// Kind as which it can be read; `None` for types that are not read.
    pub kind: Option<GuessedKind>,
    /// The values that were found, e.g. "412 different texts".
    pub found: String,
    /// Why it is better left out.
    pub doubt: Option<String>,
    /// Texts among numbers that seem to mean "missing".
    pub odd_words: Vec<String>,
    /// Whether it is an identifier of the rows: each row has a value of its own.
    pub names_rows: bool,
}

impl ColumnGuess {
    pub(super) fn of(column: &SampledColumn, facts: &ColumnFacts) -> Self {
        let mut guess = Self {
            name: column.name.clone(),
            kind: None,
            found: String::new(),
            doubt: None,
            odd_words: Vec::new(),
            names_rows: false,
        };
        guess.read_values(column, facts);
        if column.is_repeated {
            guess.doubt = Some("the header names it twice; rename one of the two".into());
        }
        guess
    }

    /// Takes it as a category, as somebody asked.
    pub(super) fn take_as_category(&mut self) {
        self.kind = Some(GuessedKind::Category);
        self.odd_words.clear();
        self.doubt = None;
    }

    /// Takes it as a time, as somebody asked, if all of its values can be times.
    pub(super) fn take_as_time(&mut self, facts: &ColumnFacts) {
        let are_times = facts.known() > 0 && facts.time_rows == facts.known();
        if are_times || are_seconds(facts) {
            self.kind = Some(GuessedKind::Time);
            self.doubt = None;
        }
    }

    fn read_values(&mut self, column: &SampledColumn, facts: &ColumnFacts) {
        if column.declared == DeclaredType::Other {
            self.found = "values of a type that is not read".into();
            self.doubt = Some("its type is not read; convert it to numbers, texts or times".into());
            return;
        }
        self.kind = Some(self.kind(column, facts));
        if facts.known() == 0 {
            self.found = "no value".into();
            self.doubt = Some("all of its cells are missing".into());
            return;
        }
        self.found = self.describe(column, facts);
        if facts.missing > 0 {
            self.found += &format!(", {} missing", percent(facts.missing_share()));
        }
        self.doubt = self.doubt(column, facts);
        let is_identifier = self.doubt.as_ref().is_some_and(|doubt| doubt.starts_with("identifier"));
        self.names_rows = is_identifier && facts.distinct == facts.rows;
    }

    fn kind(&mut self, column: &SampledColumn, facts: &ColumnFacts) -> GuessedKind {
        let known = facts.known();
        match column.declared {
            DeclaredType::Integer | DeclaredType::Real => return GuessedKind::Number,
            DeclaredType::Truth | DeclaredType::Text => return GuessedKind::Category,
            DeclaredType::Time => return GuessedKind::Time,
            DeclaredType::List => return GuessedKind::Labels(';'),
            DeclaredType::Open | DeclaredType::Other => {}
        }
        if known == 0 || facts.number_rows == known {
            let is_seconds = names::is_time(&self.name) && are_seconds(facts);
            return if is_seconds { GuessedKind::Time } else { GuessedKind::Number };
        }
        if facts.time_rows == known {
            return GuessedKind::Time;
        }
        self.odd_words = odd_words(column, facts);
        if !self.odd_words.is_empty() {
            return GuessedKind::Number;
        }
        labels_separator(column, facts).map_or(GuessedKind::Category, GuessedKind::Labels)
    }

    fn describe(&self, column: &SampledColumn, facts: &ColumnFacts) -> String {
        match self.kind {
            Some(GuessedKind::Number) => {
                if facts.distinct == 1 {
                    return format!("always {}", short(facts.least));
                }
                let what = if facts.is_whole() { "whole numbers" } else { "numbers" };
                let range = format!("{} to {}", short(facts.least), short(facts.most));
                let different = facts.distinct - self.odd_words.len();
                let odd: Vec<String> = self.odd_words.iter().map(|word| format!("{word:?}")).collect();
                let odd = if odd.is_empty() { String::new() } else { format!(", besides {}", odd.join(" ")) };
                format!("{different} different {what}, {range}{odd}")
            }
            Some(GuessedKind::Time) => {
                let known = column.words.iter().zip(&facts.times).filter_map(|(word, time)| Some(((*time)?, word)));
                let known: Vec<(i64, &String)> = known.collect();
                match (known.iter().min(), known.iter().max()) {
                    (Some((_, first)), Some((_, last))) => format!("times, {} to {}", minute(first), minute(last)),
                    _ => format!("times, {} to {} s since 1970", short(facts.least), short(facts.most)),
                }
            }
            Some(GuessedKind::Labels(_)) => format!("lists of labels, {} different", facts.distinct),
            _ if facts.truth_rows == facts.known() => "true or false".into(),
            _ => {
                let listed = if facts.distinct <= LISTED_MAX {
                    let words: Vec<String> = column.words.iter().map(|word| brief(word)).collect();
                    format!(": {}", words.join(", "))
                } else {
                    String::new()
                };
                let text = if facts.distinct == 1 { "text" } else { "different texts" };
                format!("{} {text}{listed}", facts.distinct)
            }
        }
    }

    /// Returns why a column that can be read is better left out.
    fn doubt(&self, column: &SampledColumn, facts: &ColumnFacts) -> Option<String> {
        let known = facts.known();
        if facts.distinct == 1 && facts.missing == 0 {
            return Some(format!("constant: always {}", brief(column.words.first().map_or("", String::as_str))));
        }
        if facts.missing_share() > MISSING_SHARE_MAX {
            return Some(format!("{} of its cells are missing", percent(facts.missing_share())));
        }
        if column.declared == DeclaredType::Open && self.kind == Some(GuessedKind::Category) {
            let half = known.div_ceil(2);
            if facts.comma_rows >= half {
                let numbers = "numbers with a decimal comma, which are not read; write a point, e.g. with pandas.read_csv(…, decimal=\",\")";
                return Some(numbers.into());
            }
            if facts.foreign_date_rows >= half {
                return Some("dates in a notation that is not read; write 2024-01-31, or 2024-01-31T06:00:00".into());
            }
        }
        if column.declared == DeclaredType::Open && facts.foreign_date_rows == known && facts.distinct > 1 {
            return Some("dates without dashes, which are not read; write 2024-01-31".into());
        }
        self.identifier(facts)
    }

    fn identifier(&self, facts: &ColumnFacts) -> Option<String> {
        let known = facts.known();
        if known < ROWS_TO_JUDGE {
            return None;
        }
        let is_unique = facts.distinct == known;
        let is_nearly_unique = facts.distinct_share() > UNIQUE_SHARE;
        let each = if is_unique { "each value occurs once" } else { "nearly each value occurs once" };
        match self.kind? {
            GuessedKind::Category if is_nearly_unique && facts.letters > PROSE_LETTERS => {
                Some("prose: nearly each text occurs once".into())
            }
            GuessedKind::Category if is_nearly_unique => Some(format!("identifier: {each}")),
            GuessedKind::Category if facts.distinct_share() > TEXTS_SHARE_MAX => {
                Some(format!("{} different texts in {known} rows are too many for categories", facts.distinct))
            }
            GuessedKind::Number if is_unique && facts.is_whole() && facts.running_share > RUNNING_SHARE => {
                Some("identifier: numbers the rows".into())
            }
            GuessedKind::Number
                if is_nearly_unique && facts.is_whole() && names::is_identifier_if_unique(&self.name) =>
            {
                Some(format!("identifier by its name, and {each}"))
            }
            GuessedKind::Number | GuessedKind::Category
                if names::is_identifier(&self.name)
                    && facts.distinct > NAMED_CATEGORIES_MAX
                    && (facts.is_whole() || self.kind == Some(GuessedKind::Category)) =>
            {
                Some(format!("identifier by its name, with {} different values", facts.distinct))
            }
            _ => None,
        }
    }
}

/// Whether all values are whole numbers that can be seconds since 1970.
fn are_seconds(facts: &ColumnFacts) -> bool {
    facts.is_whole() && SECONDS.contains(&facts.least) && SECONDS.contains(&facts.most)
}

/// Returns the few texts in a column of numbers; none if it is no such column.
fn odd_words(column: &SampledColumn, facts: &ColumnFacts) -> Vec<String> {
    let known = facts.known();
    let share = (known - facts.number_rows) as f64 / known.max(1) as f64;
    let is_odd = |at: &usize| facts.numbers[*at].is_nan();
    let odd: Vec<usize> = (0..facts.distinct).filter(is_odd).collect();
    // Codes such as 007 are numbers to whoever wrote them, and dates are dates.
    let is_code =
        |at: &usize| column.words[*at].bytes().any(|byte| byte.is_ascii_digit()) && !is_sentinel(&column.words[*at]);
    let is_long = |at: &usize| column.words[*at].chars().count() > ODD_LETTERS_MAX;
    if facts.number_rows <= odd.len() || share > ODD_SHARE_MAX || odd.len() > ODD_WORDS_MAX {
        return Vec::new();
    }
    if odd.iter().any(|at| is_code(at) || is_long(at)) {
        return Vec::new();
    }
    odd.into_iter().map(|at| column.words[at].clone()).collect()
}

/// Whether a text with digits is an error value of a spreadsheet, as `#DIV/0!`.
fn is_sentinel(word: &str) -> bool {
    word.starts_with('#')
}

/// Returns the separator of texts that are lists of a few labels.
fn labels_separator(column: &SampledColumn, facts: &ColumnFacts) -> Option<char> {
    [';', '|'].into_iter().find(|separator| {
        let rows: usize = column
            .words
            .iter()
            .zip(&facts.counts)
            .filter(|(word, _)| word.contains(*separator))
            .map(|(_, count)| count)
            .sum();
        let labels: BTreeSet<&str> =
            column.words.iter().flat_map(|word| word.split(*separator)).map(str::trim).collect();
        rows as f64 >= LABELS_SHARE_MIN * facts.known() as f64
            && labels.len() <= LABELS_MAX
            && labels.len() * 2 <= facts.distinct + labels.len().min(6)
    })
}

/// Returns a number with few digits.
pub(super) fn short(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    if value == value.trunc() && value.abs() < 1e15 {
        return value.to_string();
    }
    let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    if (1e-4..1e7).contains(&rounded.abs()) { rounded.to_string() } else { format!("{rounded:e}") }
}

/// Returns a time without its seconds.
fn minute(word: &str) -> String {
    brief(&word.chars().take(LISTED_LETTERS_MAX).collect::<String>())
}

/// Returns a text in few letters, on one line.
pub(super) fn brief(word: &str) -> String {
    let plain: String = word
        .chars()
        .map(|letter| if letter.is_control() { '·' } else { letter })
        .take(LISTED_LETTERS_MAX + 10)
        .collect();
    if plain.chars().count() <= LISTED_LETTERS_MAX + 3 {
        return plain;
    }
    format!("{}…", plain.chars().take(LISTED_LETTERS_MAX).collect::<String>())
}

/// Returns a share in percent, never rounded to none or all.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        _ if percent > 0.0 && percent < 1.0 => "less than 1 %".into(),
        _ if percent > 99.0 && percent < 100.0 => "more than 99 %".into(),
        _ => format!("{percent:.0} %"),
    }
}
