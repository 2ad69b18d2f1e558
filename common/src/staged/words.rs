//! One canonical form of the words of a column, whatever file brought them. Pure.
//!
//! A column is of numbers only where every cell that is there is a number without leading zeros or a plus sign. Each then has the shortest
//! decimal of its precision: `1.0`, `1e0` and the integer 1 are `1`. Everything else stays as it is: `007` stays `007`.

use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::HashMap};

/// Kind of all words of a column, which says how they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Texts, as they are.
    #[default]
    Text,
    /// Numbers: the shortest decimal.
    Number,
    /// `true` and `false`, however they are spelt.
    Truth,
    /// Moments: `2013-01-31`, with the time of day unless it is midnight.
    Time,
}

/// A word in its canonical form. Moments stay: whoever reads times writes them.
pub fn canonical(word: &str, form: Form) -> Cow<'_, str> {
    match form {
        Form::Number => number(word).unwrap_or(Cow::Borrowed(word)),
        Form::Truth => truth(word).map_or(Cow::Borrowed(word), |truth| Cow::Owned(truth.to_string())),
        Form::Text | Form::Time => Cow::Borrowed(word),
    }
}

/// Where the words of a list stand: as they are, and where all are numbers or truth values, in any spelling.
#[derive(Debug, Default)]
pub struct Places<'a> {
    exact: HashMap<&'a str, usize>,
    alike: HashMap<String, usize>,
    form: Form,
}

impl<'a> Places<'a> {
    pub fn new(list: &'a [String]) -> Self {
        let form = form(list);
        let mut exact = HashMap::new();
        let mut alike = HashMap::new();
        for (at, word) in list.iter().enumerate() {
            exact.entry(word.as_str()).or_insert(at);
            if form != Form::Text {
                alike.entry(canonical(word, form).into_owned()).or_insert(at);
            }
        }
        Self { exact, alike, form }
    }

    /// The place of a word: where it stands as it is, else where the same number or truth value stands.
    pub fn of(&self, word: &str) -> Option<usize> {
        let exact = self.exact.get(word).copied();
        exact.or_else(|| self.alike.get(&*canonical(word, self.form)).copied())
    }
}

/// Returns the kind of the words, except for moments, which the reader of times finds. Words that differ, or none, are texts.
pub fn form(words: &[String]) -> Form {
    let all = |is: fn(&str) -> bool| !words.is_empty() && words.iter().all(|word| is(word));
    if all(|word| number(word).is_some()) {
        Form::Number
    } else if all(|word| truth(word).is_some()) {
        Form::Truth
    } else {
        Form::Text
    }
}

/// Whether a word is spelt true or false.
pub fn truth(word: &str) -> Option<bool> {
    if word.eq_ignore_ascii_case("true") {
        return Some(true);
    }
    word.eq_ignore_ascii_case("false").then_some(false)
}

/// The shortest decimal of a number; `None` for a text that is none, or has leading zeros or a plus sign. Integers keep all their digits.
pub fn number(text: &str) -> Option<Cow<'_, str>> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    if unsigned == "inf" {
        return Some(Cow::Borrowed(text));
    }
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = unsigned.split_at(digits(unsigned));
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    let exponent = rest.strip_prefix(['e', 'E']);
    let is_exponent = |text: &str| {
        let text = text.strip_prefix(['-', '+']).unwrap_or(text);
        !text.is_empty() && digits(text) == text.len()
    };
    let is_number = whole.len() + fraction.len() > 0 && exponent.map_or(rest.is_empty(), is_exponent);
    if !is_number || (whole.len() > 1 && whole.starts_with('0')) {
        return None;
    }
    let is_whole = exponent.is_none() && fraction.bytes().all(|digit| digit == b'0') && !whole.is_empty();
    if is_whole {
        let is_zero = whole == "0";
        let signed = if is_zero { 0 } else { text.len() - unsigned.len() };
        let start = text.len() - unsigned.len() - signed;
        return Some(Cow::Borrowed(&text[start..text.len() - unsigned.len() + whole.len()]));
    }
    let value: f64 = text.parse().ok()?;
    value.is_finite().then(|| Cow::Owned(real(value)))
}

/// The shortest decimal of a number that is an f64; of zero it has no sign.
pub fn real(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { value.to_string() }
}

/// The shortest decimal of a number that is an f32.
pub fn single(value: f32) -> String {
    if value == 0.0 { "0".to_owned() } else { value.to_string() }
}

/// The shortest decimal of a number of fewer digits than an f32 has; `is_same` says whether another number is rounded to this one.
pub fn rounded(value: f64, is_same: impl Fn(f64) -> bool) -> String {
    let of = |digits: usize| format!("{value:.digits$e}").parse::<f64>().ok().filter(|short| is_same(*short));
    real((0..=9).find_map(of).unwrap_or(value))
}

/// How the number would be written if it were an f32 that was made an f64: `0.1` for `0.10000000149011612`. `None` where it is none, or the
/// same.
pub fn narrowed(word: &str) -> Option<String> {
    let value: f64 = word.parse().ok()?;
    let short = value as f32;
    let is_single = value.is_finite() && f64::from(short) == value && value.fract() != 0.0;
    is_single.then(|| single(short)).filter(|narrow| narrow != word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_has_one_form() {
        for (text, form) in [
            ("1", "1"),
            ("1.0", "1"),
            ("1.", "1"),
            ("1e0", "1"),
            ("-1.50", "-1.5"),
            (".5", "0.5"),
            ("0.10", "0.1"),
            ("1e+16", "10000000000000000"),
            ("-0", "0"),
            ("-0.0", "0"),
            ("0e5", "0"),
            ("12345678901234567890", "12345678901234567890"),
            ("9007199254740993.0", "9007199254740993"),
            ("-12.000", "-12"),
            ("inf", "inf"),
        ] {
            assert_eq!(number(text).as_deref(), Some(form), "{text}");
        }
        for text in
            ["", "-", ".", "007", "-01", "00.5", "+1", "1_000", "0x10", "1e", "1e999", "nan", "e5", "1.2.3", " 1"]
        {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn a_number_has_the_digits_of_its_precision() {
        assert_eq!((single(0.1), real(0.1), real(-0.0)), ("0.1".into(), "0.1".into(), "0".into()));
        let tenth = half::f16::from_f32(0.1);
        assert_eq!(rounded(tenth.into(), |other| half::f16::from_f64(other) == tenth), "0.1");
        let tenth = half::bf16::from_f32(0.1);
        assert_eq!(rounded(tenth.into(), |other| half::bf16::from_f64(other) == tenth), "0.1");
        assert_eq!(narrowed("0.10000000149011612").as_deref(), Some("0.1"));
        assert_eq!((narrowed("0.1"), narrowed("0.5"), narrowed("16777220"), narrowed("x")), (None, None, None, None));
    }

    #[test]
    fn a_list_has_the_same_number_in_another_spelling() {
        let list = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let place = |list: &[String], word: &str| Places::new(list).of(word);
        assert_eq!(place(&list(&["1.0", "2.0"]), "2"), Some(1));
        assert_eq!(place(&list(&["1.0", "1"]), "1"), Some(1), "as it is, first");
        assert_eq!(place(&list(&["1.0", "b"]), "1"), None, "texts are what they are");
        assert_eq!(place(&list(&["True", "False"]), "false"), Some(1));
    }

    proptest! {
        #[test]
        fn the_form_of_a_form_is_itself(value in any::<f64>(), word in "[-+0-9.e]{0,8}") {
            for text in [value.to_string(), word] {
                if let Some(form) = number(&text) {
                    let again = number(&form);
                    prop_assert_eq!(again.as_deref(), Some(&*form));
                    prop_assert!((form.parse::<f64>().unwrap() == text.parse::<f64>().unwrap()) || form.len() > 15);
                }
            }
        }
    }
}
