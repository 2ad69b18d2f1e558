//! Form of the words of a column, decided once all words are read: numbers, truth values, times or texts; and the canonical spelling of
//! each word, independent of the file format. Pure.

use super::timestamp;
use enn_common::staged::words::{self, Form};
use std::borrow::Cow;

/// Returns the common form of all words; `Text` where they differ.
pub(super) fn of(words: &[String]) -> Form {
    let are_moments = || !words.is_empty() && words.iter().all(|word| timestamp::moment(word).is_some());
    match words::form(words) {
        Form::Text if are_moments() => Form::Time,
        form => form,
    }
}

pub(super) fn canonical(word: &str, form: Form) -> Cow<'_, str> {
    match form {
        Form::Time => timestamp::moment(word).map_or(Cow::Borrowed(word), |at| Cow::Owned(timestamp::text(at))),
        form => words::canonical(word, form),
    }
}

/// Returns the canonical spellings of words, some of which may become equal, and the form.
pub(super) fn canonicalize(words: Vec<String>) -> (Vec<String>, Form) {
    let form = of(&words);
    let settled = words.into_iter().map(|word| canonical(&word, form).into_owned());
    (settled.collect(), form)
}

/// Returns the canonical spelling of a word by its own form. Words that are equal in their column's form are equal here, too.
pub(super) fn alone(word: &str) -> Cow<'_, str> {
    let all = [Form::Number, Form::Truth, Form::Time].map(|form| canonical(word, form));
    all.into_iter().find(|form| form != word).unwrap_or(Cow::Borrowed(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(words: &[&str]) -> (Vec<String>, Form) {
        canonicalize(words.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_column_is_numbers_only_where_every_word_is_one() {
        assert_eq!(settled(&["1.0", "2", "3.50"]), (vec!["1".into(), "2".into(), "3.5".into()], Form::Number));
        for words in [["007", "1.0"], ["1.0", "b"], ["+1", "1.0"], ["1.0", "true"]] {
            assert_eq!(settled(&words), (words.map(String::from).to_vec(), Form::Text), "{words:?}");
        }
        assert_eq!(settled(&["True", "FALSE"]), (vec!["true".into(), "false".into()], Form::Truth));
        assert_eq!(settled(&[]), (vec![], Form::Text));
    }

    #[test]
    fn moments_have_one_form() {
        let (words, form) = settled(&["2013-01-31 00:00:00", "2013-01-31T06:00:00.000Z", "2013-01-31T02:00+02:00"]);
        assert_eq!(
            (words, form),
            (vec!["2013-01-31".into(), "2013-01-31 06:00".into(), "2013-01-31".into()], Form::Time)
        );
        let parts = ["2013-01-31 06:00:00.25", "2013-01-31 06:00:00.5"];
        assert_eq!(
            settled(&parts),
            (parts.map(String::from).to_vec(), Form::Text),
            "parts of a second tell them apart"
        );
    }

    #[test]
    fn a_word_alone_has_the_form_of_its_column() {
        for (word, form) in
            [("1.0", "1"), ("TRUE", "true"), ("2013-01-31T00:00", "2013-01-31"), ("007", "007"), ("b", "b")]
        {
            assert_eq!(alone(word), form);
        }
    }
}
